//! Registered CSI drivers and the node's volumesInUse. The attach-detach controller detaches a volume only after it has
//! left that list.

use std::collections::{BTreeMap, BTreeSet};

use model::PodUid;
use model::csi::VolumeId;

/// There is one value for the whole node.
#[derive(Clone, Debug, Default)]
pub struct CsiVolumesInUse {
    registered: BTreeSet<String>,
    /// Volumes that each pod wants or has.
    wanted: BTreeMap<PodUid, BTreeSet<VolumeId>>,
    /// What an earlier agent had reported when this one found records that it can't read: those may be of these.
    earlier: Option<BTreeSet<VolumeId>>,
    reported: Option<Vec<String>>,
    /// True if no input of the report has changed since the last report.
    up_to_date: bool,
}

impl CsiVolumesInUse {
    pub fn is_registered(&self, driver: &str) -> bool {
        self.registered.contains(driver)
    }

    /// Replaces the set of registered drivers. Returns whether it changed.
    pub fn set_registered(&mut self, drivers: BTreeSet<String>) -> bool {
        std::mem::replace(&mut self.registered, drivers.clone()) != drivers
    }

    /// Called when the set of volumes on the node changed.
    pub fn on_node_changed(&mut self) {
        self.up_to_date = false;
    }

    /// Sets the volumes that the pod wants.
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

    /// Called when attachRequired of a driver may have changed.
    pub fn drivers_changed(&mut self) {
        self.up_to_date = false;
    }

    pub fn knows_earlier(&self) -> bool {
        self.earlier.is_some()
    }

    /// Remembers volumesInUse as the Node has it before this agent's first report.
    pub fn set_earlier<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        self.earlier = Some(names.filter_map(VolumeId::of_unique_name).collect());
        self.up_to_date = false;
    }

    /// Pods that want any volume.
    pub fn users(&self) -> impl Iterator<Item = &PodUid> {
        self.wanted.keys()
    }

    /// The new volumesInUse, if it differs from the last report. `on_node`: all volumes on the node, of this and
    /// earlier agents; `None`: not listed yet. `may_be`: whether an unreadable record may be of this volume. `attached`:
    /// whether volumes of this driver need attachment.
    pub fn report(
        &mut self,
        on_node: Option<&BTreeSet<VolumeId>>,
        may_be: impl Fn(&VolumeId) -> bool,
        attached: impl Fn(&str) -> bool,
    ) -> Option<Vec<String>> {
        let on_node = on_node.filter(|_| !self.up_to_date)?;
        self.up_to_date = true;
        let unreadable = self.earlier.iter().flatten().filter(|id| may_be(id));
        let all = on_node.iter().chain(self.wanted.values().flatten()).chain(unreadable);
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
    fn what_an_earlier_agent_reported_stays_while_it_may_have_an_unreadable_record() {
        let name = |handle: &str| format!("kubernetes.io/csi/d^{handle}");
        let on_node = BTreeSet::new();
        let mut in_use = CsiVolumesInUse::default();
        let earlier = [name("v"), name("v^2"), name("other"), "kubernetes.io/nfs/x".into()];
        in_use.set_earlier(earlier.iter().map(String::as_str));
        let of_v = |id: &VolumeId| id.handle.starts_with('v');
        assert_eq!(in_use.report(Some(&on_node), of_v, |_| true), Some(vec![name("v"), name("v^2")]));
        in_use.on_node_changed();
        assert_eq!(in_use.report(Some(&on_node), |_| false, |_| true), Some(vec![]), "it was mended");
    }

    #[test]
    fn in_use_is_what_is_wanted_or_there() {
        let id = |driver: &str, handle: &str| VolumeId { driver: driver.into(), handle: handle.into() };
        let (a, b) = (PodUid::new("a"), PodUid::new("b"));
        let attached = |driver: &str| driver != "loose";
        let mut desk = CsiVolumesInUse::default();
        let mut on_node: Option<BTreeSet<VolumeId>> = None;
        desk.set_wanted(&a, [id("d", "1")].into());
        assert_eq!(
            desk.report(on_node.as_ref(), |_| false, attached),
            None,
            "before the disk was looked at nothing is taken back"
        );
        on_node = Some([id("d", "2"), id("loose", "3")].into());
        desk.on_node_changed();
        let names = |list: &[&str]| Some(list.iter().map(|n| format!("kubernetes.io/csi/{n}")).collect());
        assert_eq!(desk.report(on_node.as_ref(), |_| false, attached), names(&["d^1", "d^2"]));
        assert_eq!(desk.report(on_node.as_ref(), |_| false, attached), None);
        desk.set_wanted(&b, [id("d", "1")].into());
        assert_eq!(desk.report(on_node.as_ref(), |_| false, attached), None);
        desk.set_wanted(&a, BTreeSet::new());
        assert_eq!(desk.report(on_node.as_ref(), |_| false, attached), None, "the other still has it");
        desk.set_wanted(&b, BTreeSet::new());
        on_node = Some([id("d", "1")].into());
        desk.on_node_changed();
        assert_eq!(
            desk.report(on_node.as_ref(), |_| false, attached),
            names(&["d^1"]),
            "unpublished, and still staged"
        );
        on_node = Some(BTreeSet::new());
        desk.on_node_changed();
        assert_eq!(desk.report(on_node.as_ref(), |_| false, attached), names(&[]));
        on_node = Some([id("loose", "3")].into());
        desk.on_node_changed();
        assert_eq!(desk.report(on_node.as_ref(), |_| false, attached), None);
        desk.drivers_changed();
        assert_eq!(desk.report(on_node.as_ref(), |_| false, |_| true), names(&["loose^3"]));
        assert!(desk.set_registered(["d".to_owned()].into()));
        assert!(!desk.set_registered(["d".to_owned()].into()));
        assert!(desk.is_registered("d") && !desk.is_registered("e"));
    }
}
