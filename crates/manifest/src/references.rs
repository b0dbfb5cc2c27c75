//! Refuses static pods that refer to API objects: a static pod must not depend on an API server.

use k8s_openapi::api::core::v1::{
    EnvFromSource, EnvVar, EnvVarSource, LocalObjectReference, Pod, PodSpec, Volume, VolumeProjection,
};
use model::volume_source::{MigratedSource, ProjectedSource, UnsupportedSource, VolumeSource};

/// Which objects a static pod may refer to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReferencePolicy {
    /// No API objects.
    Deny,
    /// All API objects except those that `check_always_refused` names.
    Allow,
    /// Only objects that can be read from manifest files (standalone mode).
    AllowLocal,
}

/// Which features a static pod may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StaticPodRules {
    pub references: ReferencePolicy,
    /// `hostUsers: false` is allowed together with `hostNetwork` (the gate `UserNamespacesHostNetworkSupport`).
    pub user_namespace_with_host_network: bool,
}

impl From<ReferencePolicy> for StaticPodRules {
    fn from(references: ReferencePolicy) -> Self {
        Self { references, user_namespace_with_host_network: false }
    }
}

pub fn check(pod: &Pod, allowed: ReferencePolicy) -> Result<(), String> {
    match allowed {
        ReferencePolicy::Deny => check_references(pod),
        ReferencePolicy::Allow => check_always_refused(pod),
        ReferencePolicy::AllowLocal => check_references(&without_local(pod)),
    }
}

/// The pod without references to objects that can be read from files.
fn without_local(pod: &Pod) -> Pod {
    let mut pod = pod.clone();
    let Some(spec) = &mut pod.spec else { return pod };
    spec.image_pull_secrets = None;
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        container.env_from = None;
        for variable in container.env.iter_mut().flatten() {
            variable.value_from = None;
        }
    }
    for volume in spec.volumes.iter_mut().flatten() {
        for source in volume.projected.iter_mut().flat_map(|p| p.sources.iter_mut().flatten()) {
            if source.config_map.take().is_some() || source.secret.take().is_some() {
                source.downward_api.get_or_insert_default();
            }
        }
    }
    let local = |source: VolumeSource<'_>| {
        matches!(
            source,
            VolumeSource::ConfigMap(_) | VolumeSource::Secret(_) | VolumeSource::PersistentVolumeClaim(_)
        )
    };
    if let Some(volumes) = &mut spec.volumes {
        volumes.retain(|volume| !VolumeSource::given(volume).any(local));
    }
    pod
}

/// Refuses the first reference to an API object, in the order in which the reference kubelet looks for them.
fn check_references(pod: &Pod) -> Result<(), String> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    match first_reference(spec)? {
        Some(object) => Err(format!("static pods may not reference {object}")),
        None => Ok(()),
    }
}

/// Refuses what is not allowed even where references are allowed.
fn check_always_refused(pod: &Pod) -> Result<(), String> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    let mut volumes = spec.volumes.iter().flatten();
    let is_bundle = |source: ProjectedSource<'_>| matches!(source, ProjectedSource::ClusterTrustBundle(_));
    if volumes.any(|volume| projections(volume).any(is_bundle)) {
        return Err("static pods may not use ClusterTrustBundle projected volume sources".to_owned());
    }
    if has_resource_claims(spec) {
        return Err("static pods may not use ResourceClaims".to_owned());
    }
    Ok(())
}

fn first_reference(spec: &PodSpec) -> Result<Option<&'static str>, String> {
    if spec.service_account_name.as_ref().is_some_and(|name| !name.is_empty()) {
        return Ok(Some("serviceaccounts"));
    }
    if names_a_secret(spec) {
        return Ok(Some("secrets"));
    }
    if names_a_config_map(spec) {
        return Ok(Some("configmaps"));
    }
    if has_resource_claims(spec) {
        return Ok(Some("resourceclaims"));
    }
    for volume in spec.volumes.iter().flatten() {
        if let Some(object) = volume_reference(volume)? {
            return Ok(Some(object));
        }
    }
    Ok(None)
}

