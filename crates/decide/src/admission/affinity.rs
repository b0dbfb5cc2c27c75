//! Whether a pod's node selector and required node affinity let it run here.

use std::collections::BTreeMap;

use model::k8s::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use model::pod::PodView;

pub(super) fn matches(pod: &PodView, node: &str, labels: &BTreeMap<String, String>) -> bool {
    let spec = pod.spec();
    let selected = spec.node_selector.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    selected && required.is_none_or(|required| node_selected(required, node, labels))
}

/// Whether one of its terms selects this node.
pub(crate) fn node_selected(selector: &NodeSelector, node: &str, labels: &BTreeMap<String, String>) -> bool {
    selector.node_selector_terms.iter().any(|term| term_matches(term, node, labels))
}

/// A term without requirements matches nothing.
fn term_matches(term: &NodeSelectorTerm, node: &str, labels: &BTreeMap<String, String>) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    let name = |requirement: &NodeSelectorRequirement| (requirement.key == "metadata.name").then_some(node);
    expressions.iter().all(|r| requirement_met(r, labels.get(&r.key).map(String::as_str)))
        && fields.iter().all(|r| requirement_met(r, name(r)))
}

fn requirement_met(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let within = |value: &str| values.iter().any(|wanted| wanted == value);
    let number = |text: &str| text.parse::<i64>().ok();
    let compared = |holds: fn(i64, i64) -> bool| match (value.and_then(number), values) {
        (Some(value), [bound]) => number(bound).is_some_and(|bound| holds(value, bound)),
        _ => false,
    };
    match requirement.operator.as_str() {
        "In" => value.is_some_and(within),
        "NotIn" => !value.is_some_and(within),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared(|value, bound| value > bound),
        "Lt" => compared(|value, bound| value < bound),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::sample;
    use serde_json::{Value, json};

    fn check(spec: Value, expect: bool) {
        let mut full = json!({"containers": [{"name": "c"}]});
        full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let labels = [("disk", "ssd"), ("size", "7")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        assert_eq!(matches(&sample::pod(full), "here", &labels), expect, "{spec}");
    }

    fn terms(terms: Value) -> Value {
        json!({"affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
        }}})
    }

    fn one(key: &str, operator: &str, values: Value) -> Value {
        terms(json!([{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]))
    }

    #[test]
    fn selectors() {
        check(json!({}), true);
        check(json!({"nodeSelector": {"disk": "ssd"}}), true);
        check(json!({"nodeSelector": {"disk": "hdd"}}), false);
        check(json!({"nodeSelector": {"disk": "ssd", "no": "such"}}), false);
    }

    #[test]
    fn operators() {
        check(one("disk", "In", json!(["hdd", "ssd"])), true);
        check(one("disk", "In", json!(["hdd"])), false);
        check(one("none", "In", json!(["hdd"])), false);
        check(one("disk", "NotIn", json!(["hdd"])), true);
        check(one("none", "NotIn", json!(["hdd"])), true);
        check(one("disk", "NotIn", json!(["ssd"])), false);
        check(one("disk", "Exists", json!(null)), true);
        check(one("none", "Exists", json!(null)), false);
        check(one("none", "DoesNotExist", json!(null)), true);
        check(one("disk", "DoesNotExist", json!(null)), false);
        check(one("size", "Gt", json!(["6"])), true);
        check(one("size", "Gt", json!(["7"])), false);
        check(one("size", "Lt", json!(["8"])), true);
        check(one("disk", "Lt", json!(["8"])), false);
        check(one("disk", "Like", json!(["ssd"])), false);
    }

    #[test]
    fn terms_are_alternatives() {
        check(terms(json!([])), false);
        check(terms(json!([{}])), false);
        let has = |key: &str| json!({"matchExpressions": [{"key": key, "operator": "Exists"}]});
        check(terms(json!([has("none"), has("disk")])), true);
        let named = |name: &str| {
            terms(json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}]))
        };
        check(named("here"), true);
        check(named("there"), false);
    }
}
