//! Volumes a pod mounts, as steps on the node's disk. Planned in `decide`, carried out by `host`.

use serde::{Deserialize, Serialize};

/// What has to be true on disk before a container that mounts the volume may be made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeSetup {
    /// The volume's name in the pod spec.
    pub name: String,
    pub kind: VolumeKind,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum VolumeKind {
    EmptyDir {
        /// Below the pod's directory: `<root>/pods/<uid>/volumes/kubernetes.io~empty-dir/<name>`.
        path: String,
        /// Ready marker: `<root>/pods/<uid>/plugins/kubernetes.io~empty-dir/<name>/ready`.
        ready_marker: String,
        medium: EmptyDirMedium,
        fs_group: Option<i64>,
    },
    HostPath {
        path: String,
        check: HostPathCheck,
    },
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum EmptyDirMedium {
    Disk,
    Memory { size_bytes: Option<u64> },
    HugePages { page_size_bytes: u64, size_bytes: u64 },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum HostPathCheck {
    None,
    DirectoryOrCreate,
    Directory,
    FileOrCreate,
    File,
    Socket,
    CharDevice,
    BlockDevice,
}

/// One sub-path to resolve safely inside a volume and bind-mount for a container.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SubPathMount {
    /// The volume's directory (or the host path).
    pub volume_path: String,
    /// Relative, already expanded, without `..`.
    pub sub_path: String,
    /// `<root>/pods/<uid>/volume-subpaths/<volume>/<container>/<index>`.
    pub target: String,
    /// The volumeMount's name, for messages.
    pub mount_name: String,
    pub container: String,
    /// Create the sub-path as a directory when it is missing.
    pub create: bool,
    pub read_only: bool,
}
