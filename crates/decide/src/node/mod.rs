//! The Node object: what this agent says about its node, and when.
//!
//! ```text
//!   setup, facts, runtime, images ──> set_status ──> status_changed? due? ──> patch
//! ```
//!
//! Nothing here sends anything. The engine's `node_reconciler` asks on every change of an input and at every heartbeat.

mod addresses;
mod conditions;
mod object;
mod patch;
mod report;
mod runtime;
mod start;
mod status;

pub use addresses::{AddressError, UnusableAddress};
pub use object::{node_without_status, reconcile, require_platform_labels};
pub use patch::patch;
pub use report::{StatusReportSchedule, changed_for_pods, pod_cidrs, status_changed};
pub use runtime::RuntimeSnapshot;
pub use start::events_at_start;
pub use status::{NodeStatusInputs, NodeStatusOutcome, ReportedEvents, set_status};

pub use model::eviction::NodePressure;
pub use model::node::{CapacityRules, NodeObjectConfig, ThresholdValue};

use model::Now;
use model::k8s::Node;

/// The object as it is made when there is none.
pub fn initial_node(
    inputs: &NodeStatusInputs<'_>,
    told: &mut ReportedEvents,
    now: Now,
) -> (Node, NodeStatusOutcome) {
    let mut node = node_without_status(inputs.setup, inputs.facts);
    let outcome = set_status(&mut node, inputs, told, now);
    (node, outcome)
}

/// Resources that neither Kubernetes nor this agent knows: whoever put them there counts them.
pub(crate) fn is_extended(name: &str) -> bool {
    let native = !name.contains('/') || name.contains("kubernetes.io/");
    !native && !name.starts_with("requests.")
}

const USER_NAMESPACES_HOST_NETWORK: &str = "UserNamespacesHostNetworkSupport";

/// The features that pods may ask a node for, of those that this agent has and whose gates are on. Sorted.
pub fn declared_features(enabled: impl Fn(&str) -> bool) -> Vec<String> {
    const KNOWN: [&str; 3] =
        ["ExtendWebSocketsToKubelet", "RestartAllContainersOnContainerExits", USER_NAMESPACES_HOST_NETWORK];
    if !enabled("NodeDeclaredFeatures") {
        return Vec::new();
    }
    KNOWN.into_iter().filter(|gate| enabled(gate)).map(str::to_owned).collect()
}

/// Those of them that the runtime has too. Of a runtime that has not answered nothing is promised.
pub(crate) fn features_with_runtime(
    setup: &NodeObjectConfig,
    user_namespaces_host_network: bool,
) -> Vec<String> {
    let there = |name: &&String| *name != USER_NAMESPACES_HOST_NETWORK || user_namespaces_host_network;
    setup.declared_features.iter().filter(there).cloned().collect()
}

#[cfg(test)]
mod tests;
