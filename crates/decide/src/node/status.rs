//! The status of the Node object, part by part, always in the same order. If a part fails, that is logged and the other
//! parts are set all the same.

use std::collections::BTreeMap;

use model::cri::Image;
use model::eviction::NodePressure;
use model::k8s::{
    ContainerImage, DaemonEndpoint, Node, NodeDaemonEndpoints, NodeFeatures, NodeRuntimeHandler,
    NodeRuntimeHandlerFeatures, NodeStatus, NodeSwapStatus, NodeSystemInfo, Quantity,
};
use model::node::{HostFacts, NodeObjectConfig};
use model::{ApiEvent, Mono, Now};

use super::conditions;
use super::runtime::{self, RuntimeSnapshot};
use super::{addresses, is_extended};
use crate::resources::{Amounts, CPU, EPHEMERAL_STORAGE, HUGE_PAGES_PREFIX, MEMORY, capacity};

/// How many names of one image are listed.
const NAMES_PER_IMAGE: usize = 5;
/// Longer than any reference of a registry.
const LONGEST_IMAGE_NAME: usize = 1024;

/// The inputs of the status.
pub struct NodeStatusInputs<'a> {
    pub setup: &'a NodeObjectConfig,
    pub facts: &'a HostFacts,
    pub runtime: &'a RuntimeSnapshot,
    /// `None`: not listed yet.
    pub images: Option<&'a [Image]>,
    pub pressure: NodePressure,
    /// Further reasons for not being ready: of storage, then of a shutdown.
    pub not_ready_reasons: &'a [String],
    /// `None`: not known yet.
    pub volumes_in_use: Option<&'a [String]>,
}

/// Which one-time Events were already sent. Kept when the Node object is deleted and recreated, so that they are not
/// repeated.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReportedEvents {
    reboot: bool,
    unschedulable: bool,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct NodeStatusOutcome {
    pub events: Vec<ApiEvent>,
    /// For the log.
    pub log_messages: Vec<String>,
    /// When the status will change by time alone.
    pub changes_at: Option<Mono>,
}

/// Sets the status from the inputs.
pub fn set_status(
    node: &mut Node,
    inputs: &NodeStatusInputs<'_>,
    told: &mut ReportedEvents,
    now: Now,
) -> NodeStatusOutcome {
    let mut outcome = NodeStatusOutcome::default();
    if let Err(error) = addresses::set(node, inputs.setup, &inputs.facts.addresses) {
        outcome.log_messages.push(error.to_string());
    }
    let unschedulable = node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false);
    let status = node.status.get_or_insert_default();
    outcome.events.extend(reboot(status, inputs, told));
    set_resources(status, inputs);
    status.node_info = Some(node_info(inputs));
    let port = DaemonEndpoint { port: inputs.setup.port };
    status.daemon_endpoints = Some(NodeDaemonEndpoints { kubelet_endpoint: Some(port) });
    if let Some(images) = inputs.images {
        status.images = some(shown_images(images, inputs.setup.max_images));
    }
    set_runtime_features(status, inputs.runtime);
    let (mut errors, wake) = runtime::readiness_errors(inputs.runtime, inputs.setup.relist_threshold, now);
    errors.extend_from_slice(inputs.not_ready_reasons);
    errors.extend(missing_capacity(status, inputs.setup));
    outcome.changes_at = wake;
    outcome.events.extend(conditions::set(
        status.conditions.get_or_insert_default(),
        &inputs.setup.name,
        inputs.pressure,
        runtime::aggregate(&errors),
        &now.wall.api_time(),
    ));
    if let Some(volumes) = inputs.volumes_in_use {
        status.volumes_in_use = some(volumes.to_vec());
    }
    if told.unschedulable != unschedulable {
        told.unschedulable = unschedulable;
        let reason = if unschedulable { "NodeNotSchedulable" } else { "NodeSchedulable" };
        outcome.events.push(conditions::status_event(&inputs.setup.name, reason));
    }
    let host_network = inputs.runtime.status.as_ref().is_some_and(|s| s.user_namespaces_host_network);
    status.declared_features = some(super::features_with_runtime(inputs.setup, host_network));
    outcome
}

/// The API server drops empty lists, so they would always look changed.
fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

fn reboot(status: &NodeStatus, inputs: &NodeStatusInputs<'_>, told: &mut ReportedEvents) -> Option<ApiEvent> {
    let before = status.node_info.as_ref().map(|info| info.boot_id.as_str()).unwrap_or_default();
    let boot = &inputs.facts.boot_id;
    if before.is_empty() || before == boot || told.reboot {
        return None;
    }
    told.reboot = true;
    let message = format!("Node {} has been rebooted, boot id: {boot}", inputs.setup.name);
    Some(ApiEvent::warning("Rebooted", message))
}

