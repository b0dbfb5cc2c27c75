//! Which cgroup a pod lives in, and what is written there.
//!
//! ```text
//! <cgroupRoot>/kubepods             everything that pods use
//!   pod<uid>                        Guaranteed
//!   burstable/pod<uid>              Burstable
//!   besteffort/pod<uid>             BestEffort
//! ```

use model::PodUid;
use model::cgroup::{CgroupName, CgroupSpec, CgroupValues};
use model::node::{CgroupVersion, HostFacts, NodeConfig};
use model::pod::{PodView, QosClass};

use crate::resources::{
    MIN_SHARES, Overhead, cpu_quota, cpu_shares, limits_by_page_size, limits_declared, pod_limits,
    pod_requests, qos_class, quota_period_micros,
};

/// The cgroup above all pods.
pub fn kubepods(config: &NodeConfig) -> CgroupName {
    CgroupName(config.cgroup_root.clone()).child("kubepods")
}

/// The cgroup above all pods of a class.
pub fn qos_cgroup(config: &NodeConfig, class: QosClass) -> CgroupName {
    match class {
        QosClass::Guaranteed => kubepods(config),
        QosClass::Burstable => kubepods(config).child("burstable"),
        QosClass::BestEffort => kubepods(config).child("besteffort"),
    }
}

/// The pod's own cgroup; none when cgroups per class are turned off.
pub fn pod_cgroup(config: &NodeConfig, pod: &PodView) -> Option<CgroupName> {
    config.cgroups_per_qos.then(|| qos_cgroup(config, qos_class(pod)).child(format!("pod{}", pod.uid)))
}

/// The cgroup parent of a sandbox: the pod's cgroup in the notation of the cgroup driver, or empty.
pub fn cgroup_parent(config: &NodeConfig, pod: &PodView) -> String {
    pod_cgroup(config, pod).map(|name| name.to_path(config.cgroup_driver)).unwrap_or_default()
}

/// A cgroup of a pod or below it, as the path says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PodPath<'a> {
    pub uid: PodUid,
    /// The container or the sandbox.
    pub container: Option<&'a str>,
}

/// Whose cgroup a path belongs to, whichever driver spelled it, and wherever `cgroupRoot` is.
pub(crate) fn pod_of_path(path: &str) -> Option<PodPath<'_>> {
    let mut parts = path.split('/');
    // The outermost: what is below it was named by the runtime, or by processes of the pod.
    let uid = parts.find_map(|part| match part.strip_suffix(".slice") {
        // Dashes are levels there, so those of the UID are spelled otherwise.
        Some(slice) => slice.rsplit_once("-pod").map(|(_, uid)| PodUid::from(uid.replace('_', "-"))),
        None => part.strip_prefix("pod").map(PodUid::from),
    });
    let container = parts.next().map(|part| part.strip_suffix(".scope").unwrap_or(part));
    let container = container.map(|name| name.rsplit_once('-').map_or(name, |(_, id)| id));
    Some(PodPath {
        uid: uid.filter(|uid| !uid.as_str().is_empty())?,
        container: container.filter(|id| !id.is_empty()),
    })
}

/// The pod's cgroup with its values, written when it is made and when the pod is resized.
pub(crate) fn pod_cgroup_spec(config: &NodeConfig, facts: &HostFacts, pod: &PodView) -> Option<CgroupSpec> {
    let name = pod_cgroup(config, pod)?;
    Some(CgroupSpec { name, values: pod_values(config, facts, pod) })
}

