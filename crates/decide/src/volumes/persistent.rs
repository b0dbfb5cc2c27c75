//! Claims: resolves a pod's volume to its persistent volume.
//!
//! ```text
//!   volume ──> claim (of its own for a generic ephemeral one) ──> bound? ──> persistent volume ──> claimed by it?
//!          ──> Resolved: source, options, mode ──> allowed here, by this pod, now? ──> its set-up
//! ```
//! Failures: the pod waits for objects that were not read yet (`VolumeNotReady::Waiting`). An unusable claim is
//! reported with upstream's text (`ClaimNotUsable`). A failure of a later stage is reported with the name of the
//! persistent volume (`StageFailed`).

use std::collections::BTreeSet;

use model::k8s::{
    self, LocalVolumeSource, NFSVolumeSource, PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec,
};
use model::pod::PodView;
use model::storage::StorageKey;
use model::volume::{DevicePaths, DeviceVolume, LocalVolume, MountStage, NfsVolume, VolumeKind, VolumeSetup};
use model::volume_source::{PersistentSource, VolumeSource};
use model::why::Cause;

use super::{VolumeInputs, VolumeNotReady, mounted};
use crate::admission::node_selected;
use crate::csi::translation::{translate_inline, translate_volume};
use crate::objects::{ObjectCache, StorageCache, StorageLookupError};
use crate::pod_volumes::{MountSource, VolumePath};

const GID: &str = "pv.beta.kubernetes.io/gid";
const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";
const PROTECTION: &str = "kubernetes.io/pvc-protection";
const ONE_POD: &str = "ReadWriteOncePod";
const LOCAL: &str = "kubernetes.io~local-volume";
const NFS: &str = "kubernetes.io~nfs";

/// The claim of a pod's volume: one that the volume names, or the generated one of a generic ephemeral volume.
#[derive(Clone, PartialEq, Debug)]
pub struct PodVolumeClaim<'a> {
    pub volume: &'a k8s::Volume,
    pub key: StorageKey,
    pub namespace: &'a str,
    pub name: String,
    pub read_only: bool,
    /// The claim is generated for this pod (generic ephemeral volume).
    pub ephemeral: bool,
}

/// `None`: the volume has no claim.
pub(crate) fn pod_volume_claim<'a>(pod: &'a PodView, volume: &'a k8s::Volume) -> Option<PodVolumeClaim<'a>> {
    let (name, read_only, ephemeral) = match VolumeSource::of(volume) {
        VolumeSource::PersistentVolumeClaim(source) => {
            (source.claim_name.clone(), source.read_only == Some(true), false)
        }
        VolumeSource::Ephemeral(_) => (format!("{}-{}", pod.name(), volume.name), false, true),
        VolumeSource::EmptyDir(_)
        | VolumeSource::HostPath(_)
        | VolumeSource::ConfigMap(_)
        | VolumeSource::Secret(_)
        | VolumeSource::DownwardApi(_)
        | VolumeSource::Projected(_)
        | VolumeSource::Csi(_)
        | VolumeSource::Image(_)
        | VolumeSource::Nfs(_)
        | VolumeSource::Migrated(_)
        | VolumeSource::Unsupported(_) => return None,
    };
    let namespace = pod.namespace();
    let key = StorageKey::Claim { namespace: namespace.to_owned(), name: name.clone() };
    Some(PodVolumeClaim { volume, key, namespace, name, read_only, ephemeral })
}

/// The claims of the volumes that the pod mounts.
pub fn claims(pod: &PodView) -> impl Iterator<Item = PodVolumeClaim<'_>> {
    mounted(pod).filter_map(|volume| pod_volume_claim(pod, volume))
}

/// The objects that have to be read for the pod's volumes, as far as they are known: the claim names the volume.
pub fn keys(pod: &PodView, desk: &StorageCache) -> BTreeSet<StorageKey> {
    let mut found = BTreeSet::new();
    for claim in claims(pod) {
        if let Ok(object) = desk.claim(&pod.uid, claim.namespace, &claim.name)
            && let Ok(name) = bound_volume(object)
        {
            found.insert(StorageKey::Volume { name: name.to_owned() });
        }
        found.insert(claim.key);
    }
    found
}

