//! One run from a seed to a verdict.
//!
//! ```text
//!   chaos: pods come and go, things go wrong ──> quiet: nothing does any more; everything must settle (K8)
//!       ──> planning again changes nothing (K7) ──> every pod is taken out; nothing of them may be left (K8)
//! ```

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use decide::event::Hint;
use decide::{Effect, Event};
use model::PodUid;
use model::k8s::Pod;
use model::observed::{Observation, Scope};

use crate::check::{Violation, nothing_left, unsettled};
use crate::drive::{Mutant, Simulation};
use crate::record;
use crate::report::Log;
use crate::rng::Rng;
use crate::scenario::{Scenario, ScenarioParts};
use crate::time::{Nanos, SECOND};
use crate::workload::is_extreme;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Profile {
    /// Pods are added and removed, programs and images fail; node and agent have no faults.
    Calm,
    /// All faults may happen.
    #[default]
    Faults,
    /// As `Faults`, with few pods and for seconds only: many seeds in a short time.
    Short,
    /// Simple pods, and one whose every call hangs (K10).
    Stuck,
    /// As `Faults`, with pods of the API that have claims, and a CSI driver.
    Storage,
    /// As `Storage`, and pods get the volume that they share as a device.
    Devices,
    /// As `Faults`, with pods of the API that have certificates, and signers that are late, deny or lose requests.
    Certificates,
    /// As `Faults`, with logs that are rotated.
    Logs,
    /// As `Faults`, with pods of the API that request more than the node has, some of them critical.
    Crowded,
    /// Pods use more memory than there is.
    Pressure,
    /// As `Faults`, with few pods and a small filesystem for images: those that nothing uses are removed.
    Images,
    /// Simple pods, one whose statuses the runtime always refuses, and agents that are killed (K8, K10).
    Refused,
    /// Simple pods, agents that are killed, and a runtime that keeps listing what it has reported as removed (`few
    /// removals`).
    Ghosts,
    /// As `Short`, or with simple pods only; and every step that plans the pods of one name panics.
    Poisoned,
    /// Simple pods, and some whose numbers, strings and times are as extreme as the API allows.
    Extreme,
}

impl Profile {
    pub const ALL: [Profile; 15] = [
        Profile::Calm,
        Profile::Faults,
        Profile::Short,
        Profile::Stuck,
        Profile::Storage,
        Profile::Devices,
        Profile::Certificates,
        Profile::Logs,
        Profile::Crowded,
        Profile::Pressure,
        Profile::Images,
        Profile::Refused,
        Profile::Ghosts,
        Profile::Poisoned,
        Profile::Extreme,
    ];

    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|p| p.word() == word)
    }
    pub fn word(self) -> &'static str {
        match self {
            Profile::Calm => "calm",
            Profile::Faults => "faults",
            Profile::Short => "short",
            Profile::Stuck => "stuck",
            Profile::Storage => "storage",
            Profile::Devices => "devices",
            Profile::Certificates => "certificates",
            Profile::Logs => "logs",
            Profile::Crowded => "crowded",
            Profile::Pressure => "pressure",
            Profile::Images => "images",
            Profile::Refused => "refused",
            Profile::Ghosts => "ghosts",
            Profile::Poisoned => "poisoned",
            Profile::Extreme => "extreme",
        }
    }
    /// How long everything may take to settle. It depends on back-offs of a minute (crashes) and five minutes (pulls),
    /// and on calls that hang for four.
    fn bound(self) -> Nanos {
        match self {
            Profile::Calm => 420 * SECOND,
            Profile::Faults
            | Profile::Short
            | Profile::Storage
            | Profile::Devices
            | Profile::Logs
            | Profile::Crowded
            | Profile::Pressure
            | Profile::Images
            | Profile::Poisoned => 900 * SECOND,
            // A request that was lost before the agent saw it is given up after a quarter of an hour.
            Profile::Certificates => 1200 * SECOND,
            Profile::Stuck | Profile::Refused | Profile::Ghosts | Profile::Extreme => 600 * SECOND,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Options {
    pub profile: Profile,
    pub mutant: Mutant,
    /// Print every event with its effects.
    pub print: bool,
    pub digest: bool,
    /// Keep every event, for [`crate::record`].
    pub record: bool,
    /// Stop after so many events.
    pub steps: Option<u64>,
    /// Leave out all other parts of the scenario.
    pub only: Option<ScenarioParts>,
}

#[derive(Debug)]
pub struct Outcome {
    pub seed: u64,
    pub profile: Profile,
    pub events: u64,
    pub agents: u32,
    pub digest: u64,
    /// Simulated time from the last fault until everything was settled.
    pub settled_after: Nanos,
    pub failure: Option<Failure>,
    pub record: Vec<record::LogLine>,
    only: Option<ScenarioParts>,
}

impl Outcome {
    /// One command that does the same again and shows every event.
    pub fn replay_command(&self) -> String {
        let words: Vec<_> = self.only.iter().flatten().map(String::as_str).collect();
        let only = if self.only.is_some() { format!(" --only {}", words.join(",")) } else { String::new() };
        format!("cargo run -p sim -- replay {} --profile {}{only}", self.seed, self.profile.word())
    }
}

/// A broken invariant, with what led to it.
#[derive(Debug)]
pub struct Failure {
    pub violation: Violation,
    pub at: Nanos,
    pub tail: String,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seed, profile) = (self.seed, self.profile.word());
        let Some(failure) = &self.failure else {
            return write!(
                f,
                "seed {seed} ({profile}): good, {} events, {} agents",
                self.events, self.agents
            );
        };
        let Violation { invariant, message } = &failure.violation;
        let secs = failure.at as f64 / SECOND as f64;
        write!(
            f,
            "seed {seed} ({profile}) breaks {invariant} at {secs:.3} s: {message}\n\
             the last of {} events:\n{}\nreplay it with: {}",
            self.events,
            failure.tail,
            self.replay_command()
        )
    }
}

