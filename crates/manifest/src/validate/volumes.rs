//! Volumes: their names, and exactly one source each.

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, EmptyDirVolumeSource, HostPathVolumeSource, ImageVolumeSource, PodSpec,
    SecretVolumeSource, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use model::quantity::Quantity;
use model::volume_source::VolumeSource;

use super::pod_context::{ValidVolume, ValidVolumes, pull_policy};
use super::report::{Path, ValidationErrors};
use super::volume_files::{file_mode, items};
use super::{projected, storage, syntax};

const HOST_PATH_TYPES: &[&str] =
    &["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];

pub(super) fn check<'a>(
    spec: &'a PodSpec,
    metadata: &ObjectMeta,
    path: &Path,
    report: &mut ValidationErrors,
) -> ValidVolumes<'a> {
    let pod_name = metadata.name.as_deref().unwrap_or_default();
    let mut sound = ValidVolumes::new();
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        let path = path.child("volumes").index(index);
        let before = report.count();
        source(volume, pod_name, &path, report);
        if report.require_text(&path.child("name"), &volume.name) {
            report.invalid_for_each(&path.child("name"), &volume.name, syntax::dns_label(&volume.name));
        }
        if sound.contains_key(volume.name.as_str()) {
            report.duplicate(&path.child("name"), &volume.name);
        }
        if report.count() == before {
            let source = VolumeSource::of(volume);
            let is_claim =
                matches!(source, VolumeSource::PersistentVolumeClaim(_) | VolumeSource::Ephemeral(_));
            sound.insert(&volume.name, ValidVolume { is_claim });
        }
    }
    sound
}

/// A volume has one source; the first one given is looked at, the others are refused.
fn source(volume: &Volume, pod_name: &str, path: &Path, report: &mut ValidationErrors) {
    let mut given = VolumeSource::given(volume);
    let Some(source) = given.next() else {
        return report.required_because(path, "a volume needs a source");
    };
    for other in given {
        report.forbidden(&path.child(other.field()), "a volume has only one source");
    }
    let path = path.child(source.field());
    match source {
        VolumeSource::EmptyDir(source) => source.iter().for_each(|source| empty_dir(source, &path, report)),
        VolumeSource::HostPath(source) => host_path(source, &path, report),
        VolumeSource::Secret(source) => secret(source, &path, report),
        VolumeSource::ConfigMap(source) => config_map(source, &path, report),
        VolumeSource::DownwardApi(source) => projected::downward(source, &path, report),
        VolumeSource::Projected(source) => projected::check(source, &path, report),
        VolumeSource::Image(source) => image(source, &path, report),
        VolumeSource::Csi(source) => storage::csi(source, &path, report),
        VolumeSource::Nfs(source) => storage::nfs(source, &path, report),
        VolumeSource::PersistentVolumeClaim(source) => {
            report.require_text(&path.child("claimName"), &source.claim_name);
        }
        VolumeSource::Ephemeral(source) => storage::ephemeral(source, &volume.name, pod_name, &path, report),
        VolumeSource::Migrated(source) => storage::migrated(source, &path, report),
        VolumeSource::Unsupported(source) => storage::unsupported(source, &path, report),
    }
}

fn empty_dir(source: &EmptyDirVolumeSource, path: &Path, report: &mut ValidationErrors) {
    if let Some(limit) = &source.size_limit {
        let path = path.child("sizeLimit");
        match Quantity::try_from(limit) {
            Ok(limit) if limit.is_negative() => {
                report.invalid(&path, &limit.to_string(), syntax::NOT_NEGATIVE)
            }
            Ok(_) => {}
            Err(error) => report.invalid(&path, &limit.0, &error.to_string()),
        }
    }
    let medium = source.medium.as_deref().unwrap_or_default();
    if !medium.starts_with("HugePages-") {
        report.one_of(&path.child("medium"), medium, &["", "Memory", "HugePages", "HugePages-<size>"]);
    }
}

fn host_path(source: &HostPathVolumeSource, path: &Path, report: &mut ValidationErrors) {
    if !report.require_text(&path.child("path"), &source.path) {
        return;
    }
    if syntax::has_parent_element(&source.path) {
        report.invalid(&path.child("path"), &source.path, "must not contain '..'");
    }
    if let Some(kind) = &source.type_ {
        report.one_of(&path.child("type"), kind, HOST_PATH_TYPES);
    }
}

fn image(source: &ImageVolumeSource, path: &Path, report: &mut ValidationErrors) {
    report.require_text(&path.child("reference"), source.reference.as_deref().unwrap_or_default());
    pull_policy(source.pull_policy.as_deref(), &path.child("pullPolicy"), report);
}

fn secret(source: &SecretVolumeSource, path: &Path, report: &mut ValidationErrors) {
    report.require_text(&path.child("secretName"), source.secret_name.as_deref().unwrap_or_default());
    file_mode(source.default_mode, &path.child("defaultMode"), report);
    items(source.items.as_deref(), &path.child("items"), report);
}

fn config_map(source: &ConfigMapVolumeSource, path: &Path, report: &mut ValidationErrors) {
    report.require_text(&path.child("name"), &source.name);
    file_mode(source.default_mode, &path.child("defaultMode"), report);
    items(source.items.as_deref(), &path.child("items"), report);
}
