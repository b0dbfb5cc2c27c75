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
use crate::state::NodeState;
use crate::witness::{Witness, shown_ids};

/// From so many pods on everything is read at once.
const MANY: usize = 4;
/// How long the first of many waits for the others.
const GATHER: Duration = Duration::from_secs(1);

/// A reading of the pod was not believed: another one is made when it can be.
pub(super) fn doubted(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    let Some(entry) = state.pods.get_mut(uid) else { return };
    entry.observing.wanted = Some(cx.now.mono);
    if !entry.observing.in_flight
        && let Some(at) = entry.witness.doubted_until()
    {
        wait_until(state, cx, uid, at);
    }
}

/// The pod has to be read, and that does not hurry.
pub(super) fn without_hurry(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    let Some(entry) = state.pods.get_mut(uid) else { return };
    entry.observing.wanted = Some(cx.now.mono);
    if !entry.observing.in_flight {
        wait_until(state, cx, uid, cx.now.mono.plus(GATHER));
    }
}

fn wait_until(state: &mut NodeState, cx: &mut Context, uid: &PodUid, at: Mono) {
    state.confirmations.insert(uid.clone(), at);
    set_timer(state, cx);
}

fn set_timer(state: &NodeState, cx: &mut Context) {
    let Some(first) = state.confirmations.values().min() else { return };
    let soon = state.confirmations.values().filter(|at| **at <= first.plus(GATHER)).count();
    let at = if soon >= MANY { first.plus(GATHER) } else { *first };
    cx.timer(TimerKey::Confirm, Some(at));
}

pub(super) fn due(state: &mut NodeState, cx: &mut Context) {
    let now = cx.now.mono;
    let due = state.confirmations.iter().filter(|(_, at)| **at <= now).map(|(uid, _)| uid);
    // Another reading may have come in between.
    let due: Vec<PodUid> = due.filter(|uid| still_waits(state, uid)).cloned().collect();
    state.confirmations.retain(|_, at| *at > now);
    // Who is not known as a pod yet is not read alone.
    let unknown = due.iter().any(|uid| !state.pods.contains_key(uid));
    if due.len() >= MANY || unknown {
        observe::want_everything(state, cx);
    } else {
        due.iter().for_each(|uid| observe::again(state, cx, uid));
    }
    set_timer(state, cx);
}

fn still_waits(state: &NodeState, uid: &PodUid) -> bool {
    match state.pods.get(uid) {
        Some(entry) => entry.observing.wanted.is_some() && !entry.observing.in_flight,
        None => state.unclaimed_witnesses.contains_key(uid),
    }
}

/// What a complete reading shows of a pod that no source has claimed yet (`None`: nothing), against what was known of it.
/// Gives what is to be kept, if anything is.
pub(super) fn unclaimed(
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
        .map(|id| format!("it lacks {id}, which was there and was not removed"))
        .collect();
    if lacks.is_empty() {
        state.unclaimed_witnesses.remove(&known.uid);
        return seen;
    }
    let witness: &mut Witness = state.unclaimed_witnesses.entry(known.uid.clone()).or_default();
    let told = witness.doubts_just(&lacks);
    if !witness.doubt(&lacks, at, cx.now.mono) {
        state.unclaimed_witnesses.remove(&known.uid);
        return seen;
    }
    if !told {
        let message = format!(
            "a reading of the runtime is not believed yet about pod {}, which no source has claimed: {}",
            known.full_name,
            lacks.join("; ")
        );
        cx.log(LogLevel::Warn, None, message);
    }
    if let Some(until) = witness.doubted_until() {
        wait_until(state, cx, &known.uid, until);
    }
    Some(known)
}
