//! Reads the runtime as the engine does: the time is taken first, then both lists, then a status for what the lists
//! show to have changed. Each of these calls sees the world at its own instant.

use std::collections::BTreeMap;
use std::sync::Arc;

use decide::Event;
use decide::state::PreviousObservation;
use model::observed::{
    ContainerState, EXIT_CODE_UNKNOWN, Observation, ObservedContainer, ObservedPod, ObservedSandbox, Scope,
};
use model::{ContainerId, FullName, Mono, PodUid, SandboxId, Wall};

use super::{Mutant, SimEvent, Simulation};
use crate::faults::Faults;
use crate::time::SECOND;
use crate::workload::make_observed_extreme;
use crate::world::{Container, Sandbox, World};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadStep {
    Sandboxes,
    Containers,
    Statuses,
    Deliver,
    Fail,
}

pub struct ReadingJob {
    generation: u32,
    at: Mono,
    scope: Scope,
    known: BTreeMap<PodUid, PreviousObservation>,
    faults: Faults,
    sandboxes: Vec<(SandboxId, Sandbox)>,
    containers: Vec<(ContainerId, ContainerState, PodUid, FullName)>,
    pods: Vec<Arc<ObservedPod>>,
}

/// The runtime's error when it refuses a status.
const REFUSAL: &str = "check network namespace closed: device or resource busy";

enum StatusOutcome<T> {
    /// It was removed after the list was made.
    Gone,
    Read(T),
    /// Its status is refused: the list entry.
    Listed(T),
}

impl Simulation {
    pub(super) fn begin_reading(&mut self, scope: Scope) {
        let Some(agent) = &mut self.agent else { return };
        let at = agent.clock.mono(self.world.now);
        let known = agent.state.previous_observations(&scope, at);
        let of_pod = match &scope {
            Scope::Pod(uid) => Some(uid.clone()),
            Scope::All => None,
        };
        let job = self.number();
        let (now, away) = (self.world.now, self.runtime_away);
        let generation = self.generation;
        let dragged = self.mutant == Mutant::BlocksAllReadings && self.faults.stuck_pod.is_some();
        let fails = away || dragged || self.faults.reading_fails(&mut self.rng, now, of_pod.as_ref());
        let reading = ReadingJob {
            generation,
            at,
            scope,
            known,
            faults: self.faults.clone(),
            sandboxes: Vec::new(),
            containers: Vec::new(),
            pods: Vec::new(),
        };
        self.readings.insert(job, reading);
        if fails {
            let hangs = !away && self.rng.per_mille(100);
            let wait = if hangs { 120 * SECOND } else { self.faults.reading_hop(&mut self.rng, now) };
            return self.plan_in(wait, SimEvent::Read { job, step: ReadStep::Fail });
        }
        let mut then = 0;
        let mut steps = vec![ReadStep::Sandboxes, ReadStep::Containers];
        if self.rng.coin() {
            steps.swap(0, 1);
        }
        steps.extend([ReadStep::Statuses, ReadStep::Deliver]);
        for step in steps {
            then += self.faults.reading_hop(&mut self.rng, now);
            if self.mutant == Mutant::LateReadingTimes && step == ReadStep::Deliver {
                then += self.rng.below(30 * SECOND);
            }
            self.plan_in(then, SimEvent::Read { job, step });
        }
    }

    pub(super) fn read_step(&mut self, number: u64, step: ReadStep) {
        let away = self.runtime_away;
        let Some(job) = self.readings.get_mut(&number) else { return };
        let step = if away { ReadStep::Fail } else { step };
        match step {
            ReadStep::Sandboxes => job.list_sandboxes(&self.world),
            ReadStep::Containers => job.list_containers(&self.world),
            ReadStep::Statuses => {
                job.pods = job.statuses(&self.world);
                let refused = job.pods.iter().any(|pod| !pod.missing_status.is_empty());
                if refused && self.mutant == Mutant::FailsTheWholeReading {
                    self.end_reading(number, false);
                }
            }
            ReadStep::Deliver | ReadStep::Fail => self.end_reading(number, step == ReadStep::Deliver),
        }
    }