/// Keeps resources of other writers; removes huge pages of sizes that no longer exist.
fn set_resources(status: &mut NodeStatus, inputs: &NodeStatusInputs<'_>) {
    let rules = &inputs.setup.capacity;
    let own = capacity::capacity(rules, inputs.facts);
    let mut all = Amounts::from_api(status.capacity.as_ref());
    all = all.iter().filter(|(name, _)| !is_own(name) || own.get(name).is_some()).collect();
    for (name, amount) in own.iter() {
        all.set(name, amount);
    }
    let mut allocatable = Amounts::from_api(status.allocatable.as_ref());
    allocatable = allocatable
        .iter()
        .filter(|(name, _)| all.get(name).is_some() || !(is_extended(name) || is_own(name)))
        .collect();
    for (name, amount) in capacity::allocatable(&all, &capacity::reserved_amounts(rules, &all)).iter() {
        allocatable.set(name, amount);
    }
    status.capacity = Some(to_api(&all));
    status.allocatable = Some(to_api(&allocatable));
}

/// Resources that only this agent reports.
fn is_own(name: &str) -> bool {
    name == EPHEMERAL_STORAGE || name.starts_with(HUGE_PAGES_PREFIX)
}

pub(super) fn to_api(amounts: &Amounts) -> BTreeMap<String, Quantity> {
    amounts.iter().map(|(name, amount)| (name.to_owned(), amount.to_api())).collect()
}

fn node_info(inputs: &NodeStatusInputs<'_>) -> NodeSystemInfo {
    let (facts, runtime) = (inputs.facts, inputs.runtime);
    let swap = i64::try_from(facts.swap_bytes).ok().filter(|bytes| *bytes != 0);
    NodeSystemInfo {
        machine_id: facts.machine_id.clone(),
        system_uuid: facts.system_uuid.clone(),
        boot_id: facts.boot_id.clone(),
        kernel_version: facts.kernel_release.clone(),
        os_image: facts.os_image.clone(),
        container_runtime_version: match runtime.answered_at {
            Some(_) => format!("{}://{}", runtime.name, runtime.version),
            None => "Unknown".into(),
        },
        kubelet_version: inputs.setup.kubelet_version.clone(),
        kube_proxy_version: String::new(),
        operating_system: "linux".into(),
        architecture: facts.architecture.clone(),
        swap: swap.map(|bytes| NodeSwapStatus { capacity: Some(bytes) }),
    }
}

/// The largest images, the largest first.
fn shown_images(images: &[Image], most: i32) -> Vec<ContainerImage> {
    let mut sorted: Vec<&Image> = images.iter().collect();
    sorted.sort_by(|a, b| (b.size, &b.id).cmp(&(a.size, &a.id)));
    sorted.truncate(usize::try_from(most).unwrap_or(usize::MAX));
    let names = |image: &Image| {
        let names = image.repo_digests.iter().chain(&image.repo_tags);
        names.filter(|name| name.len() <= LONGEST_IMAGE_NAME).take(NAMES_PER_IMAGE).cloned().collect()
    };
    let shown = |image: &&Image| ContainerImage {
        names: some(names(image)),
        size_bytes: i64::try_from(image.size).ok().filter(|size| *size != 0),
    };
    sorted.iter().map(shown).collect()
}

fn set_runtime_features(status: &mut NodeStatus, runtime: &RuntimeSnapshot) {
    let Some(said) = &runtime.status else { return };
    let handler = |handler: &model::cri::RuntimeHandler| NodeRuntimeHandler {
        // The default handler has the empty name, which the API omits.
        name: Some(handler.name.clone()).filter(|name| !name.is_empty()),
        features: Some(NodeRuntimeHandlerFeatures {
            recursive_read_only_mounts: Some(handler.recursive_read_only_mounts),
            user_namespaces: Some(handler.user_namespaces),
        }),
    };
    let mut handlers: Vec<_> = said.handlers.iter().collect();
    handlers.sort_by(|a, b| a.name.cmp(&b.name));
    // A runtime that reports handlers also reports features. An older runtime reports neither.
    let tells = said.supplemental_groups_policy || !handlers.is_empty();
    status.features =
        tells.then_some(NodeFeatures { supplemental_groups_policy: Some(said.supplemental_groups_policy) });
    status.runtime_handlers = some(handlers.into_iter().map(handler).collect());
}

fn missing_capacity(status: &NodeStatus, setup: &NodeObjectConfig) -> Option<String> {
    let wanted = [CPU, MEMORY, capacity::PODS, EPHEMERAL_STORAGE];
    let wanted = wanted.into_iter().filter(|name| *name != EPHEMERAL_STORAGE || setup.capacity.local_storage);
    let missing: Vec<&str> =
        wanted.filter(|name| !status.capacity.as_ref().is_some_and(|has| has.contains_key(*name))).collect();
    (!missing.is_empty()).then(|| format!("missing node capacity for resources: {}", missing.join(", ")))
}
