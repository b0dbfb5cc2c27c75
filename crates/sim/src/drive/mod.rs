//! The driver: takes the next event, runs a step of the agent, and carries out its effects on the world. It replaces
//! the engine of the product: a seeded order of events replaces the engine's tasks.

mod agent;
mod attach;
mod background_calls;
pub mod cluster;
mod executor;
mod false_readings;
mod images;
mod logs;
mod mutants;
mod node_figures;
mod reading;
pub(crate) mod scheduled_faults;
mod signer;
mod storage;
mod volumes;
mod world_calls;

use std::collections::BTreeMap;
use std::sync::Arc;

use decide::event::Hint;
use decide::{Effect, Event};
use model::ContainerId;
use model::k8s::Pod;
use model::pod::Source;

pub use agent::Agent;
use background_calls::BackgroundCall;
pub use executor::LEAST_GRACE_SECS;
pub use mutants::Mutant;
use reading::{ReadStep, ReadingJob};
use scheduled_faults::ScheduledFault;
use volumes::{VolumeCallRun, VolumeCallStep};
use world_calls::{Call, CallId};
pub use world_calls::{WorldCall, WorldCallOutput};

use crate::check::InvariantChecker;
use crate::faults::Faults;
use crate::queue::Queue;
use crate::report::Log;
use crate::rng::Rng;
use crate::scenario::Scenario;
use crate::time::{MICRO, MILLI, Nanos, SECOND};
use crate::workload::{Task, Workload};
use crate::world::{ProgramEvent, World, WorldChange};

pub(crate) enum SimEvent {
    Dispatch {
        generation: u32,
    },
    /// A timer of the agent is due.
    Timers {
        generation: u32,
    },
    Apply(CallId),
    GraceOver(CallId),
    Reply(CallId),
    /// A call about a volume of the CSI driver.
    Volume(VolumeCallStep),
    Read {
        job: u64,
        step: ReadStep,
    },
    BackgroundCall {
        generation: u32,
        background_call: BackgroundCall,
    },
    Hint {
        generation: u32,
        hint: Hint,
    },
    /// An event that is delivered a second time.
    Again {
        generation: u32,
        event: Box<Event>,
    },
    ProgramEvent(ProgramEvent),
    Deliver {
        generation: u32,
        source: Source,
    },
    Task(usize),
    ScheduledFault(ScheduledFault),
    /// The simulated attach/detach controller runs.
    Controller,
    /// The signer of a certificate runs.
    Sign(String),
    /// Plan everything again on a copy of the state: nothing may be started.
    CheckReplanning,
}

pub struct Simulation {
    pub(crate) world: World,
    pub(crate) agent: Option<Agent>,
    pub(crate) generation: u32,
    pub(crate) rng: Rng,
    pub(crate) faults: Faults,
    pub(crate) mutant: Mutant,
    pub(crate) check: InvariantChecker,
    pub(crate) log: Log,
    pub(crate) config: model::node::NodeConfig,
    pub(crate) facts: model::node::HostFacts,
    /// The current pods of each source, by pod name.
    pub(crate) sources: BTreeMap<Source, BTreeMap<String, Arc<Pod>>>,
    pub(crate) tasks: Vec<Option<Task>>,
    pub(crate) hints_by_id: bool,
    /// Whether the node has a CSI driver.
    pub(crate) has_storage_driver: bool,
    pub(crate) runtime_away: bool,
    pub(crate) api_unreachable: bool,
    pub(crate) disk_full: bool,
    /// The runtime reports that it, or (`true`) only its network, is not ready.
    pub(crate) not_ready: Option<bool>,
    /// When the wall clock was last set.
    pub(crate) jumped: Option<Nanos>,
    pub(crate) events: u64,
    queue: Queue<SimEvent>,
    calls: BTreeMap<CallId, Call>,
    volume_calls: BTreeMap<CallId, VolumeCallRun>,
    /// StopContainer calls that wait for their container's exit.
    stopping: BTreeMap<ContainerId, Vec<CallId>>,
    readings: BTreeMap<u64, ReadingJob>,
    numbers: u64,
    last_eviction: node_figures::LastEviction,
}

impl Simulation {
    pub fn new(scenario: Scenario, rng: Rng, mutant: Mutant, log: Log) -> Self {
        let Scenario { workload, scheduled_faults, faults, .. } = scenario;
        let Workload { config, facts, images, tasks, hints_by_id, attaches } = workload;
        let mut world = World::new();
        world.images = images;
        world.removed_but_listed.of.extend(faults.removed_but_listed_of.iter().cloned());
        world.storage.attachments.required = attaches;
        let sources = config.sources.iter().map(|s| (*s, BTreeMap::new())).collect();
        let mut sim = Self {
            world,
            agent: None,
            generation: 0,
            rng,
            faults,
            mutant,
            check: InvariantChecker::default(),
            log,
            config,
            facts,
            sources,
            tasks: Vec::new(),
            hints_by_id,
            has_storage_driver: tasks.iter().any(|(_, task)| matches!(task, Task::Driver { .. })),
            runtime_away: false,
            api_unreachable: false,
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
            last_eviction: Default::default(),
        };
        for (number, (at, task)) in tasks.into_iter().enumerate() {
            sim.tasks.push(Some(task));
            sim.plan_at(at, SimEvent::Task(number));
        }
        for (at, fault) in scheduled_faults {
            sim.plan_at(at, SimEvent::ScheduledFault(fault));
        }
        sim.plan_in(SECOND, SimEvent::CheckReplanning);
        if attaches {
            sim.plan_in(SECOND, SimEvent::Controller);
        }
        sim.start_agent();
        sim
    }

