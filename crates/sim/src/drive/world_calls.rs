//! One call to the world: issued, applied at one instant, answered at another. It may stay unapplied or unanswered.

use std::collections::BTreeMap;

use decide::StartContainer;
use model::cgroup::CgroupName;
use model::cri::{IdMapping, SandboxConfig};
use model::{ContainerId, SandboxId};

use super::executor::ActionPosition;
use super::{SimEvent, Simulation};
use crate::faults::{CallBehavior, LateEffect};
use crate::time::{MILLI, Nanos, SECOND};
use crate::world::{World, WorldError, container_name, sandbox_name};

/// The CRI adapter's timeout: two minutes, twice that for a sandbox, and for a stop the grace period on top.
pub(super) const DEADLINE: Nanos = 120 * SECOND;

pub type CallId = u64;

#[derive(Clone, Debug)]
pub enum WorldCall {
    MakeDirs {
        log_dir: String,
        containers: Vec<String>,
    },
    EnsureCgroup(CgroupName),
    /// With its content, if the agent writes it.
    SetUpVolume(String, Option<String>),
    StoreUserIds(IdMapping),
    RunSandbox(Box<SandboxConfig>),
    PrepareContainer(Box<StartContainer>),
    Create(Box<StartContainer>),
    Start {
        start: Box<StartContainer>,
        id: ContainerId,
    },
    LinkLog {
        start: Box<StartContainer>,
        id: ContainerId,
    },
    Stop {
        id: ContainerId,
        grace_secs: i64,
        /// The preStop hook before it failed.
        hook_failed: bool,
    },
    StopSandbox(SandboxId),
    RemoveContainer(ContainerId),
    RemoveLogs(String),
    RemoveSandbox(SandboxId),
    /// A lifecycle hook: changes nothing in the world.
    Hook {
        id: ContainerId,
        name: String,
        /// The caller waits no longer than this.
        until: Option<Nanos>,
    },
    TearDownVolumes,
    DestroyCgroup(CgroupName),
    RemovePodDir,
    RemoveLogDir(String),
}

impl WorldCall {
    /// Whether the runtime carries it out, and not the kernel or the disk.
    pub fn is_runtime(&self) -> bool {
        matches!(
            self,
            WorldCall::RunSandbox(_)
                | WorldCall::Create(_)
                | WorldCall::Start { .. }
                | WorldCall::Stop { .. }
                | WorldCall::StopSandbox(_)
                | WorldCall::RemoveContainer(_)
                | WorldCall::RemoveSandbox(_)
        )
    }

    /// Whether it needs free space on the disk.
    fn writes(&self) -> bool {
        matches!(
            self,
            WorldCall::MakeDirs { .. }
                | WorldCall::SetUpVolume(..)
                | WorldCall::StoreUserIds(_)
                | WorldCall::PrepareContainer(_)
                | WorldCall::LinkLog { .. }
        )
    }

    /// Stops and removals succeed if the object does not exist.
    pub fn absent_is_fine(&self) -> bool {
        matches!(
            self,
            WorldCall::Stop { .. }
                | WorldCall::StopSandbox(_)
                | WorldCall::RemoveContainer(_)
                | WorldCall::RemoveSandbox(_)
        )
    }

    fn deadline(&self) -> Nanos {
        match self {
            WorldCall::RunSandbox(_) => 2 * DEADLINE,
            WorldCall::Stop { grace_secs, .. } => {
                DEADLINE.saturating_add(((*grace_secs).max(0) as u64).saturating_mul(SECOND))
            }
            _ => DEADLINE,
        }
    }

    /// The name that the runtime reserves while it works on this call.
    fn reserves(&self) -> Option<String> {
        match self {
            WorldCall::RunSandbox(config) => Some(sandbox_name(config)),
            WorldCall::Create(start) => Some(container_name(&start.sandbox_config, &start.config)),
            _ => None,
        }
    }

