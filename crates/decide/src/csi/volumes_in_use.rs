//! Which drivers are registered, and which volumes the node uses: what is attached must not be taken away before.

use std::collections::{BTreeMap, BTreeSet};

use model::PodUid;
use model::csi::VolumeId;

/// One for the whole node.
#[derive(Clone, Debug, Default)]
pub struct CsiVolumesInUse {
    registered: BTreeSet<String>,
    /// Volumes that pods are to have, or have.
    wanted: BTreeMap<PodUid, BTreeSet<VolumeId>>,
    reported: Option<Vec<String>>,
    /// Nothing that a report is made of has changed since the last one.
    up_to_date: bool,
}

impl CsiVolumesInUse {
    pub fn is_registered(&self, driver: &str) -> bool {
        self.registered.contains(driver)
    }

    /// The complete set. True if it is another one.
    pub fn set_registered(&mut self, drivers: BTreeSet<String>) -> bool {
        std::mem::replace(&mut self.registered, drivers.clone()) != drivers
    }

    /// Other volumes are on the node than before.
    pub fn on_node_changed(&mut self) {
        self.up_to_date = false;
    }

    /// The pod is to have these, and nothing else any more.
    pub fn set_wanted(&mut self, uid: &PodUid, volumes: BTreeSet<VolumeId>) {
        if self.wanted.get(uid).map_or(volumes.is_empty(), |known| *known == volumes) {
            return;
        }
        self.up_to_date = false;
        if volumes.is_empty() {
            self.wanted.remove(uid);
        } else {
            self.wanted.insert(uid.clone(), volumes);
        }
    }

    /// Which drivers have their volumes attached may have changed.
    pub fn drivers_changed(&mut self) {
        self.up_to_date = false;
    }

    /// Who is to have any.
    pub fn users(&self) -> impl Iterator<Item = &PodUid> {
        self.wanted.keys()
    }

    /// What the Node object has to say, if that is not what it was told last. `on_node`: whoever put them there; `None`:
    /// nobody has looked yet. `attached`: volumes of this driver are attached by somebody.
    pub fn report(
        &mut self,
        on_node: Option<&BTreeSet<VolumeId>>,
        attached: impl Fn(&str) -> bool,
    ) -> Option<Vec<String>> {
        let on_node = on_node.filter(|_| !self.up_to_date)?;
        self.up_to_date = true;
        let all = on_node.iter().chain(self.wanted.values().flatten());
        let names: BTreeSet<String> =
            all.filter(|id| attached(&id.driver)).map(VolumeId::unique_name).collect();
        let names: Vec<String> = names.into_iter().collect();
        if self.reported.as_ref() == Some(&names) {
            return None;
        }
        self.reported = Some(names.clone());
        Some(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_use_is_what_is_wanted_or_there() {
        let id = |driver: &str, handle: &str| VolumeId { driver: driver.into(), handle: handle.into() };
        let (a, b) = (PodUid::new("a"), PodUid::new("b"));
        let attached = |driver: &str| driver != "loose";
        let mut desk = CsiVolumesInUse::default();
        let mut on_node: Option<BTreeSet<VolumeId>> = None;
        desk.set_wanted(&a, [id("d", "1")].into());
        assert_eq!(
            desk.report(on_node.as_ref(), attached),
            None,
            "before the disk was looked at nothing is taken back"
        );
        on_node = Some([id("d", "2"), id("loose", "3")].into());
        desk.on_node_changed();
        let names = |list: &[&str]| Some(list.iter().map(|n| format!("kubernetes.io/csi/{n}")).collect());
        assert_eq!(desk.report(on_node.as_ref(), attached), names(&["d^1", "d^2"]));
        assert_eq!(desk.report(on_node.as_ref(), attached), None);
        desk.set_wanted(&b, [id("d", "1")].into());
        assert_eq!(desk.report(on_node.as_ref(), attached), None);
        desk.set_wanted(&a, BTreeSet::new());
        assert_eq!(desk.report(on_node.as_ref(), attached), None, "the other still has it");
        desk.set_wanted(&b, BTreeSet::new());
        on_node = Some([id("d", "1")].into());
        desk.on_node_changed();
        assert_eq!(desk.report(on_node.as_ref(), attached), names(&["d^1"]), "unpublished, and still staged");
        on_node = Some(BTreeSet::new());
        desk.on_node_changed();
        assert_eq!(desk.report(on_node.as_ref(), attached), names(&[]));
        on_node = Some([id("loose", "3")].into());
        desk.on_node_changed();
        assert_eq!(desk.report(on_node.as_ref(), attached), None);
        desk.drivers_changed();
        assert_eq!(desk.report(on_node.as_ref(), |_| true), names(&["loose^3"]));
        assert!(desk.set_registered(["d".to_owned()].into()));
        assert!(!desk.set_registered(["d".to_owned()].into()));
        assert!(desk.is_registered("d") && !desk.is_registered("e"));
    }
}