/// A claim with the persistent volume that it is bound to.
#[derive(Clone, PartialEq, Debug)]
pub struct ResolvedVolume<'a> {
    /// For a migrated in-tree inline volume there is no claim; only `volume` is set.
    pub claim: PodVolumeClaim<'a>,
    /// `None`: the volume is inline in the pod's definition.
    pub claim_object: Option<&'a PersistentVolumeClaim>,
    pub volume: &'a PersistentVolume,
    /// The persistent volume's name, which messages and directories use.
    pub spec_name: &'a str,
    pub source: PersistentSource<'a>,
    pub read_only: bool,
    /// A device instead of a filesystem.
    pub block: bool,
    /// Sorted and without duplicates.
    pub mount_options: Vec<String>,
    pub access_modes: &'a [String],
    /// A supplemental group that gives access to the volume.
    pub gid: Option<i64>,
}

impl ResolvedVolume<'_> {
    /// Whether only one pod may use the volume.
    fn is_read_write_once_pod_volume(&self) -> bool {
        matches!(self.access_modes, [only] if only == ONE_POD)
    }

    pub(super) fn stage_failed(&self, stage: MountStage, message: impl Into<String>) -> VolumeNotReady {
        VolumeNotReady::StageFailed {
            volume: self.claim.volume.name.clone(),
            claim: self.claim.name.clone(),
            spec_name: self.spec_name.to_owned(),
            stage,
            block: self.block,
            message: message.into(),
        }
    }
}

/// Resolves a volume with a claim, or a migrated in-tree volume. `None`: it is another kind of volume.
pub(crate) fn resolve_volume<'a>(
    inputs: &VolumeInputs<'a>,
    volume: &'a k8s::Volume,
) -> Option<Result<ResolvedVolume<'a>, VolumeNotReady>> {
    match pod_volume_claim(inputs.pod, volume) {
        Some(claim) => Some(resolve(inputs, claim)),
        None => inline(inputs, volume),
    }
}

/// Resolves a migrated in-tree volume of the pod's definition.
fn inline<'a>(
    inputs: &VolumeInputs<'a>,
    volume: &'a k8s::Volume,
) -> Option<Result<ResolvedVolume<'a>, VolumeNotReady>> {
    let VolumeSource::Migrated(source) = VolumeSource::of(volume) else { return None };
    let objects = inputs.cluster?;
    let namespace = inputs.pod.namespace();
    let claim = PodVolumeClaim {
        volume,
        key: StorageKey::Claim { namespace: namespace.to_owned(), name: String::new() },
        namespace,
        name: String::new(),
        read_only: false,
        ephemeral: false,
    };
    if let Some(made) = objects.storage.inline_volume(&inputs.pod.uid, &volume.name) {
        let name = made.metadata.name.as_deref().unwrap_or_default();
        return Some(Ok(described(claim, None, made, name)));
    }
    let message = match translate_inline(&volume.name, source, namespace) {
        Err(message) => untranslated(&message),
        Ok(_) => {
            let cause = Cause::WaitingForVolume {
                volume: volume.name.clone(),
                claim: String::new(),
                message: "its driver is not known yet".into(),
            };
            return Some(Err(VolumeNotReady::Waiting { volume: volume.name.clone(), cause }));
        }
    };
    Some(Err(VolumeNotReady::ClaimNotUsable { volume: volume.name.clone(), claim: String::new(), message }))
}

fn untranslated(message: &str) -> String {
    format!("failed to translate in-tree pv to CSI: {message}")
}

