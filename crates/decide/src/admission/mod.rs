//! Whether a pod may run here at all. The first refusal wins.
//!
//! A critical pod that only lacks room is not refused: `preemption` chooses the pods that have to go. One that only node
//! affinity keeps away is refused after the Node object was read again. Both waits are in `pending`; what leads into and out
//! of them is `step/admission.rs`.
//!
//! Devices and node shutdown join with their capabilities (see `docs/gaps.md`).

mod affinity;
mod pending;
mod predicates;
mod preemption;
mod requested_by_others;

pub(crate) use affinity::node_selected;
pub use pending::PendingAdmissions;
pub(crate) use predicates::{Shortage, amount_of};
pub(crate) use preemption::{Candidate, choose_victims, may_preempt};
pub use requested_by_others::{HostPort, RequestedByOthers, host_ports};

use model::eviction::NodePressure;
use model::k8s::{Node, Taint};
use model::node::{HostFacts, NodeConfig};
use model::pod::{PodView, QosClass, Source};
use model::{PodPhase, PodReason};

use crate::resources::{is_critical, qos_class};
use crate::runtime_health::RuntimeHealth;

/// A refusal, as it is shown in the pod's status.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdmissionRejection {
    pub reason: String,
    pub message: String,
}

impl AdmissionRejection {
    fn new(reason: &str, message: impl Into<String>) -> Self {
        Self { reason: reason.into(), message: message.into() }
    }

    /// Of a critical pod for which no room can be made.
    pub(crate) fn preemption_failed(why: &str) -> Self {
        Self::new(
            "UnexpectedAdmissionError",
            format!(
                "Unexpected error while attempting to recover from admission failure: \
                 preemption: error finding a set of pods to preempt: {why}"
            ),
        )
    }

    /// Of a pod that was let in before that was known.
    pub(crate) fn no_room_for_volumes(message: String) -> Self {
        Self::new("VolumeAttachmentLimitExceeded", message)
    }
}

/// Why a pod can't run here now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum AdmissionFailure {
    Refused(AdmissionRejection),
    /// Nothing but node affinity speaks against it. The Node object may have changed meanwhile.
    OnlyNodeAffinity(AdmissionRejection),
    /// A critical pod that lacks nothing but these resources.
    NeedsRoom(Vec<Shortage>),
}

impl From<AdmissionRejection> for AdmissionFailure {
    fn from(rejection: AdmissionRejection) -> Self {
        AdmissionFailure::Refused(rejection)
    }
}

/// Whether an earlier agent admitted the pod, as far as its status tells.
pub(crate) fn was_admitted(pod: &PodView) -> bool {
    let Some(status) = pod.pod.status.as_ref() else { return false };
    // Only a kubelet writes the start time, and only of a pod that it has admitted. A pod that has ended needs nothing.
    let over = PodPhase::of(status).is_some_and(PodPhase::is_terminal);
    pod.source == Source::Api && (over || status.start_time.is_some())
}

/// Where the pod would run.
pub struct AdmissionInputs<'a> {
    pub config: &'a NodeConfig,
    pub facts: &'a HostFacts,
    /// The node's object, if there is one.
    pub node: Option<&'a Node>,
    pub runtime: &'a RuntimeHealth,
    /// Pods that already count on this node.
    pub others: &'a RequestedByOthers,
    /// What the node is short of.
    pub pressure: NodePressure,
}

pub(crate) fn admit(pod: &PodView, place: &AdmissionInputs<'_>) -> Result<(), AdmissionFailure> {
    let (config, facts) = (place.config, place.facts);
    node_pressure(pod, place.pressure)?;
    crate::render::sysctls::admission(pod, &config.allowed_unsafe_sysctls, &facts.kernel_release)
        .map_err(|(reason, message)| AdmissionRejection::new(reason, message))?;
    operating_system(pod)?;
    supplemental_groups(pod, place)?;
    let fits = predicates::check(pod, place);
    // No pod has to go for one that is refused all the same.
    if !matches!(fits, Ok(()) | Err(AdmissionFailure::NeedsRoom(_))) {
        return fits;
    }
    app_armor(pod, facts)?;
    pod_level_resources(pod, config)?;
    resource_claims(pod)?;
    declared_features(pod, place)?;
    fits
}

/// A node that is short of something takes critical pods only. When it is short of memory alone, also pods that request
/// some, and those that say that they can bear it.
fn node_pressure(pod: &PodView, pressure: NodePressure) -> Result<(), AdmissionRejection> {
    let conditions = pressure.conditions();
    if conditions.is_empty() || is_critical(pod) {
        return Ok(());
    }
    let memory_alone = NodePressure { memory: true, ..NodePressure::default() };
    let bears_it =
        || qos_class(pod) != QosClass::BestEffort || predicates::tolerates_taint(pod, &memory_pressure());
    if pressure == memory_alone && bears_it() {
        return Ok(());
    }
    let message = format!("The node had condition: [{}]. ", conditions.join(" "));
    Err(AdmissionRejection::new(PodReason::Evicted.as_str(), message))
}

