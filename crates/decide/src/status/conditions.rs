//! The conditions of a pod.

use model::k8s::{ContainerStatus, PodCondition, PodStatus};
use model::pod::{PodView, is_sidecar};

use super::{StatusInputs, observed_generation, state};
use crate::allocation;
use crate::restart::{self, ALL_CONTAINERS_RESTARTING};
use crate::sandbox::sandbox_change;
use model::PodPhase;

const POD_SCHEDULED: &str = "PodScheduled";
pub const READY: &str = "Ready";
pub(crate) const INITIALIZED: &str = "Initialized";
pub(crate) const CONTAINERS_READY: &str = "ContainersReady";
pub(crate) const RESIZE_IN_PROGRESS: &str = "PodResizeInProgress";
pub(crate) const RESIZE_PENDING: &str = "PodResizePending";
pub const READY_TO_START: &str = "PodReadyToStartContainers";
/// Set by any component that disrupts the pod, including this agent.
pub const DISRUPTION_TARGET: &str = "DisruptionTarget";
const TERMINATION_BY_KUBELET: &str = "TerminationByKubelet";

const OWNED: [&str; 8] = [
    POD_SCHEDULED,
    READY,
    INITIALIZED,
    CONTAINERS_READY,
    RESIZE_IN_PROGRESS,
    RESIZE_PENDING,
    READY_TO_START,
    ALL_CONTAINERS_RESTARTING,
];

/// Whether only this agent writes conditions of that type.
pub fn is_owned(kind: &str) -> bool {
    OWNED.contains(&kind)
}

pub fn find<'a>(conditions: &'a [PodCondition], kind: &str) -> Option<&'a PodCondition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

/// All conditions: those of other writers first, as in the API object, then ours. Transition times are set by
/// `check_status`.
pub fn conditions(
    inputs: &StatusInputs<'_>,
    regular: &[ContainerStatus],
    init: &[ContainerStatus],
    phase: PodPhase,
) -> Vec<PodCondition> {
    let pod = inputs.pod;
    let old = inputs.previous();
    let all: Vec<&ContainerStatus> = regular.iter().chain(init).collect();
    let mut list = foreign(inputs.api(), old);
    if let Some(message) = inputs.disruption
        && find(&list, DISRUPTION_TARGET).is_none_or(|known| known.status != "True")
    {
        list.retain(|known| known.type_ != DISRUPTION_TARGET);
        let mut disruption = condition(DISRUPTION_TARGET, true, TERMINATION_BY_KUBELET, message);
        disruption.observed_generation = observed_generation(pod);
        list.push(disruption);
    }

    let sandbox_stays = !sandbox_change(pod, inputs.observed).needed;
    let containers = containers_ready(pod, Some(&all), phase);
    let ready = ready(pod, &list, &containers);
    let generation = observed_generation(pod);
    for mut condition in [
        condition(READY_TO_START, sandbox_stays, "", ""),
        initialized(pod, old, Some(&all), phase),
        ready,
        containers,
        condition(POD_SCHEDULED, true, "", ""),
    ] {
        condition.observed_generation = generation;
        if inputs.ready_to_start || condition.type_ != READY_TO_START {
            list.push(condition);
        }
    }
    list.extend(all_containers_restarting_condition(inputs, phase));
    if inputs.resize_pending && !phase.is_terminal() {
        let mut pending =
            condition(RESIZE_PENDING, true, allocation::INFEASIBLE, allocation::RESIZE_UNSUPPORTED_MESSAGE);
        pending.observed_generation = generation;
        list.push(pending);
    }
    list
}

fn foreign(api: Option<&PodStatus>, old: Option<&PodStatus>) -> Vec<PodCondition> {
    let all = |status: Option<&PodStatus>| status.and_then(|s| s.conditions.clone()).unwrap_or_default();
    let mut list: Vec<_> = all(api).into_iter().filter(|c| !is_owned(&c.type_)).collect();
    // an eviction of ours is in the old status before the API server knows of it
    if let Some(disruption) = find(&all(old), DISRUPTION_TARGET).cloned() {
        match list.iter_mut().find(|c| c.type_ == DISRUPTION_TARGET) {
            Some(present) => *present = disruption,
            None => list.push(disruption),
        }
    }
    list
}

fn condition(kind: &str, holds: bool, reason: &str, message: &str) -> PodCondition {
    PodCondition {
        type_: kind.to_owned(),
        status: if holds { "True" } else { "False" }.to_owned(),
        reason: super::text(reason),
        message: super::text(message),
        ..Default::default()
    }
}

/// `containers with <what> status: [a b]`
fn containers_message(what: &str, names: &[&str]) -> Option<String> {
    (!names.is_empty()).then(|| format!("containers with {what} status: [{}]", names.join(" ")))
}

