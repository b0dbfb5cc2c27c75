//! The driver: takes what happens next, lets the agent step, and carries out its effects on the world. It stands where
//! the engine stands in the product, with a seeded order of events in the place of tasks.

mod agent;
mod attach;
mod calls;
pub mod cluster;
mod errands;
mod executor;
mod lies;
mod mutants;
mod reading;
mod signer;
mod storage;
pub(crate) mod trouble;
mod volumes;

use std::collections::BTreeMap;
use std::sync::Arc;

use decide::event::Hint;
use decide::{Effect, Event};
use model::ContainerId;
use model::k8s::Pod;
use model::pod::Source;

pub use agent::Agent;
use calls::{Call, CallId};
pub use calls::{Op, Value};
use errands::Errand;
pub use executor::LEAST_GRACE_SECS;
pub use mutants::Mutant;
use reading::{ReadStep, ReadingJob};
use trouble::Trouble;
use volumes::{VolumeCallRun, VolumeCallStep};

use crate::check::Checker;
use crate::faults::Faults;
use crate::queue::Queue;
use crate::report::Log;
use crate::rng::Rng;
use crate::scenario::Scenario;
use crate::time::{MICRO, MILLI, Nanos, SECOND};
use crate::workload::{Task, Workload};
use crate::world::{Change, Fortune, World};

pub(crate) enum Happening {
    Dispatch {
        generation: u32,
    },
    /// Some timer of the agent is due.
    Timers {
        generation: u32,
    },
    Apply(CallId),
    GraceOver(CallId),
    Reply(CallId),
    /// A call about a volume of the storage driver.
    Volume(VolumeCallStep),
    Read {
        job: u64,
        step: ReadStep,
    },
    Errand {
        generation: u32,
        errand: Errand,
    },
    Hint {
        generation: u32,
        hint: Hint,
    },
    /// Told a second time.
    Again {
        generation: u32,
        event: Box<Event>,
    },
    Fortune(Fortune),
    Deliver {
        generation: u32,
        source: Source,
    },
    Task(usize),
    Trouble(Trouble),
    /// Whoever attaches volumes has its turn.
    Controller,
    /// The signer of a certificate has its turn.
    Sign(String),
    /// Plan everything again on a copy of the state: nothing may come of it.
    Probe,
}

pub struct Simulation {
    pub(crate) world: World,
    pub(crate) agent: Option<Agent>,
    pub(crate) generation: u32,
    pub(crate) rng: Rng,
    pub(crate) faults: Faults,
    pub(crate) mutant: Mutant,
    pub(crate) check: Checker,
    pub(crate) log: Log,
    pub(crate) config: model::node::NodeConfig,
    pub(crate) facts: model::node::HostFacts,
    /// What each source has now, by pod name.
    pub(crate) sources: BTreeMap<Source, BTreeMap<String, Arc<Pod>>>,
    pub(crate) tasks: Vec<Option<Task>>,
    pub(crate) hints_by_id: bool,
    /// Whether there is a storage driver at all.
    pub(crate) stored: bool,
    pub(crate) runtime_away: bool,
    pub(crate) api_away: bool,
    pub(crate) disk_full: bool,
    /// The runtime says that it is not ready, or only (`true`) its network.
    pub(crate) not_ready: Option<bool>,
    /// When the wall clock was last set.
    pub(crate) jumped: Option<Nanos>,
    pub(crate) events: u64,
    queue: Queue<Happening>,
    calls: BTreeMap<CallId, Call>,
    volume_calls: BTreeMap<CallId, VolumeCallRun>,
    /// Stop calls that wait for their container's end.
    stopping: BTreeMap<ContainerId, Vec<CallId>>,
    readings: BTreeMap<u64, ReadingJob>,
    numbers: u64,
}

