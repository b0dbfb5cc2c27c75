//! Setting a volume up for a pod.
//!
//! ```text
//!   own turn ──> earlier work has ended ──> lane ──> what can the driver do? ──> [another label: unstage]
//!       ──> [record ──> staging directory ──> NodeStageVolume] ──> record ──> [link] ──> NodePublishVolume
//!       ──> [device mapped and pinned] ──> lane left ──> [fsGroup] ──> done
//! ```
//! The walk of an earlier try may hang. It is waited for before the lane, where that keeps nobody else.
//!
//! Cancelled: nothing further is begun between two calls; what is left is found by its record. Failures: a driver that has
//! said for good that it did nothing has its record removed, unless there was one before (a pod may be running on it) or
//! the volume is a device (its record serves other pods too).

use std::mem::take;

use model::PodUid;
use model::csi::{CsiVolume, CsiVolumeOnDisk, VolumeId};
use model::volume::MountStage;

use super::unstage::{UnstageStep, UnstageVolume, may_be_in_use};
use super::{
    CsiVolumes, Input, Operation, OperationId, Outputs, Staged, VolumeCall, VolumeCallFailure,
    VolumeCallFailureKind, VolumeRequestId,
};
use crate::action::{ActionResult, CallFailure};
use crate::csi::{LabelCheck, LabelRecord, NodeCalls, check_staged_label, labels_may_differ, node_calls};

#[derive(Clone, Debug)]
pub(super) struct SetUp {
    request: VolumeRequestId,
    volume: CsiVolume,
    /// Known when the driver has said what it can do.
    calls: Option<NodeCalls>,
    /// The pod is going, and nobody waits for the outcome.
    cancelled: bool,
    /// It has come so far that something of the pod's may be left.
    publishing: bool,
    /// Somebody may have staged the volume before: an earlier agent, or this one for another pod. A driver that refuses
    /// to stage it again says nothing about that, so its record and directory stay.
    may_be_staged: bool,
    step: Step,
}

/// What it waits for.
#[derive(Clone, Debug)]
enum Step {
    Turn,
    EarlierWork,
    Lane,
    Capabilities,
    Labels,
    UnstageOtherLabel(UnstageVolume),
    StageRecord,
    StagingDir,
    NodeStage,
    PodRecords,
    /// `known`: the pod had a record of the volume before.
    Record {
        known: bool,
    },
    LinkDir {
        known: bool,
    },
    Link {
        known: bool,
    },
    NodePublish {
        known: bool,
    },
    MapDevice,
    /// The record is removed after a call that failed for good.
    RecordRemoval {
        failed: Failed,
    },
    Group,
}

/// How far it came, and what went wrong.
#[derive(Clone, Debug)]
struct Failed {
    stage: MountStage,
    message: String,
}

fn device(failure: VolumeCallFailure) -> Failed {
    Failed { stage: MountStage::MountDevice, message: failure.message }
}

fn of_pod(failure: VolumeCallFailure) -> Failed {
    Failed { stage: MountStage::SetUp, message: failure.message }
}

/// What an answer leads to.
#[expect(
    clippy::large_enum_variant,
    reason = "one exists at a time, and only for as long as it is taken apart"
)]
enum Next {
    Call(Step, VolumeCall),
    Lane,
    Failed(Failed),
    Done,
}

impl SetUp {
    pub(super) fn request(&self) -> &VolumeRequestId {
        &self.request
    }

    pub(super) fn volume_id(&self) -> &VolumeId {
        &self.volume.id
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled
    }

    pub(super) fn is_publishing_for(&self, uid: &PodUid) -> bool {
        self.publishing && self.request.uid == *uid
    }

    fn driver(&self) -> String {
        self.volume.id.driver.clone()
    }

