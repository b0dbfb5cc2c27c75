//! The container runtime (CRI RuntimeService), and hints of its changes.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use model::cri::{
    ContainerConfig, ContainerStats, ExecResult, LinuxResources, Metric, MetricDescriptor, Mount,
    NamespaceOptions, RuntimeStatus, RuntimeVersion, SandboxConfig, SandboxStats,
};
use model::observed::{ContainerState, ObservedUser};
use model::{ContainerId, GrpcCode, PodUid, SandboxId};

use crate::Disposition;

/// A failed call to the runtime (or image service). `message` is the gRPC status message alone: it is shown to users.
#[derive(thiserror::Error, Clone, Debug, PartialEq)]
pub enum RuntimeError {
    #[error("{call}: {message}")]
    NotFound { call: &'static str, message: String },
    #[error("{call}: runtime is not reachable: {message}")]
    Unavailable { call: &'static str, message: String },
    #[error("{call}: no answer within {after:?}")]
    TimedOut { call: &'static str, after: Duration },
    #[error("{call}: not supported by this runtime")]
    Unsupported { call: &'static str },
    #[error("{call}: {message}")]
    Failed { call: &'static str, code: GrpcCode, message: String },
}

impl RuntimeError {
    pub fn disposition(&self) -> Disposition {
        match self {
            RuntimeError::NotFound { .. } => Disposition::Absent,
            RuntimeError::Unavailable { .. } | RuntimeError::TimedOut { .. } => Disposition::Retry,
            RuntimeError::Unsupported { .. } => Disposition::Unsupported,
            RuntimeError::Failed { .. } => Disposition::Refused,
        }
    }
    /// The text that a user sees in a status or an Event.
    pub fn user_message(&self) -> String {
        match self {
            RuntimeError::NotFound { message, .. }
            | RuntimeError::Unavailable { message, .. }
            | RuntimeError::Failed { message, .. } => message.clone(),
            other => other.to_string(),
        }
    }
}

/// Which sandboxes to list. Empty means all.
#[derive(Clone, Debug, Default)]
pub struct SandboxFilter {
    pub pod_uid: Option<PodUid>,
    pub id: Option<SandboxId>,
}

#[derive(Clone, Debug, Default)]
pub struct ContainerFilter {
    pub pod_uid: Option<PodUid>,
    pub id: Option<ContainerId>,
}

/// A list entry.
#[derive(Clone, Debug, PartialEq)]
pub struct SandboxInfo {
    pub id: SandboxId,
    pub name: String,
    pub namespace: String,
    pub uid: PodUid,
    pub attempt: u32,
    pub ready: bool,
    pub created_at: i64,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub runtime_handler: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SandboxStatus {
    pub info: SandboxInfo,
    pub has_network: bool,
    /// `network.ip`, then the additional ones.
    pub ips: Vec<String>,
    pub namespaces: NamespaceOptions,
}

/// A list entry.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerInfo {
    pub id: ContainerId,
    pub sandbox_id: SandboxId,
    pub name: String,
    pub attempt: u32,
    pub state: ContainerState,
    pub created_at: i64,
    pub image: String,
    pub image_ref: String,
    pub image_id: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ContainerStatus {
    pub id: ContainerId,
    pub name: String,
    pub attempt: u32,
    pub state: ContainerState,
    pub created_at: i64,
    pub started_at: i64,
    pub finished_at: i64,
    pub exit_code: i32,
    pub image: String,
    pub image_ref: String,
    pub image_id: String,
    pub reason: String,
    pub message: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub mounts: Vec<Mount>,
    pub log_path: String,
    pub resources: Option<LinuxResources>,
    pub user: Option<ObservedUser>,
    pub stop_signal: i32,
}

/// Every RuntimeService call that a kubelet makes. Each call carries its own deadline, as the reference sets it;
/// dropping the future cancels the call.
#[async_trait]
pub trait Runtime: Send + Sync {
    async fn version(&self) -> Result<RuntimeVersion, RuntimeError>;
    async fn status(&self) -> Result<RuntimeStatus, RuntimeError>;
    /// The cgroup driver that the runtime uses, by name (`SYSTEMD`, `CGROUPFS` mapped to the model's enum).
    async fn cgroup_driver(&self) -> Result<model::cgroup::CgroupDriver, RuntimeError>;
    async fn update_runtime_config(&self, pod_cidr: &str) -> Result<(), RuntimeError>;

    async fn run_pod_sandbox(&self, config: &SandboxConfig, handler: &str)
    -> Result<SandboxId, RuntimeError>;
    async fn stop_pod_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError>;
    async fn remove_pod_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError>;
    async fn pod_sandbox_status(&self, id: &SandboxId) -> Result<SandboxStatus, RuntimeError>;
    async fn list_pod_sandboxes(&self, filter: &SandboxFilter) -> Result<Vec<SandboxInfo>, RuntimeError>;
    async fn update_pod_sandbox_resources(
        &self,
        id: &SandboxId,
        overhead: Option<&LinuxResources>,
        resources: Option<&LinuxResources>,
    ) -> Result<(), RuntimeError>;

    async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: &ContainerConfig,
        sandbox_config: &SandboxConfig,
    ) -> Result<ContainerId, RuntimeError>;
    async fn start_container(&self, id: &ContainerId) -> Result<(), RuntimeError>;
    /// The deadline is the runtime's own plus `grace`.
    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<(), RuntimeError>;
    async fn remove_container(&self, id: &ContainerId) -> Result<(), RuntimeError>;
    async fn list_containers(&self, filter: &ContainerFilter) -> Result<Vec<ContainerInfo>, RuntimeError>;
    async fn container_status(&self, id: &ContainerId) -> Result<ContainerStatus, RuntimeError>;
    async fn update_container_resources(
        &self,
        id: &ContainerId,
        resources: &LinuxResources,
    ) -> Result<(), RuntimeError>;
    async fn reopen_container_log(&self, id: &ContainerId) -> Result<(), RuntimeError>;
    async fn checkpoint_container(
        &self,
        id: &ContainerId,
        location: &str,
        timeout: Duration,
    ) -> Result<(), RuntimeError>;

    /// `timeout` zero means none.
    async fn exec_sync(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Duration,
    ) -> Result<ExecResult, RuntimeError>;
    /// URL of the runtime's streaming server.
    async fn exec(
        &self,
        id: &ContainerId,
        command: &[String],
        streams: StreamFlags,
    ) -> Result<String, RuntimeError>;
    async fn attach(&self, id: &ContainerId, streams: StreamFlags) -> Result<String, RuntimeError>;
    async fn port_forward(&self, id: &SandboxId, ports: &[i32]) -> Result<String, RuntimeError>;

    async fn container_stats(&self, id: &ContainerId) -> Result<ContainerStats, RuntimeError>;
    async fn list_container_stats(
        &self,
        filter: &ContainerFilter,
    ) -> Result<Vec<ContainerStats>, RuntimeError>;
    /// With the numbers of each container in them.
    async fn list_pod_sandbox_stats(&self, filter: &SandboxFilter)
    -> Result<Vec<SandboxStats>, RuntimeError>;
    /// Which metrics the runtime has of pods and containers.
    async fn list_metric_descriptors(&self) -> Result<Vec<MetricDescriptor>, RuntimeError>;
    /// Samples of these metrics, of all pods and containers.
    async fn list_pod_sandbox_metrics(&self) -> Result<Vec<Metric>, RuntimeError>;
}

#[derive(Clone, Copy, Debug, Default)]
pub struct StreamFlags {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

/// Something changed in the runtime. A hint is only a reason to observe and contains no state.
#[derive(Clone, Debug, PartialEq)]
pub enum Hint {
    /// This pod changed.
    Pod(PodUid),
    /// This container or sandbox changed; its pod must be looked up.
    ContainerOrSandbox(String),
    /// An image was added or changed: pods that wait for one should inspect it again.
    Images,
    /// Events may have been lost (the stream broke or was reopened): observe everything.
    Everything,
}

pub type HintStream = BoxStream<'static, Hint>;

/// The runtime's own notifications. The stream reconnects by itself, with a back-off, and sends [`Hint::Everything`]
/// whenever it could have missed something, and when the connection to the runtime is lost.
pub trait RuntimeEvents: Send + Sync {
    fn hints(&self) -> HintStream;
}
