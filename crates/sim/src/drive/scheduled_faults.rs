//! Scheduled faults, and the pods that users add and remove.

use decide::event::Hint;
use model::k8s::Pod;
use model::pod::Source;

use super::background_calls::BackgroundCall;
use super::cluster::is_mirror;
use super::{Mutant, SimEvent, Simulation};
use crate::faults::Faults;
use crate::rng::Rng;
use crate::time::{MILLI, Nanos, SECOND};
use crate::workload::Task;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ScheduledFault {
    AgentDies,
    AgentStarts,
    RuntimeLeaves {
        for_ns: u64,
    },
    RuntimeReturns,
    DiskFills {
        for_ns: u64,
    },
    DiskHasRoom,
    ClockJumps {
        by_ns: i64,
    },
    SandboxBreaks,
    ContainerIsLost,
    /// Every process and cgroup is gone, and a new agent starts.
    Reboot,
    NotReady {
        network_only: bool,
        for_ns: u64,
    },
    ReadyAgain,
    /// Something outside the agent removes a running container.
    ContainerRemovedByOthers,
    FactsChange,
    /// Neither calls nor watches reach the API server.
    ApiLeaves {
        for_ns: u64,
    },
    ApiReturns,
    /// Hundreds of hints, about known and unknown pods.
    Storm,
    /// A volume is detached from the node although it is in use.
    VolumeForceDetached,
    /// The record of a pod's volume can't be read.
    RecordBreaks {
        for_ns: u64,
    },
    RecordsAreMended,
}

/// All scheduled faults of one run, with their times.
pub fn seeded(rng: &mut Rng, faults: &Faults) -> Vec<(Nanos, ScheduledFault)> {
    if faults.until <= SECOND {
        return Vec::new();
    }
    let mut scheduled_faults = Vec::new();
    let mut plan = |times: u64, make: &dyn Fn(&mut Rng) -> ScheduledFault| {
        for _ in 0..times {
            let at = rng.below(faults.until);
            scheduled_faults.push((at, make(rng)));
        }
    };
    let short = |rng: &mut Rng| rng.between(SECOND, 40 * SECOND);
    plan(faults.dies.min(3), &|_| ScheduledFault::AgentDies);
    plan(faults.outages, &|rng| ScheduledFault::RuntimeLeaves {
        for_ns: rng.between(100 * MILLI, 30 * SECOND),
    });
    plan(faults.disk_full, &|rng| ScheduledFault::DiskFills { for_ns: short(rng) });
    plan(faults.clock_jumps, &|rng| {
        let most = if rng.coin() { 5 * SECOND } else { 3600 * SECOND };
        let size = rng.between(MILLI, most) as i64;
        ScheduledFault::ClockJumps { by_ns: if rng.coin() { size } else { -size } }
    });
    plan(faults.broken_sandboxes, &|_| ScheduledFault::SandboxBreaks);
    plan(faults.lost_containers, &|_| ScheduledFault::ContainerIsLost);
    plan(faults.reboots, &|_| ScheduledFault::Reboot);
    plan(faults.not_ready, &|rng| ScheduledFault::NotReady { network_only: rng.coin(), for_ns: short(rng) });
    plan(faults.removals_by_others, &|_| ScheduledFault::ContainerRemovedByOthers);
    plan(faults.removals_by_others, &|_| ScheduledFault::FactsChange);
    plan(faults.partitions, &|rng| ScheduledFault::ApiLeaves { for_ns: short(rng) });
    plan(faults.storms, &|_| ScheduledFault::Storm);
    plan(faults.detached, &|_| ScheduledFault::VolumeForceDetached);
    plan(faults.broken_records, &|rng| ScheduledFault::RecordBreaks { for_ns: short(rng) });
    scheduled_faults
}

impl Simulation {
    pub(super) fn apply_scheduled_fault(&mut self, fault: ScheduledFault) {
        self.log.note(self.world.now, || format!("scheduled fault: {fault:?}"));
        match fault {
            ScheduledFault::AgentDies => self.kill_agent(),
            ScheduledFault::AgentStarts => self.start_agent(),
            ScheduledFault::RuntimeLeaves { for_ns } => {
                if !self.runtime_away {
                    self.runtime_calls_fail();
                    self.runtime_away = true;
                    self.plan_in(for_ns, SimEvent::ScheduledFault(ScheduledFault::RuntimeReturns));
                }
            }
            ScheduledFault::RuntimeReturns => {
                self.runtime_away = false;
                self.schedule_hint(Hint::Everything);
            }
            ScheduledFault::DiskFills { for_ns } => {
                self.disk_full = true;
                self.plan_in(for_ns, SimEvent::ScheduledFault(ScheduledFault::DiskHasRoom));
            }
            ScheduledFault::DiskHasRoom => self.disk_full = false,
            ScheduledFault::ClockJumps { by_ns } => {
                self.world.wall_shift += by_ns;
                self.jumped = Some(self.world.now);
            }
            ScheduledFault::SandboxBreaks => {
                let ready: Vec<_> =
                    self.world.sandboxes.iter().filter(|(_, s)| s.ready).map(|(id, _)| id.clone()).collect();
                if !ready.is_empty() {
                    let id = self.rng.pick(&ready).clone();
                    self.world.break_sandbox(&id);
                }
            }
            ScheduledFault::ContainerIsLost => {
                if let Some(id) = self.any_live()
                    && let Some(container) = self.world.containers.get_mut(&id)
                {
                    container.lost = true;
                    self.check.container_lost_by_runtime(&container.uid);
                }
            }
            ScheduledFault::Reboot => {
                self.kill_agent();
                self.world.reboot();
            }
            ScheduledFault::NotReady { network_only, for_ns } => {
                self.not_ready = Some(network_only);
                self.plan_in(for_ns, SimEvent::ScheduledFault(ScheduledFault::ReadyAgain));
            }
            ScheduledFault::ReadyAgain => self.not_ready = None,
            ScheduledFault::ContainerRemovedByOthers => {
                if let Some(id) = self.any_live() {
                    if let Some(container) = self.world.containers.get(&id) {
                        let (uid, name) = (container.uid.clone(), container.name.clone());
                        self.check.lost_container_to_others(&uid);
                        self.world.removed_by_others.insert((uid, name));
                    }
                    // The call fails while the container is being started, which is fine.
                    let _ = self.world.remove_container(&id);
                }
            }
            ScheduledFault::ApiLeaves { for_ns } => {
                self.api_unreachable = true;
                self.plan_in(for_ns, SimEvent::ScheduledFault(ScheduledFault::ApiReturns));
            }
            ScheduledFault::ApiReturns => {
                self.api_unreachable = false;
                self.catch_up();
            }
            ScheduledFault::Storm => self.storm(),
            ScheduledFault::VolumeForceDetached => self.force_detach_a_volume(),
            ScheduledFault::RecordBreaks { for_ns } => self.record_breaks(for_ns),
            ScheduledFault::RecordsAreMended => self.world.storage.unreadable.clear(),
            ScheduledFault::FactsChange => {
                self.facts.node_ips.rotate_left(1);
                let facts = std::sync::Arc::new(self.facts.clone());
                self.post(self.generation, decide::Event::FactsChanged(facts));
            }
        }
    }

