//! A simulated attach/detach controller, and the fields of the Node object that it reads and writes.
//!
//! ```text
//!   a pod needs it ──> attachment created ──> attached ──> listed by the Node
//!   no pod does, and it is not in volumesInUse ──> not listed ──> checked again ──> detached
//!   by force, whatever the Node says: neither listed nor attached, at once
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use decide::csi::attachment_name;
use model::csi::VolumeId;
use model::storage::StorageObject;
use serde_json::{Value, json};

use super::storage::{DRIVER, made};

#[derive(Clone, Debug, Default)]
pub struct Attachments {
    /// The driver's volumes have to be attached.
    pub required: bool,
    volumes: BTreeMap<String, AttachPhase>,
    /// The Node's volumesInUse, by the volumes' unique names.
    in_use: BTreeSet<String>,
    /// Force-detached, and not attached again since.
    force_detached: BTreeSet<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AttachPhase {
    /// The VolumeAttachment exists, and does not say attached yet.
    Made,
    Attached,
    /// The Node lists it as attached too.
    Listed,
    /// Attached, but no longer listed by the Node.
    Leaving,
}

/// What a run of the controller has changed.
#[derive(Debug, Default)]
pub struct AttachChanges {
    pub node_changed: bool,
    pub detached: Vec<String>,
}

fn id(handle: &str) -> VolumeId {
    VolumeId { driver: DRIVER.into(), handle: handle.to_owned() }
}

impl Attachments {
    /// Every volume moves on by one step, or (`slow`) may not yet.
    pub fn attach_or_detach_step(
        &mut self,
        wanted: &BTreeSet<String>,
        mut slow: impl FnMut() -> bool,
    ) -> AttachChanges {
        let mut turn = AttachChanges::default();
        let all: BTreeSet<String> = wanted.iter().chain(self.volumes.keys()).cloned().collect();
        for handle in all.into_iter().filter(|_| self.required) {
            if slow() {
                continue;
            }
            let phase = self.volumes.get(&handle).copied();
            let kept = wanted.contains(&handle) || self.in_use.contains(&id(&handle).unique_name());
            let next = match (kept, phase) {
                (true, None) if wanted.contains(&handle) => AttachPhase::Made,
                (_, None) => continue,
                (true, Some(AttachPhase::Made)) => AttachPhase::Attached,
                (true, Some(_)) => AttachPhase::Listed,
                (false, Some(AttachPhase::Listed)) => AttachPhase::Leaving,
                (false, Some(_)) => {
                    self.volumes.remove(&handle);
                    turn.detached.push(handle);
                    continue;
                }
            };
            turn.node_changed |= (phase == Some(AttachPhase::Listed)) != (next == AttachPhase::Listed);
            if next == AttachPhase::Attached {
                self.force_detached.remove(&handle);
            }
            self.volumes.insert(handle, next);
        }
        turn
    }

    /// Force-detaches a volume, as the controller does for a node it takes for dead. Returns the volume.
    pub fn force_detach(&mut self, number: usize) -> Option<String> {
        let listed = self.volumes.iter().filter(|(_, phase)| **phase == AttachPhase::Listed);
        let handles: Vec<String> = listed.map(|(handle, _)| handle.clone()).collect();
        let handle = handles.get(number % handles.len().max(1))?.clone();
        self.volumes.remove(&handle);
        self.force_detached.insert(handle.clone());
        Some(handle)
    }

    /// Sets the Node's volumesInUse.
    pub fn set_volumes_in_use(&mut self, names: Vec<String>) {
        self.in_use = names.into_iter().collect();
    }

    pub fn is_attached(&self, handle: &str) -> bool {
        !self.required || self.volumes.get(handle).is_some_and(|phase| *phase != AttachPhase::Made)
    }

    /// Whether it was detached without the node's knowledge.
    pub fn was_force_detached(&self, handle: &str) -> bool {
        self.force_detached.contains(handle)
    }

    /// Any attached volume.
    pub fn any(&self) -> Option<&String> {
        self.volumes.keys().next()
    }

    pub fn node_status(&self) -> Value {
        let listed = self.volumes.iter().filter(|(_, phase)| **phase == AttachPhase::Listed);
        let attached = listed.map(|(handle, _)| json!({"name": id(handle).unique_name(), "devicePath": ""}));
        json!({"volumesInUse": self.in_use, "volumesAttached": attached.collect::<Vec<_>>()})
    }

    pub fn attachment(&self, name: &str, node: &str) -> Option<StorageObject> {
        let of = |handle: &&String| attachment_name(&id(handle), node) == name;
        let (handle, phase) = self.volumes.iter().find(|(handle, _)| of(handle))?;
        Some(StorageObject::Attachment(Arc::new(made(json!({
            "metadata": {"name": name},
            "spec": {"attacher": DRIVER, "nodeName": node, "source": {"persistentVolumeName": handle}},
            "status": {"attached": *phase != AttachPhase::Made},
        })))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_use_stays_until_it_is_taken_away() {
        let mut attachments = Attachments { required: true, ..Attachments::default() };
        let (wanted, nobody) = (BTreeSet::from(["v".to_owned()]), BTreeSet::new());
        let turn = |a: &mut Attachments, wanted: &BTreeSet<String>| a.attach_or_detach_step(wanted, || false);
        assert!(!turn(&mut attachments, &wanted).node_changed && !attachments.is_attached("v"));
        assert!(!turn(&mut attachments, &wanted).node_changed && attachments.is_attached("v"));
        assert!(turn(&mut attachments, &wanted).node_changed);
        let name = id("v").unique_name();
        assert_eq!(attachments.node_status()["volumesAttached"][0]["name"], name);
        attachments.set_volumes_in_use(vec![name.clone()]);
        assert!(!turn(&mut attachments, &nobody).node_changed, "it is in use");
        attachments.set_volumes_in_use(Vec::new());
        assert!(turn(&mut attachments, &nobody).node_changed);
        attachments.set_volumes_in_use(vec![name]);
        assert!(turn(&mut attachments, &nobody).node_changed, "used again, just in time");
        attachments.set_volumes_in_use(Vec::new());
        turn(&mut attachments, &nobody);
        assert_eq!(turn(&mut attachments, &nobody).detached, ["v"]);
        assert_eq!(attachments.any(), None);
        (0..3).for_each(|_| drop(turn(&mut attachments, &wanted)));
        assert_eq!(attachments.force_detach(5).as_deref(), Some("v"));
        assert!(attachments.was_force_detached("v") && !attachments.is_attached("v"));
        (0..2).for_each(|_| drop(turn(&mut attachments, &wanted)));
        assert!(!attachments.was_force_detached("v") && attachments.is_attached("v"));
    }
}
