//! The cgroups above pods: written when a value that they have changes. And those of reservations: written once.

use std::time::Duration;

use model::cgroup::CgroupName;
use model::node::HostFacts;
use model::{ApiEvent, PodUid};

use super::Context;
use crate::cgroups::{kubepods, pod_cgroup};
use crate::effect::{Effect, LogLevel, TimerKey};
use crate::event::CgroupFailure;
use crate::node_cgroups::{node_cgroup_specs, quoted, reservations};
use crate::node_requests::ClassRequests;
use crate::plan::RETRY;
use crate::state::{NodeState, ReservationState};

/// How long the limits of all pods wait for a retry. A limit is refused when the pods use more: that takes time.
const LIMITS_RETRY: Duration = Duration::from_secs(60);

const ENFORCED: &str = "NodeAllocatableEnforced";
const NOT_ENFORCED: &str = "FailedNodeAllocatableEnforcement";

/// Writes the cgroups if the requests of the pods changed. The step calls this before each pod that it settles and at
/// its end, so no change of a pod can be forgotten.
pub(super) fn update(state: &mut NodeState, cx: &mut Context) {
    // Before the first answer of the runtime its cgroup driver is not known, and so neither are the cgroup names.
    if !state.runtime.ever_ready {
        return;
    }
    // Nor is it known before the first observation which pods an earlier agent admitted.
    if state.full_observation.last.is_none() {
        return;
    }
    let requests = relevant_requests(state);
    if state.config.cgroups_per_qos && state.node_cgroups.written != Some(requests) {
        state.node_cgroups.written = Some(requests);
        let specs = node_cgroup_specs(&state.config, &state.facts, &requests);
        cx.emit(Effect::EnsureCgroups { specs });
    }
    // The first write enables the controllers that the reservations need.
    let enabled = state.node_cgroups.answered || !state.config.cgroups_per_qos;
    if enabled && state.node_cgroups.reservations == ReservationState::NotWritten {
        write_reservations(state, cx);
    }
}

/// The memory that pods request is in no cgroup unless it is configured, so its changes lead to no writes.
fn relevant_requests(state: &NodeState) -> ClassRequests {
    let requests = state.pods.requests().of_classes();
    let allocatable = &state.config.allocatable;
    let tiered = allocatable.memory_qos.as_ref().is_some_and(|qos| qos.tiered);
    match tiered || allocatable.reserved_memory_percent.is_some() {
        true => requests,
        false => ClassRequests { burstable_memory: 0, guaranteed_memory: 0, ..requests },
    }
}

/// The writes ended. A part that failed is tried again when the timer fires, or when a value changes.
pub(super) fn written(state: &mut NodeState, cx: &mut Context, failures: Vec<CgroupFailure>) {
    let now = cx.now.mono;
    state.node_cgroups.answered = true;
    let pods = kubepods(&state.config);
    let mut retry = None;
    for CgroupFailure { name, message } in &failures {
        let of_limits = *name == pods;
        if of_limits {
            retry = retry.or(Some(LIMITS_RETRY));
        } else {
            retry = Some(RETRY);
        }
        let message = format!("Failed to update Node Allocatable Limits {}: {message}", quoted(name));
        let told = state.node_cgroups.recorded_failure.as_ref();
        let is_new = told.is_none_or(|(at, told)| *told != message || at.plus(LIMITS_RETRY) <= now);
        if of_limits && is_new {
            cx.emit(Effect::RecordNodeEvent { event: ApiEvent::warning(NOT_ENFORCED, message.clone()) });
            state.node_cgroups.recorded_failure = Some((now, message));
        }
    }
    let limited = failures.iter().all(|failure| failure.name != pods);
    if limited {
        let failed_before = state.node_cgroups.recorded_failure.take().is_some();
        if failed_before || !state.node_cgroups.recorded_success {
            state.node_cgroups.recorded_success = true;
            let text = "Updated Node Allocatable limit across pods";
            cx.emit(Effect::RecordNodeEvent { event: ApiEvent::normal(ENFORCED, text) });
        }
    }
    if retry.is_some() || state.node_cgroups.retry_pending {
        state.node_cgroups.retry_pending = retry.is_some();
        cx.timer(TimerKey::NodeCgroups, retry.map(|after| cx.now.mono.plus(after)));
    }
}

