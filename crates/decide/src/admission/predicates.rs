//! Whether a pod fits beside the others: room, place, ports and taints.

use std::collections::BTreeMap;

use model::k8s::{Node, Taint, Toleration};
use model::pod::PodView;

use super::{AdmissionInputs, AdmissionRejection, RequestedByOthers, affinity, host_ports};
use crate::node::is_extended;
use crate::resources::capacity::PODS;
use crate::resources::{
    Amounts, CPU, EPHEMERAL_STORAGE, MEMORY, Overhead, is_critical, node_allocatable, pod_requests,
};

/// The node as pods see it: its object in the cluster, or, without one, what this agent would make it.
struct NodeConstraints {
    labels: BTreeMap<String, String>,
    taints: Vec<Taint>,
    allocatable: Amounts,
}

impl NodeConstraints {
    fn of(place: &AdmissionInputs<'_>) -> Self {
        let bare;
        let node: &Node = match place.node {
            Some(node) => node,
            None => {
                bare = crate::node::node_without_status(&place.config.node_object, place.facts);
                &bare
            }
        };
        let shown = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        Self {
            labels: node.metadata.labels.clone().unwrap_or_default(),
            taints: node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default(),
            allocatable: match shown.filter(|shown| !shown.is_empty()) {
                Some(shown) => Amounts::from_api(Some(shown)),
                None => node_allocatable(place.config, place.facts),
            },
        }
    }
}

enum PredicateFailure {
    Resource { name: String, requested: i64, used: i64, capacity: i64 },
    Predicate { name: &'static str, description: &'static str },
}

impl From<PredicateFailure> for AdmissionRejection {
    fn from(failure: PredicateFailure) -> Self {
        match failure {
            PredicateFailure::Resource { name, requested, used, capacity } => AdmissionRejection {
                reason: format!("OutOf{name}"),
                message: format!(
                    "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, \
                     capacity: {capacity}"
                ),
            },
            PredicateFailure::Predicate { name, description } => AdmissionRejection {
                reason: name.into(),
                message: format!("Predicate {name} failed: {description}"),
            },
        }
    }
}

/// Reports the first failure. For a critical pod a lack of resources is reported last, because preemption could free
/// them.
pub(super) fn check(pod: &PodView, place: &AdmissionInputs<'_>) -> Result<(), AdmissionRejection> {
    let terms = NodeConstraints::of(place);
    let mut failures = resource_failures(pod, place.others, &terms.allocatable);
    failures.extend(predicate_failures(pod, place, &terms));
    if is_critical(pod) && failures.iter().any(|f| matches!(f, PredicateFailure::Predicate { .. })) {
        failures.retain(|failure| matches!(failure, PredicateFailure::Predicate { .. }));
    }
    failures.into_iter().next().map_or(Ok(()), |first| Err(first.into()))
}

fn resource_failures(
    pod: &PodView,
    others: &RequestedByOthers,
    allocatable: &Amounts,
) -> Vec<PredicateFailure> {
    let mut failures = Vec::new();
    let mut compare = |name: &str, requested: i64, used: i64, capacity: i64| {
        if requested > 0 && requested > capacity.saturating_sub(used) {
            failures.push(PredicateFailure::Resource { name: name.to_owned(), requested, used, capacity });
        }
    };
    let count = i64::try_from(others.pods()).unwrap_or(i64::MAX);
    compare(PODS, 1, count, allocatable.amount(PODS).value());
    let requests = pod_requests(pod, Overhead::Included);
    let milli = |amounts: &Amounts| amounts.amount(CPU).milli_value();
    compare(CPU, milli(&requests), others.requested(CPU).milli_value(), milli(allocatable));
    let value = |amounts: &Amounts, name: &str| amounts.amount(name).value();
    // Nobody counts what the node does not show: the scheduler's extenders may.
    let uncounted = |name: &str| is_extended(name) && allocatable.get(name).is_none();
    let scalars = requests.iter().map(|(name, _)| name);
    let scalars = scalars.filter(|name| ![CPU, MEMORY, EPHEMERAL_STORAGE].contains(name) && !uncounted(name));
    for name in [MEMORY, EPHEMERAL_STORAGE].into_iter().chain(scalars) {
        compare(name, value(&requests, name), others.requested(name).value(), value(allocatable, name));
    }
    failures
}

fn predicate_failures(
    pod: &PodView,
    place: &AdmissionInputs<'_>,
    terms: &NodeConstraints,
) -> Vec<PredicateFailure> {
    let node = place.config.node_name.as_str();
    let named = pod.spec().node_name.as_deref().unwrap_or_default();
    let failed = [
        (
            !affinity::matches(pod, node, &terms.labels),
            "NodeAffinity",
            "node(s) didn't match Pod's node affinity/selector",
        ),
        (!named.is_empty() && named != node, "NodeName", "node(s) didn't match the requested node name"),
        (
            place.others.conflicts_with(&host_ports(pod)),
            "NodePorts",
            "node(s) didn't have free ports for the requested pod ports",
        ),
        (
            !pod.source.is_static() && !tolerates(pod, &terms.taints),
            "TaintToleration",
            "node(s) had taints that the pod didn't tolerate",
        ),
    ];
    let failed = failed.into_iter().filter(|(failed, ..)| *failed);
    failed.map(|(_, name, description)| PredicateFailure::Predicate { name, description }).collect()
}

/// Whether none of the taints that drive pods away applies.
fn tolerates(pod: &PodView, taints: &[Taint]) -> bool {
    let mut driving = taints.iter().filter(|taint| taint.effect == "NoExecute");
    driving.all(|taint| tolerates_taint(pod, taint))
}

pub(super) fn tolerates_taint(pod: &PodView, taint: &Taint) -> bool {
    let tolerations = pod.spec().tolerations.as_deref().unwrap_or_default();
    tolerations.iter().any(|toleration| matches_taint(toleration, taint))
}

fn matches_taint(toleration: &Toleration, taint: &Taint) -> bool {
    fn given(text: &Option<String>) -> &str {
        text.as_deref().unwrap_or_default()
    }
    let (effect, key) = (given(&toleration.effect), given(&toleration.key));
    if (!effect.is_empty() && effect != taint.effect) || (!key.is_empty() && key != taint.key) {
        return false;
    }
    let (value, bound) = (given(&taint.value), given(&toleration.value));
    let numbers = || Some((value.parse::<i64>().ok()?, bound.parse::<i64>().ok()?));
    match given(&toleration.operator) {
        "" | "Equal" => value == bound,
        "Exists" => true,
        "Lt" => numbers().is_some_and(|(value, bound)| value < bound),
        "Gt" => numbers().is_some_and(|(value, bound)| value > bound),
        _ => false,
    }
}
