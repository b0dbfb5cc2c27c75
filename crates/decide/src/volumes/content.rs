//! Volumes whose files are made of objects, tokens and the pod's own fields: configMap, secret, downwardAPI, projected.
//!
//! ```text
//!   spec ──> parts (borrowed, each with what identifies it) ──> version: the same as last time? nothing to do
//!                                                          └──> files: path, mode, bytes
//! ```

mod trust_bundle_file;

use std::borrow::Cow;
use std::collections::BTreeMap;

use model::Wall;
use model::cluster::{ObjectContent, ObjectKey, ObjectKind};
use model::k8s::{
    self, ClusterTrustBundleProjection, DownwardAPIVolumeFile, KeyToPath, PodCertificateProjection,
    ServiceAccountTokenProjection,
};
use model::node::{HostFacts, NodeConfig};
use model::pod::PodView;
use model::pod_certificate::CertificateSource;
use model::volume::{ContentBacking, ContentFile, ContentVolume, VolumeKind, VolumeSetup};
use model::volume_source::ProjectedSource;
use model::why::Cause;

use super::paths::{checked_path, mount_points};
use super::{VolumeNotReady, memory_size};
use crate::credentials::aggregate;
use crate::objects::{
    CERTIFICATES_GATE, KnownCertificate, ObjectCache, ObjectLookup, TokenLookup, token_request_of_projection,
    waits_for,
};
use crate::pod_volumes::host_path;
use crate::render::{ContainerRef, RenderContext, RenderError, fields};
use model::hash::fnv1a_64;

pub use trust_bundle_file::GATE as TRUST_GATE;

/// What volumes and their contents are derived from.
#[derive(Clone, Copy)]
pub struct VolumeInputs<'a> {
    pub config: &'a NodeConfig,
    pub facts: &'a HostFacts,
    pub pod: &'a PodView,
    /// `None`: there is no object cache.
    pub cluster: Option<&'a ObjectCache>,
    /// The Node object of this node, once it was read.
    pub node: Option<&'a k8s::Node>,
    pub now: Wall,
}

/// Mode of files that don't specify one.
const DEFAULT_MODE: i32 = 0o644;
/// Mode of token and certificate files if the pod has a common user or an fsGroup. The fsGroup ownership adds the group
/// bits.
const OWNED_MODE: u32 = 0o600;

/// The source of a volume whose files the agent writes.
#[derive(Clone, Copy)]
pub(super) enum ContentSource<'a> {
    ConfigMap(&'a k8s::ConfigMapVolumeSource),
    Secret(&'a k8s::SecretVolumeSource),
    DownwardApi(&'a k8s::DownwardAPIVolumeSource),
    Projected(&'a k8s::ProjectedVolumeSource),
}

/// The set-up of one volume. `Ok(None)`: its files already have the version `known`.
pub(super) fn setup(
    inputs: &VolumeInputs<'_>,
    volume: &k8s::Volume,
    source: ContentSource<'_>,
    known: Option<u64>,
) -> Result<Option<VolumeSetup>, VolumeNotReady> {
    let refused = |message: String| VolumeNotReady::SetUpRefused { volume: volume.name.clone(), message };
    let gathered = gather(inputs, &volume.name, source).map_err(refused)?;
    if let Some(cause) = gathered.waits.into_iter().next() {
        return Err(VolumeNotReady::Waiting { volume: volume.name.clone(), cause });
    }
    let version = version(&gathered.parts);
    if known == Some(version) {
        return Ok(None);
    }
    let files = files(gathered.parts, gathered.default_mode).map_err(refused)?;
    let path = host_path(inputs.config, inputs.pod, volume).map_err(|e| refused(e.to_string()))?.path;
    let backing = match source {
        ContentSource::ConfigMap(_) => ContentBacking::Disk,
        ContentSource::Secret(_) | ContentSource::DownwardApi(_) | ContentSource::Projected(_) => {
            let size_bytes = memory_size(inputs.config, inputs.facts, inputs.pod, None);
            ContentBacking::Memory { size_bytes }
        }
    };
    let content = ContentVolume {
        path,
        backing,
        fs_group: fs_group(inputs.pod),
        mount_points: mount_points(inputs.pod, &volume.name).map_err(refused)?,
        files,
        version,
    };
    Ok(Some(VolumeSetup::inline(&volume.name, VolumeKind::Content(Box::new(content)))))
}

fn fs_group(pod: &PodView) -> Option<i64> {
    pod.spec().security_context.as_ref().and_then(|context| context.fs_group)
}

/// One source of a volume, with the content that was read for it.
enum ContentPart<'a> {
    Object {
        key: ObjectKey,
        /// `None`: the object is optional and does not exist.
        content: Option<&'a ObjectContent>,
        items: &'a [KeyToPath],
        optional: bool,
    },
    /// A token, certificates, or a key.
    File {
        path: &'a str,
        bytes: Cow<'a, [u8]>,
        /// Changes whenever the bytes change.
        serial: u64,
        mode: Option<u32>,
        owner: Option<i64>,
    },
    Fields(Vec<(&'a DownwardAPIVolumeFile, String)>),
}

struct GatheredSources<'a> {
    /// In the order of the spec; `Err` for a source that failed.
    parts: Vec<Result<ContentPart<'a>, String>>,
    waits: Vec<Cause>,
    default_mode: i32,
}

fn gather<'a>(
    inputs: &VolumeInputs<'a>,
    volume: &str,
    source: ContentSource<'a>,
) -> Result<GatheredSources<'a>, String> {
    let mut sources = Sources { inputs: *inputs, parts: Vec::new(), waits: Vec::new() };
    let default_mode = match source {
        ContentSource::ConfigMap(source) => {
            sources.object(ObjectKind::ConfigMap, &source.name, source.items.as_deref(), source.optional);
            source.default_mode
        }
        ContentSource::Secret(source) => {
            let name = source.secret_name.as_deref().unwrap_or_default();
            sources.object(ObjectKind::Secret, name, source.items.as_deref(), source.optional);
            source.default_mode
        }
        ContentSource::DownwardApi(source) => {
            sources.fields(source.items.as_deref());
            source.default_mode
        }
        ContentSource::Projected(source) => {
            if inputs.cluster.is_none() {
                return Err(format!(
                    "cannot setup projected volume {volume} because kube client is not configured"
                ));
            }
            for (index, entry) in source.sources.iter().flatten().enumerate() {
                sources.projection(volume, index, entry);
            }
            source.default_mode
        }
    };
    let Sources { parts, waits, .. } = sources;
    Ok(GatheredSources { parts, waits, default_mode: default_mode.unwrap_or(DEFAULT_MODE) })
}

struct Sources<'a> {
    inputs: VolumeInputs<'a>,
    parts: Vec<Result<ContentPart<'a>, String>>,
    waits: Vec<Cause>,
}

