//! Which volumes of a pod have to be set up on the node's disk, and their paths for containers.

mod content;
pub mod csi;
pub mod expansion;
mod measured;
mod paths;
pub mod persistent;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::k8s;
use model::node::{HostFacts, NodeConfig};
use model::pod::PodView;
use model::quantity::Quantity;
use model::volume::{EmptyDirMedium, HostPathCheck, MountStage, NfsVolume, VolumeKind, VolumeSetup};
use model::why::Cause;

use crate::cgroups::pod_memory_limit;
use crate::csi::translation::is_migrated;
use crate::resources::{
    Amounts, MEMORY, Overhead, container_requests, has_pod_level_resources, node_allocatable,
    page_size_of_resource, pod_requests,
};

pub use content::{TRUST_GATE, VolumeInputs};
pub use measured::{count_volumes, measured};

/// How long a pod waits for its volumes before a FailedMount Event. After the same time the attachment is checked for
/// an error that will not go away.
pub const VOLUME_WAIT_PERIOD: Duration = Duration::from_secs(123);

/// Why a volume can't be set up. The text is the part of the message behind [`mount_failure`]'s prefix.
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

/// The text of a `FailedMount` event, for a failure found here or on disk.
pub fn mount_failure(volume: &str, cause: &str) -> String {
    format!("MountVolume.SetUp failed for volume {volume:?} : {cause}")
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

/// Host paths of the pod's persistent volumes. Fails with the volume that is not ready and why.
pub fn volume_paths(inputs: &VolumeInputs<'_>) -> Result<VolumePaths, VolumeNotReady> {
    let mut found = VolumePaths::default();
    for volume in mounted(inputs.pod) {
        let Some(resolved) = persistent::resolve_volume(inputs, volume) else { continue };
        let (name, resolved) = (volume.name.clone(), resolved?);
        found.groups.extend(resolved.gid.filter(|gid| !found.groups.contains(gid)));
        found.volumes.extend(volume_path(inputs, &resolved).map(|place| (name, place)));
    }
    Ok(found)
}

/// The host path of one persistent volume.
fn volume_path(inputs: &VolumeInputs<'_>, resolved: &persistent::ResolvedVolume<'_>) -> Option<VolumePath> {
    csi::volume_path(inputs, resolved).or_else(|| persistent::volume_path(inputs, resolved))
}

/// Whether a volume of the pod may be a CSI volume.
pub fn may_use_csi_drivers(pod: &PodView) -> bool {
    pod.spec().volumes.iter().flatten().any(|volume| may_be_csi_volume(pod, volume))
}

/// Volumes that the pod mounts and that may be CSI volumes.
pub fn csi_volume_names(pod: &PodView) -> Vec<String> {
    let found = mounted(pod).filter(|volume| may_be_csi_volume(pod, volume));
    found.map(|volume| volume.name.clone()).collect()
}

fn may_be_csi_volume(pod: &PodView, volume: &k8s::Volume) -> bool {
    volume.csi.is_some() || is_migrated(volume) || persistent::pod_volume_claim(pod, volume).is_some()
}

/// Set-ups of volumes whose drivers have requiresRepublish.
pub fn setups_to_republish(inputs: &VolumeInputs<'_>) -> Vec<VolumeSetup> {
    let of_drivers = mounted(inputs.pod).filter(|volume| may_be_csi_volume(inputs.pod, volume));
    let setups = of_drivers.filter_map(|volume| match &volume.csi {
        Some(_) => csi::setup(inputs, volume, None).ok(),
        None => persistent(inputs, volume).ok(),
    });
    setups
        .filter(|setup| matches!(&setup.kind, VolumeKind::Csi(volume) if volume.requires_republish))
        .collect()
}

/// Whether all volumes that the pod mounts are in `done`.
pub fn all_set_up(pod: &PodView, done: &BTreeSet<String>) -> bool {
    not_set_up(pod, done).is_empty()
}

/// Volumes that the pod mounts and that are not in `done`.
pub fn not_set_up(pod: &PodView, done: &BTreeSet<String>) -> Vec<String> {
    mounted(pod).map(|volume| volume.name.clone()).filter(|name| !done.contains(name)).collect()
}

/// Why a volume can't be set up now, although nothing is wrong with its definition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VolumeNotReady {
    /// An object that the volume needs was not read yet.
    Waiting { volume: String, cause: Cause },
    /// An object that the volume needs is missing. The message is the part after the prefix of [`mount_failure`].
    SetUpRefused { volume: String, message: String },
    /// The claim can't be resolved to a persistent volume.
    ClaimNotUsable { volume: String, claim: String, message: String },
    /// The persistent volume can't be mounted. `spec_name` is its name.
    StageFailed {
        volume: String,
        claim: String,
        spec_name: String,
        stage: MountStage,
        block: bool,
        message: String,
    },
}

