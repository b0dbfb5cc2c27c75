//! Volumes on networks and in clouds: the fields each kind cannot do without.

use k8s_openapi::api::core::v1::{
    AzureDiskVolumeSource, CSIVolumeSource, EphemeralVolumeSource, FCVolumeSource, FlexVolumeSource,
    FlockerVolumeSource, ISCSIVolumeSource, LocalObjectReference, NFSVolumeSource,
    PersistentVolumeClaimTemplate, QuobyteVolumeSource, StorageOSVolumeSource,
};
use model::quantity::Quantity;
use model::volume_source::{MigratedSource, UnsupportedSource};

use super::report::{Path, ValidationErrors};
use super::{selectors, syntax};

/// The kinds that drivers took over. `path` names the source, here and below.
pub(super) fn migrated(source: MigratedSource<'_>, path: &Path, report: &mut ValidationErrors) {
    match source {
        MigratedSource::AwsElasticBlockStore(source) => {
            report.require_text(&path.child("volumeID"), &source.volume_id);
            partition(source.partition, path, report);
        }
        MigratedSource::AzureDisk(source) => azure_disk(source, path, report),
        MigratedSource::AzureFile(source) => {
            report.require_text(&path.child("secretName"), &source.secret_name);
            report.require_text(&path.child("shareName"), &source.share_name);
        }
        MigratedSource::Cinder(source) => {
            report.require_text(&path.child("volumeID"), &source.volume_id);
            secret_ref(source.secret_ref.as_ref(), &path.child("secretRef"), report);
        }
        MigratedSource::GcePersistentDisk(source) => {
            report.require_text(&path.child("pdName"), &source.pd_name);
            partition(source.partition, path, report);
        }
        MigratedSource::PortworxVolume(source) => {
            report.require_text(&path.child("volumeID"), &source.volume_id);
        }
        MigratedSource::VsphereVolume(source) => {
            report.require_text(&path.child("volumePath"), &source.volume_path);
        }
    }
}

/// Kinds that this agent does not mount: their pods are valid nevertheless.
pub(super) fn unsupported(source: UnsupportedSource<'_>, path: &Path, report: &mut ValidationErrors) {
    match source {
        UnsupportedSource::Cephfs(source) => {
            report.require_text(&path.child("monitors"), &source.monitors.concat());
        }
        UnsupportedSource::Fc(source) => fibre_channel(source, path, report),
        UnsupportedSource::FlexVolume(source) => flex(source, path, report),
        UnsupportedSource::Flocker(source) => flocker(source, path, report),
        UnsupportedSource::GitRepo(source) => {
            report.require_text(&path.child("repository"), &source.repository);
            let directory = source.directory.as_deref().unwrap_or_default();
            report.invalid_for_each(&path.child("directory"), directory, syntax::relative_path(directory));
        }
        UnsupportedSource::Glusterfs(source) => {
            report.require_text(&path.child("endpoints"), &source.endpoints);
            report.require_text(&path.child("path"), &source.path);
        }
        UnsupportedSource::Iscsi(source) => iscsi(source, path, report),
        UnsupportedSource::PhotonPersistentDisk(source) => {
            report.require_text(&path.child("pdID"), &source.pd_id);
        }
        UnsupportedSource::Quobyte(source) => quobyte(source, path, report),
        UnsupportedSource::Rbd(source) => {
            report.require_text(&path.child("monitors"), &source.monitors.concat());
            report.require_text(&path.child("image"), &source.image);
        }
        UnsupportedSource::ScaleIo(source) => {
            report.require_text(&path.child("gateway"), &source.gateway);
            report.require_text(&path.child("system"), &source.system);
            let name = source.volume_name.as_deref().unwrap_or_default();
            report.require_text(&path.child("volumeName"), name);
        }
        UnsupportedSource::Storageos(source) => storage_os(source, path, report),
    }
}

/// A claim that is generated for the pod.
pub(super) fn ephemeral(
    source: &EphemeralVolumeSource,
    volume: &str,
    pod_name: &str,
    path: &Path,
    report: &mut ValidationErrors,
) {
    let path = path.child("volumeClaimTemplate");
    match &source.volume_claim_template {
        None => report.required(&path),
        Some(template) => claim_template(template, volume, pod_name, &path, report),
    }
}

fn partition(partition: Option<i32>, path: &Path, report: &mut ValidationErrors) {
    if let Some(partition) = partition {
        report.in_range(&path.child("partition"), i64::from(partition), 0, 255);
    }
}