/// The end of the step writes them again.
pub(super) fn retry(state: &mut NodeState) {
    state.node_cgroups.retry_pending = false;
    state.node_cgroups.written = None;
}

/// The cgroups are written again if what the host has changed.
pub(super) fn facts_changed(state: &mut NodeState, facts: &HostFacts) {
    let seen = |facts: &HostFacts| {
        let sizes = (facts.hugepage_sizes.clone(), facts.huge_pages.clone());
        (facts.cpus, facts.memory_bytes, facts.pid_limit, sizes)
    };
    if seen(&state.facts) != seen(facts) {
        state.node_cgroups.written = None;
    }
}

/// A cgroup is gone that the agent did not remove itself, or that it removed with its pod. A pod that was prepared and
/// is to run has lost its limits.
pub(super) fn removed(state: &mut NodeState, cx: &mut Context, name: &CgroupName) {
    let Some(uid) = name.0.last().and_then(|part| part.strip_prefix("pod")).map(PodUid::from) else {
        // A cgroup of a class: it is made again, with its values.
        state.node_cgroups.written = None;
        return;
    };
    let config = state.config.clone();
    let Some(entry) = state.pods.get_mut(&uid) else { return };
    let expected = pod_cgroup(&config, entry.view());
    if entry.lifecycle().may_start() && entry.ledger.prerequisites_ready && expected.as_ref() == Some(name) {
        entry.ledger.cgroup_lost = true;
        entry.ledger.prerequisites_ready = false;
        cx.log(LogLevel::Warn, Some(&uid), "somebody removed the pod's cgroup");
        cx.touch(&uid);
    }
}

/// Cgroups of others get what is reserved for them. The agent ends if that is not possible: it was told to rely on it.
fn write_reservations(state: &mut NodeState, cx: &mut Context) {
    let wanted = reservations(&state.config, &state.facts);
    let mut specs = Vec::new();
    for reservation in &wanted {
        match &reservation.spec {
            Ok(spec) => specs.push(spec.clone()),
            Err(message) => {
                state.node_cgroups.reservations = ReservationState::Done;
                return end_agent(cx, format!("{}: {message}", reservation.failure));
            }
        }
    }
    if specs.is_empty() {
        state.node_cgroups.reservations = ReservationState::Done;
        return;
    }
    state.node_cgroups.reservations = ReservationState::BeingWritten;
    cx.emit(Effect::UpdateReservedCgroups { specs });
}

/// The results are in the order of the cgroups, and end with the first failure.
pub(super) fn reservations_written(
    state: &mut NodeState,
    cx: &mut Context,
    results: Vec<Result<(), String>>,
) {
    if state.node_cgroups.reservations != ReservationState::BeingWritten {
        return;
    }
    state.node_cgroups.reservations = ReservationState::Done;
    for (reservation, result) in reservations(&state.config, &state.facts).into_iter().zip(results) {
        match result {
            Ok(()) => {
                cx.emit(Effect::RecordNodeEvent { event: ApiEvent::normal(ENFORCED, reservation.success) })
            }
            Err(message) => return end_agent(cx, format!("{}: {message}", reservation.failure)),
        }
    }
}

fn end_agent(cx: &mut Context, message: String) {
    cx.emit(Effect::RecordNodeEvent { event: ApiEvent::warning(NOT_ENFORCED, message.clone()) });
    cx.log(LogLevel::Error, None, message.clone());
    cx.emit(Effect::EndAgent { reason: message });
}
