//! Volumes of CSI drivers: claims whose persistent volume names a driver, and volumes that name one themselves.
//!
//! ```text
//!   driver's object known? ──> lifecycle allowed? ──> attached, if it has to be ──> driver registered?
//!                          ──> secrets, tokens ──> everything that its set-up needs
//! ```
//! Whatever is missing wakes the pod when it arrives: objects, the Node's list of attached volumes, the registration.

mod attach;
#[cfg(test)]
mod migrated_tests;
mod selinux_counts;
mod selinux_label;

use std::collections::{BTreeMap, BTreeSet};

use model::cluster::{ObjectKey, ObjectKind};
use model::csi::{AccessMode, CsiVolume, FsGroup, SecretMap, VolumeAccessType, VolumeId};
use model::k8s::{self, CSIDriver, CSIDriverSpec, ServiceAccountTokenProjection};
use model::storage::StorageKey;
use model::volume::{MountStage, VolumeKind, VolumeSetup};
use model::volume_source::{PersistentSource, VolumeSource};
use model::why::Cause;
use serde_json::json;

use super::persistent::{self, ResolvedVolume};
use super::{VolumeInputs, VolumeNotReady, mounted};
use crate::csi::{attachment_name, inline_handle, paths, reserved_device_name};
use crate::objects::{
    ObjectCache, ObjectLookup, ReferencedObjects, StorageLookupError, TokenLookup,
    token_request_of_projection,
};
use crate::pod_volumes::{MountSource, VolumePath};

pub use attach::{UnattachedVolume, unattached};
pub use selinux_counts::SelinuxCounts;

const PERSISTENT: &str = "Persistent";
const EPHEMERAL: &str = "Ephemeral";
const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";
const NOT_IN_USE: &str = "Volume has not been added to the list of VolumesInUse in the node's volume status";
const NOT_ATTACHED: &str = "Volume not attached according to node status";

/// The objects that a pod's CSI volumes need, and the volumes that the node is to use.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct CsiVolumeNeeds {
    pub named: ReferencedObjects,
    pub attachments: BTreeSet<StorageKey>,
    pub volumes: BTreeSet<VolumeId>,
}

/// The needs as far as they are known: a claim that is not read yet names no driver. `late`: the pod has waited longer
/// than VOLUME_WAIT_PERIOD, so the VolumeAttachment is read to find a permanent error.
pub(crate) fn csi_volume_needs(inputs: &VolumeInputs<'_>, late: bool) -> CsiVolumeNeeds {
    let mut found = CsiVolumeNeeds::default();
    for volume in mounted(inputs.pod) {
        if let VolumeSource::Csi(source) = VolumeSource::of(volume) {
            let secret = source.node_publish_secret_ref.as_ref().map(|reference| reference.name.clone());
            let namespace = inputs.pod.namespace().to_owned();
            found.named.objects.extend(secret.map(|name| secret_key(namespace, name)));
            found.add_tokens(inputs, &source.driver);
        }
        let Some(Ok(resolved)) = persistent::resolve_volume(inputs, volume) else { continue };
        let PersistentSource::Csi(source) = resolved.source else { continue };
        let secrets =
            [&source.node_stage_secret_ref, &source.node_publish_secret_ref, &source.node_expand_secret_ref];
        found.named.objects.extend(secrets.into_iter().flatten().map(key_of));
        found.add_tokens(inputs, &source.driver);
        let id = VolumeId { driver: source.driver.clone(), handle: source.volume_handle.clone() };
        let told = is_listed(inputs, &id, attached_names)
            || (late && attach::reports_volume_limit(inputs, &id.driver));
        if told && attach_required(inputs, &source.driver) == Some(true) {
            let name = attachment_name(&id, &inputs.config.node_name);
            found.attachments.insert(StorageKey::Attachment { name });
        }
        found.volumes.insert(id);
    }
    found
}

