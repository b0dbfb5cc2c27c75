//! What is written into the cgroups above pods and into those of reservations.

use model::allocatable::{AllocatableConfig, MemoryQosConfig, ReservedCgroup};
use model::cgroup::CgroupDriver;
use model::k8s::Quantity;
use model::node::{CapacityRules, NodeObjectConfig};

use super::*;
use crate::render::sample;

const GIB: i64 = 1 << 30;

fn facts() -> HostFacts {
    HostFacts {
        cpus: 4,
        memory_bytes: 8 << 30,
        pid_limit: Some(32_768),
        huge_pages: [(2 << 20, 1 << 30), (1 << 30, 0)].into(),
        cgroup_version: CgroupVersion::V2,
        ..sample::facts()
    }
}

fn list(text: &str) -> BTreeMap<String, Quantity> {
    let pair = |part: &str| part.split_once('=').map(|(name, q)| (name.to_owned(), Quantity(q.to_owned())));
    text.split_whitespace().filter_map(pair).collect()
}

/// With what is reserved for the system and for Kubernetes.
fn config(system: &str, kube: &str, allocatable: AllocatableConfig) -> NodeConfig {
    let capacity = CapacityRules {
        system_reserved: list(system),
        kube_reserved: list(kube),
        eviction_memory: Some(model::node::ThresholdValue::Amount(Quantity("100Mi".into()))),
        ..CapacityRules::default()
    };
    let node_object = NodeObjectConfig { capacity, ..NodeObjectConfig::default() };
    NodeConfig { node_object, allocatable, ..sample::config() }
}

fn requests() -> ClassRequests {
    ClassRequests { burstable_milli_cpu: 1500, burstable_memory: 2 << 30, guaranteed_memory: 4 << 30 }
}

fn kubepods_of(config: &NodeConfig, facts: &HostFacts) -> CgroupValues {
    node_cgroup_specs(config, facts, &requests())[0].values.clone()
}

#[test]
fn pods_are_limited_to_what_is_not_reserved() {
    let reserved = "cpu=1 memory=1Gi pid=768";
    let check = |config: NodeConfig, shares: u64, memory: i64, pids: i64| {
        let values = kubepods_of(&config, &facts());
        let seen = (values.cpu_shares, values.memory_limit, values.pids_limit);
        assert_eq!(seen, (Some(shares), Some(memory), Some(pids)));
        assert_eq!(values.hugepage_limits, BTreeMap::from([("1GB".into(), 0), ("2MB".into(), 1 << 30)]));
        assert_eq!((values.cpu_quota, values.memory_min), (None, None));
    };
    check(config("", "", AllocatableConfig::default()), 4096, 8 * GIB, 32_768);
    check(config(reserved, "cpu=500m", AllocatableConfig::default()), 2560, 7 * GIB, 32_000);
    // not enforced: all that the node has
    let all = AllocatableConfig { enforce_pods: false, ..AllocatableConfig::default() };
    check(config(reserved, "cpu=500m", all), 4096, 8 * GIB, 32_768);
}

/// Amounts that nobody can mean limit nothing, and none of them overflows.
#[test]
fn amounts_at_the_edge() {
    let most = "cpu=9223372036854775807 memory=9223372036854775807 pid=9223372036854775807";
    let values = kubepods_of(&config(most, most, AllocatableConfig::default()), &facts());
    assert_eq!((values.cpu_shares, values.memory_limit, values.pids_limit), (Some(2), None, None));
    let huge = HostFacts { memory_bytes: u64::MAX, pid_limit: Some(u64::MAX), cpus: u32::MAX, ..facts() };
    let values = kubepods_of(&config("", "", AllocatableConfig::default()), &huge);
    assert_eq!((values.cpu_shares, values.memory_limit), (Some(262_144), Some(i64::MAX)));
    let silent = HostFacts { pid_limit: None, ..facts() };
    assert_eq!(kubepods_of(&config("pid=5", "", AllocatableConfig::default()), &silent).pids_limit, None);
}