impl Simulation {
    pub fn new(scenario: Scenario, rng: Rng, mutant: Mutant, log: Log) -> Self {
        let Scenario { workload, troubles, faults, .. } = scenario;
        let Workload { config, facts, images, tasks, hints_by_id, attaches } = workload;
        let mut world = World::new();
        world.images = images;
        world.ghosts.of.extend(faults.ghosts_of.iter().cloned());
        world.storage.attachments.required = attaches;
        let sources = config.sources.iter().map(|s| (*s, BTreeMap::new())).collect();
        let mut sim = Self {
            world,
            agent: None,
            generation: 0,
            rng,
            faults,
            mutant,
            check: Checker::default(),
            log,
            config,
            facts,
            sources,
            tasks: Vec::new(),
            hints_by_id,
            stored: tasks.iter().any(|(_, task)| matches!(task, Task::Driver { .. })),
            runtime_away: false,
            api_away: false,
            disk_full: false,
            not_ready: None,
            jumped: None,
            events: 0,
            queue: Queue::default(),
            calls: BTreeMap::new(),
            volume_calls: BTreeMap::new(),
            stopping: BTreeMap::new(),
            readings: BTreeMap::new(),
            numbers: 0,
        };
        for (number, (at, task)) in tasks.into_iter().enumerate() {
            sim.tasks.push(Some(task));
            sim.plan_at(at, Happening::Task(number));
        }
        for (at, trouble) in troubles {
            sim.plan_at(at, Happening::Trouble(trouble));
        }
        sim.plan_in(SECOND, Happening::Probe);
        if attaches {
            sim.plan_in(SECOND, Happening::Controller);
        }
        sim.start_agent();
        sim
    }

    pub(crate) fn plan_at(&mut self, at: Nanos, what: Happening) {
        self.queue.plan(at.max(self.world.now), what);
    }

    pub(crate) fn plan_in(&mut self, wait: Nanos, what: Happening) {
        self.queue.plan(self.world.now.saturating_add(wait), what);
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Lets the world go on until then, or until an invariant is broken.
    pub fn run_until(&mut self, end: Nanos) {
        while self.check.violation.is_none() {
            let Some((at, what)) = self.queue.next_until(end) else { break };
            self.world.now = self.world.now.max(at);
            self.happen(what);
            self.drain_world();
        }
        if self.check.violation.is_none() {
            self.world.now = self.world.now.max(end);
        }
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Dispatch { generation } => self.dispatch(generation),
            Happening::Timers { generation } => self.timers_due(generation),
            Happening::Apply(call) => self.apply(call),
            Happening::GraceOver(call) => self.grace_over(call),
            Happening::Reply(call) => self.reply(call),
            Happening::Volume(step) => self.volume_call_goes_on(step),
            Happening::Read { job, step } => self.read_step(job, step),
            Happening::Errand { generation, errand } => self.run_errand(generation, errand),
            Happening::Hint { generation, hint } => self.post(generation, Event::Hint(hint)),
            Happening::Again { generation, event } => self.post_once(generation, *event),
            Happening::Fortune(Fortune::Ends { id, code }) => {
                self.world.ends(&id, code);
                self.check.container_ended(&self.world, &id);
            }
            Happening::Deliver { generation, source } => self.deliver(generation, source),
            Happening::Task(number) => self.run_task(number),
            Happening::Trouble(trouble) => self.trouble(trouble),
            Happening::Controller => self.controller_turn(),
            Happening::Sign(request) => self.sign(request),
            Happening::Probe => self.probe(),
        }
    }

    /// What the world wants to do or tell after something happened in it.
    fn drain_world(&mut self) {
        for (at, fortune) in std::mem::take(&mut self.world.fortunes) {
            self.plan_at(at, Happening::Fortune(fortune));
        }
        let changes = std::mem::take(&mut self.world.changes);
        if changes.is_empty() {
            return;
        }
        self.finish_stops();
        self.check.world_changed(&self.world, &changes);
        for change in changes {
            self.tell(change);
        }
    }