fn has_resource_claims(spec: &PodSpec) -> bool {
    spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty())
}

fn names_a_secret(spec: &PodSpec) -> bool {
    let in_variable =
        |source: &EnvVarSource| source.secret_key_ref.as_ref().is_some_and(|key| !key.name.is_empty());
    let in_import =
        |import: &EnvFromSource| import.secret_ref.as_ref().is_some_and(|from| !from.name.is_empty());
    spec.image_pull_secrets.iter().flatten().any(|secret| !secret.name.is_empty())
        || imports(spec).any(in_import)
        || variable_sources(spec).any(in_variable)
        || spec.volumes.iter().flatten().any(volume_names_a_secret)
}

fn volume_names_a_secret(volume: &Volume) -> bool {
    let named =
        |reference: &Option<LocalObjectReference>| reference.as_ref().is_some_and(|to| !to.name.is_empty());
    let projected = |source: ProjectedSource<'_>| match source {
        ProjectedSource::Secret(secret) => !secret.name.is_empty(),
        _ => false,
    };
    VolumeSource::given(volume).any(|source| match source {
        VolumeSource::Secret(source) => source.secret_name.as_ref().is_some_and(|name| !name.is_empty()),
        VolumeSource::Csi(source) => named(&source.node_publish_secret_ref),
        VolumeSource::Projected(_) => projections(volume).any(projected),
        VolumeSource::Migrated(source) => match source {
            MigratedSource::AzureFile(source) => !source.secret_name.is_empty(),
            MigratedSource::Cinder(source) => named(&source.secret_ref),
            MigratedSource::AwsElasticBlockStore(_)
            | MigratedSource::AzureDisk(_)
            | MigratedSource::GcePersistentDisk(_)
            | MigratedSource::PortworxVolume(_)
            | MigratedSource::VsphereVolume(_) => false,
        },
        VolumeSource::Unsupported(source) => match source {
            UnsupportedSource::Cephfs(source) => named(&source.secret_ref),
            UnsupportedSource::FlexVolume(source) => named(&source.secret_ref),
            UnsupportedSource::Iscsi(source) => named(&source.secret_ref),
            UnsupportedSource::Rbd(source) => named(&source.secret_ref),
            UnsupportedSource::ScaleIo(source) => !source.secret_ref.name.is_empty(),
            UnsupportedSource::Storageos(source) => named(&source.secret_ref),
            UnsupportedSource::Fc(_)
            | UnsupportedSource::Flocker(_)
            | UnsupportedSource::GitRepo(_)
            | UnsupportedSource::Glusterfs(_)
            | UnsupportedSource::PhotonPersistentDisk(_)
            | UnsupportedSource::Quobyte(_) => false,
        },
        VolumeSource::EmptyDir(_)
        | VolumeSource::HostPath(_)
        | VolumeSource::ConfigMap(_)
        | VolumeSource::DownwardApi(_)
        | VolumeSource::PersistentVolumeClaim(_)
        | VolumeSource::Ephemeral(_)
        | VolumeSource::Image(_)
        | VolumeSource::Nfs(_) => false,
    })
}

fn names_a_config_map(spec: &PodSpec) -> bool {
    let in_variable =
        |source: &EnvVarSource| source.config_map_key_ref.as_ref().is_some_and(|key| !key.name.is_empty());
    let in_import =
        |import: &EnvFromSource| import.config_map_ref.as_ref().is_some_and(|from| !from.name.is_empty());
    let in_entry = |source: ProjectedSource<'_>| match source {
        ProjectedSource::ConfigMap(map) => !map.name.is_empty(),
        _ => false,
    };
    let in_volume = |volume: &Volume| {
        volume.config_map.as_ref().is_some_and(|map| !map.name.is_empty())
            || projections(volume).any(in_entry)
    };
    imports(spec).any(in_import)
        || variable_sources(spec).any(in_variable)
        || spec.volumes.iter().flatten().any(in_volume)
}

