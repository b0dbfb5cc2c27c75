//! The cgroups above pods: written when a value that they have changes.

use super::Context;
use crate::cgroups;
use crate::effect::{Effect, TimerKey};
use crate::plan::RETRY;
use crate::state::NodeState;

/// Writes the cgroups if the requests of the pods changed. The step calls this before each pod that it settles and at
/// its end, so no change of a pod can be forgotten.
pub(super) fn update(state: &mut NodeState, cx: &mut Context) {
    // Before the first answer of the runtime its cgroup driver is not known, and so neither are the cgroup names.
    if !state.config.cgroups_per_qos || !state.runtime.ever_ready {
        return;
    }
    let milli = state.pods.requests().burstable_milli_cpu();
    if state.written_burstable_milli_cpu == Some(milli) {
        return;
    }
    state.written_burstable_milli_cpu = Some(milli);
    let specs =
        cgroups::node_cgroup_specs(&state.config, &state.facts, i64::try_from(milli).unwrap_or(i64::MAX));
    cx.emit(Effect::EnsureCgroups { specs });
}

/// Writing them failed. It is tried again when the timer fires, or when the value changes.
pub(super) fn failed(cx: &mut Context) {
    cx.timer(TimerKey::NodeCgroups, Some(cx.now.mono.plus(RETRY)));
}

/// The end of the step writes them again.
pub(super) fn retry(state: &mut NodeState) {
    state.written_burstable_milli_cpu = None;
}
