//! Limits on what a pod may keep on the node's own disk: `emptyDir.sizeLimit` and `limits.ephemeral-storage`.
//!
//! The kernel does not enforce them. Pods that have one are measured now and then; a pod that has outgrown one is
//! evicted. Volumes in memory are bounded by their filesystem and are not looked at.

use std::collections::BTreeMap;

use model::disk_usage::{DiskUsagePaths, PodDiskUsage};
use model::k8s;
use model::node::NodeConfig;
use model::observed::ObservedPod;
use model::pod::PodView;
use model::quantity::Quantity;

use crate::pod_volumes::{host_path, mounted_names};
use crate::resources::{EPHEMERAL_STORAGE, Overhead, container_limits, is_critical, pod_limits};

/// Usage of emptyDir volumes is asked of the filesystem instead of counted.
pub const QUOTA_GATE: &str = "LocalStorageCapacityIsolationFSQuotaMonitoring";

/// Whether the pod's volumes may be measured by project quotas. The owner of a file may change its project id, and so what
/// is counted, but not in a user namespace.
pub fn may_have_quotas(config: &NodeConfig, pod: &PodView) -> bool {
    config.feature(QUOTA_GATE) && pod.spec().host_users == Some(false)
}

/// Whether anything of the pod is limited, so that it has to be measured. Critical pods are never evicted.
pub(crate) fn is_limited(config: &NodeConfig, pod: &PodView) -> bool {
    let volumes = || pod.spec().volumes.iter().flatten().any(|volume| size_limit(volume).is_some());
    config.node_object.capacity.local_storage && !is_critical(pod) && (pod_limit(pod).is_some() || volumes())
}

/// Where what counts is found. `observed`: the containers that are there.
pub fn places(config: &NodeConfig, pod: &PodView, observed: &ObservedPod) -> DiskUsagePaths {
    let mut found = DiskUsagePaths { volumes: local_volumes(config, pod), ..DiskUsagePaths::default() };
    if pod_limit(pod).is_none() {
        return found;
    }
    let logs = config.pod_log_dir(&pod.full_name, &pod.uid);
    for (_, container) in pod.all_containers() {
        found.logs.insert(container.name.clone(), format!("{logs}/{}", container.name));
        if let Some(newest) = observed.newest(&container.name) {
            found.layers.insert(container.name.clone(), newest.id.clone());
        }
    }
    if !pod.host_network() {
        found.hosts = Some(format!("{}/etc-hosts", config.pod_dir(&pod.uid)));
    }
    found
}

/// The directories of mounted volumes whose bytes are on the node's disk and go with the pod, by the volume's name.
pub(crate) fn local_volumes(config: &NodeConfig, pod: &PodView) -> BTreeMap<String, String> {
    let mounted = mounted_names(pod);
    let local = pod.spec().volumes.iter().flatten();
    let local = local.filter(|volume| is_local(volume) && mounted.contains(volume.name.as_str()));
    let path = |volume: &k8s::Volume| host_path(config, pod, volume).ok().map(|source| source.path);
    local.filter_map(|volume| Some((volume.name.clone(), path(volume)?))).collect()
}

/// A limit that the pod has outgrown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExceededLimit {
    /// The kubelet's word for the limit.
    pub signal: &'static str,
    /// What the pod is evicted with.
    pub message: String,
}

/// `None`: the pod keeps no more than it may.
pub(crate) fn exceeded_limit(pod: &PodView, used: &PodDiskUsage) -> Option<ExceededLimit> {
    for volume in pod.spec().volumes.iter().flatten() {
        let Some(limit) = size_limit(volume) else { continue };
        if used.volumes.get(&volume.name).is_some_and(|bytes| exceeds(*bytes, &limit)) {
            let name = &volume.name;
            let message = format!("Usage of EmptyDir volume {name:?} exceeds the limit \"{limit}\". ");
            return Some(ExceededLimit { signal: "emptydirfs.limit", message });
        }
    }
    if let Some(limit) = pod_limit(pod)
        && exceeds(used.total(), &limit)
    {
        let message =
            format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. ");
        return Some(ExceededLimit { signal: "ephemeralpodfs.limit", message });
    }
    pod.all_containers().find_map(|(_, container)| {
        let limits = container_limits(container);
        let limit = limits.get(EPHEMERAL_STORAGE).filter(|limit| !limit.is_zero())?;
        let of = |part: &BTreeMap<String, u64>| part.get(&container.name).copied().unwrap_or(0);
        let name = &container.name;
        exceeds(of(&used.logs).saturating_add(of(&used.layers)), &limit).then(|| ExceededLimit {
            signal: "ephemeralcontainerfs.limit",
            message: format!("Container {name} exceeded its local ephemeral storage limit \"{limit}\". "),
        })
    })
}

fn exceeds(bytes: u64, limit: &Quantity) -> bool {
    i64::try_from(bytes).unwrap_or(i64::MAX) > limit.value()
}

/// Of an emptyDir on disk.
fn size_limit(volume: &k8s::Volume) -> Option<Quantity> {
    let source = volume.empty_dir.as_ref().filter(|_| is_local(volume))?;
    let limit = Quantity::try_from(source.size_limit.as_ref()?).ok()?;
    (limit.value() > 0).then_some(limit)
}

fn pod_limit(pod: &PodView) -> Option<Quantity> {
    pod_limits(pod, Overhead::Excluded).get(EPHEMERAL_STORAGE).filter(|limit| !limit.is_zero())
}