    /// Stages it, if this node has not.
    fn stage(&self, staged: bool) -> Next {
        let record = self.calls.as_ref().and_then(|calls| calls.stage_record.clone());
        match record.filter(|_| !staged) {
            Some(record) => {
                let path = self.volume.paths.stage_record.clone();
                Next::Call(Step::StageRecord, VolumeCall::WriteRecord { path, record })
            }
            None => self.staging_dir(staged),
        }
    }

    fn staging_dir(&self, staged: bool) -> Next {
        if staged || self.calls.as_ref().is_none_or(|calls| calls.stage.is_none()) {
            return self.publish();
        }
        let path = self.volume.paths.staging.clone();
        Next::Call(Step::StagingDir, VolumeCall::MakeDir { path })
    }

    fn node_stage(&self) -> Next {
        let Some(call) = self.calls.as_ref().and_then(|calls| calls.stage.clone()) else {
            return self.publish();
        };
        Next::Call(Step::NodeStage, VolumeCall::NodeStageVolume { driver: self.driver(), call })
    }

    fn publish(&self) -> Next {
        Next::Call(Step::PodRecords, VolumeCall::ListPodRecords { uid: self.request.uid.clone() })
    }

    fn record(&self, known: bool) -> Next {
        let Some(record) = self.calls.as_ref().map(|calls| calls.record.clone()) else {
            return Next::Done;
        };
        let path = self.volume.paths.record.clone();
        Next::Call(Step::Record { known }, VolumeCall::WriteRecord { path, record })
    }

    /// The link is what tells that the pod has a device: it is there before the driver is asked.
    fn link_dir(&self, known: bool) -> Next {
        if self.volume.paths.device.is_none() {
            return self.node_publish(known);
        }
        let target = &self.volume.paths.target;
        let path = target.rsplit_once('/').map_or(target.as_str(), |(dir, _)| dir).to_owned();
        Next::Call(Step::LinkDir { known }, VolumeCall::MakeDir { path })
    }

    fn link(&self, known: bool) -> Next {
        let Some(paths) = self.volume.paths.device.clone() else { return self.node_publish(known) };
        let device = self.volume.paths.target.clone();
        Next::Call(Step::Link { known }, VolumeCall::LinkDevice { device, link: paths.link })
    }

    fn node_publish(&self, known: bool) -> Next {
        let Some(call) = self.calls.as_ref().map(|calls| calls.publish.clone()) else {
            return Next::Done;
        };
        let call = VolumeCall::NodePublishVolume { driver: self.driver(), call };
        Next::Call(Step::NodePublish { known }, call)
    }

    /// The loop device over the map keeps the device open, so that it can't vanish or be replaced while a pod uses it.
    fn map_device(&self) -> Option<Next> {
        let paths = self.volume.paths.device.clone()?;
        let device = self.volume.paths.target.clone();
        Some(Next::Call(Step::MapDevice, VolumeCall::MapDevice { device, map: paths.map }))
    }

    fn group(&self) -> Next {
        let Some((group, on_root_mismatch)) = self.calls.as_ref().and_then(|calls| calls.group) else {
            return Next::Done;
        };
        let path = self.volume.paths.target.clone();
        Next::Call(Step::Group, VolumeCall::ApplyGroup { path, group, on_root_mismatch })
    }

    /// A driver that has said that there is nothing has its record removed. What can't be removed is found again when the
    /// pod goes.
    fn after_refusal(&self, failure: VolumeCallFailure, stage: MountStage, known: bool) -> Next {
        let removable = failure.is_final() && !known && self.volume.paths.device.is_none();
        let failed = Failed { stage, message: failure.message };
        if !removable {
            return Next::Failed(failed);
        }
        let paths = &self.volume.paths;
        let (place, record) = match failed.stage {
            MountStage::MountDevice => (paths.staging.clone(), paths.stage_record.clone()),
            _ => (paths.target.clone(), paths.record.clone()),
        };
        let call = VolumeCall::Remove { place, record: Some(record) };
        Next::Call(Step::RecordRemoval { failed }, call)
    }
}

