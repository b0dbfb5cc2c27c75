//! What a pod's definition names.

use std::collections::BTreeSet;

use model::cluster::{ObjectKey, ObjectKind, PodTokenRequest};
use model::k8s::{Container, ServiceAccountTokenProjection, Volume};
use model::pod::PodView;

use crate::volumes::mounted_names;

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
        let sources = volume.projected.iter().flat_map(|p| p.sources.iter().flatten());
        let tokens = sources.filter_map(|source| source.service_account_token.as_ref());
        found.tokens.extend(tokens.map(|token| token_request_of_projection(pod, token)));
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
    let mut found = Vec::new();
    found.extend(volume.config_map.iter().map(|source| (ObjectKind::ConfigMap, source.name.as_str())));
    let secret = volume.secret.iter().filter_map(|source| source.secret_name.as_deref());
    found.extend(secret.map(|name| (ObjectKind::Secret, name)));
    for source in volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten()) {
        found.extend(source.config_map.iter().map(|map| (ObjectKind::ConfigMap, map.name.as_str())));
        found.extend(source.secret.iter().map(|secret| (ObjectKind::Secret, secret.name.as_str())));
    }
    found
}
