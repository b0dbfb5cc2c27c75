//! What a pod's definition names.

use model::volume_source::{ProjectedSource, VolumeSource};
use std::collections::BTreeSet;

use model::cluster::{ObjectKey, ObjectKind, PodTokenRequest};
use model::k8s::{Container, ServiceAccountTokenProjection, Volume};
use model::pod::PodView;

use crate::pod_volumes::mounted_names;

/// A token that does not say how long it should last.
const DEFAULT_TOKEN_SECS: i64 = 3600;

#[derive(Clone, PartialEq, Debug, Default)]
pub struct ReferencedObjects {
    pub objects: BTreeSet<ObjectKey>,
    pub tokens: BTreeSet<PodTokenRequest>,
}

/// Everything that the pod needs: variables of all its containers, volumes that one of them mounts, pull secrets.
pub fn referenced_objects(pod: &PodView) -> ReferencedObjects {
    let mut found = ReferencedObjects::default();
    let key = |kind, name: &str| {
        let (namespace, name) = (pod.namespace().to_owned(), name.to_owned());
        ObjectKey { kind, namespace, name }
    };
    let spec = pod.spec();
    let containers = pod.init_containers().iter().chain(pod.containers()).chain(pod.ephemeral_containers());
    for container in containers {
        found.objects.extend(objects_of_env(container).iter().map(|(kind, name)| key(*kind, name)));
    }
    let mounted = mounted_names(pod);
    for volume in spec.volumes.iter().flatten().filter(|volume| mounted.contains(volume.name.as_str())) {
        found.objects.extend(objects_of_volume(volume).iter().map(|(kind, name)| key(*kind, name)));
        found.tokens.extend(ProjectedSource::of_volume(volume).filter_map(|source| match source {
            ProjectedSource::ServiceAccountToken(token) => Some(token_request_of_projection(pod, token)),
            _ => None,
        }));
    }
    found.objects.extend(pull_secrets(pod).map(|name| key(ObjectKind::Secret, name)));
    found.objects.retain(|key| !key.name.is_empty());
    found
}

/// Entries without a name are let through by the API, and mean nothing.
pub fn pull_secrets(pod: &PodView) -> impl Iterator<Item = &str> {
    let references = pod.spec().image_pull_secrets.iter().flatten();
    references.map(|reference| reference.name.as_str()).filter(|name| !name.is_empty())
}

pub fn token_request_of_projection(pod: &PodView, source: &ServiceAccountTokenProjection) -> PodTokenRequest {
    PodTokenRequest {
        namespace: pod.namespace().to_owned(),
        service_account: pod.spec().service_account_name.clone().unwrap_or_default(),
        account_uid: None,
        audiences: source.audience.iter().filter(|audience| !audience.is_empty()).cloned().collect(),
        expiration_secs: source.expiration_seconds.unwrap_or(DEFAULT_TOKEN_SECS),
        pod_name: pod.name().to_owned(),
        pod_uid: pod.uid.clone(),
    }
}

pub(super) fn objects_of_env(container: &Container) -> Vec<(ObjectKind, &str)> {
    let mut found = Vec::new();
    for source in container.env_from.iter().flatten() {
        let map = source.config_map_ref.iter().map(|r| (ObjectKind::ConfigMap, r.name.as_str()));
        found.extend(map.chain(source.secret_ref.iter().map(|r| (ObjectKind::Secret, r.name.as_str()))));
    }
    for source in container.env.iter().flatten().filter_map(|variable| variable.value_from.as_ref()) {
        let map = source.config_map_key_ref.iter().map(|r| (ObjectKind::ConfigMap, r.name.as_str()));
        found.extend(map.chain(source.secret_key_ref.iter().map(|r| (ObjectKind::Secret, r.name.as_str()))));
    }
    found
}

fn objects_of_volume(volume: &Volume) -> Vec<(ObjectKind, &str)> {
    match VolumeSource::of(volume) {
        VolumeSource::ConfigMap(source) => vec![(ObjectKind::ConfigMap, source.name.as_str())],
        VolumeSource::Secret(source) => {
            source.secret_name.iter().map(|name| (ObjectKind::Secret, name.as_str())).collect()
        }
        VolumeSource::Projected(_) => {
            ProjectedSource::of_volume(volume).filter_map(object_of_entry).collect()
        }
        VolumeSource::EmptyDir(_)
        | VolumeSource::HostPath(_)
        | VolumeSource::DownwardApi(_)
        | VolumeSource::PersistentVolumeClaim(_)
        | VolumeSource::Ephemeral(_)
        | VolumeSource::Csi(_)
        | VolumeSource::Image(_)
        | VolumeSource::Nfs(_)
        | VolumeSource::Migrated(_)
        | VolumeSource::Unsupported(_) => vec![],
    }
}

fn object_of_entry(source: ProjectedSource<'_>) -> Option<(ObjectKind, &str)> {
    match source {
        ProjectedSource::ConfigMap(map) => Some((ObjectKind::ConfigMap, map.name.as_str())),
        ProjectedSource::Secret(secret) => Some((ObjectKind::Secret, secret.name.as_str())),
        ProjectedSource::DownwardApi(_)
        | ProjectedSource::ServiceAccountToken(_)
        | ProjectedSource::ClusterTrustBundle(_)
        | ProjectedSource::PodCertificate(_) => None,
    }
}
