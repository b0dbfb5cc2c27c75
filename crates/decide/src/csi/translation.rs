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
    AWSElasticBlockStoreVolumeSource, CSIPersistentVolumeSource, ObjectMeta, PersistentVolume,
    PersistentVolumeSpec, Volume,
};

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
pub fn translate_volume(volume: &PersistentVolume) -> Option<Result<PersistentVolume, String>> {
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
    if let Some(source) = &spec.aws_elastic_block_store {
        add_driver_topology(new, "topology.ebs.csi.aws.com/zone");
        return Some(ebs(source));
    }
    if let Some(source) = &spec.azure_disk {
        return Some(azure_disk(source, true));
    }
    if let Some(source) = &spec.azure_file {
        let claim = spec.claim_ref.as_ref().and_then(|claim| claim.namespace.clone());
        let namespace = source.secret_namespace.clone().or(claim).unwrap_or_default();
        return Some(match namespace.is_empty() {
            true => Err("could not find a secret namespace in PersistentVolumeSource or ClaimRef".to_owned()),
            false => Ok(azure_file(&AzureFile {
                resource_group: annotation(volume, RESOURCE_GROUP).unwrap_or_default(),
                secret: &source.secret_name,
                share: &source.share_name,
                name: volume.metadata.name.as_deref().unwrap_or_default(),
                namespace: &namespace,
                read_only: source.read_only,
            })),
        });
    }
    if let Some(source) = &spec.cinder {
        add_driver_topology(new, "topology.cinder.csi.openstack.org/zone");
        return Some(Ok(cinder(&source.volume_id, source.fs_type.as_ref(), source.read_only)));
    }
    if let Some(source) = &spec.gce_persistent_disk {
        let handle = match gce_handle(volume, &source.pd_name) {
            Ok(handle) => handle,
            Err(message) => return Some(Err(message)),
        };
        add_driver_topology(new, "topology.gke.io/zone");
        let spec = new.spec.get_or_insert_default();
        spec.access_modes = gce_access_modes(spec.access_modes.as_deref());
        return Some(Ok(gce_disk(source, handle)));
    }
    if let Some(source) = &spec.portworx_volume {
        let secret = annotation(volume, PORTWORX_SECRET).zip(annotation(volume, PORTWORX_SECRET_NAMESPACE));
        return Some(Ok(portworx(source, secret)));
    }
    let source = spec.vsphere_volume.as_ref()?;
    vsphere_topology(new);
    Some(Ok(vsphere(source)))
}

fn annotation<'a>(volume: &'a PersistentVolume, name: &str) -> Option<&'a str> {
    volume.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// Whether the volume of a pod is of a kind that a driver took over.
pub fn is_migrated(volume: &Volume) -> bool {
    volume.aws_elastic_block_store.is_some()
        || volume.azure_disk.is_some()
        || volume.azure_file.is_some()
        || volume.cinder.is_some()
        || volume.gce_persistent_disk.is_some()
        || volume.portworx_volume.is_some()
        || volume.vsphere_volume.is_some()
}

/// The volume of a pod as a persistent volume of its driver, whose name tells disks apart. `None`: it is of no kind that
/// a driver took over.
pub fn translate_inline(volume: &Volume, namespace: &str) -> Option<Result<PersistentVolume, String>> {
    is_migrated(volume)
        .then(|| inline_source(volume, namespace).map(|(name, source, mode)| made(name, source, mode)))
}

type Inline = (String, CSIPersistentVolumeSource, &'static str);

fn inline_source(volume: &Volume, namespace: &str) -> Result<Inline, String> {
    let named = |source: &CSIPersistentVolumeSource| format!("{}-{}", source.driver, source.volume_handle);
    let read_only_mode = |read_only: Option<bool>| match read_only {
        Some(true) => "ReadOnlyMany",
        _ => ONE_NODE,
    };
    if let Some(given) = &volume.aws_elastic_block_store {
        let source = ebs(given)?;
        return Ok((named(&source), source, ONE_NODE));
    }
    if let Some(given) = &volume.azure_disk {
        return Ok((given.disk_uri.clone(), azure_disk(given, false)?, ONE_NODE));
    }
    if let Some(given) = &volume.azure_file {
        let source = azure_file(&AzureFile {
            resource_group: "",
            secret: &given.secret_name,
            share: &given.share_name,
            name: &volume.name,
            namespace: if namespace.is_empty() { "default" } else { namespace },
            read_only: given.read_only,
        });
        return Ok((source.volume_handle.clone(), source, "ReadWriteMany"));
    }
    if let Some(given) = &volume.cinder {
        let source = cinder(&given.volume_id, given.fs_type.as_ref(), given.read_only);
        return Ok((named(&source), source, ONE_NODE));
    }
    if let Some(given) = &volume.gce_persistent_disk {
        let handle = gce_handle(&PersistentVolume::default(), &given.pd_name)?;
        let name = format!("{GCE_DISK}-{}", given.pd_name);
        return Ok((name, gce_disk(given, handle), read_only_mode(given.read_only)));
    }
    if let Some(given) = &volume.portworx_volume {
        let source = portworx(given, None);
        return Ok((named(&source), source, read_only_mode(given.read_only)));
    }
    let Some(given) = &volume.vsphere_volume else { return Err("it names no volume of a driver".to_owned()) };
    let source = vsphere(given);
    Ok((named(&source), source, ONE_NODE))
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
