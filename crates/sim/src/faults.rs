//! How the world misbehaves, and until when. Rates are per thousand.

use decide::{Effect, NodeState};
use model::PodUid;

use crate::rng::Rng;
use crate::time::{MILLI, Nanos, SECOND};

#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// After this time there are no faults.
    pub until: Nanos,
    /// A call is refused without effect.
    pub refused: u64,
    /// A call has its effect, but its caller gets an error.
    pub fails_applied: u64,
    /// A call is not answered before its deadline; it may have its effect before or after that.
    pub hangs: u64,
    /// The connection breaks while the runtime starts a container: the caller hears nothing more, and the container
    /// starts seconds later.
    pub starts_cut: u64,
    /// A call takes seconds.
    pub slow: u64,
    pub reading_fails: u64,
    pub reading_slow: u64,
    /// A reading lacks a part of a pod, or shows the state before the last calls were answered.
    pub false_readings: u64,
    pub hint_lost: u64,
    pub hint_twice: u64,
    pub hint_unknown: u64,
    pub pull_fails: u64,
    /// The dispatcher is late.
    pub stall: u64,
    /// The agent is killed while it carries out the effects of a step.
    pub dies: u64,
    /// After a start the sources take long to deliver their first set (0 or 1).
    pub late_sources: u64,
    /// An outcome is delivered a second time, later.
    pub twice: u64,
    /// The API server refuses a call (403, 422).
    pub api_refuses: u64,
    /// The API server is busy, and may send a Retry-After (429, 500, 503).
    pub api_busy: u64,
    /// The API server reports a conflict (409) although no other object has the name.
    pub api_conflicts: u64,
    /// How often the runtime goes away. This field and those up to `reboots` count scheduled faults.
    pub outages: u64,
    pub disk_full: u64,
    pub clock_jumps: u64,
    pub broken_sandboxes: u64,
    pub lost_containers: u64,
    pub reboots: u64,
    /// The runtime answers that it, or its network, is not ready.
    pub not_ready: u64,
    /// Something outside removes a running container.
    pub removals_by_others: u64,
    /// How often the API server can't be reached.
    pub partitions: u64,
    /// How often a volume is force-detached from the node.
    pub detached: u64,
    /// How often the record of a pod's volume can't be read for a while.
    pub broken_records: u64,
    /// The CSI driver reports an unmount that it has not done.
    pub driver_lies: u64,
    /// Hundreds of hints arrive, about known and unknown pods.
    pub storms: u64,
    /// Every call of this pod hangs.
    pub stuck_pod: Option<PodUid>,
    /// The runtime always refuses these statuses.
    pub refused_statuses: Option<RefusedStatuses>,
    /// What the runtime removes of these pods stays in its lists for ever.
    pub removed_but_listed_of: Vec<PodUid>,
    /// The Node object has extreme numbers, strings and times.
    pub extreme: bool,
    /// Every step that plans a pod of this name panics.
    pub panicking_pod: Option<String>,
}

/// Which statuses of a pod the runtime refuses, over restarts and after everything else works again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RefusedStatuses {
    pub uid: PodUid,
    pub sandboxes: bool,
    pub containers: bool,
}

/// How one call behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallBehavior {
    Works,
    Refused,
    AppliedButFails,
    Hangs { effect: Option<LateEffect> },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LateEffect {
    BeforeDeadline,
    AfterDeadline,
}

impl Faults {
    /// Whether steps that plan this pod panic. Its UID begins with its name.
    pub fn makes_steps_panic(&self, uid: &PodUid) -> bool {
        self.panicking_pod.as_ref().is_some_and(|name| uid.as_str().split('-').next() == Some(name))
    }

    /// At the edge of the step, as if planning the pod panicked.
    pub fn inject_test_panic(&self, state: &mut NodeState, effects: &[Effect]) {
        let planned = effects.iter().filter(|effect| matches!(effect, Effect::RunPlan { .. }));
        let starts = |uid: &PodUid| state.pods.get(uid).is_some_and(|e| e.lifecycle().may_start());
        let found = planned.filter_map(Effect::pod).find(|uid| self.makes_steps_panic(uid) && starts(uid));
        if let Some(uid) = found {
            state.pod_in_step = Some(uid.clone());
            panic!("a mistake on purpose");
        }
    }

    pub fn none() -> Self {
        Self::default()
    }

