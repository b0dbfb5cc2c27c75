//! One instance in the runtime as a container status.

use model::Reason;
use model::k8s;
use model::observed::{ContainerState, ObservedContainer};

use super::state::{self, MESSAGE_LOST, REASON_STATUS_UNKNOWN};
use super::{StatusInputs, resources, some_unless_empty, text};
use crate::stop_signals;

/// `<runtime>://<id>`
pub fn container_id(runtime_name: &str, instance: &ObservedContainer) -> String {
    format!("{runtime_name}://{}", instance.id)
}

/// The status that an instance gives alone, before it is set against the old one.
pub fn convert(
    inputs: &StatusInputs<'_>,
    container: &k8s::Container,
    instance: &ObservedContainer,
    old: Option<&k8s::ContainerStatus>,
    restarting_all: bool,
) -> k8s::ContainerStatus {
    let id = container_id(inputs.runtime_name, instance);
    let missing = inputs.observed.missing_status.get(instance.id.as_str());
    let state = match missing.filter(|_| instance.state == ContainerState::Exited) {
        Some(answer) => unreadable_end(answer, id.clone()),
        None => instance_state(instance, &id, old, restarting_all),
    };
    k8s::ContainerStatus {
        name: instance.name.clone(),
        image: instance.image.clone(),
        image_id: instance.image_ref.clone(),
        restart_count: i32::try_from(instance.restart_count).unwrap_or(i32::MAX),
        state: Some(state),
        last_state: Some(k8s::ContainerState::default()),
        resources: Some(resources::of_container(container, instance, &id, old)),
        allocated_resources: resources::allocated_requests(container),
        user: user(instance),
        stop_signal: stop_signals::name(instance.stop_signal).filter(|_| inputs.stop_signals),
        container_id: Some(id),
        ..Default::default()
    }
}

fn instance_state(
    instance: &ObservedContainer,
    id: &str,
    old: Option<&k8s::ContainerStatus>,
    restarting_all: bool,
) -> k8s::ContainerState {
    match instance.state {
        ContainerState::Running => k8s::ContainerState {
            running: Some(k8s::ContainerStateRunning { started_at: Some(instance.started_at.api_time()) }),
            ..Default::default()
        },
        ContainerState::Created => state::waiting_state("", ""),
        ContainerState::Exited => state::terminated_state(k8s::ContainerStateTerminated {
            exit_code: instance.exit_code,
            reason: text(&instance.reason),
            message: text(&instance.message),
            started_at: Some(instance.started_at.api_time()),
            finished_at: Some(instance.finished_at.api_time()),
            container_id: Some(id.to_owned()),
            signal: None,
        }),
        ContainerState::Unknown => unknown_state(id, old, restarting_all),
    }
}

/// It ended, and the runtime does not tell how.
fn unreadable_end(answer: &str, id: String) -> k8s::ContainerState {
    let message = format!("The container runtime did not report the container's exit status: {answer}");
    let end = state::lost(REASON_STATUS_UNKNOWN, &message);
    state::terminated_state(k8s::ContainerStateTerminated { container_id: Some(id), ..end })
}

/// Something that ran and is not known to run any more has ended: "never ran" would let a pod that runs once run
/// twice. The end stays shown for as long as nothing better is known of that instance.
fn unknown_state(id: &str, old: Option<&k8s::ContainerStatus>, restarting_all: bool) -> k8s::ContainerState {
    let Some(old) = old else { return state::waiting_state("", "") };
    if state::running(old).is_some() {
        let reason =
            if restarting_all { Reason::RestartingAllContainers.as_str() } else { REASON_STATUS_UNKNOWN };
        return state::terminated_state(state::lost(reason, MESSAGE_LOST));
    }
    match state::terminated(old) {
        Some(end) if old.container_id.as_deref() == Some(id) => state::terminated_state(end.clone()),
        _ => state::waiting_state("", ""),
    }
}

/// Sets the newest instance against the old status: counts only grow, and an end that was shown is not forgotten.
pub(crate) fn carry_over(
    status: &mut k8s::ContainerStatus,
    instance: &ObservedContainer,
    old: &k8s::ContainerStatus,
) {
    let of_runtime = status.restart_count;
    let old_end = state::terminated(old);
    let same_instance = old.container_id == status.container_id;
    status.restart_count = of_runtime.max(old.restart_count);
    let missed_restart = match instance.state {
        ContainerState::Running => old_end.is_some() && old.restart_count >= of_runtime,
        ContainerState::Unknown => state::running(old).is_some(),
        ContainerState::Created | ContainerState::Exited => false,
    };
    if missed_restart {
        status.restart_count = of_runtime.max(old.restart_count.saturating_add(1));
    }
    status.last_state = match old_end {
        Some(end) if !same_instance => Some(state::terminated_state(end.clone())),
        _ => old.last_state.clone().or_else(|| Some(k8s::ContainerState::default())),
    };
    if instance.state == ContainerState::Running && same_instance {
        status.started = old.started;
    }
}

fn user(instance: &ObservedContainer) -> Option<k8s::ContainerUser> {
    let user = instance.user.as_ref()?;
    let linux = k8s::LinuxContainerUser {
        uid: user.uid,
        gid: user.gid,
        supplemental_groups: some_unless_empty(user.supplemental_groups.clone()),
    };
    Some(k8s::ContainerUser { linux: Some(linux) })
}
