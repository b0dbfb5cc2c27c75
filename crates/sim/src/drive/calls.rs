//! One call to the world: issued, applied at one instant, answered at another. Either may be missing.

use std::collections::BTreeMap;

use decide::StartContainer;
use model::cgroup::CgroupName;
use model::cri::{IdMapping, SandboxConfig};
use model::{ContainerId, SandboxId};

use super::executor::Place;
use super::{Happening, Simulation};
use crate::faults::{Fate, LateEffect};
use crate::time::{MILLI, Nanos, SECOND};
use crate::world::{Refused, World, container_name, sandbox_name};

/// As the adapter's: two minutes, twice that for a sandbox, and the grace on top for a stop.
pub(super) const DEADLINE: Nanos = 120 * SECOND;

pub type CallId = u64;

#[derive(Clone, Debug)]
pub enum Op {
    MakeDirs {
        log_dir: String,
        containers: Vec<String>,
    },
    EnsureCgroup(CgroupName),
    /// With its content, where the agent makes that.
    SetUpVolume(String, Option<String>),
    KeepUserIds(IdMapping),
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
        /// The hook before it failed.
        hook_failed: bool,
    },
    StopSandbox(SandboxId),
    RemoveContainer(ContainerId),
    RemoveLogs(String),
    RemoveSandbox(SandboxId),
    /// A lifecycle hook: changes nothing that the world knows.
    Hook {
        id: ContainerId,
        name: String,
        /// Nobody waits for it any longer than this.
        until: Option<Nanos>,
    },
    TearDownVolumes,
    DestroyCgroup(CgroupName),
    RemovePodDir,
    RemoveLogDir(String),
}

impl Op {
    /// Whether the runtime does it, as opposed to the kernel and its disk.
    pub fn is_runtime(&self) -> bool {
        matches!(
            self,
            Op::RunSandbox(_)
                | Op::Create(_)
                | Op::Start { .. }
                | Op::Stop { .. }
                | Op::StopSandbox(_)
                | Op::RemoveContainer(_)
                | Op::RemoveSandbox(_)
        )
    }

    /// Whether it needs room on the disk.
    fn writes(&self) -> bool {
        matches!(
            self,
            Op::MakeDirs { .. }
                | Op::SetUpVolume(..)
                | Op::KeepUserIds(_)
                | Op::PrepareContainer(_)
                | Op::LinkLog { .. }
        )
    }

    /// Stops and removals are done when there is nothing to do.
    pub fn absent_is_fine(&self) -> bool {
        matches!(self, Op::Stop { .. } | Op::StopSandbox(_) | Op::RemoveContainer(_) | Op::RemoveSandbox(_))
    }

    fn deadline(&self) -> Nanos {
        match self {
            Op::RunSandbox(_) => 2 * DEADLINE,
            Op::Stop { grace_secs, .. } => {
                DEADLINE.saturating_add(((*grace_secs).max(0) as u64).saturating_mul(SECOND))
            }
            _ => DEADLINE,
        }
    }

    /// The name that the runtime holds for this call while it works on it.
    fn reserves(&self) -> Option<String> {
        match self {
            Op::RunSandbox(config) => Some(sandbox_name(config)),
            Op::Create(start) => Some(container_name(&start.sandbox_config, &start.config)),
            _ => None,
        }
    }