    /// Each kind is on or off, and has its own rate, so that some seeds test one fault alone.
    pub fn seeded(rng: &mut Rng, until: Nanos) -> Self {
        // It has its own random numbers, so that it does not change the other numbers of a seed.
        let mut own = Rng::new(rng.clone().number() ^ 0x6c69_6573);
        let false_readings = if own.per_mille(600) { own.below(200) } else { 0 };
        let starts_cut = if own.per_mille(600) { own.below(200) } else { 0 };
        let mut some = |high: u64| if rng.per_mille(600) { rng.below(high) } else { 0 };
        Self {
            until,
            refused: some(120),
            fails_applied: some(80),
            hangs: some(80),
            starts_cut,
            slow: some(100),
            reading_fails: some(150),
            reading_slow: some(200),
            false_readings,
            hint_lost: some(1000),
            hint_twice: some(300),
            hint_unknown: some(200),
            pull_fails: some(300),
            stall: some(100),
            dies: some(30),
            late_sources: some(2),
            twice: some(200),
            api_refuses: some(80),
            api_busy: some(150),
            api_conflicts: some(60),
            outages: some(4),
            disk_full: some(3),
            clock_jumps: some(5),
            broken_sandboxes: some(4),
            lost_containers: some(3),
            reboots: some(2),
            not_ready: some(3),
            removals_by_others: some(3),
            partitions: some(3),
            storms: some(3),
            // Only in scenarios with volumes.
            detached: 0,
            broken_records: 0,
            driver_lies: 0,
            stuck_pod: None,
            refused_statuses: None,
            removed_but_listed_of: Vec::new(),
            extreme: false,
            panicking_pod: None,
        }
    }

    /// The statuses of one pod are always refused.
    pub fn refused_statuses(rng: &mut Rng, until: Nanos, uid: PodUid) -> Self {
        let (sandboxes, containers) = *rng.pick(&[(true, false), (false, true), (true, true)]);
        let refused_statuses = Some(RefusedStatuses { uid, sandboxes, containers });
        Self { until, refused_statuses, ..Self::none() }
    }

    /// Whether the runtime refuses the status of this pod's sandboxes.
    pub fn refuses_sandbox(&self, uid: &PodUid) -> bool {
        self.refused_statuses.as_ref().is_some_and(|refused| refused.sandboxes && refused.uid == *uid)
    }

    /// Whether the runtime refuses the status of this pod's containers.
    pub fn refuses_container(&self, uid: &PodUid) -> bool {
        self.refused_statuses.as_ref().is_some_and(|refused| refused.containers && refused.uid == *uid)
    }

    /// A pod that can't reach its wanted state while the runtime refuses its statuses.
    pub fn has_refused_statuses(&self, uid: &PodUid) -> bool {
        self.refused_statuses.as_ref().is_some_and(|refused| refused.uid == *uid)
    }

