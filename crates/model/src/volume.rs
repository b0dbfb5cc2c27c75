//! Volumes a pod mounts, as steps on the node's disk. Planned in `decide`, carried out by `host`.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

pub use crate::device_paths::DevicePaths;

use crate::csi::{CsiVolume, VolumeId};

/// What has to be true on disk before a container that mounts the volume may be made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeSetup {
    /// The volume's name in the pod spec.
    pub name: String,
    /// The name in messages: with a claim, the name of the persistent volume.
    pub spec_name: String,
    pub kind: VolumeKind,
}

impl VolumeSetup {
    /// The volume plugin, by its name in metrics.
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
    /// A volume of the pod spec itself.
    pub fn inline(name: &str, kind: VolumeKind) -> Self {
        Self { name: name.to_owned(), spec_name: name.to_owned(), kind }
    }
    /// Where the volume is mapped for the pod, if containers get it as a device.
    pub fn device_paths(&self) -> Option<&DevicePaths> {
        match &self.kind {
            VolumeKind::Device(device) => Some(&device.paths),
            VolumeKind::Csi(volume) => volume.paths.device.as_ref(),
            VolumeKind::EmptyDir { .. }
            | VolumeKind::HostPath { .. }
            | VolumeKind::Content(_)
            | VolumeKind::Local(_)
            | VolumeKind::Nfs(_) => None,
        }
    }
    pub fn is_block(&self) -> bool {
        self.device_paths().is_some()
    }
}

/// A volume of a pod whose size is reported.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MeasuredVolume {
    pub name: String,
    /// Where it is on the host.
    pub path: String,
    /// Such as `kubernetes.io/empty-dir`.
    pub plugin: String,
    /// The volume is created for the pod and removed with it, so its files are counted. Other volumes are measured by
    /// their filesystem.
    pub ephemeral: bool,
    /// The volume counts towards the pod's disk usage on the node.
    pub on_disk: bool,
    /// The claim of the volume, in the pod's namespace.
    pub claim: Option<String>,
    /// A CSI volume: the driver is asked instead of the filesystem.
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
        /// Its usage is measured by a project quota, where the filesystem has these.
        project_quota: bool,
    },
    HostPath {
        path: String,
        check: HostPathCheck,
    },
    /// configMap, secret, downwardAPI, projected.
    Content(Box<ContentVolume>),
    /// A volume of a CSI driver.
    Csi(Box<CsiVolume>),
    /// A directory or a disk of this machine.
    Local(Box<LocalVolume>),
    Nfs(Box<NfsVolume>),
    /// A block device that containers get as such.
    Device(DeviceVolume),
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LocalVolume {
    /// The name of the persistent volume. A disk is mounted once under this name.
    pub name: String,
    /// The directory or the disk.
    pub path: String,
    /// Below the pod's directory.
    pub target: String,
    pub read_only: bool,
    /// The filesystem for an empty disk.
    pub fs_type: Option<String>,
    pub mount_options: Vec<String>,
    pub fs_group: Option<i64>,
    /// Files are changed to the group only if the root does not belong to it yet.
    pub on_root_mismatch: bool,
    /// Create the directory if it is missing.
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
    pub paths: DevicePaths,
}

/// The step of mounting that failed, with the words that the kubelet uses in FailedMount messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MountStage {
    NodeAffinity,
    NewMounter,
    MountOptionSupport,
    WaitForAttach,
    /// Staging, once for the node.
    MountDevice,
    /// Publishing, for the pod.
    SetUp,
    /// Block only: mapping the device for the pod, and pinning it.
    MapDevice,
}

impl MountStage {
    /// The beginning of the message about a failure. `block`: the volume is mapped as a device.
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
            (MountStage::SetUp | MountStage::MapDevice, false) => "MountVolume.SetUp failed",
            (MountStage::SetUp, true) => "MapVolume.MapPodDevice failed",
            (MountStage::MapDevice, true) => "MapVolume.MapBlockVolume failed",
        }
    }

    /// The reason of the Event about a failure.
    pub fn reason(self, block: bool) -> &'static str {
        match (self, block) {
            (MountStage::NodeAffinity | MountStage::MountOptionSupport, _) | (_, false) => "FailedMount",
            (_, true) => "FailedMapVolume",
        }
    }
}

/// An Event about work on a volume of a pod, apart from its success or failure.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum VolumeNotice {
    /// Changing the group of the volume's files takes long. `files`: how many are done, in repeated reports.
    ChangingOwnership { path: String, files: Option<u64> },
    /// Another pod uses the volume with another fsGroup, which stays.
    FsGroupMismatch { spec_name: String, wanted: i64, found: u32 },
}

/// Files that the agent writes and replaces as a whole: a reader sees the old ones or the new ones.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ContentVolume {
    /// Below the pod's directory.
    pub path: String,
    pub backing: ContentBacking,
    pub fs_group: Option<i64>,
    /// Relative directories in the volume that other mounts of the containers need.
    pub mount_points: Vec<String>,
    /// By clean relative path.
    pub files: BTreeMap<String, ContentFile>,
    /// A hash of the inputs of the files. Equal versions mean equal files.
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

/// The `Debug` form does not show the content.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentFile {
    pub mode: u32,
    /// `None`: the agent's user.
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
    fn directories_of_maps_are_those_of_the_paths() {
        let paths = DevicePaths { link: "/r/pods/u/d/k/pv".into(), map: "/r/plugins/k/d/pv/u".into() };
        assert_eq!((paths.global_map_dir(), paths.pod_map_dir()), ("/r/plugins/k/d/pv", "/r/pods/u/d/k"));
    }

    #[test]
    fn content_does_not_show_in_debug_output() {
        let file = ContentFile { mode: 0o600, owner: Some(7), bytes: b"hidden".to_vec() };
        assert_eq!(format!("{file:?}"), "ContentFile { mode: 600, owner: Some(7), length: 6, .. }");
    }
}
