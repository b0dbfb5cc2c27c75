//! What the containers of a pod ask for together.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use model::quantity::Quantity;

pub(super) type Amounts = BTreeMap<String, Quantity>;
type ApiAmounts = BTreeMap<String, ApiQuantity>;

/// The amounts of a resource list that parse; the others are the codec's to refuse.
pub(super) fn amounts(list: Option<&ApiAmounts>) -> Amounts {
    list.into_iter()
        .flatten()
        .filter_map(|(name, amount)| Some((name.clone(), Quantity::try_from(amount).ok()?)))
        .collect()
}

pub(super) fn container_requests(spec: &PodSpec) -> Amounts {
    aggregate(spec, |resources| resources.requests.as_ref())
}

pub(super) fn container_limits(spec: &PodSpec) -> Amounts {
    aggregate(spec, |resources| resources.limits.as_ref())
}

pub(super) fn is_sidecar(init_container: &Container) -> bool {
    init_container.restart_policy.as_deref() == Some("Always")
}

pub(super) fn is_huge_page(resource: &str) -> bool {
    resource.starts_with("hugepages-")
}

/// Whether more of the resource may be promised than there is: true for what belongs to Kubernetes itself,
/// except huge pages.
pub(super) fn may_overcommit(resource: &str) -> bool {
    is_native(resource) && !is_huge_page(resource)
}

pub(super) fn is_native(resource: &str) -> bool {
    !resource.contains('/') || resource.contains("kubernetes.io/")
}

/// The resources that may be set for a pod as a whole.
pub(super) fn is_pod_level(resource: &str) -> bool {
    matches!(resource, "cpu" | "memory") || is_huge_page(resource)
}

/// Regular containers and sidecars run at the same time; an init container runs beside the sidecars before it.
fn aggregate(spec: &PodSpec, list: impl Fn(&ResourceRequirements) -> Option<&ApiAmounts>) -> Amounts {
    let of = |container: &Container| amounts(container.resources.as_ref().and_then(&list));
    let mut running = Amounts::new();
    for container in &spec.containers {
        add(&mut running, &of(container));
    }
    let mut sidecars = Amounts::new();
    let mut initialising = Amounts::new();
    for container in spec.init_containers.iter().flatten() {
        let mut at_once = of(container);
        if is_sidecar(container) {
            add(&mut running, &at_once);
            add(&mut sidecars, &at_once);
            raise(&mut initialising, &sidecars);
        } else {
            add(&mut at_once, &sidecars);
            raise(&mut initialising, &at_once);
        }
    }
    raise(&mut running, &initialising);
    running
}

fn add(total: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        *total.entry(name.clone()).or_default() += *amount;
    }
}

fn raise(total: &mut Amounts, at_least: &Amounts) {
    for (name, amount) in at_least {
        let entry = total.entry(name.clone()).or_insert(*amount);
        *entry = (*entry).max(*amount);
    }
}
