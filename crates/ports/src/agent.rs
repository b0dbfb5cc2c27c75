//! The running agent, as its own endpoints and commands see it.

use std::sync::Arc;

use async_trait::async_trait;
use model::k8s::{Pod, PodList, PodStatus};
use model::observed::ObservedPod;
use model::report::{NodeReport, PodReport, WhyReport};
use model::volume::MeasuredVolume;
use model::{ContainerId, PodUid};

/// A pod for those who reach into it.
#[derive(Clone, Debug)]
pub struct PodDetails {
    pub uid: PodUid,
    pub pod: Arc<Pod>,
    /// As it is told to others.
    pub status: Option<Arc<PodStatus>>,
    /// As last seen in the runtime.
    pub observed: Option<Arc<ObservedPod>>,
    /// Its cgroup, as the driver spells it.
    pub cgroup: Option<String>,
    pub volumes: Vec<MeasuredVolume>,
}

/// Every answer is `None` when the agent has ended.
#[async_trait]
pub trait AgentView: Send + Sync {
    /// Wanted pods with their status, as `/pods` shows them.
    async fn pods(&self) -> Option<PodList>;
    /// Pods that have something in the runtime, as `/runningpods` shows them.
    async fn running_pods(&self) -> Option<PodList>;
    /// All pods that are known here, also those that are going.
    async fn pod_reports(&self) -> Option<Vec<PodReport>>;
    /// Reasons of the pods of this name or UID, in all namespaces unless one is given.
    async fn why(&self, namespace: Option<String>, name: String) -> Option<Vec<WhyReport>>;
    /// The pod of this name; of two, the one that stays.
    async fn find_pod(&self, namespace: String, name: String) -> Option<Option<PodDetails>>;
    /// Comes back when this instance of a container of the pod has ended, or is not known any more: told by the reading
    /// that shows it, not by asking again.
    async fn container_ended(&self, pod: PodUid, container: ContainerId) -> Option<()>;
    /// All pods that are wanted here.
    async fn all_pod_details(&self) -> Option<Vec<PodDetails>>;
    async fn node_report(&self) -> Option<NodeReport>;
}
