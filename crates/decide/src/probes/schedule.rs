//! Starts the attempts that are due, and computes the next time.

use model::pod::PodView;
use model::probe::{ProbeCall, ProbeKind};
use model::{ContainerId, Mono};

use super::timing::{AttemptSchedule, Timing};
use super::{InFlight, PodProbes, ProbeResult, Worker, call, probe_of};

/// How often an attempt is repeated if it can't be carried out.
pub const ATTEMPTS: u32 = 3;

/// An attempt that begins now.
#[derive(Clone, PartialEq, Debug)]
pub struct DueProbe {
    pub container: String,
    pub kind: ProbeKind,
    pub id: ContainerId,
    /// The call, or why it can't be made.
    pub call: Result<ProbeCall, String>,
}

/// Starts the attempts that are due and returns the time of the next one. `news`: the pod's status changed, so
/// containers that are not ready are probed at once instead of at the next scheduled time.
pub fn schedule(
    probes: &mut PodProbes,
    pod: &PodView,
    pod_ip: &str,
    now: Mono,
    news: bool,
) -> (Vec<DueProbe>, Option<Mono>) {
    let mut due = Vec::new();
    let mut wake: Option<Mono> = None;
    let keys: Vec<_> = probes.workers.keys().cloned().collect();
    for key in keys {
        let (name, kind) = (key.0.as_str(), key.1);
        let started = probes.is_started(name);
        let Some(worker) = probes.workers.get_mut(&key) else { continue };
        let spec = pod.container(name).and_then(|(_, c)| probe_of(c, kind).map(|p| (c, p)));
        let (Some((container, probe)), Some(id)) = (spec, worker.container.clone()) else { continue };
        if !worker.may_ask(kind, started) {
            worker.clear_attempt();
            continue;
        }
        let timing = Timing::of(probe);
        let grid = AttemptSchedule::new(&pod.uid, name, kind, timing.period);
        let wanted = news && kind == ProbeKind::Readiness && worker.result != Some(ProbeResult::Success);
        if worker.in_flight.is_some() {
            worker.attempt_requested |= wanted;
            continue;
        }
        let next = worker.next_attempt(kind, &grid, wanted, now);
        if next > now {
            wake = Some(wake.map_or(next, |earlier| earlier.min(next)));
            continue;
        }
        worker.begin_attempt(kind, &grid, &timing, now);
        let call = call::call(pod, container, probe, pod_ip);
        due.push(DueProbe { container: name.to_owned(), kind, id, call });
    }
    (due, wake)
}

impl Worker {
    /// Only the startup probe runs until the container has started, and only the other probes run afterwards.
    fn may_ask(&self, kind: ProbeKind, started: bool) -> bool {
        self.running && !self.on_hold && started == (kind != ProbeKind::Startup)
    }

    fn next_attempt(&mut self, kind: ProbeKind, grid: &AttemptSchedule, wanted: bool, now: Mono) -> Mono {
        let soonest = self.earliest_attempt.max(now);
        let next = match self.next {
            Some(next) => next,
            // The first success of a startup or readiness probe is waited for, so it is not delayed. A liveness probe
            // succeeds initially and can wait.
            None if kind != ProbeKind::Liveness && !self.found_running => {
                self.off_schedule = true;
                soonest
            }
            None => grid.from(soonest),
        };
        let next = if (wanted || self.attempt_requested) && soonest < next {
            self.off_schedule = true;
            soonest
        } else {
            next
        };
        self.attempt_requested = false;
        self.next = Some(next);
        next
    }

    fn begin_attempt(&mut self, kind: ProbeKind, grid: &AttemptSchedule, timing: &Timing, now: Mono) {
        let early = self.off_schedule && kind == ProbeKind::Startup;
        self.next = Some(if self.off_schedule && !early {
            // Skips a scheduled time that follows too closely.
            grid.from(now.plus(timing.period / 2))
        } else {
            grid.after(now)
        });
        self.off_schedule = false;
        self.in_flight = Some(InFlight { early });
    }
}
