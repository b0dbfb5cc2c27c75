//! Starts of containers that the runtime may not show yet.
//!
//! ```text
//!   a start ended, whatever was heard of it ──> ObserveStart, 2 s later ──> observe the pod
//!                                                    ^                          │ shown as created
//!                                                    └──────── until 10 s ──────┘
//! ```
//! A container may exit before StartContainer returns, and a runtime may send the exit event before its list shows the
//! exit. An observation in between would miss the exit until the next full one, so every start is followed by one more.
//!
//! The answer of a start may be lost while the runtime is still at work on it, and an agent that was restarted does not
//! know which starts its predecessor asked for. A container that is shown as created may therefore run, and even have
//! done its work, by the time at which a removal arrives; its successor would do that work again. So it is removed
//! only if an observation shows it as created after [`UNHEARD_START`] (`plan::sync`).

use std::time::Duration;

use model::observed::{ContainerState, ObservedPod};
use model::{ContainerId, Mono, PodUid};

use super::Context;
use super::observation_requests::request_observation;
use crate::action::{Action, ActionResult, StartFailurePoint};
use crate::effect::TimerKey;
use crate::ledger::Ledger;
use crate::plan::UNHEARD_START;
use crate::state::NodeState;

/// Longer than any runtime was seen to take between the exit of a container and showing it.
const OBSERVE_AGAIN_AFTER: Duration = Duration::from_secs(2);

/// An action ended that may have started a container.
pub(super) fn start_ended(
    state: &mut NodeState,
    cx: &mut Context,
    uid: &PodUid,
    action: &Action,
    result: &ActionResult,
) {
    let Action::StartContainer(_) = action else { return };
    let may_run = match result {
        ActionResult::StartFailed { at, .. } => {
            matches!(at, StartFailurePoint::Start | StartFailurePoint::PostStart)
        }
        other => *other != ActionResult::Skipped,
    };
    if !may_run {
        return;
    }
    if let ActionResult::StartFailed { at: StartFailurePoint::Start, id: Some(id), failure } = result
        && let Some(entry) = state.pods.get_mut(uid)
    {
        // A runtime that has refused the start does not start the container later.
        let until = if failure.unreachable { cx.now.mono.plus(UNHEARD_START) } else { Mono::ZERO };
        entry.ledger.may_start_until.insert(id.clone(), until);
    }
    schedule(state, cx, uid);
}

fn schedule(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    let Some(entry) = state.pods.get_mut(uid) else { return };
    let at = Some(cx.now.mono.plus(OBSERVE_AGAIN_AFTER));
    entry.observation_request.after_start = at;
    cx.timer(TimerKey::ObserveStart(uid.clone()), at);
}

pub(super) fn observe_again(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    let Some(entry) = state.pods.get_mut(uid) else { return };
    entry.observation_request.after_start = None;
    let goes_on = entry.lifecycle().may_start() && has_unheard_start(&entry.ledger, cx.now.mono);
    request_observation(state, cx, uid);
    if goes_on {
        schedule(state, cx, uid);
    }
}

/// Whether an observation that began at `at` is too early to tell that one of the containers was not started.
pub(super) fn has_unheard_start(ledger: &Ledger, at: Mono) -> bool {
    ledger.may_start_until.values().any(|until| at < *until)
}

/// Remembers which containers the accepted observation shows as created.
pub(super) fn pod_observed(
    state: &mut NodeState,
    cx: &mut Context,
    uid: &PodUid,
    at: Mono,
    pod: &ObservedPod,
) {
    let Some(entry) = state.pods.get_mut(uid) else { return };
    let known = &mut entry.ledger.may_start_until;
    let created = || pod.containers.iter().filter(|c| c.state == ContainerState::Created).map(|c| &c.id);
    known.retain(|id, _| created().any(|shown| shown == id));
    let new: Vec<ContainerId> = created().filter(|id| !known.contains_key(*id)).cloned().collect();
    let found = !new.is_empty();
    known.extend(new.into_iter().map(|id| (id, at.plus(UNHEARD_START))));
    if found && entry.lifecycle().may_start() && entry.observation_request.after_start.is_none() {
        schedule(state, cx, uid);
    }
}