    fn tell(&mut self, change: Change) {
        let now = self.world.now;
        if self.agent.is_none() || self.runtime_away || self.faults.loses_hint(&mut self.rng, now) {
            return;
        }
        let hint = match change {
            Change::Images => Hint::Images,
            Change::Runtime { id, .. } if self.hints_by_id => Hint::Id(id),
            Change::Runtime { uid, .. } => Hint::Pod(uid),
        };
        let times = 1 + u32::from(self.faults.doubles_hint(&mut self.rng, now));
        for _ in 0..times {
            self.hint_soon(hint.clone());
        }
        if self.faults.invents_hint(&mut self.rng, now) {
            let id = format!("{:016x}", self.rng.number());
            self.hint_soon(Hint::Id(id));
        }
    }

    pub(crate) fn hint_soon(&mut self, hint: Hint) {
        let wait = self.rng.between(100 * MICRO, 30 * MILLI);
        self.plan_in(wait, Happening::Hint { generation: self.generation, hint });
    }

    pub(crate) fn perform(&mut self, effect: Effect) {
        self.look_at_files(&effect);
        match effect {
            Effect::Observe(scope) => self.begin_reading(scope),
            Effect::CheckRuntime { .. } => self.errand_soon(Errand::CheckRuntime),
            Effect::Run { uid, epoch, stages } => self.begin_plan(uid, epoch, stages),
            Effect::Cancel { uid, epoch } => self.cancel_plan(&uid, epoch),
            Effect::InspectImage { image } => self.errand_soon(Errand::Inspect(image)),
            Effect::PullImage { pull, .. } => self.begin_pull(pull),
            Effect::WatchObject { key } => {
                if let Some(agent) = &mut self.agent {
                    agent.watching.insert(key.clone());
                }
                self.errand_soon(Errand::LookAt(key));
            }
            Effect::UnwatchObject { key } => {
                if let Some(agent) = &mut self.agent {
                    agent.watching.remove(&key);
                }
            }
            Effect::ReadStorage { key } => self.errand_soon(Errand::ReadStorage(key)),
            Effect::RequestToken { wanted } => self.errand_soon(Errand::Token(wanted)),
            Effect::FollowCertificateRequests { .. } => self.follow_requests(),
            Effect::RequestCertificate { source, call, wanted } => {
                self.errand_soon(Errand::AskCertificate { source, call, wanted });
            }
            Effect::TellVolumesInUse { volumes } => self.tell_in_use(volumes),
            Effect::SetTimer { key, at } => self.set_timer(key, at),
            Effect::PublishStatus { uid, status } => {
                let incarnation = self.check.status_published(&self.world, &uid, &status);
                self.check.note(incarnation);
            }
            Effect::Forget { uid } => self.check.pod_forgotten(&uid),
            Effect::EnsureCgroups { specs } => {
                self.world.cgroups.extend(specs.into_iter().map(|s| s.name));
            }
            Effect::ListLeftovers => self.errand_soon(Errand::ListLeftovers),
            Effect::Sweep(sweep) => self.begin_sweep(sweep),
            Effect::CallApi(call) => self.call_api(call),
            Effect::RunProbe { uid, container, kind, id, .. } => {
                self.errand_soon(Errand::Probe { uid, container, kind, id });
            }
            Effect::KeepProbeRecord { uid, record } => self.world.disk.keep_probes(&uid, record),
            Effect::UpdateVolume { uid, volume } => self.errand_soon(Errand::UpdateVolume { uid, volume }),
            Effect::CallVolume { id, call } => self.call_volume(id, call),
            Effect::CancelVolumeCall { id } => self.cancel_volume_call(id),
            Effect::AnswerVolumeRequest { request, result } => self.volume_answered(request, result),
            // Its pods have no limits of local storage, so that none is measured.
            Effect::MeasureDisk { .. } => {}
            // No credential plugins are configured in the simulated world.
            Effect::AskPlugins { .. } | Effect::NoteAccess { .. } => {}
            Effect::RecordEvent { .. }
            | Effect::RecordClaimEvent { .. }
            | Effect::RecordNodeEvent { .. }
            | Effect::TellDriverPeriods { .. }
            | Effect::AskDriver { .. }
            | Effect::FollowTrustBundles
            | Effect::Log { .. } => {}
        }
    }
}