impl CsiVolumeNeeds {
    fn add_tokens(&mut self, inputs: &VolumeInputs<'_>, driver: &str) {
        let spec = driver_object(inputs, driver).flatten().map(|driver| &driver.spec);
        let requests = spec.and_then(|spec| spec.token_requests.as_ref()).into_iter().flatten();
        self.named
            .tokens
            .extend(requests.map(|request| token_request_of_projection(inputs.pod, &projection(request))));
    }
}

fn projection(request: &k8s::CsiTokenRequest) -> ServiceAccountTokenProjection {
    ServiceAccountTokenProjection {
        audience: Some(request.audience.clone()).filter(|audience| !audience.is_empty()),
        expiration_seconds: request.expiration_seconds,
        path: String::new(),
    }
}

fn secret_key(namespace: String, name: String) -> ObjectKey {
    ObjectKey { kind: ObjectKind::Secret, namespace, name }
}

fn key_of(reference: &k8s::SecretReference) -> ObjectKey {
    secret_key(reference.namespace.clone().unwrap_or_default(), reference.name.clone().unwrap_or_default())
}

/// `None`: the CSIDriver objects were not read yet.
fn driver_object<'a>(inputs: &VolumeInputs<'a>, driver: &str) -> Option<Option<&'a CSIDriver>> {
    let drivers = inputs.cluster?.storage.drivers()?;
    Some(drivers.get(driver).map(|driver| &**driver))
}

/// Whether volumes of this driver have to be attached. A driver without a CSIDriver object needs attachment. `None`:
/// the CSIDriver objects were not read yet.
pub fn attach_required(inputs: &VolumeInputs<'_>, driver: &str) -> Option<bool> {
    let object = driver_object(inputs, driver)?;
    Some(object.and_then(|driver| driver.spec.attach_required) != Some(false))
}

fn attached_names(status: &k8s::NodeStatus) -> Vec<&str> {
    status.volumes_attached.iter().flatten().map(|volume| volume.name.as_str()).collect()
}

fn used_names(status: &k8s::NodeStatus) -> Vec<&str> {
    status.volumes_in_use.iter().flatten().map(String::as_str).collect()
}

fn is_listed(inputs: &VolumeInputs<'_>, id: &VolumeId, list: fn(&k8s::NodeStatus) -> Vec<&str>) -> bool {
    let status = inputs.node.and_then(|node| node.status.as_ref());
    status.is_some_and(|status| list(status).contains(&id.unique_name().as_str()))
}

/// The host path of a CSI volume with a claim.
pub(super) fn volume_path(inputs: &VolumeInputs<'_>, resolved: &ResolvedVolume<'_>) -> Option<VolumePath> {
    let PersistentSource::Csi(source) = resolved.source else { return None };
    let id = VolumeId { driver: source.driver.clone(), handle: source.volume_handle.clone() };
    let paths = paths(inputs.config, &inputs.pod.uid, &id, resolved.spec_name, resolved.block);
    let read_only = resolved.read_only;
    let spec = driver_object(inputs, &id.driver).flatten().map(|driver| &driver.spec);
    // A volume that is mounted with a label does not need relabelling.
    let labelled =
        spec.is_some_and(|spec| selinux_label::mount_label(inputs, resolved, spec) != Ok(String::new()));
    Some(match paths.device {
        Some(device) => VolumePath::Device { path: device.link, read_only },
        None => {
            let managed = !read_only && !labelled;
            VolumePath::Directory(MountSource { path: paths.target, read_only, managed })
        }
    })
}

/// The set-up of a volume with a claim, or of a migrated one.
pub(super) fn setup(
    inputs: &VolumeInputs<'_>,
    resolved: &ResolvedVolume<'_>,
    source: &k8s::CSIPersistentVolumeSource,
) -> Result<VolumeSetup, VolumeNotReady> {
    let asked = CsiSetupRequest { inputs, volume: resolved.claim.volume, resolved: Some(resolved) };
    asked.persistent(asked.object_cache()?, source)
}

