//! Which cgroup a pod lives in, and what is written there.
//!
//! ```text
//! <cgroupRoot>/kubepods             everything that pods use
//!   pod<uid>                        Guaranteed
//!   burstable/pod<uid>              Burstable
//!   besteffort/pod<uid>             BestEffort
//! ```

use std::collections::BTreeMap;

use model::cgroup::{CgroupName, CgroupSpec, CgroupValues};
use model::node::{HostFacts, NodeConfig};
use model::pod::{PodView, QosClass};

use crate::resources::{
    MIN_SHARES, Overhead, cpu_quota, cpu_shares, limits_by_page_size, limits_declared, pod_limits,
    pod_requests, qos_class, quota_period_micros,
};

/// No limit, for controllers that know no word for it.
const UNLIMITED_HUGE_PAGES: u64 = 1 << 62;

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
    CgroupValues {
        cpu_shares: Some(shares),
        cpu_quota: cap_cpu.then_some(quota),
        cpu_period: cap_cpu.then(|| period.unsigned_abs()),
        memory_limit: cap_memory.then(|| limits.memory_bytes()),
        pids_limit: (config.pod_pids_limit > 0).then_some(config.pod_pids_limit),
        hugepage_limits: limits_by_page_size(&requests, &facts.hugepage_sizes),
    }
}

/// The memory that a pod as a whole is held to, if it is.
pub(crate) fn pod_memory_limit(config: &NodeConfig, facts: &HostFacts, pod: &PodView) -> Option<i64> {
    pod_values(config, facts, pod).memory_limit.filter(|limit| *limit > 0)
}

/// The cgroups above the pods, in the order in which they are made. None when cgroups per class are turned off.
///
/// Values: `kubepods` gets the weight of all of the host's processors. Its memory, pids and huge page limits belong
/// to the enforcement of what is reserved for others, which is not there yet. `burstable` weighs as much as its pods
/// ask for in sum (`burstable_milli_cpu`), `besteffort` as little as possible, and neither limits huge pages.
pub(crate) fn node_cgroup_specs(
    config: &NodeConfig,
    facts: &HostFacts,
    burstable_milli_cpu: i64,
) -> Vec<CgroupSpec> {
    if !config.cgroups_per_qos {
        return Vec::new();
    }
    let unlimited: BTreeMap<String, u64> =
        facts.hugepage_sizes.iter().map(|size| (size.clone(), UNLIMITED_HUGE_PAGES)).collect();
    let weight = |shares: u64| CgroupValues { cpu_shares: Some(shares), ..CgroupValues::default() };
    let class_spec = |class, shares| CgroupSpec {
        name: qos_cgroup(config, class),
        values: CgroupValues { hugepage_limits: unlimited.clone(), ..weight(shares) },
    };
    vec![
        CgroupSpec { name: kubepods(config), values: weight(cpu_shares(i64::from(facts.cpus) * 1000)) },
        class_spec(QosClass::Burstable, cpu_shares(burstable_milli_cpu)),
        class_spec(QosClass::BestEffort, MIN_SHARES),
    ]
}

#[cfg(test)]
mod tests {
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
    fn no_pod_cgroups_without_classes() {
        let config = NodeConfig { cgroups_per_qos: false, ..sample::config() };
        let pod = sample::pod(burstable());
        assert_eq!(pod_cgroup(&config, &pod), None);
        assert_eq!(pod_cgroup_spec(&config, &sample::facts(), &pod), None);
        assert_eq!(cgroup_parent(&config, &pod), "");
        assert_eq!(node_cgroup_specs(&config, &sample::facts(), 0), []);
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

    #[test]
    fn cgroups_above_the_pods() {
        let specs = node_cgroup_specs(&sample::config(), &sample::facts(), 1500);
        let seen: Vec<(String, Option<u64>)> = specs
            .iter()
            .map(|spec| (spec.name.to_path(CgroupDriver::Cgroupfs), spec.values.cpu_shares))
            .collect();
        assert_eq!(
            seen,
            [
                ("/kubepods".into(), Some(4096)),
                ("/kubepods/burstable".into(), Some(1536)),
                ("/kubepods/besteffort".into(), Some(2)),
            ]
        );
        assert_eq!(specs[1].values.hugepage_limits["2MB"], 1 << 62);
        assert_eq!(node_cgroup_specs(&sample::config(), &sample::facts(), 0)[1].values.cpu_shares, Some(2));
    }
}
