//! Directories, files and simple volumes of pods on the node's disk, and their logs.

use async_trait::async_trait;
use model::cri::IdMapping;
use model::files::{ContainerFiles, EnvFile, TerminationMessageRequest};
use model::user_namespace::UserNamespaceScan;
use model::volume::{MountStage, VolumeSetup};
use model::{FullName, PodUid};

use crate::Disposition;

#[derive(thiserror::Error, Debug)]
pub enum FilesError {
    #[error("{operation} {path}")]
    Io {
        operation: &'static str,
        path: String,
        #[source]
        source: std::io::Error,
    },
    /// The message is the whole text for users (`hostPath type check failed: ...`).
    #[error("{message}")]
    Refused { message: String },
    /// A volume could not be mounted; the message is the whole text behind the stage's name.
    #[error("{message}")]
    Mount { stage: MountStage, message: String },
    /// Something is still mounted there: removal would delete data of that mount.
    #[error("{path} is a mount point, not removing it")]
    Mounted { path: String },
    /// The operation is still running and may never end, because a server or a disk does not respond. Nothing else is
    /// done there until it has ended.
    #[error("{what} made no progress for {}s: a mounted filesystem may not be responding", stall_timeout.as_secs())]
    Hung { what: String, stall_timeout: std::time::Duration },
    #[error("internal error: {what} panicked")]
    Panicked { what: String },
}

impl FilesError {
    pub fn disposition(&self) -> Disposition {
        match self {
            FilesError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                Disposition::Absent
            }
            FilesError::Io { .. }
            | FilesError::Mount { .. }
            | FilesError::Mounted { .. }
            | FilesError::Hung { .. }
            | FilesError::Panicked { .. } => Disposition::Retry,
            FilesError::Refused { .. } => Disposition::Refused,
        }
    }
    /// The stage at which the set-up of a volume failed.
    pub fn stage(&self) -> MountStage {
        match self {
            FilesError::Mount { stage, .. } => *stage,
            _ => MountStage::SetUp,
        }
    }
    /// The error and its causes in one line.
    pub fn user_message(&self) -> String {
        match std::error::Error::source(self) {
            Some(cause) => format!("{self}: {cause}"),
            None => self.to_string(),
        }
    }
}

/// What is on disk of pods: names only. Whose is still wanted is decided elsewhere.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeftoverFiles {
    /// Names below `<root>/pods`, and of pods without a directory that have a device below `<root>/plugins`.
    pub pod_dirs: Vec<PodUid>,
    /// `pod_dirs` lacks none: a pod that is not in it has no directory.
    pub pod_dirs_complete: bool,
    /// Names below the pod logs directory, `<ns>_<name>_<uid>`.
    pub log_dirs: Vec<String>,
    /// Links below the container links directory whose target is missing.
    pub dead_links: Vec<String>,
    /// What could not be read: nothing is known of what is there.
    pub problems: Vec<String>,
}

#[async_trait]
pub trait PodFiles: Send + Sync {
    /// The agent's own directories with their modes; makes the root a shared mount.
    async fn prepare_node(&self) -> Result<(), FilesError>;
    /// `<root>/pods/<uid>`, `/volumes`, `/plugins` (0750), and the pod's log directory (0755).
    async fn make_pod_dirs(&self, uid: &PodUid, log_dir: &str) -> Result<(), FilesError>;
    async fn set_up_volume(&self, uid: &PodUid, volume: &VolumeSetup) -> Result<(), FilesError>;
    /// Bytes on disk of each of these files and directories, all of them the pod's. Mounts in them do not count.
    async fn disk_use(&self, uid: &PodUid, paths: &[String]) -> Result<Vec<u64>, FilesError>;
    /// Puts on record which of the host's ids are the pod's. On disk for good when it returns.
    async fn write_user_ids(&self, uid: &PodUid, ids: &IdMapping) -> Result<(), FilesError>;
    /// What is on record of all pods that have a directory.
    async fn user_ids(&self) -> UserNamespaceScan;
    /// The text of a file that a container wrote into an emptyDir. Never through a link, and only a small regular file.
    async fn read_env_file(&self, uid: &PodUid, file: &EnvFile) -> Result<String, FilesError>;
    async fn prepare_container(&self, uid: &PodUid, files: &ContainerFiles) -> Result<(), FilesError>;
    /// `<links>/<pod>_<ns>_<container>-<id>.log` to the log, if the log exists.
    async fn link_log(&self, pod: &FullName, container: &str, id: &str, log: &str) -> Result<(), FilesError>;
    /// Removes `<log>*` and the link to it.
    async fn remove_container_logs(&self, log: &str) -> Result<(), FilesError>;
    /// The highest N of files `N.log*` in a container's log directory.
    async fn highest_log_number(&self, container_log_dir: &str) -> Result<Option<u32>, FilesError>;
    /// What the container wrote into the file that the agent made for it, or the end of its log. Failures, also a disk
    /// that does not answer in time, are told in the message.
    async fn termination_message(&self, request: &TerminationMessageRequest) -> String;
    /// Unmounts sub-paths and volumes of the pod and removes what emptyDirs held. Never crosses a foreign mount.
    async fn tear_down_volumes(&self, uid: &PodUid) -> Result<(), FilesError>;
    /// Removes the pod's directory, only on its own filesystem and only when nothing is mounted below it.
    async fn remove_pod_dir(&self, uid: &PodUid) -> Result<(), FilesError>;
    /// Removes a pod's directory of logs and the links into it.
    async fn remove_log_dir(&self, name: &str) -> Result<(), FilesError>;
    async fn remove_link(&self, name: &str) -> Result<(), FilesError>;
    async fn leftovers(&self) -> Result<LeftoverFiles, FilesError>;
}