impl<'a> Sources<'a> {
    fn projection(&mut self, volume: &str, index: usize, source: &'a k8s::VolumeProjection) {
        match ProjectedSource::of(source) {
            Some(ProjectedSource::ConfigMap(map)) => {
                self.object(ObjectKind::ConfigMap, &map.name, map.items.as_deref(), map.optional);
            }
            Some(ProjectedSource::Secret(secret)) => {
                self.object(ObjectKind::Secret, &secret.name, secret.items.as_deref(), secret.optional);
            }
            Some(ProjectedSource::DownwardApi(downward)) => self.fields(downward.items.as_deref()),
            Some(ProjectedSource::ServiceAccountToken(token)) => self.token(token),
            Some(ProjectedSource::ClusterTrustBundle(bundle)) => self.trust_bundle(bundle),
            Some(ProjectedSource::PodCertificate(certificate)) => {
                let source =
                    CertificateSource { pod: self.inputs.pod.uid.clone(), volume: volume.to_owned(), index };
                self.pod_certificate(&source, certificate);
            }
            None => {}
        }
    }

    fn object(
        &mut self,
        kind: ObjectKind,
        name: &str,
        items: Option<&'a [KeyToPath]>,
        optional: Option<bool>,
    ) {
        let optional = optional == Some(true);
        let namespace = self.inputs.pod.namespace().to_owned();
        let key = ObjectKey { kind, namespace, name: name.to_owned() };
        let known = self.inputs.cluster.map_or(ObjectLookup::NotReferenced, |desk| desk.lookup(&key));
        let content = match known {
            ObjectLookup::Found(content) => Ok(Some(&**content)),
            ObjectLookup::Absent if optional => Ok(None),
            ObjectLookup::Absent => Err(format!("{} {name:?} not found", kind.word())),
            ObjectLookup::Denied(message) => Err(message.to_owned()),
            ObjectLookup::NotReferenced => Err(format!("object {:?}/{name:?} not registered", key.namespace)),
            ObjectLookup::NotRead { read_error: trouble } => {
                return self.waits.push(waits_for(&key, trouble));
            }
        };
        let items = items.unwrap_or_default();
        self.parts.push(content.map(|content| ContentPart::Object { key, content, items, optional }));
    }

