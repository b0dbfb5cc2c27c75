//! What the Pods API shows of a pod: which pods are listed, and which changes watchers are told of.
//!
//! A pod is listed as long as a source wants it, also after it has ended. Watchers are told that it is gone when it has
//! finished: nothing of it runs, and its volumes and its cgroup are released.

use std::sync::Arc;

use model::k8s::{Pod, PodStatus};

use super::PodEntry;
use crate::lifecycle::Lifecycle;

/// The feature gate of the Pods API.
pub const GATE: &str = "PodsAPI";

/// A pod as watchers were told of it last.
#[derive(Clone, Debug)]
pub struct ShownPod {
    pod: Arc<Pod>,
    status: Option<Arc<PodStatus>>,
    listed: bool,
    finished: bool,
}

impl ShownPod {
    pub fn of(entry: &PodEntry) -> Self {
        Self {
            pod: entry.view().pod.clone(),
            status: entry.status.clone(),
            listed: is_listed(entry),
            finished: has_finished(entry),
        }
    }
}

/// Equal when a watcher would learn nothing new.
impl PartialEq for ShownPod {
    fn eq(&self, other: &Self) -> bool {
        (self.listed, self.finished) == (other.listed, other.finished)
            && same_status(self, other)
            && (Arc::ptr_eq(&self.pod, &other.pod) || same_definition(&self.pod, &other.pod))
    }
}

fn same_status(a: &ShownPod, b: &ShownPod) -> bool {
    match (&a.status, &b.status) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a == b,
        // The status of the object is shown as long as the agent has none of its own.
        (None, None) => a.pod.status == b.pod.status,
        _ => false,
    }
}

/// Every status that the agent reports comes back as a new version of the object. That is no change of the pod.
fn same_definition(a: &Pod, b: &Pod) -> bool {
    let meta = |pod: &Pod| {
        let mut meta = pod.metadata.clone();
        meta.resource_version = None;
        meta.managed_fields = None;
        meta
    };
    a.spec == b.spec && meta(a) == meta(b)
}

/// Whether lists of pods contain it.
pub fn is_listed(entry: &PodEntry) -> bool {
    !entry.standing().is_orphan() && !entry.standing().is_removed()
}

/// Whether watchers are told that it is gone.
pub fn has_finished(entry: &PodEntry) -> bool {
    matches!(entry.lifecycle(), Lifecycle::Finished)
}