    /// Watches start again: what they missed is delivered as a whole (410, then a list).
    fn catch_up(&mut self) {
        self.source_changed(Source::Api);
        let watching = self.agent.iter().flat_map(|agent| agent.watching.clone()).collect::<Vec<_>>();
        for key in watching {
            self.schedule_background_call(BackgroundCall::ReadObject(key));
        }
    }

    fn storm(&mut self) {
        let uids: Vec<_> = self.check.uids().cloned().collect();
        for number in 0..150 {
            let hint = match number % 3 {
                0 if !uids.is_empty() => Hint::Pod(self.rng.pick(&uids).clone()),
                1 => Hint::Images,
                _ => Hint::ContainerOrSandbox(format!("{:016x}", self.rng.number())),
            };
            self.schedule_hint(hint);
        }
    }

    fn any_live(&mut self) -> Option<model::ContainerId> {
        let live: Vec<_> =
            self.world.containers.values().filter(|c| c.is_live()).map(|c| c.id.clone()).collect();
        (!live.is_empty()).then(|| self.rng.pick(&live).clone())
    }

    pub(super) fn run_task(&mut self, number: usize) {
        let Some(task) = self.tasks.get_mut(number).and_then(Option::take) else { return };
        self.log.note(self.world.now, || format!("task: {}", task.description()));
        match task {
            Task::Put { source, pod, scripts } => {
                self.world.scripts.extend(scripts);
                let pod = if source == Source::Api { self.admitted(pod) } else { Some(pod) };
                let Some(pod) = pod else { return };
                let name = pod.metadata.name.clone().unwrap_or_default();
                let old = self.sources.entry(source).or_default().insert(name, pod.clone());
                self.check.pod_added(self.world.now, source, &pod, old.as_deref());
                self.source_changed(source);
            }
            Task::Remove { source, name } => {
                if let Some(old) = self.sources.entry(source).or_default().remove(&name) {
                    self.check.pod_removed(self.world.now, &uid_of(&old));
                    match source {
                        Source::Api => self.announce_object_removed(uid_of(&old)),
                        _ => self.source_changed(source),
                    }
                }
            }
            Task::Evict { uid, grace_secs } => {
                let (reason, message) = ("Evicted".to_owned(), "the simulated node is full".to_owned());
                let evict = decide::Event::Evict { uid, reason, message, grace_secs };
                self.post_once(self.generation, evict);
            }
            Task::RemoveMirror(name) => {
                let set = self.sources.entry(Source::Api).or_default();
                if let Some(uid) = set.get(&name).filter(|pod| is_mirror(pod)).map(|pod| uid_of(pod)) {
                    set.remove(&name);
                    self.announce_object_removed(uid);
                }
            }
            Task::Gate { name, open } => self.set_gate(&name, open),
            Task::ImageArrives(name) => self.world.image_arrives(&name),
            Task::Claim { name, change } => self.change_claim(&name, change),
            Task::Driver { there } => self.driver_is(there),
            Task::Object { name, version } => {
                self.world.objects.set(&name, version);
                if self.mutant == Mutant::LosesObjectNews {
                    return;
                }
                let watching = self.agent.iter().flat_map(|agent| agent.watching.clone());
                for key in watching.filter(|key| key.name == name).collect::<Vec<_>>() {
                    self.schedule_background_call(BackgroundCall::ReadObject(key));
                }
            }
        }
    }

    /// Removes every pod from every source.
    pub fn remove_everything(&mut self) {
        for source in self.config.sources.clone() {
            for pod in self.sources.insert(source, Default::default()).unwrap_or_default().into_values() {
                self.check.pod_removed(self.world.now, &uid_of(&pod));
            }
            self.source_changed(source);
        }
    }

    pub(super) fn source_changed(&mut self, source: Source) {
        if self.agent.is_none() {
            return;
        }
        let generation = self.generation;
        let wait = self.rng.between(MILLI / 10, 100 * MILLI);
        self.plan_in(wait, SimEvent::Deliver { generation, source });
    }
}

pub fn uid_of(pod: &Pod) -> model::PodUid {
    pod.metadata.uid.as_deref().unwrap_or_default().into()
}