    fn token(&mut self, source: &'a ServiceAccountTokenProjection) {
        let Some(desk) = self.inputs.cluster.filter(|desk| !desk.is_standalone()) else {
            return self.parts.push(Err(NO_TOKENS.to_owned()));
        };
        let pod = self.inputs.pod;
        let wanted = token_request_of_projection(pod, source);
        let part = match desk.tokens.lookup(&wanted, self.inputs.now) {
            TokenLookup::NotIssued => {
                let service_account = wanted.service_account;
                return self.waits.push(Cause::WaitingForToken { service_account });
            }
            TokenLookup::Failed { message } => Err(message),
            TokenLookup::Valid { token, serial } => {
                Ok(owned_file(pod, &source.path, Cow::Borrowed(token.token.as_bytes()), serial))
            }
        };
        self.parts.push(part);
    }

    fn trust_bundle(&mut self, source: &'a ClusterTrustBundleProjection) {
        let on = self.inputs.config.feature(TRUST_GATE);
        let Some(desk) = self.inputs.cluster.filter(|desk| on && !desk.is_standalone()) else {
            return self.parts.push(Err(NO_TRUST_BUNDLES.to_owned()));
        };
        let Some(bundles) = desk.trust.bundles() else {
            return self.waits.push(Cause::WaitingForTrustBundles);
        };
        let file = trust_bundle_file::certificates_of_source(source, bundles).map(|bytes| {
            let serial = fnv1a_64(&bytes);
            owned_file(self.inputs.pod, &source.path, Cow::Owned(bytes), serial)
        });
        self.parts.push(file);
    }

    fn pod_certificate(&mut self, source: &CertificateSource, projection: &'a PodCertificateProjection) {
        let on = self.inputs.config.feature(CERTIFICATES_GATE);
        let Some(desk) = self.inputs.cluster.filter(|desk| on && !desk.is_standalone()) else {
            return self.parts.push(Err(NO_POD_CERTIFICATES.to_owned()));
        };
        let (key, chain) = match desk.certificates.look(source) {
            KnownCertificate::Issued { key, chain } => (key.0.as_str(), chain),
            KnownCertificate::Asking => {
                let signer_name = projection.signer_name.clone();
                return self.waits.push(Cause::WaitingForCertificate { signer_name });
            }
            KnownCertificate::NotIssued { trouble: "" } => {
                return self.parts.push(Err(NOT_YET_ISSUED.to_owned()));
            }
            KnownCertificate::NotIssued { trouble } => {
                return self.parts.push(Err(format!("{NOT_YET_ISSUED}: {trouble}")));
            }
            KnownCertificate::Refused(message) => return self.parts.push(Err(message.to_owned())),
        };
        let files = [
            (&projection.credential_bundle_path, Cow::Owned([key, chain].concat().into_bytes())),
            (&projection.key_path, Cow::Borrowed(key.as_bytes())),
            (&projection.certificate_chain_path, Cow::Borrowed(chain.as_bytes())),
        ];
        for (path, bytes) in files {
            let Some(path) = path.as_deref().filter(|path| !path.is_empty()) else { continue };
            let serial = fnv1a_64(&bytes);
            self.parts.push(Ok(owned_file(self.inputs.pod, path, bytes, serial)));
        }
    }

    fn fields(&mut self, items: Option<&'a [DownwardAPIVolumeFile]>) {
        let (mut found, mut problems) = (Vec::new(), Vec::new());
        for item in items.unwrap_or_default() {
            match field_text(&self.inputs, item) {
                Ok(text) => found.push((item, text)),
                Err(error) => problems.push(error.to_string()),
            }
        }
        let part =
            if problems.is_empty() { Ok(ContentPart::Fields(found)) } else { Err(aggregate(&problems)) };
        self.parts.push(part);
    }
}

/// A file owned by the user that all containers run as, if there is one.
fn owned_file<'a>(pod: &PodView, path: &'a str, bytes: Cow<'a, [u8]>, serial: u64) -> ContentPart<'a> {
    let owner = common_user(pod);
    let owned = owner.is_some() || fs_group(pod).is_some();
    ContentPart::File { path, bytes, serial, mode: owned.then_some(OWNED_MODE), owner }
}

/// Upstream's message without an API server or with the feature gate off, which is the default.
const NO_TRUST_BUNDLES: &str = "ClusterTrustBundle projection is not supported in static kubelet mode";
/// Without an API server nothing can issue tokens.
const NO_TOKENS: &str = "service account tokens need a cluster, and this node has none";
const NO_POD_CERTIFICATES: &str = "unimplemented";
/// Upstream's message.
const NOT_YET_ISSUED: &str = "credential bundle is not issued yet";