    pub(crate) fn plan_at(&mut self, at: Nanos, what: SimEvent) {
        self.queue.plan(at.max(self.world.now), what);
    }

    pub(crate) fn plan_in(&mut self, wait: Nanos, what: SimEvent) {
        self.queue.plan(self.world.now.saturating_add(wait), what);
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Runs the world until then, or until an invariant is broken.
    pub fn run_until(&mut self, end: Nanos) {
        while self.check.violation.is_none() {
            let Some((at, what)) = self.queue.next_until(end) else { break };
            self.world.now = self.world.now.max(at);
            self.handle(what);
            self.drain_world();
        }
        if self.check.violation.is_none() {
            self.world.now = self.world.now.max(end);
        }
    }

    fn handle(&mut self, what: SimEvent) {
        match what {
            SimEvent::Dispatch { generation } => self.dispatch(generation),
            SimEvent::Timers { generation } => self.timers_due(generation),
            SimEvent::Apply(call) => self.apply(call),
            SimEvent::GraceOver(call) => self.grace_over(call),
            SimEvent::Reply(call) => self.reply(call),
            SimEvent::Volume(step) => self.volume_call_goes_on(step),
            SimEvent::Read { job, step } => self.read_step(job, step),
            SimEvent::BackgroundCall { generation, background_call } => {
                self.run_background_call(generation, background_call)
            }
            SimEvent::Hint { generation, hint } => self.post(generation, Event::Hint(hint)),
            SimEvent::Again { generation, event } => self.post_once(generation, *event),
            SimEvent::ProgramEvent(ProgramEvent::Ends { id, code }) => {
                self.world.ends(&id, code);
                self.check.container_ended(&self.world, &id);
            }
            SimEvent::Deliver { generation, source } => self.deliver(generation, source),
            SimEvent::Task(number) => self.run_task(number),
            SimEvent::ScheduledFault(fault) => self.apply_scheduled_fault(fault),
            SimEvent::Controller => self.run_attach_controller(),
            SimEvent::Sign(request) => self.sign(request),
            SimEvent::CheckReplanning => self.check_replanning(),
        }
    }

    /// Schedules what the world wants to do or report after a change in it.
    fn drain_world(&mut self) {
        for (at, fortune) in std::mem::take(&mut self.world.program_events) {
            self.plan_at(at, SimEvent::ProgramEvent(fortune));
        }
        let changes = std::mem::take(&mut self.world.changes);
        if changes.is_empty() {
            return;
        }
        self.finish_stops();
        self.check.world_changed(&self.world, &changes);
        for change in changes {
            self.send_hint_about(change);
        }
    }

    fn send_hint_about(&mut self, change: WorldChange) {
        let now = self.world.now;
        if self.agent.is_none() || self.runtime_away || self.faults.loses_hint(&mut self.rng, now) {
            return;
        }
        let hint = match change {
            WorldChange::Images => Hint::Images,
            WorldChange::Runtime { id, .. } if self.hints_by_id => Hint::ContainerOrSandbox(id),
            WorldChange::Runtime { uid, .. } => Hint::Pod(uid),
        };
        let times = 1 + u32::from(self.faults.doubles_hint(&mut self.rng, now));
        for _ in 0..times {
            self.schedule_hint(hint.clone());
        }
        if self.faults.invents_hint(&mut self.rng, now) {
            let id = format!("{:016x}", self.rng.number());
            self.schedule_hint(Hint::ContainerOrSandbox(id));
        }
    }

    pub(crate) fn schedule_hint(&mut self, hint: Hint) {
        let wait = self.rng.between(100 * MICRO, 30 * MILLI);
        self.plan_in(wait, SimEvent::Hint { generation: self.generation, hint });
    }

    pub(crate) fn perform(&mut self, effect: Effect) {
        self.look_at_files(&effect);
        match effect {
            Effect::Observe(scope) => self.begin_reading(scope),
            Effect::CheckRuntime { .. } => self.schedule_background_call(BackgroundCall::CheckRuntime),
            Effect::RunPlan { uid, epoch, stages } => self.begin_plan(uid, epoch, stages),
            Effect::CancelPlan { uid, epoch } => self.cancel_plan(&uid, epoch),
            Effect::InspectImage { image } => self.schedule_background_call(BackgroundCall::Inspect(image)),
            Effect::PullImage { pull, .. } => self.begin_pull(pull),
            Effect::ListImages => self.schedule_background_call(BackgroundCall::ListImages),
            Effect::RemoveImage { image } => {
                if let Some(agent) = &self.agent {
                    let id = decide::images::split_key(&image).0;
                    self.check.image_removal_begins(&self.world, &agent.state, id);
                }
                // It takes its time to delete layers.
                let wait = self.rng.between(MILLI, 4 * SECOND);
                let background_call = BackgroundCall::RemoveImage(image);
                let generation = self.generation;
                self.plan_in(wait, SimEvent::BackgroundCall { generation, background_call });
            }
            // Pulls are not recorded.
            Effect::PrunePullRecords => {}
            Effect::WatchObject { key } => {
                if let Some(agent) = &mut self.agent {
                    agent.watching.insert(key.clone());
                }
                self.schedule_background_call(BackgroundCall::ReadObject(key));
            }
            Effect::UnwatchObject { key } => {
                if let Some(agent) = &mut self.agent {
                    agent.watching.remove(&key);
                }
            }
            Effect::ReadStorageObject { key } => {
                self.schedule_background_call(BackgroundCall::ReadStorageObject(key))
            }
            Effect::ReadNode => self.schedule_background_call(BackgroundCall::ReadNode),
            Effect::RequestToken { wanted } => self.schedule_background_call(BackgroundCall::Token(wanted)),
            Effect::FollowCertificateRequests { .. } => self.follow_requests(),
            Effect::RequestCertificate { source, call, wanted } => {
                self.schedule_background_call(BackgroundCall::AskCertificate { source, call, wanted });
            }
            Effect::ReportVolumesInUse { volumes } => self.set_volumes_in_use_to_send(volumes),
            Effect::SetTimer { key, at } => self.set_timer(key, at),
            Effect::StatusChanged { uid, status } => {
                let incarnation = self.check.status_published(&self.world, &uid, &status);
                self.check.add_violation(incarnation);
            }
            Effect::ForgetPod { uid } => self.check.pod_forgotten(&uid),
            Effect::EnsureCgroups { specs } => {
                self.check.node_cgroups_written(&self.config, &self.facts, &specs);
                let first = !specs.iter().any(|spec| self.world.cgroups.contains_key(&spec.name));
                if first || self.mutant != Mutant::LosesCgroupNews {
                    self.world.cgroups.extend(specs.into_iter().map(|s| (s.name, s.values)));
                }
                self.post_once(self.generation, Event::NodeCgroupsWritten { failures: Vec::new() });
            }
            Effect::UpdateReservedCgroups { specs } => {
                let results = specs.iter().map(|_| Ok(())).collect();
                self.world.cgroups.extend(specs.into_iter().map(|s| (s.name, s.values)));
                self.post_once(self.generation, Event::ReservedCgroupsWritten { results });
            }
            Effect::EndAgent { reason } => self.check.violate("cgroups", format!("the agent ends: {reason}")),
            Effect::ReadUserIds => self.schedule_background_call(BackgroundCall::ReadUserIds),
            Effect::ListPodArtifacts => self.schedule_background_call(BackgroundCall::ListPodArtifacts),
            Effect::Sweep(sweep) => self.begin_sweep(sweep),
            Effect::CallApi(call) => self.call_api(call),
            Effect::RunProbe { uid, container, kind, id, .. } => {
                self.schedule_background_call(BackgroundCall::Probe { uid, container, kind, id });
            }
            Effect::StoreProbeRecord { uid, record } => self.world.disk.keep_probes(&uid, record),
            Effect::UpdateVolume { uid, volume } => {
                self.schedule_background_call(BackgroundCall::UpdateVolume { uid, volume })
            }
            Effect::CallVolume { id, call } => self.call_volume(id, call),
            Effect::CancelVolumeCall { id } => self.cancel_volume_call(id),
            Effect::AnswerVolumeRequest { request, result } => self.volume_answered(request, result),
            Effect::CallLog { id, call, .. } => self.call_log(id, call),
            Effect::ReadNodeFigures { group } => {
                self.read_node_figures(group);
            }
            Effect::MeasurePods { call, kind: _, pods } => {
                self.schedule_background_call(BackgroundCall::PodFigures { call, pods });
            }
            // This kernel gives no notices.
            Effect::AwaitMemoryPressure { .. } => {}
            Effect::ReportNodePressure { .. } | Effect::RecordFiguresAge { .. } => {}
            Effect::RecordEvent { uid, event, .. } => self.event_recorded(&uid, &event),
            // The pods have no limits of local storage, so no disk usage is measured.
            Effect::MeasureDisk { .. } => {}
            // No credential plugins are configured in the simulated world.
            Effect::AskCredentialPlugins { .. } | Effect::RecordImageAccess { .. } => {}
            // Nobody watches the pods.
            Effect::PodChanged { .. } => {}
            Effect::RecordClaimEvent { .. }
            | Effect::RecordNodeEvent { .. }
            | Effect::SetDriverUpdatePeriods { .. }
            | Effect::RefreshDriverNodeInfo { .. }
            | Effect::WatchTrustBundles
            | Effect::Log { .. } => {}
        }
    }
}