    /// Every rate with its name for `--only`. The numbers of scheduled faults are not among them, because each such
    /// fault is a part of its own.
    pub fn rates(&mut self) -> [(&'static str, &mut u64); 20] {
        [
            ("refused", &mut self.refused),
            ("fails-applied", &mut self.fails_applied),
            ("hangs", &mut self.hangs),
            ("slow", &mut self.slow),
            ("starts-cut", &mut self.starts_cut),
            ("reading-fails", &mut self.reading_fails),
            ("reading-slow", &mut self.reading_slow),
            ("reading-lies", &mut self.false_readings),
            ("hint-lost", &mut self.hint_lost),
            ("hint-twice", &mut self.hint_twice),
            ("hint-unknown", &mut self.hint_unknown),
            ("pull-fails", &mut self.pull_fails),
            ("stall", &mut self.stall),
            ("dies", &mut self.dies),
            ("late-sources", &mut self.late_sources),
            ("twice", &mut self.twice),
            ("api-refuses", &mut self.api_refuses),
            ("api-busy", &mut self.api_busy),
            ("api-conflicts", &mut self.api_conflicts),
            ("driver-lies", &mut self.driver_lies),
        ]
    }

    pub fn active(&self, now: Nanos) -> bool {
        now < self.until
    }

    fn happens(&self, rng: &mut Rng, now: Nanos, rate: u64) -> bool {
        rate > 0 && self.active(now) && rng.per_mille(rate)
    }

    pub fn call(&self, rng: &mut Rng, now: Nanos, uid: &PodUid, may_hang: bool) -> CallBehavior {
        if may_hang && self.active(now) && self.stuck_pod.as_ref() == Some(uid) {
            return CallBehavior::Hangs { effect: None };
        }
        if self.happens(rng, now, self.refused) {
            return CallBehavior::Refused;
        }
        if self.happens(rng, now, self.fails_applied) {
            return CallBehavior::AppliedButFails;
        }
        if may_hang && self.happens(rng, now, self.hangs) {
            let effects = [None, Some(LateEffect::BeforeDeadline), Some(LateEffect::AfterDeadline)];
            return CallBehavior::Hangs { effect: *rng.pick(&effects) };
        }
        CallBehavior::Works
    }

    /// How long one hop of a call takes.
    pub fn latency(&self, rng: &mut Rng, now: Nanos) -> Nanos {
        if self.happens(rng, now, self.slow) {
            return rng.between(200 * MILLI, 20 * SECOND);
        }
        let shape = rng.below(100);
        match shape {
            0..60 => rng.between(MILLI / 10, 3 * MILLI),
            60..95 => rng.between(3 * MILLI, 60 * MILLI),
            _ => rng.between(60 * MILLI, 900 * MILLI),
        }
    }

    /// How long it takes to stage or publish a volume, or to walk through it: long enough that a pod may go meanwhile.
    pub fn volume_latency(&self, rng: &mut Rng, now: Nanos) -> Nanos {
        match self.active(now) && rng.per_mille(250) {
            true => rng.between(SECOND, 20 * SECOND),
            false => self.latency(rng, now),
        }
    }

    pub fn reading_fails(&self, rng: &mut Rng, now: Nanos, uid: Option<&PodUid>) -> bool {
        (self.active(now) && self.stuck_pod.is_some() && self.stuck_pod.as_ref() == uid)
            || self.happens(rng, now, self.reading_fails)
    }

    pub fn reading_hop(&self, rng: &mut Rng, now: Nanos) -> Nanos {
        if self.happens(rng, now, self.reading_slow) {
            return rng.between(100 * MILLI, 15 * SECOND);
        }
        rng.between(MILLI / 10, 4 * MILLI)
    }

    pub fn cuts_start(&self, rng: &mut Rng, now: Nanos) -> bool {
        self.happens(rng, now, self.starts_cut)
    }
    /// How long the runtime needs for a start whose caller is gone: mostly as long as a reading, or seconds.
    pub fn late_start(&self, rng: &mut Rng) -> Nanos {
        if rng.coin() { rng.below(200 * MILLI) } else { rng.below(8 * SECOND) }
    }
    pub fn falsifies_reading(&self, rng: &mut Rng, now: Nanos) -> bool {
        self.happens(rng, now, self.false_readings)
    }
    pub fn driver_lies(&self, rng: &mut Rng, now: Nanos) -> bool {
        self.happens(rng, now, self.driver_lies)
    }
    pub fn loses_hint(&self, rng: &mut Rng, now: Nanos) -> bool {
        self.happens(rng, now, self.hint_lost)
    }
    pub fn doubles_hint(&self, rng: &mut Rng, now: Nanos) -> bool {
        self.happens(rng, now, self.hint_twice)
    }
    pub fn invents_hint(&self, rng: &mut Rng, now: Nanos) -> bool {
        self.happens(rng, now, self.hint_unknown)
    }
    pub fn pull_fails(&self, rng: &mut Rng, now: Nanos) -> bool {
        self.happens(rng, now, self.pull_fails)
    }
    pub fn repeats_outcome(&self, rng: &mut Rng, now: Nanos) -> bool {
        self.happens(rng, now, self.twice)
    }
    pub fn api_refuses(&self, rng: &mut Rng, now: Nanos) -> bool {
        self.happens(rng, now, self.api_refuses)
    }
    pub fn api_is_busy(&self, rng: &mut Rng, now: Nanos) -> bool {
        self.happens(rng, now, self.api_busy)
    }
    pub fn api_conflicts(&self, rng: &mut Rng, now: Nanos) -> bool {
        self.happens(rng, now, self.api_conflicts)
    }
    pub fn stalls(&self, rng: &mut Rng, now: Nanos) -> bool {
        self.happens(rng, now, self.stall)
    }
    pub fn dies(&self, rng: &mut Rng, now: Nanos) -> bool {
        self.happens(rng, now, self.dies)
    }
}