    pub fn description(&self) -> String {
        match self {
            WorldCall::RunSandbox(config) => sandbox_name(config),
            WorldCall::PrepareContainer(start) => format!("files of {}", start.name),
            WorldCall::Create(start) => format!("create {} #{}", start.name, start.config.metadata.attempt),
            WorldCall::Start { start, id } => format!("start {} {id}", start.name),
            WorldCall::LinkLog { start, .. } => format!("link log of {}", start.name),
            other => format!("{other:?}"),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WorldCallOutput {
    Nothing,
    Dirs(BTreeMap<String, u32>),
    Sandbox(SandboxId),
    Container(ContainerId),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorldCallFailure {
    pub absent: bool,
    pub unreachable: bool,
    pub message: String,
}

impl From<WorldError> for WorldCallFailure {
    fn from(refused: WorldError) -> Self {
        Self { absent: refused.absent, unreachable: false, message: refused.message }
    }
}

impl WorldCallFailure {
    fn unreachable(message: &str) -> Self {
        Self { absent: false, unreachable: true, message: message.into() }
    }
    fn refused(message: &str) -> Self {
        Self { absent: false, unreachable: false, message: message.into() }
    }
}

pub struct Call {
    place: ActionPosition,
    op: WorldCall,
    /// The answer that the caller gets.
    outcome: Option<Result<WorldCallOutput, WorldCallFailure>>,
    holds: Option<String>,
    applied: bool,
    /// It may be applied after its caller was answered.
    applies_late: bool,
    /// The caller no longer waits for it.
    unheard: bool,
}

impl Simulation {
    pub(super) fn issue(&mut self, place: ActionPosition, op: WorldCall) {
        self.check.call_issued(
            &self.world,
            self.agent.as_ref().map(|a| &a.state),
            &self.sources,
            &place.uid,
            &op,
        );
        let now = self.world.now;
        let mut fate = self.faults.call(&mut self.rng, now, &place.uid, op.is_runtime());
        let mut failure = None;
        if op.is_runtime() && self.runtime_away {
            fate = CallBehavior::Refused;
            failure = Some(WorldCallFailure::unreachable("the runtime is away"));
        } else if op.writes() && self.disk_full {
            fate = CallBehavior::Refused;
            failure = Some(WorldCallFailure::refused("no space left on device"));
        }
        let starts = matches!(op, WorldCall::Start { .. }) && fate == CallBehavior::Works;
        let cut = starts && self.faults.cuts_start(&mut self.rng, now);
        let holds = op.reserves();
        if holds.as_ref().is_some_and(|name| self.world.reserved.contains(name)) {
            fate = CallBehavior::Refused;
            failure = Some(WorldCallFailure::refused("the name is reserved"));
        }
        let id = self.number();
        self.log.note(now, || format!("  call {id} of {}: {} ({fate:?})", place.uid, op.description()));
        let hop = match &op {
            WorldCall::Hook { until, .. } => self.hook_takes(*until),
            _ => self.faults.latency(&mut self.rng, now),
        };
        let mut call = Call {
            place,
            op,
            outcome: None,
            holds: None,
            applied: false,
            applies_late: false,
            unheard: false,
        };
        if fate != CallBehavior::Refused {
            call.holds = holds.inspect(|name| {
                self.world.reserved.insert(name.clone());
            });
            self.mark_starting(&call.op, true);
        }
        let deadline = call.op.deadline();
        match fate {
            CallBehavior::Works if cut => {
                call.outcome = Some(Err(WorldCallFailure::unreachable("the connection was cut")));
                call.applies_late = true;
                let late = self.faults.late_start(&mut self.rng);
                self.plan_in(late, SimEvent::Apply(id));
                self.plan_in(MILLI.min(late), SimEvent::Reply(id));
            }
            CallBehavior::Works => self.plan_in(hop, SimEvent::Apply(id)),
            CallBehavior::Refused => {
                call.applied = true;
                call.outcome =
                    Some(Err(failure.unwrap_or_else(|| WorldCallFailure::refused("simulated refusal"))));
                self.plan_in(hop, SimEvent::Reply(id));
            }
            CallBehavior::AppliedButFails => {
                call.outcome = Some(Err(WorldCallFailure::refused("simulated failure after the effect")));
                self.plan_in(hop, SimEvent::Apply(id));
            }
            CallBehavior::Hangs { effect } => {
                call.outcome = Some(Err(WorldCallFailure::unreachable("deadline exceeded")));
                call.applies_late = effect.is_some();
                let before = self.rng.below(deadline);
                let after = deadline + self.rng.below(60 * SECOND);
                match effect {
                    Some(LateEffect::BeforeDeadline) => self.plan_in(before, SimEvent::Apply(id)),
                    Some(LateEffect::AfterDeadline) => self.plan_in(after, SimEvent::Apply(id)),
                    None => {}
                }
                self.plan_in(deadline, SimEvent::Reply(id));
            }
        }
        self.calls.insert(id, call);
    }

    fn hook_takes(&mut self, until: Option<Nanos>) -> Nanos {
        let slow = self.rng.per_mille(100);
        let takes =
            if slow { self.rng.between(SECOND, 20 * SECOND) } else { self.rng.between(MILLI, 500 * MILLI) };
        takes.min(until.map_or(Nanos::MAX, |until| until.saturating_sub(self.world.now)))
    }

    fn mark_starting(&mut self, op: &WorldCall, starting: bool) {
        if let WorldCall::Start { id, .. } = op
            && let Some(container) = self.world.containers.get_mut(id)
        {
            container.starting = starting;
        }
    }

    fn release(&mut self, id: CallId) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        if let Some(name) = call.holds.take() {
            self.world.reserved.remove(&name);
        }
        let op = call.op.clone();
        self.mark_starting(&op, false);
    }

    /// The instant at which the call has its effect.
    pub(super) fn apply(&mut self, id: CallId) {
        let Some(call) = self.calls.get(&id) else { return };
        if call.applied {
            return;
        }
        let (op, uid) = (call.op.clone(), call.place.uid.clone());
        self.release(id);
        let result = match &op {
            WorldCall::Stop { id: container, grace_secs, .. } => {
                let waits = self.begin_stop(id, container, *grace_secs);
                if waits {
                    if let Some(call) = self.calls.get_mut(&id) {
                        call.applied = true;
                    }
                    self.answer_failed_stop(id);
                    return;
                }
                if self.world.containers.contains_key(container) {
                    Ok(WorldCallOutput::Nothing)
                } else {
                    Err(WorldError::absent(container))
                }
            }
            other => carry_out(&mut self.world, &uid, other),
        };
        self.check.call_applied(&self.world, &uid, &op, &result);
        let Some(call) = self.calls.get_mut(&id) else { return };
        if let WorldCall::Create(start) = &op {
            let made = match &result {
                Ok(WorldCallOutput::Container(id)) => Some(id),
                _ => None,
            };
            self.check.create_applied(&self.world, start, made, call.unheard || call.applies_late);
        }
        call.applied = true;
        if call.unheard {
            self.calls.remove(&id);
            return;
        }
        if !call.applies_late {
            call.outcome.get_or_insert(result.map_err(WorldCallFailure::from));
            let hop = self.faults.latency(&mut self.rng, self.world.now);
            self.plan_in(hop, SimEvent::Reply(id));
        }
    }

    /// Sends the signal. `true`: the container goes on running for now.
    fn begin_stop(&mut self, call: CallId, container: &ContainerId, grace_secs: i64) -> bool {
        if !self.world.containers.get(container).is_some_and(|c| c.is_live()) {
            return false;
        }
        if self.world.containers.get(container).is_some_and(|c| c.lost) {
            self.world.kill(container);
            return false;
        }
        self.world.terminate(container);
        self.stopping.entry(container.clone()).or_default().push(call);
        let grace = (grace_secs.max(0) as u64).saturating_mul(SECOND);
        self.plan_in(grace, SimEvent::GraceOver(call));
        true
    }

    /// A stop that is to fail after its effect fails as soon as the signal was sent.
    fn answer_failed_stop(&mut self, id: CallId) {
        let Some(call) = self.calls.get(&id) else { return };
        if call.outcome.is_some() && !call.applies_late {
            self.plan_in(5 * MILLI, SimEvent::Reply(id));
        }
    }

    pub(super) fn grace_over(&mut self, id: CallId) {
        let Some(call) = self.calls.get(&id) else { return };
        if let WorldCall::Stop { id: container, .. } = &call.op {
            let container = container.clone();
            self.world.kill(&container);
            self.check.container_ended(&self.world, &container);
        }
    }

    /// Answers the stop calls whose container has exited.
    pub(super) fn finish_stops(&mut self) {
        let ended: Vec<ContainerId> = self
            .stopping
            .keys()
            .filter(|id| !self.world.containers.get(*id).is_some_and(|c| c.is_live()))
            .cloned()
            .collect();
        for container in ended {
            for id in self.stopping.remove(&container).unwrap_or_default() {
                if self.calls.get(&id).is_some_and(|call| call.outcome.is_none()) {
                    if let Some(call) = self.calls.get_mut(&id) {
                        call.outcome = Some(Ok(WorldCallOutput::Nothing));
                    }
                    let hop = self.faults.latency(&mut self.rng, self.world.now);
                    self.plan_in(hop, SimEvent::Reply(id));
                }
            }
        }
    }

    pub(super) fn reply(&mut self, id: CallId) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        if call.unheard {
            return;
        }
        let outcome = call.outcome.clone().unwrap_or(Ok(WorldCallOutput::Nothing));
        let (place, op) = (call.place.clone(), call.op.clone());
        if call.applies_late && !call.applied {
            call.unheard = true;
        } else {
            self.release(id);
            self.calls.remove(&id);
        }
        if let Err(failure) = &outcome {
            self.log.note(self.world.now, || format!("  call {id} failed: {}", failure.message));
        }
        self.answered(place, &op, outcome);
    }

    /// Ends the stop calls of a plan early. Signals that were sent still take effect.
    pub(super) fn drop_stops_of(&mut self, uid: &model::PodUid, epoch: decide::Epoch) -> Vec<ActionPosition> {
        let ids: Vec<CallId> = self
            .calls
            .iter()
            .filter(|(_, c)| c.place.uid == *uid && c.place.epoch == epoch && !c.unheard)
            .filter(|(_, c)| matches!(c.op, WorldCall::Stop { .. } | WorldCall::Hook { .. }))
            .map(|(id, _)| *id)
            .collect();
        ids.into_iter().filter_map(|id| self.calls.remove(&id)).map(|call| call.place).collect()
    }

    /// The agent was killed: each call it had sent takes effect before the next agent starts, or never.
    pub(super) fn abandon_calls(&mut self, within: Nanos) {
        let ids: Vec<CallId> = self.calls.keys().copied().collect();
        for id in ids {
            let arrives = self.rng.coin();
            let Some(call) = self.calls.get_mut(&id) else { continue };
            call.unheard = true;
            if call.applied || !arrives {
                self.release(id);
                self.calls.remove(&id);
            } else {
                let wait = self.rng.below(within);
                self.plan_in(wait, SimEvent::Apply(id));
            }
        }
    }

    /// The runtime went away: its callers get an error at once, whether or not the call had its effect.
    pub(super) fn runtime_calls_fail(&mut self) {
        let ids: Vec<CallId> =
            self.calls.iter().filter(|(_, c)| c.op.is_runtime()).map(|(id, _)| *id).collect();
        for id in ids {
            if self.rng.coin() {
                self.apply(id);
            }
            self.release(id);
            let Some(call) = self.calls.get_mut(&id) else { continue };
            call.applied = true;
            call.applies_late = false;
            call.outcome = Some(Err(WorldCallFailure::unreachable("the runtime went away")));
            self.plan_in(MILLI, SimEvent::Reply(id));
        }
        self.stopping.clear();
    }
}

fn carry_out(world: &mut World, uid: &model::PodUid, op: &WorldCall) -> Result<WorldCallOutput, WorldError> {
    let nothing = |()| WorldCallOutput::Nothing;
    match op {
        WorldCall::MakeDirs { log_dir, containers } => {
            world.disk.make_pod(uid, log_dir);
            let number = |c: &String| world.disk.highest_log(log_dir, c).map(|n| (c.clone(), n));
            Ok(WorldCallOutput::Dirs(containers.iter().filter_map(number).collect()))
        }
        WorldCall::EnsureCgroup(name) => {
            world.cgroups.insert(name.clone());
            Ok(WorldCallOutput::Nothing)
        }
        WorldCall::SetUpVolume(volume, content) => {
            world.disk.set_up_volume(uid, volume, content.as_deref());
            Ok(WorldCallOutput::Nothing)
        }
        WorldCall::StoreUserIds(ids) => {
            world.disk.user_ids.insert(uid.clone(), ids.clone());
            Ok(WorldCallOutput::Nothing)
        }
        WorldCall::RunSandbox(config) => world.run_sandbox(config).map(WorldCallOutput::Sandbox),
        WorldCall::PrepareContainer(start) => {
            world.disk.make_log_dir(&start.files.log_dir);
            Ok(WorldCallOutput::Nothing)
        }
        WorldCall::Create(start) => {
            world.create_container(&start.sandbox_id, &start.config).map(WorldCallOutput::Container)
        }
        WorldCall::Start { id, .. } => world.start_container(id).map(nothing),
        WorldCall::LinkLog { start, id } => {
            let link = format!("{}_{}-{id}.log", start.pod, start.name);
            world.disk.links.insert(link, start.log_path.clone());
            Ok(WorldCallOutput::Nothing)
        }
        WorldCall::Stop { .. } => Ok(WorldCallOutput::Nothing),
        WorldCall::Hook { name, .. } => world.run_hook(uid, name).map(nothing),
        WorldCall::StopSandbox(id) => world.stop_sandbox(id).map(nothing),
        WorldCall::RemoveContainer(id) => world.remove_container(id).map(nothing),
        WorldCall::RemoveLogs(path) => {
            world.disk.remove_log(path);
            Ok(WorldCallOutput::Nothing)
        }
        WorldCall::RemoveSandbox(id) => world.remove_sandbox(id).map(nothing),
        WorldCall::TearDownVolumes => {
            world.tear_down_volumes(uid);
            Ok(WorldCallOutput::Nothing)
        }
        WorldCall::DestroyCgroup(name) => {
            world.cgroups.remove(name);
            Ok(WorldCallOutput::Nothing)
        }
        WorldCall::RemovePodDir => world.remove_pod_dir(uid).map(nothing),
        WorldCall::RemoveLogDir(name) => {
            world.disk.logs.remove(name);
            Ok(WorldCallOutput::Nothing)
        }
    }
}
