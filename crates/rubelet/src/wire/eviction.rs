//! From configuration to the thresholds at which pods are evicted.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use model::eviction::{EvictionConfig, EvictionSignal, EvictionThreshold};
use model::node::ThresholdValue;

use super::node::threshold_value;
use crate::config::{GoDuration, KubeletConfiguration};

/// What `enforceNodeAllocatable` calls the cgroup of all pods.
const PODS: &str = "pods";

/// `ignores_pods`: `--experimental-allocatable-ignore-eviction`.
pub(super) fn eviction_config(
    config: &KubeletConfiguration,
    ignores_pods: bool,
) -> anyhow::Result<EvictionConfig> {
    let reclaim = minimum_reclaim(&config.eviction_minimum_reclaim)?;
    let threshold = |text: &str, field: &str, grace: Duration, name: &str| {
        let signal = signal(field, name)?;
        let minimum_reclaim = reclaim.get(&signal).cloned();
        let value = threshold_value(name, text)?;
        anyhow::Ok(value.map(|value| EvictionThreshold { signal, value, grace, minimum_reclaim }))
    };
    let mut thresholds = Vec::new();
    for (name, text) in &config.eviction_hard {
        thresholds.extend(threshold(text, "evictionHard", Duration::ZERO, name)?);
    }
    for (name, text) in &config.eviction_soft {
        let grace = config.eviction_soft_grace_period.get(name);
        let grace: GoDuration = grace
            .with_context(|| {
                format!("grace period must be specified for the soft eviction threshold {name}")
            })?
            .parse()
            .with_context(|| format!("evictionSoftGracePeriod: {name}"))?;
        thresholds.extend(threshold(text, "evictionSoft", grace.to_std(), name)?);
    }
    let enforced = config.enforce_node_allocatable.iter().any(|level| level == PODS);
    if enforced && !ignores_pods {
        let copies: Vec<_> = thresholds
            .iter()
            .filter(|known| known.signal == EvictionSignal::MemoryAvailable && known.is_hard())
            .map(|known| EvictionThreshold {
                signal: EvictionSignal::AllocatableMemoryAvailable,
                ..known.clone()
            })
            .collect();
        thresholds.extend(copies);
    }
    Ok(EvictionConfig {
        thresholds,
        max_pod_grace_secs: config.eviction_max_pod_grace_period.into(),
        pressure_transition: config.eviction_pressure_transition_period.to_std(),
    })
}

fn signal(field: &str, name: &str) -> anyhow::Result<EvictionSignal> {
    EvictionSignal::parse(name).with_context(|| format!("{field}: unsupported eviction signal {name}"))
}

fn minimum_reclaim(
    texts: &BTreeMap<String, String>,
) -> anyhow::Result<BTreeMap<EvictionSignal, ThresholdValue>> {
    let one = |(name, text): (&String, &String)| {
        Ok((signal("evictionMinimumReclaim", name)?, threshold_value(name, text)?))
    };
    let all: Vec<_> = texts.iter().map(one).collect::<anyhow::Result<_>>()?;
    Ok(all.into_iter().filter_map(|(signal, value)| Some((signal, value?))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wired(change: impl FnOnce(&mut KubeletConfiguration)) -> Vec<String> {
        let enforce_node_allocatable = vec![PODS.to_owned()];
        let mut config = KubeletConfiguration { enforce_node_allocatable, ..KubeletConfiguration::default() };
        change(&mut config);
        let show = |threshold: &EvictionThreshold| {
            let value = match &threshold.value {
                ThresholdValue::Amount(amount) => amount.0.clone(),
                ThresholdValue::Fraction(part) => format!("{part}"),
            };
            let reclaim = threshold.minimum_reclaim.as_ref().map_or("", |_| " +");
            format!("{}<{value} {}s{reclaim}", threshold.signal.as_str(), threshold.grace.as_secs())
        };
        eviction_config(&config, false).unwrap().thresholds.iter().map(show).collect()
    }

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn thresholds_are_those_of_the_configuration() {
        let found = wired(|config| {
            config.eviction_hard = map(&[
                ("memory.available", "100Mi"),
                ("nodefs.available", "10%"),
                ("imagefs.available", "0%"),
                ("pid.available", "100%"),
            ]);
            config.eviction_soft = map(&[("nodefs.available", "15%")]);
            config.eviction_soft_grace_period = map(&[("nodefs.available", "1m30s")]);
            config.eviction_minimum_reclaim = map(&[("nodefs.available", "1Gi")]);
        });
        let expect = [
            "memory.available<100Mi 0s",
            "nodefs.available<0.1 0s +",
            "nodefs.available<0.15 90s +",
            "allocatableMemory.available<100Mi 0s",
        ];
        assert_eq!(found, expect);
    }

    #[test]
    fn pods_as_a_whole_are_guarded_only_where_they_are_held_to_a_limit() {
        let found = wired(|config| {
            config.enforce_node_allocatable = vec!["none".into()];
            config.eviction_hard = map(&[("memory.available", "100Mi")]);
        });
        assert_eq!(found, ["memory.available<100Mi 0s"]);
    }
}