/// Limit on events per run: more means that events trigger each other in a loop.
const STORM: u64 = 60_000;
/// An agent may ask this often for the removal of what the runtime lists for ever. A run lasts half an hour at most.
const FEW_REMOVALS: u32 = 8;
/// Long enough to tell a back-off from a halt.
const QUIET_AT_LEAST: Nanos = 100 * SECOND;
const LOOK_EVERY: Nanos = 5 * SECOND;

/// The driver has its own random numbers: leaving out a part of the scenario changes no other one.
const DRIVER: u64 = 0x6472_6976_6572;

pub fn scenario_of(seed: u64, options: &Options) -> Scenario {
    let mut scenario = Scenario::seeded(&mut Rng::new(seed), options.profile);
    if let Some(only) = &options.only {
        scenario.keep(only);
    }
    scenario
}

pub fn run(seed: u64, options: &Options) -> Outcome {
    let scenario = scenario_of(seed, options);
    let during = scenario.during;
    let log = Log::new(options.print, options.digest, options.record);
    let mut sim = Simulation::new(scenario, Rng::new(seed ^ DRIVER), options.mutant, log);
    let limit = options.steps.unwrap_or(u64::MAX);
    // A panic in a decision is a violation too, and is reported with its seed and events.
    let run = AssertUnwindSafe(|| run_phases(&mut sim, options.profile, during, limit));
    let settled_after = catch_unwind(run).unwrap_or_else(|cause| {
        let text = cause.downcast_ref::<String>().cloned();
        let text = text.or_else(|| cause.downcast_ref::<&str>().map(|s| s.to_string()));
        sim.check.violate("no panic", text.unwrap_or_default());
        0
    });
    let failure = sim.check.violation.clone().map(|violation| Failure {
        violation,
        at: sim.world.now,
        tail: sim.log.tail(),
    });
    let mut record = sim.log.record.take().unwrap_or_default();
    if let (Some(failure), true) = (&failure, options.record) {
        let Violation { invariant, message } = failure.violation.clone();
        record.push(record::LogLine::End { world: failure.at, invariant: invariant.into(), message });
    }
    Outcome {
        seed,
        profile: options.profile,
        events: sim.events,
        agents: sim.generation,
        digest: sim.log.digest.unwrap_or_default(),
        settled_after,
        failure,
        record,
        only: options.only.clone(),
    }
}

fn run_phases(sim: &mut Simulation, profile: Profile, during: Nanos, limit: u64) -> Nanos {
    let only_poison = profile == Profile::Poisoned && sim.faults.until == 0;
    if only_poison || matches!(profile, Profile::Stuck | Profile::Refused | Profile::Ghosts) {
        check_that_others_run(sim);
    }
    while sim.world.now < during && may_go_on(sim, limit) {
        let next = (sim.world.now + LOOK_EVERY).min(during);
        sim.run_until(next);
    }
    let quiet_from = sim.world.now;
    if may_go_on(sim, limit) {
        sim.run_until(quiet_from + QUIET_AT_LEAST);
    }
    wait_for(sim, profile.bound(), limit, |sim| match &sim.agent {
        Some(agent) => {
            // Nothing is checked of a pod whose planning panics, or of an extreme pod, while it is in a source.
            let wanted = |uid: &PodUid| {
                let of = |pod: &Arc<Pod>| pod.metadata.uid.as_deref() == Some(uid.as_str());
                sim.sources.values().any(|set| set.values().any(of))
            };
            let odd = |uid: &PodUid| (sim.faults.makes_steps_panic(uid) || is_extreme(uid)) && wanted(uid);
            let promised = |uid: &&PodUid| !sim.faults.has_refused_statuses(uid) && !odd(uid);
            unsettled(&sim.world, &agent.state, &sim.sources, sim.check.uids().filter(promised))
        }
        None => Some("the agent is down".into()),
    });
    let settled_after = sim.world.now - quiet_from;
    if may_go_on(sim, limit) {
        check_that_replanning_is_idle(sim);
        sim.remove_everything();
        wait_for(sim, profile.bound(), limit, leftovers);
        if may_go_on(sim, limit)
            && sim.world.removed_but_listed.of.is_empty()
            && let Some(agent) = &sim.agent
        {
            sim.check.forgot_everything(&agent.state);
        }
    }
    settled_after
}

