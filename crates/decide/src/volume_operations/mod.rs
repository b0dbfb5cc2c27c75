//! Operations on the CSI volumes of this node: which are requested for each volume, which one is running, and its next
//! step. Pure: the engine makes the calls and reports their results.
//!
//! ```text
//!   set-up:     earlier work has ended ──> [lane: stage, if the node has not ──> publish] ──> fsGroup
//!   tear-down:  each volume: earlier work has ended ──> [lane: unpublish, record removed] ──> unstage if unused
//!   unstage:    [lane: does a pod use it? ── no ──> unstage, record removed] ──> failed: retry with back-off
//!   expand:     [lane: claim read ──> driver ──> claim patched]
//! ```
//! Each volume has a lane: one operation at a time, so that a call that hangs delays only its own volume. fsGroup is
//! applied outside of the lane: it takes longer the more files there are, may hang, and concerns only one pod. What has
//! to be undone is found on disk: a record is written before the driver is called. If the agent is killed, the record
//! is left, and the next agent cleans up from it.
//!
//! A terminating pod does not wait for a driver that does not answer: its set-ups are answered at once as interrupted,
//! and end at their next step. Only a NodePublishVolume that has begun is waited for, by the pod's tear-down, because
//! it may leave a mount behind. The walk that applies fsGroup is interrupted.
//!
//! Failures: while a driver may still be working, the record is kept. No volume that an unreadable record may be of is
//! unstaged, and it stays in volumesInUse (ADR 47). A failed unstaging is retried by a timer, and when its driver registers.

mod expand;
mod set_up;
mod tear_down;
#[cfg(test)]
mod tests;
mod unstage;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use model::csi::{CsiVolumeOnDisk, VolumeId};
use model::{ApiEvent, Now, PodUid};

use self::expand::ExpandVolume;
use self::set_up::SetUp;
use self::tear_down::{TearDown, Unpublish};
use self::unstage::{Retry, Unstage};
use crate::action::{ActionResult, Epoch};
use crate::back_off::volume_delay;
use crate::csi::{
    VolumeCall, VolumeCallAnswer, VolumeCallFailure, VolumeCallFailureKind, VolumeCallId, VolumeCallResult,
    VolumeRequest, VolumeRequestFrom, VolumeRequestId, may_be_record_of,
};
use crate::effect::{Effect, LogLevel, TimerKey};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct OperationId(u64);

#[derive(Clone, Debug)]
enum Operation {
    /// Finds what an earlier agent has left.
    ListRecords,
    SetUp(Box<SetUp>),
    TearDown(TearDown),
    /// One volume of a tear-down.
    Unpublish(Box<Unpublish>),
    Unstage(Unstage),
    /// Reads all records once for all these unstagings.
    ReadRecords(Vec<OperationId>),
    Expand(Box<ExpandVolume>),
}

impl Operation {
    fn works_for(&self) -> WorksFor {
        match self {
            Operation::SetUp(set_up) => WorksFor::Pod(set_up.request().uid.clone()),
            Operation::TearDown(tear_down) => WorksFor::Pod(tear_down.pod().clone()),
            Operation::Unpublish(unpublish) => unpublish.pod().cloned().map_or(WorksFor::Node, WorksFor::Pod),
            Operation::Expand(expand) => WorksFor::Pod(expand.request().uid.clone()),
            Operation::ListRecords | Operation::ReadRecords(_) | Operation::Unstage(_) => WorksFor::Node,
        }
    }
}

/// For whom an operation works: a panic is put down to that pod.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum WorksFor {
    #[default]
    Nobody,
    Node,
    Pod(PodUid),
}

/// The input of an operation's next step.
enum Input {
    /// Its turn has come.
    Turn,
    Answer(VolumeCallResult),
}

#[derive(Clone, Debug)]
struct Staged {
    /// The SELinux label of the mount.
    label: String,
    /// An unstaging has begun: NodeStageVolume is called before the volume is used again.
    stage_again: bool,
}

/// One volume, for as long as anything is known of it.
#[derive(Clone, Debug, Default)]
struct Volume {
    /// The first is at work; the others wait, in their order.
    lane: VecDeque<OperationId>,
    /// This agent has staged it, and has not seen it unstaged since.
    staged: Option<Staged>,
    /// Its driver has refused to stage it, and the record was removed: it is on the node only because a pod asks for it.
    nothing_staged: bool,
    /// Its driver has refused to make it larger, and not done it since.
    refused_to_expand: bool,
    /// It is unstaged if nobody uses it, or is about to be.
    unstaging: Option<Retry>,
}

