//! How much this node has, and how much of it pods may use. One computation for the Node object and for admission.

use model::allocatable::ReservedFor;
use model::node::{CapacityRules, HostFacts, NodeConfig, ThresholdValue};
use model::quantity::{Format, Quantity};

use super::{Amounts, CPU, EPHEMERAL_STORAGE, HUGE_PAGES_PREFIX, MEMORY};

pub const PODS: &str = "pods";
/// Processes and threads. It can be reserved, and is no part of the Node object.
pub const PID: &str = "pid";

pub fn capacity(rules: &CapacityRules, facts: &HostFacts) -> Amounts {
    let bytes = |bytes: u64| Quantity::from_units(i64::try_from(bytes).unwrap_or(i64::MAX), Format::BinarySi);
    let count = |count: u32| Quantity::from_units(i64::from(count), Format::DecimalSi);
    let mut capacity = Amounts::default();
    capacity.set(CPU, count(facts.cpus));
    capacity.set(MEMORY, bytes(facts.memory_bytes));
    capacity.set(PODS, count(pod_count(rules, facts.cpus)));
    if rules.local_storage && facts.root_fs_bytes > 0 {
        capacity.set(EPHEMERAL_STORAGE, bytes(facts.root_fs_bytes));
    }
    for (size, reserved) in &facts.huge_pages {
        capacity.set(&format!("{HUGE_PAGES_PREFIX}{}", bytes(*size)), bytes(*reserved));
    }
    capacity
}

fn pod_count(rules: &CapacityRules, cpus: u32) -> u32 {
    match rules.pods_per_core {
        0 => rules.max_pods,
        per_core => rules.max_pods.min(per_core.saturating_mul(cpus)),
    }
}

/// What is kept back: for the system, for Kubernetes, and to have something left when eviction begins.
pub fn reserved_amounts(rules: &CapacityRules, capacity: &Amounts) -> Amounts {
    let mut kept = Amounts::from_api(Some(&rules.system_reserved));
    kept.add(&Amounts::from_api(Some(&rules.kube_reserved)));
    for (name, share) in [(MEMORY, &rules.eviction_memory), (EPHEMERAL_STORAGE, &rules.eviction_storage)] {
        let amount = share.as_ref().and_then(|share| part_of(share, capacity.amount(name)));
        kept.add(&amount.into_iter().map(|amount| (name, amount)).collect());
    }
    kept
}

fn part_of(share: &ThresholdValue, whole: Quantity) -> Option<Quantity> {
    match share {
        ThresholdValue::Amount(amount) => Quantity::try_from(amount).ok(),
        ThresholdValue::Fraction(fraction) => {
            let units = whole.value() as f64 * f64::from(*fraction);
            Some(Quantity::from_units(units as i64, Format::BinarySi))
        }
    }
}

/// What is reserved for the system or for Kubernetes.
pub(crate) fn reserved_for(rules: &CapacityRules, owner: ReservedFor) -> Amounts {
    Amounts::from_api(Some(match owner {
        ReservedFor::System => &rules.system_reserved,
        ReservedFor::Kube => &rules.kube_reserved,
    }))
}

/// What the cgroup of all pods is held to: what the node has, less what is reserved if that is enforced. The amount of
/// the eviction thresholds is not taken off, and huge pages are not taken from memory: they are limited beside it.
pub(crate) fn enforced_amounts(rules: &CapacityRules, facts: &HostFacts, less_reserved: bool) -> Amounts {
    let mut amounts = capacity(rules, facts);
    if let Some(count) = facts.pid_limit {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        amounts.set(PID, Quantity::from_units(count, Format::DecimalSi));
    }
    if !less_reserved {
        return amounts;
    }
    let reserved = reserved_for(rules, ReservedFor::System).plus(&reserved_for(rules, ReservedFor::Kube));
    less(&amounts, &reserved)
}

/// Never below zero.
fn less(amounts: &Amounts, by: &Amounts) -> Amounts {
    amounts.iter().map(|(name, amount)| (name, less_amount(amount, by.amount(name)))).collect()
}

fn less_amount(amount: Quantity, by: Quantity) -> Quantity {
    let rest = amount - by;
    if rest.is_negative() { Quantity::from_units(0, amount.format()) } else { rest }
}

