//! Invariants about what the node keeps for itself: the cgroups above pods, and how much pods may request.

use decide::NodeState;
use decide::cgroups::{kubepods, qos_cgroup};
use decide::node_requests::ClassRequests;
use decide::resources::{Amounts, CPU, cpu_shares};
use decide::state::PodEntry;
use model::PodUid;
use model::cgroup::CgroupSpec;
use model::node::{HostFacts, NodeConfig};
use model::pod::QosClass;
use model::quantity::Quantity;

use super::InvariantChecker;
use crate::workload::{RESERVED_MEMORY, RESERVED_PIDS};
use crate::world::World;

/// As admission compares: CPU in thousandths, anything else in whole units.
fn exceeds(name: &str, amount: Quantity, offered: Quantity) -> bool {
    match name {
        CPU => amount.milli_value() > offered.milli_value(),
        _ => amount.value() > offered.value(),
    }
}

impl InvariantChecker {
    /// The limits of all pods are what the host has, less what is reserved, at every write.
    pub fn node_cgroups_written(&mut self, config: &NodeConfig, facts: &HostFacts, specs: &[CgroupSpec]) {
        let Some(pods) = specs.iter().find(|spec| spec.name == kubepods(config)) else { return };
        let memory = i64::try_from(facts.memory_bytes - RESERVED_MEMORY).ok();
        let pids = facts.pid_limit.and_then(|limit| i64::try_from(limit - RESERVED_PIDS).ok());
        let seen = (pods.values.memory_limit, pods.values.pids_limit);
        if seen != (memory, pids) {
            self.violate("allocatable", format!("pods may use {seen:?}, and not {:?}", (memory, pids)));
        }
    }

    /// The pods that were admitted fit the node, one with the other.
    pub fn requests_fit(&mut self, state: &NodeState) {
        let counts = |(uid, entry): &(&PodUid, &PodEntry)| {
            !entry.standing().is_orphan() && self.holds_room(uid, entry)
        };
        let mut requested = Amounts::default();
        state.pods.iter().filter(counts).for_each(|(_, entry)| requested.add(entry.requests()));
        let Some(allocatable) = self.offered(state) else { return };
        let over = requested.iter().find(|(name, amount)| {
            allocatable.get(name).is_some_and(|offered| exceeds(name, *amount, offered))
        });
        if let Some((name, amount)) = over {
            let offered = allocatable.amount(name);
            self.violate(
                "allocatable",
                format!("pods request {amount} of {name}, of which {offered} are allocatable"),
            );
        }
    }
}

/// Why the cgroups of the classes do not have what their pods request, if so. Once nothing changes any more they must.
pub fn wrong_class_values(world: &World, state: &NodeState) -> Option<String> {
    if world.sandboxes.is_empty() {
        return None;
    }
    let mut requests = ClassRequests::default();
    for entry in state.pods.values() {
        let standing = entry.standing();
        let admitted = standing.admission_wait().is_none() && standing.rejection().is_none();
        if !admitted || standing.is_orphan() || entry.lifecycle().is_terminated() {
            continue;
        }
        let memory = u64::try_from(entry.requests().memory_bytes()).unwrap_or(0);
        match entry.qos() {
            QosClass::Guaranteed => requests.guaranteed_memory += memory,
            QosClass::Burstable => {
                requests.burstable_memory += memory;
                requests.burstable_milli_cpu += u64::try_from(entry.requests().cpu_millis()).unwrap_or(0);
            }
            QosClass::BestEffort => {}
        }
    }
    let name = qos_cgroup(&state.config, QosClass::Burstable);
    let Some(burstable) = world.cgroups.get(&name) else {
        return Some("there is no cgroup of burstable pods".into());
    };
    // Half of what guaranteed pods request is kept free of burstable ones.
    let free = state.facts.memory_bytes - RESERVED_MEMORY - requests.guaranteed_memory / 2;
    let expect = (i64::try_from(requests.burstable_milli_cpu).ok().map(cpu_shares), i64::try_from(free).ok());
    let seen = (burstable.cpu_shares, burstable.memory_limit);
    (seen != expect).then(|| format!("the cgroup of burstable pods has {seen:?}, and not {expect:?}"))
}
