//! The running agent, as its own endpoints and commands see it.

use async_trait::async_trait;
use model::k8s::PodList;
use model::report::{NodeReport, PodReport, WhyReport};

/// Every answer is `None` when the agent has ended.
#[async_trait]
pub trait AgentView: Send + Sync {
    /// Wanted pods with their status, as `/pods` shows them.
    async fn pods(&self) -> Option<PodList>;
    /// Pods that have something in the runtime, as `/runningpods` shows them.
    async fn running_pods(&self) -> Option<PodList>;
    /// All pods that are known here, also those that are going.
    async fn reports(&self) -> Option<Vec<PodReport>>;
    /// Reasons of the pods of this name or UID, in all namespaces unless one is given.
    async fn why(&self, namespace: Option<String>, name: String) -> Option<Vec<WhyReport>>;
    async fn node(&self) -> Option<NodeReport>;
}