fn pod_values(config: &NodeConfig, facts: &HostFacts, pod: &PodView) -> CgroupValues {
    let requests = pod_requests(pod, Overhead::Included);
    let limits = pod_limits(pod, Overhead::Included);
    let class = qos_class(pod);
    let declared = limits_declared(pod);
    // a burstable pod is only capped as a whole when each part of it is
    let (cap_cpu, cap_memory) = match class {
        QosClass::Guaranteed => (true, true),
        QosClass::Burstable => (declared.cpu, declared.memory),
        QosClass::BestEffort => (false, false),
    };
    let period = quota_period_micros(config);
    let quota = if config.cpu_cfs_quota { cpu_quota(limits.cpu_millis(), period) } else { -1 };
    let shares = if class == QosClass::BestEffort { MIN_SHARES } else { cpu_shares(requests.cpu_millis()) };
    let (memory_min, memory_low) = protected(config, facts, class, requests.memory_bytes());
    CgroupValues {
        cpu_shares: Some(shares),
        memory_min,
        memory_low,
        cpu_quota: cap_cpu.then_some(quota),
        cpu_period: cap_cpu.then(|| period.unsigned_abs()),
        memory_limit: cap_memory.then(|| limits.memory_bytes()),
        pids_limit: (config.pod_pids_limit > 0).then_some(config.pod_pids_limit),
        hugepage_limits: limits_by_page_size(&requests, &facts.hugepage_sizes),
    }
}

/// With the policy `TieredReservation`: what the pod requests is not taken from it, or taken last.
fn protected(
    config: &NodeConfig,
    facts: &HostFacts,
    class: QosClass,
    request: i64,
) -> (Option<u64>, Option<u64>) {
    let tiered = config.allocatable.memory_qos.as_ref().is_some_and(|qos| qos.tiered);
    let request = u64::try_from(request).ok().filter(|bytes| *bytes > 0);
    match (request.filter(|_| tiered && facts.cgroup_version == CgroupVersion::V2), class) {
        (None, _) => (None, None),
        (Some(bytes), QosClass::Guaranteed) => (Some(bytes), None),
        (Some(bytes), QosClass::Burstable | QosClass::BestEffort) => (None, Some(bytes)),
    }
}

