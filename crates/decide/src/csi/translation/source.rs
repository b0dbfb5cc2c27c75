//! The CSI source for each in-tree source.

use std::collections::BTreeMap;

use model::k8s::{
    AWSElasticBlockStoreVolumeSource, AzureDiskVolumeSource, CSIPersistentVolumeSource,
    GCEPersistentDiskVolumeSource, PortworxVolumeSource, SecretReference, VsphereVirtualDiskVolumeSource,
};

use super::{AZURE_DISK, AZURE_FILE, CINDER, EBS, GCE_DISK, PORTWORX, VSPHERE, attributes, partition_of};

const MANAGED: &str = "Managed";

fn source(driver: &str, handle: impl Into<String>) -> CSIPersistentVolumeSource {
    CSIPersistentVolumeSource {
        driver: driver.to_owned(),
        volume_handle: handle.into(),
        ..CSIPersistentVolumeSource::default()
    }
}

/// The API leaves out what is empty.
fn given(text: Option<&String>) -> Option<String> {
    text.filter(|text| !text.is_empty()).cloned()
}

fn only_true(flag: Option<bool>) -> Option<bool> {
    flag.filter(|flag| *flag)
}

pub(super) fn ebs(
    given_source: &AWSElasticBlockStoreVolumeSource,
) -> Result<CSIPersistentVolumeSource, String> {
    let handle = ebs_handle(&given_source.volume_id)
        .map_err(|message| format!("failed to translate Kubernetes ID to EBS Volume ID {message}"))?;
    Ok(CSIPersistentVolumeSource {
        read_only: only_true(given_source.read_only),
        fs_type: given(given_source.fs_type.as_ref()),
        volume_attributes: attributes([("partition", partition_of(given_source))]),
        ..source(EBS, handle)
    })
}

/// `aws://<zone>/<volume>`, or the volume alone.
fn ebs_handle(id: &str) -> Result<String, String> {
    let Some(behind) = id.strip_prefix("aws://") else { return Ok(id.to_owned()) };
    let behind = behind.split(['?', '#']).next().unwrap_or_default();
    let path = behind.find('/').map_or("", |at| &behind[at..]).trim_matches('/');
    if !path.starts_with("vol-") || path.contains('/') {
        return Err(format!("Invalid format for AWS volume ({id})"));
    }
    Ok(path.to_owned())
}

/// `keeps_empty_mode`: an empty caching mode of a persistent volume is passed to the driver, one of a pod's inline
/// volume is not.
pub(super) fn azure_disk(
    disk: &AzureDiskVolumeSource,
    keeps_empty_mode: bool,
) -> Result<CSIPersistentVolumeSource, String> {
    if let Some(kind) = disk.kind.as_ref().filter(|kind| !kind.eq_ignore_ascii_case(MANAGED)) {
        return Err(format!("kind({kind}) is not supported in csi migration"));
    }
    let mut told = BTreeMap::from([("kind".to_owned(), MANAGED.to_owned())]);
    let mode = disk.caching_mode.clone().filter(|mode| keeps_empty_mode || !mode.is_empty());
    told.extend(mode.map(|mode| ("cachingmode".to_owned(), mode)));
    told.extend(disk.fs_type.clone().map(|kind| ("fstype".to_owned(), kind)));
    Ok(CSIPersistentVolumeSource {
        read_only: only_true(disk.read_only),
        fs_type: given(disk.fs_type.as_ref()),
        volume_attributes: Some(told),
        ..source(AZURE_DISK, disk.disk_uri.as_str())
    })
}

pub(super) struct AzureFile<'a> {
    pub resource_group: &'a str,
    pub secret: &'a str,
    pub share: &'a str,
    /// The volume's.
    pub name: &'a str,
    /// The secret's.
    pub namespace: &'a str,
    pub read_only: Option<bool>,
}

pub(super) fn azure_file(file: &AzureFile<'_>) -> CSIPersistentVolumeSource {
    let AzureFile { resource_group, secret, share, name, namespace, .. } = file;
    let account = storage_account(secret).unwrap_or(secret);
    CSIPersistentVolumeSource {
        read_only: only_true(file.read_only),
        volume_attributes: attributes([("sharename", (*share).to_owned())]),
        node_stage_secret_ref: Some(SecretReference {
            name: given(Some(&(*secret).to_owned())),
            namespace: Some((*namespace).to_owned()),
        }),
        ..source(AZURE_FILE, format!("{resource_group}#{account}#{share}#{name}#{namespace}"))
    }
}

/// Secrets of this plugin are named `azure-storage-account-<account>-secret`, with anything before and behind it.
fn storage_account(secret: &str) -> Option<&str> {
    const BEFORE: &str = "azure-storage-account-";
    let behind = &secret[secret.find(BEFORE)? + BEFORE.len()..];
    let end = behind.rfind("-secret")?;
    (end > 0).then(|| &behind[..end])
}

pub(super) fn cinder(
    id: &str,
    fs_type: Option<&String>,
    read_only: Option<bool>,
) -> CSIPersistentVolumeSource {
    CSIPersistentVolumeSource {
        read_only: only_true(read_only),
        fs_type: given(fs_type),
        ..source(CINDER, id)
    }
}

pub(super) fn gce_disk(disk: &GCEPersistentDiskVolumeSource, handle: String) -> CSIPersistentVolumeSource {
    let partition = disk.partition.filter(|partition| *partition != 0);
    let partition = partition.map(|partition| partition.to_string()).unwrap_or_default();
    CSIPersistentVolumeSource {
        read_only: only_true(disk.read_only),
        fs_type: given(disk.fs_type.as_ref()),
        volume_attributes: attributes([("partition", partition)]),
        ..source(GCE_DISK, handle)
    }
}

/// `secret`: its name and namespace.
pub(super) fn portworx(
    volume: &PortworxVolumeSource,
    secret: Option<(&str, &str)>,
) -> CSIPersistentVolumeSource {
    let secret = secret.map(|(name, namespace)| SecretReference {
        name: given(Some(&name.to_owned())),
        namespace: given(Some(&namespace.to_owned())),
    });
    CSIPersistentVolumeSource {
        fs_type: given(volume.fs_type.as_ref()),
        controller_publish_secret_ref: secret.clone(),
        node_stage_secret_ref: secret.clone(),
        node_publish_secret_ref: secret.clone(),
        controller_expand_secret_ref: secret.clone(),
        node_expand_secret_ref: secret,
        ..source(PORTWORX, volume.volume_id.as_str())
    }
}

pub(super) fn vsphere(disk: &VsphereVirtualDiskVolumeSource) -> CSIPersistentVolumeSource {
    let policy = given(disk.storage_policy_name.as_ref());
    CSIPersistentVolumeSource {
        fs_type: given(disk.fs_type.as_ref()),
        volume_attributes: policy.and_then(|policy| attributes([("storagepolicyname", policy)])),
        ..source(VSPHERE, disk.volume_path.as_str())
    }
}
