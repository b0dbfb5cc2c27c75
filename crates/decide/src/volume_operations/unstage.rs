//! Giving a volume back once no pod has it.
//!
//! ```text
//!   lane ──> records read ──> a pod has it ──> done
//!                         └─> nobody ──> for each staging place: can it stage? ──> NodeUnstageVolume ──> record removed
//!   failed ──> again, ever later, until it succeeds or a pod has it
//! ```
//! Failures: while a record can't be read that may be of the volume, it may be staged or used, so it stays on the node.

use std::collections::VecDeque;

use model::csi::{CsiVolumeOnDisk, VolumeId};

use super::{CsiVolumes, Input, Operation, OperationId, Outputs, VolumeCall, VolumeCallAnswer};
use crate::csi::may_be_record_of;
use crate::effect::TimerKey;

#[derive(Clone, Debug)]
pub(super) struct Unstage {
    volume: VolumeId,
    step: Step,
}

/// What it waits for.
#[derive(Clone, Debug)]
enum Step {
    Lane,
    Records,
    Unstage(UnstageVolume),
}

/// Kept from the first try to the last.
#[derive(Clone, Debug, Default)]
pub(super) struct Retry {
    /// It was asked for again meanwhile.
    again: bool,
    failures: u32,
    /// The next try waits for its time.
    waits: bool,
}

impl Retry {
    pub(super) fn waits(&self) -> bool {
        self.waits
    }
}

/// Unstages a volume wherever it is staged, one place after the other.
#[derive(Clone, Debug)]
pub(super) struct UnstageVolume {
    volume: VolumeId,
    /// The first is at hand.
    places: VecDeque<CsiVolumeOnDisk>,
    done: Done,
}

/// What was asked for the place at hand.
#[derive(Clone, Copy, Debug)]
enum Done {
    Nothing,
    Capabilities,
    Unstaged,
    Removed,
}

#[expect(
    clippy::large_enum_variant,
    reason = "one exists at a time, and only for as long as it is taken apart"
)]
pub(super) enum UnstageStep {
    Call(VolumeCall),
    Done,
}

impl UnstageVolume {
    pub(super) fn new(volume: &VolumeId, places: VecDeque<CsiVolumeOnDisk>) -> Self {
        Self { volume: volume.clone(), places, done: Done::Nothing }
    }

    pub(super) fn begin(&mut self) -> UnstageStep {
        let driver = self.volume.driver.clone();
        if self.places.is_empty() {
            return UnstageStep::Done;
        }
        self.done = Done::Capabilities;
        UnstageStep::Call(VolumeCall::NodeGetCapabilities { driver })
    }

    pub(super) fn next(&mut self, input: Input) -> Result<UnstageStep, String> {
        let Some(place) = self.places.front() else { return Ok(UnstageStep::Done) };
        match self.done {
            Done::Nothing => Ok(self.begin()),
            Done::Capabilities => {
                let can = input.capabilities().map_err(|failure| failure.message)?;
                if !can.stage_unstage_volume {
                    return Ok(self.remove());
                }
                let VolumeId { driver, handle } = self.volume.clone();
                let staging = place.mount_dir.clone();
                self.done = Done::Unstaged;
                Ok(UnstageStep::Call(VolumeCall::NodeUnstageVolume { driver, handle, staging }))
            }
            Done::Unstaged => {
                let cause = |cause| format!("kubernetes.io/csi: attacher.UnmountDevice failed: {cause}");
                input.done().map_err(|failure| cause(failure.message))?;
                Ok(self.remove())
            }
            Done::Removed => {
                input.done().map_err(|failure| failure.message)?;
                self.places.pop_front();
                Ok(self.begin())
            }
        }
    }

    fn remove(&mut self) -> UnstageStep {
        let Some(place) = self.places.front() else { return UnstageStep::Done };
        let record = Some(place.record_path.clone());
        self.done = Done::Removed;
        UnstageStep::Call(VolumeCall::Remove { place: place.mount_dir.clone(), record })
    }
}

/// Why a volume stays as it is while this record can't be read.
pub(super) fn may_be_in_use(broken: &CsiVolumeOnDisk) -> String {
    let cause = broken.unreadable_message();
    match &broken.pod {
        Some(pod) => format!("pod {pod} may use it: {cause}"),
        None => format!("it may be staged: {cause}"),
    }
}

/// How one try ended well.
enum Ended {
    Used,
    NothingLeft,
}

impl CsiVolumes {
    /// Unless a pod has it, the volume is unstaged, however often that takes, and is no longer on the node then.
    pub(super) fn unstage_if_unused(&mut self, volume: &VolumeId) {
        let known = self.volumes.entry(volume.clone()).or_default();
        match &mut known.unstaging {
            Some(retry) => retry.again = true,
            None => {
                known.unstaging = Some(Retry { waits: true, ..Retry::default() });
                self.try_unstage(volume);
            }
        }
    }

    pub(super) fn try_unstage(&mut self, volume: &VolumeId) {
        let retry = self.volumes.get_mut(volume).and_then(|known| known.unstaging.as_mut());
        let Some(retry) = retry.filter(|retry| retry.waits) else { return };
        retry.waits = false;
        let (id, unstage) = (self.new_id(), Unstage { volume: volume.clone(), step: Step::Lane });
        self.enter_lane(id, Operation::Unstage(unstage), volume);
    }

