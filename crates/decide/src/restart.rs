//! Restart policies: whether a container that is not running is to be started again.
//!
//! The order of precedence: the rules of the container (by exit code), the container's own policy, the pod's policy.
//! Rules count only if the container has its own policy.

use model::k8s;
use model::observed::{ContainerState, ObservedContainer, ObservedPod};
use model::pod::{PodView, RestartPolicy};

const ACTION_RESTART: &str = "Restart";
const ACTION_RESTART_ALL: &str = "RestartAllContainers";
/// The condition which shows that all containers of a pod are being restarted together.
pub(crate) const ALL_CONTAINERS_RESTARTING: &str = "AllContainersRestarting";

/// The action of a container's restart rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RuleAction {
    Restart,
    RestartAllContainers,
}

/// The container's own policy if it has one, the pod's otherwise.
pub fn effective_policy(pod: &PodView, container: &k8s::Container) -> RestartPolicy {
    own_policy(container).unwrap_or_else(|| pod.restart_policy())
}

fn own_policy(container: &k8s::Container) -> Option<RestartPolicy> {
    container.restart_policy.as_deref().map(|word| RestartPolicy::parse(Some(word)))
}

/// The action of the first rule that matches the exit code.
fn matching_rule(container: &k8s::Container, exit_code: i32) -> Option<RuleAction> {
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

/// Whether a container that exited with this code is to run again.
pub(crate) fn container_should_restart(
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
pub(crate) fn should_restart(
    pod: &PodView,
    container: &k8s::Container,
    newest: Option<&ObservedContainer>,
) -> bool {
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

/// Whether a container of the pod has a rule that restarts all containers.
pub fn may_restart_all_containers(pod: &PodView) -> bool {
    let asks = |container: &k8s::Container| {
        container.restart_policy_rules.iter().flatten().any(|rule| rule.action == ACTION_RESTART_ALL)
    };
    pod.containers().iter().chain(pod.init_containers()).any(asks)
}

/// Whether a restart of all containers was triggered and is not over: the status shows it, or a container just exited
/// with a code for which its rule restarts all.
pub(crate) fn is_restarting_all(pod: &PodView, observed: &ObservedPod, old: Option<&k8s::PodStatus>) -> bool {
    if !may_restart_all_containers(pod) {
        return false;
    }
    status_says_restarting_all(pod, old)
        || pod.containers().iter().chain(pod.init_containers()).any(|container| {
            observed.newest(&container.name).is_some_and(|newest| triggers_restart_of_all(pod, newest))
        })
}

/// Whether the status says that the restart of all containers is not over.
pub(crate) fn status_says_restarting_all(pod: &PodView, old: Option<&k8s::PodStatus>) -> bool {
    let conditions = old.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    may_restart_all_containers(pod)
        && conditions.into_iter().any(|c| c.type_ == ALL_CONTAINERS_RESTARTING && c.status == "True")
}

/// Whether this instance exited with a code for which a rule restarts all containers.
pub(crate) fn triggers_restart_of_all(pod: &PodView, instance: &ObservedContainer) -> bool {
    instance.state == ContainerState::Exited
        && pod.container(&instance.name).is_some_and(|(_, container)| {
            matching_rule(container, instance.exit_code) == Some(RuleAction::RestartAllContainers)
        })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::status::sample::{deleting, instance, observed, pod};

    fn container(value: Value) -> k8s::Container {
        serde_json::from_value(value).unwrap()
    }

    fn rule(action: &str, operator: &str, values: &[i32]) -> Value {
        json!({"action": action, "exitCodes": {"operator": operator, "values": values}})
    }

    /// The end of the container named `c` after `exit_code`.
    fn ended(exit_code: i32) -> ObservedContainer {
        instance("c", 0, ContainerState::Exited, exit_code)
    }

    #[test]
    fn policies() {
        use RestartPolicy::*;
        let check = |pod_policy, own: Value, exit_code, expect| {
            let container = container(json!({"name": "c", "restartPolicy": own}));
            let got = container_should_restart(pod_policy, &container, exit_code);
            assert_eq!(got, expect, "{pod_policy:?} {own} {exit_code}");
        };
        check(Always, json!(null), 0, true);
        check(Always, json!(null), 1, true);
        check(OnFailure, json!(null), 0, false);
        check(OnFailure, json!(null), 1, true);
        check(Never, json!(null), 0, false);
        check(Never, json!(null), 1, false);
        // the container's own word counts more
        check(Never, json!("Always"), 0, true);
        check(Never, json!("OnFailure"), 1, true);
        check(Never, json!("OnFailure"), 0, false);
        check(Always, json!("Never"), 1, false);
        check(Always, json!("OnFailure"), 0, false);
    }

    #[test]
    fn rules() {
        let check = |own: Value, rules: Value, exit_code: i32, action: Option<RuleAction>, restart: bool| {
            let container =
                container(json!({"name": "c", "restartPolicy": own, "restartPolicyRules": rules}));
            assert_eq!(matching_rule(&container, exit_code), action, "{own} {rules} {exit_code}");
            let got = container_should_restart(RestartPolicy::Never, &container, exit_code);
            assert_eq!(got, restart, "{own} {rules} {exit_code}");
        };
        let restart = Some(RuleAction::Restart);
        let all = Some(RuleAction::RestartAllContainers);
        let never = || json!("Never");
        let two_or_three = || json!([rule("Restart", "In", &[2, 3])]);
        check(never(), two_or_three(), 2, restart, true);
        check(never(), two_or_three(), 3, restart, true);
        check(never(), two_or_three(), 1, None, false);
        check(json!("OnFailure"), two_or_three(), 1, None, true);
        check(json!("OnFailure"), two_or_three(), 0, None, false);
        check(never(), json!([rule("Restart", "NotIn", &[2, 3])]), 1, restart, true);
        check(never(), json!([rule("Restart", "NotIn", &[2, 3])]), 0, restart, true);
        check(never(), json!([rule("Restart", "NotIn", &[2, 3])]), 2, None, false);
        check(never(), json!([rule("Restart", "Near", &[2])]), 2, None, false);
        check(never(), json!([rule("Explode", "In", &[2])]), 2, None, false);
        check(never(), json!([{"action": "Restart"}]), 2, None, false);
        check(never(), json!([rule("RestartAllContainers", "In", &[2])]), 2, all, true);
        // the first that matches
        let both = || json!([rule("Restart", "In", &[2]), rule("RestartAllContainers", "In", &[2, 3])]);
        check(never(), both(), 2, restart, true);
        check(never(), both(), 3, all, true);
        // rules need a policy beside them
        check(json!(null), two_or_three(), 2, None, false);
    }

    #[test]
    fn effective_policies() {
        let pod = pod(json!({"restartPolicy": "OnFailure"}));
        let check = |own: Value, expect| {
            let container = container(json!({"name": "c", "restartPolicy": own}));
            assert_eq!(effective_policy(&pod, &container), expect);
        };
        check(json!(null), RestartPolicy::OnFailure);
        check(json!("Always"), RestartPolicy::Always);
        check(json!("Never"), RestartPolicy::Never);
    }

    #[test]
    fn instances() {
        let plain = container(json!({"name": "c"}));
        let never = pod(json!({"restartPolicy": "Never"}));
        let on_failure = pod(json!({"restartPolicy": "OnFailure"}));
        let state = |state| instance("c", 0, state, 0);
        let check = |pod: &PodView, newest: Option<ObservedContainer>, expect| {
            let got = should_restart(pod, &plain, newest.as_ref());
            assert_eq!(got, expect, "{:?} {newest:?}", pod.restart_policy());
            assert!(!should_restart(&deleting(pod), &plain, newest.as_ref()), "not while it is deleted");
        };
        check(&never, None, true);
        check(&never, Some(state(ContainerState::Running)), false);
        check(&never, Some(state(ContainerState::Created)), true);
        check(&never, Some(state(ContainerState::Unknown)), true);
        check(&never, Some(ended(0)), false);
        check(&never, Some(ended(1)), false);
        check(&on_failure, Some(ended(0)), false);
        check(&on_failure, Some(ended(1)), true);
    }

    #[test]
    fn restarts_of_all() {
        let ruled = |list: &str, action: &str| {
            let mut spec = json!({"containers": [{"name": "d"}], "initContainers": []});
            let with_rule = json!({"name": "c", "restartPolicy": "Never", "restartPolicyRules": [rule(action, "In", &[2])]});
            spec[list].as_array_mut().unwrap().push(with_rule);
            pod(spec)
        };
        let said: k8s::PodStatus = serde_json::from_value(
            json!({"conditions": [{"type": "AllContainersRestarting", "status": "True"}]}),
        )
        .unwrap();
        let check = |pod: &PodView, containers, old: Option<&k8s::PodStatus>, expect| {
            assert_eq!(is_restarting_all(pod, &observed(containers), old), expect);
        };
        for list in ["containers", "initContainers"] {
            let pod = ruled(list, "RestartAllContainers");
            assert!(may_restart_all_containers(&pod));
            check(&pod, vec![], None, false);
            check(&pod, vec![], Some(&said), true);
            check(&pod, vec![ended(2)], None, true);
            check(&pod, vec![ended(1)], None, false);
            check(&pod, vec![instance("d", 0, ContainerState::Exited, 2)], None, false);
            // the instance that follows has not ended
            check(&pod, vec![ended(2), instance("c", 1, ContainerState::Running, 0)], None, false);
        }
        let alone = ruled("containers", "Restart");
        assert!(!may_restart_all_containers(&alone));
        check(&alone, vec![ended(2)], Some(&said), false);
    }
}
