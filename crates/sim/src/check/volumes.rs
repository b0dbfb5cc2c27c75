//! Invariants about volumes of the CSI driver, compared with the simulated node when a call is issued.
//!
//! | promise | broken by |
//! | --- | --- |
//! | `record first` | a driver that is asked about a volume of which there is no record on disk at that place |
//! | `one at a time` | a driver that is asked about a volume, or its record that is written or removed, while another such call for it has not ended |
//! | `stage first` | a volume that is published and not staged |
//! | `unstage last` | a volume that is unstaged while a pod has it, or a record of a pod names it |
//! | `no late publish` | a volume that is published for a pod whose end was asked for |
//! | `publication first` | a pod whose volumes count as torn down, or whose directory is removed, while one is being published for it |
//! | `walk first` | a volume that is unpublished while a thread of the agent walks through it |
//! | `unmap first` | a device that is unpublished, or whose pod's directory is removed, while it is mapped and pinned |
//! | `own mounts first` | a volume that is unpublished while there is something that the agent itself has set up for the pod |

use decide::NodeState;
use decide::csi::VolumeCall;
use model::PodUid;

use super::InvariantChecker;
use crate::world::{World, claims_of, pod_of};

/// The volume that the call needs exclusively.
fn volume_of<'a>(world: &'a World, call: &'a VolumeCall) -> Option<&'a str> {
    match call {
        VolumeCall::NodeStageVolume { call, .. } => Some(&call.handle),
        VolumeCall::NodePublishVolume { call, .. } => Some(&call.handle),
        VolumeCall::NodeExpandVolume { call, .. } => Some(&call.handle),
        VolumeCall::NodeUnpublishVolume { handle, .. } | VolumeCall::NodeUnstageVolume { handle, .. } => {
            Some(handle)
        }
        VolumeCall::MapDevice { map, .. } | VolumeCall::UnmapDevice { map } => {
            world.storage.record_beside(map).map(|record| record.volume_handle.as_str())
        }
        VolumeCall::WriteRecord { record, .. } => Some(&record.volume_handle),
        VolumeCall::Remove { record: Some(path), .. } => {
            world.storage.records.get(path).map(|record| record.volume_handle.as_str())
        }
        _ => None,
    }
}

/// The path that a driver call is about.
fn place_of(call: &VolumeCall) -> Option<&str> {
    match call {
        VolumeCall::NodeStageVolume { call, .. } => Some(&call.staging),
        VolumeCall::NodePublishVolume { call, .. } => Some(&call.target),
        VolumeCall::NodeUnpublishVolume { target, .. } => Some(target),
        VolumeCall::NodeUnstageVolume { staging, .. } => Some(staging),
        _ => None,
    }
}

fn is_publishing(call: &VolumeCall, uid: &PodUid) -> bool {
    match call {
        VolumeCall::NodePublishVolume { call, .. } => pod_of(&call.target).as_ref() == Some(uid),
        VolumeCall::MapDevice { map, .. } => pod_of(map).as_ref() == Some(uid),
        _ => false,
    }
}