pub(super) fn nfs(source: &NFSVolumeSource, path: &Path, report: &mut ValidationErrors) {
    report.require_text(&path.child("server"), &source.server);
    if report.require_text(&path.child("path"), &source.path) && !source.path.starts_with('/') {
        report.invalid(&path.child("path"), &source.path, "must be an absolute path");
    }
}

fn iscsi(source: &ISCSIVolumeSource, path: &Path, report: &mut ValidationErrors) {
    report.require_text(&path.child("targetPortal"), &source.target_portal);
    if report.require_text(&path.child("iqn"), &source.iqn) {
        iscsi_name(&source.iqn, &path.child("iqn"), report);
    }
    report.in_range(&path.child("lun"), i64::from(source.lun), 0, 255);
    let authenticated = source.chap_auth_discovery == Some(true) || source.chap_auth_session == Some(true);
    if authenticated && source.secret_ref.is_none() {
        report.required_because(&path.child("secretRef"), "CHAP authentication needs it");
    }
    if let Some(initiator) = &source.initiator_name {
        iscsi_name(initiator, &path.child("initiatorName"), report);
    }
}

/// `iqn.2001-04.com.example:disk`, `eui.` and 16 or `naa.` and 32 letters or digits.
fn iscsi_name(name: &str, path: &Path, report: &mut ValidationErrors) {
    let alphanumeric =
        |text: &str, length| text.len() == length && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let fits = match name.split_once('.') {
        Some(("iqn", rest)) => is_iqn(rest),
        Some(("eui", rest)) => alphanumeric(rest, 16),
        Some(("naa", rest)) => alphanumeric(rest, 32),
        _ => false,
    };
    if !fits {
        report.invalid(path, name, "must be an iSCSI name that starts with iqn, eui or naa");
    }
}

fn is_iqn(rest: &str) -> bool {
    let Some((authority, target)) = rest.split_once(':') else { return false };
    let Some((date, domain)) = authority.split_once('.') else { return false };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let dated = date
        .split_once('-')
        .is_some_and(|(year, month)| year.len() == 4 && month.len() == 2 && digits(year) && digits(month));
    let named = !domain.is_empty()
        && domain.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'));
    let targeted = !target.is_empty()
        && !target.contains(|character: char| ",;*&$|".contains(character) || character.is_whitespace());
    dated && named && targeted
}

fn fibre_channel(source: &FCVolumeSource, path: &Path, report: &mut ValidationErrors) {
    let names = source.target_wwns.as_deref().unwrap_or_default();
    let ids = source.wwids.as_deref().unwrap_or_default();
    if names.is_empty() == ids.is_empty() {
        let why = "must have exactly one of targetWWNs and wwids";
        report.required_because(&path.child("targetWWNs"), why);
    }
    match source.lun {
        None if !names.is_empty() => report.required_because(&path.child("lun"), "targetWWNs needs it"),
        Some(lun) if !names.is_empty() => report.in_range(&path.child("lun"), i64::from(lun), 0, 255),
        _ => {}
    }
}

fn flocker(source: &FlockerVolumeSource, path: &Path, report: &mut ValidationErrors) {
    let name = source.dataset_name.as_deref().unwrap_or_default();
    let uuid = source.dataset_uuid.as_deref().unwrap_or_default();
    if name.is_empty() && uuid.is_empty() {
        report.required_because(path, "one of datasetName and datasetUUID must be given");
    } else if !name.is_empty() && !uuid.is_empty() {
        report.invalid(path, name, "must have only one of datasetName and datasetUUID");
    }
    if name.contains('/') {
        report.invalid(&path.child("datasetName"), name, "must not contain '/'");
    }
}

fn quobyte(source: &QuobyteVolumeSource, path: &Path, report: &mut ValidationErrors) {
    if report.require_text(&path.child("registry"), &source.registry) {
        let pair = |pair: &str| {
            pair.rsplit_once(':').is_some_and(|(host, _)| !host.contains(':') || host.starts_with('['))
        };
        if !source.registry.split(',').all(pair) {
            report.invalid(
                &path.child("registry"),
                &source.registry,
                "must be host:port pairs separated by commas",
            );
        }
        if source.tenant.as_ref().is_some_and(|tenant| tenant.len() > 64) {
            report.too_long(&path.child("tenant"), 64);
        }
    }
    report.require_text(&path.child("volume"), &source.volume);
}

fn flex(source: &FlexVolumeSource, path: &Path, report: &mut ValidationErrors) {
    report.require_text(&path.child("driver"), &source.driver);
    for key in source.options.iter().flat_map(|options| options.keys()) {
        let domain = format!(".{}", key.split('/').next().unwrap_or_default().to_lowercase());
        if domain.ends_with(".kubernetes.io") || domain.ends_with(".k8s.io") {
            report.invalid(&path.child("options").key(key), key, "kubernetes.io and k8s.io are reserved");
        }
    }
}

