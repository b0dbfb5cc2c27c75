//! Volumes a pod mounts, as steps on the node's disk. Planned in `decide`, carried out by `host`.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::csi::{CsiVolume, VolumeAccessType, VolumeId};

/// What has to be true on disk before a container that mounts the volume may be made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeSetup {
    /// The volume's name in the pod spec.
    pub name: String,
    /// What messages call it: behind a claim that is the persistent volume's name.
    pub spec_name: String,
    pub kind: VolumeKind,
}

impl VolumeSetup {
    /// Who makes such volumes, by the name that metrics have for them.
    pub fn plugin(&self) -> String {
        let below_pod = |path: &str| path.rsplit('/').nth(1).unwrap_or_default().replace('~', "/");
        match &self.kind {
            VolumeKind::EmptyDir { path, .. } => below_pod(path),
            VolumeKind::Content(content) => below_pod(&content.path),
            VolumeKind::Nfs(nfs) => below_pod(&nfs.target),
            VolumeKind::HostPath { .. } => "kubernetes.io/host-path".to_owned(),
            VolumeKind::Local(_) | VolumeKind::Device(_) => "kubernetes.io/local-volume".to_owned(),
            VolumeKind::Csi(_) => "kubernetes.io/csi".to_owned(),
        }
    }
    /// A volume that stands in the pod spec itself.
    pub fn inline(name: &str, kind: VolumeKind) -> Self {
        Self { name: name.to_owned(), spec_name: name.to_owned(), kind }
    }
    /// Whether it is shown to containers as a device.
    pub fn is_block(&self) -> bool {
        match self.kind {
            VolumeKind::Device(_) => true,
            VolumeKind::Csi(ref volume) => volume.access == VolumeAccessType::Block,
            VolumeKind::EmptyDir { .. }
            | VolumeKind::HostPath { .. }
            | VolumeKind::Content(_)
            | VolumeKind::Local(_)
            | VolumeKind::Nfs(_) => false,
        }
    }
}

/// A volume of a pod whose size is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MeasuredVolume {
    pub name: String,
    /// Where it is on the host.
    pub path: String,
    /// Such as `kubernetes.io/empty-dir`.
    pub plugin: String,
    /// It was made for the pod and goes with it: its files are counted. Of any other its filesystem tells.
    pub ephemeral: bool,
    /// It is part of what the pod keeps on the node's disk.
    pub on_disk: bool,
    /// The claim in the pod's namespace that it was bound to.
    pub claim: Option<String>,
    /// It is a storage driver's, which is asked instead of the filesystem.
    pub of_driver: Option<VolumeId>,
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
    /// configMap, secret, downwardAPI, projected.
    Content(Box<ContentVolume>),
    /// By a storage driver of the node.
    Csi(Box<CsiVolume>),
    /// A directory or a disk of this machine.
    Local(Box<LocalVolume>),
    Nfs(Box<NfsVolume>),
    /// A block device that containers get as such.
    Device(DeviceVolume),
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LocalVolume {
    /// Of the persistent volume: a disk is mounted once under this name.
    pub name: String,
    /// The directory or the disk.
    pub path: String,
    /// Below the pod's directory.
    pub target: String,
    pub read_only: bool,
    /// For a disk with nothing on it.
    pub fs_type: Option<String>,
    pub mount_options: Vec<String>,
    pub fs_group: Option<i64>,
    /// Files are given to the group only when the root is not the group's yet.
    pub on_root_mismatch: bool,
    /// The directory is made when it is missing.
    pub create: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NfsVolume {
    /// `<server>:<path>`
    pub source: String,
    /// Below the pod's directory.
    pub target: String,
    pub mount_options: Vec<String>,
    pub read_only: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceVolume {
    pub device: String,
    /// Below the pod's directory: the name under which the runtime is told of it.
    pub link: String,
}

/// How far the way to a mounted volume was gone, as messages name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MountStage {
    NodeAffinity,
    NewMounter,
    MountOptionSupport,
    WaitForAttach,
    /// Once for the node.
    MountDevice,
    /// For the pod.
    SetUp,
}

impl MountStage {
    /// What the message about a failure begins with. `block`: it is mapped as a device instead.
    pub fn failed(self, block: bool) -> &'static str {
        match (self, block) {
            (MountStage::NodeAffinity, false) => "MountVolume.NodeAffinity check failed",
            (MountStage::NodeAffinity, true) => "MapVolume.NodeAffinity check failed",
            (MountStage::NewMounter, false) => "MountVolume.NewMounter initialization failed",
            (MountStage::NewMounter, true) => "MapVolume.NewBlockVolumeMapper initialization failed",
            (MountStage::MountOptionSupport, _) => "MountVolume.MountOptionSupport check failed",
            (MountStage::WaitForAttach, false) => "MountVolume.WaitForAttach failed",
            (MountStage::WaitForAttach, true) => "MapVolume.WaitForAttach failed",
            (MountStage::MountDevice, false) => "MountVolume.MountDevice failed",
            (MountStage::MountDevice, true) => "MapVolume.SetUpDevice failed",
            (MountStage::SetUp, false) => "MountVolume.SetUp failed",
            (MountStage::SetUp, true) => "MapVolume.MapPodDevice failed",
        }
    }

    /// The reason of the Event about it.
    pub fn reason(self, block: bool) -> &'static str {
        match (self, block) {
            (MountStage::NodeAffinity | MountStage::MountOptionSupport, _) | (_, false) => "FailedMount",
            (_, true) => "FailedMapVolume",
        }
    }
}

/// Something that users are told about work on a volume of their pod, beside whether it succeeded.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum VolumeNotice {
    /// Its files are given to the pod's group, and that takes long. `files`: how many were, when it is told again.
    ChangingOwnership { path: String, files: Option<u64> },
    /// Another pod has it for another group, which stays.
    FsGroupMismatch { spec_name: String, wanted: i64, found: u32 },
}

/// Files whose content is known here and replaced as a whole: whoever reads sees the old ones or the new ones.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ContentVolume {
    /// Below the pod's directory.
    pub path: String,
    pub backing: ContentBacking,
    pub fs_group: Option<i64>,
    /// Directories that other mounts of the containers need in it, relative.
    pub mount_points: Vec<String>,
    /// By clean relative path.
    pub files: BTreeMap<String, ContentFile>,
    /// Of what the files were made from. Others with the same have the same files.
    pub version: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ContentBacking {
    Disk,
    /// Never written to a disk.
    Memory {
        size_bytes: Option<u64>,
    },
}

/// Its debug form does not show what is in it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentFile {
    pub mode: u32,
    /// `None`: the agent's.
    pub owner: Option<i64>,
    pub bytes: Vec<u8>,
}

impl fmt::Debug for ContentFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContentFile")
            .field("mode", &format_args!("{:o}", self.mode))
            .field("owner", &self.owner)
            .field("length", &self.bytes.len())
            .finish_non_exhaustive()
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_does_not_show_in_debug_output() {
        let file = ContentFile { mode: 0o600, owner: Some(7), bytes: b"hidden".to_vec() };
        assert_eq!(format!("{file:?}"), "ContentFile { mode: 600, owner: Some(7), length: 6, .. }");
    }
}
