//! Sockets of plugins, the storage drivers behind them, and what is on disk of their volumes.

use async_trait::async_trait;
use futures::stream::BoxStream;
use model::PodUid;
use model::csi::{
    DriverNodeInfo, NodeExpandCall, NodePublishCall, NodeServiceCapabilities, NodeStageCall, NodeVolumeStats,
    PluginInfo, VolumeRecord,
};

pub use model::csi::CsiVolumeOnDisk;

use crate::{Disposition, FilesError};

/// A call to a plugin that did not succeed, in the words that users know from upstream.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum CsiError {
    #[error("driver name {driver} not found in the list of registered CSI drivers")]
    NotRegistered { driver: String },
    #[error("rpc error: code = {code} desc = {message}")]
    Rpc { code: &'static str, message: String },
}

impl CsiError {
    pub fn disposition(&self) -> Disposition {
        match self {
            CsiError::NotRegistered { .. } => Disposition::Retry,
            CsiError::Rpc { code: "NotFound", .. } => Disposition::Absent,
            CsiError::Rpc { code: "Unimplemented", .. } => Disposition::Unsupported,
            CsiError::Rpc { code, .. } if is_final(code) => Disposition::Refused,
            CsiError::Rpc { .. } => Disposition::Retry,
        }
    }

    /// The driver has said that it did not do it, and is not at it any more.
    pub fn is_final(&self) -> bool {
        matches!(self, CsiError::Rpc { code, .. } if is_final(code))
    }

    /// It can't be done, now or later.
    pub fn is_infeasible(&self) -> bool {
        matches!(self, CsiError::Rpc { code: "InvalidArgument" | "OutOfRange" | "NotFound", .. })
    }

    /// The driver does not do it while the volume is in use.
    pub fn is_in_use(&self) -> bool {
        matches!(self, CsiError::Rpc { code: "FailedPrecondition", .. })
    }

    /// The driver has not answered, and may yet.
    pub fn is_late(&self) -> bool {
        matches!(self, CsiError::Rpc { code: "DeadlineExceeded", .. })
    }

    pub fn timed_out() -> Self {
        CsiError::Rpc { code: "DeadlineExceeded", message: "context deadline exceeded".into() }
    }
}

/// With the others the driver may still be at work.
fn is_final(code: &str) -> bool {
    !matches!(code, "Canceled" | "DeadlineExceeded" | "Unavailable" | "ResourceExhausted" | "Aborted")
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PluginSocketEvent {
    /// A socket appeared, or was made anew.
    Added {
        path: String,
    },
    Gone {
        path: String,
    },
}

/// Where plugins make themselves known.
#[async_trait]
pub trait PluginSockets: Send + Sync {
    /// Those that are there first, then every change. Never ends.
    fn watch(&self) -> BoxStream<'static, PluginSocketEvent>;
    async fn get_info(&self, socket: &str) -> Result<PluginInfo, CsiError>;
    /// `trouble`: why it is not registered. `None`: it is.
    async fn notify_registration_status(&self, socket: &str, trouble: Option<&str>) -> Result<(), CsiError>;
}

/// Storage drivers by their names. Every call has its deadline inside and is not repeated.
#[async_trait]
pub trait CsiDrivers: Send + Sync {
    /// Where a driver is from now on; with `None` it is nowhere.
    fn set_endpoint(&self, driver: &str, endpoint: Option<&str>);
    async fn node_get_info(&self, driver: &str) -> Result<DriverNodeInfo, CsiError>;
    async fn node_get_capabilities(&self, driver: &str) -> Result<NodeServiceCapabilities, CsiError>;
    async fn node_stage_volume(&self, driver: &str, call: &NodeStageCall) -> Result<(), CsiError>;
    async fn node_publish_volume(&self, driver: &str, call: &NodePublishCall) -> Result<(), CsiError>;
    async fn node_unpublish_volume(&self, driver: &str, handle: &str, target: &str) -> Result<(), CsiError>;
    async fn node_unstage_volume(&self, driver: &str, handle: &str, staging: &str) -> Result<(), CsiError>;
    /// Makes it as large as what is behind it.
    async fn node_expand_volume(&self, driver: &str, call: &NodeExpandCall) -> Result<(), CsiError>;
    /// How full it is, and how well. `path`: where it is published.
    async fn node_get_volume_stats(
        &self,
        driver: &str,
        handle: &str,
        path: &str,
    ) -> Result<NodeVolumeStats, CsiError>;
}

/// Records and directories of volumes of drivers. What is mounted there may not answer: then the call fails after a while
/// ([`FilesError::Hangs`]), what it has begun may still be at work, and what comes after it on the same volume waits.
#[async_trait]
pub trait CsiFiles: Send + Sync {
    async fn make_dir(&self, path: &str) -> Result<(), FilesError>;
    /// On disk for good when it returns. Makes its directory.
    async fn write_record(&self, path: &str, record: &VolumeRecord) -> Result<(), FilesError>;
    /// Everything that is staged or published, of all pods.
    async fn list_volumes(&self) -> Result<Vec<CsiVolumeOnDisk>, FilesError>;
    /// Of one pod.
    async fn list_pod_volumes(&self, uid: &PodUid) -> Result<Vec<CsiVolumeOnDisk>, FilesError>;
    /// Returns when nothing that was begun for the volume at this place is at work any more.
    async fn wait_until_idle(&self, place: &str) -> Result<(), FilesError>;
    /// The place, then its record, then their directories. Nothing of it while something is mounted there or in it.
    async fn remove(&self, place: &str, record: Option<&str>) -> Result<(), FilesError>;
    /// Makes all files of a volume this group's. Whoever drops this ends it, at its next step (see `at_rest`).
    async fn apply_fs_group(&self, path: &str, group: i64, on_root_mismatch: bool) -> Result<(), FilesError>;
    /// `link` leads to `device`.
    async fn link_device(&self, device: &str, link: &str) -> Result<(), FilesError>;
    async fn unlink_device(&self, link: &str) -> Result<(), FilesError>;
}
