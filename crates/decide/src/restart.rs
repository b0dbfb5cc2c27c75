//! Restart policies: whether a container that is not running is to be started again.
//!
//! Three voices are heard in this order: the rules of the container (by exit code), the container's own policy,
//! the pod's policy. Rules count only where the container has a policy of its own.

use model::k8s;
use model::observed::{ContainerState, ObservedContainer, ObservedPod};
use model::pod::{PodView, RestartPolicy};

const ACTION_RESTART: &str = "Restart";
const ACTION_RESTART_ALL: &str = "RestartAllContainers";
/// The condition that says that all containers of a pod are being restarted together.
pub const ALL_CONTAINERS_RESTARTING: &str = "AllContainersRestarting";

/// What a rule of a container asks for when it matches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RuleAction {
    Restart,
    RestartAllContainers,
}

/// The container's own policy where it has one, the pod's otherwise.
pub fn effective_policy(pod: &PodView, container: &k8s::Container) -> RestartPolicy {
    own_policy(container).unwrap_or_else(|| pod.restart_policy())
}

fn own_policy(container: &k8s::Container) -> Option<RestartPolicy> {
    container.restart_policy.as_deref().map(|word| RestartPolicy::parse(Some(word)))
}

/// What the first rule that matches the exit code asks for.
pub fn matching_rule(container: &k8s::Container, exit_code: i32) -> Option<RuleAction> {
    container.restart_policy.as_ref()?;
    container.restart_policy_rules.iter().flatten().find_map(|rule| {
        let action = match rule.action.as_str() {
            ACTION_RESTART => RuleAction::Restart,
            ACTION_RESTART_ALL => RuleAction::RestartAllContainers,
            _ => return None,
        };
        let codes = rule.exit_codes.as_ref()?;
        let listed = codes.values.iter().flatten().any(|code| *code == exit_code);
        let matches = match codes.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        };
        matches.then_some(action)
    })
}

/// Whether a container that ended with this exit code is to run again.
pub fn container_should_restart(
    pod_policy: RestartPolicy,
    container: &k8s::Container,
    exit_code: i32,
) -> bool {
    if matching_rule(container, exit_code).is_some() {
        return true;
    }
    match own_policy(container).unwrap_or(pod_policy) {
        RestartPolicy::Always => true,
        RestartPolicy::OnFailure => exit_code != 0,
        RestartPolicy::Never => false,
    }
}

/// Whether a container is to be started, given its newest instance.
pub fn should_restart(pod: &PodView, container: &k8s::Container, newest: Option<&ObservedContainer>) -> bool {
    if pod.is_deleting() {
        return false;
    }
    let Some(newest) = newest else { return true };
    match newest.state {
        ContainerState::Running => false,
        ContainerState::Created | ContainerState::Unknown => true,
        ContainerState::Exited => container_should_restart(pod.restart_policy(), container, newest.exit_code),
    }
}

/// Whether some container of the pod may ask for a restart of them all.
pub fn all_may_restart(pod: &PodView) -> bool {
    let asks = |container: &k8s::Container| {
        container.restart_policy_rules.iter().flatten().any(|rule| rule.action == ACTION_RESTART_ALL)
    };
    pod.containers().iter().chain(pod.init_containers()).any(asks)
}

/// Whether the restart of all containers was asked for and is not over: the status said so before, or a container
/// just ended in the way that its rule names.
pub fn all_restarting(pod: &PodView, observed: &ObservedPod, old: Option<&k8s::PodStatus>) -> bool {
    if !all_may_restart(pod) {
        return false;
    }
    let said_before = old.and_then(|status| status.conditions.as_ref()).is_some_and(|conditions| {
        conditions.iter().any(|c| c.type_ == ALL_CONTAINERS_RESTARTING && c.status == "True")
    });
    said_before
        || pod.containers().iter().chain(pod.init_containers()).any(|container| {
            observed.newest(&container.name).is_some_and(|newest| {
                newest.state == ContainerState::Exited
                    && matching_rule(container, newest.exit_code) == Some(RuleAction::RestartAllContainers)
            })
        })
}
