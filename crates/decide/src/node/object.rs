//! The Node object as this agent makes it, and what it sets right on one that is there already.

use std::collections::BTreeMap;

use model::k8s::{Node, NodeSpec, NodeStatus, ObjectMeta, Quantity, Taint};
use model::node::{HostFacts, NodeObjectConfig};

use super::is_extended;
use crate::resources::HUGE_PAGES_PREFIX;

const ATTACH_DETACH: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
pub(super) const HOSTNAME: &str = "kubernetes.io/hostname";

/// Set again on every registration, if this agent has a value for them.
const DEFAULT_LABELS: &[&str] = &[
    HOSTNAME,
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "node.kubernetes.io/windows-build",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];

/// Everything but the status.
pub fn node_without_status(setup: &NodeObjectConfig, facts: &HostFacts) -> Node {
    let mut labels: BTreeMap<String, String> = platform_labels(facts).into();
    labels.insert(HOSTNAME.into(), setup.hostname.clone());
    labels.extend(setup.labels.clone());
    let annotations =
        setup.attach_by_controller.then(|| BTreeMap::from([(ATTACH_DETACH.to_owned(), "true".to_owned())]));
    let mut taints = setup.taints.clone();
    if setup.external_cloud {
        taints.push(Taint {
            key: "node.cloudprovider.kubernetes.io/uninitialized".into(),
            value: Some("true".into()),
            effect: "NoSchedule".into(),
            time_added: None,
        });
    }
    Node {
        metadata: ObjectMeta {
            name: Some(setup.name.clone()),
            labels: Some(labels),
            annotations,
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            taints: (!taints.is_empty()).then_some(taints),
            provider_id: Some(setup.provider_id.clone()).filter(|id| !id.is_empty()),
            ..NodeSpec::default()
        }),
        status: None,
    }
}

pub(super) fn platform_labels(facts: &HostFacts) -> [(String, String); 4] {
    let arch = facts.architecture.as_str();
    [
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", arch),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", arch),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
}

/// Sets the labels by which workloads choose a platform, if they are not right.
pub fn require_platform_labels(node: &mut Node, facts: &HostFacts) {
    let labels = node.metadata.labels.get_or_insert_default();
    let [os, arch, ..] = platform_labels(facts);
    labels.extend([os, arch]);
}

/// Sets right what an object from before must have in common with the one that this agent would make. Its spec, its
/// taints and its other labels are not touched.
///
/// `devices_unknown`: nothing is on record of devices, so that resources of device plugins count as gone.
pub fn reconcile(existing: &mut Node, initial: &Node, devices_unknown: bool) {
    reconcile_annotation(existing, initial);
    reconcile_labels(existing, initial);
    let wanted = initial.status.clone().unwrap_or_default();
    let status = existing.status.get_or_insert_default();
    status.capacity.get_or_insert_default();
    status.allocatable.get_or_insert_default();
    if devices_unknown {
        zero_extended(status);
    }
    for (has, wanted) in
        [(&mut status.capacity, &wanted.capacity), (&mut status.allocatable, &wanted.allocatable)]
    {
        reconcile_huge_pages(has.get_or_insert_default(), wanted.as_ref());
    }
}

fn reconcile_annotation(existing: &mut Node, initial: &Node) {
    let wanted = initial.metadata.annotations.as_ref().and_then(|all| all.get(ATTACH_DETACH));
    match wanted {
        Some(value) => {
            let annotations = existing.metadata.annotations.get_or_insert_default();
            annotations.insert(ATTACH_DETACH.into(), value.clone());
        }
        None => {
            if let Some(annotations) = &mut existing.metadata.annotations {
                annotations.remove(ATTACH_DETACH);
            }
        }
    }
}

fn reconcile_labels(existing: &mut Node, initial: &Node) {
    let wanted = initial.metadata.labels.as_ref();
    let labels = existing.metadata.labels.get_or_insert_default();
    for key in DEFAULT_LABELS {
        match wanted.and_then(|wanted| wanted.get(*key)) {
            None => {}
            Some(value) if value.is_empty() => {
                labels.remove(*key);
            }
            Some(value) => {
                labels.insert((*key).to_owned(), value.clone());
            }
        }
    }
}

fn zero_extended(status: &mut NodeStatus) {
    for list in [&mut status.capacity, &mut status.allocatable].into_iter().flatten() {
        for (_, amount) in list.iter_mut().filter(|(name, _)| is_extended(name)) {
            *amount = Quantity("0".into());
        }
    }
}

fn reconcile_huge_pages(has: &mut BTreeMap<String, Quantity>, wanted: Option<&BTreeMap<String, Quantity>>) {
    let is_huge = |name: &String| name.starts_with(HUGE_PAGES_PREFIX);
    has.retain(|name, _| !is_huge(name) || wanted.is_some_and(|wanted| wanted.contains_key(name)));
    let pages = wanted.into_iter().flatten().filter(|(name, _)| is_huge(name));
    has.extend(pages.map(|(name, amount)| (name.clone(), amount.clone())));
}
