//! Cgroups as systemd slices.
//!
//! ```text
//! missing --StartTransientUnit--> active --SetUnitProperties--> active --StopUnit--> missing
//! ```
//!
//! systemd owns the tree, so it creates and removes the cgroups. Values without a systemd property (huge pages), values
//! that it rounds (the CPU quota, to whole percents) and hierarchies that it does not use are written into the files
//! afterwards, by the same code as without systemd. systemd gets most of the values too, so that it restores the right
//! ones when it is reloaded.
//!
//! `Delegate` is never set: systemd refuses it for slices. (It is the runtime's scopes that are delegated.)
//!
//! Tested with a real systemd (252, a user instance with its own bus) on a v2 tree whose only controller is hugetlb.
//! Not tested: that systemd itself writes CPU and memory files, and the system instance of a booted host.

mod bus;

use async_trait::async_trait;
use model::cgroup::{CgroupDriver, CgroupName, CgroupValues};
use model::node::CgroupVersion;
use ports::CgroupError;

use super::settings::weight;

pub(super) use bus::SystemdBus;

/// The kernel's and systemd's default. systemd before 242 accepts no other.
const DEFAULT_PERIOD: u64 = 100_000;

/// The calls to the system manager. Each returns when the job has ended, not when it is queued.
#[async_trait]
pub(super) trait SystemdUnits: Send + Sync {
    /// Returns `false` if the unit exists already.
    async fn start_transient(&self, unit: &str, properties: &[Property]) -> Result<bool, CgroupError>;
    async fn set_properties(&self, unit: &str, properties: &[Property]) -> Result<(), CgroupError>;
    /// Succeeds if the unit does not exist.
    async fn stop(&self, unit: &str) -> Result<(), CgroupError>;
}

pub(super) type Property = (&'static str, PropertyValue);

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum PropertyValue {
    Flag(bool),
    Number(u64),
    Text(String),
    List(Vec<String>),
}

/// The names of a slice's unit and its parent's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Slice {
    pub unit: String,
    pub parent: String,
}

impl Slice {
    /// `None` for the root, which we neither start nor stop.
    pub fn of(name: &CgroupName) -> Option<Self> {
        let path = name.to_path(CgroupDriver::Systemd);
        let mut parts = path.rsplit('/').filter(|part| !part.is_empty());
        let unit = parts.next()?.to_owned();
        let parent = parts.next().unwrap_or("-.slice").to_owned();
        Some(Self { unit, parent })
    }

    /// The model's name of the child that the slice `entry` is, if it is one: of `kubepods-burstable.slice`, the entry
    /// `kubepods-burstable-pod12_ab.slice` is `pod12-ab`.
    pub fn child(parent: &CgroupName, entry: &str) -> Option<String> {
        let slice = entry.strip_suffix(".slice")?;
        let part = match Slice::of(parent) {
            Some(own) => slice.strip_prefix(own.unit.strip_suffix(".slice")?)?.strip_prefix('-')?,
            None => slice,
        };
        // A dash would mean a further level, which systemd never places here.
        (!part.is_empty() && !part.contains('-')).then(|| part.replace('_', "-"))
    }
}

/// Creates or changes a slice. `made`: whether its cgroup exists already.
pub(super) async fn ensure(
    units: &dyn SystemdUnits,
    slice: &Slice,
    version: CgroupVersion,
    values: &CgroupValues,
    made: bool,
) -> Result<(), CgroupError> {
    let resources = resources(version, values);
    if !made {
        let mut properties = identity(slice, version);
        properties.extend(resources.iter().cloned());
        if units.start_transient(&slice.unit, &properties).await? {
            return Ok(());
        }
    }
    if resources.is_empty() {
        return Ok(());
    }
    units.set_properties(&slice.unit, &resources).await
}

