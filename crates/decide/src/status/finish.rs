//! The final status of a pod, once its volumes and cgroup are released.

use model::k8s::{self, ContainerStatus};
use model::pod::{PodView, is_sidecar};

use super::conditions::{CONTAINERS_READY, INITIALIZED, READY, find};
use super::state::{self, MESSAGE_LOST, REASON_STATUS_UNKNOWN};
use model::PodPhase;

/// Marks containers that may have run and have no terminated state as lost, and makes the phase terminal.
pub fn finish_status(pod: &PodView, mut status: k8s::PodStatus) -> k8s::PodStatus {
    let shown = pod.pod.status.as_ref();
    if had_initialized(pod, &status) || shown.is_some_and(|shown| had_initialized(pod, shown)) {
        status.container_statuses.iter_mut().flatten().for_each(mark_container_lost);
    }
    if let Some(init) = &mut status.init_container_statuses {
        let attempted = attempted(init);
        init[..attempted].iter_mut().for_each(mark_container_lost);
    }
    let phase = PodPhase::of(&status);
    if !pod.source.is_static() && !phase.is_some_and(PodPhase::is_terminal) {
        status.phase = Some(PodPhase::Failed.as_str().to_owned());
    }
    status
}

/// Once a terminal phase was reported, Ready, ContainersReady and Initialized keep their last values. Derived again,
/// they would have the terminal phase as their reason.
pub fn keep_terminal_conditions(old: Option<&k8s::PodStatus>, mut status: k8s::PodStatus) -> k8s::PodStatus {
    let terminal = |s: &&k8s::PodStatus| PodPhase::of(s).is_some_and(PodPhase::is_terminal);
    let Some(said) = old.filter(terminal).and_then(|old| old.conditions.as_deref()) else { return status };
    for condition in status.conditions.iter_mut().flatten() {
        let judged = [INITIALIZED, READY, CONTAINERS_READY].contains(&condition.type_.as_str());
        if let Some(before) = find(said, &condition.type_).filter(|_| judged) {
            *condition = before.clone();
        }
    }
    status
}

fn mark_container_lost(status: &mut ContainerStatus) {
    if state::terminated(status).is_none() {
        status.state = Some(state::terminated_state(state::lost(REASON_STATUS_UNKNOWN, MESSAGE_LOST)));
    }
}

fn ever_started(status: &ContainerStatus) -> bool {
    state::waiting(status).is_none() || state::last_terminated(status).is_some()
}

/// Whether regular containers may have been started.
fn had_initialized(pod: &PodView, status: &k8s::PodStatus) -> bool {
    if pod.init_containers().is_empty() || status.container_statuses.iter().flatten().any(ever_started) {
        return true;
    }
    let Some(last) = status.init_container_statuses.iter().flatten().next_back() else { return false };
    let Some((_, container)) = pod.container(&last.name) else { return false };
    if is_sidecar(container) {
        return state::running(last).is_some() && last.started == Some(true);
    }
    let succeeded = |end: &k8s::ContainerStateTerminated| end.exit_code == 0;
    state::terminated(last).is_some_and(succeeded) || state::last_terminated(last).is_some_and(succeeded)
}

/// How many init containers were attempted: all up to the last one that ever started, and at least the first.
fn attempted(init: &[ContainerStatus]) -> usize {
    init.iter().rposition(ever_started).map_or(init.len().min(1), |last| last + 1)
}