/// `envFrom` of every kind of container.
fn imports(spec: &PodSpec) -> impl Iterator<Item = &EnvFromSource> {
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    containers
        .map(|container| &container.env_from)
        .chain(ephemeral.map(|container| &container.env_from))
        .flatten()
        .flatten()
}

/// `env[].valueFrom` of every kind of container.
fn variable_sources(spec: &PodSpec) -> impl Iterator<Item = &EnvVarSource> {
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let variables =
        containers.map(|container| &container.env).chain(ephemeral.map(|container| &container.env));
    variables.flatten().flatten().filter_map(|EnvVar { value_from, .. }| value_from.as_ref())
}

/// Every source of every entry, although an entry with several will be found invalid.
fn projections(volume: &Volume) -> impl Iterator<Item = ProjectedSource<'_>> {
    ProjectedSource::entries(volume).flat_map(ProjectedSource::given)
}

fn volume_reference(volume: &Volume) -> Result<Option<&'static str>, String> {
    let Some(source) = VolumeSource::given(volume).next() else {
        return Err(format!("unknown volume type for volume {:?}", volume.name));
    };
    let object = match source {
        VolumeSource::ConfigMap(_) => "configmaps (via configmap volumes)",
        VolumeSource::Secret(_) => "secrets (via secret volumes)",
        VolumeSource::Csi(_) => "csidrivers (via CSI volumes)",
        VolumeSource::Unsupported(UnsupportedSource::Glusterfs(_)) => "endpoints (via glusterFS volumes)",
        VolumeSource::PersistentVolumeClaim(_) => "persistentvolumeclaims",
        VolumeSource::Ephemeral(_) => "persistentvolumeclaims (via ephemeral volumes)",
        VolumeSource::Migrated(MigratedSource::AzureFile(_)) => "secrets (via azureFile volumes)",
        VolumeSource::Projected(_) => {
            for entry in ProjectedSource::entries(volume) {
                if let Some(object) = projection_reference(volume, entry)? {
                    return Ok(Some(object));
                }
            }
            return Ok(None);
        }
        VolumeSource::EmptyDir(_)
        | VolumeSource::HostPath(_)
        | VolumeSource::DownwardApi(_)
        | VolumeSource::Image(_)
        | VolumeSource::Nfs(_)
        | VolumeSource::Migrated(_)
        | VolumeSource::Unsupported(_) => return Ok(None),
    };
    Ok(Some(object))
}

