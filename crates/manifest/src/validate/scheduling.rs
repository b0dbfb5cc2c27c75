//! Where a pod may run. A static pod is bound to its node already, but a wrong field is a wrong manifest.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    Affinity, NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm, PodSpec, Toleration,
    TopologySpreadConstraint, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::report::{Path, ValidationErrors};
use super::{selectors, syntax};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

pub(super) fn check(spec: &PodSpec, path: &Path, report: &mut ValidationErrors) {
    selectors::labels(spec.node_selector.as_ref(), &path.child("nodeSelector"), report);
    if let Some(wanted) = &spec.affinity {
        affinity(wanted, &path.child("affinity"), report);
    }
    for (index, toleration) in spec.tolerations.iter().flatten().enumerate() {
        check_toleration(toleration, &path.child("tolerations").index(index), report);
    }
    for (index, gate) in spec.readiness_gates.iter().flatten().enumerate() {
        let path = path.child("readinessGates").index(index).child("conditionType");
        report.invalid_for_each(&path, &gate.condition_type, syntax::qualified_name(&gate.condition_type));
    }
    let mut gates = BTreeSet::new();
    for (index, gate) in spec.scheduling_gates.iter().flatten().enumerate() {
        let path = path.child("schedulingGates").index(index);
        report.invalid_for_each(&path, &gate.name, syntax::qualified_name(&gate.name));
        if !gates.insert(&gate.name) {
            report.duplicate(&path, &gate.name);
        }
    }
    spread_constraints(spec, &path.child("topologySpreadConstraints"), report);
}

fn check_toleration(toleration: &Toleration, path: &Path, report: &mut ValidationErrors) {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let (key, operator) = (text(&toleration.key), text(&toleration.operator));
    let (value, effect) = (text(&toleration.value), text(&toleration.effect));
    if !key.is_empty() {
        report.invalid_for_each(&path.child("key"), &key, syntax::qualified_name(&key));
    } else if operator != "Exists" {
        report.invalid(&path.child("operator"), &operator, "must be Exists when there is no key");
    }
    if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
        report.invalid(&path.child("effect"), &effect, "must be NoExecute when tolerationSeconds is given");
    }
    match operator.as_str() {
        "Equal" | "" => report.invalid_for_each(&path.child("value"), &value, syntax::label_value(&value)),
        "Exists" if !value.is_empty() => {
            report.invalid(&path.child("value"), &value, "must be empty when the operator is Exists");
        }
        "Exists" => {}
        other => report.unsupported(&path.child("operator"), other, &["Equal", "Exists"]),
    }
    if !effect.is_empty() {
        report.one_of(&path.child("effect"), &effect, &["NoSchedule", "PreferNoSchedule", "NoExecute"]);
    }
}

fn affinity(affinity: &Affinity, path: &Path, report: &mut ValidationErrors) {
    if let Some(node) = &affinity.node_affinity {
        let path = path.child("nodeAffinity");
        if let Some(required) = &node.required_during_scheduling_ignored_during_execution {
            let path = path.child(REQUIRED).child("nodeSelectorTerms");
            if required.node_selector_terms.is_empty() {
                report.required(&path);
            }
            for (index, term) in required.node_selector_terms.iter().enumerate() {
                node_term(term, true, &path.index(index), report);
            }
        }
        for (index, term) in
            node.preferred_during_scheduling_ignored_during_execution.iter().flatten().enumerate()
        {
            let path = path.child(PREFERRED).index(index);
            report.in_range(&path.child("weight"), i64::from(term.weight), 1, 100);
            node_term(&term.preference, false, &path.child("preference"), report);
        }
    }
    if let Some(pod) = &affinity.pod_affinity {
        let required = pod.required_during_scheduling_ignored_during_execution.as_deref();
        let preferred = pod.preferred_during_scheduling_ignored_during_execution.as_deref();
        pod_terms(required, preferred, &path.child("podAffinity"), report);
    }
    if let Some(pod) = &affinity.pod_anti_affinity {
        let required = pod.required_during_scheduling_ignored_during_execution.as_deref();
        let preferred = pod.preferred_during_scheduling_ignored_during_execution.as_deref();
        pod_terms(required, preferred, &path.child("podAntiAffinity"), report);
    }
}

fn node_term(term: &NodeSelectorTerm, strict_values: bool, path: &Path, report: &mut ValidationErrors) {
    for (index, requirement) in term.match_expressions.iter().flatten().enumerate() {
        let path = path.child("matchExpressions").index(index);
        node_requirement(requirement, strict_values, &path, report);
    }
    for (index, requirement) in term.match_fields.iter().flatten().enumerate() {
        node_field(requirement, &path.child("matchFields").index(index), report);
    }
}