/// Huge pages are memory too: what is set aside as such is not there as anything else.
pub(crate) fn allocatable(capacity: &Amounts, reservation: &Amounts) -> Amounts {
    let mut allocatable = less(capacity, reservation);
    for (_, pages) in capacity.iter().filter(|(name, _)| name.starts_with(HUGE_PAGES_PREFIX)) {
        if let Some(memory) = allocatable.get(MEMORY) {
            allocatable.set(MEMORY, less_amount(memory, pages));
        }
    }
    allocatable
}

/// What pods may use of this host.
fn allocatable_here(rules: &CapacityRules, facts: &HostFacts) -> Amounts {
    let capacity = capacity(rules, facts);
    allocatable(&capacity, &reserved_amounts(rules, &capacity))
}

/// What pods may use of the node.
pub fn node_allocatable(config: &NodeConfig, facts: &HostFacts) -> Amounts {
    allocatable_here(&config.node_object.capacity, facts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::k8s;
    use std::collections::BTreeMap;

    fn list(text: &str) -> BTreeMap<String, k8s::Quantity> {
        let pair = |part: &str| {
            let (name, amount) = part.split_once('=').unwrap();
            (name.to_owned(), k8s::Quantity(amount.to_owned()))
        };
        text.split_whitespace().map(pair).collect()
    }

    fn shown(amounts: &Amounts) -> String {
        let parts: Vec<String> = amounts.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
        parts.join(" ")
    }

    fn facts() -> HostFacts {
        HostFacts {
            cpus: 4,
            memory_bytes: 8 << 30,
            root_fs_bytes: 100 << 30,
            huge_pages: [(2 << 20, 1 << 30), (1 << 30, 0)].into(),
            ..HostFacts::default()
        }
    }

    fn check(rules: CapacityRules, expect_capacity: &str, expect_allocatable: &str) {
        assert_eq!(shown(&capacity(&rules, &facts())), expect_capacity, "{rules:?}");
        assert_eq!(shown(&allocatable_here(&rules, &facts())), expect_allocatable, "{rules:?}");
    }

    #[test]
    fn what_is_reserved_is_not_for_pods() {
        let plain = CapacityRules::default();
        check(
            plain.clone(),
            "cpu=4 ephemeral-storage=100Gi hugepages-1Gi=0 hugepages-2Mi=1Gi memory=8Gi pods=110",
            "cpu=4 ephemeral-storage=100Gi hugepages-1Gi=0 hugepages-2Mi=1Gi memory=7Gi pods=110",
        );
        check(
            CapacityRules {
                system_reserved: list("cpu=500m memory=1Gi"),
                kube_reserved: list("cpu=250m ephemeral-storage=10Gi pid=100"),
                eviction_memory: Some(ThresholdValue::Amount(k8s::Quantity("100Mi".into()))),
                pods_per_core: 10,
                ..plain.clone()
            },
            "cpu=4 ephemeral-storage=100Gi hugepages-1Gi=0 hugepages-2Mi=1Gi memory=8Gi pods=40",
            "cpu=3250m ephemeral-storage=90Gi hugepages-1Gi=0 hugepages-2Mi=1Gi memory=6044Mi pods=40",
        );
        check(
            CapacityRules {
                system_reserved: list("cpu=9 memory=1Ti"),
                local_storage: false,
                pods_per_core: 100,
                ..plain
            },
            "cpu=4 hugepages-1Gi=0 hugepages-2Mi=1Gi memory=8Gi pods=110",
            "cpu=0 hugepages-1Gi=0 hugepages-2Mi=1Gi memory=0 pods=110",
        );
    }

    #[test]
    fn a_tenth_is_rounded_as_the_reference_does() {
        let rules = CapacityRules {
            eviction_storage: Some(ThresholdValue::Fraction(0.1)),
            ..CapacityRules::default()
        };
        let facts = HostFacts { root_fs_bytes: 264_212_084 * 1024, ..facts() };
        let storage = allocatable_here(&rules, &facts).amount(EPHEMERAL_STORAGE);
        assert_eq!(storage.to_string(), "243497856212");
    }
}