    pub(super) fn unstage_goes_on(
        &mut self,
        out: &mut Outputs,
        id: OperationId,
        mut unstage: Unstage,
        input: Input,
    ) {
        let volume = unstage.volume.clone();
        let step = match &mut unstage.step {
            Step::Lane => {
                unstage.step = Step::Records;
                self.need_records.push(id);
                return drop(self.operations.insert(id, Operation::Unstage(unstage)));
            }
            Step::Records => match self.records_read(&volume, input) {
                Ok(Some(mut places)) => {
                    let step = places.begin();
                    unstage.step = Step::Unstage(places);
                    Ok(step)
                }
                Ok(None) => return self.unstage_ended(id, &volume, Ended::Used),
                Err(message) => Err(message),
            },
            Step::Unstage(places) => places.next(input),
        };
        match step {
            Ok(UnstageStep::Call(call)) => self.call(out, id, Operation::Unstage(unstage), call),
            Ok(UnstageStep::Done) => {
                self.unstaged(&volume);
                self.unstage_ended(id, &volume, Ended::NothingLeft);
            }
            Err(message) => self.unstage_failed(out, id, &volume, &message),
        }
    }

    /// One reading at a time, for all unstagings that need one: after a start there are as many as volumes.
    pub(super) fn read_needed_records(&mut self, out: &mut Outputs) {
        if self.need_records.is_empty() || std::mem::replace(&mut self.reading_records, true) {
            return;
        }
        let (id, waiting) = (self.new_id(), std::mem::take(&mut self.need_records));
        self.call(out, id, Operation::ReadRecords(waiting), VolumeCall::ListRecords);
    }

    pub(super) fn needed_records_read(&mut self, out: &mut Outputs, waiting: &[OperationId], input: Input) {
        self.reading_records = false;
        let found = input.records();
        for id in waiting {
            let Some(Operation::Unstage(unstage)) = self.operations.get(id) else { continue };
            let volume = &unstage.volume;
            let concerns = |one: &&CsiVolumeOnDisk| match &one.record {
                Ok(record) => record.as_ref().is_some_and(|record| record.is_of(volume)),
                Err(_) => true,
            };
            let of_it = found.as_ref().map(|found| found.iter().filter(concerns).cloned().collect());
            let result = of_it.map(VolumeCallAnswer::Records).map_err(Clone::clone);
            self.resume(out, *id, Input::Answer(result));
        }
    }

    /// Where it is staged. `None`: a pod has it.
    fn records_read(&mut self, volume: &VolumeId, input: Input) -> Result<Option<UnstageVolume>, String> {
        let found = input.records().map_err(|failure| failure.message)?;
        let (of_pods, of_node): (Vec<_>, Vec<_>) = found.into_iter().partition(|one| one.pod.is_some());
        let is_it = |one: &CsiVolumeOnDisk| one.id().as_ref() == Some(volume);
        if of_pods.iter().any(is_it) {
            return Ok(None);
        }
        let is_broken = |one: &&CsiVolumeOnDisk| one.record.is_err() && may_be_record_of(one, volume);
        if let Some(broken) = of_pods.iter().chain(&of_node).find(is_broken) {
            return Err(may_be_in_use(broken));
        }
        let places: VecDeque<CsiVolumeOnDisk> = of_node.into_iter().filter(is_it).collect();
        self.unstaging_begins(volume);
        Ok(Some(UnstageVolume::new(volume, places)))
    }

    /// If it fails, nobody knows how far the driver came, so the next pod has it staged again. Until it succeeds, a mount
    /// with the old label may be there.
    pub(super) fn unstaging_begins(&mut self, volume: &VolumeId) {
        if let Some(staged) = self.volumes.get_mut(volume).and_then(|known| known.staged.as_mut()) {
            staged.stage_again = true;
        }
    }

    pub(super) fn unstaged(&mut self, volume: &VolumeId) {
        if let Some(known) = self.volumes.get_mut(volume) {
            known.staged = None;
        }
    }

    fn unstage_failed(&mut self, out: &mut Outputs, id: OperationId, volume: &VolumeId, message: &str) {
        self.leave_lane(id, volume);
        let retry = self.volumes.get_mut(volume).and_then(|known| known.unstaging.as_mut());
        let Some(retry) = retry else { return };
        retry.failures += 1;
        retry.waits = true;
        let failures = retry.failures;
        out.warn(format!("volume {volume} is not unstaged ({failures} tries): {message}"));
        out.timer_after(TimerKey::Unstage(volume.clone()), failures);
    }

    fn unstage_ended(&mut self, id: OperationId, volume: &VolumeId, how: Ended) {
        self.leave_lane(id, volume);
        if matches!(how, Ended::NothingLeft) && self.on_node.remove(volume) {
            self.on_node_changes += 1;
        }
        let Some(known) = self.volumes.get_mut(volume) else { return };
        match &mut known.unstaging {
            Some(retry) if retry.again => {
                (retry.again, retry.waits) = (false, true);
                self.try_unstage(volume);
            }
            _ => {
                known.unstaging = None;
                // Whoever waits for the lane goes on with this one, and so must whoever comes after.
                if matches!(how, Ended::NothingLeft) && known.lane.is_empty() {
                    self.volumes.remove(volume);
                }
            }
        }
    }
}
