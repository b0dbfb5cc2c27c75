//! What a pod's definition alone tells of its volumes: which are mounted, where they are on the host, and what is wrong
//! with them.

use std::collections::{BTreeMap, BTreeSet};

use model::k8s;
use model::node::NodeConfig;
use model::pod::PodView;
use model::volume_source::VolumeSource;

/// Why a volume can't be set up. The text is the part of the message behind the prefix of a `FailedMount` event.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum VolumeError {
    #[error("volume {volume:?} of type {kind} is not supported yet")]
    Unsupported { volume: String, kind: &'static str },
    #[error("invalid HostPath `{path}`: must not contain '..'")]
    HostPathBacksteps { volume: String, path: String },
    #[error("{kind} is an invalid volume type")]
    HostPathType { volume: String, kind: String },
    #[error("unknown storage medium {medium:?}")]
    Medium { volume: String, medium: String },
    #[error("medium: HugePages can't be used if container requests multiple huge page sizes")]
    ManyPageSizes { volume: String },
    #[error("medium {medium}: hugePages storage requested, but there is no resource request for huge pages")]
    NoHugePages { volume: String, medium: String },
}

impl VolumeError {
    pub fn volume(&self) -> &str {
        match self {
            VolumeError::Unsupported { volume, .. }
            | VolumeError::HostPathBacksteps { volume, .. }
            | VolumeError::HostPathType { volume, .. }
            | VolumeError::Medium { volume, .. }
            | VolumeError::ManyPageSizes { volume }
            | VolumeError::NoHugePages { volume, .. } => volume,
        }
    }
}

/// The host path that is mounted for a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountSource {
    /// Directory or file on the host.
    pub path: String,
    /// The mount is read-only, whatever the container's mount options are.
    pub read_only: bool,
    /// The agent created the path, so its SELinux label may be changed.
    pub managed: bool,
}

/// The host path of a persistent volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VolumePath {
    Directory(MountSource),
    /// `path`: a link to the device.
    Device {
        path: String,
        read_only: bool,
    },
}

/// Host paths and devices of the pod's persistent volumes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VolumePaths {
    /// By the volume's name in the pod.
    pub volumes: BTreeMap<String, VolumePath>,
    /// Supplemental groups that give access to the volumes.
    pub groups: Vec<i64>,
}

/// The volumes that containers mount. Image volumes are left out, because the runtime mounts them.
pub(crate) fn mounted(pod: &PodView) -> impl Iterator<Item = &k8s::Volume> {
    let mounted = mounted_names(pod);
    let volumes = pod.spec().volumes.iter().flatten();
    volumes.filter(move |volume| volume.image.is_none() && mounted.contains(volume.name.as_str()))
}

/// The names of the volumes that containers mount or use as devices.
pub(crate) fn mounted_names(pod: &PodView) -> BTreeSet<&str> {
    let ephemeral = pod.spec().ephemeral_containers.iter().flatten();
    let mounts =
        pod.containers().iter().chain(pod.init_containers()).map(|c| (&c.volume_mounts, &c.volume_devices));
    mounts
        .chain(ephemeral.map(|c| (&c.volume_mounts, &c.volume_devices)))
        .flat_map(|(mounts, devices)| {
            let mounts = mounts.iter().flatten().map(|mount| mount.name.as_str());
            mounts.chain(devices.iter().flatten().map(|device| device.name.as_str()))
        })
        .collect()
}

/// Whether containers mount the volume, and whether they use it as a device.
pub(crate) fn mounted_and_as_device(pod: &PodView, volume: &str) -> (bool, bool) {
    let ephemeral = pod.spec().ephemeral_containers.iter().flatten();
    let of =
        pod.containers().iter().chain(pod.init_containers()).map(|c| (&c.volume_mounts, &c.volume_devices));
    let of = of.chain(ephemeral.map(|c| (&c.volume_mounts, &c.volume_devices)));
    of.fold((false, false), |(mounted, device), (mounts, devices)| {
        let mounted = mounted || mounts.iter().flatten().any(|mount| mount.name == volume);
        (mounted, device || devices.iter().flatten().any(|device| device.name == volume))
    })
}

/// The host path of a volume. Image volumes have none.
pub fn host_path(
    config: &NodeConfig,
    pod: &PodView,
    volume: &k8s::Volume,
) -> Result<MountSource, VolumeError> {
    let source = VolumeSource::of(volume);
    let plugin = source.plugin().map(|plugin| plugin.replace('/', "~"));
    let Some(plugin) = plugin else { return Err(unsupported(volume, source)) };
    let below_pod = |read_only| MountSource {
        path: format!("{}/volumes/{plugin}/{}", config.pod_dir(&pod.uid), volume.name),
        read_only,
        managed: true,
    };
    match source {
        VolumeSource::EmptyDir(_) => Ok(below_pod(false)),
        VolumeSource::HostPath(source) => {
            Ok(MountSource { path: source.path.clone(), read_only: false, managed: false })
        }
        VolumeSource::Nfs(source) => {
            Ok(MountSource { managed: false, ..below_pod(source.read_only == Some(true)) })
        }
        // read-only, because the next update would overwrite changes made by a container
        VolumeSource::ConfigMap(_)
        | VolumeSource::Secret(_)
        | VolumeSource::DownwardApi(_)
        | VolumeSource::Projected(_) => Ok(below_pod(true)),
        VolumeSource::Csi(source) => {
            let read_only = source.read_only == Some(true);
            let directory = below_pod(read_only);
            Ok(MountSource { path: directory.path + "/mount", managed: !read_only, ..directory })
        }
        VolumeSource::PersistentVolumeClaim(_)
        | VolumeSource::Ephemeral(_)
        | VolumeSource::Image(_)
        | VolumeSource::Migrated(_)
        | VolumeSource::Unsupported(_) => Err(unsupported(volume, source)),
    }
}

/// The error for a volume of a kind that has no directory here.
pub(crate) fn unsupported(volume: &k8s::Volume, source: VolumeSource<'_>) -> VolumeError {
    VolumeError::Unsupported { volume: volume.name.clone(), kind: source.field() }
}