/// Resolves a claim to its persistent volume, with checks in the order of the upstream kubelet. The texts are a
/// contract.
pub fn resolve<'a>(
    inputs: &VolumeInputs<'a>,
    claim: PodVolumeClaim<'a>,
) -> Result<ResolvedVolume<'a>, VolumeNotReady> {
    let outer = claim.volume.name.clone();
    let claimed = claim.name.clone();
    let unprocessed = |message: String| VolumeNotReady::ClaimNotUsable {
        volume: outer.clone(),
        claim: claimed.clone(),
        message,
    };
    let about = |message: String| {
        unprocessed(format!("error processing PVC {}/{}: {message}", claim.namespace, claim.name))
    };
    let Some(desk) = inputs.cluster.map(|desk| &desk.storage) else {
        return Err(about(
            "failed to fetch PVC from API server: this node runs without a cluster".to_owned(),
        ));
    };
    let uid = &inputs.pod.uid;
    let object = desk.claim(uid, claim.namespace, &claim.name).map_err(|lack| {
        let fetch = "failed to fetch PVC from API server";
        missing(&claim, "persistentvolumeclaim", &claim.name, lack)
            .unwrap_or_else(|message| about(format!("{fetch}: {message}")))
    })?;
    let name = bound_volume(object).map_err(|message| about(message.to_owned()))?;
    if claim.ephemeral && !is_owned_by(object, inputs.pod) {
        let (pod, namespace) = (inputs.pod.name(), inputs.pod.namespace());
        let of = format!("PVC {}/{}", claim.namespace, claim.name);
        return Err(unprocessed(format!(
            "{of} was not created for pod {namespace}/{pod} (pod is not owner)"
        )));
    }
    let volume = desk.volume(uid, name).map_err(|lack| {
        missing(&claim, "persistentvolume", name, lack)
            .unwrap_or_else(|message| about(format!("failed to fetch PV {name} from API server: {message}")))
    })?;
    check_claim_ref(volume, name, object).map_err(about)?;
    if let Some(Err(message)) = translate_volume(volume) {
        return Err(unprocessed(untranslated(&message)));
    }
    let resolved = described(claim, Some(object), volume, name);
    check_volume_mode(inputs.pod, &resolved).map_err(unprocessed)?;
    Ok(resolved)
}

/// `Ok`: the pod waits for an object that was not read yet. `Err`: the server's message.
fn missing(
    claim: &PodVolumeClaim<'_>,
    kind: &str,
    name: &str,
    lack: StorageLookupError<'_>,
) -> Result<VolumeNotReady, String> {
    match lack {
        StorageLookupError::Refused(message) => Err(message.to_owned()),
        StorageLookupError::NotRead { read_error: trouble } => {
            let message = match trouble {
                "" => format!("{kind} {name:?} was not read yet"),
                trouble => format!("{kind} {name:?} can't be read: {trouble}"),
            };
            let volume = claim.volume.name.clone();
            let cause =
                Cause::WaitingForVolume { volume: volume.clone(), claim: claim.name.clone(), message };
            Ok(VolumeNotReady::Waiting { volume, cause })
        }
    }
}

fn bound_volume(claim: &PersistentVolumeClaim) -> Result<&str, &'static str> {
    let finalizers = claim.metadata.finalizers.as_deref().unwrap_or_default();
    if claim.metadata.deletion_timestamp.is_some() && !finalizers.iter().any(|name| name == PROTECTION) {
        return Err("PVC is being deleted");
    }
    if claim.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Bound") {
        return Err("PVC is not bound");
    }
    let name = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    name.filter(|name| !name.is_empty()).ok_or("PVC has empty pvc.Spec.VolumeName")
}

fn is_owned_by(claim: &PersistentVolumeClaim, pod: &PodView) -> bool {
    let owners = claim.metadata.owner_references.iter().flatten();
    let mut controllers = owners.filter(|owner| owner.controller == Some(true));
    controllers.any(|owner| owner.uid == pod.uid.as_str())
}

fn check_claim_ref(
    volume: &PersistentVolume,
    name: &str,
    claim: &PersistentVolumeClaim,
) -> Result<(), String> {
    let Some(reference) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else {
        return Err(format!(
            "found PV object {name} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
        ));
    };
    let (theirs, ours) = (reference.uid.as_deref(), claim.metadata.uid.as_deref());
    if theirs != ours {
        let (theirs, ours) = (theirs.unwrap_or_default(), ours.unwrap_or_default());
        return Err(format!(
            "found PV object {name} but its pv.Spec.ClaimRef.UID {theirs} does not point to claim.UID {ours}"
        ));
    }
    Ok(())
}

