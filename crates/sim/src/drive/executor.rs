//! Carries out plans as the engine's executor does: stages in order, the actions of a stage concurrently, every outcome
//! sent when it arrives, nothing started after a cancel.

use std::sync::Arc;

use decide::csi::{VolumeRequest, VolumeRequestFrom, VolumeRequestId};
use decide::event::{CallFailure, StartFailurePoint};
use decide::{Action, ActionResult, Epoch, Event, Stage};
use model::volume::{VolumeKind, VolumeSetup};
use model::{Mono, PodUid};

use super::background_calls::BackgroundCall;
use super::world_calls::{WorldCall, WorldCallFailure, WorldCallOutput};
use super::{Mutant, SimEvent, Simulation};
use crate::time::{Nanos, SECOND};

/// The shortest grace period that a container gets.
pub const LEAST_GRACE_SECS: u64 = 2;

pub struct PlanRun {
    pub stages: Arc<Vec<Stage>>,
    pub stage: usize,
    /// Actions of this stage, and of those before it, that have not ended.
    pub open: usize,
    pub any_bad: bool,
    pub cancelled: bool,
}

/// One action of one plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ActionPosition {
    pub uid: PodUid,
    pub epoch: Epoch,
    pub stage: usize,
    pub action: usize,
}

impl ActionPosition {
    fn key(&self) -> (PodUid, Epoch) {
        (self.uid.clone(), self.epoch)
    }
}

enum Next {
    Call(WorldCall),
    /// An operation on volumes of the CSI driver.
    Request(VolumeRequest),
    Done(ActionResult),
}

impl Simulation {
    pub(super) fn begin_plan(&mut self, uid: PodUid, epoch: Epoch, stages: Arc<Vec<Stage>>) {
        let Some(agent) = &mut self.agent else { return };
        let run = PlanRun { stages, stage: 0, open: 0, any_bad: false, cancelled: false };
        agent.plans.insert((uid.clone(), epoch), run);
        self.begin_stage(&uid, epoch);
    }

    fn plan(&mut self, uid: &PodUid, epoch: Epoch) -> Option<&mut PlanRun> {
        self.agent.as_mut()?.plans.get_mut(&(uid.clone(), epoch))
    }

    fn begin_stage(&mut self, uid: &PodUid, epoch: Epoch) {
        loop {
            let at_once = self.mutant == Mutant::IgnoresStages;
            let Some(plan) = self.plan(uid, epoch) else { return };
            if plan.stage >= plan.stages.len() {
                return self.end_plan(uid, epoch);
            }
            let last = if at_once { plan.stages.len() - 1 } else { plan.stage };
            plan.any_bad = false;
            self.begin_stages(uid, epoch, last);
            match self.plan(uid, epoch) {
                Some(plan) if plan.open == 0 => {
                    if !self.next_stage(uid, epoch) {
                        return;
                    }
                }
                _ => return,
            }
        }
    }

    /// Starts the stages from the plan's present one to `last`, while earlier stages may still be running.
    fn begin_stages(&mut self, uid: &PodUid, epoch: Epoch, last: usize) {
        let Some(plan) = self.plan(uid, epoch) else { return };
        let stages = plan.stages.clone();
        let first = plan.stage;
        plan.open += stages[first..=last].iter().map(|s| s.actions.len()).sum::<usize>();
        plan.stage = last;
        for (stage, actions) in stages.iter().enumerate().take(last + 1).skip(first) {
            for (action, what) in actions.actions.iter().enumerate() {
                let place = ActionPosition { uid: uid.clone(), epoch, stage, action };
                self.begin_action(place, what);
            }
        }
        if let Some(due) = stages.get(last + 1).and_then(|next| next.not_after) {
            let wait = self.world_time(due).saturating_sub(self.world.now);
            let background_call = BackgroundCall::StageDue { uid: uid.clone(), epoch, stage: last + 1 };
            self.plan_in(wait, SimEvent::BackgroundCall { generation: self.generation, background_call });
        }
    }

    /// The time at which a stage no longer waits for those before it.
    pub(super) fn stage_due(&mut self, uid: &PodUid, epoch: Epoch, stage: usize) {
        let Some(plan) = self.plan(uid, epoch) else { return };
        let waits = plan.stage + 1 == stage && plan.open > 0;
        if !waits || plan.cancelled || (plan.any_bad && plan.stages[plan.stage].stop_on_failure) {
            return;
        }
        plan.stage = stage;
        self.begin_stages(uid, epoch, stage);
        self.after_action(uid, epoch);
    }