/// The value of a downwardAPI item. Only fields that never change, labels and annotations, and resources are supported.
fn field_text(inputs: &VolumeInputs<'_>, item: &DownwardAPIVolumeFile) -> Result<String, RenderError> {
    let ctx = RenderContext::new(inputs.config, inputs.facts);
    if let Some(selector) = &item.field_ref {
        let path = selector.field_path.as_str();
        let plain = ["metadata.name", "metadata.namespace", "metadata.uid"].contains(&path);
        let map = ["metadata.labels", "metadata.annotations"].iter().any(|map| path.starts_with(map));
        if !plain && !map {
            return Err(RenderError::FieldUnsupported { path: path.to_owned() });
        }
        fields::field(&ctx, inputs.pod, &[], selector)
    } else if let Some(selector) = &item.resource_field_ref {
        let name = selector.container_name.as_deref().unwrap_or_default();
        let container = ContainerRef::find(inputs.pod, name)
            .ok_or_else(|| RenderError::ContainerNotFound { name: name.to_owned() })?;
        fields::resource(&ctx, inputs.pod, &container, selector)
    } else {
        Ok(String::new())
    }
}

/// The user that all containers run as, if all specify one and it is the same.
fn common_user(pod: &PodView) -> Option<i64> {
    let spec = pod.spec();
    let of_pod = spec.security_context.as_ref().and_then(|context| context.run_as_user);
    let own = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let own = own.map(|c| c.security_context.as_ref());
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|c| c.security_context.as_ref());
    let mut users = own.chain(ephemeral).map(|context| context.and_then(|c| c.run_as_user).or(of_pod));
    let first = users.next()??;
    users.all(|user| user == Some(first)).then_some(first)
}

/// A hash that is equal for equal files.
fn version(parts: &[Result<ContentPart<'_>, String>]) -> u64 {
    let mut text = String::new();
    for part in parts {
        match part {
            Ok(ContentPart::Object { key, content, .. }) => {
                let of = content.map(|content| (&content.uid, &content.resource_version));
                text.push_str(&format!("{key:?} {of:?}\n"));
            }
            Ok(ContentPart::File { path, serial, .. }) => text.push_str(&format!("{path} {serial}\n")),
            Ok(ContentPart::Fields(list)) => {
                let pairs: Vec<_> = list.iter().map(|(item, text)| (&item.path, text)).collect();
                text.push_str(&format!("{pairs:?}\n"));
            }
            Err(message) => text.push_str(&format!("{message}\n")),
        }
    }
    fnv1a_64(text.as_bytes())
}

/// All files; if two have the same path, the later one counts. Failures of several sources are reported together.
fn files(
    parts: Vec<Result<ContentPart<'_>, String>>,
    default_mode: i32,
) -> Result<BTreeMap<String, ContentFile>, String> {
    let (mut files, mut problems) = (BTreeMap::new(), Vec::new());
    for part in parts {
        match part.and_then(|part| files_of(part, default_mode)) {
            Ok(more) => files.extend(more),
            Err(message) => problems.push(message),
        }
    }
    if problems.is_empty() { Ok(files) } else { Err(aggregate(&problems)) }
}

fn files_of(part: ContentPart<'_>, default_mode: i32) -> Result<BTreeMap<String, ContentFile>, String> {
    let file = |mode: Option<i32>, bytes: &[u8]| ContentFile {
        mode: u32::try_from(mode.unwrap_or(default_mode)).unwrap_or(0),
        owner: None,
        bytes: bytes.to_vec(),
    };
    let mut found: Vec<(&str, ContentFile)> = Vec::new();
    match &part {
        ContentPart::Object { content: None, .. } => {}
        ContentPart::Object { content: Some(content), items: [], .. } => {
            found.extend(content.data.iter().map(|(key, bytes)| (key.as_str(), file(None, bytes))));
        }
        ContentPart::Object { key, content: Some(content), items, optional } => {
            for item in *items {
                match content.data.get(&item.key) {
                    Some(bytes) => found.push((&item.path, file(item.mode, bytes))),
                    None if *optional => {}
                    None => return Err(missing_key(key.kind, &item.key)),
                }
            }
        }
        ContentPart::File { path, bytes, mode, owner, .. } => {
            let plain = file(None, bytes);
            let mode = mode.unwrap_or(plain.mode);
            found.push((path, ContentFile { mode, owner: *owner, ..plain }));
        }
        ContentPart::Fields(list) => {
            found.extend(list.iter().map(|(item, text)| (&*item.path, file(item.mode, text.as_bytes()))));
        }
    }
    found.into_iter().map(|(path, file)| Ok((checked_path(path)?, file))).collect()
}

fn missing_key(kind: ObjectKind, key: &str) -> String {
    match kind {
        ObjectKind::ConfigMap => format!("configmap references non-existent config key: {key}"),
        ObjectKind::Secret => format!("references non-existent secret key: {key}"),
    }
}

#[cfg(test)]
mod tests;