/// All CSI volumes on this node.
#[derive(Clone, Debug, Default)]
pub struct CsiVolumes {
    volumes: BTreeMap<VolumeId, Volume>,
    operations: BTreeMap<OperationId, Operation>,
    /// Set-ups of one volume for one pod. The first is at work; the others wait, in their order.
    set_ups: BTreeMap<(PodUid, VolumeId), VecDeque<OperationId>>,
    /// What was begun for a pod, however it ended: a driver may be at work without a record of the pod's.
    begun: BTreeMap<PodUid, BTreeSet<VolumeId>>,
    /// Which operation waits for which call.
    calls: BTreeMap<VolumeCallId, OperationId>,
    /// Unstagings that need the records as they are now. They are read for all of them together.
    need_records: Vec<OperationId>,
    /// Records are being read for other unstagings. What needs them now waits: that reading began too early for it.
    reading_records: bool,
    works_for: WorksFor,
    /// Operations whose turn has come. Empty between two inputs.
    ready: VecDeque<OperationId>,
    /// Staged or published here, or about to be.
    on_node: BTreeSet<VolumeId>,
    /// The records were read: what is neither known nor of an unreadable record is not on the node.
    listed: bool,
    /// Records that could not be read when all were listed last. They are listed again until all can be read.
    unreadable: Vec<CsiVolumeOnDisk>,
    list_failures: u32,
    on_node_changes: u64,
    numbers: u64,
}

/// What comes of one input.
struct Outputs {
    now: Now,
    effects: Vec<Effect>,
}

impl Outputs {
    fn warn(&mut self, message: String) {
        self.effects.push(Effect::Log { level: LogLevel::Warn, uid: None, message });
    }

    fn timer_after(&mut self, key: TimerKey, failures: u32) {
        let at = Some(self.now.mono.plus(volume_delay(failures)));
        self.effects.push(Effect::SetTimer { key, at });
    }

    fn answer(&mut self, request: VolumeRequestId, result: ActionResult) {
        self.effects.push(Effect::AnswerVolumeRequest { request, result });
    }
}

impl CsiVolumes {
    // ---- inputs -----------------------------------------------------------------------------------------------------

    /// Finds the volumes of an earlier agent. Volumes that no pod uses are unstaged.
    pub fn list_records(&mut self, now: Now) -> Vec<Effect> {
        self.run(now, |this, out| {
            let id = this.new_id();
            this.call(out, id, Operation::ListRecords, VolumeCall::ListRecords);
        })
    }

    /// [`Effect::AnswerVolumeRequest`] follows, once.
    pub fn request(&mut self, now: Now, request: VolumeRequestId, what: VolumeRequest) -> Vec<Effect> {
        self.run(now, |this, out| match what {
            VolumeRequest::SetUp { volume } => this.begin_set_up(request, *volume),
            VolumeRequest::Expand { volume, expansion } => this.begin_expand(request, *volume, *expansion),
            VolumeRequest::TearDown => this.begin_tear_down(out, request),
        })
    }

    /// The pod is going: set-ups and expansions that its plan has asked for are answered now, and end at their next step.
    pub fn cancel(&mut self, now: Now, uid: &PodUid, epoch: Epoch) -> Vec<Effect> {
        let of_plan = |request: &VolumeRequestId| {
            matches!(request.from, VolumeRequestFrom::Plan { epoch: of, .. } if of == epoch)
                && request.uid == *uid
        };
        let wanted = |operation: &Operation| match operation {
            Operation::SetUp(set_up) => !set_up.is_cancelled() && of_plan(set_up.request()),
            Operation::Expand(expand) => !expand.is_cancelled() && of_plan(expand.request()),
            _ => false,
        };
        let ids: Vec<OperationId> =
            self.operations.iter().filter(|(_, one)| wanted(one)).map(|(id, _)| *id).collect();
        self.run(now, |this, out| {
            for id in ids {
                match this.operations.remove(&id) {
                    Some(Operation::SetUp(set_up)) => this.cancel_set_up(out, id, set_up),
                    Some(Operation::Expand(expand)) => this.cancel_expand(out, id, expand),
                    _ => {}
                }
            }
        })
    }

    /// Forgets a call that no operation waits for any more.
    pub fn call_ended(&mut self, now: Now, call: VolumeCallId, result: VolumeCallResult) -> Vec<Effect> {
        let Some(id) = self.calls.remove(&call) else { return Vec::new() };
        self.run(now, |this, out| this.resume(out, id, Input::Answer(result)))
    }

    /// Retries the unstaging of a volume that no pod uses.
    pub fn unstage_due(&mut self, now: Now, volume: &VolumeId) -> Vec<Effect> {
        self.run(now, |this, _| this.try_unstage(volume))
    }

