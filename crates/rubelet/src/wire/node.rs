//! From flags and configuration to what this node is in a cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, ensure};
use decide::node::{self, CapacityRules, NodeObjectConfig, ThresholdValue};
use decide::resources::capacity;
use model::k8s::{Quantity, Taint};
use model::node::HostFacts;

use crate::config::{FeatureGates, KubeletConfiguration};
use crate::flags::{Flags, KUBERNETES_VERSION};

/// Upstream's value, for a relist every second. This agent relists less often, because it is notified of changes.
const RELIST_THRESHOLD: Duration = Duration::from_secs(180);

pub fn node_setup(
    flags: &Flags,
    config: &KubeletConfiguration,
    gates: &FeatureGates,
    facts: &HostFacts,
    name: &str,
) -> anyhow::Result<NodeObjectConfig> {
    let cloud = flags.cloud_provider.as_str();
    ensure!(
        ["", "external"].contains(&cloud),
        "--cloud-provider={cloud}: only \"external\" and none are possible"
    );
    // Nothing would attach volumes, and pods that need that would wait for ever.
    ensure!(
        config.enable_controller_attach_detach || flags.kubeconfig.is_none(),
        "enableControllerAttachDetach: false is not possible in a cluster: attaching is left to the controller"
    );
    let rules = capacity_rules(flags, config, &facts.online_cpus)?;
    check_reservation(&rules, facts)?;
    let whole = |number: i32| u32::try_from(number).unwrap_or(0);
    Ok(NodeObjectConfig {
        name: name.to_owned(),
        hostname: name.to_owned(),
        register: config.register_node,
        get_on_exists_only: gates.enabled("KubeletRegistrationGetOnExistsOnly"),
        node_ips: flags.node_ips.clone(),
        labels: flags.node_labels.clone(),
        taints: config.register_with_taints.iter().map(taint).collect::<anyhow::Result<_>>()?,
        external_cloud: cloud == "external",
        provider_id: config.provider_id.clone(),
        attach_by_controller: config.enable_controller_attach_detach,
        kubelet_version: flags.reported_version.clone().unwrap_or_else(|| KUBERNETES_VERSION.to_owned()),
        port: config.port,
        max_images: config.node_status_max_images,
        capacity: rules,
        declared_features: node::declared_features(|gate| gates.enabled(gate)),
        status_period: config.node_status_update_frequency.to_std(),
        report_period: config.node_status_report_frequency.to_std(),
        lease_duration: Duration::from_secs(u64::from(whole(config.node_lease_duration_seconds))),
        relist_threshold: RELIST_THRESHOLD
            .max(config.sync_frequency.to_std().saturating_mul(2) + Duration::from_secs(60)),
        pod_cidr: config.pod_cidr.clone(),
        event_qps: whole(config.event_record_qps),
        event_burst: whole(config.event_burst),
    })
}

fn taint(taint: &crate::config::Taint) -> anyhow::Result<Taint> {
    let value = serde_json::to_value(taint).context("registerWithTaints")?;
    serde_json::from_value(value).with_context(|| format!("registerWithTaints: {}", taint.key))
}

fn capacity_rules(
    flags: &Flags,
    config: &KubeletConfiguration,
    online: &BTreeSet<u32>,
) -> anyhow::Result<CapacityRules> {
    let list = |texts: &BTreeMap<String, String>| -> BTreeMap<String, Quantity> {
        texts.iter().map(|(name, amount)| (name.clone(), Quantity(amount.clone()))).collect()
    };
    let mut system = list(&config.system_reserved);
    let mut kube = list(&config.kube_reserved);
    if !config.reserved_system_cpus.is_empty() {
        let given = &config.reserved_system_cpus;
        let cpus = cpu_set(given).with_context(|| format!("reservedSystemCPUs: {given:?}"))?;
        ensure!(
            online.is_empty() || cpus.is_subset(online),
            "reservedSystemCPUs: {given} is not a subset of the online CPUs: {online:?}"
        );
        // These cpus are the whole reservation, whatever else was said of cpus.
        kube.remove("cpu");
        system.insert("cpu".into(), Quantity(cpus.len().to_string()));
    }
    let threshold = |signal: &str| match config.eviction_hard.get(signal) {
        Some(text) if !flags.experimental_allocatable_ignore_eviction => threshold_value(signal, text),
        _ => Ok(None),
    };
    let whole = |number: i32| u32::try_from(number).unwrap_or(0);
    Ok(CapacityRules {
        max_pods: whole(config.max_pods),
        pods_per_core: whole(config.pods_per_core),
        system_reserved: system,
        kube_reserved: kube,
        eviction_memory: threshold("memory.available")?,
        eviction_storage: threshold("nodefs.available")?,
        local_storage: config.local_storage_capacity_isolation,
    })
}

/// A threshold of nothing, or of everything, is none.
pub(super) fn threshold_value(signal: &str, text: &str) -> anyhow::Result<Option<ThresholdValue>> {
    let Some(percent) = text.strip_suffix('%') else {
        let _: model::quantity::Quantity = text.parse().with_context(|| format!("evictionHard: {signal}"))?;
        return Ok(Some(ThresholdValue::Amount(Quantity(text.to_owned()))));
    };
    let percent: f32 = percent.parse().with_context(|| format!("evictionHard: {signal}: {text:?}"))?;
    Ok((percent > 0.0 && percent < 100.0).then(|| ThresholdValue::Fraction(percent / 100.0)))
}

