//! Pods as this node knows them now, for agents beside it that must not depend on the API server.

use std::sync::Arc;

use async_trait::async_trait;
use futures::stream::BoxStream;
use model::k8s::{Pod, PodStatus};
use model::{FullName, PodUid};

/// A pod at one moment.
#[derive(Clone, Debug)]
pub struct PodSnapshot {
    pub pod: Arc<Pod>,
    /// The status that the agent has. `None`: it has none yet, and that of the object counts.
    pub status: Option<Arc<PodStatus>>,
}

/// A change that a watcher is told of. Each pod is added once, and after its deletion there is nothing more of it.
#[derive(Clone, Debug)]
pub enum PodWatchEvent {
    Added(PodSnapshot),
    Modified(PodSnapshot),
    /// Nothing of the pod runs any more, and its volumes are released.
    Deleted {
        uid: PodUid,
        full_name: FullName,
    },
    /// The watcher does not keep up, and missed a change. This is the last event.
    FellBehind,
}

/// One watch of all pods.
pub struct PodWatch {
    /// The pods at its beginning, in the order of their UIDs.
    pub pods: Vec<PodSnapshot>,
    /// What changed since. Ends after `FellBehind`, and when the agent ends.
    pub events: BoxStream<'static, PodWatchEvent>,
}

/// Every answer is `None` when the agent has ended.
#[async_trait]
pub trait PodWatches: Send + Sync {
    /// The pods that a source wants, in the order of their UIDs.
    async fn list_pods(&self) -> Option<Vec<PodSnapshot>>;
    async fn get_pod(&self, uid: PodUid) -> Option<Option<PodSnapshot>>;
    /// Costs nothing for the others: whoever does not keep up is cut off.
    async fn watch_pods(&self) -> Option<PodWatch>;
}
