//! Readings that contradict what the runtime said before, and are made again before anything follows from them.
//!
//! One pod is read by itself, as soon as that counts. Of many pods that wait at the same time each waits a little for the
//! others, and one complete reading serves them all: a runtime that shows nothing of a hundred pods, or lists a hundred
//! that it said to have removed, is asked once and not a hundred times.

use std::sync::Arc;
use std::time::Duration;

use model::observed::ObservedPod;
use model::{Mono, PodUid};

use super::{Context, observe};
use crate::effect::{LogLevel, TimerKey};
use crate::observation_guard::{ObservationGuard, shown_ids};
use crate::state::NodeState;

/// From so many pods on everything is read at once.
const BATCH_THRESHOLD: usize = 4;
/// How long the first of many waits for the others.
const BATCH_WINDOW: Duration = Duration::from_secs(1);

/// A reading of the pod was not believed: another one is made when it can be.
pub(super) fn schedule_confirmation(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    let Some(entry) = state.pods.get_mut(uid) else { return };
    entry.observation_request.wanted = Some(cx.now.mono);
    if !entry.observation_request.in_flight
        && let Some(at) = entry.observation_guard.confirm_at()
    {
        wait_until(state, cx, uid, at);
    }
}

/// The pod has to be read, and that does not hurry.
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
    // Another reading may have come in between.
    let due: Vec<PodUid> = due.filter(|uid| still_waits(state, uid)).cloned().collect();
    state.confirmations.retain(|_, at| *at > now);
    // Who is not known as a pod yet is not read alone.
    let unknown = due.iter().any(|uid| !state.pods.contains_key(uid));
    if due.len() >= BATCH_THRESHOLD || unknown {
        observe::request_full_observation(state, cx);
    } else {
        due.iter().for_each(|uid| observe::retry_observation(state, cx, uid));
    }
    set_timer(state, cx);
}

fn still_waits(state: &NodeState, uid: &PodUid) -> bool {
    match state.pods.get(uid) {
        Some(entry) => entry.observation_request.wanted.is_some() && !entry.observation_request.in_flight,
        None => state.unclaimed_guards.contains_key(uid),
    }
}

/// What a complete reading shows of a pod that no source has claimed yet (`None`: nothing), against what was known of it.
/// Gives what is to be kept, if anything is.
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
