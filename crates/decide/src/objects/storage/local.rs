//! Claims of a node without a cluster: each is bound to a directory below the root directory, which outlives its pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::k8s::{
    LocalVolumeSource, ObjectMeta, ObjectReference, PersistentVolume, PersistentVolumeClaim,
    PersistentVolumeClaimStatus, PersistentVolumeSpec,
};
use model::storage::{StorageKey, StorageObject, StorageState};

/// Below the root directory. Nothing in it is ever removed by the agent.
const DIRECTORY: &str = "local-volumes";

/// The claim as if somebody had bound it, and the volume that it is bound to.
pub fn bound(claim: &Arc<PersistentVolumeClaim>, root_dir: &str) -> [(StorageKey, StorageObject); 2] {
    let name = claim.metadata.name.clone().unwrap_or_default();
    let namespace = claim.metadata.namespace.clone().unwrap_or_default();
    // A namespace has no dot in it: no two claims share a volume.
    let volume_name = format!("{namespace}.{name}");
    let uid = format!("local-{volume_name}");
    let mut claim = PersistentVolumeClaim::clone(claim);
    claim.metadata.uid = Some(uid.clone());
    let spec = claim.spec.get_or_insert_default();
    spec.volume_name = Some(volume_name.clone());
    let access_modes = spec.access_modes.clone();
    claim.status = Some(PersistentVolumeClaimStatus { phase: Some("Bound".into()), ..Default::default() });
    let reference = ObjectReference {
        namespace: Some(namespace.clone()),
        name: Some(name.clone()),
        uid: Some(uid),
        ..ObjectReference::default()
    };
    let volume = PersistentVolume {
        metadata: ObjectMeta { name: Some(volume_name.clone()), ..ObjectMeta::default() },
        spec: Some(PersistentVolumeSpec {
            access_modes,
            claim_ref: Some(reference),
            local: Some(LocalVolumeSource {
                path: format!("{root_dir}/{DIRECTORY}/{namespace}/{name}"),
                ..LocalVolumeSource::default()
            }),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    };
    [
        (StorageKey::Claim { namespace, name }, StorageObject::Claim(Arc::new(claim))),
        (StorageKey::Volume { name: volume_name }, StorageObject::Volume(Arc::new(volume))),
    ]
}

pub fn state(told: &BTreeMap<StorageKey, StorageObject>, key: &StorageKey) -> StorageState {
    let absent = || StorageState::Absent {
        message: format!("{}s {:?} not found in the manifests", key.word(), key.name()),
    };
    told.get(key).cloned().map_or_else(absent, StorageState::Present)
}