    fn begin_action(&mut self, place: ActionPosition, action: &Action) {
        let ignore = self.mutant == Mutant::IgnoresCancel;
        if self.plan(&place.uid, place.epoch).is_some_and(|p| p.cancelled && !ignore) {
            self.action_ended(place, ActionResult::Skipped);
        } else if let Some(what) = volume_request(action) {
            self.request_volume(place, what);
        } else {
            self.issue(place, first_call(action, self.world.now, &|at| self.world_time(at)));
        }
    }

    fn request_volume(&mut self, place: ActionPosition, what: VolumeRequest) {
        // On a node without CSI drivers the request is answered at once.
        let at_once = !self.has_storage_driver || self.mutant == Mutant::AnswersTearDownsAtOnce;
        if at_once && what == VolumeRequest::TearDown {
            let (uid, epoch) = place.key();
            self.action_ended(place, ActionResult::Ok);
            return self.after_action(&uid, epoch);
        }
        let ActionPosition { uid, epoch, stage, action } = place;
        let from = VolumeRequestFrom::Plan { epoch, stage, action };
        self.post(self.generation, Event::VolumeRequested { request: VolumeRequestId { uid, from }, what });
    }

    /// An operation on volumes ended, or its plan was cancelled.
    pub(super) fn volume_answered(&mut self, request: VolumeRequestId, result: ActionResult) {
        let uid = request.uid;
        let VolumeRequestFrom::Plan { epoch, stage, action } = request.from else {
            return self.volumes_swept(&uid, result);
        };
        let place = ActionPosition { uid: uid.clone(), epoch, stage, action };
        let plan = self.plan(&uid, epoch).map(|plan| plan.stages.clone());
        let tears_down = |stages: Arc<Vec<Stage>>| {
            matches!(stages[stage].actions[action], Action::TearDownVolumes) && result == ActionResult::Ok
        };
        if plan.is_some_and(tears_down) {
            self.volumes_are_torn_down(&uid);
        }
        self.action_ended(place, result);
        self.after_action(&uid, epoch);
    }

    /// Sends an outcome. [`Self::after_action`] decides whether the stage goes on.
    fn action_ended(&mut self, place: ActionPosition, result: ActionResult) {
        let hide = self.mutant == Mutant::HidesFailures;
        let result = match result {
            ActionResult::Failed(_) if hide => ActionResult::Ok,
            other => other,
        };
        let bad = !matches!(
            result,
            ActionResult::Ok
                | ActionResult::Dirs { .. }
                | ActionResult::SandboxRunning { .. }
                | ActionResult::ContainerStarted { .. }
                | ActionResult::HookFailed { .. }
                | ActionResult::ExpandOutcome(_)
                | ActionResult::EnvFiles(_)
        );
        if let Some(plan) = self.plan(&place.uid, place.epoch) {
            plan.open -= 1;
            plan.any_bad |= bad;
        }
        let ActionPosition { uid, epoch, stage, action } = place;
        self.post(self.generation, Event::ActionDone { uid, epoch, stage, action, result });
    }

    fn after_action(&mut self, uid: &PodUid, epoch: Epoch) {
        if self.plan(uid, epoch).is_some_and(|p| p.open == 0) && self.next_stage(uid, epoch) {
            self.begin_stage(uid, epoch);
        }
    }

    /// Starts the plan's next stage. Returns whether the plan goes on.
    fn next_stage(&mut self, uid: &PodUid, epoch: Epoch) -> bool {
        let ignore = self.mutant == Mutant::IgnoresCancel;
        let Some(plan) = self.plan(uid, epoch) else { return false };
        let stop = (plan.cancelled && !ignore) || (plan.any_bad && plan.stages[plan.stage].stop_on_failure);
        plan.stage += 1;
        if !stop {
            return true;
        }
        let (stages, from) = (plan.stages.clone(), plan.stage);
        for (stage, actions) in stages.iter().enumerate().skip(from) {
            for action in 0..actions.actions.len() {
                let result = ActionResult::Skipped;
                self.post(
                    self.generation,
                    Event::ActionDone { uid: uid.clone(), epoch, stage, action, result },
                );
            }
        }
        self.end_plan(uid, epoch);
        false
    }

    fn end_plan(&mut self, uid: &PodUid, epoch: Epoch) {
        if self.mutant != Mutant::DropsPlanEnded {
            self.post(self.generation, Event::PlanEnded { uid: uid.clone(), epoch });
        }
    }