impl InvariantChecker {
    /// `in_flight`: calls of this agent that have not ended, and those of an earlier agent that may still take effect.
    pub fn volume_call_issued(
        &mut self,
        world: &World,
        state: Option<&NodeState>,
        in_flight: &[&VolumeCall],
        call: &VolumeCall,
    ) {
        if let Some(handle) = volume_of(world, call) {
            if let Some(other) = in_flight.iter().find(|other| volume_of(world, other) == Some(handle)) {
                self.violate("one at a time", format!("{call:?} while {other:?} has not ended"));
            }
            let recorded = |place: &str| {
                world.storage.record_beside(place).is_some_and(|record| record.volume_handle == handle)
            };
            if place_of(call).is_some_and(|place| !recorded(place)) {
                self.violate("record first", format!("{call:?}, and there is no record of it"));
            }
        }
        match call {
            VolumeCall::NodeStageVolume { call, .. } => self.volume_is_attached(world, &call.handle),
            VolumeCall::NodePublishVolume { call, .. } => {
                let Some(uid) = pod_of(&call.target) else { return };
                self.volume_is_its_own(world, state, &uid, &call.handle);
                self.volume_is_attached(world, &call.handle);
                if !world.storage.staged.contains_key(&call.handle) {
                    let message = format!("{} is published for {uid}, and is not staged", call.handle);
                    self.violate("stage first", message);
                }
                let stays = state.and_then(|state| state.pods.get(&uid));
                if self.told_to_end.contains(&uid)
                    || !stays.is_some_and(|entry| entry.lifecycle().may_start())
                {
                    let message = format!("{} is published for {uid}, which is to end", call.handle);
                    self.violate("no late publish", message);
                }
            }
            VolumeCall::NodeUnpublishVolume { target, .. } => {
                if world.storage.maps.values().any(|shown| shown == target) {
                    self.violate("unmap first", format!("{target} is unpublished while it is mapped"));
                }
                self.nothing_is_inside(world, target);
            }
            VolumeCall::NodeUnstageVolume { handle, .. } => {
                let user = world.storage.users(handle).into_iter().next().cloned();
                if let Some(user) = user.or_else(|| world.storage.recorded_for(handle)) {
                    self.violate("unstage last", format!("{handle} is unstaged while {user} has it"));
                }
            }
            _ => {}
        }
    }

    fn nothing_is_inside(&mut self, world: &World, target: &str) {
        if world.storage.is_walked(target, world.now) {
            self.violate("walk first", format!("{target} is unpublished while somebody walks through it"));
        }
        let Some(uid) = pod_of(target) else { return };
        let mounted = world.storage.mounted(&uid);
        let volumes = world.disk.pods.get(&uid);
        if let Some(own) = volumes.and_then(|volumes| volumes.difference(&mounted).next()) {
            self.violate("own mounts first", format!("{target} is unpublished while {own} is there"));
        }
    }

    /// A tear-down of the pod's CSI volumes was reported as done, or its directory is being removed.
    pub fn volumes_torn_down(&mut self, world: &World, in_flight: &[&VolumeCall], uid: &PodUid) {
        if world.storage.has_map(uid) {
            self.violate("unmap first", format!("the volumes of {uid} are gone, and a device is mapped"));
        }
        if let Some(call) = in_flight.iter().find(|call| is_publishing(call, uid)) {
            self.violate("publication first", format!("the volumes of {uid} are gone, and {call:?} goes on"));
        }
    }

    /// A pod gets the volume that its claim was bound to; a single-pod volume is used by no other pod that this agent
    /// knows.
    fn volume_is_its_own(&mut self, world: &World, state: Option<&NodeState>, uid: &PodUid, handle: &str) {
        let Some(pod) = self.specs.get(uid) else { return };
        if !claims_of(pod).any(|(_, claim)| world.storage.was_bound(claim, handle)) {
            let claims: Vec<&str> = claims_of(pod).map(|(_, claim)| claim).collect();
            let message = format!("{uid} gets {handle}, to which its claims {claims:?} were never bound");
            return self.violate("claims first", message);
        }
        let known = |other: &&PodUid| {
            state.and_then(|state| state.pods.get(other)).is_some_and(|entry| !entry.standing().is_orphan())
        };
        let mut others = world.storage.users(handle).into_iter().filter(|other| *other != uid);
        if let Some(other) = others.find(known).filter(|_| world.storage.is_exclusive(handle)) {
            self.violate(
                "one pod",
                format!("{uid} gets {handle}, which {other} has and which is for one pod"),
            );
        }
    }

    /// No call is made for a volume that is not attached, unless it was force-detached.
    fn volume_is_attached(&mut self, world: &World, handle: &str) {
        let attachments = &world.storage.attachments;
        if !attachments.is_attached(handle) && !attachments.was_force_detached(handle) {
            self.violate("attach first", format!("{handle} is set up, and is not attached"));
        }
    }

    /// A volume was detached because the Node did not list it as in use. `asked`: its driver is working on it.
    pub fn detached(&mut self, world: &World, handle: &str, asked: bool) {
        let used = world.storage.staged.contains_key(handle) || !world.storage.users(handle).is_empty();
        if used || asked {
            let message = format!("{handle} is on the node, which did not say so, and is detached");
            self.violate("detach last", message);
        }
    }
}
