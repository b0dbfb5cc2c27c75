//! Translates volumes of the seven migrated in-tree types to CSI volumes.
//!
//! ```text
//!   PersistentVolume with an in-tree source ──> the same one with a CSI source and the driver's topology
//!   volume of a pod with an in-tree source  ──> a PersistentVolume that nobody has stored
//! ```
//! CSINode lists these types as migrated (`node_object`), so the scheduler counts them and the controller attaches them
//! as CSI volumes. The result must equal the translation of the attach-detach controller, because the name of the
//! VolumeAttachment is computed from it. `fixtures.json` holds the results of upstream's library.

mod source;
mod topology;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use model::k8s::{
    AWSElasticBlockStoreVolumeSource, AzureFilePersistentVolumeSource, CSIPersistentVolumeSource, ObjectMeta,
    PersistentVolume, PersistentVolumeSpec,
};
use model::volume_source::{MigratedPersistentSource, MigratedSource, PersistentSource};

use source::{AzureFile, azure_disk, azure_file, cinder, ebs, gce_disk, portworx, vsphere};
use topology::{add_driver_topology, gce_access_modes, gce_handle, vsphere_topology};

pub(super) const EBS: &str = "ebs.csi.aws.com";
pub(super) const AZURE_DISK: &str = "disk.csi.azure.com";
pub(super) const AZURE_FILE: &str = "file.csi.azure.com";
pub(super) const CINDER: &str = "cinder.csi.openstack.org";
pub(super) const GCE_DISK: &str = "pd.csi.storage.gke.io";
pub(super) const PORTWORX: &str = "pxd.portworx.com";
pub(super) const VSPHERE: &str = "csi.vsphere.vmware.com";

const RESOURCE_GROUP: &str = "kubernetes.io/azure-file-resource-group";
const PORTWORX_SECRET: &str = "openstorage.io/auth-secret-name";
const PORTWORX_SECRET_NAMESPACE: &str = "openstorage.io/auth-secret-namespace";
const ONE_NODE: &str = "ReadWriteOnce";

/// The persistent volume with a CSI source. `None`: its type is not migrated.
pub(crate) fn translate_volume(volume: &PersistentVolume) -> Option<Result<PersistentVolume, String>> {
    let spec = volume.spec.as_ref()?;
    let mut new = volume.clone();
    let translated = in_tree_source(volume, spec, &mut new)?;
    let finished = translated.map(|source| {
        let spec = new.spec.get_or_insert_default();
        spec.aws_elastic_block_store = None;
        spec.azure_disk = None;
        spec.azure_file = None;
        spec.cinder = None;
        spec.gce_persistent_disk = None;
        spec.portworx_volume = None;
        spec.vsphere_volume = None;
        spec.csi = Some(source);
        new
    });
    Some(finished)
}

/// The CSI source for the in-tree source of the spec. Other fields that the translation changes are changed in `new`.
fn in_tree_source(
    volume: &PersistentVolume,
    spec: &PersistentVolumeSpec,
    new: &mut PersistentVolume,
) -> Option<Result<CSIPersistentVolumeSource, String>> {
    let PersistentSource::Migrated(source) = PersistentSource::of(spec) else { return None };
    Some(match source {
        MigratedPersistentSource::AwsElasticBlockStore(source) => {
            add_driver_topology(new, "topology.ebs.csi.aws.com/zone");
            ebs(source)
        }
        MigratedPersistentSource::AzureDisk(source) => azure_disk(source, true),
        MigratedPersistentSource::AzureFile(source) => persistent_azure_file(volume, spec, source),
        MigratedPersistentSource::Cinder(source) => {
            add_driver_topology(new, "topology.cinder.csi.openstack.org/zone");
            Ok(cinder(&source.volume_id, source.fs_type.as_ref(), source.read_only))
        }
        MigratedPersistentSource::GcePersistentDisk(source) => {
            gce_handle(volume, &source.pd_name).map(|handle| {
                add_driver_topology(new, "topology.gke.io/zone");
                let spec = new.spec.get_or_insert_default();
                spec.access_modes = gce_access_modes(spec.access_modes.as_deref());
                gce_disk(source, handle)
            })
        }
        MigratedPersistentSource::PortworxVolume(source) => {
            let namespace = annotation(volume, PORTWORX_SECRET_NAMESPACE);
            Ok(portworx(source, annotation(volume, PORTWORX_SECRET).zip(namespace)))
        }
        MigratedPersistentSource::VsphereVolume(source) => {
            vsphere_topology(new);
            Ok(vsphere(source))
        }
    })
}

