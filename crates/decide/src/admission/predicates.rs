//! Whether a pod fits beside the others: room, place, ports and taints.

use std::collections::BTreeMap;

use model::k8s::{Node, Taint, Toleration};
use model::pod::PodView;

use super::{AdmissionFailure, AdmissionInputs, AdmissionRejection, RequestedByOthers, affinity, host_ports};
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

/// A resource of which the node has too little left for a pod.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Shortage {
    pub name: String,
    pub requested: i64,
    pub used: i64,
    pub capacity: i64,
}

impl Shortage {
    /// How much would have to be freed.
    pub(crate) fn lacking(&self) -> i64 {
        self.requested.saturating_sub(self.capacity.saturating_sub(self.used))
    }

    /// The same when others have released so much.
    pub(crate) fn after(mut self, released: i64) -> Self {
        self.used = self.used.saturating_sub(released);
        self
    }
}

impl From<Shortage> for AdmissionRejection {
    fn from(Shortage { name, requested, used, capacity }: Shortage) -> Self {
        AdmissionRejection {
            reason: format!("OutOf{name}"),
            message: format!(
                "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}"
            ),
        }
    }
}

/// How much a pod with these requests takes of a resource: CPU in thousandths, and every pod is one of `pods`.
pub(crate) fn amount_of(resource: &str, requests: &Amounts) -> i64 {
    match resource {
        PODS => 1,
        CPU => requests.cpu_millis(),
        other => requests.amount(other).value(),
    }
}

struct Mismatch {
    name: &'static str,
    description: &'static str,
}

const NODE_AFFINITY: &str = "NodeAffinity";

impl From<&Mismatch> for AdmissionRejection {
    fn from(Mismatch { name, description }: &Mismatch) -> Self {
        AdmissionRejection {
            reason: (*name).into(),
            message: format!("Predicate {name} failed: {description}"),
        }
    }
}

/// Reports the first failure. What room would not mend is reported first for a critical pod, because room can be made
/// for it.
pub(super) fn check(pod: &PodView, place: &AdmissionInputs<'_>) -> Result<(), AdmissionFailure> {
    let terms = NodeConstraints::of(place);
    let shortages = resource_failures(pod, place.others, &terms.allocatable);
    let mismatches = predicate_failures(pod, place, &terms);
    let critical = is_critical(pod);
    let Some(first) = mismatches.first() else {
        return match shortages.first() {
            None => Ok(()),
            Some(_) if critical => Err(AdmissionFailure::NeedsRoom(shortages)),
            Some(first) => Err(AdmissionFailure::Refused(first.clone().into())),
        };
    };
    if let Some(short) = shortages.first().filter(|_| !critical) {
        return Err(AdmissionFailure::Refused(short.clone().into()));
    }
    let refusal = first.into();
    Err(match mismatches.iter().all(|mismatch| mismatch.name == NODE_AFFINITY) {
        true => AdmissionFailure::OnlyNodeAffinity(refusal),
        false => AdmissionFailure::Refused(refusal),
    })
}

fn resource_failures(pod: &PodView, others: &RequestedByOthers, allocatable: &Amounts) -> Vec<Shortage> {
    let mut failures = Vec::new();
    let mut compare = |name: &str, requested: i64, used: i64, capacity: i64| {
        if requested > 0 && requested > capacity.saturating_sub(used) {
            failures.push(Shortage { name: name.to_owned(), requested, used, capacity });
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

fn predicate_failures(pod: &PodView, place: &AdmissionInputs<'_>, terms: &NodeConstraints) -> Vec<Mismatch> {
    let node = place.config.node_name.as_str();
    let named = pod.spec().node_name.as_deref().unwrap_or_default();
    let failed = [
        (
            !affinity::matches(pod, node, &terms.labels),
            NODE_AFFINITY,
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
    failed.map(|(_, name, description)| Mismatch { name, description }).collect()
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
