//! The phase of a pod: one word over all its containers.

use model::k8s;
use model::observed::ObservedPod;
use model::pod::{PodView, is_sidecar};
use model::{PodPhase, Reason};

use super::state;
use crate::restart::container_should_restart;

/// Whether the pod's initialisation is over in its current sandbox: a regular container was made there.
pub fn has_initialized(pod: &PodView, observed: &ObservedPod) -> bool {
    if pod.init_containers().is_empty() {
        return true;
    }
    let Some(sandbox) = observed.newest_sandbox().filter(|sandbox| sandbox.ready) else { return false };
    observed.containers.iter().any(|instance| {
        instance.sandbox_id == sandbox.id && pod.containers().iter().any(|c| c.name == instance.name)
    })
}

/// Counts over sidecars and regular containers.
#[derive(Default)]
struct ContainerCounts {
    unknown: u32,
    running: u32,
    waiting: u32,
    stopped: u32,
    stopped_for_good: u32,
    succeeded: u32,
    /// Sidecars that have not started yet.
    pending_sidecars: u32,
}

/// Counts over normal init containers.
#[derive(Default)]
struct InitCounts {
    pending: u32,
    failed_for_good: u32,
}

/// `statuses` are those of regular and init containers, in any order.
pub fn phase(
    pod: &PodView,
    statuses: &[&k8s::ContainerStatus],
    terminal: bool,
    has_initialized: bool,
) -> PodPhase {
    let init = count_init(pod, statuses);
    let counts = count(pod, statuses);
    if init.failed_for_good > 0 {
        return PodPhase::Failed;
    }
    let initializing = init.pending > 0 || (counts.pending_sidecars > 0 && !has_initialized);
    if initializing || counts.waiting > 0 {
        return PodPhase::Pending;
    }
    if counts.unknown > 0 {
        return PodPhase::Pending;
    }
    if counts.running > 0 {
        return PodPhase::Running;
    }
    if counts.stopped == 0 {
        return PodPhase::Pending;
    }
    let verdict = if counts.stopped == counts.succeeded { PodPhase::Succeeded } else { PodPhase::Failed };
    // a static pod can't be over: it lives as long as its manifest
    if terminal && !pod.source.is_static() {
        return verdict;
    }
    if counts.stopped != counts.stopped_for_good { PodPhase::Running } else { verdict }
}

fn count_init(pod: &PodView, statuses: &[&k8s::ContainerStatus]) -> InitCounts {
    let mut counts = InitCounts::default();
    for container in pod.init_containers().iter().filter(|c| !is_sidecar(c)) {
        let ended = state::by_name(statuses, &container.name).and_then(|status| {
            state::terminated(status).or_else(|| {
                // what waits to be started again has not been forgotten
                state::waiting(status).and_then(|_| state::last_terminated(status))
            })
        });
        match ended {
            None => counts.pending += 1,
            Some(end) if end.exit_code != 0 && !restarts(pod, container, end) => counts.failed_for_good += 1,
            Some(_) => {}
        }
    }
    counts
}

fn count(pod: &PodView, statuses: &[&k8s::ContainerStatus]) -> ContainerCounts {
    let mut counts = ContainerCounts::default();
    for container in pod.init_containers().iter().filter(|c| is_sidecar(c)) {
        count_sidecar(&mut counts, state::by_name(statuses, &container.name));
    }
    for container in pod.containers() {
        count_regular(&mut counts, pod, container, state::by_name(statuses, &container.name));
    }
    counts
}

fn count_sidecar(counts: &mut ContainerCounts, status: Option<&k8s::ContainerStatus>) {
    let Some(status) = status else {
        counts.unknown += 1;
        return;
    };
    if state::running(status).is_some() {
        counts.running += 1;
        if status.started != Some(true) {
            counts.pending_sidecars += 1;
        }
    } else if state::terminated(status).is_some() {
        // sidecars end after everything else, and how they end says nothing of the pod
    } else if state::waiting(status).is_some() {
        if state::last_terminated(status).is_none() {
            counts.pending_sidecars += 1;
            counts.waiting += 1;
        }
    } else {
        counts.pending_sidecars += 1;
        counts.unknown += 1;
    }
}

fn count_regular(
    counts: &mut ContainerCounts,
    pod: &PodView,
    container: &k8s::Container,
    status: Option<&k8s::ContainerStatus>,
) {
    let Some(status) = status else {
        counts.unknown += 1;
        return;
    };
    if state::running(status).is_some() {
        counts.running += 1;
        return;
    }
    let terminated = state::terminated(status);
    let waiting_after = state::waiting(status).and_then(|_| state::last_terminated(status));
    if let Some(end) = terminated.or(waiting_after) {
        counts.stopped += 1;
        // one that waits to be started again is no success, whatever its last run ended with
        counts.succeeded += u32::from(terminated.is_some() && end.exit_code == 0);
        counts.stopped_for_good += u32::from(!restarts(pod, container, end));
    } else if state::waiting(status).is_some() {
        counts.waiting += 1;
    } else {
        counts.unknown += 1;
    }
}

fn restarts(pod: &PodView, container: &k8s::Container, end: &k8s::ContainerStateTerminated) -> bool {
    end.reason.as_deref().and_then(Reason::parse) == Some(Reason::RestartingAllContainers)
        || container_should_restart(pod.restart_policy(), container, end.exit_code)
}