fn described<'a>(
    claim: PodVolumeClaim<'a>,
    claim_object: Option<&'a PersistentVolumeClaim>,
    volume: &'a PersistentVolume,
    spec_name: &'a str,
) -> ResolvedVolume<'a> {
    let spec = volume.spec.as_ref();
    let annotation = |key: &str| volume.metadata.annotations.as_ref().and_then(|all| all.get(key));
    ResolvedVolume {
        read_only: claim.read_only,
        claim,
        claim_object,
        volume,
        spec_name,
        source: spec.map_or(PersistentSource::Unsupported("unknown"), PersistentSource::of),
        block: spec.and_then(|spec| spec.volume_mode.as_deref()) == Some("Block"),
        mount_options: mount_options(spec, annotation(MOUNT_OPTIONS)),
        access_modes: spec.and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default(),
        gid: annotation(GID).and_then(|text| text.parse().ok()),
    }
}

/// The mount options of the old annotation replace those of the spec.
fn mount_options(spec: Option<&PersistentVolumeSpec>, annotation: Option<&String>) -> Vec<String> {
    let given: BTreeSet<String> = match annotation {
        Some(text) => text.split(',').filter(|option| !option.is_empty()).map(str::to_owned).collect(),
        None => spec.and_then(|spec| spec.mount_options.clone()).unwrap_or_default().into_iter().collect(),
    };
    given.into_iter().collect()
}

fn check_volume_mode(pod: &PodView, resolved: &ResolvedVolume<'_>) -> Result<(), String> {
    let name = &resolved.claim.volume.name;
    let mode = if resolved.block { "Block" } else { "Filesystem" };
    let (mounts, devices) = super::mounted_and_as_device(pod, name);
    if mounts && resolved.block {
        return Err(format!("volume {name} has volumeMode {mode}, but is specified in volumeMounts"));
    }
    if devices && !resolved.block {
        return Err(format!("volume {name} has volumeMode {mode}, but is specified in volumeDevices"));
    }
    Ok(())
}

/// Checks between resolving a claim and mounting it: node affinity, mount options, ReadWriteOncePod.
pub(super) fn check(inputs: &VolumeInputs<'_>, resolved: &ResolvedVolume<'_>) -> Result<(), VolumeNotReady> {
    let spec = resolved.volume.spec.as_ref();
    let required = spec.and_then(|spec| spec.node_affinity.as_ref()).and_then(|a| a.required.as_ref());
    if let Some(required) = required {
        let Some(node) = inputs.node else {
            let volume = resolved.claim.volume.name.clone();
            let cause = Cause::WaitingForVolume {
                volume: volume.clone(),
                claim: resolved.claim.name.clone(),
                message: "the labels of the node were not read yet".into(),
            };
            return Err(VolumeNotReady::Waiting { volume, cause });
        };
        let labels = node.metadata.labels.clone().unwrap_or_default();
        if !node_selected(required, &inputs.config.node_name, &labels) {
            return Err(resolved.stage_failed(MountStage::NodeAffinity, "no matching NodeSelectorTerms"));
        }
    }
    let takes_options = matches!(
        resolved.source,
        PersistentSource::Local(_) | PersistentSource::Nfs(_) | PersistentSource::Csi(_)
    );
    if !takes_options && !resolved.mount_options.is_empty() {
        let message = "Mount options are not supported for this volume type";
        return Err(resolved.stage_failed(MountStage::MountOptionSupport, message));
    }
    let held = inputs
        .cluster
        .is_some_and(|desk| desk.storage.is_used_by_another_pod(&inputs.pod.uid, &resolved.claim.key));
    if held && resolved.is_read_write_once_pod_volume() {
        let message = "volume uses the ReadWriteOncePod access mode and is already in use by another pod";
        return Err(resolved.stage_failed(MountStage::SetUp, message));
    }
    Ok(())
}

/// The step that makes it ready, unless a CSI driver has to do that.
pub(super) fn setup(
    inputs: &VolumeInputs<'_>,
    resolved: &ResolvedVolume<'_>,
) -> Result<VolumeSetup, VolumeNotReady> {
    let kind = match (resolved.source, resolved.block) {
        (PersistentSource::Local(source), block) => local_kind(inputs, resolved, source, block)
            .map_err(|message| resolved.stage_failed(MountStage::SetUp, message))?,
        (PersistentSource::Nfs(source), false) => VolumeKind::Nfs(Box::new(NfsVolume {
            source: nfs_source(source),
            target: below_pod(inputs, "volumes", NFS, resolved.spec_name),
            mount_options: resolved.mount_options.clone(),
            read_only: resolved.read_only,
        })),
        (PersistentSource::HostPath(source), false) => {
            super::host_path_kind(&resolved.claim.volume.name, source)
                .map_err(|error| resolved.stage_failed(MountStage::SetUp, error.to_string()))?
        }
        (PersistentSource::HostPath(_) | PersistentSource::Nfs(_), true)
        | (PersistentSource::Csi(_) | PersistentSource::Migrated(_) | PersistentSource::Unsupported(_), _) => {
            return Err(resolved.stage_failed(MountStage::NewMounter, unsupported(resolved)));
        }
    };
    let (name, spec_name) = (resolved.claim.volume.name.clone(), resolved.spec_name.to_owned());
    Ok(VolumeSetup { name, spec_name, kind })
}

