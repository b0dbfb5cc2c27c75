//! Derives probe results from the outcomes of attempts.

use model::pod::PodView;
use model::probe::{ProbeKind, ProbeOutcome};
use model::{ApiEvent, ContainerId};

use super::timing::Timing;
use super::workers::stops_probing;
use super::{PodProbes, ProbeResult, Worker, probe_of};

/// The effect of an outcome.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ProbeUpdate {
    pub event: Option<ApiEvent>,
    /// The result changed.
    pub changed: bool,
}

/// Records the outcome of an attempt. `None` if the attempt is not in flight any more.
pub fn record_outcome(
    probes: &mut PodProbes,
    pod: &PodView,
    (container, kind): (&str, ProbeKind),
    id: &ContainerId,
    outcome: &ProbeOutcome,
) -> Option<ProbeUpdate> {
    let worker = probes.workers.get_mut(&(container.to_owned(), kind))?;
    let asked = worker.in_flight.filter(|_| worker.container.as_ref() == Some(id))?;
    worker.in_flight = None;
    let (list, spec) = pod.container(container)?;
    let timing = Timing::of(probe_of(spec, kind)?);
    let good = is_good(outcome);
    if asked.early && good != Some(true) {
        // An attempt before the first scheduled time counts only if it succeeds.
        return Some(ProbeUpdate::default());
    }
    let event = event(kind, outcome).map(|event| event.for_container(list, container));
    let changed = good.is_some_and(|good| worker.count_result(kind, good, &timing));
    Some(ProbeUpdate { event, changed })
}

fn is_good(outcome: &ProbeOutcome) -> Option<bool> {
    match outcome {
        ProbeOutcome::Success | ProbeOutcome::Warning { .. } => Some(true),
        ProbeOutcome::Failure { .. } => Some(false),
        ProbeOutcome::Errored { .. } => None,
    }
}

fn event(kind: ProbeKind, outcome: &ProbeOutcome) -> Option<ApiEvent> {
    let kind = kind.as_str();
    Some(match outcome {
        ProbeOutcome::Success => return None,
        ProbeOutcome::Warning { output } => {
            ApiEvent::warning("ProbeWarning", format!("{kind} probe warning: {output}"))
        }
        ProbeOutcome::Failure { output } => {
            ApiEvent::warning("Unhealthy", format!("{kind} probe failed: {output}"))
        }
        ProbeOutcome::Errored { state, message } => {
            let state = state.as_str();
            let text = format!("{kind} probe errored and resulted in {state} state: {message}");
            ApiEvent::warning("Unhealthy", text)
        }
    })
}

impl Worker {
    /// Counts an outcome. `true`: the result changed.
    fn count_result(&mut self, kind: ProbeKind, good: bool, timing: &Timing) -> bool {
        if self.last_result == Some(good) {
            self.result_run = self.result_run.saturating_add(1);
        } else {
            self.last_result = Some(good);
            self.result_run = 1;
        }
        let threshold = if good { timing.successes } else { timing.failures };
        if self.result_run < threshold {
            return false;
        }
        let verdict = Some(ProbeResult::of(good));
        let changed = self.result != verdict || !self.has_result;
        self.result = verdict;
        self.has_result = true;
        if stops_probing(kind, verdict) {
            self.on_hold = true;
            self.result_run = 0;
            self.clear_attempt();
        }
        changed
    }
}