fn memory_pressure() -> Taint {
    Taint {
        key: "node.kubernetes.io/memory-pressure".into(),
        effect: "NoSchedule".into(),
        ..Taint::default()
    }
}

/// A container that starts without the device which it was promised fails in ways that nobody can explain.
fn resource_claims(pod: &PodView) -> Result<(), AdmissionRejection> {
    let status = pod.pod.status.as_ref();
    let named = pod.spec().resource_claims.as_ref().is_some_and(|claims| !claims.is_empty());
    let made = status.is_some_and(|status| status.extended_resource_claim_status.is_some());
    if !named && !made {
        return Ok(());
    }
    Err(AdmissionRejection::new(
        "PodFeatureUnsupported",
        "Pod uses resource claims, and this node does not support dynamic resource allocation yet",
    ))
}

fn operating_system(pod: &PodView) -> Result<(), AdmissionRejection> {
    let label = pod.pod.metadata.labels.as_ref().and_then(|l| l.get("kubernetes.io/os"));
    if label.is_some_and(|os| os != "linux") {
        return Err(AdmissionRejection::new(
            "PodOSSelectorNodeLabelDoesNotMatch",
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        ));
    }
    if pod.spec().os.as_ref().is_some_and(|os| os.name != "linux") {
        return Err(AdmissionRejection::new(
            "PodOSNotSupported",
            "Failed to admit pod as the OS field doesn't match node OS",
        ));
    }
    Ok(())
}

/// A runtime that was never heard of may well support it.
fn supplemental_groups(pod: &PodView, place: &AdmissionInputs<'_>) -> Result<(), AdmissionRejection> {
    let context = pod.spec().security_context.as_ref();
    if context.and_then(|c| c.supplemental_groups_policy.as_deref()) != Some("Strict") {
        return Ok(());
    }
    let features =
        place.node.and_then(|node| node.status.as_ref()).and_then(|status| status.features.as_ref());
    let supported = match features.and_then(|features| features.supplemental_groups_policy) {
        Some(supported) => supported,
        None => place.runtime.last_ok.is_none() || place.runtime.supplemental_groups_policy,
    };
    if supported {
        return Ok(());
    }
    Err(AdmissionRejection::new(
        "SupplementalGroupsPolicyNotSupported",
        "SupplementalGroupsPolicy=Strict is not supported in this node",
    ))
}

fn pod_level_resources(pod: &PodView, config: &NodeConfig) -> Result<(), AdmissionRejection> {
    let off = config.features.get("PodLevelResources") == Some(&false);
    if off && crate::resources::has_pod_level_resources(pod) {
        return Err(AdmissionRejection::new(
            "PodLevelResourcesNotSupported",
            "PodLevelResources feature gate is not enabled",
        ));
    }
    Ok(())
}

/// What the pod needs of the node that not every node has.
fn declared_features(pod: &PodView, place: &AdmissionInputs<'_>) -> Result<(), AdmissionRejection> {
    let config = place.config;
    if config.features.get("NodeDeclaredFeatures") != Some(&true) {
        return Ok(());
    }
    let spec = pod.spec();
    let mut containers = pod.containers().iter().chain(pod.init_containers());
    let restarts_all = containers.any(|container| {
        container.restart_policy_rules.iter().flatten().any(|rule| rule.action == "RestartAllContainers")
    });
    let wanted = [
        ("RestartAllContainersOnContainerExits", restarts_all),
        ("UserNamespacesHostNetworkSupport", pod.host_network() && spec.host_users == Some(false)),
    ];
    let of_node =
        crate::node::features_with_runtime(&config.node_object, place.runtime.user_namespaces_host_network);
    let declared = |name: &str| of_node.iter().any(|declared| declared == name);
    let missing: Vec<&str> =
        wanted.iter().filter(|(name, needs)| *needs && !declared(name)).map(|(name, _)| *name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let message = format!("Pod requires node features that are not available: {}", missing.join(", "));
    Err(AdmissionRejection::new("PodFeatureUnsupported", message))
}

fn app_armor(pod: &PodView, facts: &HostFacts) -> Result<(), AdmissionRejection> {
    if !facts.apparmor_enabled && wants_app_armor(pod) {
        return Err(AdmissionRejection::new(
            "AppArmor",
            "Cannot enforce AppArmor: AppArmor is not enabled on the host",
        ));
    }
    Ok(())
}

fn wants_app_armor(pod: &PodView) -> bool {
    const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
    let spec = pod.spec();
    let of_pod = spec.security_context.as_ref().and_then(|s| s.app_armor_profile.as_ref());
    let containers = pod.containers().iter().chain(pod.init_containers());
    let of_containers =
        containers.filter_map(|c| c.security_context.as_ref().and_then(|s| s.app_armor_profile.as_ref()));
    let annotated = pod
        .pod
        .metadata
        .annotations
        .iter()
        .flatten()
        .any(|(key, value)| key.starts_with(ANNOTATION) && value != "unconfined");
    annotated || of_pod.into_iter().chain(of_containers).any(|p| p.type_ != "Unconfined")
}

#[cfg(test)]
mod tests;