    /// What could not be unstaged before is tried again at once: these drivers are there now.
    pub fn drivers_registered(&mut self, now: Now, drivers: &BTreeSet<String>) -> Vec<Effect> {
        let waits = |known: &Volume| known.unstaging.as_ref().is_some_and(Retry::waits);
        let of_them = self.volumes.iter().filter(|(id, known)| drivers.contains(&id.driver) && waits(known));
        let ids: Vec<VolumeId> = of_them.map(|(id, _)| id.clone()).collect();
        self.run(now, |this, out| {
            for id in ids {
                this.try_unstage(&id);
                out.effects.push(Effect::SetTimer { key: TimerKey::Unstage(id), at: None });
            }
        })
    }

    // ---- what others may know ---------------------------------------------------------------------------------------

    /// Volumes that are staged or published here, or about to be. `None`: the records were not read yet.
    pub fn on_node(&self) -> Option<&BTreeSet<VolumeId>> {
        self.listed.then_some(&self.on_node)
    }

    /// Whether some records can't be read, so that more volumes than the known ones may be on the node.
    pub fn has_unreadable_records(&self) -> bool {
        !self.unreadable.is_empty()
    }

    /// Whether an unreadable record may be of this volume.
    pub fn may_have_unreadable_record(&self, volume: &VolumeId) -> bool {
        self.unreadable.iter().any(|one| may_be_record_of(one, volume))
    }

    /// Grows whenever other volumes are on the node than before, or that is known for the first time.
    pub fn on_node_changes(&self) -> u64 {
        self.on_node_changes
    }

    /// How much is remembered: nothing, once no pod has a volume of a driver.
    pub fn remembered(&self) -> usize {
        let Self { volumes, operations, set_ups, begun, calls, need_records, ready, unreadable, .. } = self;
        let work = operations.len() + calls.len() + need_records.len() + ready.len();
        volumes.len() + set_ups.len() + begun.len() + unreadable.len() + work
    }

    /// Whether a publication of the pod has begun and not ended.
    pub fn is_publishing(&self, uid: &PodUid) -> bool {
        self.publications_of(uid).next().is_some()
    }

    /// The one whose operation is at work. Differs from [`WorksFor::Nobody`] only while an input is taken, or if that
    /// panicked.
    pub fn works_for(&self) -> &WorksFor {
        &self.works_for
    }

    fn publications_of(&self, uid: &PodUid) -> impl Iterator<Item = (OperationId, &VolumeId)> {
        self.operations.iter().filter_map(move |(id, operation)| match operation {
            Operation::SetUp(set_up) if set_up.is_publishing_for(uid) => Some((*id, set_up.volume_id())),
            _ => None,
        })
    }

    // ---- operations -------------------------------------------------------------------------------------------------

    /// Takes an input, and lets everybody go on whose turn comes by it.
    fn run(&mut self, now: Now, input: impl FnOnce(&mut Self, &mut Outputs)) -> Vec<Effect> {
        let mut out = Outputs { now, effects: Vec::new() };
        input(self, &mut out);
        while let Some(id) = self.ready.pop_front() {
            self.resume(&mut out, id, Input::Turn);
        }
        self.read_needed_records(&mut out);
        self.works_for = WorksFor::Nobody;
        out.effects
    }

    fn resume(&mut self, out: &mut Outputs, id: OperationId, input: Input) {
        self.works_for = self.operations.get(&id).map_or(WorksFor::Nobody, Operation::works_for);
        match self.operations.remove(&id) {
            Some(Operation::ListRecords) => self.records_listed(out, input),
            Some(Operation::SetUp(set_up)) => self.set_up_goes_on(out, id, set_up, input),
            Some(Operation::TearDown(tear_down)) => self.tear_down_goes_on(out, id, tear_down, input),
            Some(Operation::Unpublish(unpublish)) => self.unpublish_goes_on(out, id, unpublish, input),
            Some(Operation::Unstage(unstage)) => self.unstage_goes_on(out, id, unstage, input),
            Some(Operation::ReadRecords(waiting)) => self.needed_records_read(out, &waiting, input),
            Some(Operation::Expand(expand)) => self.expand_goes_on(out, id, expand, input),
            None => {}
        }
    }

    fn new_id(&mut self) -> OperationId {
        self.numbers += 1;
        OperationId(self.numbers)
    }

    /// The operation waits for the call.
    fn call(&mut self, out: &mut Outputs, id: OperationId, operation: Operation, call: VolumeCall) {
        self.numbers += 1;
        let number = VolumeCallId(self.numbers);
        self.calls.insert(number, id);
        self.operations.insert(id, operation);
        out.effects.push(Effect::CallVolume { id: number, call });
    }

    /// Nobody waits for the operation's call any more, and it is to end at its next step.
    fn cancel_call(&mut self, out: &mut Outputs, id: OperationId) {
        for (call, _) in self.calls.extract_if(.., |_, of| *of == id) {
            out.effects.push(Effect::CancelVolumeCall { id: call });
        }
    }

