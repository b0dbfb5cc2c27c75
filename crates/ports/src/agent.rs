//! The running agent, as its own endpoints and commands see it.

use std::sync::Arc;

use async_trait::async_trait;
use model::k8s::{Pod, PodList, PodStatus};
use model::observed::ObservedPod;
use model::report::{NodeReport, PodReport, WhyReport};
use model::volume::MeasuredVolume;
use model::{ContainerId, PodUid};

/// What exec, attach, port-forward, logs and stats need to know of a pod.
#[derive(Clone, Debug)]
pub struct PodDetails {
    pub uid: PodUid,
    pub pod: Arc<Pod>,
    /// The status that is reported to the API server.
    pub status: Option<Arc<PodStatus>>,
    /// The last observation of the runtime.
    pub observed: Option<Arc<ObservedPod>>,
    /// The pod's cgroup, in the notation of the cgroup driver.
    pub cgroup: Option<String>,
    pub volumes: Vec<MeasuredVolume>,
}

/// Queries to the agent. Every answer is `None` when the agent has ended.
#[async_trait]
pub trait AgentView: Send + Sync {
    /// Wanted pods with their status, as `/pods` shows them.
    async fn pods(&self) -> Option<PodList>;
    /// Pods that the runtime lists, as `/runningpods` shows them.
    async fn running_pods(&self) -> Option<PodList>;
    /// All known pods, including terminating ones.
    async fn pod_reports(&self) -> Option<Vec<PodReport>>;
    /// Reasons of the pods of this name or UID, in all namespaces unless one is given.
    async fn why(&self, namespace: Option<String>, name: String) -> Option<Vec<WhyReport>>;
    /// The pod with this name. If a terminating pod has the same name, the other one is returned.
    async fn find_pod(&self, namespace: String, name: String) -> Option<Option<PodDetails>>;
    /// Returns when an observation shows that this instance of a container has ended or is no longer known. Does not
    /// poll.
    async fn container_ended(&self, pod: PodUid, container: ContainerId) -> Option<()>;
    /// All pods that a source wants.
    async fn all_pod_details(&self) -> Option<Vec<PodDetails>>;
    async fn node_report(&self) -> Option<NodeReport>;
}