fn identity(slice: &Slice, version: CgroupVersion) -> Vec<Property> {
    use PropertyValue::{Flag, List, Text};
    let io = match version {
        CgroupVersion::V1 => "BlockIOAccounting",
        CgroupVersion::V2 => "IOAccounting",
    };
    vec![
        ("Description", Text(format!("Kubernetes cgroup {}", slice.unit))),
        // The slice's name defines its place in the tree; this keeps the parent active for as long as it.
        ("Wants", List(vec![slice.parent.clone()])),
        // By default systemd would stop the slice at shutdown together with ordinary units.
        ("DefaultDependencies", Flag(false)),
        // Accounting properties make systemd enable a controller.
        ("CPUAccounting", Flag(true)),
        ("MemoryAccounting", Flag(true)),
        (io, Flag(true)),
        ("TasksAccounting", Flag(true)),
    ]
}

fn resources(version: CgroupVersion, values: &CgroupValues) -> Vec<Property> {
    use PropertyValue::Number;
    let mut out = Vec::new();
    if let Some(shares) = values.cpu_shares {
        out.push(match version {
            CgroupVersion::V1 => ("CPUShares", Number(shares.clamp(2, 262_144))),
            CgroupVersion::V2 => ("CPUWeight", Number(weight(shares))),
        });
    }
    if let Some(quota) = values.cpu_quota {
        let period = values.cpu_period.filter(|period| *period > 0).unwrap_or(DEFAULT_PERIOD);
        if period != DEFAULT_PERIOD {
            out.push(("CPUQuotaPeriodUSec", Number(period)));
        }
        out.push(("CPUQuotaPerSecUSec", Number(quota_per_second(quota, period))));
    }
    if let Some(bytes) = values.memory_limit {
        let name = match version {
            CgroupVersion::V1 => "MemoryLimit",
            CgroupVersion::V2 => "MemoryMax",
        };
        out.push((name, Number(or_infinity(bytes))));
    }
    if version == CgroupVersion::V2 {
        let protected = [("MemoryMin", values.memory_min), ("MemoryLow", values.memory_low)];
        out.extend(protected.into_iter().filter_map(|(name, bytes)| Some((name, Number(bytes?)))));
    }
    // systemd accepts no 0 here; the file does.
    if let Some(count) = values.pids_limit.filter(|count| *count != 0) {
        out.push(("TasksMax", Number(or_infinity(count))));
    }
    out
}

