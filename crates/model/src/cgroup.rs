//! Cgroups as values: a path of names, and the numbers to write. The drivers turn them into files or slices.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A cgroup by the names of its parts below the root of the hierarchy, before a driver spells them:
/// `["kubepods", "burstable", "pod1234-abcd"]`. `cgroupRoot` parts come first.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct CgroupName(pub Vec<String>);

impl CgroupName {
    pub fn child(&self, part: impl Into<String>) -> Self {
        let mut parts = self.0.clone();
        parts.push(part.into());
        Self(parts)
    }

    /// The path below a controller's root, as the driver spells it. This is also what the runtime is given as a
    /// sandbox's parent: for systemd the whole expanded path of slices.
    pub fn to_path(&self, driver: CgroupDriver) -> String {
        match driver {
            CgroupDriver::Cgroupfs => format!("/{}", self.0.join("/")),
            CgroupDriver::Systemd => {
                let mut path = String::new();
                let mut slice = String::new();
                for part in &self.0 {
                    if !slice.is_empty() {
                        slice.push('-');
                    }
                    slice.push_str(&part.replace('-', "_"));
                    path.push_str(&format!("/{slice}.slice"));
                }
                if path.is_empty() { "/".into() } else { path }
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CgroupDriver {
    Cgroupfs,
    Systemd,
}

/// What to write. `None` leaves the kernel's value.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CgroupValues {
    pub cpu_shares: Option<u64>,
    /// Microseconds; -1 means no cap.
    pub cpu_quota: Option<i64>,
    pub cpu_period: Option<u64>,
    pub memory_limit: Option<i64>,
    /// Bytes that are never reclaimed. Version 2 only, as the next.
    #[serde(default)]
    pub memory_min: Option<u64>,
    /// Bytes that are reclaimed only when there is nothing else.
    #[serde(default)]
    pub memory_low: Option<u64>,
    /// -1 means no limit.
    pub pids_limit: Option<i64>,
    /// Page size name (`2MB`) to bytes.
    pub hugepage_limits: BTreeMap<String, u64>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CgroupSpec {
    pub name: CgroupName,
    pub values: CgroupValues,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_driver_spells_a_name_its_own_way() {
        let check = |parts: &[&str], driver, expect: &str| {
            let name = CgroupName(parts.iter().map(|p| p.to_string()).collect());
            assert_eq!(name.to_path(driver), expect, "{parts:?} {driver:?}");
        };
        use CgroupDriver::{Cgroupfs, Systemd};
        check(&["kubepods", "burstable", "pod12-ab"], Cgroupfs, "/kubepods/burstable/pod12-ab");
        check(
            &["kubepods", "burstable", "pod12-ab"],
            Systemd,
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12_ab.slice",
        );
        check(&["a", "b", "kubepods"], Systemd, "/a.slice/a-b.slice/a-b-kubepods.slice");
        check(&[], Cgroupfs, "/");
        check(&[], Systemd, "/");
    }
}
