//! Carries out plans over the world. [`PlanCursor`] decides what starts and when a plan ends, as in the engine; here
//! the calls of its actions are made, and every outcome is sent when it arrives.

use std::sync::Arc;

use decide::action::{CallFailure, StartFailurePoint};
use decide::csi::{VolumeRequest, VolumeRequestFrom, VolumeRequestId};
use decide::{Action, ActionIndex, ActionResult, Epoch, Event, PlanCursor, PlanProgress, Stage};
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
    cursor: PlanCursor,
    /// The time for which the plan's next wake-up is scheduled.
    wakes_at: Option<Mono>,
}

/// One action of one plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ActionPosition {
    pub uid: PodUid,
    pub epoch: Epoch,
    pub stage: usize,
    pub action: usize,
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
        let order = match self.mutant {
            Mutant::IgnoresStages => Arc::new(all_at_once(&stages)),
            _ => stages.clone(),
        };
        let mut cursor = PlanCursor::new(order);
        let progress = cursor.begin();
        agent.plans.insert((uid.clone(), epoch), PlanRun { stages, cursor, wakes_at: None });
        self.plan_goes_on(&uid, epoch, progress);
    }

    fn plan(&mut self, uid: &PodUid, epoch: Epoch) -> Option<&mut PlanRun> {
        self.agent.as_mut()?.plans.get_mut(&(uid.clone(), epoch))
    }

    /// Does what the plan's cursor asks for.
    fn plan_goes_on(&mut self, uid: &PodUid, epoch: Epoch, progress: PlanProgress) {
        for ActionIndex { stage, action } in progress.skipped {
            let (uid, result) = (uid.clone(), ActionResult::Skipped);
            self.post(self.generation, Event::ActionDone { uid, epoch, stage, action, result });
        }
        for ActionIndex { stage, action } in progress.start {
            let place = ActionPosition { uid: uid.clone(), epoch, stage, action };
            self.begin_action(place);
        }
        if progress.ended && self.mutant != Mutant::DropsPlanEnded {
            self.post(self.generation, Event::PlanEnded { uid: uid.clone(), epoch });
        }
        let Some(plan) = self.plan(uid, epoch) else { return };
        let due = plan.cursor.wake_at();
        if plan.wakes_at != due {
            plan.wakes_at = due;
            let Some(due) = due else { return };
            let wait = self.world_time(due).saturating_sub(self.world.now);
            let background_call = BackgroundCall::WakePlan { uid: uid.clone(), epoch };
            self.plan_in(wait, SimEvent::BackgroundCall { generation: self.generation, background_call });
        }
    }

    pub(super) fn wake_plan(&mut self, uid: &PodUid, epoch: Epoch) {
        let Some(agent) = &mut self.agent else { return };
        let now = agent.clock.reached(self.world.now);
        let Some(plan) = agent.plans.get_mut(&(uid.clone(), epoch)) else { return };
        let progress = plan.cursor.time_reached(now);
        self.plan_goes_on(uid, epoch, progress);
    }

    fn begin_action(&mut self, place: ActionPosition) {
        let Some(plan) = self.plan(&place.uid, place.epoch) else { return };
        let stages = plan.stages.clone();
        let action = &stages[place.stage].actions[place.action];
        match volume_request(action) {
            Some(what) => self.request_volume(place, what),
            None => self.issue(place, first_call(action, self.world.now, &|at| self.world_time(at))),
        }
    }

    fn request_volume(&mut self, place: ActionPosition, what: VolumeRequest) {
        // On a node without CSI drivers the request is answered at once.
        let at_once = !self.has_storage_driver || self.mutant == Mutant::AnswersTearDownsAtOnce;
        if at_once && what == VolumeRequest::TearDown {
            return self.action_ended(place, ActionResult::Ok);
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
    }

    /// Sends an outcome, and goes on with the plan.
    fn action_ended(&mut self, place: ActionPosition, result: ActionResult) {
        let hide = self.mutant == Mutant::HidesFailures;
        let result = match result {
            ActionResult::Failed(_) if hide => ActionResult::Ok,
            other => other,
        };
        let ActionPosition { uid, epoch, stage, action } = place;
        let progress = self
            .plan(&uid, epoch)
            .map(|plan| plan.cursor.action_ended(ActionIndex { stage, action }, &result))
            .unwrap_or_default();
        let done = Event::ActionDone { uid: uid.clone(), epoch, stage, action, result };
        self.post(self.generation, done);
        self.plan_goes_on(&uid, epoch, progress);
    }

    pub(super) fn cancel_plan(&mut self, uid: &PodUid, epoch: Epoch) {
        if self.mutant == Mutant::IgnoresCancel {
            return;
        }
        let Some(plan) = self.plan(uid, epoch) else { return };
        let progress = plan.cursor.cancel();
        self.plan_goes_on(uid, epoch, progress);
        for place in self.drop_stops_of(uid, epoch) {
            self.action_ended(place, ActionResult::Interrupted);
        }
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
        let Some(plan) = self.plan(&place.uid, place.epoch) else { return };
        let (stages, cancelled) = (plan.stages.clone(), plan.cursor.is_cancelled());
        let action = &stages[place.stage].actions[place.action];
        if let (Action::StartContainer(_), WorldCall::Hook { id, .. }, Err(_)) = (action, op, &outcome) {
            self.check.excuse_stop_of(id);
        }
        let left = |at| self.world_time(at).saturating_sub(self.world.now);
        match next(action, op, outcome, cancelled, &left) {
            Next::Call(op) => self.issue(place, op),
            Next::Request(what) => self.request_volume(place, what),
            Next::Done(result) => self.action_ended(place, result),
        }
    }
}

/// The same stages without an order.
fn all_at_once(stages: &[Stage]) -> Vec<Stage> {
    stages.iter().map(|stage| stage.clone().not_after(Mono::ZERO)).collect()
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
        Action::EnsureCgroup { spec } => WorldCall::EnsureCgroup(spec.clone()),
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
        (WorldCall::PrepareContainer(_) | WorldCall::Create(_), Ok(_)) if cancelled => {
            Next::Done(ActionResult::Interrupted)
        }
        (WorldCall::PrepareContainer(start), Ok(_)) => Next::Call(WorldCall::Create(start.clone())),
        (WorldCall::Create(start), Ok(WorldCallOutput::Container(id))) => {
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
