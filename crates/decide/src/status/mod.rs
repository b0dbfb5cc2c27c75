//! The status of a pod, derived from its definition, the observation, and the previous status.
//!
//! ```text
//!   pod, observation, old status, failed starts, probes
//!        | derive          containers -> phase -> conditions, addresses
//!        v
//!   status ---- accept ---> transition times, start time, normal form; nothing when nothing changed
//!        |
//!        v   finish         once everything of the pod is released
//!   last status
//! ```
//!
//! The old status matters: a container that vanished from the runtime is known only from it, restart counts never
//! go down against it, and a terminal phase in it is final.

mod accept;
mod addresses;
mod conditions;
mod containers;
mod convert;
mod deadline;
mod finish;
mod phase;
mod ready;
mod resources;
#[cfg(test)]
pub(crate) mod sample;
mod state;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use model::observed::ObservedPod;
use model::pod::{ContainerKind, PodView, QosClass};
use model::{ContainerId, Now, Reason, Wall, k8s};

pub use self::accept::{IllegalTransition, StatusCheck, accept, check_status, illegal_transition};
pub use self::addresses::{IpFamily, host_ips, pod_ips};
pub use self::conditions::{
    DISRUPTION_TARGET, READY_TO_START, conditions, containers_ready, initialized,
    is_owned as is_owned_condition, ready,
};
pub use self::containers::container_statuses;
pub use self::deadline::{DEADLINE_EXCEEDED_MESSAGE, deadline, deadline_exceeded};
pub use self::finish::{finish_status, keep_terminal_conditions};
pub use self::phase::{has_initialized, phase};
pub use self::resources::{PodResources, ResourceList};
use crate::restart;
pub use crate::sandbox::{SandboxChange, sandbox_change};
use model::{PodPhase, PodReason};

/// Why the last attempt to start a container failed (or was put off).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StartFailure {
    pub reason: Reason,
    pub message: String,
}

/// What the probes know of one container. Results are those of its newest instance; earlier ones say nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProbeReport {
    pub startup: Option<bool>,
    pub has_startup_worker: bool,
    pub readiness: Option<bool>,
    pub has_readiness_worker: bool,
}

/// Alpha, off by default: mounts of image volumes report the digest of the image.
pub(crate) const IMAGE_VOLUME_DIGEST_GATE: &str = "ImageVolumeWithDigest";
/// Beta, on.
pub(crate) const READY_TO_START_GATE: &str = "PodReadyToStartContainersCondition";
/// Deprecated, off: with it, containers with probes are not ready after a restart of the agent until they are probed again.
pub const FORGET_READINESS_GATE: &str = "ChangeContainerStatusOnKubeletRestart";

/// Everything that a status is made of.
#[derive(Clone, Copy)]
pub struct StatusInputs<'a> {
    /// With the resources that were allocated to it.
    pub pod: &'a PodView,
    pub observed: &'a ObservedPod,
    /// The last status that was accepted; without one the status that came with the pod counts.
    pub old: Option<&'a k8s::PodStatus>,
    /// By container name.
    pub failures: &'a BTreeMap<String, StartFailure>,
    /// Instances that were killed in order to be started again, by container name.
    pub must_restart: &'a BTreeMap<String, ContainerId>,
    /// By container name. A container without an entry is waiting for the first result of the probes it defines.
    pub probes: &'a BTreeMap<String, ProbeReport>,
    /// Reason and message of a pod that the node could not keep.
    pub eviction: Option<(&'a str, &'a str)>,
    /// The message of the condition `DisruptionTarget` of such a pod.
    pub disruption: Option<&'a str>,
    /// Everything of the pod has stopped for good.
    pub terminal: bool,
    /// What stands before `://` in container IDs.
    pub runtime_name: &'a str,
    /// Whether the pod's runtime handler can mount recursively read-only.
    pub recursive_read_only: bool,
    /// Whether containers may choose the signal that they are stopped with.
    pub stop_signals: bool,
    /// Gate `ImageVolumeWithDigest`: whether mounts of image volumes report the digest of the image.
    pub image_volume_digests: bool,
    /// Whether the condition `PodReadyToStartContainers` is reported.
    pub ready_to_start: bool,
    /// Whether `started` and `ready` of an earlier agent stay until the first result of a probe.
    pub keeps_readiness: bool,
    /// Addresses of the node in the order of preference; empty when the status is not for an API server.
    pub host_ips: &'a [String],
    /// Family of the node's first address.
    pub primary_family: IpFamily,
    pub qos: QosClass,
    pub resources: &'a PodResources,
    /// The spec asks for other resources than these.
    pub resize_pending: bool,
    pub now: Now,
    /// Containers that started well before this were reported by an earlier agent and keep their readiness until the
    /// first result.
    pub agent_started: Wall,
}

impl<'a> StatusInputs<'a> {
    /// The status that came with the pod: what the API server shows.
    fn api(&self) -> Option<&'a k8s::PodStatus> {
        self.pod.pod.status.as_ref()
    }

    fn previous(&self) -> Option<&'a k8s::PodStatus> {
        self.old.or_else(|| self.api())
    }

    /// Whether all containers are being restarted together. A pod that is over restarts nothing.
    fn restarting_all(&self) -> bool {
        let over = |status| old_phase(status).is_some_and(PodPhase::is_terminal);
        !self.terminal
            && self.eviction.is_none()
            && !over(self.previous())
            && !over(self.api())
            && !deadline_exceeded(self.pod, self.previous(), self.now)
            && restart::is_restarting_all(self.pod, self.observed, self.previous())
    }
}