fn unsupported(resolved: &ResolvedVolume<'_>) -> String {
    let kind = resolved.source.field();
    let mode = if resolved.block { " and volumeMode Block" } else { "" };
    format!("a persistent volume of type {kind}{mode} is not supported yet")
}

fn local_kind(
    inputs: &VolumeInputs<'_>,
    resolved: &ResolvedVolume<'_>,
    source: &LocalVolumeSource,
    block: bool,
) -> Result<VolumeKind, String> {
    let path = source.path.clone();
    if path.is_empty() {
        return Err(format!("LocalVolume volume {:?} path is empty", resolved.spec_name));
    }
    if path.split('/').any(|part| part == "..") {
        return Err(format!("invalid path: {path} must not contain '..'"));
    }
    if block {
        let (root, uid, name) = (&inputs.config.root_dir, &inputs.pod.uid, resolved.spec_name);
        let paths = DevicePaths {
            link: below_pod(inputs, "volumeDevices", LOCAL, name),
            map: format!("{root}/plugins/{LOCAL}/volumeDevices/{name}/{uid}"),
        };
        return Ok(VolumeKind::Device(DeviceVolume { device: path, paths }));
    }
    let context = inputs.pod.spec().security_context.as_ref();
    let policy = context.and_then(|context| context.fs_group_change_policy.as_deref());
    Ok(VolumeKind::Local(Box::new(LocalVolume {
        name: resolved.spec_name.to_owned(),
        path,
        target: below_pod(inputs, "volumes", LOCAL, resolved.spec_name),
        read_only: resolved.read_only,
        fs_type: source.fs_type.clone().filter(|kind| !kind.is_empty()),
        mount_options: resolved.mount_options.clone(),
        fs_group: context.and_then(|context| context.fs_group),
        on_root_mismatch: policy == Some("OnRootMismatch"),
        create: inputs.cluster.is_some_and(ObjectCache::is_standalone),
    })))
}

pub(super) fn nfs_source(source: &NFSVolumeSource) -> String {
    // An IPv6 address needs brackets, or it would end at its first colon.
    let server = match source.server.contains(':') && !source.server.starts_with('[') {
        true => format!("[{}]", source.server),
        false => source.server.clone(),
    };
    format!("{server}:{}", source.path)
}

fn below_pod(inputs: &VolumeInputs<'_>, kind: &str, plugin: &str, name: &str) -> String {
    format!("{}/{kind}/{plugin}/{name}", inputs.config.pod_dir(&inputs.pod.uid))
}

/// The host path of a persistent volume that is not of a CSI driver.
pub(super) fn volume_path(inputs: &VolumeInputs<'_>, resolved: &ResolvedVolume<'_>) -> Option<VolumePath> {
    let read_only = resolved.read_only;
    let (path, managed) = match resolved.source {
        PersistentSource::Local(_) if resolved.block => {
            let path = below_pod(inputs, "volumeDevices", LOCAL, resolved.spec_name);
            return Some(VolumePath::Device { path, read_only });
        }
        PersistentSource::Local(_) => (below_pod(inputs, "volumes", LOCAL, resolved.spec_name), !read_only),
        PersistentSource::Nfs(_) => (below_pod(inputs, "volumes", NFS, resolved.spec_name), false),
        PersistentSource::HostPath(source) => (source.path.clone(), false),
        PersistentSource::Csi(_) | PersistentSource::Migrated(_) | PersistentSource::Unsupported(_) => {
            return None;
        }
    };
    Some(VolumePath::Directory(MountSource { path, read_only, managed }))
}

#[cfg(test)]
mod tests;