impl CsiVolumes {
    pub(super) fn begin_set_up(&mut self, request: VolumeRequestId, volume: CsiVolume) {
        let (uid, id) = (request.uid.clone(), self.new_id());
        // An inline volume is not staged.
        if !volume.ephemeral {
            self.begun.entry(uid.clone()).or_default().insert(volume.id.clone());
        }
        let turns = self.set_ups.entry((uid, volume.id.clone())).or_default();
        turns.push_back(id);
        if turns.len() == 1 {
            self.ready.push_back(id);
        }
        let set_up = SetUp {
            request,
            volume,
            calls: None,
            cancelled: false,
            publishing: false,
            may_be_staged: false,
            step: Step::Turn,
        };
        self.operations.insert(id, Operation::SetUp(Box::new(set_up)));
    }

    /// What waits ends now, and what only the pod needs is cut short. A call to the driver is left to end.
    pub(super) fn cancel_set_up(&mut self, out: &mut Outputs, id: OperationId, mut set_up: Box<SetUp>) {
        set_up.cancelled = true;
        out.answer(set_up.request.clone(), ActionResult::Interrupted);
        match set_up.step {
            Step::Turn | Step::Lane => self.set_up_ended(out, id, &set_up, ActionResult::Interrupted),
            Step::EarlierWork | Step::Group => {
                self.cancel_call(out, id);
                self.set_up_ended(out, id, &set_up, ActionResult::Interrupted);
            }
            _ => drop(self.operations.insert(id, Operation::SetUp(set_up))),
        }
    }

    pub(super) fn set_up_goes_on(
        &mut self,
        out: &mut Outputs,
        id: OperationId,
        mut set_up: Box<SetUp>,
        input: Input,
    ) {
        let next = self.next_of_set_up(out, id, &mut set_up, input).unwrap_or_else(Next::Failed);
        match next {
            // What a failed call has left behind is removed in any case.
            Next::Call(step, _) if set_up.cancelled && !matches!(step, Step::RecordRemoval { .. }) => {
                self.set_up_ended(out, id, &set_up, ActionResult::Interrupted);
            }
            Next::Call(step, call) => {
                set_up.publishing |= matches!(step, Step::PodRecords);
                set_up.step = step;
                self.call(out, id, Operation::SetUp(set_up), call);
            }
            Next::Lane => {
                let volume = set_up.volume.id.clone();
                set_up.step = Step::Lane;
                self.enter_lane(id, Operation::SetUp(set_up), &volume);
            }
            Next::Failed(Failed { stage, message }) => {
                let failure = CallFailure { unreachable: false, message };
                self.set_up_ended(out, id, &set_up, ActionResult::VolumeFailed { stage, failure });
            }
            Next::Done => self.set_up_ended(out, id, &set_up, ActionResult::Ok),
        }
    }

