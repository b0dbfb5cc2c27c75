//! Requests for observations and status checks of the runtime.

use model::PodUid;
use model::observed::Scope;

use super::Context;
use crate::effect::Effect;
use crate::state::NodeState;

/// Requests an observation of this pod that begins now or later.
pub(super) fn request_observation(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    let Some(entry) = state.pods.get_mut(uid) else { return };
    entry.observation_request.wanted = Some(cx.now.mono);
    if !entry.observation_request.in_flight {
        entry.observation_request.in_flight = true;
        entry.observation_request.requested_at = cx.now.mono;
        cx.emit(Effect::Observe(Scope::Pod(uid.clone())));
    }
}

pub(super) fn request_full_observation(state: &mut NodeState, cx: &mut Context) {
    let full = &mut state.full_observation;
    full.wanted = Some(cx.now.mono);
    if !full.in_flight {
        full.in_flight = true;
        cx.emit(Effect::Observe(Scope::All));
    }
}

pub(super) fn retry_observation(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    if state.pods.get(uid).is_some_and(|e| e.observation_request.wanted.is_some()) {
        request_observation(state, cx, uid);
    }
}

pub(super) fn check_runtime(state: &mut NodeState, cx: &mut Context) {
    if !state.runtime.checking {
        state.runtime.checking = true;
        cx.emit(Effect::CheckRuntime { ask_cgroup_driver: !state.runtime.ever_ready });
    }
}
