//! Failed steps of a whole pod: when they are retried, and the reasons that are shown for a pod.

use std::time::Duration;

use model::why::Why;
use model::{ApiEvent, Mono, PodUid};

use super::Context;
use crate::ledger::PodRetry;
use crate::lifecycle::Lifecycle;
use crate::plan::RETRY;
use crate::state::{NodeState, WhySince};

/// Records that a step of the whole pod failed. Returns when it is retried.
pub(super) fn pod_step_failed(
    state: &mut NodeState,
    cx: &mut Context,
    uid: &PodUid,
    step: &'static str,
    message: String,
    event: ApiEvent,
) -> Mono {
    cx.record(state, uid, event);
    retry_step(state, cx, uid, step, message)
}

/// The same without an Event about the pod.
pub(super) fn retry_step(
    state: &mut NodeState,
    cx: &Context,
    uid: &PodUid,
    step: &'static str,
    message: String,
) -> Mono {
    let Some(entry) = state.pods.get_mut(uid) else { return cx.now.mono };
    let attempts = entry.ledger.pod_retry.as_ref().map_or(0, |r| r.attempts) + 1;
    let wait = match entry.lifecycle() {
        // The end of a pod is retried sooner than its start.
        Lifecycle::Syncing => RETRY,
        _ => Duration::from_secs(1 << attempts.min(4).saturating_sub(1)).min(RETRY),
    };
    let at = cx.now.mono.plus(wait);
    entry.ledger.pod_retry = Some(PodRetry { step, message, at, attempts });
    at
}

/// Replaces the pod's reasons. A reason that already held keeps its `since`.
pub(super) fn set_why(state: &mut NodeState, cx: &Context, uid: &PodUid, why: Vec<Why>) {
    let Some(entry) = state.pods.get_mut(uid) else { return };
    let old = std::mem::take(&mut entry.why);
    entry.why = why
        .into_iter()
        .map(|why| {
            let held = old.iter().find(|o| o.why.container == why.container && o.why.cause == why.cause);
            WhySince { since: held.map_or(cx.now.wall, |o| o.since), why }
        })
        .collect();
}
