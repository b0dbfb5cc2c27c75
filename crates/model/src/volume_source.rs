//! The kinds of volumes: what a pod's volume, a persistent volume or an entry of a projected volume is made from.
//!
//! The Kubernetes types have one optional field per kind. Here they become one enum each, so that everything which
//! depends on the kind is a `match`. A field that Kubernetes adds does not compile here until it has a variant, and a
//! variant does not compile until each `match` says what happens to it.

use crate::k8s;

/// What the volume of a pod is made from.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum VolumeSource<'a> {
    /// `None`: the volume has no source at all, which means an emptyDir.
    EmptyDir(Option<&'a k8s::EmptyDirVolumeSource>),
    HostPath(&'a k8s::HostPathVolumeSource),
    ConfigMap(&'a k8s::ConfigMapVolumeSource),
    Secret(&'a k8s::SecretVolumeSource),
    DownwardApi(&'a k8s::DownwardAPIVolumeSource),
    Projected(&'a k8s::ProjectedVolumeSource),
    PersistentVolumeClaim(&'a k8s::PersistentVolumeClaimVolumeSource),
    /// A claim that is generated for the pod.
    Ephemeral(&'a k8s::EphemeralVolumeSource),
    Csi(&'a k8s::CSIVolumeSource),
    /// The runtime mounts it.
    Image(&'a k8s::ImageVolumeSource),
    Nfs(&'a k8s::NFSVolumeSource),
    Migrated(MigratedSource<'a>),
    Unsupported(UnsupportedSource<'a>),
}

/// The in-tree kinds that CSI drivers took over.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum MigratedSource<'a> {
    AwsElasticBlockStore(&'a k8s::AWSElasticBlockStoreVolumeSource),
    AzureDisk(&'a k8s::AzureDiskVolumeSource),
    AzureFile(&'a k8s::AzureFileVolumeSource),
    Cinder(&'a k8s::CinderVolumeSource),
    GcePersistentDisk(&'a k8s::GCEPersistentDiskVolumeSource),
    PortworxVolume(&'a k8s::PortworxVolumeSource),
    VsphereVolume(&'a k8s::VsphereVirtualDiskVolumeSource),
}

/// Kinds of the API that this agent does not mount.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum UnsupportedSource<'a> {
    Cephfs(&'a k8s::CephFSVolumeSource),
    Fc(&'a k8s::FCVolumeSource),
    FlexVolume(&'a k8s::FlexVolumeSource),
    Flocker(&'a k8s::FlockerVolumeSource),
    GitRepo(&'a k8s::GitRepoVolumeSource),
    Glusterfs(&'a k8s::GlusterfsVolumeSource),
    Iscsi(&'a k8s::ISCSIVolumeSource),
    PhotonPersistentDisk(&'a k8s::PhotonPersistentDiskVolumeSource),
    Quobyte(&'a k8s::QuobyteVolumeSource),
    Rbd(&'a k8s::RBDVolumeSource),
    ScaleIo(&'a k8s::ScaleIOVolumeSource),
    Storageos(&'a k8s::StorageOSVolumeSource),
}

impl<'a> VolumeSource<'a> {
    /// A valid volume has one source; of several, the first one of `given` counts.
    pub fn of(volume: &'a k8s::Volume) -> Self {
        Self::given(volume).next().unwrap_or(VolumeSource::EmptyDir(None))
    }

    /// All sources that the volume has, in the order in which the API validates them.
    pub fn given(volume: &'a k8s::Volume) -> impl Iterator<Item = Self> {
        use MigratedSource as M;
        use UnsupportedSource as U;
        use VolumeSource as S;
        let k8s::Volume {
            name: _,
            aws_elastic_block_store,
            azure_disk,
            azure_file,
            cephfs,
            cinder,
            config_map,
            csi,
            downward_api,
            empty_dir,
            ephemeral,
            fc,
            flex_volume,
            flocker,
            gce_persistent_disk,
            git_repo,
            glusterfs,
            host_path,
            image,
            iscsi,
            nfs,
            persistent_volume_claim,
            photon_persistent_disk,
            portworx_volume,
            projected,
            quobyte,
            rbd,
            scale_io,
            secret,
            storageos,
            vsphere_volume,
        } = volume;
        let sources = [
            empty_dir.as_ref().map(|source| S::EmptyDir(Some(source))),
            host_path.as_ref().map(S::HostPath),
            git_repo.as_ref().map(U::GitRepo).map(S::Unsupported),
            gce_persistent_disk.as_ref().map(M::GcePersistentDisk).map(S::Migrated),
            aws_elastic_block_store.as_ref().map(M::AwsElasticBlockStore).map(S::Migrated),
            secret.as_ref().map(S::Secret),
            nfs.as_ref().map(S::Nfs),
            iscsi.as_ref().map(U::Iscsi).map(S::Unsupported),
            glusterfs.as_ref().map(U::Glusterfs).map(S::Unsupported),
            flocker.as_ref().map(U::Flocker).map(S::Unsupported),
            persistent_volume_claim.as_ref().map(S::PersistentVolumeClaim),
            rbd.as_ref().map(U::Rbd).map(S::Unsupported),
            cinder.as_ref().map(M::Cinder).map(S::Migrated),
            cephfs.as_ref().map(U::Cephfs).map(S::Unsupported),
            quobyte.as_ref().map(U::Quobyte).map(S::Unsupported),
            downward_api.as_ref().map(S::DownwardApi),
            fc.as_ref().map(U::Fc).map(S::Unsupported),
            flex_volume.as_ref().map(U::FlexVolume).map(S::Unsupported),
            config_map.as_ref().map(S::ConfigMap),
            azure_file.as_ref().map(M::AzureFile).map(S::Migrated),
            vsphere_volume.as_ref().map(M::VsphereVolume).map(S::Migrated),
            photon_persistent_disk.as_ref().map(U::PhotonPersistentDisk).map(S::Unsupported),
            portworx_volume.as_ref().map(M::PortworxVolume).map(S::Migrated),
            azure_disk.as_ref().map(M::AzureDisk).map(S::Migrated),
            storageos.as_ref().map(U::Storageos).map(S::Unsupported),
            projected.as_ref().map(S::Projected),
            scale_io.as_ref().map(U::ScaleIo).map(S::Unsupported),
            csi.as_ref().map(S::Csi),
            ephemeral.as_ref().map(S::Ephemeral),
            image.as_ref().map(S::Image),
        ];
        sources.into_iter().flatten()
    }

    /// The name of the field in the spec.
    pub fn field(self) -> &'static str {
        match self {
            VolumeSource::EmptyDir(_) => "emptyDir",
            VolumeSource::HostPath(_) => "hostPath",
            VolumeSource::ConfigMap(_) => "configMap",
            VolumeSource::Secret(_) => "secret",
            VolumeSource::DownwardApi(_) => "downwardAPI",
            VolumeSource::Projected(_) => "projected",
            VolumeSource::PersistentVolumeClaim(_) => "persistentVolumeClaim",
            VolumeSource::Ephemeral(_) => "ephemeral",
            VolumeSource::Csi(_) => "csi",
            VolumeSource::Image(_) => "image",
            VolumeSource::Nfs(_) => "nfs",
            VolumeSource::Migrated(source) => match source {
                MigratedSource::AwsElasticBlockStore(_) => "awsElasticBlockStore",
                MigratedSource::AzureDisk(_) => "azureDisk",
                MigratedSource::AzureFile(_) => "azureFile",
                MigratedSource::Cinder(_) => "cinder",
                MigratedSource::GcePersistentDisk(_) => "gcePersistentDisk",
                MigratedSource::PortworxVolume(_) => "portworxVolume",
                MigratedSource::VsphereVolume(_) => "vsphereVolume",
            },
            VolumeSource::Unsupported(source) => match source {
                UnsupportedSource::Cephfs(_) => "cephfs",
                UnsupportedSource::Fc(_) => "fc",
                UnsupportedSource::FlexVolume(_) => "flexVolume",
                UnsupportedSource::Flocker(_) => "flocker",
                UnsupportedSource::GitRepo(_) => "gitRepo",
                UnsupportedSource::Glusterfs(_) => "glusterfs",
                UnsupportedSource::Iscsi(_) => "iscsi",
                UnsupportedSource::PhotonPersistentDisk(_) => "photonPersistentDisk",
                UnsupportedSource::Quobyte(_) => "quobyte",
                UnsupportedSource::Rbd(_) => "rbd",
                UnsupportedSource::ScaleIo(_) => "scaleIO",
                UnsupportedSource::Storageos(_) => "storageos",
            },
        }
    }

    /// The volume plugin by its name in metrics. With `~` for `/` it is the name of the directory below the pod's own.
    /// `None`: the plugin of a claim is that of its persistent volume, and the runtime mounts images.
    pub fn plugin(self) -> Option<&'static str> {
        match self {
            VolumeSource::EmptyDir(_) => Some("kubernetes.io/empty-dir"),
            VolumeSource::HostPath(_) => Some("kubernetes.io/host-path"),
            VolumeSource::ConfigMap(_) => Some("kubernetes.io/configmap"),
            VolumeSource::Secret(_) => Some("kubernetes.io/secret"),
            VolumeSource::DownwardApi(_) => Some("kubernetes.io/downward-api"),
            VolumeSource::Projected(_) => Some("kubernetes.io/projected"),
            VolumeSource::Nfs(_) => Some("kubernetes.io/nfs"),
            VolumeSource::Csi(_) => Some("kubernetes.io/csi"),
            VolumeSource::PersistentVolumeClaim(_)
            | VolumeSource::Ephemeral(_)
            | VolumeSource::Image(_)
            | VolumeSource::Migrated(_)
            | VolumeSource::Unsupported(_) => None,
        }
    }
}

/// What a persistent volume is made from.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum PersistentSource<'a> {
    HostPath(&'a k8s::HostPathVolumeSource),
    Local(&'a k8s::LocalVolumeSource),
    Nfs(&'a k8s::NFSVolumeSource),
    Csi(&'a k8s::CSIPersistentVolumeSource),
    Migrated(MigratedPersistentSource<'a>),
    /// By the name of the field in the spec.
    Unsupported(&'static str),
}

/// The in-tree kinds of persistent volumes that CSI drivers took over.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum MigratedPersistentSource<'a> {
    AwsElasticBlockStore(&'a k8s::AWSElasticBlockStoreVolumeSource),
    AzureDisk(&'a k8s::AzureDiskVolumeSource),
    AzureFile(&'a k8s::AzureFilePersistentVolumeSource),
    Cinder(&'a k8s::CinderPersistentVolumeSource),
    GcePersistentDisk(&'a k8s::GCEPersistentDiskVolumeSource),
    PortworxVolume(&'a k8s::PortworxVolumeSource),
    VsphereVolume(&'a k8s::VsphereVirtualDiskVolumeSource),
}

impl<'a> PersistentSource<'a> {
    pub fn of(spec: &'a k8s::PersistentVolumeSpec) -> Self {
        use MigratedPersistentSource as M;
        use PersistentSource as S;
        let k8s::PersistentVolumeSpec {
            access_modes: _,
            capacity: _,
            claim_ref: _,
            mount_options: _,
            node_affinity: _,
            persistent_volume_reclaim_policy: _,
            storage_class_name: _,
            volume_attributes_class_name: _,
            volume_mode: _,
            aws_elastic_block_store,
            azure_disk,
            azure_file,
            cephfs,
            cinder,
            csi,
            fc,
            flex_volume,
            flocker,
            gce_persistent_disk,
            glusterfs,
            host_path,
            iscsi,
            local,
            nfs,
            photon_persistent_disk,
            portworx_volume,
            quobyte,
            rbd,
            scale_io,
            storageos,
            vsphere_volume,
        } = spec;
        let unsupported = |given: bool, field| given.then_some(S::Unsupported(field));
        let sources = [
            csi.as_ref().map(S::Csi),
            local.as_ref().map(S::Local),
            nfs.as_ref().map(S::Nfs),
            host_path.as_ref().map(S::HostPath),
            aws_elastic_block_store.as_ref().map(M::AwsElasticBlockStore).map(S::Migrated),
            azure_disk.as_ref().map(M::AzureDisk).map(S::Migrated),
            azure_file.as_ref().map(M::AzureFile).map(S::Migrated),
            cinder.as_ref().map(M::Cinder).map(S::Migrated),
            gce_persistent_disk.as_ref().map(M::GcePersistentDisk).map(S::Migrated),
            portworx_volume.as_ref().map(M::PortworxVolume).map(S::Migrated),
            vsphere_volume.as_ref().map(M::VsphereVolume).map(S::Migrated),
            unsupported(iscsi.is_some(), "iscsi"),
            unsupported(fc.is_some(), "fc"),
            unsupported(flex_volume.is_some(), "flexVolume"),
            unsupported(cephfs.is_some(), "cephfs"),
            unsupported(flocker.is_some(), "flocker"),
            unsupported(glusterfs.is_some(), "glusterfs"),
            unsupported(photon_persistent_disk.is_some(), "photonPersistentDisk"),
            unsupported(quobyte.is_some(), "quobyte"),
            unsupported(rbd.is_some(), "rbd"),
            unsupported(scale_io.is_some(), "scaleIO"),
            unsupported(storageos.is_some(), "storageos"),
        ];
        sources.into_iter().flatten().next().unwrap_or(S::Unsupported("unknown"))
    }

    /// The name of the field in the spec.
    pub fn field(self) -> &'static str {
        match self {
            PersistentSource::HostPath(_) => "hostPath",
            PersistentSource::Local(_) => "local",
            PersistentSource::Nfs(_) => "nfs",
            PersistentSource::Csi(_) => "csi",
            PersistentSource::Migrated(source) => match source {
                MigratedPersistentSource::AwsElasticBlockStore(_) => "awsElasticBlockStore",
                MigratedPersistentSource::AzureDisk(_) => "azureDisk",
                MigratedPersistentSource::AzureFile(_) => "azureFile",
                MigratedPersistentSource::Cinder(_) => "cinder",
                MigratedPersistentSource::GcePersistentDisk(_) => "gcePersistentDisk",
                MigratedPersistentSource::PortworxVolume(_) => "portworxVolume",
                MigratedPersistentSource::VsphereVolume(_) => "vsphereVolume",
            },
            PersistentSource::Unsupported(field) => field,
        }
    }

    /// The volume plugin by its name in metrics. `None`: the agent has no plugin for it.
    pub fn plugin(self) -> Option<&'static str> {
        match self {
            PersistentSource::HostPath(_) => Some("kubernetes.io/host-path"),
            PersistentSource::Local(_) => Some("kubernetes.io/local-volume"),
            PersistentSource::Nfs(_) => Some("kubernetes.io/nfs"),
            PersistentSource::Csi(_) => Some("kubernetes.io/csi"),
            PersistentSource::Migrated(_) | PersistentSource::Unsupported(_) => None,
        }
    }
}

/// What an entry of a projected volume is made from.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ProjectedSource<'a> {
    ConfigMap(&'a k8s::ConfigMapProjection),
    Secret(&'a k8s::SecretProjection),
    DownwardApi(&'a k8s::DownwardAPIProjection),
    ServiceAccountToken(&'a k8s::ServiceAccountTokenProjection),
    ClusterTrustBundle(&'a k8s::ClusterTrustBundleProjection),
    PodCertificate(&'a k8s::PodCertificateProjection),
}

impl<'a> ProjectedSource<'a> {
    /// `None`: the entry names no source.
    pub fn of(projection: &'a k8s::VolumeProjection) -> Option<Self> {
        Self::given(projection).next()
    }

    /// All sources that the entry has; a valid one has a single source.
    pub fn given(projection: &'a k8s::VolumeProjection) -> impl Iterator<Item = Self> {
        use ProjectedSource as S;
        let k8s::VolumeProjection {
            cluster_trust_bundle,
            config_map,
            downward_api,
            pod_certificate,
            secret,
            service_account_token,
        } = projection;
        let sources = [
            config_map.as_ref().map(S::ConfigMap),
            secret.as_ref().map(S::Secret),
            downward_api.as_ref().map(S::DownwardApi),
            service_account_token.as_ref().map(S::ServiceAccountToken),
            cluster_trust_bundle.as_ref().map(S::ClusterTrustBundle),
            pod_certificate.as_ref().map(S::PodCertificate),
        ];
        sources.into_iter().flatten()
    }

    /// The entries of a volume, in order. Only a projected volume has any.
    pub fn entries(volume: &'a k8s::Volume) -> impl Iterator<Item = &'a k8s::VolumeProjection> {
        volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten())
    }

    /// The sources of a volume's entries, in order. Only a projected volume has any.
    pub fn of_volume(volume: &'a k8s::Volume) -> impl Iterator<Item = Self> {
        Self::entries(volume).filter_map(Self::of)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Every field of the API's type, with the least that decodes.
    fn every_source() -> Value {
        json!({
            "emptyDir": {}, "hostPath": {"path": "/"}, "configMap": {}, "secret": {}, "downwardAPI": {},
            "projected": {}, "persistentVolumeClaim": {"claimName": "c"}, "ephemeral": {},
            "csi": {"driver": "d"}, "image": {}, "nfs": {"server": "s", "path": "/"},
            "awsElasticBlockStore": {"volumeID": "v"}, "azureDisk": {"diskName": "d", "diskURI": "u"},
            "azureFile": {"secretName": "s", "shareName": "s"}, "cephfs": {"monitors": []},
            "cinder": {"volumeID": "v"}, "fc": {}, "flexVolume": {"driver": "d"}, "flocker": {},
            "gcePersistentDisk": {"pdName": "p"}, "gitRepo": {"repository": "r"},
            "glusterfs": {"endpoints": "e", "path": "p"},
            "iscsi": {"targetPortal": "t", "iqn": "i", "lun": 0}, "photonPersistentDisk": {"pdID": "p"},
            "portworxVolume": {"volumeID": "v"}, "quobyte": {"registry": "r", "volume": "v"},
            "rbd": {"monitors": [], "image": "i"},
            "scaleIO": {"gateway": "g", "system": "s", "secretRef": {}}, "storageos": {},
            "vsphereVolume": {"volumePath": "p"},
        })
    }

    #[test]
    fn every_source_has_the_name_of_its_field() {
        let every = every_source();
        for (field, source) in every.as_object().unwrap() {
            let volume: k8s::Volume = serde_json::from_value(json!({"name": "v", field: source})).unwrap();
            assert_eq!(VolumeSource::of(&volume).field(), field);
            assert_eq!(VolumeSource::given(&volume).count(), 1, "{field}");
        }
        let mut all = every;
        all["name"] = json!("v");
        let all: k8s::Volume = serde_json::from_value(all).unwrap();
        assert_eq!(VolumeSource::given(&all).count(), 30);
    }

    #[test]
    fn a_volume_without_a_source_is_an_empty_dir() {
        let volume = k8s::Volume { name: "v".into(), ..Default::default() };
        assert_eq!(VolumeSource::of(&volume), VolumeSource::EmptyDir(None));
        assert_eq!(VolumeSource::given(&volume).count(), 0);
    }

    #[test]
    fn every_persistent_source_has_the_name_of_its_field() {
        let mut every = every_source();
        let every = every.as_object_mut().unwrap();
        let only_in_pods = [
            "emptyDir",
            "configMap",
            "secret",
            "downwardAPI",
            "projected",
            "persistentVolumeClaim",
            "ephemeral",
            "image",
            "gitRepo",
        ];
        every.retain(|field, _| !only_in_pods.contains(&field.as_str()));
        every.insert("local".into(), json!({"path": "/"}));
        every.insert("csi".into(), json!({"driver": "d", "volumeHandle": "h"}));
        assert_eq!(every.len(), 22);
        for (field, source) in every {
            let spec: k8s::PersistentVolumeSpec = serde_json::from_value(json!({field: source})).unwrap();
            assert_eq!(PersistentSource::of(&spec).field(), field);
        }
        assert_eq!(PersistentSource::of(&Default::default()).field(), "unknown");
    }
}