    pub(super) fn cancel_plan(&mut self, uid: &PodUid, epoch: Epoch) {
        let Some(plan) = self.plan(uid, epoch) else { return };
        plan.cancelled = true;
        if self.mutant == Mutant::IgnoresCancel {
            return;
        }
        let cut = self.drop_stops_of(uid, epoch);
        if cut.is_empty() {
            return;
        }
        for place in cut {
            self.action_ended(place, ActionResult::Interrupted);
        }
        self.after_action(uid, epoch);
    }

    fn world_time(&self, at: Mono) -> Nanos {
        self.agent.as_ref().map_or(self.world.now, |agent| agent.clock.world_time(at))
    }

    /// A call of a plan was answered.
    pub(super) fn answered(
        &mut self,
        place: ActionPosition,
        op: &WorldCall,
        outcome: Result<WorldCallOutput, WorldCallFailure>,
    ) {
        let cancelled = self.plan(&place.uid, place.epoch).is_some_and(|p| p.cancelled);
        let cancelled = cancelled && self.mutant != Mutant::IgnoresCancel;
        let Some(plan) = self.plan(&place.uid, place.epoch) else { return };
        let stages = plan.stages.clone();
        let action = &stages[place.stage].actions[place.action];
        if let (Action::StartContainer(_), WorldCall::Hook { id, .. }, Err(_)) = (action, op, &outcome) {
            self.check.excuse_stop_of(id);
        }
        let left = |at| self.world_time(at).saturating_sub(self.world.now);
        match next(action, op, outcome, cancelled, &left) {
            Next::Call(op) => self.issue(place, op),
            Next::Request(what) => self.request_volume(place, what),
            Next::Done(result) => {
                let (uid, epoch) = place.key();
                self.action_ended(place, result);
                self.after_action(&uid, epoch);
            }
        }
    }
}

/// Actions that are a request to the CSI driver from the beginning.
fn volume_request(action: &Action) -> Option<VolumeRequest> {
    let (volume, expansion) = match action {
        Action::SetUpVolume { volume } => (volume, None),
        Action::ExpandVolume { volume, expansion } => (volume, Some(expansion)),
        _ => return None,
    };
    let VolumeKind::Csi(csi) = &volume.kind else { return None };
    Some(match expansion {
        None => VolumeRequest::SetUp { volume: csi.clone() },
        Some(expansion) => VolumeRequest::Expand { volume: csi.clone(), expansion: expansion.clone() },
    })
}

fn first_call(action: &Action, now: Nanos, when: &dyn Fn(Mono) -> Nanos) -> WorldCall {
    match action {
        Action::MakePodDirs { log_dir, containers } => {
            WorldCall::MakeDirs { log_dir: log_dir.clone(), containers: containers.clone() }
        }
        Action::EnsureCgroup { spec } => WorldCall::EnsureCgroup(spec.name.clone()),
        Action::SetUpVolume { volume } | Action::ExpandVolume { volume, .. } => {
            WorldCall::SetUpVolume(volume.name.clone(), content_of(volume))
        }
        // No container of this world has environment files.
        Action::ReadEnvFiles { container, .. } => WorldCall::SetUpVolume(container.clone(), None),
        Action::StoreUserIds { ids } => WorldCall::StoreUserIds(ids.clone()),
        Action::RunSandbox { config, .. } => WorldCall::RunSandbox(config.clone()),
        Action::StartContainer(start) => WorldCall::PrepareContainer(start.clone()),
        Action::StopContainer { id, name, deadline, pre_stop: Some(_), .. }
        | Action::PreStop { id, name, deadline, .. } => {
            WorldCall::Hook { id: id.clone(), name: name.clone(), until: Some(when(*deadline)) }
        }
        Action::StopContainer { id, deadline, .. } => {
            let grace_secs = grace_left(when(*deadline).saturating_sub(now));
            WorldCall::Stop { id: id.clone(), grace_secs, hook_failed: false }
        }
        Action::StopSandbox { id } => WorldCall::StopSandbox(id.clone()),
        Action::RemoveContainer { id, .. } => WorldCall::RemoveContainer(id.clone()),
        Action::RemoveSandbox { id } => WorldCall::RemoveSandbox(id.clone()),
        Action::TearDownVolumes => WorldCall::TearDownVolumes,
        Action::DestroyCgroup { name } => WorldCall::DestroyCgroup(name.clone()),
        Action::RemovePodDir => WorldCall::RemovePodDir,
        Action::RemoveLogDir { name } => WorldCall::RemoveLogDir(name.clone()),
    }
}

/// Rounds up to whole seconds, two at least.
fn grace_left(left: Nanos) -> i64 {
    left.div_ceil(SECOND).max(LEAST_GRACE_SECS) as i64
}