fn may_go_on(sim: &mut Simulation, limit: u64) -> bool {
    if sim.events > STORM {
        sim.check.violate("K10", format!("{} events: a storm", sim.events));
    }
    if let Some((id, times)) =
        sim.world.removed_but_listed.removals.iter().find(|(_, times)| **times > FEW_REMOVALS)
    {
        let message = format!("{id} was removed {times} times by one agent, and is listed all the same");
        sim.check.violate("few removals", message);
    }
    sim.check.violation.is_none() && sim.events < limit
}

fn leftovers(sim: &Simulation) -> Option<String> {
    if let Some(volume) = sim.world.storage.staged.keys().next() {
        return Some(format!("volume {volume} is staged for nobody"));
    }
    if let Some(record) = sim.world.storage.records.keys().next() {
        return Some(format!("the record {record} is left"));
    }
    if let Some(path) = sim.world.storage.links.keys().chain(sim.world.storage.maps.keys()).next() {
        return Some(format!("{path}, of a device, is left"));
    }
    if let Some(volume) = sim.world.storage.attachments.any() {
        return Some(format!("volume {volume} is attached for nobody"));
    }
    if sim.agent.as_ref().is_some_and(|agent| agent.state.csi_volumes.remembered() > 0) {
        return Some("something is at work on a volume".into());
    }
    let known = |uid: &model::PodUid| {
        !sim.world.removed_but_listed.any_of(uid)
            && sim.agent.as_ref().is_some_and(|a| a.state.pods.contains_key(uid))
    };
    sim.check.uids().find_map(|uid| {
        let left = nothing_left(&sim.world, uid).or_else(|| known(uid).then(|| "it is known".to_owned()));
        left.map(|what| format!("of pod {uid}, which nobody wants: {what}"))
    })
}

/// Runs until nothing is open, and reports K8 if that takes too long.
fn wait_for(sim: &mut Simulation, bound: Nanos, limit: u64, open: impl Fn(&Simulation) -> Option<String>) {
    let end = sim.world.now + bound;
    while may_go_on(sim, limit) {
        let Some(problem) = open(sim) else { return };
        if sim.world.now >= end {
            let secs = bound / SECOND;
            return sim.check.violate("K8", format!("after {secs} s without faults, {problem}"));
        }
        let next = sim.world.now + LOOK_EVERY;
        sim.run_until(next);
    }
}

/// How long a pod may take to run while another one is stuck.
const PROMPT: Nanos = 15 * SECOND;
/// How long it takes until a pod whose planning panics is set aside: three starts and the time between them.
const SET_ASIDE: Nanos = 45 * SECOND;

fn check_that_others_run(sim: &mut Simulation) {
    let refused = sim.faults.refused_statuses.as_ref().map(|refused| refused.uid.clone());
    let poison = sim.faults.panicking_pod.is_some();
    let stuck_pod = if poison { Some("p0-1".into()) } else { sim.faults.stuck_pod.clone().or(refused) };
    sim.run_until(SECOND + PROMPT + if poison { SET_ASIDE } else { 0 });
    let late: Vec<_> = sim
        .check
        .uids()
        .filter(|uid| Some(*uid) != stuck_pod.as_ref() && !sim.world.anything_live(uid))
        .cloned()
        .collect();
    if !late.is_empty() {
        sim.check.violate("K10", format!("{late:?} do not run, while only {stuck_pod:?} is stuck"));
    }
}

/// K7: on a copy of a settled state, unchanged facts and a full replan start no plan.
fn check_that_replanning_is_idle(sim: &mut Simulation) {
    let Some(agent) = &sim.agent else { return };
    let mut state = agent.state.clone();
    let mut clock = agent.clock.clone();
    let (now, wall) = (sim.world.now, sim.world.wall());
    let at = clock.mono(now);
    let seen = Observation { at, scope: Scope::All, pods: sim.instant_reading() };
    // Pods that wait for a reading, a plan or a timer that is due have work to do.
    let idle = |e: &&decide::state::PodEntry| e.plan.is_none() && e.timer.is_none_or(|due| due > at);
    let before: std::collections::BTreeMap<_, _> = state
        .pods
        .values()
        .filter(idle)
        .filter_map(|e| Some((e.view().uid.clone(), e.fresh_observation()?.clone())))
        .collect();
    let mut runs = Vec::new();
    for event in [Event::Hint(Hint::Everything), Event::Observed(seen.clone())] {
        let effects = sim.mutant.step(&mut state, clock.now(now, wall), event);
        runs.extend(effects.into_iter().filter_map(|e| match e {
            Effect::RunPlan { uid, .. } => Some(uid),
            _ => None,
        }));
    }
    // Programs that exit and restart may just have done so.
    let unchanged = |uid: &model::PodUid| {
        let seen = seen.pods.iter().find(|p| p.uid == *uid);
        before.get(uid).is_some_and(|old| seen.map_or(old.is_empty(), |p| p == old))
    };
    if let Some(uid) = runs.into_iter().find(unchanged) {
        sim.check.violate("K7", format!("pod {uid} is as it should be, and was planned again"));
    }
}