impl VolumeNotReady {
    /// The volume's name in the pod.
    pub fn volume(&self) -> &str {
        match self {
            VolumeNotReady::Waiting { volume, .. }
            | VolumeNotReady::SetUpRefused { volume, .. }
            | VolumeNotReady::ClaimNotUsable { volume, .. }
            | VolumeNotReady::StageFailed { volume, .. } => volume,
        }
    }
}

/// The set-ups of a pod's volumes, as far as they are known.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct VolumeSetups {
    pub ready: Vec<VolumeSetup>,
    pub not_ready: Vec<VolumeNotReady>,
}

/// The set-ups of a pod's volumes: one per volume that a container mounts, in spec order.
pub fn volume_setups(inputs: &VolumeInputs<'_>) -> Result<VolumeSetups, VolumeError> {
    let mut found = VolumeSetups::default();
    for volume in mounted(inputs.pod) {
        let setup = match kind_name(volume) {
            "emptyDir" => {
                let kind = empty_dir(inputs.config, inputs.facts, inputs.pod, volume)?;
                Ok(Some(VolumeSetup::inline(&volume.name, kind)))
            }
            "hostPath" => {
                let source = volume.host_path.clone().unwrap_or_default();
                let kind = host_path_kind(&volume.name, &source)?;
                Ok(Some(VolumeSetup::inline(&volume.name, kind)))
            }
            "persistentVolumeClaim" | "ephemeral" => persistent(inputs, volume).map(Some),
            _ if is_migrated(volume) && inputs.cluster.is_some() => persistent(inputs, volume).map(Some),
            "csi" => csi::setup(inputs, volume, None).map(Some),
            "nfs" => Ok(Some(nfs_volume(inputs, volume)?)),
            kind if is_agent_written(inputs, kind) => content::setup(inputs, volume, None),
            kind => return Err(VolumeError::Unsupported { volume: volume.name.clone(), kind }),
        };
        match setup {
            Ok(setup) => found.ready.extend(setup),
            Err(held) => found.not_ready.push(held),
        }
    }
    Ok(found)
}

/// Set-ups of configMap, secret, downwardAPI and projected volumes whose content changed. `known` is the last version
/// written per volume.
pub fn content_updates(inputs: &VolumeInputs<'_>, known: &BTreeMap<String, u64>) -> VolumeSetups {
    let mut found = VolumeSetups::default();
    for volume in mounted(inputs.pod).filter(|volume| is_agent_written(inputs, kind_name(volume))) {
        match content::setup(inputs, volume, known.get(&volume.name).copied()) {
            Ok(setup) => found.ready.extend(setup),
            Err(held) => found.not_ready.push(held),
        }
    }
    found
}

/// The volumes that containers mount. Image volumes are left out, because the runtime mounts them.
fn mounted(pod: &PodView) -> impl Iterator<Item = &k8s::Volume> {
    let mounted = mounted_names(pod);
    let volumes = pod.spec().volumes.iter().flatten();
    volumes.filter(move |volume| volume.image.is_none() && mounted.contains(volume.name.as_str()))
}

/// Whether the agent writes the volume's files. Without an object cache there are no config maps and secrets. A
/// projected volume reports missing sources itself.
fn is_agent_written(inputs: &VolumeInputs<'_>, kind: &str) -> bool {
    content::is_content(kind) && (inputs.cluster.is_some() || matches!(kind, "downwardAPI" | "projected"))
}

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

/// An NFS volume from the pod's definition.
fn nfs_volume(inputs: &VolumeInputs<'_>, volume: &k8s::Volume) -> Result<VolumeSetup, VolumeError> {
    let place = host_path(inputs.config, inputs.pod, volume)?;
    let source = volume.nfs.as_ref().map(persistent::nfs_source).unwrap_or_default();
    let nfs = NfsVolume { source, target: place.path, mount_options: vec![], read_only: place.read_only };
    Ok(VolumeSetup::inline(&volume.name, VolumeKind::Nfs(Box::new(nfs))))
}