    fn end_reading(&mut self, number: u64, good: bool) {
        let Some(job) = self.readings.remove(&number) else { return };
        let ReadingJob { generation, mut at, scope, pods, .. } = job;
        if self.mutant == Mutant::LateReadingTimes
            && let Some(agent) = &mut self.agent
        {
            at = agent.clock.mono(self.world.now);
        }
        let event = if good {
            Event::Observed(Observation { at, scope, pods })
        } else {
            Event::ObserveFailed { scope, message: "the runtime could not be read".into() }
        };
        self.post(generation, event);
    }

    /// The result of a full reading that takes no time.
    pub(crate) fn instant_reading(&self) -> Vec<Arc<ObservedPod>> {
        let mut job = ReadingJob {
            generation: 0,
            at: Mono::ZERO,
            scope: Scope::All,
            known: BTreeMap::new(),
            faults: self.faults.clone(),
            sandboxes: Vec::new(),
            containers: Vec::new(),
            pods: Vec::new(),
        };
        job.list_sandboxes(&self.world);
        job.list_containers(&self.world);
        job.statuses(&self.world)
    }
}

impl ReadingJob {
    fn wants(&self, uid: &PodUid) -> bool {
        match &self.scope {
            Scope::All => true,
            Scope::Pod(wanted) => wanted == uid,
        }
    }

    fn list_sandboxes(&mut self, world: &World) {
        let listed = world.sandboxes.iter().chain(&world.removed_but_listed.sandboxes);
        let listed = listed.filter(|(_, s)| self.wants(&s.uid));
        self.sandboxes = listed.map(|(id, s)| (id.clone(), s.clone())).collect();
    }

    fn list_containers(&mut self, world: &World) {
        let listed = world.containers.values().chain(world.removed_but_listed.containers.values());
        let listed = listed.filter(|c| self.wants(&c.uid));
        let info = |c: &Container| (c.id.clone(), c.shown_state(), c.uid.clone(), c.full_name.clone());
        self.containers = listed.map(info).collect();
    }

    fn statuses(&self, world: &World) -> Vec<Arc<ObservedPod>> {
        let mut pods: BTreeMap<PodUid, ObservedPod> = BTreeMap::new();
        for (id, listed) in &self.sandboxes {
            let pod = pods
                .entry(listed.uid.clone())
                .or_insert_with(|| ObservedPod::empty(listed.uid.clone(), listed.full_name.clone()));
            match self.sandbox(world, id, listed) {
                StatusOutcome::Gone => {}
                StatusOutcome::Read(sandbox) => pod.sandboxes.push(sandbox),
                StatusOutcome::Listed(sandbox) => {
                    pod.missing_status.insert(id.to_string(), REFUSAL.into());
                    pod.sandboxes.push(sandbox);
                }
            }
        }
        for (id, state, uid, full_name) in &self.containers {
            let pod =
                pods.entry(uid.clone()).or_insert_with(|| ObservedPod::empty(uid.clone(), full_name.clone()));
            match self.container(world, id, *state, uid) {
                StatusOutcome::Gone => {}
                StatusOutcome::Read(container) => pod.containers.push(container),
                StatusOutcome::Listed(container) => {
                    pod.missing_status.insert(id.to_string(), REFUSAL.into());
                    pod.containers.push(container);
                }
            }
        }
        let same = |mut pod: ObservedPod| {
            pod.sort();
            make_observed_extreme(&mut pod);
            match self.known.get(&pod.uid) {
                Some(PreviousObservation { pod: known, .. }) if **known == pod => known.clone(),
                _ => Arc::new(pod),
            }
        };
        pods.into_values().map(same).collect()
    }

    /// The status was refused before, and it is too early to ask again.
    fn asked_before(&self, uid: &PodUid, id: &str) -> bool {
        let known = self.known.get(uid).filter(|known| !known.retry_missing_status);
        known.is_some_and(|known| known.pod.missing_status.contains_key(id))
    }

