//! Files of a container on the node's disk, as requests.

use serde::{Deserialize, Serialize};

use crate::PodUid;
use crate::volume::SubPathMount;

/// What has to be on disk before a container is created. All paths are absolute.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct ContainerFiles {
    /// The container's own log directory, below the pod's.
    pub log_dir: String,
    pub etc_hosts: Option<FileContent>,
    /// Path of the termination message file (made empty, mode 0666), if the container has one.
    pub termination_log: Option<String>,
    pub sub_paths: Vec<SubPathMount>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileContent {
    pub path: String,
    pub text: String,
}

/// A file of variables in an emptyDir of the pod. `path` is relative to the volume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EnvFile {
    pub volume: String,
    pub path: String,
}

/// Its text, or why it could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvFileRead {
    pub file: EnvFile,
    pub text: Result<String, String>,
}

/// Where an ended container's termination message may be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TerminationMessageRequest {
    pub pod: PodUid,
    pub container: String,
    /// Host paths of everything that was mounted at the message's path. Only the file that the agent made for this
    /// container is read: a volume mounted at the same path is the pod's business, and its server may be dead.
    pub mounted: Vec<String>,
    /// Path of the log whose tail is read when the file is empty or missing.
    pub log_fallback: Option<String>,
}