/// The cpus that a list as `0-3,8` names.
fn cpu_set(list: &str) -> anyhow::Result<BTreeSet<u32>> {
    let mut cpus = BTreeSet::new();
    for range in list.split(',').map(str::trim) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse()?, last.parse()?);
        ensure!(first <= last, "{range:?} is not a CPU range");
        cpus.extend((first..=last).map(u32::from));
    }
    Ok(cpus)
}

fn check_reservation(rules: &CapacityRules, facts: &HostFacts) -> anyhow::Result<()> {
    let capacity = capacity::capacity(rules, facts);
    let faults: Vec<String> = capacity::reserved_amounts(rules, &capacity)
        .iter()
        .filter_map(|(name, kept)| {
            let has = capacity.get(name).filter(|has| *has < kept)?;
            Some(format!(
                "Resource {name:?} has a reservation of {kept} but capacity of {has}. \
                 Expected capacity >= reservation."
            ))
        })
        .collect();
    ensure!(faults.is_empty(), "invalid Node Allocatable configuration. {}", faults.join(" "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::{Invocation, parse};

    fn facts() -> HostFacts {
        let online_cpus = (0..4).collect();
        HostFacts {
            cpus: 4,
            online_cpus,
            memory_bytes: 8 << 30,
            root_fs_bytes: 100 << 30,
            ..HostFacts::default()
        }
    }

    fn set_up(
        arguments: &[&str],
        change: impl FnOnce(&mut KubeletConfiguration),
    ) -> anyhow::Result<NodeObjectConfig> {
        let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        let Ok(Invocation::Agent(flags)) = parse(&arguments) else { panic!("flags that run") };
        let mut config = KubeletConfiguration::default();
        change(&mut config);
        node_setup(&flags, &config, &FeatureGates::default(), &facts(), "n")
    }

    #[test]
    fn flags_and_fields_arrive() {
        let setup = set_up(
            &["--node-labels=a=b,c=d", "--node-ip=192.0.2.1,2001:db8::1", "--cloud-provider=external"],
            |config| {
                config.provider_id = "p".into();
                config.register_node = false;
                config.pods_per_core = 10;
                config.node_lease_duration_seconds = 20;
                config.register_with_taints = vec![crate::config::Taint {
                    key: "k".into(),
                    value: String::new(),
                    effect: "NoExecute".into(),
                    time_added: None,
                }];
                config.eviction_hard = [
                    ("memory.available", "100Mi"),
                    ("nodefs.available", "10%"),
                    ("imagefs.available", "15%"),
                ]
                .map(|(signal, text)| (signal.to_owned(), text.to_owned()))
                .into();
            },
        )
        .unwrap();
        assert_eq!((setup.name.as_str(), setup.labels.len(), setup.node_ips.len()), ("n", 2, 2));
        assert!(setup.external_cloud && !setup.register && setup.attach_by_controller);
        assert_eq!(setup.taints[0].effect, "NoExecute");
        assert_eq!(setup.capacity.eviction_memory, Some(ThresholdValue::Amount(Quantity("100Mi".into()))));
        assert_eq!(setup.capacity.eviction_storage, Some(ThresholdValue::Fraction(0.1)));
        assert_eq!((setup.capacity.max_pods, setup.capacity.pods_per_core), (110, 10));
        assert_eq!(setup.lease_duration, Duration::from_secs(20));
        assert_eq!(setup.kubelet_version, "v1.36.4");
        assert_eq!(
            setup.declared_features,
            ["ExtendWebSocketsToKubelet", "RestartAllContainersOnContainerExits"]
        );
    }

    #[test]
    fn attaching_is_left_to_the_controller() {
        let off = |config: &mut KubeletConfiguration| config.enable_controller_attach_detach = false;
        let refused = set_up(&["--kubeconfig=/k"], off).unwrap_err().to_string();
        assert!(refused.starts_with("enableControllerAttachDetach: false is not possible"), "{refused}");
        assert!(!set_up(&[], off).unwrap().attach_by_controller, "alone, nothing is attached");
    }

    #[test]
    fn reservations() {
        let setup = set_up(&[], |config| {
            config.reserved_system_cpus = "0-1,3".into();
            config.kube_reserved = [("cpu".to_owned(), "1".to_owned())].into();
        });
        let rules = setup.unwrap().capacity;
        assert_eq!((rules.system_reserved["cpu"].0.as_str(), rules.kube_reserved.len()), ("3", 0));
        let too_much = set_up(&[], |config| {
            config.system_reserved = [("cpu".to_owned(), "5".to_owned())].into();
        });
        assert_eq!(
            too_much.unwrap_err().to_string(),
            "invalid Node Allocatable configuration. Resource \"cpu\" has a reservation of 5 but capacity of 4. \
             Expected capacity >= reservation."
        );
        for bad in ["x", "3-1", "1-"] {
            assert!(set_up(&[], |config| config.reserved_system_cpus = bad.into()).is_err(), "{bad}");
        }
        let beyond = set_up(&[], |config| config.reserved_system_cpus = "3-4".into());
        assert_eq!(
            beyond.unwrap_err().to_string(),
            "reservedSystemCPUs: 3-4 is not a subset of the online CPUs: {0, 1, 2, 3}"
        );
        for none in ["0%", "100%"] {
            assert_eq!(threshold_value("s", none).unwrap(), None);
        }
        assert!(threshold_value("s", "much").is_err());
    }
}