fn azure_disk(source: &AzureDiskVolumeSource, path: &Path, report: &mut ValidationErrors) {
    report.require_text(&path.child("diskName"), &source.disk_name);
    let uri_path = path.child("diskURI");
    report.require_text(&uri_path, &source.disk_uri);
    if let Some(mode) = &source.caching_mode {
        report.one_of(&path.child("cachingMode"), mode, &["None", "ReadOnly", "ReadWrite"]);
    }
    let Some(kind) = source.kind.as_deref() else { return };
    report.one_of(&path.child("kind"), kind, &["Dedicated", "Managed", "Shared"]);
    let start = if kind == "Managed" { "/subscriptions/" } else { "https://" };
    if !source.disk_uri.starts_with(start) {
        report.invalid(
            &uri_path,
            &source.disk_uri,
            &format!("must start with {start} for a disk of this kind"),
        );
    }
}

fn storage_os(source: &StorageOSVolumeSource, path: &Path, report: &mut ValidationErrors) {
    let name = source.volume_name.as_deref().unwrap_or_default();
    if report.require_text(&path.child("volumeName"), name) {
        report.invalid_for_each(&path.child("volumeName"), name, syntax::dns_label(name));
    }
    if let Some(namespace) = source.volume_namespace.as_deref().filter(|namespace| !namespace.is_empty()) {
        report.invalid_for_each(&path.child("volumeNamespace"), namespace, syntax::dns_label(namespace));
    }
    secret_ref(source.secret_ref.as_ref(), &path.child("secretRef"), report);
}

pub(super) fn csi(source: &CSIVolumeSource, path: &Path, report: &mut ValidationErrors) {
    let driver = &source.driver;
    if report.require_text(&path.child("driver"), driver) {
        if driver.len() > 63 {
            report.too_long(&path.child("driver"), 63);
        }
        report.invalid_for_each(&path.child("driver"), driver, syntax::dns_subdomain(&driver.to_lowercase()));
    }
    let path = path.child("nodePublishSecretRef");
    secret_ref(source.node_publish_secret_ref.as_ref(), &path, report);
    if let Some(secret) = source.node_publish_secret_ref.as_ref().filter(|secret| !secret.name.is_empty()) {
        report.invalid_for_each(&path.child("name"), &secret.name, syntax::dns_subdomain(&secret.name));
    }
}

fn secret_ref(reference: Option<&LocalObjectReference>, path: &Path, report: &mut ValidationErrors) {
    if let Some(reference) = reference {
        report.require_text(&path.child("name"), &reference.name);
    }
}

fn claim_template(
    template: &PersistentVolumeClaimTemplate,
    volume: &str,
    pod_name: &str,
    path: &Path,
    report: &mut ValidationErrors,
) {
    let claim = format!("{pod_name}-{volume}");
    if !pod_name.is_empty() && !volume.is_empty() && !syntax::dns_subdomain(&claim).is_empty() {
        report.invalid(path, &claim, "is not a name for the claim that would be made");
    }
    if let Some(metadata) = &template.metadata {
        selectors::labels(metadata.labels.as_ref(), &path.child("metadata").child("labels"), report);
    }
    let (spec, path) = (&template.spec, path.child("spec"));
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    let modes_path = path.child("accessModes");
    if modes.is_empty() {
        report.required(&modes_path);
    }
    for mode in modes {
        let supported = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
        report.one_of(&modes_path, mode, &supported);
    }
    if modes.len() > 1 && modes.iter().any(|mode| mode == "ReadWriteOncePod") {
        report.forbidden(&modes_path, "ReadWriteOncePod goes with no other access mode");
    }
    selectors::label_selector(spec.selector.as_ref(), &path.child("selector"), report);
    let storage = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref()?.get("storage"));
    let storage_path = path.child("resources").child("requests").key("storage");
    match storage.map(Quantity::try_from) {
        None => report.required(&storage_path),
        Some(Ok(amount)) if amount > Quantity::ZERO => {}
        Some(Ok(amount)) => report.invalid(&storage_path, &amount.to_string(), "must be greater than 0"),
        Some(Err(error)) => report.required_because(&storage_path, &error.to_string()),
    }
    if let Some(class) = spec.storage_class_name.as_deref().filter(|class| !class.is_empty()) {
        report.invalid_for_each(&path.child("storageClassName"), class, syntax::dns_subdomain(class));
    }
    if let Some(mode) = &spec.volume_mode {
        report.one_of(&path.child("volumeMode"), mode, &["Block", "Filesystem"]);
    }
}