/// The set-up of a volume with a claim or of a migrated in-tree volume.
fn persistent(inputs: &VolumeInputs<'_>, volume: &k8s::Volume) -> Result<VolumeSetup, VolumeNotReady> {
    let Some(resolved) = persistent::resolve_volume(inputs, volume) else {
        return Err(VolumeNotReady::SetUpRefused {
            volume: volume.name.clone(),
            message: "it has no claim".into(),
        });
    };
    let resolved = resolved?;
    persistent::check(inputs, &resolved)?;
    persistent::setup(inputs, &resolved)
}

/// Whether containers mount the volume, and whether they use it as a device.
fn mounted_and_as_device(pod: &PodView, volume: &str) -> (bool, bool) {
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
    let below_pod = |plugin: &str, read_only| MountSource {
        path: format!("{}/volumes/kubernetes.io~{plugin}/{}", config.pod_dir(&pod.uid), volume.name),
        read_only,
        managed: true,
    };
    match kind_name(volume) {
        "emptyDir" => Ok(below_pod("empty-dir", false)),
        "hostPath" => {
            let path = volume.host_path.as_ref().map(|source| source.path.clone()).unwrap_or_default();
            Ok(MountSource { path, read_only: false, managed: false })
        }
        "nfs" => {
            let read_only = volume.nfs.as_ref().and_then(|source| source.read_only) == Some(true);
            Ok(MountSource { managed: false, ..below_pod("nfs", read_only) })
        }
        // read-only, because the next update would overwrite changes made by a container
        "configMap" => Ok(below_pod("configmap", true)),
        "secret" => Ok(below_pod("secret", true)),
        "downwardAPI" => Ok(below_pod("downward-api", true)),
        "projected" => Ok(below_pod("projected", true)),
        "csi" => Ok(csi::inline_volume_path(config, pod, volume)),
        kind => Err(VolumeError::Unsupported { volume: volume.name.clone(), kind }),
    }
}

/// The name of the source in the spec. A volume without a source is an emptyDir.
fn kind_name(volume: &k8s::Volume) -> &'static str {
    let sources = [
        ("emptyDir", volume.empty_dir.is_some()),
        ("hostPath", volume.host_path.is_some()),
        ("configMap", volume.config_map.is_some()),
        ("secret", volume.secret.is_some()),
        ("downwardAPI", volume.downward_api.is_some()),
        ("projected", volume.projected.is_some()),
        ("persistentVolumeClaim", volume.persistent_volume_claim.is_some()),
        ("ephemeral", volume.ephemeral.is_some()),
        ("csi", volume.csi.is_some()),
        ("image", volume.image.is_some()),
        ("nfs", volume.nfs.is_some()),
        ("iscsi", volume.iscsi.is_some()),
        ("fc", volume.fc.is_some()),
        ("flexVolume", volume.flex_volume.is_some()),
        ("gitRepo", volume.git_repo.is_some()),
        ("awsElasticBlockStore", volume.aws_elastic_block_store.is_some()),
        ("azureDisk", volume.azure_disk.is_some()),
        ("azureFile", volume.azure_file.is_some()),
        ("cephfs", volume.cephfs.is_some()),
        ("cinder", volume.cinder.is_some()),
        ("flocker", volume.flocker.is_some()),
        ("gcePersistentDisk", volume.gce_persistent_disk.is_some()),
        ("glusterfs", volume.glusterfs.is_some()),
        ("photonPersistentDisk", volume.photon_persistent_disk.is_some()),
        ("portworxVolume", volume.portworx_volume.is_some()),
        ("quobyte", volume.quobyte.is_some()),
        ("rbd", volume.rbd.is_some()),
        ("scaleIO", volume.scale_io.is_some()),
        ("storageos", volume.storageos.is_some()),
        ("vsphereVolume", volume.vsphere_volume.is_some()),
    ];
    sources.into_iter().find(|(_, given)| *given).map_or("emptyDir", |(name, _)| name)
}