    pub fn words(&self) -> String {
        match self {
            Op::RunSandbox(config) => sandbox_name(config),
            Op::PrepareContainer(start) => format!("files of {}", start.name),
            Op::Create(start) => format!("create {} #{}", start.name, start.config.metadata.attempt),
            Op::Start { start, id } => format!("start {} {id}", start.name),
            Op::LinkLog { start, .. } => format!("link log of {}", start.name),
            other => format!("{other:?}"),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    Nothing,
    Dirs(BTreeMap<String, u32>),
    Sandbox(SandboxId),
    Container(ContainerId),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    pub absent: bool,
    pub unreachable: bool,
    pub message: String,
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        Self { absent: refused.absent, unreachable: false, message: refused.message }
    }
}

impl Failure {
    fn unreachable(message: &str) -> Self {
        Self { absent: false, unreachable: true, message: message.into() }
    }
    fn refused(message: &str) -> Self {
        Self { absent: false, unreachable: false, message: message.into() }
    }
}

pub struct Call {
    place: Place,
    op: Op,
    /// What the caller will hear.
    outcome: Option<Result<Value, Failure>>,
    holds: Option<String>,
    applied: bool,
    /// It may still be applied after its caller was answered.
    applies_late: bool,
    /// Nobody waits for it any more.
    unheard: bool,
}

impl Simulation {
    pub(super) fn issue(&mut self, place: Place, op: Op) {
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
            fate = Fate::Refused;
            failure = Some(Failure::unreachable("the runtime is away"));
        } else if op.writes() && self.disk_full {
            fate = Fate::Refused;
            failure = Some(Failure::refused("no space left on device"));
        }
        let holds = op.reserves();
        if holds.as_ref().is_some_and(|name| self.world.reserved.contains(name)) {
            fate = Fate::Refused;
            failure = Some(Failure::refused("the name is reserved"));
        }
        let id = self.number();
        self.log.note(now, || format!("  call {id} of {}: {} ({fate:?})", place.uid, op.words()));
        let hop = match &op {
            Op::Hook { until, .. } => self.hook_takes(*until),
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
        if fate != Fate::Refused {
            call.holds = holds.inspect(|name| {
                self.world.reserved.insert(name.clone());
            });
            self.mark_starting(&call.op, true);
        }
        let deadline = call.op.deadline();
        match fate {
            Fate::Works => self.plan_in(hop, Happening::Apply(id)),
            Fate::Refused => {
                call.applied = true;
                call.outcome = Some(Err(failure.unwrap_or_else(|| Failure::refused("simulated refusal"))));
                self.plan_in(hop, Happening::Reply(id));
            }
            Fate::FailsApplied => {
                call.outcome = Some(Err(Failure::refused("simulated failure after the effect")));
                self.plan_in(hop, Happening::Apply(id));
            }
            Fate::Hangs { effect } => {
                call.outcome = Some(Err(Failure::unreachable("deadline exceeded")));
                call.applies_late = effect.is_some();
                let before = self.rng.below(deadline);
                let after = deadline + self.rng.below(60 * SECOND);
                match effect {
                    Some(LateEffect::BeforeDeadline) => self.plan_in(before, Happening::Apply(id)),
                    Some(LateEffect::AfterDeadline) => self.plan_in(after, Happening::Apply(id)),
                    None => {}
                }
                self.plan_in(deadline, Happening::Reply(id));
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

    fn mark_starting(&mut self, op: &Op, starting: bool) {
        if let Op::Start { id, .. } = op
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
            Op::Stop { id: container, grace_secs, .. } => {
                let waits = self.begin_stop(id, container, *grace_secs);
                if waits {
                    if let Some(call) = self.calls.get_mut(&id) {
                        call.applied = true;
                    }
                    self.answer_failed_stop(id);
                    return;
                }
                if self.world.containers.contains_key(container) {
                    Ok(Value::Nothing)
                } else {
                    Err(Refused::absent(container))
                }
            }
            other => carry_out(&mut self.world, &uid, other),
        };
        self.check.call_applied(&self.world, &uid, &op, &result);
        let Some(call) = self.calls.get_mut(&id) else { return };
        call.applied = true;
        if call.unheard {
            self.calls.remove(&id);
            return;
        }
        if !call.applies_late {
            call.outcome.get_or_insert(result.map_err(Failure::from));
            let hop = self.faults.latency(&mut self.rng, self.world.now);
            self.plan_in(hop, Happening::Reply(id));
        }
    }

    /// Sends the signal. `true`: the container lives on for now.
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
        self.plan_in(grace, Happening::GraceOver(call));
        true
    }

    /// A stop that is to fail after its effect fails as soon as the signal is out.
    fn answer_failed_stop(&mut self, id: CallId) {
        let Some(call) = self.calls.get(&id) else { return };
        if call.outcome.is_some() && !call.applies_late {
            self.plan_in(5 * MILLI, Happening::Reply(id));
        }
    }

    pub(super) fn grace_over(&mut self, id: CallId) {
        let Some(call) = self.calls.get(&id) else { return };
        if let Op::Stop { id: container, .. } = &call.op {
            let container = container.clone();
            self.world.kill(&container);
            self.check.container_ended(&self.world, &container);
        }
    }

    /// Stop calls whose container has ended are answered.
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
                        call.outcome = Some(Ok(Value::Nothing));
                    }
                    let hop = self.faults.latency(&mut self.rng, self.world.now);
                    self.plan_in(hop, Happening::Reply(id));
                }
            }
        }
    }

    pub(super) fn reply(&mut self, id: CallId) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        if call.unheard {
            return;
        }
        let outcome = call.outcome.clone().unwrap_or(Ok(Value::Nothing));
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

    /// Cuts short the stop calls of a plan. The signals that were sent stay sent.
    pub(super) fn drop_stops_of(&mut self, uid: &model::PodUid, epoch: decide::Epoch) -> Vec<Place> {
        let ids: Vec<CallId> = self
            .calls
            .iter()
            .filter(|(_, c)| c.place.uid == *uid && c.place.epoch == epoch && !c.unheard)
            .filter(|(_, c)| matches!(c.op, Op::Stop { .. } | Op::Hook { .. }))
            .map(|(id, _)| *id)
            .collect();
        ids.into_iter().filter_map(|id| self.calls.remove(&id)).map(|call| call.place).collect()
    }

    /// The caller is gone: what it had sent arrives before anybody else can call, or never.
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
                self.plan_in(wait, Happening::Apply(id));
            }
        }
    }

    /// The runtime is gone: its callers hear so at once, whatever it had done for them.
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
            call.outcome = Some(Err(Failure::unreachable("the runtime went away")));
            self.plan_in(MILLI, Happening::Reply(id));
        }
        self.stopping.clear();
    }
}

