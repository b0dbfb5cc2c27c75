//! Tables and scripts: a pod, what is seen of it, answers, and time.

mod answers;
mod calls;
mod instances;
mod kills;
mod numbers;
mod scripts;
mod turns;

use std::time::Duration;

use model::observed::{ContainerState, ObservedContainer, ObservedPod};
use model::pod::{PodView, Source};
use model::probe::{ProbeKind, ProbeOutcome};
use model::{ContainerId, Mono, Now, Wall, k8s};
use serde_json::{Value, json};

use super::results::ProbeUpdate;
use super::{DueProbe, PodProbes, ProbeInputs, ProbeResult, record_outcome, schedule, update_workers};
use crate::lifecycle::{Lifecycle, Termination};
use crate::status::sample::{EPOCH, at, instance, observed, view};

pub const KINDS: [ProbeKind; 3] = ProbeKind::ALL;

pub fn field(kind: ProbeKind) -> &'static str {
    match kind {
        ProbeKind::Startup => "startupProbe",
        ProbeKind::Readiness => "readinessProbe",
        ProbeKind::Liveness => "livenessProbe",
    }
}

/// A probe that could be carried out, with these numbers.
pub fn probe(numbers: Value) -> Value {
    let mut probe = json!({"tcpSocket": {"port": 80}, "periodSeconds": 10});
    for (key, value) in numbers.as_object().into_iter().flatten() {
        probe[key] = value.clone();
    }
    probe
}

/// A pod of one container `c` with these probes.
pub fn with_probes(probes: &[(ProbeKind, Value)]) -> PodView {
    pod_of(json!({"containers": [container("c", probes)]}))
}

pub fn container(name: &str, probes: &[(ProbeKind, Value)]) -> Value {
    let mut container = json!({"name": name});
    for (kind, numbers) in probes {
        container[field(*kind)] = probe(numbers.clone());
    }
    container
}

pub fn pod_of(spec: Value) -> PodView {
    view(json!({}), spec, Value::Null, Source::File)
}

pub fn running(name: &str, attempt: u32) -> ObservedContainer {
    instance(name, attempt, ContainerState::Running, 0)
}

pub fn terminating() -> Lifecycle {
    Lifecycle::Terminating(Termination { since: Mono::ZERO, grace_secs: 30 })
}

pub fn failure() -> ProbeOutcome {
    ProbeOutcome::failure("no")
}

/// One pod's probes with everything around them, in a time of its own.
pub struct Bed {
    pub probes: PodProbes,
    pub pod: PodView,
    pub seen: Option<ObservedPod>,
    pub lifecycle: Lifecycle,
    pub status: Option<k8s::PodStatus>,
    pub agent_started: Wall,
    pub now: Now,
    /// When the timer was last said to ring.
    pub wake: Option<Mono>,
}

impl Bed {
    /// The agent has been up for long, and nothing of the pod runs.
    pub fn new(pod: PodView) -> Self {
        Self {
            probes: PodProbes::default(),
            pod,
            seen: None,
            lifecycle: Lifecycle::Syncing,
            status: None,
            agent_started: Wall(EPOCH.0 - 1_000_000_000_000),
            now: at(0),
            wake: None,
        }
    }

    /// The same with the first instance of `c` running since the beginning of time.
    pub fn running(pod: PodView) -> Self {
        let mut bed = Self::new(pod);
        bed.see(vec![running("c", 0)]);
        bed
    }

    pub fn see(&mut self, containers: Vec<ObservedContainer>) {
        self.seen = Some(observed(containers));
        self.attend();
    }

    pub fn attend(&mut self) {
        let around = ProbeInputs {
            pod: &self.pod,
            observed: self.seen.as_ref(),
            lifecycle: &self.lifecycle,
            status: self.status.as_ref(),
            runtime_name: "containerd",
            agent_started: self.agent_started,
            now: self.now,
        };
        update_workers(&mut self.probes, &around);
    }

    pub fn go(&mut self, news: bool) -> Vec<DueProbe> {
        let (due, wake) = schedule(&mut self.probes, &self.pod, "10.0.0.1", self.now.mono, news);
        self.wake = wake;
        due
    }

    pub fn pass(&mut self, time: Duration) {
        self.now = Now { mono: self.now.mono.plus(time), wall: self.now.wall.plus(time) };
    }

    pub fn answer(&mut self, kind: ProbeKind, outcome: &ProbeOutcome) -> Option<ProbeUpdate> {
        let id = self.probes.worker("c", kind).and_then(|w| w.container.clone());
        record_outcome(
            &mut self.probes,
            &self.pod,
            ("c", kind),
            &id.unwrap_or(ContainerId::new("-")),
            outcome,
        )
    }

    /// Makes an attempt, whatever time it is, and gives its answer.
    pub fn ask(&mut self, kind: ProbeKind, outcome: &ProbeOutcome) -> ProbeUpdate {
        let worker = self.probes.workers.get_mut(&("c".to_owned(), kind)).expect("a worker");
        worker.in_flight = Some(super::InFlight { early: false });
        self.answer(kind, outcome).expect("somebody waits for it")
    }

    pub fn verdict(&self, kind: ProbeKind) -> Option<ProbeResult> {
        self.probes.result("c", kind)
    }

    /// Lives for `seconds`; every attempt takes `takes` and is answered by `answer` (`None`: not at all). Gives when
    /// (in milliseconds) which attempts were made.
    pub fn live(
        &mut self,
        seconds: u64,
        takes: Duration,
        mut answer: impl FnMut(ProbeKind, u64) -> Option<ProbeOutcome>,
    ) -> Vec<(u64, ProbeKind)> {
        let end = self.now.mono.plus(Duration::from_secs(seconds));
        let mut attempts = Vec::new();
        let mut pending: Vec<(Mono, ProbeKind, ProbeOutcome)> = Vec::new();
        let mut news = true;
        loop {
            for due in self.go(news) {
                let millis = self.now.mono.as_duration().as_millis() as u64;
                attempts.push((millis, due.kind));
                if let Some(outcome) = answer(due.kind, millis) {
                    pending.push((self.now.mono.plus(takes), due.kind, outcome));
                }
            }
            pending.sort_by_key(|(at, ..)| *at);
            news = false;
            let answered = pending.first().map(|(at, ..)| *at);
            let Some(next) = answered.into_iter().chain(self.wake).min().filter(|next| *next < end) else {
                break;
            };
            self.pass(next.since(self.now.mono));
            if answered == Some(next) {
                let (_, kind, outcome) = pending.remove(0);
                let before = self.verdict(kind);
                self.answer(kind, &outcome);
                // A status that says something else is news to whoever is not ready.
                news = before != self.verdict(kind);
            }
        }
        self.pass(end.since(self.now.mono));
        attempts
    }
}
