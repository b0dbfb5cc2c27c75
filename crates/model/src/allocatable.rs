//! How much of the node pods may use, and how that is enforced: the configured part.

use serde::{Deserialize, Serialize};

use crate::cgroup::{CgroupDriver, CgroupName};

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AllocatableConfig {
    /// `enforceNodeAllocatable` has `pods`: `kubepods` is limited to what is not reserved. Else it is limited to what
    /// the node has.
    pub enforce_pods: bool,
    /// Cgroups of others that get what is reserved for them, in the order in which they are written.
    pub reserved_cgroups: Vec<ReservedCgroup>,
    /// The percentage of `qosReserved` for memory. `None`: nothing is kept free for the requests of better classes.
    pub reserved_memory_percent: Option<u8>,
    /// `None`: the gate is off.
    pub memory_qos: Option<MemoryQosConfig>,
    /// `memorySwap.swapBehavior` is `LimitedSwap`.
    pub limited_swap: bool,
}

impl Default for AllocatableConfig {
    fn default() -> Self {
        Self {
            enforce_pods: true,
            reserved_cgroups: Vec::new(),
            reserved_memory_percent: None,
            memory_qos: None,
            limited_swap: false,
        }
    }
}

/// A cgroup of others that gets the values of a reservation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReservedCgroup {
    pub owner: ReservedFor,
    /// As configured: `/system.slice`.
    pub path: String,
    /// Only the CPU weight is written.
    pub compressible_only: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ReservedFor {
    System,
    Kube,
}

impl ReservedCgroup {
    /// The cgroup's name for a driver. Of a path of slices the last one says where it is in the tree.
    pub fn name(&self, driver: CgroupDriver) -> CgroupName {
        let mut parts = self.path.split('/').filter(|part| !part.is_empty());
        let parts = match driver {
            CgroupDriver::Cgroupfs => parts.map(str::to_owned).collect(),
            CgroupDriver::Systemd => {
                let slice = parts.next_back().unwrap_or_default();
                let slice = slice.strip_suffix(".slice").unwrap_or(slice);
                slice.split('-').filter(|part| !part.is_empty()).map(str::to_owned).collect()
            }
        };
        CgroupName(parts)
    }
}

/// `memoryThrottlingFactor` and `memoryReservationPolicy`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MemoryQosConfig {
    pub throttling_factor: f64,
    /// The policy is `TieredReservation`: what pods request is protected from reclaim.
    pub tiered: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_reserved_cgroups() {
        let check = |path: &str, driver, expect: &[&str]| {
            let cgroup =
                ReservedCgroup { owner: ReservedFor::System, path: path.into(), compressible_only: false };
            assert_eq!(cgroup.name(driver).0, expect, "{path} {driver:?}");
        };
        use CgroupDriver::{Cgroupfs, Systemd};
        check("/system", Cgroupfs, &["system"]);
        check("/a/b-c", Cgroupfs, &["a", "b-c"]);
        check("/system.slice", Systemd, &["system"]);
        check("system.slice", Systemd, &["system"]);
        check("/kube.slice/kube-reserved.slice", Systemd, &["kube", "reserved"]);
        check("runtime", Systemd, &["runtime"]);
        check("/", Systemd, &[]);
    }
}