/// All files in one text.
pub(super) fn content_of(volume: &VolumeSetup) -> Option<String> {
    let VolumeKind::Content(content) = &volume.kind else { return None };
    let files = content.files.iter();
    Some(files.map(|(path, file)| format!("{path}={};", String::from_utf8_lossy(&file.bytes))).collect())
}

fn next(
    action: &Action,
    op: &WorldCall,
    outcome: Result<WorldCallOutput, WorldCallFailure>,
    cancelled: bool,
    left: &dyn Fn(Mono) -> Nanos,
) -> Next {
    if let Action::StartContainer(_) = action {
        return next_of_start(op, outcome, cancelled);
    }
    let hook_failed = |failed: bool| match failed {
        true => ActionResult::HookFailed { message: "the simulated hook failed".into() },
        false => ActionResult::Ok,
    };
    match (action, op) {
        (Action::StopContainer { id, deadline, .. }, WorldCall::Hook { .. }) => {
            let grace_secs = grace_left(left(*deadline));
            return Next::Call(WorldCall::Stop { id: id.clone(), grace_secs, hook_failed: outcome.is_err() });
        }
        (_, WorldCall::Hook { .. }) => return Next::Done(hook_failed(outcome.is_err())),
        // The agent's own mounts are removed first.
        (_, WorldCall::TearDownVolumes) if outcome.is_ok() => return Next::Request(VolumeRequest::TearDown),
        (_, WorldCall::Stop { hook_failed: failed, .. }) if outcome.is_ok() => {
            return Next::Done(hook_failed(*failed));
        }
        _ => {}
    }
    match outcome {
        Ok(WorldCallOutput::Dirs(log_numbers)) => Next::Done(ActionResult::Dirs { log_numbers }),
        Ok(WorldCallOutput::Sandbox(id)) => Next::Done(ActionResult::SandboxRunning { id }),
        Ok(_) => after_removal(action, op),
        Err(failure) if failure.absent && op.absent_is_fine() => after_removal(action, op),
        Err(failure) => Next::Done(ActionResult::Failed(failure.told())),
    }
}

/// A container's log is removed after the container.
fn after_removal(action: &Action, op: &WorldCall) -> Next {
    match (action, op) {
        (Action::RemoveContainer { log: Some(log), .. }, WorldCall::RemoveContainer(_)) => {
            Next::Call(WorldCall::RemoveLogs(log.clone()))
        }
        _ => Next::Done(ActionResult::Ok),
    }
}

fn next_of_start(
    op: &WorldCall,
    outcome: Result<WorldCallOutput, WorldCallFailure>,
    cancelled: bool,
) -> Next {
    match (op, outcome) {
        (WorldCall::PrepareContainer(start), Ok(_)) => Next::Call(WorldCall::Create(start.clone())),
        (WorldCall::Create(start), Ok(WorldCallOutput::Container(id))) => {
            if cancelled {
                return Next::Done(ActionResult::Interrupted);
            }
            Next::Call(WorldCall::Start { start: start.clone(), id })
        }
        (WorldCall::Start { start, id }, Ok(_)) => {
            Next::Call(WorldCall::LinkLog { start: start.clone(), id: id.clone() })
        }
        (WorldCall::LinkLog { start, id }, _) if start.post_start.is_some() => {
            Next::Call(WorldCall::Hook { id: id.clone(), name: start.name.clone(), until: None })
        }
        (WorldCall::LinkLog { id, .. }, _) | (WorldCall::Hook { id, .. }, Ok(_)) => {
            Next::Done(ActionResult::ContainerStarted { id: id.clone() })
        }
        (WorldCall::Hook { id, .. }, Err(failure)) => {
            start_failed(StartFailurePoint::PostStart, Some(id.clone()), failure)
        }
        (WorldCall::PrepareContainer(_), Err(failure)) => {
            start_failed(StartFailurePoint::Files, None, failure)
        }
        (WorldCall::Start { id, .. }, Err(failure)) => {
            start_failed(StartFailurePoint::Start, Some(id.clone()), failure)
        }
        (_, Err(failure)) => start_failed(StartFailurePoint::Create, None, failure),
        (_, Ok(_)) => {
            let message = "the simulated runtime gave no id".into();
            start_failed(
                StartFailurePoint::Create,
                None,
                WorldCallFailure { absent: false, unreachable: false, message },
            )
        }
    }
}

fn start_failed(at: StartFailurePoint, id: Option<model::ContainerId>, failure: WorldCallFailure) -> Next {
    Next::Done(ActionResult::StartFailed { at, id, failure: failure.told() })
}

impl WorldCallFailure {
    pub(super) fn told(self) -> CallFailure {
        CallFailure { unreachable: self.unreachable, message: self.message }
    }
}