fn node_requirement(
    requirement: &NodeSelectorRequirement,
    strict_values: bool,
    path: &Path,
    report: &mut ValidationErrors,
) {
    let values = requirement.values.as_deref().unwrap_or_default();
    let values_path = path.child("values");
    match requirement.operator.as_str() {
        "In" | "NotIn" if values.is_empty() => {
            report.required_because(&values_path, "the operators 'In' and 'NotIn' need values");
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            report.forbidden(&values_path, "the operators 'Exists' and 'DoesNotExist' take no values");
        }
        "Gt" | "Lt" if values.len() != 1 => {
            report.required_because(&values_path, "the operators 'Gt' and 'Lt' need exactly one value");
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => report.invalid(&path.child("operator"), other, "is not an operator of selectors"),
    }
    report.invalid_for_each(&path.child("key"), &requirement.key, syntax::qualified_name(&requirement.key));
    if strict_values {
        for (index, value) in values.iter().enumerate() {
            report.invalid_for_each(&values_path.index(index), value, syntax::label_value(value));
        }
    }
}

fn node_field(requirement: &NodeSelectorRequirement, path: &Path, report: &mut ValidationErrors) {
    let values = requirement.values.as_deref().unwrap_or_default();
    match requirement.operator.as_str() {
        "In" | "NotIn" if values.len() != 1 => {
            report.required_because(&path.child("values"), "a field needs exactly one value");
        }
        "In" | "NotIn" => {}
        other => report.invalid(&path.child("operator"), other, "is not an operator of selectors"),
    }
    if requirement.key != "metadata.name" {
        return report.invalid(&path.child("key"), &requirement.key, "only metadata.name can be selected");
    }
    for (index, value) in values.iter().enumerate() {
        report.invalid_for_each(&path.child("values").index(index), value, syntax::dns_subdomain(value));
    }
}

fn pod_terms(
    required: Option<&[PodAffinityTerm]>,
    preferred: Option<&[WeightedPodAffinityTerm]>,
    path: &Path,
    report: &mut ValidationErrors,
) {
    for (index, term) in required.into_iter().flatten().enumerate() {
        pod_term(term, &path.child(REQUIRED).index(index), report);
    }
    for (index, weighted) in preferred.into_iter().flatten().enumerate() {
        let path = path.child(PREFERRED).index(index);
        report.in_range(&path.child("weight"), i64::from(weighted.weight), 1, 100);
        pod_term(&weighted.pod_affinity_term, &path.child("podAffinityTerm"), report);
    }
}

fn pod_term(term: &PodAffinityTerm, path: &Path, report: &mut ValidationErrors) {
    selectors::label_selector(term.label_selector.as_ref(), &path.child("labelSelector"), report);
    selectors::label_selector(term.namespace_selector.as_ref(), &path.child("namespaceSelector"), report);
    for (index, namespace) in term.namespaces.iter().flatten().enumerate() {
        report.invalid_for_each(
            &path.child("namespaces").index(index),
            namespace,
            syntax::dns_label(namespace),
        );
    }
    let matching = term.match_label_keys.as_deref().unwrap_or_default();
    let mismatching = term.mismatch_label_keys.as_deref().unwrap_or_default();
    label_keys(matching, mismatching, term.label_selector.as_ref(), path, report);
    if report.require_text(&path.child("topologyKey"), &term.topology_key) {
        report.invalid_for_each(
            &path.child("topologyKey"),
            &term.topology_key,
            syntax::qualified_name(&term.topology_key),
        );
    }
}

fn label_keys(
    matching: &[String],
    mismatching: &[String],
    selector: Option<&LabelSelector>,
    path: &Path,
    report: &mut ValidationErrors,
) {
    for (field, keys) in [("matchLabelKeys", matching), ("mismatchLabelKeys", mismatching)] {
        let path = path.child(field);
        if !keys.is_empty() && selector.is_none() {
            report.forbidden(&path, "must not be given without a labelSelector");
            continue;
        }
        for (index, key) in keys.iter().enumerate() {
            report.invalid_for_each(&path.index(index), key, syntax::qualified_name(key));
        }
    }
    for (index, key) in matching.iter().enumerate().filter(|(_, key)| mismatching.contains(key)) {
        let why = "is in both matchLabelKeys and mismatchLabelKeys";
        report.invalid(&path.child("matchLabelKeys").index(index), key, why);
    }
}

fn spread_constraints(spec: &PodSpec, path: &Path, report: &mut ValidationErrors) {
    let mut seen = BTreeSet::new();
    for (index, constraint) in spec.topology_spread_constraints.iter().flatten().enumerate() {
        let path = path.index(index);
        spread_constraint(constraint, &path, report);
        if !seen.insert((&constraint.topology_key, &constraint.when_unsatisfiable)) {
            let pair = format!("{{{}, {}}}", constraint.topology_key, constraint.when_unsatisfiable);
            report.duplicate(&path, &pair);
        }
    }
}

fn spread_constraint(constraint: &TopologySpreadConstraint, path: &Path, report: &mut ValidationErrors) {
    const POSITIVE: &str = "must be greater than 0";
    if constraint.max_skew <= 0 {
        report.invalid(&path.child("maxSkew"), constraint.max_skew, POSITIVE);
    }
    report.require_text(&path.child("topologyKey"), &constraint.topology_key);
    let action = constraint.when_unsatisfiable.as_str();
    report.one_of(&path.child("whenUnsatisfiable"), action, &["DoNotSchedule", "ScheduleAnyway"]);
    if let Some(domains) = constraint.min_domains {
        if domains <= 0 {
            report.invalid(&path.child("minDomains"), domains, POSITIVE);
        }
        if action != "DoNotSchedule" {
            report.invalid(
                &path.child("minDomains"),
                domains,
                "goes only with whenUnsatisfiable DoNotSchedule",
            );
        }
    }
    let policies = [
        ("nodeAffinityPolicy", &constraint.node_affinity_policy),
        ("nodeTaintsPolicy", &constraint.node_taints_policy),
    ];
    for (field, policy) in policies {
        if let Some(policy) = policy {
            report.one_of(&path.child(field), policy, &["Honor", "Ignore"]);
        }
    }
    let keys = constraint.match_label_keys.as_deref().unwrap_or_default();
    label_keys(keys, &[], constraint.label_selector.as_ref(), path, report);
    selectors::label_selector(constraint.label_selector.as_ref(), &path.child("labelSelector"), report);
}