/// The status as it is now.
pub fn derive(inputs: &StatusInputs<'_>) -> k8s::PodStatus {
    let old = inputs.previous();
    let regular = container_statuses(inputs, ContainerKind::Regular);
    let init = container_statuses(inputs, ContainerKind::Init);
    let ephemeral = container_statuses(inputs, ContainerKind::Ephemeral);

    let (phase, reason, message) = settle_phase(inputs, &regular, &init);
    let conditions = conditions(inputs, &regular, &init, phase);
    let addresses = addresses::addresses(inputs);
    let resources = resources::of_pod(inputs.resources, old_phase(inputs.api()));

    k8s::PodStatus {
        phase: Some(phase.as_str().to_owned()),
        reason,
        message,
        conditions: Some(conditions),
        container_statuses: some_unless_empty(regular),
        init_container_statuses: some_unless_empty(init),
        ephemeral_container_statuses: some_unless_empty(ephemeral),
        host_ip: addresses.host.first().cloned(),
        host_ips: some_unless_empty(addresses.host.into_iter().map(|ip| k8s::HostIP { ip }).collect()),
        pod_ip: addresses.pod.first().cloned(),
        pod_ips: some_unless_empty(addresses.pod.into_iter().map(|ip| k8s::PodIP { ip }).collect()),
        qos_class: Some(qos_class(inputs.pod, inputs.qos)),
        allocated_resources: resources.allocated,
        resources: Some(resources.applied),
        observed_generation: observed_generation(inputs.pod),
        start_time: old.and_then(|status| status.start_time.clone()),
        // owned by others, and only passed on
        nominated_node_name: inputs.api().and_then(|api| api.nominated_node_name.clone()),
        resource_claim_statuses: inputs.api().and_then(|api| api.resource_claim_statuses.clone()),
        extended_resource_claim_status: inputs
            .api()
            .and_then(|api| api.extended_resource_claim_status.clone()),
        node_allocatable_resource_claim_statuses: inputs
            .api()
            .and_then(|api| api.node_allocatable_resource_claim_statuses.clone()),
        resize: None,
    }
}

/// The status of a pod that admission refused: no containers and no conditions.
pub fn rejected(pod: &PodView, qos: QosClass, reason: &str, message: &str) -> k8s::PodStatus {
    k8s::PodStatus {
        phase: Some(PodPhase::Failed.as_str().to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(format!("Pod was rejected: {message}")),
        qos_class: Some(qos_class(pod, qos)),
        observed_generation: observed_generation(pod),
        ..Default::default()
    }
}

/// The phase with its reason and message. A terminal phase that was shown before stays, whatever the containers
/// say now; so does its explanation.
fn settle_phase(
    inputs: &StatusInputs<'_>,
    regular: &[k8s::ContainerStatus],
    init: &[k8s::ContainerStatus],
) -> (PodPhase, Option<String>, Option<String>) {
    let old = inputs.previous();
    let terminal = |phase: Option<PodPhase>| phase.filter(|phase| phase.is_terminal());
    // the API server's word wins, as it refuses any other
    let settled = terminal(old_phase(inputs.api())).or(terminal(old_phase(old)));

    let current = settled.unwrap_or_else(|| {
        let statuses: Vec<&k8s::ContainerStatus> = regular.iter().chain(init).collect();
        let initialized = has_initialized(inputs.pod, inputs.observed);
        match phase(inputs.pod, &statuses, inputs.terminal, initialized) {
            // Containers that were stopped only to be started over have not ended.
            over if over.is_terminal() && inputs.restarting_all() => PodPhase::Running,
            current => current,
        }
    });
    if let Some((reason, message)) = inputs.eviction.filter(|_| settled.is_none()) {
        return (PodPhase::Failed, Some(reason.to_owned()), Some(message.to_owned()));
    }
    if settled.is_none() && deadline_exceeded(inputs.pod, old, inputs.now) {
        return (
            PodPhase::Failed,
            Some(PodReason::DeadlineExceeded.as_str().to_owned()),
            Some(DEADLINE_EXCEEDED_MESSAGE.to_owned()),
        );
    }
    // an explanation belongs to the phase that it was given for
    let kept = |field: fn(&k8s::PodStatus) -> &Option<String>| {
        let of = |status: Option<&k8s::PodStatus>| {
            let status = status.filter(|_| old_phase(status) == Some(current))?;
            field(status).clone().filter(|text| !text.is_empty())
        };
        of(old).or_else(|| of(inputs.api()))
    };
    (current, kept(|status| &status.reason), kept(|status| &status.message))
}

fn old_phase(status: Option<&k8s::PodStatus>) -> Option<PodPhase> {
    status.and_then(PodPhase::of)
}

/// The class that the API server already shows never changes.
fn qos_class(pod: &PodView, computed: QosClass) -> String {
    let shown = pod.pod.status.as_ref().and_then(|status| status.qos_class.clone());
    shown.filter(|class| !class.is_empty()).unwrap_or_else(|| computed.as_str().to_owned())
}

/// Pods that no API server made have none.
fn observed_generation(pod: &PodView) -> Option<i64> {
    pod.generation().filter(|generation| *generation > 0)
}

fn some_unless_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

fn text(value: &str) -> Option<String> {
    (!value.is_empty()).then(|| value.to_owned())
}
