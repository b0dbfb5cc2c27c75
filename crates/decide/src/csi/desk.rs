//! Which drivers are registered, and which volumes the node uses: what is attached must not be taken away before.

use std::collections::{BTreeMap, BTreeSet};

use model::PodUid;
use model::csi::VolumeId;

/// One for the whole node.
#[derive(Clone, Debug, Default)]
pub struct CsiDesk {
    registered: BTreeSet<String>,
    /// Volumes that pods are to have, or have.
    wanted: BTreeMap<PodUid, BTreeSet<VolumeId>>,
    /// Volumes that are on the node, whoever put them there. `None`: nobody has looked yet.
    on_node: Option<BTreeSet<VolumeId>>,
    reported: Option<Vec<String>>,
    /// Nothing that a report is made of has changed since the last one.
    up_to_date: bool,
}

impl CsiDesk {
    pub fn is_registered(&self, driver: &str) -> bool {
        self.registered.contains(driver)
    }

    /// The complete set. True if it is another one.
    pub fn set_registered(&mut self, drivers: BTreeSet<String>) -> bool {
        std::mem::replace(&mut self.registered, drivers.clone()) != drivers
    }

    pub fn set_on_node(&mut self, volumes: BTreeSet<VolumeId>) {
        self.on_node = Some(volumes);
        self.up_to_date = false;
    }

    /// The pod is to have these, and nothing else any more.
    pub fn want(&mut self, uid: &PodUid, volumes: BTreeSet<VolumeId>) {
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

    /// What the Node object has to say, if that is not what it was told last. `attached`: volumes of this driver are
    /// attached by somebody.
    pub fn report(&mut self, attached: impl Fn(&str) -> bool) -> Option<Vec<String>> {
        let on_node = self.on_node.as_ref().filter(|_| !self.up_to_date)?;
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
        let mut desk = CsiDesk::default();
        desk.want(&a, [id("d", "1")].into());
        assert_eq!(desk.report(attached), None, "before the disk was looked at nothing is taken back");
        desk.set_on_node([id("d", "2"), id("loose", "3")].into());
        let names = |list: &[&str]| Some(list.iter().map(|n| format!("kubernetes.io/csi/{n}")).collect());
        assert_eq!(desk.report(attached), names(&["d^1", "d^2"]));
        assert_eq!(desk.report(attached), None);
        desk.want(&b, [id("d", "1")].into());
        assert_eq!(desk.report(attached), None);
        desk.want(&a, BTreeSet::new());
        assert_eq!(desk.report(attached), None, "the other still has it");
        desk.want(&b, BTreeSet::new());
        desk.set_on_node([id("d", "1")].into());
        assert_eq!(desk.report(attached), names(&["d^1"]), "unpublished, and still staged");
        desk.set_on_node(BTreeSet::new());
        assert_eq!(desk.report(attached), names(&[]));
        desk.set_on_node([id("loose", "3")].into());
        assert_eq!(desk.report(attached), None);
        desk.drivers_changed();
        assert_eq!(desk.report(|_| true), names(&["loose^3"]));
        assert!(desk.set_registered(["d".to_owned()].into()));
        assert!(!desk.set_registered(["d".to_owned()].into()));
        assert!(desk.is_registered("d") && !desk.is_registered("e"));
    }
}
