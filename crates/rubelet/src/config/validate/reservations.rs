//! What the node keeps for itself: enforced levels, reserved CPUs and memory, eviction thresholds, taints.

use std::collections::{BTreeMap, BTreeSet};

use super::{FieldErrors, KubeletConfiguration, quoted};
use crate::config::quantity::sign;
use crate::config::{GoDuration, label_value_error, qualified_name_error};

pub(super) fn check(config: &KubeletConfiguration, faults: &mut FieldErrors) {
    enforced_levels(config, faults);
    reserved_cpus(config, faults);
    reserved_memory(config, faults);
    reserved_amounts("systemReserved", &config.system_reserved, faults);
    reserved_amounts("kubeReserved", &config.kube_reserved, faults);
    eviction(config, faults);
    taints(config, faults);
}

const LEVELS: &[&str] = &[
    "pods",
    "system-reserved",
    "system-reserved-compressible",
    "kube-reserved",
    "kube-reserved-compressible",
    "none",
];

fn enforced_levels(config: &KubeletConfiguration, faults: &mut FieldErrors) {
    const FIELD: &str = "enforceNodeAllocatable";
    let levels: Vec<&str> = config.enforce_node_allocatable.iter().map(String::as_str).collect();
    for (whole, part, cgroup_field, cgroup) in [
        (
            "system-reserved",
            "system-reserved-compressible",
            "systemReservedCgroup",
            &config.system_reserved_cgroup,
        ),
        ("kube-reserved", "kube-reserved-compressible", "kubeReservedCgroup", &config.kube_reserved_cgroup),
    ] {
        let both = levels.contains(&whole) && levels.contains(&part);
        faults.require(!both, FIELD, || format!("{whole:?} and {part:?} exclude each other"));
        let either = levels.contains(&whole) || levels.contains(&part);
        faults.require(!either || !cgroup.is_empty(), cgroup_field, || {
            format!("must be set when {FIELD} has {whole:?} or {part:?}")
        });
    }
    let mut seen = BTreeSet::new();
    for level in &levels {
        if !seen.insert(level) {
            faults.add(FIELD, format!("{level:?} occurs twice"));
        } else if *level == "none" {
            faults.require(levels.len() == 1, FIELD, || "\"none\" excludes all others".to_owned());
        } else if !LEVELS.contains(level) {
            faults.add(FIELD, format!("{level:?} is not one of {}", quoted(LEVELS)));
        } else {
            faults.require(config.cgroups_per_qos, "cgroupsPerQOS", || {
                format!("must be true when {FIELD} has {level:?}")
            });
        }
    }
}

fn reserved_cpus(config: &KubeletConfiguration, faults: &mut FieldErrors) {
    const FIELD: &str = "reservedSystemCPUs";
    let cpus = config.reserved_system_cpus.as_str();
    if cpus.is_empty() {
        return;
    }
    let cgroup_fields = [
        ("systemReservedCgroup", &config.system_reserved_cgroup),
        ("kubeReservedCgroup", &config.kube_reserved_cgroup),
    ];
    for (field, cgroup) in cgroup_fields {
        faults.require(cgroup.is_empty(), FIELD, || format!("can't be used together with {field}"));
    }
    faults.require(is_cpu_list(cpus), FIELD, || format!("{cpus:?} is not a list of CPUs such as 0-3,6"));
}

fn is_cpu_list(text: &str) -> bool {
    text.split(',').all(|range| match range.split_once('-') {
        None => range.parse::<u32>().is_ok(),
        Some((first, last)) => {
            matches!((first.parse::<u32>(), last.parse::<u32>()), (Ok(first), Ok(last)) if first <= last)
        }
    })
}

fn reserved_memory(config: &KubeletConfiguration, faults: &mut FieldErrors) {
    let mut seen = BTreeSet::new();
    for (index, reservation) in config.reserved_memory.iter().enumerate() {
        for (resource, amount) in &reservation.limits {
            let field = format!("reservedMemory[{index}].limits");
            let node = reservation.numa_node;
            faults.require(is_memory(resource), &field, || {
                format!("{resource:?} is neither memory nor hugepages-<size>")
            });
            faults.require(!amount.is_zero(), &field, || format!("{resource:?} must not be zero"));
            faults.require(seen.insert((node, resource)), &field, || {
                format!("{resource:?} is given twice for NUMA node {node}")
            });
        }
    }
}