#[test]
fn classes_weigh_what_they_request() {
    let config = config("", "", AllocatableConfig::default());
    let specs = node_cgroup_specs(&config, &facts(), &requests());
    let seen: Vec<(String, Option<u64>, Option<i64>)> = specs
        .iter()
        .map(|s| (s.name.to_path(CgroupDriver::Cgroupfs), s.values.cpu_shares, s.values.memory_limit))
        .collect();
    assert_eq!(
        seen,
        [
            ("/kubepods".into(), Some(4096), Some(8 * GIB)),
            ("/kubepods/burstable".into(), Some(1536), None),
            ("/kubepods/besteffort".into(), Some(2), None),
        ]
    );
    assert_eq!(specs[1].values.hugepage_limits["2MB"], 1 << 62);
    let none = node_cgroup_specs(&config, &facts(), &ClassRequests::default());
    assert_eq!(none[1].values.cpu_shares, Some(2));
    let off = NodeConfig { cgroups_per_qos: false, ..config };
    assert_eq!(node_cgroup_specs(&off, &facts(), &requests()), []);
}

#[test]
fn a_part_of_better_requests_is_kept_free() {
    let check = |percent: u8, requests: ClassRequests, expect: (i64, i64)| {
        let allocatable =
            AllocatableConfig { reserved_memory_percent: Some(percent), ..AllocatableConfig::default() };
        let specs = node_cgroup_specs(&config("memory=1Gi", "", allocatable), &facts(), &requests);
        let seen = (specs[1].values.memory_limit, specs[2].values.memory_limit);
        assert_eq!(seen, (Some(expect.0), Some(expect.1)), "{percent}");
    };
    check(50, requests(), (5 * GIB, 4 * GIB));
    check(100, requests(), (3 * GIB, GIB));
    check(0, requests(), (7 * GIB, 7 * GIB));
    let too_many = ClassRequests { guaranteed_memory: u64::MAX, ..requests() };
    check(100, too_many, (0, 0));
}

#[test]
fn memory_that_is_protected() {
    let qos = |tiered| AllocatableConfig {
        memory_qos: Some(MemoryQosConfig { throttling_factor: 0.9, tiered }),
        ..AllocatableConfig::default()
    };
    let check = |allocatable, version, expect: (Option<u64>, Option<u64>)| {
        let facts = HostFacts { cgroup_version: version, ..facts() };
        let specs = node_cgroup_specs(&config("", "", allocatable), &facts, &requests());
        assert_eq!((specs[0].values.memory_min, specs[1].values.memory_low), expect);
        assert_eq!(specs[2].values.memory_low, None, "nobody requested it");
    };
    use CgroupVersion::{V1, V2};
    check(qos(true), V2, (Some(6 << 30), Some(2 << 30)));
    check(qos(false), V2, (Some(0), Some(0)));
    check(qos(true), V1, (None, None));
    check(AllocatableConfig::default(), V2, (None, None));
}

#[test]
fn reservations_of_others() {
    let cgroup =
        |owner, path: &str, compressible_only| ReservedCgroup { owner, path: path.into(), compressible_only };
    let allocatable = |cgroups| AllocatableConfig {
        reserved_cgroups: cgroups,
        memory_qos: Some(MemoryQosConfig { throttling_factor: 0.9, tiered: false }),
        ..AllocatableConfig::default()
    };
    let cgroups = vec![
        cgroup(ReservedFor::System, "/system", false),
        cgroup(ReservedFor::Kube, "/kube", true),
        cgroup(ReservedFor::Kube, "/", false),
    ];
    let config = config("cpu=500m memory=1Gi pid=100", "cpu=1", allocatable(cgroups));
    let found = reservations(&config, &facts());
    let values = CgroupValues {
        cpu_shares: Some(512),
        memory_limit: Some(GIB),
        memory_min: Some(1 << 30),
        pids_limit: Some(100),
        ..CgroupValues::default()
    };
    let name = |part: &str| CgroupName(vec![part.to_owned()]);
    assert_eq!(found[0].spec, Ok(CgroupSpec { name: name("system"), values }));
    assert_eq!(found[0].success, "Updated limits on system reserved cgroup /system");
    assert_eq!(found[0].failure, "Failed to enforce System Reserved Cgroup Limits on \"/system\"");
    let values = CgroupValues { cpu_shares: Some(1024), ..CgroupValues::default() };
    assert_eq!(found[1].spec, Ok(CgroupSpec { name: name("kube"), values }));
    assert_eq!(found[1].failure, "Failed to enforce Kube Reserved Compressible Cgroup Limits on \"/kube\"");
    assert!(found[2].spec.is_err(), "the root is nobody's");
    let nothing_reserved = NodeConfig { node_object: NodeObjectConfig::default(), ..config };
    let message = reservations(&nothing_reserved, &facts()).remove(0).spec.unwrap_err();
    assert_eq!(message, "[\"system\"] cgroup is not configured properly");
}
