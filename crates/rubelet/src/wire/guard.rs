//! From configuration to how the node is guarded: what is enforced on cgroups, and which swap containers get.

use std::collections::BTreeMap;

use anyhow::{Context, bail, ensure};
use model::allocatable::{AllocatableConfig, MemoryQosConfig, ReservedCgroup, ReservedFor};
use model::node::{CgroupVersion, HostFacts};

use crate::config::{FeatureGates, KubeletConfiguration};

pub fn allocatable_config(
    config: &KubeletConfiguration,
    gates: &FeatureGates,
    facts: &HostFacts,
) -> anyhow::Result<AllocatableConfig> {
    let v1 = facts.cgroup_version == CgroupVersion::V1;
    let limited_swap = config.memory_swap.swap_behavior == "LimitedSwap";
    ensure!(
        !(limited_swap && v1),
        "swap feature is enabled and LimitedSwap but it is only supported with cgroupv2"
    );
    let percent = reserved_percent(&config.qos_reserved).context("--qos-reserved value failed to parse")?;
    let memory_qos = gates.enabled("MemoryQoS").then(|| MemoryQosConfig {
        throttling_factor: config.memory_throttling_factor,
        tiered: config.memory_reservation_policy == "TieredReservation",
    });
    if memory_qos.is_some() && v1 {
        tracing::warn!("feature gate MemoryQoS has no effect on cgroup version 1");
    }
    Ok(AllocatableConfig {
        enforce_pods: config.enforce_node_allocatable.iter().any(|key| key == "pods"),
        reserved_cgroups: reserved_cgroups(config),
        reserved_memory_percent: percent.filter(|_| gates.enabled("QOSReserved")),
        memory_qos,
        limited_swap,
    })
}

/// In the order in which they are written, whatever the order of the keys.
fn reserved_cgroups(config: &KubeletConfiguration) -> Vec<ReservedCgroup> {
    let (system, kube) = (&config.system_reserved_cgroup, &config.kube_reserved_cgroup);
    let cgroups = [
        ("system-reserved", ReservedFor::System, system, false),
        ("kube-reserved", ReservedFor::Kube, kube, false),
        ("system-reserved-compressible", ReservedFor::System, system, true),
        ("kube-reserved-compressible", ReservedFor::Kube, kube, true),
    ];
    let wanted = |key: &str| config.enforce_node_allocatable.iter().any(|given| given == key);
    cgroups
        .into_iter()
        .filter(|(key, ..)| wanted(key))
        .map(|(_, owner, path, compressible_only)| ReservedCgroup {
            owner,
            path: path.clone(),
            compressible_only,
        })
        .collect()
}

fn reserved_percent(reserved: &BTreeMap<String, String>) -> anyhow::Result<Option<u8>> {
    let mut memory = None;
    for (resource, text) in reserved {
        if resource != "memory" {
            bail!("cannot reserve {resource:?} resource");
        }
        let percent = text.strip_suffix('%').and_then(|number| number.parse().ok());
        let percent: u8 = percent
            .filter(|percent| *percent <= 100)
            .with_context(|| format!("{resource}: {text:?} is not a whole percentage from 0% to 100%"))?;
        memory = Some(percent);
    }
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set_up(
        version: CgroupVersion,
        on: &[&str],
        change: impl FnOnce(&mut KubeletConfiguration),
    ) -> anyhow::Result<AllocatableConfig> {
        let mut config = KubeletConfiguration::default();
        change(&mut config);
        let on = on.iter().map(|gate| ((*gate).to_owned(), true)).collect();
        let gates = FeatureGates::resolve(&on).expect("gates");
        allocatable_config(&config, &gates, &HostFacts { cgroup_version: version, ..HostFacts::default() })
    }

    use CgroupVersion::{V1, V2};

    #[test]
    fn keys_become_cgroups() {
        let keys = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
        assert!(set_up(V2, &[], |_| {}).unwrap().enforce_pods, "the default");
        let got = set_up(V2, &[], |config| {
            config.enforce_node_allocatable = keys(&["kube-reserved-compressible", "system-reserved"]);
            config.system_reserved_cgroup = "/system".into();
            config.kube_reserved_cgroup = "/kube".into();
        })
        .unwrap();
        assert!(!got.enforce_pods);
        let seen: Vec<_> =
            got.reserved_cgroups.iter().map(|c| (c.path.as_str(), c.owner, c.compressible_only)).collect();
        assert_eq!(seen, [("/system", ReservedFor::System, false), ("/kube", ReservedFor::Kube, true)]);
        let none = set_up(V2, &[], |config| config.enforce_node_allocatable = keys(&["none"])).unwrap();
        assert!(!none.enforce_pods && none.reserved_cgroups.is_empty());
    }

    #[test]
    fn a_percentage_of_memory_is_kept_free() {
        let check = |on: &[&str], resource: &str, text: &str, expect: Result<Option<u8>, &str>| {
            let reserved = [(resource.to_owned(), text.to_owned())].into();
            let got = set_up(V2, on, |config| config.qos_reserved = reserved);
            let got = got.map(|got| got.reserved_memory_percent).map_err(|error| format!("{error:#}"));
            assert_eq!(got, expect.map_err(str::to_owned), "{text}");
        };
        check(&["QOSReserved"], "memory", "50%", Ok(Some(50)));
        check(&["QOSReserved"], "memory", "100%", Ok(Some(100)));
        check(&[], "memory", "50%", Ok(None));
        for bad in ["50", "101%", "-1%", "1.5%", "%", ""] {
            let refused = format!(
                "--qos-reserved value failed to parse: memory: {bad:?} is not a whole percentage from 0% to 100%"
            );
            check(&[], "memory", bad, Err(&refused));
        }
        let refused = "--qos-reserved value failed to parse: cannot reserve \"cpu\" resource";
        check(&[], "cpu", "1%", Err(refused));
    }

    #[test]
    fn swap_and_memory_need_version_2() {
        let swap =
            |config: &mut KubeletConfiguration| config.memory_swap.swap_behavior = "LimitedSwap".into();
        assert!(set_up(V2, &[], swap).unwrap().limited_swap);
        assert_eq!(
            set_up(V1, &[], swap).unwrap_err().to_string(),
            "swap feature is enabled and LimitedSwap but it is only supported with cgroupv2"
        );
        let qos = set_up(V2, &["MemoryQoS"], |config| {
            config.memory_reservation_policy = "TieredReservation".into();
        });
        let expect = MemoryQosConfig { throttling_factor: 0.9, tiered: true };
        assert_eq!(qos.unwrap().memory_qos, Some(expect));
        assert_eq!(set_up(V2, &[], |_| {}).unwrap().memory_qos, None);
    }
}
