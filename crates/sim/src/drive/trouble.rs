//! Things that go wrong by themselves, and the pods that people put in and take out.

use decide::event::Hint;
use model::k8s::Pod;
use model::pod::Source;

use super::errands::Errand;
use super::{Happening, Mutant, Simulation};
use crate::time::{MILLI, SECOND};
use crate::workload::Task;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trouble {
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
    /// Every process is gone, every cgroup too, and the agent comes up anew.
    Reboot,
    NotReady {
        network_only: bool,
        for_ns: u64,
    },
    ReadyAgain,
    /// Somebody removes a running container behind the agent's back.
    StrangerRemoves,
    FactsChange,
}

impl Simulation {
    pub(super) fn plan_troubles(&mut self) {
        let faults = self.faults.clone();
        if faults.until <= SECOND {
            return;
        }
        let mut plan = |times: u64, make: &mut dyn FnMut(&mut crate::rng::Rng) -> Trouble| {
            for _ in 0..times {
                let at = self.rng.below(faults.until);
                let trouble = make(&mut self.rng);
                self.queue.plan(at, Happening::Trouble(trouble));
            }
        };
        plan(faults.dies.min(3), &mut |_| Trouble::AgentDies);
        plan(faults.outages, &mut |rng| Trouble::RuntimeLeaves {
            for_ns: rng.between(100 * MILLI, 30 * SECOND),
        });
        plan(faults.disk_full, &mut |rng| Trouble::DiskFills { for_ns: rng.between(SECOND, 40 * SECOND) });
        plan(faults.clock_jumps, &mut |rng| {
            let most = if rng.coin() { 5 * SECOND } else { 3600 * SECOND };
            let size = rng.between(MILLI, most) as i64;
            Trouble::ClockJumps { by_ns: if rng.coin() { size } else { -size } }
        });
        plan(faults.broken_sandboxes, &mut |_| Trouble::SandboxBreaks);
        plan(faults.lost_containers, &mut |_| Trouble::ContainerIsLost);
        plan(faults.reboots, &mut |_| Trouble::Reboot);
        plan(faults.not_ready, &mut |rng| Trouble::NotReady {
            network_only: rng.coin(),
            for_ns: rng.between(SECOND, 40 * SECOND),
        });
        plan(faults.strangers, &mut |_| Trouble::StrangerRemoves);
        plan(faults.strangers, &mut |_| Trouble::FactsChange);
    }

    pub(super) fn trouble(&mut self, trouble: Trouble) {
        self.log.note(self.world.now, || format!("trouble: {trouble:?}"));
        match trouble {
            Trouble::AgentDies => self.kill_agent(),
            Trouble::AgentStarts => self.start_agent(),
            Trouble::RuntimeLeaves { for_ns } => {
                if !self.runtime_away {
                    self.runtime_calls_fail();
                    self.runtime_away = true;
                    self.plan_in(for_ns, Happening::Trouble(Trouble::RuntimeReturns));
                }
            }
            Trouble::RuntimeReturns => {
                self.runtime_away = false;
                self.hint_soon(Hint::Everything);
            }
            Trouble::DiskFills { for_ns } => {
                self.disk_full = true;
                self.plan_in(for_ns, Happening::Trouble(Trouble::DiskHasRoom));
            }
            Trouble::DiskHasRoom => self.disk_full = false,
            Trouble::ClockJumps { by_ns } => {
                self.world.wall_shift += by_ns;
                self.jumped = Some(self.world.now);
            }
            Trouble::SandboxBreaks => {
                let ready: Vec<_> =
                    self.world.sandboxes.iter().filter(|(_, s)| s.ready).map(|(id, _)| id.clone()).collect();
                if !ready.is_empty() {
                    let id = self.rng.pick(&ready).clone();
                    self.world.break_sandbox(&id);
                }
            }
            Trouble::ContainerIsLost => {
                if let Some(id) = self.any_live()
                    && let Some(container) = self.world.containers.get_mut(&id)
                {
                    container.lost = true;
                }
            }
            Trouble::Reboot => {
                self.kill_agent();
                self.world.reboot();
            }
            Trouble::NotReady { network_only, for_ns } => {
                self.not_ready = Some(network_only);
                self.plan_in(for_ns, Happening::Trouble(Trouble::ReadyAgain));
            }
            Trouble::ReadyAgain => self.not_ready = None,
            Trouble::StrangerRemoves => {
                if let Some(id) = self.any_live() {
                    if let Some(container) = self.world.containers.get(&id) {
                        self.check.robbed(&container.uid.clone());
                    }
                    // Refused while it is being started, which is as good.
                    let _ = self.world.remove_container(&id);
                }
            }
            Trouble::FactsChange => {
                self.facts.node_ips.rotate_left(1);
                let facts = std::sync::Arc::new(self.facts.clone());
                self.post(self.generation, decide::Event::FactsChanged(facts));
            }
        }
    }

    fn any_live(&mut self) -> Option<model::ContainerId> {
        let live: Vec<_> =
            self.world.containers.values().filter(|c| c.is_live()).map(|c| c.id.clone()).collect();
        (!live.is_empty()).then(|| self.rng.pick(&live).clone())
    }

    pub(super) fn run_task(&mut self, number: usize) {
        let Some(task) = self.tasks.get_mut(number).and_then(Option::take) else { return };
        self.log.note(self.world.now, || format!("task: {}", task.words()));
        match task {
            Task::Put { source, pod, scripts } => {
                self.world.scripts.extend(scripts);
                let pod = if source == Source::Api { self.admitted(pod) } else { Some(pod) };
                let Some(pod) = pod else { return };
                let name = pod.metadata.name.clone().unwrap_or_default();
                let old = self.sources.entry(source).or_default().insert(name, pod.clone());
                self.check.wanted(self.world.now, source, &pod, old.as_deref());
                self.source_changed(source);
            }
            Task::Remove { source, name } => {
                if let Some(old) = self.sources.entry(source).or_default().remove(&name) {
                    self.check.unwanted(self.world.now, &uid_of(&old));
                    self.source_changed(source);
                }
            }
            Task::ImageArrives(name) => self.world.image_arrives(&name),
            Task::Object { name, version } => {
                self.world.objects.set(&name, version);
                if self.mutant == Mutant::LosesObjectNews {
                    return;
                }
                let watching = self.agent.iter().flat_map(|agent| agent.watching.clone());
                for key in watching.filter(|key| key.name == name).collect::<Vec<_>>() {
                    self.errand_soon(Errand::LookAt(key));
                }
            }
        }
    }

    /// Takes every pod out of every source.
    pub fn remove_everything(&mut self) {
        for source in self.config.sources.clone() {
            for pod in self.sources.insert(source, Default::default()).unwrap_or_default().into_values() {
                self.check.unwanted(self.world.now, &uid_of(&pod));
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
        self.plan_in(wait, Happening::Deliver { generation, source });
    }
}

pub fn uid_of(pod: &Pod) -> model::PodUid {
    pod.metadata.uid.as_deref().unwrap_or_default().into()
}
