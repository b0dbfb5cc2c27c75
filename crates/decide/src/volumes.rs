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
use model::volume_source::{PersistentSource, VolumeSource};
use model::why::Cause;

use crate::cgroups::pod_memory_limit;
use crate::disk_limits;
use crate::pod_volumes::{
    VolumeError, VolumePath, VolumePaths, host_path, mounted, mounted_and_as_device, unsupported,
};
use crate::resources::{
    Amounts, MEMORY, Overhead, container_requests, has_pod_level_resources, node_allocatable,
    page_size_of_resource, pod_requests,
};

use content::ContentSource;
pub use content::{TRUST_GATE, VolumeInputs};
pub use measured::{count_volumes, measured};

/// How long a pod waits for its volumes before a FailedMount Event. After the same time the attachment is checked for
/// an error that will not go away.
pub(crate) const VOLUME_WAIT_PERIOD: Duration = Duration::from_secs(123);

/// The text of a `FailedMount` event, for a failure found here or on disk.
pub(crate) fn mount_failure(volume: &str, cause: &str) -> String {
    format!("MountVolume.SetUp failed for volume {volume:?} : {cause}")
}

/// Host paths of the pod's persistent volumes. Fails with the volume that is not ready and why.
pub(crate) fn volume_paths(inputs: &VolumeInputs<'_>) -> Result<VolumePaths, VolumeNotReady> {
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
pub(crate) fn may_use_csi_drivers(pod: &PodView) -> bool {
    pod.spec().volumes.iter().flatten().any(|volume| may_be_csi_volume(pod, volume))
}

/// Volumes that the pod mounts and that may be CSI volumes.
pub(crate) fn csi_volume_names(pod: &PodView) -> Vec<String> {
    let found = mounted(pod).filter(|volume| may_be_csi_volume(pod, volume));
    found.map(|volume| volume.name.clone()).collect()
}

fn may_be_csi_volume(pod: &PodView, volume: &k8s::Volume) -> bool {
    matches!(VolumeSource::of(volume), VolumeSource::Csi(_) | VolumeSource::Migrated(_))
        || persistent::pod_volume_claim(pod, volume).is_some()
}

/// Set-ups of volumes whose drivers have requiresRepublish.
pub(crate) fn setups_to_republish(inputs: &VolumeInputs<'_>) -> Vec<VolumeSetup> {
    let of_drivers = mounted(inputs.pod).filter(|volume| may_be_csi_volume(inputs.pod, volume));
    let setups = of_drivers.filter_map(|volume| match VolumeSource::of(volume) {
        VolumeSource::Csi(source) => csi::inline_setup(inputs, volume, source).ok(),
        _ => persistent(inputs, volume).ok(),
    });
    setups
        .filter(|setup| matches!(&setup.kind, VolumeKind::Csi(volume) if volume.requires_republish))
        .collect()
}

/// Whether all volumes that the pod mounts are in `done`.
pub(crate) fn all_set_up(pod: &PodView, done: &BTreeSet<String>) -> bool {
    not_set_up(pod, done).is_empty()
}

/// Volumes that the pod mounts and that are not in `done`.
pub(crate) fn not_set_up(pod: &PodView, done: &BTreeSet<String>) -> Vec<String> {
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
pub(crate) fn volume_setups(inputs: &VolumeInputs<'_>) -> Result<VolumeSetups, VolumeError> {
    let mut found = VolumeSetups::default();
    for volume in mounted(inputs.pod) {
        let source = VolumeSource::of(volume);
        let setup = match source {
            VolumeSource::EmptyDir(source) => {
                let kind = empty_dir(inputs.config, inputs.facts, inputs.pod, volume, source)?;
                Ok(Some(VolumeSetup::inline(&volume.name, kind)))
            }
            VolumeSource::HostPath(source) => {
                let kind = host_path_kind(&volume.name, source)?;
                Ok(Some(VolumeSetup::inline(&volume.name, kind)))
            }
            VolumeSource::PersistentVolumeClaim(_) | VolumeSource::Ephemeral(_) => {
                persistent(inputs, volume).map(Some)
            }
            VolumeSource::Migrated(_) if inputs.cluster.is_some() => persistent(inputs, volume).map(Some),
            VolumeSource::Csi(source) => csi::inline_setup(inputs, volume, source).map(Some),
            VolumeSource::Nfs(source) => Ok(Some(nfs_volume(inputs, volume, source)?)),
            VolumeSource::ConfigMap(_)
            | VolumeSource::Secret(_)
            | VolumeSource::DownwardApi(_)
            | VolumeSource::Projected(_) => match content_source(inputs, source) {
                Some(source) => content::setup(inputs, volume, source, None),
                None => return Err(unsupported(volume, source)),
            },
            VolumeSource::Migrated(_) | VolumeSource::Image(_) | VolumeSource::Unsupported(_) => {
                return Err(unsupported(volume, source));
            }
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
pub(crate) fn content_updates(inputs: &VolumeInputs<'_>, known: &BTreeMap<String, u64>) -> VolumeSetups {
    let mut found = VolumeSetups::default();
    for volume in mounted(inputs.pod) {
        let Some(source) = content_source(inputs, VolumeSource::of(volume)) else { continue };
        match content::setup(inputs, volume, source, known.get(&volume.name).copied()) {
            Ok(setup) => found.ready.extend(setup),
            Err(held) => found.not_ready.push(held),
        }
    }
    found
}

/// The source if the agent writes the volume's files. Without an object cache there are no config maps and secrets. A
/// projected volume reports missing sources itself.
fn content_source<'a>(inputs: &VolumeInputs<'_>, source: VolumeSource<'a>) -> Option<ContentSource<'a>> {
    match source {
        VolumeSource::ConfigMap(source) => inputs.cluster.map(|_| ContentSource::ConfigMap(source)),
        VolumeSource::Secret(source) => inputs.cluster.map(|_| ContentSource::Secret(source)),
        VolumeSource::DownwardApi(source) => Some(ContentSource::DownwardApi(source)),
        VolumeSource::Projected(source) => Some(ContentSource::Projected(source)),
        VolumeSource::EmptyDir(_)
        | VolumeSource::HostPath(_)
        | VolumeSource::PersistentVolumeClaim(_)
        | VolumeSource::Ephemeral(_)
        | VolumeSource::Csi(_)
        | VolumeSource::Image(_)
        | VolumeSource::Nfs(_)
        | VolumeSource::Migrated(_)
        | VolumeSource::Unsupported(_) => None,
    }
}

/// An NFS volume from the pod's definition.
fn nfs_volume(
    inputs: &VolumeInputs<'_>,
    volume: &k8s::Volume,
    source: &k8s::NFSVolumeSource,
) -> Result<VolumeSetup, VolumeError> {
    let place = host_path(inputs.config, inputs.pod, volume)?;
    let source = persistent::nfs_source(source);
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
    match resolved.source {
        PersistentSource::Csi(source) => csi::setup(inputs, &resolved, source),
        _ => persistent::setup(inputs, &resolved),
    }
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
    source: Option<&k8s::EmptyDirVolumeSource>,
) -> Result<VolumeKind, VolumeError> {
    let medium = match source.and_then(|source| source.medium.as_deref()).unwrap_or_default() {
        "" => EmptyDirMedium::Disk,
        "Memory" => {
            let limit = source.and_then(|source| source.size_limit.as_ref());
            EmptyDirMedium::Memory { size_bytes: memory_size(config, facts, pod, limit) }
        }
        medium if medium == "HugePages" || medium.starts_with("HugePages-") => {
            huge_pages_medium(pod, &volume.name, medium)?
        }
        medium => {
            return Err(VolumeError::Medium { volume: volume.name.clone(), medium: medium.to_owned() });
        }
    };
    let pod_dir = config.pod_dir(&pod.uid);
    let project_quota = medium == EmptyDirMedium::Disk && disk_limits::may_have_quotas(config, pod);
    Ok(VolumeKind::EmptyDir {
        path: host_path(config, pod, volume)?.path,
        ready_marker: format!("{pod_dir}/plugins/kubernetes.io~empty-dir/{}/ready", volume.name),
        medium,
        fs_group: pod.spec().security_context.as_ref().and_then(|context| context.fs_group),
        project_quota,
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
    // Two resource names may mean the same size (2Mi and 2048Ki), and each amount may be the largest there is.
    let size = of_size.map(|(_, amount)| amount.value()).fold(0, i64::saturating_add);
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
