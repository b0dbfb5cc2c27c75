//! The cgroups above pods and those of reservations: what is written there, so that what is reserved is kept.
//!
//! ```text
//! capacity - what is reserved ──> kubepods ─┬─ burstable: weighs what its pods request
//!                                           └─ besteffort: weighs nothing
//! what is reserved ──> the cgroups that the configuration names
//! ```
//! The hard eviction thresholds are no part of the limits: eviction begins before a limit is hit.

use std::collections::BTreeMap;

use model::allocatable::ReservedFor;
use model::cgroup::{CgroupName, CgroupSpec, CgroupValues};
use model::node::{CgroupVersion, HostFacts, NodeConfig};
use model::pod::QosClass;

use crate::cgroups::{kubepods, qos_cgroup};
use crate::node_requests::ClassRequests;
use crate::resources::capacity::{PID, enforced_amounts, reserved_for};
use crate::resources::{Amounts, CPU, MEMORY, MIN_SHARES, cpu_shares, limits_by_page_size};

/// No limit, for controllers that know no word for it.
const UNLIMITED_HUGE_PAGES: u64 = 1 << 62;

/// The cgroups above the pods, in the order in which they are made. None when cgroups per class are turned off.
pub(crate) fn node_cgroup_specs(
    config: &NodeConfig,
    facts: &HostFacts,
    requests: &ClassRequests,
) -> Vec<CgroupSpec> {
    if !config.cgroups_per_qos {
        return Vec::new();
    }
    let unlimited: BTreeMap<String, u64> =
        facts.hugepage_sizes.iter().map(|size| (size.clone(), UNLIMITED_HUGE_PAGES)).collect();
    let class_limits = class_memory_limits(config, facts, requests);
    let protected = protected_memory(config, facts, requests);
    let of_class = |class, shares| CgroupSpec {
        name: qos_cgroup(config, class),
        values: CgroupValues {
            cpu_shares: Some(shares),
            memory_limit: class_limits.map(|limits| limits.of(class)),
            memory_low: protected.filter(|_| class == QosClass::Burstable).map(|kept| kept.burstable_low),
            hugepage_limits: unlimited.clone(),
            ..CgroupValues::default()
        },
    };
    let burstable = i64::try_from(requests.burstable_milli_cpu).unwrap_or(i64::MAX);
    vec![
        CgroupSpec {
            name: kubepods(config),
            values: CgroupValues {
                memory_min: protected.map(|kept| kept.pods_min),
                ..kubepods_limits(config, facts)
            },
        },
        of_class(QosClass::Burstable, cpu_shares(burstable)),
        of_class(QosClass::BestEffort, MIN_SHARES),
    ]
}

/// What all pods together are held to: what is not reserved, or all that the node has.
fn kubepods_limits(config: &NodeConfig, facts: &HostFacts) -> CgroupValues {
    let amounts = enforced_amounts(&config.node_object.capacity, facts, config.allocatable.enforce_pods);
    CgroupValues { hugepage_limits: limits_by_page_size(&amounts, &facts.hugepage_sizes), ..limits(&amounts) }
}

/// An amount that is not listed, or zero, limits nothing.
fn limits(amounts: &Amounts) -> CgroupValues {
    let units = |name| amounts.get(name).map(|amount| amount.value()).filter(|units| *units > 0);
    CgroupValues {
        cpu_shares: amounts.get(CPU).map(|cpu| cpu_shares(cpu.milli_value())),
        memory_limit: units(MEMORY),
        pids_limit: units(PID),
        ..CgroupValues::default()
    }
}

#[derive(Clone, Copy)]
struct ClassMemoryLimits {
    burstable: i64,
    best_effort: i64,
}

impl ClassMemoryLimits {
    fn of(self, class: QosClass) -> i64 {
        match class {
            QosClass::Guaranteed | QosClass::Burstable => self.burstable,
            QosClass::BestEffort => self.best_effort,
        }
    }
}