    fn next_of_set_up(
        &mut self,
        out: &mut Outputs,
        id: OperationId,
        set_up: &mut SetUp,
        input: Input,
    ) -> Result<Next, Failed> {
        let volume = &set_up.volume;
        Ok(match &mut set_up.step {
            Step::Turn => {
                let place = volume.paths.target.clone();
                Next::Call(Step::EarlierWork, VolumeCall::WaitForEarlierWork { place })
            }
            Step::EarlierWork => {
                input.done().map_err(of_pod)?;
                Next::Lane
            }
            Step::Lane => {
                set_up.may_be_staged = self.may_be_staged(&volume.id);
                if !volume.ephemeral && self.on_node.insert(volume.id.clone()) {
                    self.on_node_changes += 1;
                }
                Next::Call(Step::Capabilities, VolumeCall::NodeGetCapabilities { driver: set_up.driver() })
            }
            Step::Capabilities => {
                let can = input.capabilities().map_err(|failure| no_client(volume, &failure))?;
                set_up.calls = Some(node_calls(volume, can));
                let staged = self.volumes.get(&volume.id).and_then(|volume| volume.staged.as_ref());
                let label = staged.map(|staged| staged.label.as_str());
                match labels_may_differ(label, &volume.selinux_context) {
                    true => Next::Call(Step::Labels, VolumeCall::ListRecords),
                    false => set_up.stage(self.is_staged(&volume.id)),
                }
            }
            Step::Labels => self.labels_read(set_up, input.records().map_err(device)?)?,
            Step::UnstageOtherLabel(unstage) => match unstage.next(input) {
                Ok(UnstageStep::Call(call)) => Next::Call(Step::UnstageOtherLabel(unstage.clone()), call),
                Ok(UnstageStep::Done) => {
                    self.unstaged(&volume.id);
                    set_up.stage(false)
                }
                Err(message) => Next::Failed(Failed { stage: MountStage::MountDevice, message }),
            },
            Step::StageRecord => {
                input.done().map_err(device)?;
                set_up.staging_dir(false)
            }
            Step::StagingDir => {
                input.done().map_err(device)?;
                set_up.node_stage()
            }
            Step::NodeStage => match input.done() {
                Ok(()) => {
                    let staged = Staged { label: volume.selinux_context.clone(), stage_again: false };
                    self.volumes.entry(volume.id.clone()).or_default().staged = Some(staged);
                    set_up.publish()
                }
                Err(failure) => set_up.after_refusal(failure, MountStage::MountDevice, set_up.may_be_staged),
            },
            Step::PodRecords => {
                let found = input.records().map_err(of_pod)?;
                let target = &volume.paths.target;
                let is_known =
                    |one: &CsiVolumeOnDisk| one.mount_dir == *target && matches!(one.record, Ok(Some(_)));
                set_up.record(found.iter().any(is_known))
            }
            Step::Record { known } => {
                let known = *known;
                input.done().map_err(of_pod)?;
                set_up.link_dir(known)
            }
            Step::LinkDir { known } => {
                let known = *known;
                input.done().map_err(of_pod)?;
                set_up.link(known)
            }
            Step::Link { known } => {
                let known = *known;
                input.done().map_err(of_pod)?;
                set_up.node_publish(known)
            }
            Step::NodePublish { known } => {
                let known = *known;
                match input.done() {
                    Ok(()) => set_up.map_device().unwrap_or_else(|| self.published(id, set_up)),
                    Err(failure) => set_up.after_refusal(failure, MountStage::SetUp, known),
                }
            }
            Step::MapDevice => {
                let failed = |failure: VolumeCallFailure| Failed {
                    stage: MountStage::MapDevice,
                    message: failure.message,
                };
                input.done().map_err(failed)?;
                self.published(id, set_up)
            }
            Step::RecordRemoval { failed } => {
                match input.done() {
                    Ok(()) if failed.stage == MountStage::MountDevice => {
                        self.volumes.entry(volume.id.clone()).or_default().nothing_staged = true;
                    }
                    Ok(()) => {}
                    Err(failure) => {
                        out.warn(format!("after a call of a storage driver failed: {}", failure.message));
                    }
                }
                Next::Failed(failed.clone())
            }
            Step::Group => {
                input.done().map_err(|failure| {
                    let (handle, cause) = (&volume.id.handle, failure.message);
                    let message = format!("applyFSGroup failed for vol {handle}: {cause}");
                    Failed { stage: MountStage::SetUp, message }
                })?;
                Next::Done
            }
        })
    }

    fn published(&mut self, id: OperationId, set_up: &SetUp) -> Next {
        self.leave_lane(id, &set_up.volume.id);
        set_up.group()
    }

    /// Whether a volume may be staged before it is staged for the pod whose turn it is.
    fn may_be_staged(&mut self, volume: &VolumeId) -> bool {
        let nothing = self.volumes.get_mut(volume).is_some_and(|known| take(&mut known.nothing_staged));
        !nothing && (!self.listed || self.on_node.contains(volume) || self.may_have_unreadable_record(volume))
    }