fn or_infinity(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

/// systemd stores whole percents of a CPU. Rounded up, so that the children can still have all that they are promised.
fn quota_per_second(quota: i64, period: u64) -> u64 {
    const PERCENT: u128 = 10_000;
    match u128::try_from(quota) {
        Err(_) | Ok(0) => u64::MAX,
        Ok(quota) => {
            let exact = quota * 1_000_000 / u128::from(period.max(1));
            u64::try_from(exact.div_ceil(PERCENT) * PERCENT).unwrap_or(u64::MAX)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(parts: &[&str]) -> CgroupName {
        CgroupName(parts.iter().map(|p| p.to_string()).collect())
    }

    #[test]
    fn slices_of_names() {
        let check = |parts: &[&str], expect: Option<(&str, &str)>| {
            let expect = expect.map(|(unit, parent)| Slice { unit: unit.into(), parent: parent.into() });
            assert_eq!(Slice::of(&name(parts)), expect, "{parts:?}");
        };
        check(&[], None);
        check(&["kubepods"], Some(("kubepods.slice", "-.slice")));
        check(
            &["kubepods", "burstable", "pod12-ab"],
            Some(("kubepods-burstable-pod12_ab.slice", "kubepods-burstable.slice")),
        );
    }

    #[test]
    fn children_of_slices() {
        let check = |parts: &[&str], entry: &str, expect: Option<&str>| {
            assert_eq!(Slice::child(&name(parts), entry).as_deref(), expect, "{parts:?} {entry}");
        };
        let burstable = ["kubepods", "burstable"];
        check(&burstable, "kubepods-burstable-pod12_ab.slice", Some("pod12-ab"));
        check(&["kubepods"], "kubepods-burstable.slice", Some("burstable"));
        check(&[], "kubepods.slice", Some("kubepods"));
        check(&[], "-.slice", None);
        check(&burstable, "kubepods-besteffort-pod1.slice", None);
        check(&burstable, "kubepods-burstable.slice", None);
        check(&burstable, "kubepods-burstable-.slice", None);
        check(&burstable, "kubepods-burstablepod1.slice", None);
        check(&burstable, "kubepods-burstable-pod1-x.slice", None);
        check(&burstable, "cri-containerd-abc.scope", None);
        check(&burstable, "kubepods-burstable-pod1", None);
    }

    #[test]
    fn every_name_comes_back_from_its_slice() {
        for part in ["pod12-ab-cd", "burstable", "x"] {
            let parent = name(&["my-root", "kubepods"]);
            let slice = Slice::of(&parent.child(part)).unwrap();
            assert_eq!(Slice::child(&parent, &slice.unit).as_deref(), Some(part));
        }
    }

    #[test]
    fn quota_is_rounded_up_to_whole_percents() {
        let check =
            |quota, period, expect| assert_eq!(quota_per_second(quota, period), expect, "{quota} {period}");
        check(-1, 100_000, u64::MAX);
        check(0, 100_000, u64::MAX);
        check(50_000, 100_000, 500_000);
        check(12_345, 100_000, 130_000);
        check(1_000, 100_000, 10_000);
        check(10_000, 20_000, 500_000);
        check(200_000, 100_000, 2_000_000);
        check(i64::MAX, 1, u64::MAX);
        check(5, 0, 5_000_000);
    }

    #[test]
    fn properties_of_each_version() {
        use PropertyValue::Number;
        let values = CgroupValues {
            cpu_shares: Some(1024),
            cpu_quota: Some(150_000),
            cpu_period: Some(100_000),
            memory_limit: Some(1 << 20),
            memory_min: Some(4096),
            memory_low: Some(0),
            pids_limit: Some(-1),
            hugepage_limits: [("2MB".to_owned(), 0)].into(),
        };
        assert_eq!(
            resources(CgroupVersion::V1, &values),
            [
                ("CPUShares", Number(1024)),
                ("CPUQuotaPerSecUSec", Number(1_500_000)),
                ("MemoryLimit", Number(1 << 20)),
                ("TasksMax", Number(u64::MAX)),
            ]
        );
        assert_eq!(
            resources(CgroupVersion::V2, &values),
            [
                ("CPUWeight", Number(39)),
                ("CPUQuotaPerSecUSec", Number(1_500_000)),
                ("MemoryMax", Number(1 << 20)),
                ("MemoryMin", Number(4096)),
                ("MemoryLow", Number(0)),
                ("TasksMax", Number(u64::MAX)),
            ]
        );
        let odd = CgroupValues {
            cpu_quota: Some(10_000),
            cpu_period: Some(20_000),
            pids_limit: Some(0),
            ..CgroupValues::default()
        };
        assert_eq!(
            resources(CgroupVersion::V2, &odd),
            [("CPUQuotaPeriodUSec", Number(20_000)), ("CPUQuotaPerSecUSec", Number(500_000))]
        );
        assert!(resources(CgroupVersion::V2, &CgroupValues::default()).is_empty());
    }

    #[test]
    fn a_slice_is_accounted_but_never_delegated() {
        let slice = Slice::of(&name(&["kubepods", "burstable"])).unwrap();
        for version in [CgroupVersion::V1, CgroupVersion::V2] {
            let properties = identity(&slice, version);
            assert!(properties.contains(&("Wants", PropertyValue::List(vec!["kubepods.slice".into()]))));
            assert!(properties.contains(&("MemoryAccounting", PropertyValue::Flag(true))));
            assert!(properties.iter().all(|(name, _)| *name != "Delegate"));
        }
    }
}
