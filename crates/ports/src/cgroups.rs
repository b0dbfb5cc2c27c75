//! Control groups, whatever their version and driver.

use async_trait::async_trait;
use futures::stream::BoxStream;
use model::cgroup::{CgroupDriver, CgroupName, CgroupSpec};

use crate::Disposition;

#[derive(thiserror::Error, Debug)]
pub enum CgroupError {
    #[error("cgroup {path}: {operation} failed")]
    Io {
        operation: &'static str,
        path: String,
        #[source]
        source: std::io::Error,
    },
    #[error("systemd: {operation} of {unit}: {message}")]
    Systemd { operation: &'static str, unit: String, message: String },
    /// In which hierarchies of version 1, or which controllers of version 2, a cgroup of others does not exist.
    #[error("cgroup {path} has some missing {what}")]
    Missing { path: String, what: String },
    #[error("cgroup {path}: {pids} processes are still there after they were killed")]
    Busy { path: String, pids: usize },
}

impl CgroupError {
    pub fn disposition(&self) -> Disposition {
        match self {
            CgroupError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                Disposition::Absent
            }
            CgroupError::Missing { .. } => Disposition::Absent,
            CgroupError::Io { .. } | CgroupError::Systemd { .. } | CgroupError::Busy { .. } => {
                Disposition::Retry
            }
        }
    }
}

/// All names are below the root of the hierarchy; the implementation spells them for its driver
/// (`CgroupName::to_path`).
#[async_trait]
pub trait Cgroups: Send + Sync {
    /// The runtime's own driver, once it has said so: both sides must spell names alike.
    fn use_driver(&self, driver: CgroupDriver);
    /// Makes it where it is missing (with all its parents) and writes the values.
    async fn ensure(&self, spec: &CgroupSpec) -> Result<(), CgroupError>;
    /// Writes the values into a cgroup that somebody else made. An error if it does not exist.
    async fn update(&self, spec: &CgroupSpec) -> Result<(), CgroupError>;
    async fn exists(&self, name: &CgroupName) -> Result<bool, CgroupError>;
    /// The cgroups that are removed from directly below these from now on, whoever removes them, as long as the kernel
    /// tells of it. A name may come more than once.
    fn removals(&self, above: Vec<CgroupName>) -> BoxStream<'static, CgroupName>;
    /// Kills what is left in it, then removes it and its children. Absent is success.
    async fn destroy(&self, name: &CgroupName) -> Result<(), CgroupError>;
    /// Names of the children directly below `name`, in the model's spelling.
    async fn children(&self, name: &CgroupName) -> Result<Vec<String>, CgroupError>;
}