fn carry_out(world: &mut World, uid: &model::PodUid, op: &Op) -> Result<Value, Refused> {
    let nothing = |()| Value::Nothing;
    match op {
        Op::MakeDirs { log_dir, containers } => {
            world.disk.make_pod(uid, log_dir);
            let number = |c: &String| world.disk.highest_log(log_dir, c).map(|n| (c.clone(), n));
            Ok(Value::Dirs(containers.iter().filter_map(number).collect()))
        }
        Op::EnsureCgroup(name) => {
            world.cgroups.insert(name.clone());
            Ok(Value::Nothing)
        }
        Op::SetUpVolume(volume, content) => {
            world.disk.set_up_volume(uid, volume, content.as_deref());
            Ok(Value::Nothing)
        }
        Op::KeepUserIds(ids) => {
            world.disk.user_ids.insert(uid.clone(), ids.clone());
            Ok(Value::Nothing)
        }
        Op::RunSandbox(config) => world.run_sandbox(config).map(Value::Sandbox),
        Op::PrepareContainer(start) => {
            world.disk.make_log_dir(&start.files.log_dir);
            Ok(Value::Nothing)
        }
        Op::Create(start) => world.create_container(&start.sandbox_id, &start.config).map(Value::Container),
        Op::Start { id, .. } => world.start_container(id).map(nothing),
        Op::LinkLog { start, id } => {
            let link = format!("{}_{}-{id}.log", start.pod, start.name);
            world.disk.links.insert(link, start.log_path.clone());
            Ok(Value::Nothing)
        }
        Op::Stop { .. } => Ok(Value::Nothing),
        Op::Hook { name, .. } => world.run_hook(uid, name).map(nothing),
        Op::StopSandbox(id) => world.stop_sandbox(id).map(nothing),
        Op::RemoveContainer(id) => world.remove_container(id).map(nothing),
        Op::RemoveLogs(path) => {
            world.disk.remove_log(path);
            Ok(Value::Nothing)
        }
        Op::RemoveSandbox(id) => world.remove_sandbox(id).map(nothing),
        Op::TearDownVolumes => {
            world.tear_down_volumes(uid);
            Ok(Value::Nothing)
        }
        Op::DestroyCgroup(name) => {
            world.cgroups.remove(name);
            Ok(Value::Nothing)
        }
        Op::RemovePodDir => world.remove_pod_dir(uid).map(nothing),
        Op::RemoveLogDir(name) => {
            world.disk.logs.remove(name);
            Ok(Value::Nothing)
        }
    }
}
