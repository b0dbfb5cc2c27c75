//! One agent process: its state, its inbox, its timers. All of it is lost when the agent is killed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use decide::{Effect, Epoch, Event, NodeState, TimerKey, TimerQueue};
use model::cluster::ObjectKey;
use model::pod::Source;
use model::{Mono, PodUid, Wall};

use super::attach::InUse;
use super::background_calls::BackgroundCall;
use super::executor::PlanRun;
use super::scheduled_faults::ScheduledFault;
use super::{Mutant, SimEvent, Simulation};
use crate::record::Start;
use crate::time::{AgentClock, MICRO, MILLI, Nanos, SECOND};
use crate::workload::costly_classes;

/// The delay before a restart after an unexpected end: `RestartSec` of the systemd unit.
const RESTART_AFTER: Nanos = 10 * SECOND;

pub struct Agent {
    pub state: NodeState,
    pub clock: AgentClock,
    pub(super) inbox: VecDeque<Event>,
    /// An event that makes the agent take its next inbox entry is scheduled.
    pub(super) awake: bool,
    pub(super) timers: TimerQueue,
    pub(super) plans: BTreeMap<(PodUid, Epoch), PlanRun>,
    /// Objects of the cluster that it watches.
    pub(super) watching: BTreeSet<ObjectKey>,
    /// It watches its certificate requests.
    pub(super) follows_requests: bool,
    /// Unknown pods whose volumes are being torn down, and what could not be torn down.
    pub(super) sweeping: BTreeSet<PodUid>,
    pub(super) sweep_problems: Vec<String>,
    /// Volumes in use that the Node object does not list yet.
    pub(super) in_use: InUse,
}

/// Outcomes that may be delivered twice, because the second is still true.
fn may_repeat(event: &Event) -> bool {
    !matches!(
        event,
        Event::Started | Event::PodSetDelivered { .. } | Event::PodChanged { .. } | Event::PodRemoved { .. } | Event::Timer(_)
            // An observed object must not be older than the one before it: a watch keeps the order.
            | Event::ObjectObserved { .. }
            // Each question has exactly one answer, and sets are always delivered as they are.
            | Event::StorageRead { .. }
            | Event::ImagesListed(_)
            | Event::ImageRemoved { .. }
            | Event::TrustBundles(_)
            | Event::CertificateRequests(_)
            | Event::CsiDrivers(_)
            | Event::CsiDriversRegistered(_)
            | Event::CsiEnabled
            | Event::VolumeRequested { .. }
            | Event::FactsChanged(_)
            | Event::NodeObserved(_)
    )
}

impl Simulation {
    pub(super) fn start_agent(&mut self) {
        self.generation += 1;
        self.last_eviction = Default::default();
        let generation = self.generation;
        self.log.note(self.world.now, || format!("agent {generation} starts"));
        let start = Start {
            config: self.config.clone(),
            facts: self.facts.clone(),
            wall: self.world.wall(),
            probe_records: self.world.disk.probe_records.clone(),
            user_ids: self.world.disk.user_ids.clone(),
            panic_records: self.world.disk.panic_records.clone(),
        };
        let state = start.state();
        self.log.started(|| start);
        self.agent = Some(Agent {
            state,
            clock: AgentClock::new(self.world.now),
            inbox: VecDeque::new(),
            awake: false,
            timers: TimerQueue::default(),
            plans: BTreeMap::new(),
            watching: BTreeSet::new(),
            follows_requests: false,
            sweeping: BTreeSet::new(),
            sweep_problems: Vec::new(),
            in_use: InUse::default(),
        });
        self.post(generation, Event::Started);
        if self.faults.panicking_pod.is_some() {
            let source = self.config.sources[0];
            self.post_once(generation, Event::RuntimeClasses { source, classes: costly_classes() });
        }
        if self.config.sources.contains(&Source::Api) {
            let wait = self.rng.between(MILLI, SECOND);
            self.plan_in(
                wait,
                SimEvent::BackgroundCall { generation, background_call: BackgroundCall::Services },
            );
        }
        if self.has_storage_driver {
            self.show_storage();
        }
        self.schedule_node_event();
        for source in self.config.sources.clone() {
            let late = self.faults.late_sources > 0 && self.faults.active(self.world.now);
            let wait = if late { self.rng.below(40 * SECOND) } else { self.rng.below(200 * MILLI) };
            self.plan_in(wait, SimEvent::Deliver { generation, source });
        }
    }

    /// Kill -9: what was decided but not done is lost; calls on their way to the runtime may or may not arrive.
    pub(super) fn kill_agent(&mut self) {
        if self.agent.is_none() {
            return;
        }
        let down = match self.rng.below(3) {
            0 => self.rng.between(20 * MILLI, 500 * MILLI),
            1 => self.rng.between(SECOND, 5 * SECOND),
            _ => self.rng.between(5 * SECOND, 40 * SECOND),
        };
        self.agent_ended(down);
    }

    /// The agent starts again after `down`.
    fn agent_ended(&mut self, down: Nanos) {
        self.agent = None;
        self.log.note(self.world.now, || format!("agent is killed, for {} ms", down / MILLI));
        self.abandon_calls(down);
        self.abandon_volume_calls(down);
        self.readings.clear();
        self.world.removed_but_listed.removals.clear();
        self.check.agent_killed(self.sources.get(&Source::Api));
        self.plan_in(down, SimEvent::ScheduledFault(ScheduledFault::AgentStarts));
    }