fn projection_reference(volume: &Volume, entry: &VolumeProjection) -> Result<Option<&'static str>, String> {
    match ProjectedSource::of(entry) {
        Some(ProjectedSource::ConfigMap(_)) => Ok(Some("configmaps (via projected volumes)")),
        Some(ProjectedSource::Secret(_)) => Ok(Some("secrets (via projected volumes)")),
        Some(ProjectedSource::ServiceAccountToken(_)) => Ok(Some("serviceaccounts (via projected volumes)")),
        Some(ProjectedSource::ClusterTrustBundle(_)) => Ok(Some("clustertrustbundles")),
        Some(ProjectedSource::PodCertificate(_)) => Ok(Some("podcertificates")),
        Some(ProjectedSource::DownwardApi(_)) => Ok(None),
        None => Err(format!("unknown source for projected volume {:?}", volume.name)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(spec: Value, expect: Result<(), &str>) {
        let pod = model::codec::pod_from_value(json!({"spec": spec})).unwrap();
        let expect = expect.map_err(|object| format!("static pods may not reference {object}"));
        assert_eq!(check_references(&pod), expect, "{spec}");
    }

    fn check_volume(source: Value, expect: Result<(), &str>) {
        let mut volume = source;
        volume["name"] = json!("v");
        check(json!({"volumes": [volume]}), expect);
    }

    #[test]
    fn pods_without_references_pass() {
        check(json!({}), Ok(()));
        check(json!({"containers": [{"name": "c", "env": [{"name": "A", "value": "1"}]}]}), Ok(()));
        check(json!({"serviceAccountName": ""}), Ok(()));
        check(json!({"imagePullSecrets": [{"name": ""}]}), Ok(()));
        for source in [
            json!({"emptyDir": {}}),
            json!({"hostPath": {"path": "/x"}}),
            json!({"downwardAPI": {}}),
            json!({"image": {"reference": "x"}}),
            json!({"nfs": {"server": "s", "path": "/p"}}),
            json!({"iscsi": {"targetPortal": "t", "iqn": "i", "lun": 0}}),
            json!({"fc": {"wwids": ["w"]}}),
            json!({"rbd": {"monitors": ["m"], "image": "i"}}),
            json!({"projected": {"sources": [{"downwardAPI": {}}]}}),
            json!({"projected": {}}),
        ] {
            check_volume(source, Ok(()));
        }
    }

    #[test]
    fn the_service_account_comes_first() {
        check(
            json!({"serviceAccountName": "a", "imagePullSecrets": [{"name": "s"}]}),
            Err("serviceaccounts"),
        );
    }

    #[test]
    fn secrets_are_found_everywhere() {
        check(json!({"imagePullSecrets": [{"name": ""}, {"name": "s"}]}), Err("secrets"));
        let env = json!([{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]);
        let env_from = json!([{"secretRef": {"name": "s"}}]);
        for kind in ["containers", "initContainers", "ephemeralContainers"] {
            check(json!({kind: [{"name": "c", "env": env}]}), Err("secrets"));
            check(json!({kind: [{"name": "c", "envFrom": env_from}]}), Err("secrets"));
        }
        let secret = json!({"name": "s"});
        for source in [
            json!({"secret": {"secretName": "s"}}),
            json!({"azureFile": {"secretName": "s", "shareName": "x"}}),
            json!({"cephfs": {"monitors": [], "secretRef": secret}}),
            json!({"cinder": {"volumeID": "v", "secretRef": secret}}),
            json!({"flexVolume": {"driver": "d", "secretRef": secret}}),
            json!({"rbd": {"monitors": [], "image": "i", "secretRef": secret}}),
            json!({"scaleIO": {"gateway": "g", "system": "s", "secretRef": secret}}),
            json!({"iscsi": {"targetPortal": "t", "iqn": "i", "lun": 0, "secretRef": secret}}),
            json!({"storageos": {"secretRef": secret}}),
            json!({"csi": {"driver": "d", "nodePublishSecretRef": secret}}),
            json!({"projected": {"sources": [{"secret": secret}]}}),
        ] {
            check_volume(source, Err("secrets"));
        }
        // a secret anywhere wins over a config map anywhere
        check(
            json!({"volumes": [{"name": "a", "configMap": {"name": "m"}}, {"name": "b", "secret": {"secretName": "s"}}]}),
            Err("secrets"),
        );
    }

    #[test]
    fn config_maps_are_found_everywhere() {
        let env = json!([{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}]);
        for kind in ["containers", "initContainers", "ephemeralContainers"] {
            check(json!({kind: [{"name": "c", "env": env}]}), Err("configmaps"));
            check(
                json!({kind: [{"name": "c", "envFrom": [{"configMapRef": {"name": "m"}}]}]}),
                Err("configmaps"),
            );
        }
        check_volume(json!({"configMap": {"name": "m"}}), Err("configmaps"));
        check_volume(json!({"projected": {"sources": [{"configMap": {"name": "m"}}]}}), Err("configmaps"));
    }

    #[test]
    fn the_remaining_rows() {
        check(json!({"resourceClaims": [{"name": "r"}]}), Err("resourceclaims"));
        check_volume(json!({"csi": {"driver": "d"}}), Err("csidrivers (via CSI volumes)"));
        check_volume(
            json!({"glusterfs": {"endpoints": "e", "path": "p"}}),
            Err("endpoints (via glusterFS volumes)"),
        );
        check_volume(json!({"persistentVolumeClaim": {"claimName": "c"}}), Err("persistentvolumeclaims"));
        check_volume(json!({"ephemeral": {}}), Err("persistentvolumeclaims (via ephemeral volumes)"));
        check_volume(json!({"azureFile": {"shareName": "x"}}), Err("secrets (via azureFile volumes)"));
        check_volume(json!({"secret": {}}), Err("secrets (via secret volumes)"));
        check_volume(json!({"configMap": {}}), Err("configmaps (via configmap volumes)"));
        let projected = |source: Value| json!({"projected": {"sources": [{"downwardAPI": {}}, source]}});
        let token = json!({"serviceAccountToken": {"path": "t"}});
        check_volume(projected(token), Err("serviceaccounts (via projected volumes)"));
        check_volume(projected(json!({"clusterTrustBundle": {"path": "t"}})), Err("clustertrustbundles"));
        check_volume(projected(json!({"podCertificate": {}})), Err("podcertificates"));
        check_volume(projected(json!({"secret": {}})), Err("secrets (via projected volumes)"));
        check_volume(projected(json!({"configMap": {}})), Err("configmaps (via projected volumes)"));
    }

    #[test]
    fn unknown_sources_are_refused() {
        let refusal = |volume: Value| {
            check_references(&model::codec::pod_from_value(json!({"spec": {"volumes": [volume]}})).unwrap())
                .unwrap_err()
        };
        assert_eq!(refusal(json!({"name": "v"})), "unknown volume type for volume \"v\"");
        assert_eq!(
            refusal(json!({"name": "v", "projected": {"sources": [{}]}})),
            "unknown source for projected volume \"v\""
        );
    }

    #[test]
    fn some_references_are_never_allowed() {
        let check = |spec: Value, expect: Result<(), &str>| {
            let pod = model::codec::pod_from_value(json!({"spec": spec})).unwrap();
            assert_eq!(check_always_refused(&pod), expect.map_err(str::to_owned), "{spec}");
        };
        check(json!({"volumes": [{"name": "s", "secret": {"secretName": "s"}}]}), Ok(()));
        check(json!({"resourceClaims": [{"name": "r"}]}), Err("static pods may not use ResourceClaims"));
        check(
            json!({"volumes": [{"name": "p", "projected": {"sources": [{"clusterTrustBundle": {"path": "x"}}]}}]}),
            Err("static pods may not use ClusterTrustBundle projected volume sources"),
        );
    }

    #[test]
    fn without_a_cluster_files_tell_some_of_it() {
        let check = |spec: Value, expect: Result<(), &str>| {
            let pod = model::codec::pod_from_value(json!({"spec": spec})).unwrap();
            let expect = expect.map_err(|object| format!("static pods may not reference {object}"));
            assert_eq!(super::check(&pod, ReferencePolicy::AllowLocal), expect);
        };
        check(
            json!({
                "imagePullSecrets": [{"name": "s"}],
                "containers": [{
                    "name": "c", "envFrom": [{"secretRef": {"name": "s"}}],
                    "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}],
                }],
                "volumes": [
                    {"name": "a", "configMap": {"name": "m"}}, {"name": "b", "secret": {"secretName": "s"}},
                    {"name": "c", "persistentVolumeClaim": {"claimName": "x"}},
                    {"name": "d", "projected": {"sources": [{"configMap": {"name": "m"}}, {"secret": {"name": "s"}}]}},
                ],
            }),
            Ok(()),
        );
        let token = json!({"serviceAccountToken": {"path": "t"}});
        let projected = json!({"name": "d", "projected": {"sources": [{"configMap": {"name": "m"}}, token]}});
        check(
            json!({"containers": [], "volumes": [projected]}),
            Err("serviceaccounts (via projected volumes)"),
        );
        check(json!({"containers": [], "serviceAccountName": "sa"}), Err("serviceaccounts"));
        let ephemeral = json!({"name": "e", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}});
        check(
            json!({"containers": [], "volumes": [ephemeral]}),
            Err("persistentvolumeclaims (via ephemeral volumes)"),
        );
    }
}
