//! Sandboxes and containers whose status the runtime does not give, although it lists them.
//!
//! ```text
//!   reading lacks a status ──> said once (log, Event), shown in `why` ──> asked again: 1 s, 2 s, 4 s .. 5 min
//!          ^                                                                  │
//!          └──────────────────────── refused again ──────────────────────────┴──> given: the retry is over
//! ```
//!
//! This concerns one pod. A pod that is to run waits if the missing status decides what is to run
//! ([`ObservedPod::lacks_needed_status`]). A pod that is to go is stopped and removed by its list entries.

use std::collections::BTreeSet;

use model::observed::ObservedPod;
use model::pod::ContainerKind;
use model::why::{Cause, Why};
use model::{ApiEvent, Mono, PodUid};

use super::Context;
use super::observation_requests::request_observation;
use crate::back_off::status_delay;
use crate::effect::LogLevel;
use crate::plan::PodPlan;
use crate::state::{MissingStatusRetry, NodeState, PodEntry};

/// Prefix of the keys in [`crate::ledger::Ledger::recorded_event_keys`] that are about a missing status.
const ANNOUNCED: &str = "no status of ";

/// Updates the retry of missing statuses after an observation of the pod, and logs and records Events about them.
pub(super) fn update_missing_status_retry(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    let Some(entry) = state.pods.get_mut(uid) else { return };
    let Some(reading) = entry.observed.as_ref() else { return };
    let before = entry.status_retry.take();
    if reading.pod.missing_status.is_empty() {
        if before.is_some() {
            entry.ledger.recorded_event_keys.retain(|key| !key.starts_with(ANNOUNCED));
            cx.log(LogLevel::Info, Some(uid), "the container runtime gives every status of the pod again");
        }
        return;
    }
    let (read_at, pod) = (reading.at, reading.pod.clone());
    entry.status_retry = Some(next_retry(before, &pod, read_at, cx.now.mono));
    for (id, answer) in &pod.missing_status {
        tell_once(state, cx, uid, (&pod, id, answer));
    }
}

/// The retry after an observation that began at `read_at`.
fn next_retry(
    before: Option<MissingStatusRetry>,
    pod: &ObservedPod,
    read_at: Mono,
    now: Mono,
) -> MissingStatusRetry {
    let ids: BTreeSet<String> = pod.missing_status.keys().cloned().collect();
    // Another missing sandbox or container starts with the shortest delay again.
    let before = before.filter(|retry| ids.is_subset(&retry.ids));
    match before {
        // Nothing was asked since.
        Some(retry) if read_at <= retry.read_at || read_at < retry.at => retry,
        retry => {
            let tries = retry.map_or(0, |retry| retry.tries).saturating_add(1);
            MissingStatusRetry { read_at, ids, tries, at: now.plus(status_delay(tries)) }
        }
    }
}

/// The same for pods that no source has claimed, after a full observation. They have no timer: the first full
/// observation after the delay asks again.
pub(super) fn update_unclaimed_retries(state: &mut NodeState, cx: &mut Context, read_at: Mono) {
    let mut before = std::mem::take(&mut state.unclaimed_status_retries);
    let missing = state.unclaimed.iter().filter(|(_, pod)| !pod.missing_status.is_empty());
    for (uid, pod) in missing {
        let retry = before.remove(uid);
        let told = retry.as_ref().map(|retry| retry.ids.clone()).unwrap_or_default();
        for (id, answer) in pod.missing_status.iter().filter(|(id, _)| !told.contains(*id)) {
            let message = format!(
                "the container runtime does not return the status of {} ({id}) of pod {}, wanted by no source: {answer}",
                name_of(pod, id),
                pod.full_name,
            );
            cx.log(LogLevel::Warn, Some(uid), message);
        }
        let retry = next_retry(retry, pod, read_at, cx.now.mono);
        state.unclaimed_status_retries.insert(uid.clone(), retry);
    }
}

fn tell_once(
    state: &mut NodeState,
    cx: &mut Context,
    uid: &PodUid,
    (pod, id, answer): (&ObservedPod, &str, &str),
) {
    let Some(entry) = state.pods.get_mut(uid) else { return };
    if !entry.ledger.recorded_event_keys.insert(format!("{ANNOUNCED}{id}")) {
        return;
    }
    let of = name_of(pod, id);
    let message = format!("the container runtime does not return the status of {of} ({id}): {answer}");
    cx.log(LogLevel::Warn, Some(uid), message);
    let container = pod.containers.iter().find(|c| c.id.as_str() == id);
    let event = match container {
        None => {
            ApiEvent::warning("FailedPodSandBoxStatus", format!("Unable to get pod sandbox status: {answer}"))
        }
        Some(container) => {
            let kind =
                entry.view().container(&container.name).map_or(ContainerKind::Regular, |(kind, _)| kind);
            let event = ApiEvent::warning("FailedSync", format!("error determining status: {answer}"));
            event.for_container(kind, &container.name)
        }
    };
    cx.record(state, uid, event);
}

/// `sandbox <id>` or `container <name>`
fn name_of(pod: &ObservedPod, id: &str) -> String {
    let container = pod.containers.iter().find(|c| c.id.as_str() == id);
    container.map_or_else(|| format!("sandbox {id}"), |c| format!("container {}", c.name))
}

/// Requests the status again when it is due, unless an observation is under way.
pub(super) fn ask_when_due(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    let due = |e: &PodEntry| {
        let observing = e.observation_request.in_flight || e.observation_request.wanted.is_some();
        !observing && e.status_retry.as_ref().is_some_and(|retry| retry.at <= cx.now.mono)
    };
    if state.pods.get(uid).is_some_and(due) {
        request_observation(state, cx, uid);
    }
}

/// Whether nothing can be started for the pod before the runtime gives a status.
pub(super) fn missing_status_is_needed(entry: &PodEntry) -> bool {
    let reading = entry.observed.as_ref();
    entry.lifecycle().may_start() && reading.is_some_and(|reading| reading.pod.lacks_needed_status())
}

/// Adds to a plan that a status is missing, and when it is requested again.
pub(super) fn add_to_plan(plan: &mut PodPlan, entry: &PodEntry, observed: &ObservedPod, now: Mono) {
    let at = entry.status_retry.as_ref().map(|retry| retry.at).filter(|at| *at > now);
    for (id, answer) in &observed.missing_status {
        let cause = Cause::StatusMissing { of: name_of(observed, id), message: answer.clone() };
        plan.why.push(Why { container: None, cause, next_attempt: at });
    }
    if let Some(at) = at.filter(|_| !observed.missing_status.is_empty()) {
        plan.wake(at);
    }
}
