//! Reading the runtime as the engine does: its time is taken first, then both lists, then a status for what the lists
//! show to have changed. Each of these sees the world at its own instant.

use std::collections::BTreeMap;
use std::sync::Arc;

use decide::Event;
use model::observed::{ContainerState, Observation, ObservedContainer, ObservedPod, ObservedSandbox, Scope};
use model::{ContainerId, FullName, Mono, PodUid, SandboxId, Wall};

use super::{Happening, Mutant, Simulation};
use crate::time::SECOND;
use crate::workload::twist;
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
    known: BTreeMap<PodUid, Arc<ObservedPod>>,
    sandboxes: Vec<(SandboxId, Sandbox)>,
    containers: Vec<(ContainerId, ContainerState, PodUid, FullName)>,
    pods: Vec<Arc<ObservedPod>>,
}

impl Simulation {
    pub(super) fn begin_reading(&mut self, scope: Scope) {
        let Some(agent) = &mut self.agent else { return };
        let at = agent.clock.mono(self.world.now);
        let reading = |(uid, entry): (&PodUid, &decide::state::PodEntry)| {
            Some((uid.clone(), entry.observed.as_ref()?.pod.clone()))
        };
        let known = match &scope {
            Scope::All => agent.state.pods.iter().filter_map(reading).collect(),
            Scope::Pod(uid) => agent.state.pods.get_key_value(uid).and_then(reading).into_iter().collect(),
        };
        let of_pod = match &scope {
            Scope::Pod(uid) => Some(uid.clone()),
            Scope::All => None,
        };
        let job = self.number();
        let (now, away) = (self.world.now, self.runtime_away);
        let generation = self.generation;
        let dragged = self.mutant == Mutant::SharesFate && self.faults.victim.is_some();
        let fails = away || dragged || self.faults.reading_fails(&mut self.rng, now, of_pod.as_ref());
        let reading = ReadingJob {
            generation,
            at,
            scope,
            known,
            sandboxes: Vec::new(),
            containers: Vec::new(),
            pods: Vec::new(),
        };
        self.readings.insert(job, reading);
        if fails {
            let hangs = !away && self.rng.per_mille(100);
            let wait = if hangs { 120 * SECOND } else { self.faults.reading_hop(&mut self.rng, now) };
            return self.plan_in(wait, Happening::Read { job, step: ReadStep::Fail });
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
                then += self.rng.below(2 * SECOND);
            }
            self.plan_in(then, Happening::Read { job, step });
        }
    }

    pub(super) fn read_step(&mut self, number: u64, step: ReadStep) {
        let away = self.runtime_away;
        let Some(job) = self.readings.get_mut(&number) else { return };
        let step = if away { ReadStep::Fail } else { step };
        match step {
            ReadStep::Sandboxes => job.list_sandboxes(&self.world),
            ReadStep::Containers => job.list_containers(&self.world),
            ReadStep::Statuses => job.pods = job.statuses(&self.world),
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

    /// What a reading of everything would show if it took no time.
    pub(crate) fn instant_reading(&self) -> Vec<Arc<ObservedPod>> {
        let mut job = ReadingJob {
            generation: 0,
            at: Mono::ZERO,
            scope: Scope::All,
            known: BTreeMap::new(),
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
        let listed = world.sandboxes.iter().filter(|(_, s)| self.wants(&s.uid));
        self.sandboxes = listed.map(|(id, s)| (id.clone(), s.clone())).collect();
    }

    fn list_containers(&mut self, world: &World) {
        let listed = world.containers.values().filter(|c| self.wants(&c.uid));
        let info = |c: &Container| (c.id.clone(), c.shown_state(), c.uid.clone(), c.full_name.clone());
        self.containers = listed.map(info).collect();
    }

    fn statuses(&self, world: &World) -> Vec<Arc<ObservedPod>> {
        let mut pods: BTreeMap<PodUid, ObservedPod> = BTreeMap::new();
        for (id, listed) in &self.sandboxes {
            let pod = pods
                .entry(listed.uid.clone())
                .or_insert_with(|| ObservedPod::empty(listed.uid.clone(), listed.full_name.clone()));
            pod.sandboxes.extend(self.sandbox(world, id, listed));
        }
        for (id, state, uid, full_name) in &self.containers {
            let pod =
                pods.entry(uid.clone()).or_insert_with(|| ObservedPod::empty(uid.clone(), full_name.clone()));
            pod.containers.extend(self.container(world, id, *state, uid));
        }
        let same = |mut pod: ObservedPod| {
            pod.sort();
            twist(&mut pod);
            match self.known.get(&pod.uid) {
                Some(known) if **known == pod => known.clone(),
                _ => Arc::new(pod),
            }
        };
        pods.into_values().map(same).collect()
    }

    fn sandbox(&self, world: &World, id: &SandboxId, listed: &Sandbox) -> Option<ObservedSandbox> {
        let known = self.known.get(&listed.uid);
        let old = known.and_then(|pod| pod.sandboxes.iter().find(|s| s.id == *id));
        if let Some(old) = old.filter(|s| s.ready == listed.ready && (!s.ready || !s.ips.is_empty())) {
            return Some(old.clone());
        }
        let now = world.sandboxes.get(id)?;
        Some(ObservedSandbox {
            id: id.clone(),
            attempt: listed.attempt,
            created_at: listed.created_at,
            ready: now.ready,
            network: now.network,
            has_network_status: true,
            ips: if now.ready { now.ips.clone() } else { Vec::new() },
            runtime_handler: String::new(),
        })
    }

    fn container(
        &self,
        world: &World,
        id: &ContainerId,
        listed: ContainerState,
        uid: &PodUid,
    ) -> Option<ObservedContainer> {
        let known = self.known.get(uid);
        let old = known.and_then(|pod| pod.containers.iter().find(|c| c.id == *id));
        let settled = matches!(listed, ContainerState::Running | ContainerState::Exited);
        if let Some(old) = old.filter(|c| settled && c.state == listed) {
            return Some(old.clone());
        }
        let now = world.containers.get(id)?;
        let state = now.shown_state();
        let ended = state == ContainerState::Exited;
        Some(ObservedContainer {
            stop_signal: 0,
            pre_stop: None,
            id: id.clone(),
            sandbox_id: now.sandbox.clone(),
            name: now.name.clone(),
            state,
            restart_count: now.restart_count,
            hash: now.hash,
            created_at: now.created_at,
            started_at: if state == ContainerState::Created { Wall(0) } else { now.started_at },
            finished_at: if ended { now.finished_at } else { Wall(0) },
            exit_code: if ended { now.exit_code } else { 0 },
            reason: if ended { now.reason.clone() } else { String::new() },
            message: String::new(),
            image: now.image.clone(),
            image_ref: now.image_ref.clone(),
            image_id: now.image_ref.clone(),
            log_path: now.log_path.clone(),
            pod_grace: now.pod_grace,
            resources: None,
            user: None,
        })
    }
}