    /// Puts an event into the agent's inbox, unless it was meant for an earlier agent.
    pub(super) fn post(&mut self, generation: u32, event: Event) {
        if generation != self.generation {
            return;
        }
        if self.agent.is_some()
            && may_repeat(&event)
            && self.faults.repeats_outcome(&mut self.rng, self.world.now)
        {
            let wait = self.rng.between(MICRO, 5 * SECOND);
            self.plan_in(wait, SimEvent::Again { generation, event: Box::new(event.clone()) });
        }
        self.post_once(generation, event);
    }

    pub(super) fn post_once(&mut self, generation: u32, event: Event) {
        if generation != self.generation {
            return;
        }
        let Some(agent) = &mut self.agent else { return };
        agent.inbox.push_back(event);
        if !agent.awake {
            agent.awake = true;
            self.wake_soon();
        }
    }

    fn wake_soon(&mut self) {
        let stalls = self.faults.stalls(&mut self.rng, self.world.now);
        let wait =
            if stalls { self.rng.between(MILLI, 3 * SECOND) } else { self.rng.between(MICRO, 200 * MICRO) };
        let generation = self.generation;
        self.plan_in(wait, SimEvent::Dispatch { generation });
    }

    pub(super) fn dispatch(&mut self, generation: u32) {
        if generation != self.generation {
            return;
        }
        let Some(agent) = &mut self.agent else { return };
        let Some(event) = agent.inbox.pop_front() else {
            agent.awake = false;
            return;
        };
        self.step(event);
        let Some(agent) = &mut self.agent else { return };
        if agent.inbox.is_empty() {
            agent.awake = false;
        } else {
            self.wake_soon();
        }
    }

    fn step(&mut self, mut event: Event) {
        let (now, wall) = (self.world.now, self.world.wall());
        let lied_about = self.falsify_observation(&mut event);
        let Some(agent) = &mut self.agent else { return };
        self.events += 1;
        if let Event::PlanEnded { uid, epoch } = &event {
            agent.plans.remove(&(uid.clone(), *epoch));
        }
        self.check.event_delivered(&event);
        let at = agent.clock.now(now, wall);
        let kept = event.clone();
        let (mutant, poisoned) = (self.mutant, self.faults.panicking_pod.is_some());
        let state = &mut agent.state;
        let step = AssertUnwindSafe(|| {
            let effects = mutant.step(state, at, event);
            self.faults.inject_test_panic(state, &effects);
            effects
        });
        let effects = match catch_unwind(step) {
            Ok(effects) => effects,
            Err(_) if poisoned && agent.state.pod_in_step.is_some() => return self.panicked(&kept, wall),
            Err(cause) => resume_unwind(cause),
        };
        self.log.step(now, at, &kept, &effects, &agent.state);
        self.check.stepped(&agent.state, at, &effects);
        self.check.no_plan_from_false_list(&lied_about, &effects);
        let cut =
            self.faults.dies(&mut self.rng, now).then(|| self.rng.below(effects.len() as u64 + 1) as usize);
        self.carry_out(effects, cut);
    }

    /// As in the engine: a record is written, the process ends, and the service manager restarts it.
    fn panicked(&mut self, event: &Event, wall: Wall) {
        let Some(agent) = &self.agent else { return };
        let record = agent.state.panic_record(event.kind(), "a mistake on purpose", wall);
        let records = std::mem::take(&mut self.world.disk.panic_records);
        self.world.disk.panic_records = decide::set_aside::append_panic_record(records, record);
        self.agent_ended(RESTART_AFTER);
    }

    fn carry_out(&mut self, effects: Vec<Effect>, cut: Option<usize>) {
        for effect in effects.into_iter().take(cut.unwrap_or(usize::MAX)) {
            self.perform(effect);
        }
        if cut.is_some() {
            self.kill_agent();
        }
    }

    pub(super) fn set_timer(&mut self, key: TimerKey, at: Option<Mono>) {
        let Some(agent) = &mut self.agent else { return };
        if self.mutant == Mutant::ForgetsLogs && matches!(key, TimerKey::MeasureLog(_)) {
            return;
        }
        if self.mutant == Mutant::ForgetsFigures && matches!(key, TimerKey::NodeFigures(_)) {
            return;
        }
        if self.mutant == Mutant::DropsTimers {
            return;
        }
        agent.timers.set(key, at);
        let Some(due) = at.map(|at| agent.clock.world_time(at)) else { return };
        let late = self.rng.below(2 * MILLI);
        let generation = self.generation;
        self.plan_at(due.saturating_add(late), SimEvent::Timers { generation });
    }

    /// Each timer schedules its own event, so a timer not taken here fires with its own event.
    pub(super) fn timers_due(&mut self, generation: u32) {
        let now = self.world.now;
        while generation == self.generation {
            let Some(agent) = &mut self.agent else { return };
            let Some(key) = agent.timers.take_due(agent.clock.reached(now)) else { return };
            self.step(Event::Timer(key));
        }
    }

    pub(super) fn deliver(&mut self, generation: u32, source: Source) {
        if source == Source::Api && self.api_unreachable {
            // The source's pods are listed when the API server can be reached again.
            return;
        }
        let pods = self.sources.get(&source).map(|set| set.values().cloned().collect()).unwrap_or_default();
        self.post(generation, Event::PodSetDelivered { source, pods });
    }
}
