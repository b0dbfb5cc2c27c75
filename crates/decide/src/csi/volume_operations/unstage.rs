//! Giving a volume back once no pod has it.
//!
//! ```text
//!   lane ──> records read ──> a pod has it ──> done
//!                         └─> nobody ──> for each staging place: can it stage? ──> NodeUnstageVolume ──> record removed
//!   failed ──> again, ever later, until it succeeds or a pod has it
//! ```

use std::collections::VecDeque;

use model::PodUid;
use model::csi::{CsiVolumeOnDisk, VolumeId};

use super::{CsiVolumes, Input, Operation, OperationId, Outputs, VolumeCall};
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
                return self.call(out, id, Operation::Unstage(unstage), VolumeCall::ListRecords);
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
            Ok(UnstageStep::Done) => self.unstage_ended(id, &volume, Ended::NothingLeft),
            Err(message) => self.unstage_failed(out, id, &volume, &message),
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
        let places: VecDeque<CsiVolumeOnDisk> = of_node.into_iter().filter(is_it).collect();
        if let Some(broken) = of_pods.iter().find(|one| one.record.is_err() && !places.is_empty()) {
            let pod = broken.pod.as_ref().map(PodUid::as_str).unwrap_or_default();
            return Err(format!("pod {pod} may use it: {}", broken.unreadable_message()));
        }
        // Also when it fails: nobody knows then how far the driver came, so the next pod has it staged again.
        if let Some(known) = self.volumes.get_mut(volume) {
            known.staged = None;
        }
        Ok(Some(UnstageVolume::new(volume, places)))
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