/// Its bytes are on the node's disk and go with the pod.
fn is_local(volume: &k8s::Volume) -> bool {
    let on_disk =
        |source: &k8s::EmptyDirVolumeSource| source.medium.as_deref().unwrap_or_default().is_empty();
    volume.empty_dir.as_ref().is_some_and(on_disk) || volume.config_map.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::sample;
    use serde_json::{Value, json};

    fn pod(spec: Value) -> PodView {
        sample::pod(spec)
    }

    fn used(
        volumes: &[(&str, u64)],
        logs: &[(&str, u64)],
        layers: &[(&str, u64)],
        hosts: u64,
    ) -> PodDiskUsage {
        let map =
            |parts: &[(&str, u64)]| parts.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes)).collect();
        PodDiskUsage { volumes: map(volumes), logs: map(logs), layers: map(layers), hosts }
    }

    fn container(name: &str, limit: Option<&str>, mounts: &[&str]) -> Value {
        let mounts: Vec<Value> =
            mounts.iter().map(|name| json!({"name": name, "mountPath": format!("/{name}")})).collect();
        let limits = limit.map_or(json!({}), |limit| json!({"ephemeral-storage": limit}));
        json!({"name": name, "image": "i", "volumeMounts": mounts, "resources": {"limits": limits}})
    }

    #[test]
    fn only_pods_with_a_limit_are_measured() {
        let limited = |spec: Value| is_limited(&NodeConfig::default(), &pod(spec));
        let with = |volume: Value| json!({"containers": [container("c", None, &["v"])], "volumes": [volume]});
        assert!(!limited(json!({"containers": [container("c", None, &[])]})));
        assert!(limited(json!({"containers": [container("c", Some("1Mi"), &[])]})));
        assert!(!limited(with(json!({"name": "v", "emptyDir": {}}))));
        assert!(!limited(with(json!({"name": "v", "emptyDir": {"sizeLimit": "0"}}))));
        assert!(limited(with(json!({"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}))));
        assert!(!limited(with(json!({"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}))));
        let mut config = NodeConfig::default();
        let spec = with(json!({"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}));
        config.node_object.capacity.local_storage = false;
        assert!(!is_limited(&config, &pod(spec.clone())));
        assert!(!is_limited(&NodeConfig::default(), &sample::static_pod(spec)), "critical");
    }

    #[test]
    fn looks_where_what_counts_is() {
        let spec = json!({
            "containers": [container("c", None, &["v", "m", "map", "h"])],
            "volumes": [
                {"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}, {"name": "unused", "emptyDir": {}},
                {"name": "m", "emptyDir": {"medium": "Memory"}}, {"name": "map", "configMap": {"name": "map"}},
                {"name": "h", "hostPath": {"path": "/"}},
            ],
        });
        let config = NodeConfig::default();
        let look =
            |pod: &PodView| places(&config, pod, &ObservedPod::empty(pod.uid.clone(), pod.full_name.clone()));
        let found = look(&pod(spec));
        assert_eq!(found.volumes.keys().collect::<Vec<_>>(), ["map", "v"]);
        assert!(found.volumes["v"].ends_with("/volumes/kubernetes.io~empty-dir/v"), "{found:?}");
        assert!(found.logs.is_empty() && found.hosts.is_none(), "only the volume is limited: {found:?}");
        let limited = pod(json!({"containers": [container("c", Some("1Mi"), &[])]}));
        let found = look(&limited);
        assert!(found.logs["c"].ends_with("/c"), "{found:?}");
        assert!(found.hosts.unwrap().ends_with("/etc-hosts"));
    }

    #[test]
    fn who_uses_too_much_is_told_so() {
        let volumes = json!([{"name": "v", "emptyDir": {"sizeLimit": "10"}}, {"name": "w", "emptyDir": {}}]);
        let spec = |a: Option<&str>, b: Option<&str>| {
            pod(
                json!({"containers": [container("a", a, &["v", "w"]), container("b", b, &[])], "volumes": volumes}),
            )
        };
        let volume = "Usage of EmptyDir volume \"v\" exceeds the limit \"10\". ";
        let total = "Pod ephemeral local storage usage exceeds the total limit of containers 100. ";
        let own = "Container a exceeded its local ephemeral storage limit \"40\". ";
        let none = spec(None, None);
        let both = spec(Some("40"), Some("60"));
        for (pod, used, expect) in [
            (&none, used(&[("v", 10)], &[], &[], 0), None),
            (&none, used(&[("v", 11)], &[], &[], 0), Some(volume)),
            (&none, used(&[("w", 1 << 40)], &[("a", 1 << 40)], &[], 1 << 40), None),
            (&none, used(&[], &[], &[], 0), None),
            (&both, used(&[("v", 11), ("w", 200)], &[], &[], 0), Some(volume)),
            (&both, used(&[("w", 50)], &[("b", 20)], &[("b", 20)], 10), None),
            (&both, used(&[("w", 51)], &[("b", 20)], &[("b", 20)], 10), Some(total)),
            // The hosts file counts: containers may write to it without bound (CVE-2020-8557).
            (&both, used(&[], &[], &[], 101), Some(total)),
            (&both, used(&[], &[("a", 20)], &[("a", 20)], 0), None),
            (&both, used(&[], &[("a", 20)], &[("a", 21)], 0), Some(own)),
            (&both, used(&[], &[("a", 41)], &[], 0), Some(own)),
        ] {
            assert_eq!(
                exceeded_limit(pod, &used).as_ref().map(|found| found.message.as_str()),
                expect,
                "{used:?}"
            );
        }
    }
}
