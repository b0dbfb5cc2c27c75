//! What the object should show: ours, together with what others wrote into it.

use model::k8s::{PodCondition, PodStatus};

use crate::status::{DISRUPTION_TARGET, is_owned_condition};
use model::PodPhase;

/// `may_run`: containers could still be running, so a terminating pod must not get a terminal phase yet.
pub fn merge(shown: &PodStatus, new: &PodStatus, may_run: bool) -> PodStatus {
    let phase = |status: &PodStatus| PodPhase::of(status);
    let is_over = |status: &PodStatus| phase(status).is_some_and(PodPhase::is_terminal);
    let ends = !is_over(shown) && is_over(new);
    let mut merged = new.clone();
    merged.conditions = Some(conditions(shown, new, ends && !may_run));
    merged.resource_claim_statuses = shown.resource_claim_statuses.clone();
    merged.extended_resource_claim_status = shown.extended_resource_claim_status.clone();
    merged.node_allocatable_resource_claim_statuses = shown.node_allocatable_resource_claim_statuses.clone();
    merged.nominated_node_name = shown.nominated_node_name.clone();
    if ends && may_run {
        merged.phase = shown.phase.clone();
        merged.reason = shown.reason.clone();
        merged.message = shown.message.clone();
    }
    match phase(&merged) {
        Some(PodPhase::Succeeded) => not_ready(&mut merged, "PodCompleted"),
        Some(PodPhase::Failed) => not_ready(&mut merged, "PodFailed"),
        _ => {}
    }
    merged
}

/// Conditions of other writers as the object shows them, then ours. A DisruptionTarget condition is reported together
/// with the terminal phase that it caused.
fn conditions(shown: &PodStatus, new: &PodStatus, over_now: bool) -> Vec<PodCondition> {
    let theirs = shown.conditions.iter().flatten().filter(|c| !is_owned_condition(&c.type_));
    let mut list: Vec<PodCondition> = theirs.cloned().collect();
    for condition in new.conditions.iter().flatten() {
        let disruption = condition.type_ == DISRUPTION_TARGET && over_now;
        if !is_owned_condition(&condition.type_) && !disruption {
            continue;
        }
        match list.iter_mut().find(|c| c.type_ == condition.type_) {
            Some(there) => *there = condition.clone(),
            None => list.push(condition.clone()),
        }
    }
    list
}

/// A pod that is over is ready for nothing.
fn not_ready(status: &mut PodStatus, reason: &str) {
    let ours = |c: &&mut PodCondition| matches!(c.type_.as_str(), "Ready" | "ContainersReady");
    let conditions = status.conditions.as_deref_mut().unwrap_or_default();
    if !conditions.iter_mut().filter(ours).any(|c| c.status == "True") {
        return;
    }
    for condition in conditions.iter_mut().filter(ours) {
        condition.status = "False".into();
        condition.reason = Some(reason.into());
        condition.message = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn check(name: &str, shown: Value, new: Value, may_run: bool, expect: Value) {
        let status = |v: Value| serde_json::from_value::<PodStatus>(v).expect("a status");
        let merged = merge(&status(shown), &status(new), may_run);
        assert_eq!(serde_json::to_value(merged).unwrap(), expect, "{name}");
    }

    #[test]
    fn others_keep_what_is_theirs() {
        check(
            "a foreign condition stays, also one that we know an older form of",
            json!({"conditions": [{"type": "gate/x", "status": "True"}, {"type": "Ready", "status": "False"}]}),
            json!({"conditions": [{"type": "gate/x", "status": "False"}, {"type": "Ready", "status": "True"}]}),
            true,
            json!({"conditions": [{"type": "gate/x", "status": "True"}, {"type": "Ready", "status": "True"}]}),
        );
        check(
            "claims and the nominated node are passed on",
            json!({"nominatedNodeName": "n", "resourceClaimStatuses": [{"name": "a"}]}),
            json!({"phase": "Running"}),
            true,
            json!({"conditions": [], "nominatedNodeName": "n", "phase": "Running", "resourceClaimStatuses": [{"name": "a"}]}),
        );
    }

    #[test]
    fn a_pod_is_not_called_over_while_something_may_run() {
        let shown = json!({"phase": "Running"});
        let new = json!({"phase": "Failed", "reason": "Evicted", "message": "m", "podIP": "10.0.0.1"});
        check(
            "may run",
            shown.clone(),
            new.clone(),
            true,
            json!({"conditions": [], "phase": "Running", "podIP": "10.0.0.1"}),
        );
        check(
            "stopped",
            shown,
            new,
            false,
            json!({"conditions": [], "phase": "Failed", "reason": "Evicted", "message": "m", "podIP": "10.0.0.1"}),
        );
    }

    #[test]
    fn a_pod_that_is_over_is_not_ready() {
        let ready =
            json!([{"type": "Ready", "status": "True"}, {"type": "ContainersReady", "status": "True"}]);
        let not = |reason: &str| {
            json!([
                {"type": "Ready", "status": "False", "reason": reason},
                {"type": "ContainersReady", "status": "False", "reason": reason}
            ])
        };
        for (phase, reason) in [("Succeeded", "PodCompleted"), ("Failed", "PodFailed")] {
            check(
                phase,
                json!({"phase": "Running"}),
                json!({"phase": phase, "conditions": ready.clone()}),
                false,
                json!({"phase": phase, "conditions": not(reason)}),
            );
        }
    }

    #[test]
    fn a_disruption_is_told_with_the_end() {
        let target =
            json!([{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}]);
        let shown = json!({"phase": "Running"});
        let new = json!({"phase": "Failed", "conditions": target.clone()});
        check("not before", shown.clone(), new.clone(), true, json!({"phase": "Running", "conditions": []}));
        check("then", shown, new, false, json!({"phase": "Failed", "conditions": target}));
    }
}
