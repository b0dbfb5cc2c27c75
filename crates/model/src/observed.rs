//! What the runtime showed, at a known time. Never written from an event's payload, only from lists and statuses.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::cri::{LinuxResources, NamespaceMode};
use crate::ids::{ContainerId, FullName, PodUid, SandboxId};
use crate::time::{Mono, Wall};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum ContainerState {
    Created,
    Running,
    Exited,
    Unknown,
}

/// One sandbox of a pod.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ObservedSandbox {
    pub id: SandboxId,
    pub attempt: u32,
    pub created_at: Wall,
    pub ready: bool,
    /// The network namespace mode that it was made with.
    pub network: NamespaceMode,
    /// Whether the runtime reported network information at all.
    pub has_network_status: bool,
    /// As reported; empty unless ready.
    pub ips: Vec<String>,
    pub runtime_handler: String,
}

/// One instance of a container.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ObservedContainer {
    pub id: ContainerId,
    pub sandbox_id: SandboxId,
    pub name: String,
    pub state: ContainerState,
    pub restart_count: u32,
    /// Of the definition that it was made from; absent when the annotation is.
    pub hash: Option<u32>,
    pub created_at: Wall,
    /// Zero unless it ran.
    pub started_at: Wall,
    /// Zero unless it ended.
    pub finished_at: Wall,
    pub exit_code: i32,
    /// As the runtime says; only when exited.
    pub reason: String,
    /// The runtime's message followed by the termination message, cut as the reference says.
    pub message: String,
    pub image: String,
    pub image_ref: String,
    pub image_id: String,
    /// Absolute path of the log on this node.
    pub log_path: String,
    /// Restored from annotations: what an orphan is stopped with when its spec is gone.
    pub pod_grace: Option<i64>,
    /// The preStop handler as JSON, likewise.
    pub pre_stop: Option<String>,
    pub resources: Option<LinuxResources>,
    pub user: Option<ObservedUser>,
    /// The CRI's number of the signal that it is stopped with; zero when the runtime does not tell.
    #[serde(default)]
    pub stop_signal: i32,
    /// The image behind each image volume that is mounted, as the runtime tells it, by the path in the container.
    #[serde(default)]
    pub image_mounts: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ObservedUser {
    pub uid: i64,
    pub gid: i64,
    pub supplemental_groups: Vec<i64>,
}

/// Everything the runtime has of one pod.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ObservedPod {
    pub uid: PodUid,
    pub full_name: FullName,
    /// Highest attempt first, then newest.
    pub sandboxes: Vec<ObservedSandbox>,
    /// Newest first.
    pub containers: Vec<ObservedContainer>,
    /// Sandboxes and containers whose status the runtime did not give, by id, with its answer. Of these only the list
    /// entry is known.
    #[serde(default)]
    pub missing_status: BTreeMap<String, String>,
}

/// What a container is shown to have ended with when the runtime does not tell. As upstream has it.
pub const EXIT_CODE_UNKNOWN: i32 = 137;

impl ObservedPod {
    pub fn empty(uid: PodUid, full_name: FullName) -> Self {
        let (sandboxes, containers) = Default::default();
        Self { uid, full_name, sandboxes, containers, missing_status: BTreeMap::new() }
    }
    /// Something that decides what is to run is known by its list entry only: the addresses of a ready sandbox, or how
    /// the newest instance of a container ended. A dead sandbox and older instances tell nothing that a list does not.
    pub fn lacks_needed_status(&self) -> bool {
        let missing = |id: &str| self.missing_status.contains_key(id);
        let newest = |c: &ObservedContainer| self.newest(&c.name).is_some_and(|newest| newest.id == c.id);
        !self.missing_status.is_empty()
            && (self.sandboxes.iter().any(|s| s.ready && missing(s.id.as_str()))
                || self.containers.iter().any(|c| newest(c) && missing(c.id.as_str())))
    }
    /// Puts sandboxes and containers into the order that every reader relies on.
    pub fn sort(&mut self) {
        self.sandboxes
            .sort_by(|a, b| (b.attempt, b.created_at, &b.id).cmp(&(a.attempt, a.created_at, &a.id)));
        self.containers.sort_by(|a, b| (b.created_at, &b.id).cmp(&(a.created_at, &a.id)));
    }
    /// The newest instance of a container.
    pub fn newest(&self, name: &str) -> Option<&ObservedContainer> {
        self.containers.iter().find(|c| c.name == name)
    }
    pub fn newest_sandbox(&self) -> Option<&ObservedSandbox> {
        self.sandboxes.first()
    }
    pub fn anything_running(&self) -> bool {
        self.sandboxes.iter().any(|s| s.ready)
            || self
                .containers
                .iter()
                .any(|c| matches!(c.state, ContainerState::Running | ContainerState::Unknown))
    }
    pub fn is_empty(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }
}

/// A reading of the runtime. `at` is the time *before* its first call: anything that changed later is not in it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Observation {
    pub at: Mono,
    pub scope: Scope,
    /// Pods seen. For `Scope::All` a known pod that is missing here has nothing in the runtime.
    pub pods: Vec<Arc<ObservedPod>>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Scope {
    All,
    Pod(PodUid),
}