/// `qosReserved`: a percentage of what better classes request is kept free of worse ones.
fn class_memory_limits(
    config: &NodeConfig,
    facts: &HostFacts,
    requests: &ClassRequests,
) -> Option<ClassMemoryLimits> {
    let percent = u128::from(config.allocatable.reserved_memory_percent?);
    let allocatable = enforced_amounts(&config.node_object.capacity, facts, true).memory_bytes();
    let part = |bytes: u64| i64::try_from(u128::from(bytes) * percent / 100).unwrap_or(i64::MAX);
    let left = |whole: i64, bytes: u64| whole.saturating_sub(part(bytes)).max(0);
    let burstable = left(allocatable, requests.guaranteed_memory);
    let best_effort = left(burstable, requests.burstable_memory);
    (allocatable > 0).then_some(ClassMemoryLimits { burstable, best_effort })
}

/// Memory that the kernel does not take from pods, or only when there is no other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProtectedMemory {
    /// `memory.min` of `kubepods`: it has to cover what is protected below it in either way.
    pub pods_min: u64,
    /// `memory.low` of `burstable`.
    pub burstable_low: u64,
    /// The part of `pods_min` that is for guaranteed pods.
    pub guaranteed: u64,
}

/// `None`: the gate is off, or the kernel has no such protection.
pub fn protected_memory(
    config: &NodeConfig,
    facts: &HostFacts,
    requests: &ClassRequests,
) -> Option<ProtectedMemory> {
    let qos = config.allocatable.memory_qos.as_ref()?;
    if facts.cgroup_version != CgroupVersion::V2 {
        return None;
    }
    let requested = |bytes: u64| if qos.tiered { bytes } else { 0 };
    let (guaranteed, burstable_low) =
        (requested(requests.guaranteed_memory), requested(requests.burstable_memory));
    Some(ProtectedMemory { pods_min: guaranteed.saturating_add(burstable_low), burstable_low, guaranteed })
}

/// One cgroup of a reservation, and what is said about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Reservation {
    /// `Err`: why nothing can be written there.
    pub spec: Result<CgroupSpec, String>,
    /// The Event when it is written.
    pub success: String,
    /// How the Event about a failure begins.
    pub failure: String,
}

/// The cgroups of others that get what is reserved for them, in their order.
pub(crate) fn reservations(config: &NodeConfig, facts: &HostFacts) -> Vec<Reservation> {
    let reservation = |cgroup: &model::allocatable::ReservedCgroup| {
        let name = cgroup.name(config.cgroup_driver);
        let amounts = reserved_for(&config.node_object.capacity, cgroup.owner);
        let (owner, small) = match cgroup.owner {
            ReservedFor::System => ("System", "system"),
            ReservedFor::Kube => ("Kube", "kube"),
        };
        let part = if cgroup.compressible_only { "Compressible " } else { "" };
        let spec = match amounts.is_empty() || name.0.is_empty() {
            true => Err(format!("{} cgroup is not configured properly", quoted(&name))),
            false => Ok(CgroupSpec {
                name,
                values: reserved_values(config, facts, &amounts, cgroup.compressible_only),
            }),
        };
        Reservation {
            spec,
            success: format!("Updated limits on {small} reserved cgroup {}", cgroup.path),
            failure: format!("Failed to enforce {owner} Reserved {part}Cgroup Limits on {:?}", cgroup.path),
        }
    };
    config.allocatable.reserved_cgroups.iter().map(reservation).collect()
}

fn reserved_values(
    config: &NodeConfig,
    facts: &HostFacts,
    amounts: &Amounts,
    compressible_only: bool,
) -> CgroupValues {
    let all = limits(amounts);
    if compressible_only {
        return CgroupValues { cpu_shares: all.cpu_shares, ..CgroupValues::default() };
    }
    let protects = config.allocatable.memory_qos.is_some() && facts.cgroup_version == CgroupVersion::V2;
    let memory_min = all.memory_limit.filter(|_| protects).and_then(|bytes| u64::try_from(bytes).ok());
    CgroupValues { memory_min, ..all }
}

/// A name as messages show it: `["kubepods" "burstable"]`.
pub(crate) fn quoted(name: &CgroupName) -> String {
    let parts: Vec<String> = name.0.iter().map(|part| format!("{part:?}")).collect();
    format!("[{}]", parts.join(" "))
}

#[cfg(test)]
mod tests;
