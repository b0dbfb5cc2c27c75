//! Volumes: their names, and exactly one source each.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, EmptyDirVolumeSource, HostPathVolumeSource, ImageVolumeSource, KeyToPath, PodSpec,
    SecretVolumeSource, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use model::quantity::Quantity;

use super::report::{Path, ValidationErrors};
use super::{containers, projected, storage, syntax};

const HOST_PATH_TYPES: &[&str] =
    &["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];

/// What mounts need to know of a volume.
#[derive(Clone, Copy, Debug)]
pub(super) struct ValidVolume {
    /// Only claims can be used as block devices.
    pub(super) is_claim: bool,
}

/// The sound volumes of a pod by name.
pub(super) type ValidVolumes<'a> = BTreeMap<&'a str, ValidVolume>;

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
            let is_claim = volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some();
            sound.insert(&volume.name, ValidVolume { is_claim });
        }
    }
    sound
}

/// A volume has one source; the first one given is looked at, the others are refused.
fn source(volume: &Volume, pod_name: &str, path: &Path, report: &mut ValidationErrors) {
    let mut given = present(volume).into_iter().filter(|(_, present)| *present);
    let Some((field, _)) = given.next() else {
        return report.required_because(path, "a volume needs a source");
    };
    for (other, _) in given {
        report.forbidden(&path.child(other), "a volume has only one source");
    }
    let path = path.child(field);
    match field {
        "emptyDir" => volume.empty_dir.iter().for_each(|source| empty_dir(source, &path, report)),
        "hostPath" => volume.host_path.iter().for_each(|source| host_path(source, &path, report)),
        "secret" => volume.secret.iter().for_each(|source| secret(source, &path, report)),
        "configMap" => volume.config_map.iter().for_each(|source| config_map(source, &path, report)),
        "downwardAPI" => {
            volume.downward_api.iter().for_each(|source| projected::downward(source, &path, report))
        }
        "projected" => volume.projected.iter().for_each(|source| projected::check(source, &path, report)),
        "image" => volume.image.iter().for_each(|source| image(source, &path, report)),
        _ => storage::check(volume, pod_name, &path, report),
    }
}

fn present(volume: &Volume) -> [(&'static str, bool); 30] {
    [
        ("emptyDir", volume.empty_dir.is_some()),
        ("hostPath", volume.host_path.is_some()),
        ("gitRepo", volume.git_repo.is_some()),
        ("gcePersistentDisk", volume.gce_persistent_disk.is_some()),
        ("awsElasticBlockStore", volume.aws_elastic_block_store.is_some()),
        ("secret", volume.secret.is_some()),
        ("nfs", volume.nfs.is_some()),
        ("iscsi", volume.iscsi.is_some()),
        ("glusterfs", volume.glusterfs.is_some()),
        ("flocker", volume.flocker.is_some()),
        ("persistentVolumeClaim", volume.persistent_volume_claim.is_some()),
        ("rbd", volume.rbd.is_some()),
        ("cinder", volume.cinder.is_some()),
        ("cephfs", volume.cephfs.is_some()),
        ("quobyte", volume.quobyte.is_some()),
        ("downwardAPI", volume.downward_api.is_some()),
        ("fc", volume.fc.is_some()),
        ("flexVolume", volume.flex_volume.is_some()),
        ("configMap", volume.config_map.is_some()),
        ("azureFile", volume.azure_file.is_some()),
        ("vsphereVolume", volume.vsphere_volume.is_some()),
        ("photonPersistentDisk", volume.photon_persistent_disk.is_some()),
        ("portworxVolume", volume.portworx_volume.is_some()),
        ("azureDisk", volume.azure_disk.is_some()),
        ("storageos", volume.storageos.is_some()),
        ("projected", volume.projected.is_some()),
        ("scaleIO", volume.scale_io.is_some()),
        ("csi", volume.csi.is_some()),
        ("ephemeral", volume.ephemeral.is_some()),
        ("image", volume.image.is_some()),
    ]
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
    containers::pull_policy(source.pull_policy.as_deref(), &path.child("pullPolicy"), report);
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

pub(super) fn items(items: Option<&[KeyToPath]>, path: &Path, report: &mut ValidationErrors) {
    for (index, item) in items.into_iter().flatten().enumerate() {
        let path = path.index(index);
        report.require_text(&path.child("key"), &item.key);
        if report.require_text(&path.child("path"), &item.path) {
            report.invalid_for_each(&path.child("path"), &item.path, syntax::unreserved_path(&item.path));
        }
        file_mode(item.mode, &path.child("mode"), report);
    }
}

pub(super) fn file_mode(mode: Option<i32>, path: &Path, report: &mut ValidationErrors) {
    if let Some(mode) = mode.filter(|mode| !(0..=0o777).contains(mode)) {
        report.invalid(path, mode, "must be an octal mode from 0 to 0777");
    }
}