fn persistent_azure_file(
    volume: &PersistentVolume,
    spec: &PersistentVolumeSpec,
    source: &AzureFilePersistentVolumeSource,
) -> Result<CSIPersistentVolumeSource, String> {
    let claim = spec.claim_ref.as_ref().and_then(|claim| claim.namespace.clone());
    let namespace = source.secret_namespace.clone().or(claim).unwrap_or_default();
    if namespace.is_empty() {
        return Err("could not find a secret namespace in PersistentVolumeSource or ClaimRef".to_owned());
    }
    Ok(azure_file(&AzureFile {
        resource_group: annotation(volume, RESOURCE_GROUP).unwrap_or_default(),
        secret: &source.secret_name,
        share: &source.share_name,
        name: volume.metadata.name.as_deref().unwrap_or_default(),
        namespace: &namespace,
        read_only: source.read_only,
    }))
}

fn annotation<'a>(volume: &'a PersistentVolume, name: &str) -> Option<&'a str> {
    volume.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// The volume of a pod as a persistent volume of its driver, whose name tells disks apart.
pub(crate) fn translate_inline(
    volume: &str,
    source: MigratedSource<'_>,
    namespace: &str,
) -> Result<PersistentVolume, String> {
    let named = |source: &CSIPersistentVolumeSource| format!("{}-{}", source.driver, source.volume_handle);
    let read_only_mode = |read_only: Option<bool>| match read_only {
        Some(true) => "ReadOnlyMany",
        _ => ONE_NODE,
    };
    let (name, source, mode) = match source {
        MigratedSource::AwsElasticBlockStore(given) => {
            let source = ebs(given)?;
            (named(&source), source, ONE_NODE)
        }
        MigratedSource::AzureDisk(given) => (given.disk_uri.clone(), azure_disk(given, false)?, ONE_NODE),
        MigratedSource::AzureFile(given) => {
            let source = azure_file(&AzureFile {
                resource_group: "",
                secret: &given.secret_name,
                share: &given.share_name,
                name: volume,
                namespace: if namespace.is_empty() { "default" } else { namespace },
                read_only: given.read_only,
            });
            (source.volume_handle.clone(), source, "ReadWriteMany")
        }
        MigratedSource::Cinder(given) => {
            let source = cinder(&given.volume_id, given.fs_type.as_ref(), given.read_only);
            (named(&source), source, ONE_NODE)
        }
        MigratedSource::GcePersistentDisk(given) => {
            let handle = gce_handle(&PersistentVolume::default(), &given.pd_name)?;
            let name = format!("{GCE_DISK}-{}", given.pd_name);
            (name, gce_disk(given, handle), read_only_mode(given.read_only))
        }
        MigratedSource::PortworxVolume(given) => {
            let source = portworx(given, None);
            (named(&source), source, read_only_mode(given.read_only))
        }
        MigratedSource::VsphereVolume(given) => {
            let source = vsphere(given);
            (named(&source), source, ONE_NODE)
        }
    };
    Ok(made(name, source, mode))
}

fn made(name: String, source: CSIPersistentVolumeSource, mode: &str) -> PersistentVolume {
    PersistentVolume {
        metadata: ObjectMeta { name: Some(name), ..ObjectMeta::default() },
        spec: Some(PersistentVolumeSpec {
            csi: Some(source),
            access_modes: Some(vec![mode.to_owned()]),
            volume_mode: Some("Filesystem".to_owned()),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    }
}

fn attributes<const N: usize>(given: [(&str, String); N]) -> Option<BTreeMap<String, String>> {
    Some(given.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

fn partition_of(source: &AWSElasticBlockStoreVolumeSource) -> String {
    source.partition.unwrap_or_default().to_string()
}