fn joined(parts: impl IntoIterator<Item = Option<String>>) -> String {
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// `statuses` are those of regular and init containers; none when nothing is known of any container.
pub fn containers_ready(
    pod: &PodView,
    statuses: Option<&[&ContainerStatus]>,
    phase: PodPhase,
) -> PodCondition {
    let Some(statuses) = statuses else {
        return condition(CONTAINERS_READY, false, "UnknownContainerStatuses", "");
    };
    let (mut unknown, mut unready) = (Vec::new(), Vec::new());
    for container in pod.init_containers().iter().filter(|c| is_sidecar(c)).chain(pod.containers()) {
        match state::by_name(statuses, &container.name) {
            None => unknown.push(container.name.as_str()),
            Some(status) if !status.ready => unready.push(container.name.as_str()),
            Some(_) => {}
        }
    }
    if phase == PodPhase::Succeeded && unknown.is_empty() {
        return condition(CONTAINERS_READY, false, "PodCompleted", "");
    }
    if phase == PodPhase::Failed {
        return condition(CONTAINERS_READY, false, "PodFailed", "");
    }
    let message = joined([containers_message("unknown", &unknown), containers_message("unready", &unready)]);
    if message.is_empty() {
        return condition(CONTAINERS_READY, true, "", "");
    }
    condition(CONTAINERS_READY, false, "ContainersNotReady", &message)
}

/// `others` are the conditions in which readiness gates are looked up.
pub fn ready(pod: &PodView, others: &[PodCondition], containers_ready: &PodCondition) -> PodCondition {
    if containers_ready.status != "True" {
        return PodCondition { type_: READY.to_owned(), ..containers_ready.clone() };
    }
    let message = joined(pod.spec().readiness_gates.iter().flatten().map(|gate| {
        let gate = &gate.condition_type;
        match find(others, gate) {
            None => Some(format!("corresponding condition of pod readiness gate \"{gate}\" does not exist.")),
            Some(condition) if condition.status != "True" => Some(format!(
                "the status of pod readiness gate \"{gate}\" is not \"True\", but {}",
                condition.status
            )),
            Some(_) => None,
        }
    }));
    if message.is_empty() {
        return condition(READY, true, "", "");
    }
    condition(READY, false, "ReadinessGatesNotReady", &message)
}

/// `statuses` as for [`containers_ready`].
pub fn initialized(
    pod: &PodView,
    old: Option<&PodStatus>,
    statuses: Option<&[&ContainerStatus]>,
    phase: PodPhase,
) -> PodCondition {
    let Some(statuses) = statuses else {
        let nothing_to_do = pod.init_containers().is_empty();
        let reason = if nothing_to_do { "" } else { "UnknownContainerStatuses" };
        return condition(INITIALIZED, nothing_to_do, reason, "");
    };
    let (mut unknown, mut incomplete) = (Vec::new(), Vec::new());
    for container in pod.init_containers() {
        match state::by_name(statuses, &container.name) {
            None => unknown.push(container.name.as_str()),
            Some(status) => {
                let complete =
                    if is_sidecar(container) { status.started == Some(true) } else { status.ready };
                if !complete {
                    incomplete.push(container.name.as_str());
                }
            }
        }
    }
    if phase == PodPhase::Succeeded && unknown.is_empty() {
        return condition(INITIALIZED, true, "PodCompleted", "");
    }
    let message =
        joined([containers_message("unknown", &unknown), containers_message("incomplete", &incomplete)]);
    // the condition stays true if a sidecar restarts or an init container was removed
    if message.is_empty() || any_regular_started(pod, statuses) || was_initialized(old) {
        return condition(INITIALIZED, true, "", "");
    }
    condition(INITIALIZED, false, "ContainersNotInitialized", &message)
}

fn any_regular_started(pod: &PodView, statuses: &[&ContainerStatus]) -> bool {
    pod.containers().iter().any(|container| {
        state::by_name(statuses, &container.name)
            .is_some_and(|status| state::running(status).is_some() || state::terminated(status).is_some())
    })
}

fn was_initialized(old: Option<&PodStatus>) -> bool {
    let conditions = old.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    find(conditions, INITIALIZED).is_some_and(|condition| condition.status == "True")
}

/// Only for pods with a rule that may restart all their containers.
fn all_containers_restarting_condition(inputs: &StatusInputs<'_>, phase: PodPhase) -> Option<PodCondition> {
    if !restart::may_restart_all_containers(inputs.pod) {
        return None;
    }
    let over = match phase {
        PodPhase::Succeeded => Some("PodCompleted"),
        PodPhase::Failed => Some("PodFailed"),
        PodPhase::Pending | PodPhase::Running => None,
    };
    if let Some(reason) = over {
        return Some(condition(ALL_CONTAINERS_RESTARTING, false, reason, ""));
    }
    let asked = inputs.restarting_all();
    let left = inputs
        .pod
        .containers()
        .iter()
        .chain(inputs.pod.init_containers())
        .any(|container| inputs.observed.newest(&container.name).is_some());
    Some(if asked && left {
        let message = "container exited with restart policy rule";
        condition(ALL_CONTAINERS_RESTARTING, true, "RestartAllContainersStarted", message)
    } else {
        condition(ALL_CONTAINERS_RESTARTING, false, "", "")
    })
}
