//! Repeats observations that contradict what the runtime reported before, before they are acted on.
//!
//! A single pod is observed by itself, as soon as the observation can confirm. If several pods need a confirmation
//! within one second, one full relist serves them all.

use std::sync::Arc;
use std::time::Duration;

use model::observed::ObservedPod;
use model::{Mono, PodUid};

use super::Context;
use super::observation_requests::{request_full_observation, retry_observation};
use crate::effect::{LogLevel, TimerKey};
use crate::observation_guard::{ObservationGuard, shown_ids};
use crate::state::NodeState;

/// From this many pods on, a full relist is made instead of one observation per pod.
const BATCH_THRESHOLD: usize = 4;
/// How long a confirmation waits for others to be batched with it.
const BATCH_WINDOW: Duration = Duration::from_secs(1);

/// An observation of the pod has to be confirmed: another one is made as soon as it can confirm.
pub(super) fn schedule_confirmation(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    let Some(entry) = state.pods.get_mut(uid) else { return };
    entry.observation_request.wanted = Some(cx.now.mono);
    if !entry.observation_request.in_flight
        && let Some(at) = entry.observation_guard.confirm_at()
    {
        wait_until(state, cx, uid, at);
    }
}

/// Requests an observation that is not urgent, so that it can be batched with others.
pub(super) fn request_batched_observation(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    let Some(entry) = state.pods.get_mut(uid) else { return };
    entry.observation_request.wanted = Some(cx.now.mono);
    if !entry.observation_request.in_flight {
        wait_until(state, cx, uid, cx.now.mono.plus(BATCH_WINDOW));
    }
}

fn wait_until(state: &mut NodeState, cx: &mut Context, uid: &PodUid, at: Mono) {
    state.confirmations.insert(uid.clone(), at);
    set_timer(state, cx);
}

fn set_timer(state: &NodeState, cx: &mut Context) {
    let Some(first) = state.confirmations.values().min() else { return };
    let soon = state.confirmations.values().filter(|at| **at <= first.plus(BATCH_WINDOW)).count();
    let at = if soon >= BATCH_THRESHOLD { first.plus(BATCH_WINDOW) } else { *first };
    cx.timer(TimerKey::ConfirmObservations, Some(at));
}

pub(super) fn due(state: &mut NodeState, cx: &mut Context) {
    let now = cx.now.mono;
    let due = state.confirmations.iter().filter(|(_, at)| **at <= now).map(|(uid, _)| uid);
    // Another observation may have come in between.
    let due: Vec<PodUid> = due.filter(|uid| still_waits(state, uid)).cloned().collect();
    state.confirmations.retain(|_, at| *at > now);
    // A pod that no source has claimed has no entry, so only a full relist can observe it.
    let unknown = due.iter().any(|uid| !state.pods.contains_key(uid));
    if due.len() >= BATCH_THRESHOLD || unknown {
        request_full_observation(state, cx);
    } else {
        due.iter().for_each(|uid| retry_observation(state, cx, uid));
    }
    set_timer(state, cx);
}

fn still_waits(state: &NodeState, uid: &PodUid) -> bool {
    match state.pods.get(uid) {
        Some(entry) => entry.observation_request.wanted.is_some() && !entry.observation_request.in_flight,
        None => state.unclaimed_guards.contains_key(uid),
    }
}

/// Compares a full relist with what was known of a pod that no source has claimed yet. `seen` is `None` if the relist
/// does not show the pod. Returns the observation to keep, if any.
pub(super) fn confirm_unclaimed(
    state: &mut NodeState,
    cx: &mut Context,
    at: Mono,
    known: Arc<ObservedPod>,
    seen: Option<Arc<ObservedPod>>,
) -> Option<Arc<ObservedPod>> {
    let shown = seen.as_deref().map(shown_ids).unwrap_or_default();
    let lacks: Vec<String> = shown_ids(&known)
        .into_iter()
        .filter(|id| !shown.contains(id))
        .map(|id| format!("{id} is no longer listed, and nobody removed it"))
        .collect();
    if lacks.is_empty() {
        state.unclaimed_guards.remove(&known.uid);
        return seen;
    }
    let witness: &mut ObservationGuard = state.unclaimed_guards.entry(known.uid.clone()).or_default();
    let told = witness.has_same_contradiction(&lacks);
    if !witness.needs_confirmation(&lacks, at, cx.now.mono) {
        state.unclaimed_guards.remove(&known.uid);
        return seen;
    }
    if !told {
        let message = format!(
            "the container runtime contradicts what it said of pod {}, wanted by no source; asking again: {}",
            known.full_name,
            lacks.join("; ")
        );
        cx.log(LogLevel::Warn, None, message);
    }
    if let Some(until) = witness.confirm_at() {
        wait_until(state, cx, &known.uid, until);
    }
    Some(known)
}