/// Also what `--reserved-memory` may name.
pub(crate) fn is_memory(resource: &str) -> bool {
    resource == "memory" || resource.starts_with("hugepages-")
}

fn reserved_amounts(field: &str, amounts: &BTreeMap<String, String>, faults: &mut FieldErrors) {
    for (resource, amount) in amounts {
        let known = ["cpu", "memory", "ephemeral-storage", "pid"];
        let fine = known.contains(&resource.as_str());
        faults.require(fine, field, || format!("{resource:?} is not one of {}", quoted(&known)));
        let fine = sign(amount).is_some_and(|sign| sign >= 0);
        faults.require(fine, field, || format!("{resource}={amount:?} is not a quantity of zero or more"));
    }
}

const SIGNALS: &[&str] = &[
    "allocatableMemory.available",
    "containerfs.available",
    "containerfs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "pid.available",
];

fn eviction(config: &KubeletConfiguration, faults: &mut FieldErrors) {
    let maps = [
        ("evictionHard", &config.eviction_hard),
        ("evictionSoft", &config.eviction_soft),
        ("evictionSoftGracePeriod", &config.eviction_soft_grace_period),
        ("evictionMinimumReclaim", &config.eviction_minimum_reclaim),
    ];
    for (field, map) in maps {
        for signal in map.keys() {
            faults.require(SIGNALS.contains(&signal.as_str()), field, || {
                format!("unsupported eviction signal {signal}")
            });
        }
    }
    for (field, map) in &maps[..2] {
        for (signal, limit) in *map {
            let fine = percentage(limit).map_or_else(
                || sign(limit) == Some(1),
                |percent| percent.is_some_and(|percent| (0.0..=100.0).contains(&percent)),
            );
            faults.require(fine, field, || {
                format!("{signal}: {limit:?} is neither a positive quantity nor a percentage from 0% to 100%")
            });
        }
    }
    for (signal, span) in &config.eviction_soft_grace_period {
        let fine = span.parse::<GoDuration>().is_ok_and(|span| !span.is_negative());
        faults.require(fine, "evictionSoftGracePeriod", || {
            format!("{signal}: {span:?} is not a duration of zero or more")
        });
    }
    for signal in config.eviction_soft.keys() {
        faults.require(
            config.eviction_soft_grace_period.contains_key(signal),
            "evictionSoftGracePeriod",
            || format!("{signal:?} is in evictionSoft and needs a grace period"),
        );
    }
    for (signal, amount) in &config.eviction_minimum_reclaim {
        let fine = percentage(amount).map_or_else(
            || sign(amount).is_some_and(|sign| sign >= 0),
            |percent| percent.is_some_and(|percent| percent > 0.0),
        );
        faults.require(fine, "evictionMinimumReclaim", || {
            format!("{signal}: {amount:?} is neither a quantity nor a positive percentage")
        });
    }
}

/// `None` if the text is no percentage at all, `Some(None)` if it is a bad one.
fn percentage(text: &str) -> Option<Option<f64>> {
    let number = text.strip_suffix('%')?;
    Some(number.parse().ok().filter(|percent: &f64| percent.is_finite()))
}

fn taints(config: &KubeletConfiguration, faults: &mut FieldErrors) {
    for (index, taint) in config.register_with_taints.iter().enumerate() {
        let field = |name: &str| format!("registerWithTaints[{index}].{name}");
        if let Some(fault) = qualified_name_error(&taint.key) {
            faults.add(field("key"), fault);
        }
        if let Some(fault) = label_value_error(&taint.value) {
            faults.add(field("value"), fault);
        }
        if !taint.effect.is_empty() {
            faults.one_of(&field("effect"), &taint.effect, TAINT_EFFECTS);
        }
        faults.require(taint.time_added.is_none(), &field("timeAdded"), || "must not be set".to_owned());
    }
}

/// Also what `--register-with-taints` may name.
pub(crate) const TAINT_EFFECTS: &[&str] = &["NoSchedule", "PreferNoSchedule", "NoExecute"];