/// The memory that a pod as a whole is held to, if it is.
pub(crate) fn pod_memory_limit(config: &NodeConfig, facts: &HostFacts, pod: &PodView) -> Option<i64> {
    pod_values(config, facts, pod).memory_limit.filter(|limit| *limit > 0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use model::cgroup::CgroupDriver;
    use serde_json::{Value, json};

    use super::*;
    use crate::render::sample;

    fn container(requests: Value, limits: Value) -> Value {
        json!({"name": "c", "resources": {"requests": requests, "limits": limits}})
    }

    fn guaranteed() -> Value {
        let full = json!({"cpu": "100m", "memory": "64Mi"});
        json!({"containers": [container(full.clone(), full)]})
    }

    fn burstable() -> Value {
        json!({"containers": [container(json!({"cpu": "250m"}), json!({"memory": "64Mi"}))]})
    }

    fn best_effort() -> Value {
        json!({"containers": [{"name": "c"}]})
    }

    #[test]
    fn names_by_class_and_driver() {
        let check = |spec: Value, driver, root: &[&str], expect: &str| {
            let config = NodeConfig {
                cgroup_driver: driver,
                cgroup_root: root.iter().map(|part| part.to_string()).collect(),
                ..sample::config()
            };
            assert_eq!(cgroup_parent(&config, &sample::pod(spec)), expect);
        };
        use CgroupDriver::{Cgroupfs, Systemd};
        check(guaranteed(), Cgroupfs, &[], "/kubepods/podu-1");
        check(burstable(), Cgroupfs, &[], "/kubepods/burstable/podu-1");
        check(best_effort(), Cgroupfs, &[], "/kubepods/besteffort/podu-1");
        check(best_effort(), Cgroupfs, &["a", "b"], "/a/b/kubepods/besteffort/podu-1");
        check(guaranteed(), Systemd, &[], "/kubepods.slice/kubepods-podu_1.slice");
        check(
            burstable(),
            Systemd,
            &[],
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podu_1.slice",
        );
        check(
            best_effort(),
            Systemd,
            &["a"],
            "/a.slice/a-kubepods.slice/a-kubepods-besteffort.slice/a-kubepods-besteffort-podu_1.slice",
        );
    }

    #[test]
    fn a_path_tells_its_pod_and_container() {
        let check = |path: &str, expect: Option<(&str, Option<&str>)>| {
            let expect = expect.map(|(uid, container)| PodPath { uid: uid.into(), container });
            assert_eq!(pod_of_path(path), expect, "{path}");
        };
        check("/kubepods/podu-1", Some(("u-1", None)));
        check("/kubepods/burstable/podu-1/abc", Some(("u-1", Some("abc"))));
        check("/a/kubepods/besteffort/podu-1/crio-abc/below/podu-2", Some(("u-1", Some("abc"))));
        check("/kubepods.slice/kubepods-podu_1.slice", Some(("u-1", None)));
        check(
            "/a.slice/a-kubepods.slice/a-kubepods-besteffort.slice/a-kubepods-besteffort-podu_1.slice/cri-containerd-abc.scope",
            Some(("u-1", Some("abc"))),
        );
        for other in [
            "",
            "/",
            "//",
            "/kubepods",
            "/kubepods/pod",
            "/kubepods/pod/",
            "/system.slice/x.service",
            "/x-pod.slice",
        ] {
            check(other, None);
        }
        for driver in [CgroupDriver::Cgroupfs, CgroupDriver::Systemd] {
            let config = NodeConfig { cgroup_driver: driver, ..sample::config() };
            for spec in [guaranteed(), burstable(), best_effort()] {
                let pod = sample::pod(spec);
                let path = format!("{}/abc", cgroup_parent(&config, &pod));
                let found = pod_of_path(&path).expect("a pod");
                assert_eq!((found.uid, found.container), (pod.uid.clone(), Some("abc")), "{path}");
            }
        }
    }

    #[test]
    fn no_pod_cgroups_without_classes() {
        let config = NodeConfig { cgroups_per_qos: false, ..sample::config() };
        let pod = sample::pod(burstable());
        assert_eq!(pod_cgroup(&config, &pod), None);
        assert_eq!(pod_cgroup_spec(&config, &sample::facts(), &pod), None);
        assert_eq!(cgroup_parent(&config, &pod), "");
    }

    #[test]
    fn pod_values_by_class() {
        let no_huge_pages = || BTreeMap::from([("1GB".to_owned(), 0), ("2MB".to_owned(), 0)]);
        let check = |config: &NodeConfig, spec: Value, expect: CgroupValues| {
            let spec = pod_cgroup_spec(config, &sample::facts(), &sample::pod(spec)).unwrap();
            assert_eq!(spec.values, expect, "{:?}", spec.name);
        };
        let config = sample::config();
        let base = || CgroupValues { hugepage_limits: no_huge_pages(), ..CgroupValues::default() };
        let capped = CgroupValues {
            cpu_shares: Some(102),
            cpu_quota: Some(10_000),
            cpu_period: Some(100_000),
            memory_limit: Some(64 << 20),
            ..base()
        };
        check(&config, guaranteed(), capped.clone());
        check(&config, best_effort(), CgroupValues { cpu_shares: Some(2), ..base() });
        check(
            &config,
            burstable(),
            CgroupValues { cpu_shares: Some(256), memory_limit: Some(64 << 20), ..base() },
        );
        let both =
            json!({"containers": [container(json!({"cpu": "1"}), json!({"memory": "1Mi"})), {"name": "d"}]});
        check(&config, both.clone(), CgroupValues { cpu_shares: Some(1024), ..base() });
        let mut level = both;
        level["resources"] = json!({"requests": {"cpu": "500m"}, "limits": {"cpu": "2", "memory": "2Gi"}});
        check(
            &config,
            level,
            CgroupValues {
                cpu_shares: Some(512),
                cpu_quota: Some(200_000),
                cpu_period: Some(100_000),
                memory_limit: Some(2 << 30),
                ..base()
            },
        );
        let no_quota = NodeConfig { cpu_cfs_quota: false, pod_pids_limit: 100, ..sample::config() };
        check(&no_quota, guaranteed(), CgroupValues { cpu_quota: Some(-1), pids_limit: Some(100), ..capped });
        let huge = json!({"hugepages-2Mi": "8Mi", "memory": "1Mi"});
        let huge = json!({"containers": [container(huge.clone(), huge)], "overhead": {"memory": "1Mi"}});
        check(
            &config,
            huge,
            CgroupValues {
                cpu_shares: Some(2),
                memory_limit: Some(2 << 20),
                hugepage_limits: BTreeMap::from([("1GB".to_owned(), 0), ("2MB".to_owned(), 8 << 20)]),
                ..CgroupValues::default()
            },
        );
    }
}