    fn was_read(&self, uid: &PodUid, id: &str) -> bool {
        self.known.get(uid).is_some_and(|known| !known.pod.missing_status.contains_key(id))
    }

    fn sandbox(&self, world: &World, id: &SandboxId, listed: &Sandbox) -> StatusOutcome<ObservedSandbox> {
        let known = self.known.get(&listed.uid);
        let old = known.and_then(|known| known.pod.sandboxes.iter().find(|s| s.id == *id));
        let same = old.filter(|s| s.ready == listed.ready);
        if let Some(old) = same.filter(|_| self.asked_before(&listed.uid, id.as_str())) {
            return StatusOutcome::Listed(old.clone());
        }
        let read = same.filter(|_| self.was_read(&listed.uid, id.as_str()));
        if let Some(old) = read.filter(|s| !s.ready || !s.ips.is_empty()) {
            return StatusOutcome::Read(old.clone());
        }
        let Some(now) = world.sandboxes.get(id).or_else(|| world.removed_but_listed.sandboxes.get(id)) else {
            return StatusOutcome::Gone;
        };
        let refused = self.faults.refuses_sandbox(&listed.uid);
        let (ready, network) = match refused {
            true => (listed.ready, old.map(|old| old.network).unwrap_or_default()),
            false => (now.ready, now.network),
        };
        let sandbox = ObservedSandbox {
            id: id.clone(),
            attempt: listed.attempt,
            created_at: listed.created_at,
            ready,
            network,
            has_network_status: !refused,
            ips: if ready && !refused { now.ips.clone() } else { Vec::new() },
            runtime_handler: String::new(),
        };
        if refused { StatusOutcome::Listed(sandbox) } else { StatusOutcome::Read(sandbox) }
    }

    fn container(
        &self,
        world: &World,
        id: &ContainerId,
        listed: ContainerState,
        uid: &PodUid,
    ) -> StatusOutcome<ObservedContainer> {
        let known = self.known.get(uid);
        let old = known.and_then(|known| known.pod.containers.iter().find(|c| c.id == *id));
        let same = old.filter(|c| c.state == listed);
        if let Some(old) = same.filter(|_| self.asked_before(uid, id.as_str())) {
            return StatusOutcome::Listed(old.clone());
        }
        let settled = matches!(listed, ContainerState::Running | ContainerState::Exited);
        if let Some(old) = same.filter(|_| settled && self.was_read(uid, id.as_str())) {
            return StatusOutcome::Read(old.clone());
        }
        let Some(now) = world.containers.get(id).or_else(|| world.removed_but_listed.containers.get(id))
        else {
            return StatusOutcome::Gone;
        };
        let refused = self.faults.refuses_container(uid);
        let state = if refused { listed } else { now.shown_state() };
        let ended = state == ContainerState::Exited;
        let (finished_at, exit_code, reason) = match (ended, refused) {
            (true, false) => (now.finished_at, now.exit_code, now.reason.clone()),
            (true, true) => (Wall(0), EXIT_CODE_UNKNOWN, String::new()),
            (false, _) => (Wall(0), 0, String::new()),
        };
        let container = ObservedContainer {
            stop_signal: 0,
            image_mounts: Default::default(),
            pre_stop: None,
            id: id.clone(),
            sandbox_id: now.sandbox.clone(),
            name: now.name.clone(),
            state,
            restart_count: now.restart_count,
            hash: now.hash,
            created_at: now.created_at,
            started_at: if state == ContainerState::Created { Wall(0) } else { now.started_at },
            finished_at,
            exit_code,
            reason,
            message: String::new(),
            image: now.image.clone(),
            image_ref: now.image_ref.clone(),
            image_id: now.image_ref.clone(),
            log_path: if refused { String::new() } else { now.log_path.clone() },
            pod_grace: now.pod_grace,
            resources: None,
            user: None,
        };
        if refused { StatusOutcome::Listed(container) } else { StatusOutcome::Read(container) }
    }
}