    /// By this agent, and not to be staged again.
    fn is_staged(&self, volume: &VolumeId) -> bool {
        let staged = self.volumes.get(volume).and_then(|known| known.staged.as_ref());
        staged.is_some_and(|staged| !staged.stage_again)
    }

    /// A mount keeps the label that it was made with.
    fn labels_read(&mut self, set_up: &SetUp, found: Vec<CsiVolumeOnDisk>) -> Result<Next, Failed> {
        let volume = &set_up.volume;
        let here: Vec<(&CsiVolumeOnDisk, LabelRecord<'_>)> =
            found.iter().filter_map(|one| Some((one, labelled(one, &volume.id)?))).collect();
        let labels = here.iter().map(|(_, seen)| *seen);
        let check = check_staged_label(&set_up.request.uid, &volume.selinux_context, labels);
        // The record of the staging has the label. A pod that has the volume keeps it from being unstaged.
        let matters = |one: &&CsiVolumeOnDisk| match one.pod {
            None => volume.paths.stage_record.starts_with(&one.record_path),
            Some(_) => check == LabelCheck::UnstageFirst,
        };
        if let Some(broken) = found.iter().filter(|one| one.record.is_err()).find(matters) {
            return Err(Failed { stage: MountStage::MountDevice, message: may_be_in_use(broken) });
        }
        match check {
            LabelCheck::UsedByOtherPod { message } => Err(Failed { stage: MountStage::MountDevice, message }),
            LabelCheck::Usable => Ok(set_up.stage(self.is_staged(&volume.id))),
            LabelCheck::UnstageFirst => {
                self.unstaging_begins(&volume.id);
                let stages = here.iter().filter(|(one, _)| one.pod.is_none()).map(|(one, _)| (*one).clone());
                let mut unstage = UnstageVolume::new(&volume.id, stages.collect());
                Ok(match unstage.begin() {
                    UnstageStep::Call(call) => Next::Call(Step::UnstageOtherLabel(unstage), call),
                    UnstageStep::Done => {
                        self.unstaged(&volume.id);
                        set_up.stage(false)
                    }
                })
            }
        }
    }

    fn set_up_ended(&mut self, out: &mut Outputs, id: OperationId, set_up: &SetUp, result: ActionResult) {
        self.leave_lane(id, &set_up.volume.id);
        let key = (set_up.request.uid.clone(), set_up.volume.id.clone());
        if let Some(turns) = self.set_ups.get_mut(&key) {
            let was_first = turns.front() == Some(&id);
            turns.retain(|other| *other != id);
            if was_first {
                self.ready.extend(turns.front());
            }
            if turns.is_empty() {
                self.set_ups.remove(&key);
            }
        }
        if !set_up.cancelled {
            out.answer(set_up.request.clone(), result);
        }
        self.publication_ended(out, id);
    }
}

fn no_client(volume: &CsiVolume, failure: &VolumeCallFailure) -> Failed {
    let what = match (failure.kind, volume.ephemeral) {
        (VolumeCallFailureKind::NotRegistered, true) => "mounter.SetUpAt failed to get CSI client",
        (VolumeCallFailureKind::NotRegistered, false) => {
            "attacher.MountDevice failed to create newCsiDriverClient"
        }
        _ => "the capabilities of the driver can't be read",
    };
    let stage = if volume.ephemeral { MountStage::SetUp } else { MountStage::MountDevice };
    Failed { stage, message: format!("kubernetes.io/csi: {what}: {}", failure.message) }
}

/// Of this volume only.
fn labelled<'a>(one: &'a CsiVolumeOnDisk, id: &VolumeId) -> Option<LabelRecord<'a>> {
    let record = one.record.as_ref().ok()?.as_ref().filter(|record| record.id() == *id)?;
    Some(LabelRecord { pod: one.pod.as_ref(), label: &record.se_linux_mount_context })
}
