//! Plugin sockets, calls to CSI drivers, and the records and directories of their volumes on disk.

use async_trait::async_trait;
use futures::stream::BoxStream;
use model::csi::{
    DriverNodeInfo, NodeExpandCall, NodePublishCall, NodeServiceCapabilities, NodeStageCall, NodeVolumeStats,
    PluginInfo, VolumeRecord,
};
use model::{GrpcCode, PodUid};

pub use model::csi::CsiVolumeOnDisk;

use crate::{Disposition, FilesError};

/// A call to a plugin that failed, with upstream's message.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum CsiError {
    #[error("driver name {driver} not found in the list of registered CSI drivers")]
    NotRegistered { driver: String },
    #[error("rpc error: code = {code} desc = {message}")]
    Rpc { code: GrpcCode, message: String },
}

impl CsiError {
    pub fn disposition(&self) -> Disposition {
        match self {
            CsiError::NotRegistered { .. } => Disposition::Retry,
            CsiError::Rpc { code: GrpcCode::NotFound, .. } => Disposition::Absent,
            CsiError::Rpc { code: GrpcCode::Unimplemented, .. } => Disposition::Unsupported,
            CsiError::Rpc { code, .. } if is_final(*code) => Disposition::Refused,
            CsiError::Rpc { .. } => Disposition::Retry,
        }
    }

    /// The driver has failed for certain and is not working on it any more.
    pub fn is_final(&self) -> bool {
        matches!(self, CsiError::Rpc { code, .. } if is_final(*code))
    }

    /// The request can't succeed, now or later.
    pub fn is_infeasible(&self) -> bool {
        use GrpcCode::{InvalidArgument, NotFound, OutOfRange};
        matches!(self, CsiError::Rpc { code: InvalidArgument | OutOfRange | NotFound, .. })
    }

    /// The request can't succeed while the volume is in use.
    pub fn is_in_use(&self) -> bool {
        matches!(self, CsiError::Rpc { code: GrpcCode::FailedPrecondition, .. })
    }

    /// The call timed out, so the driver may still be working.
    pub fn is_late(&self) -> bool {
        matches!(self, CsiError::Rpc { code: GrpcCode::DeadlineExceeded, .. })
    }

    pub fn timed_out() -> Self {
        CsiError::Rpc { code: GrpcCode::DeadlineExceeded, message: "context deadline exceeded".into() }
    }
}

/// With the other codes the driver may still be working.
fn is_final(code: GrpcCode) -> bool {
    match code {
        GrpcCode::Cancelled
        | GrpcCode::DeadlineExceeded
        | GrpcCode::Unavailable
        | GrpcCode::ResourceExhausted
        | GrpcCode::Aborted => false,
        GrpcCode::Ok
        | GrpcCode::Unknown
        | GrpcCode::InvalidArgument
        | GrpcCode::NotFound
        | GrpcCode::AlreadyExists
        | GrpcCode::PermissionDenied
        | GrpcCode::FailedPrecondition
        | GrpcCode::OutOfRange
        | GrpcCode::Unimplemented
        | GrpcCode::Internal
        | GrpcCode::DataLoss
        | GrpcCode::Unauthenticated => true,
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PluginSocketEvent {
    /// A socket appeared or was recreated.
    Added {
        path: String,
    },
    Gone {
        path: String,
    },
}

/// Discovery and registration of plugins.
#[async_trait]
pub trait PluginSockets: Send + Sync {
    /// The existing sockets first, then every change. Never ends.
    fn watch(&self) -> BoxStream<'static, PluginSocketEvent>;
    async fn get_info(&self, socket: &str) -> Result<PluginInfo, CsiError>;
    /// `trouble`: why the plugin is not registered. `None`: it is registered.
    async fn notify_registration_status(&self, socket: &str, trouble: Option<&str>) -> Result<(), CsiError>;
}

/// Calls to CSI drivers by name. Every call has its own deadline and is not retried.
#[async_trait]
pub trait CsiDrivers: Send + Sync {
    /// Sets the socket of a driver; `None` removes the driver.
    fn set_endpoint(&self, driver: &str, endpoint: Option<&str>);
    async fn node_get_info(&self, driver: &str) -> Result<DriverNodeInfo, CsiError>;
    async fn node_get_capabilities(&self, driver: &str) -> Result<NodeServiceCapabilities, CsiError>;
    async fn node_stage_volume(&self, driver: &str, call: &NodeStageCall) -> Result<(), CsiError>;
    async fn node_publish_volume(&self, driver: &str, call: &NodePublishCall) -> Result<(), CsiError>;
    async fn node_unpublish_volume(&self, driver: &str, handle: &str, target: &str) -> Result<(), CsiError>;
    async fn node_unstage_volume(&self, driver: &str, handle: &str, staging: &str) -> Result<(), CsiError>;
    /// NodeExpandVolume: grows the volume to the requested size.
    async fn node_expand_volume(&self, driver: &str, call: &NodeExpandCall) -> Result<(), CsiError>;
    /// NodeGetVolumeStats: usage and condition of a published volume. `path` is its target path.
    async fn node_get_volume_stats(
        &self,
        driver: &str,
        handle: &str,
        path: &str,
    ) -> Result<NodeVolumeStats, CsiError>;
}

/// Records and directories of CSI volumes. A filesystem that is mounted there may not respond. Then the call fails with
/// [`FilesError::Hung`] after a while, the operation that it started may still be running, and the next operation on
/// the same volume waits for its end.
#[async_trait]
pub trait CsiFiles: Send + Sync {
    async fn make_dir(&self, path: &str) -> Result<(), FilesError>;
    /// Writes a record durably, and creates its directory.
    async fn write_record(&self, path: &str, record: &VolumeRecord) -> Result<(), FilesError>;
    /// All staged or published volumes, of all pods.
    async fn list_volumes(&self) -> Result<Vec<CsiVolumeOnDisk>, FilesError>;
    /// The volumes of one pod.
    async fn list_pod_volumes(&self, uid: &PodUid) -> Result<Vec<CsiVolumeOnDisk>, FilesError>;
    /// Waits until no file operation is running for the volume mounted at `place`.
    async fn wait_until_idle(&self, place: &str) -> Result<(), FilesError>;
    /// Removes the mount directory, then the record, then their parent directories. Fails if something is mounted
    /// there.
    async fn remove(&self, place: &str, record: Option<&str>) -> Result<(), FilesError>;
    /// Sets the group of all files of a volume. Dropping the future ends the walk at its next step (see
    /// [`CsiFiles::wait_until_idle`]).
    async fn apply_fs_group(&self, path: &str, group: i64, on_root_mismatch: bool) -> Result<(), FilesError>;
    /// Creates `link` to `device`.
    async fn link_device(&self, device: &str, link: &str) -> Result<(), FilesError>;
    async fn unlink_device(&self, link: &str) -> Result<(), FilesError>;
    /// Bind-mounts `device` at `map`, and keeps it open with a loop device over that.
    async fn map_device(&self, device: &str, map: &str) -> Result<(), FilesError>;
    /// Detaches the loop device, unmounts and removes `map`. Succeeds if nothing of it is there.
    async fn unmap_device(&self, map: &str) -> Result<(), FilesError>;
}