fn host_path_kind(volume: &str, source: &k8s::HostPathVolumeSource) -> Result<VolumeKind, VolumeError> {
    let name = || volume.to_owned();
    let path = source.path.clone();
    if path.split('/').any(|part| part == "..") {
        return Err(VolumeError::HostPathBacksteps { volume: name(), path });
    }
    let check = match source.type_.as_deref().unwrap_or_default() {
        "" => HostPathCheck::None,
        "DirectoryOrCreate" => HostPathCheck::DirectoryOrCreate,
        "Directory" => HostPathCheck::Directory,
        "FileOrCreate" => HostPathCheck::FileOrCreate,
        "File" => HostPathCheck::File,
        "Socket" => HostPathCheck::Socket,
        "CharDevice" => HostPathCheck::CharDevice,
        "BlockDevice" => HostPathCheck::BlockDevice,
        other => return Err(VolumeError::HostPathType { volume: name(), kind: other.to_owned() }),
    };
    Ok(VolumeKind::HostPath { path, check })
}

fn empty_dir(
    config: &NodeConfig,
    facts: &HostFacts,
    pod: &PodView,
    volume: &k8s::Volume,
) -> Result<VolumeKind, VolumeError> {
    let source = volume.empty_dir.clone().unwrap_or_default();
    let medium = match source.medium.as_deref().unwrap_or_default() {
        "" => EmptyDirMedium::Disk,
        "Memory" => {
            EmptyDirMedium::Memory { size_bytes: memory_size(config, facts, pod, source.size_limit.as_ref()) }
        }
        medium if medium == "HugePages" || medium.starts_with("HugePages-") => {
            huge_pages_medium(pod, &volume.name, medium)?
        }
        medium => {
            return Err(VolumeError::Medium { volume: volume.name.clone(), medium: medium.to_owned() });
        }
    };
    let pod_dir = config.pod_dir(&pod.uid);
    Ok(VolumeKind::EmptyDir {
        path: host_path(config, pod, volume)?.path,
        ready_marker: format!("{pod_dir}/plugins/kubernetes.io~empty-dir/{}/ready", volume.name),
        medium,
        fs_group: pod.spec().security_context.as_ref().and_then(|context| context.fs_group),
    })
}

/// The smallest of the node's allocatable memory, the pod's memory limit, and the volume's sizeLimit.
fn memory_size(
    config: &NodeConfig,
    facts: &HostFacts,
    pod: &PodView,
    size_limit: Option<&k8s::Quantity>,
) -> Option<u64> {
    let node = node_allocatable(config, facts).amount(MEMORY).value();
    let own = size_limit.and_then(|limit| Quantity::try_from(limit).ok()).map(|limit| limit.value());
    let limits = [Some(node), pod_memory_limit(config, facts, pod), own];
    let smallest = limits.into_iter().flatten().filter(|bytes| *bytes > 0).min();
    smallest.and_then(|bytes| u64::try_from(bytes).ok())
}

/// The page size that the medium names, or the only one that the pod requests.
fn huge_pages_medium(pod: &PodView, volume: &str, medium: &str) -> Result<EmptyDirMedium, VolumeError> {
    let mut sizes = requested_page_sizes(pod);
    if let Some(wanted) = medium.strip_prefix("HugePages-") {
        let wanted = page_size_of_resource(&format!("hugepages-{wanted}"));
        sizes.retain(|size| Some(*size) == wanted);
    }
    let mut sizes = sizes.into_iter();
    let (page_size_bytes, another) = (sizes.next(), sizes.next());
    if another.is_some() {
        return Err(VolumeError::ManyPageSizes { volume: volume.to_owned() });
    }
    let page_size_bytes = page_size_bytes
        .ok_or_else(|| VolumeError::NoHugePages { volume: volume.to_owned(), medium: medium.to_owned() })?;
    let requests = pod_requests(pod, Overhead::Excluded);
    let of_size = requests.iter().filter(|(name, _)| page_size_of_resource(name) == Some(page_size_bytes));
    let size: i64 = of_size.map(|(_, amount)| amount.value()).sum();
    Ok(EmptyDirMedium::HugePages { page_size_bytes, size_bytes: u64::try_from(size).unwrap_or(0) })
}

fn requested_page_sizes(pod: &PodView) -> BTreeSet<u64> {
    let mut requests: Vec<Amounts> =
        pod.containers().iter().chain(pod.init_containers()).map(container_requests).collect();
    if has_pod_level_resources(pod) {
        requests.push(pod_requests(pod, Overhead::Excluded));
    }
    requests.iter().flat_map(|list| list.iter().filter_map(|(name, _)| page_size_of_resource(name))).collect()
}

#[cfg(test)]
mod tests;