/// The set-up of an inline (ephemeral) volume.
pub(super) fn inline_setup(
    inputs: &VolumeInputs<'_>,
    volume: &k8s::Volume,
    source: &k8s::CSIVolumeSource,
) -> Result<VolumeSetup, VolumeNotReady> {
    let asked = CsiSetupRequest { inputs, volume, resolved: None };
    asked.inline(asked.object_cache()?, source)
}

/// The secrets for NodeExpandVolume.
pub(super) fn expand_secrets(
    inputs: &VolumeInputs<'_>,
    resolved: &ResolvedVolume<'_>,
    source: &k8s::CSIPersistentVolumeSource,
) -> Result<SecretMap, VolumeNotReady> {
    let asked = CsiSetupRequest { inputs, volume: resolved.claim.volume, resolved: Some(resolved) };
    let Some(desk) = inputs.cluster else { return Err(asked.waits("there is no cluster")) };
    asked.secret(desk, "NodeExpandSecretRef", source.node_expand_secret_ref.as_ref())
}

struct CsiSetupRequest<'a> {
    inputs: &'a VolumeInputs<'a>,
    volume: &'a k8s::Volume,
    resolved: Option<&'a ResolvedVolume<'a>>,
}

impl<'a> CsiSetupRequest<'a> {
    fn object_cache(&self) -> Result<&'a ObjectCache, VolumeNotReady> {
        self.inputs.cluster.filter(|objects| !objects.is_standalone()).ok_or_else(|| {
            let message = "kubernetes.io/csi: failed to get a kubernetes client";
            self.refused(MountStage::NewMounter, message)
        })
    }

    fn refused(&self, stage: MountStage, message: impl Into<String>) -> VolumeNotReady {
        match self.resolved {
            Some(resolved) => resolved.stage_failed(stage, message),
            None => VolumeNotReady::StageFailed {
                volume: self.volume.name.clone(),
                claim: String::new(),
                spec_name: self.volume.name.clone(),
                stage,
                block: false,
                message: message.into(),
            },
        }
    }

    fn waits(&self, message: impl Into<String>) -> VolumeNotReady {
        let volume = self.volume.name.clone();
        let claim = self.resolved.map(|resolved| resolved.claim.name.clone()).unwrap_or_default();
        let cause = Cause::WaitingForVolume { volume: volume.clone(), claim, message: message.into() };
        VolumeNotReady::Waiting { volume, cause }
    }

    fn persistent(
        &self,
        desk: &ObjectCache,
        source: &k8s::CSIPersistentVolumeSource,
    ) -> Result<VolumeSetup, VolumeNotReady> {
        let Some(resolved) = self.resolved else { return Err(self.waits("its claim is not known")) };
        if let Some(message) = reserved_device_name(resolved.spec_name).filter(|_| resolved.block) {
            return Err(self.refused(MountStage::NewMounter, message));
        }
        let id = VolumeId { driver: source.driver.clone(), handle: source.volume_handle.clone() };
        let spec = self.driver(&id.driver, PERSISTENT)?;
        let publish_context = self.attachment(desk, &id, &spec)?;
        self.registered(desk, &id.driver)?;
        let stage_secrets = self.secret(desk, "NodeStageSecretRef", source.node_stage_secret_ref.as_ref())?;
        let publish = source.node_publish_secret_ref.as_ref();
        let mut publish_secrets = self.secret(desk, "NodePublishSecretRef", publish)?;
        let pod_attributes = self.pod_attributes(desk, &spec, false, &mut publish_secrets)?;
        let mode = access_mode(resolved.access_modes);
        let fs_type = source.fs_type.clone().unwrap_or_default();
        let once =
            resolved.access_modes.iter().any(|mode| mode == "ReadWriteOnce" || mode == "ReadWriteOncePod");
        let label = selinux_label::mount_label(self.inputs, resolved, &spec).map_err(|message| {
            VolumeNotReady::ClaimNotUsable {
                volume: self.volume.name.clone(),
                claim: resolved.claim.name.clone(),
                message,
            }
        })?;
        let mut flags = resolved.mount_options.clone();
        flags.extend((!label.is_empty()).then(|| selinux_label::context_option(&label)));
        let access = match resolved.block {
            true => VolumeAccessType::Block,
            false => VolumeAccessType::Mount { fs_type: fs_type.clone(), flags },
        };
        let config = self.inputs.config;
        Ok(self.made(CsiVolume {
            spec_name: resolved.spec_name.to_owned(),
            ephemeral: false,
            access,
            access_mode: mode,
            read_only: resolved.read_only,
            node_name: config.node_name.clone(),
            attachment_name: attachment_name(&id, &config.node_name),
            publish_context,
            volume_attributes: source.volume_attributes.clone().unwrap_or_default(),
            pod_attributes,
            stage_secrets,
            publish_secrets,
            fs_group: self.group(&spec, resolved.read_only, &fs_type, once),
            selinux_context: label,
            paths: paths(config, &self.inputs.pod.uid, &id, resolved.spec_name, resolved.block),
            requires_republish: spec.requires_republish == Some(true),
            id,
        }))
    }

    fn inline(
        &self,
        desk: &ObjectCache,
        source: &k8s::CSIVolumeSource,
    ) -> Result<VolumeSetup, VolumeNotReady> {
        let (pod, config, name) = (self.inputs.pod, self.inputs.config, &self.volume.name);
        let id = VolumeId { driver: source.driver.clone(), handle: inline_handle(&pod.uid, name) };
        let spec = self.driver(&id.driver, EPHEMERAL)?;
        self.registered(desk, &id.driver)?;
        let reference = source.node_publish_secret_ref.as_ref().map(|reference| k8s::SecretReference {
            name: Some(reference.name.clone()),
            namespace: Some(pod.namespace().to_owned()),
        });
        let mut publish_secrets = self.secret(desk, "NodePublishSecretRef", reference.as_ref())?;
        let pod_attributes = self.pod_attributes(desk, &spec, true, &mut publish_secrets)?;
        let fs_type = source.fs_type.clone().unwrap_or_default();
        let read_only = source.read_only == Some(true);
        Ok(self.made(CsiVolume {
            spec_name: name.clone(),
            ephemeral: true,
            access: VolumeAccessType::Mount { fs_type: fs_type.clone(), flags: Vec::new() },
            access_mode: AccessMode::ReadWriteOnce,
            read_only,
            node_name: config.node_name.clone(),
            attachment_name: attachment_name(&id, &config.node_name),
            publish_context: BTreeMap::new(),
            volume_attributes: source.volume_attributes.clone().unwrap_or_default(),
            pod_attributes,
            stage_secrets: SecretMap::default(),
            publish_secrets,
            fs_group: self.group(&spec, read_only, &fs_type, true),
            selinux_context: String::new(),
            paths: paths(config, &pod.uid, &id, name, false),
            requires_republish: spec.requires_republish == Some(true),
            id,
        }))
    }

    fn made(&self, volume: CsiVolume) -> VolumeSetup {
        VolumeSetup {
            name: self.volume.name.clone(),
            spec_name: volume.spec_name.clone(),
            kind: VolumeKind::Csi(Box::new(volume)),
        }
    }

    /// The spec of the CSIDriver object. A driver without one has defaults, and supports persistent volumes only.
    fn driver(&self, driver: &str, lifecycle: &str) -> Result<CSIDriverSpec, VolumeNotReady> {
        let failed = |cause: String| {
            let what = "kubernetes.io/csi: mounter.SetupAt failed to check volume lifecycle mode";
            self.refused(MountStage::SetUp, format!("{what}: {cause}"))
        };
        let not = format!("volume mode {lifecycle:?} not supported by driver {driver}");
        match driver_object(self.inputs, driver) {
            None => Err(self.waits(format!("CSI driver {driver} was not read yet"))),
            Some(None) if lifecycle == PERSISTENT => Ok(CSIDriverSpec::default()),
            Some(None) => Err(failed(format!("{not} (no CSIDriver object)"))),
            Some(Some(object)) => {
                let modes = object.spec.volume_lifecycle_modes.clone();
                let modes = modes.unwrap_or_else(|| vec![PERSISTENT.to_owned()]);
                if modes.iter().any(|mode| mode == lifecycle) {
                    return Ok(object.spec.clone());
                }
                let list = modes.iter().map(|mode| format!("{mode:?}")).collect::<Vec<_>>().join(" ");
                Err(failed(format!("{not} (only supports [{list}])")))
            }
        }
    }

    /// The metadata of the VolumeAttachment, once the volume is attached. The Node's volumesAttached shows when it is.
    fn attachment(
        &self,
        desk: &ObjectCache,
        id: &VolumeId,
        spec: &CSIDriverSpec,
    ) -> Result<BTreeMap<String, String>, VolumeNotReady> {
        if spec.attach_required == Some(false) {
            return Ok(BTreeMap::new());
        }
        // The volume must be in volumesInUse before we use it; otherwise the controller could detach it.
        if !is_listed(self.inputs, id, used_names) {
            return Err(self.waits(NOT_IN_USE));
        }
        if !is_listed(self.inputs, id, attached_names) {
            return Err(self.waits(NOT_ATTACHED));
        }
        let name = attachment_name(id, &self.inputs.config.node_name);
        match desk.storage.attachment(&self.inputs.pod.uid, &name) {
            Ok(attachment) => match &attachment.status {
                Some(status) if status.attached => Ok(status.attachment_metadata.clone().unwrap_or_default()),
                // The attachment was read before the Node's status was updated.
                _ => Err(self.waits(format!("volumeattachment {name:?} was read before it was attached"))),
            },
            Err(StorageLookupError::Refused(message)) => Err(self.refused(MountStage::MountDevice, message)),
            Err(StorageLookupError::NotRead { read_error: "" }) => {
                Err(self.waits(format!("volumeattachment {name:?} was not read yet")))
            }
            Err(StorageLookupError::NotRead { read_error: trouble }) => {
                Err(self.waits(format!("volumeattachment {name:?} can't be read: {trouble}")))
            }
        }
    }

    fn registered(&self, desk: &ObjectCache, driver: &str) -> Result<(), VolumeNotReady> {
        if desk.csi.is_registered(driver) {
            return Ok(());
        }
        let (stage, what) = match self.resolved {
            Some(_) => (MountStage::MountDevice, "attacher.MountDevice failed to create newCsiDriverClient"),
            None => (MountStage::SetUp, "mounter.SetUpAt failed to get CSI client"),
        };
        let missing = format!("driver name {driver} not found in the list of registered CSI drivers");
        Err(self.refused(stage, format!("kubernetes.io/csi: {what}: {missing}")))
    }

    fn secret(
        &self,
        desk: &ObjectCache,
        field: &str,
        reference: Option<&k8s::SecretReference>,
    ) -> Result<SecretMap, VolumeNotReady> {
        let Some(reference) = reference else { return Ok(SecretMap::default()) };
        let key = key_of(reference);
        let failed = |cause: String| {
            let stage =
                if field.starts_with("NodeStage") { MountStage::MountDevice } else { MountStage::SetUp };
            let text = format!("fetching {field} {}/{} failed: {cause}", key.namespace, key.name);
            self.refused(stage, text)
        };
        match desk.lookup(&key) {
            ObjectLookup::Found(content) => {
                let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
                Ok(SecretMap(content.data.iter().map(|(name, bytes)| (name.clone(), text(bytes))).collect()))
            }
            ObjectLookup::Absent => Err(failed(format!("secrets {:?} not found", key.name))),
            ObjectLookup::Denied(message) => Err(failed(message.to_owned())),
            ObjectLookup::NotRead { read_error: "" } | ObjectLookup::NotReferenced => {
                Err(self.waits(format!("secret {}/{} was not read yet", key.namespace, key.name)))
            }
            ObjectLookup::NotRead { read_error: trouble } => {
                Err(self.waits(format!("secret {}/{} can't be read: {trouble}", key.namespace, key.name)))
            }
        }
    }

    /// The pod information that the driver asks for. The CSIDriver object decides whether tokens are part of it or of
    /// the secrets.
    fn pod_attributes(
        &self,
        desk: &ObjectCache,
        spec: &CSIDriverSpec,
        ephemeral: bool,
        secrets: &mut SecretMap,
    ) -> Result<SecretMap, VolumeNotReady> {
        let pod = self.inputs.pod;
        let mut found = BTreeMap::new();
        if spec.pod_info_on_mount == Some(true) {
            let account = pod.spec().service_account_name.clone().unwrap_or_default();
            let about = [
                ("pod.name", pod.name().to_owned()),
                ("pod.namespace", pod.namespace().to_owned()),
                ("pod.uid", pod.uid.to_string()),
                ("serviceAccount.name", account),
                ("ephemeral", ephemeral.to_string()),
            ];
            found.extend(about.map(|(name, value)| (format!("csi.storage.k8s.io/{name}"), value)));
        }
        if let Some(tokens) = self.tokens(desk, spec)? {
            let to = match spec.service_account_token_in_secrets {
                Some(true) => &mut secrets.0,
                _ => &mut found,
            };
            to.insert(TOKENS.to_owned(), tokens);
        }
        Ok(SecretMap(found))
    }

    fn tokens(&self, desk: &ObjectCache, spec: &CSIDriverSpec) -> Result<Option<String>, VolumeNotReady> {
        let mut tokens = serde_json::Map::new();
        for request in spec.token_requests.iter().flatten() {
            let wanted = token_request_of_projection(self.inputs.pod, &projection(request));
            match desk.tokens.lookup(&wanted, self.inputs.now) {
                TokenLookup::NotIssued => {
                    let service_account = wanted.service_account;
                    let cause = Cause::WaitingForToken { service_account };
                    return Err(VolumeNotReady::Waiting { volume: self.volume.name.clone(), cause });
                }
                TokenLookup::Failed { message } => {
                    let what =
                        "kubernetes.io/csi: mounter.SetUpAt failed to get service accoount token attributes";
                    return Err(self.refused(MountStage::SetUp, format!("{what}: {message}")));
                }
                TokenLookup::Valid { token, .. } => {
                    let expires = token.expires.api_time();
                    let value = json!({ "token": token.token, "expirationTimestamp": expires });
                    tokens.insert(request.audience.clone(), value);
                }
            }
        }
        Ok((!tokens.is_empty()).then(|| serde_json::Value::Object(tokens).to_string()))
    }

    fn group(&self, spec: &CSIDriverSpec, read_only: bool, fs_type: &str, once: bool) -> Option<FsGroup> {
        let context = self.inputs.pod.spec().security_context.as_ref()?;
        let by_agent = !read_only
            && match spec.fs_group_policy.as_deref() {
                Some("None") => false,
                Some("File") => true,
                _ => !fs_type.is_empty() && once,
            };
        Some(FsGroup {
            id: context.fs_group?,
            by_agent,
            on_root_mismatch: context.fs_group_change_policy.as_deref() == Some("OnRootMismatch"),
        })
    }
}

/// Only the first mode is used.
fn access_mode(modes: &[String]) -> AccessMode {
    match modes.first().map(String::as_str) {
        Some("ReadOnlyMany") => AccessMode::ReadOnlyMany,
        Some("ReadWriteMany") => AccessMode::ReadWriteMany,
        Some("ReadWriteOncePod") => AccessMode::ReadWriteOncePod,
        _ => AccessMode::ReadWriteOnce,
    }
}

#[cfg(test)]
mod tests;