    /// The operation waits until it is the only one at work on the volume.
    fn enter_lane(&mut self, id: OperationId, operation: Operation, volume: &VolumeId) {
        self.operations.insert(id, operation);
        let lane = &mut self.volumes.entry(volume.clone()).or_default().lane;
        lane.push_back(id);
        if lane.len() == 1 {
            self.ready.push_back(id);
        }
    }

    /// The next one may go on. Also for one that has not had its turn.
    fn leave_lane(&mut self, id: OperationId, volume: &VolumeId) {
        let Some(known) = self.volumes.get_mut(volume) else { return };
        let was_first = known.lane.front() == Some(&id);
        known.lane.retain(|other| *other != id);
        if was_first {
            self.ready.extend(known.lane.front());
        }
        // A claim may have another volume by now than its pod: one that was never on the node is not remembered.
        if known.lane.is_empty() && known.unstaging.is_none() && !self.on_node.contains(volume) {
            self.volumes.remove(volume);
        }
    }

    fn records_listed(&mut self, out: &mut Outputs, input: Input) {
        let found = match input.records() {
            Ok(found) => found,
            Err(failure) => {
                let message = format!("listing the records of CSI volumes failed: {}", failure.message);
                out.effects.push(Effect::Log { level: LogLevel::Error, uid: None, message });
                self.list_failures += 1;
                return out.timer_after(TimerKey::ListVolumes, self.list_failures);
            }
        };
        let (unreadable, found): (Vec<_>, Vec<_>) = found.into_iter().partition(|one| one.record.is_err());
        let news = self.note_unreadable(out, unreadable);
        let ids: BTreeSet<VolumeId> =
            found.iter().filter(|one| !one.is_ephemeral()).filter_map(|one| one.id()).collect();
        let new: Vec<VolumeId> = ids.into_iter().filter(|id| self.on_node.insert(id.clone())).collect();
        if !std::mem::replace(&mut self.listed, true) || news || !new.is_empty() {
            self.on_node_changes += 1;
        }
        for id in &new {
            self.unstage_if_unused(id);
        }
    }

    /// Returns whether other records are unreadable than before. They are read again later: somebody may mend them.
    fn note_unreadable(&mut self, out: &mut Outputs, unreadable: Vec<CsiVolumeOnDisk>) -> bool {
        let known: BTreeSet<String> = self.unreadable.iter().map(|one| one.record_path.clone()).collect();
        let now: BTreeSet<String> = unreadable.iter().map(|one| one.record_path.clone()).collect();
        for one in unreadable.iter().filter(|one| !known.contains(&one.record_path)) {
            let message =
                format!("a CSI volume record (vol_data.json) can't be read: {}", one.unreadable_message());
            let event = ApiEvent::warning("UnreadableVolumeRecord", message.clone());
            out.effects.push(Effect::RecordNodeEvent { event });
            out.effects.push(Effect::Log { level: LogLevel::Error, uid: None, message });
        }
        self.list_failures = if unreadable.is_empty() { 0 } else { self.list_failures + 1 };
        if !unreadable.is_empty() {
            out.timer_after(TimerKey::ListVolumes, self.list_failures);
        }
        self.unreadable = unreadable;
        known != now
    }
}

impl Input {
    fn result(self) -> VolumeCallResult {
        match self {
            Input::Turn => Ok(VolumeCallAnswer::Done),
            Input::Answer(result) => result,
        }
    }

    fn done(self) -> Result<(), VolumeCallFailure> {
        self.result().map(|_| ())
    }

    fn records(self) -> Result<Vec<CsiVolumeOnDisk>, VolumeCallFailure> {
        match self.result()? {
            VolumeCallAnswer::Records(found) => Ok(found),
            _ => Err(no_answer_to("a list of volumes")),
        }
    }

    fn capabilities(self) -> Result<model::csi::NodeServiceCapabilities, VolumeCallFailure> {
        match self.result()? {
            VolumeCallAnswer::Capabilities(can) => Ok(can),
            _ => Err(no_answer_to("what a driver can do")),
        }
    }

    fn claim(self) -> Result<std::sync::Arc<model::k8s::PersistentVolumeClaim>, VolumeCallFailure> {
        match self.result()? {
            VolumeCallAnswer::Claim(claim) => Ok(claim),
            _ => Err(no_answer_to("a claim")),
        }
    }
}

/// The engine has answered another question than the one that it was asked.
fn no_answer_to(question: &str) -> VolumeCallFailure {
    let message = format!("internal error: no answer to the question for {question}");
    VolumeCallFailure { kind: VolumeCallFailureKind::Open, message }
}
