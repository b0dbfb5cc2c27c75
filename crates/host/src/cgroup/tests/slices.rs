//! The systemd driver: what is asked of systemd, and what goes into files. The recorder stands in for systemd and the
//! kernel behind it; `systemd::bus` has its own tests.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use model::cgroup::CgroupValues;
use ports::{CgroupError, Cgroups};
use tempfile::TempDir;
use tokio::sync::Mutex;

use super::super::systemd::{Property, PropertyValue, SystemdUnits};
use super::super::{ArcSwap, CgroupLayout, Driver, HostCgroups};
use super::plain::{make, text};
use super::{name, spec};

const POD: &str = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12_ab.slice";

/// Verb and unit, then the properties.
type Asked = Arc<Mutex<Vec<(String, Vec<Property>)>>>;

struct Recorder {
    asked: Asked,
    root: PathBuf,
    /// Whether systemd already has the unit that it is asked to start.
    has_unit: bool,
}

#[async_trait]
impl SystemdUnits for Recorder {
    async fn start_transient(&self, unit: &str, properties: &[Property]) -> Result<bool, CgroupError> {
        self.asked.lock().await.push((format!("start {unit}"), properties.to_vec()));
        let mut below = String::new();
        for part in POD.split('/') {
            below.push_str(&format!("{part}/"));
            make(&self.root, &below);
        }
        Ok(!self.has_unit)
    }

    async fn set_properties(&self, unit: &str, properties: &[Property]) -> Result<(), CgroupError> {
        self.asked.lock().await.push((format!("set {unit}"), properties.to_vec()));
        Ok(())
    }

    async fn stop(&self, unit: &str) -> Result<(), CgroupError> {
        self.asked.lock().await.push((format!("stop {unit}"), Vec::new()));
        // The kernel's files go with the directory.
        std::fs::remove_dir_all(self.root.join(POD)).unwrap();
        Ok(())
    }
}

struct Host {
    dir: TempDir,
    cgroups: HostCgroups,
    asked: Asked,
}

impl Host {
    fn new(has_unit: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        make(dir.path(), "");
        let asked = Asked::default();
        let units = Recorder { asked: asked.clone(), root: dir.path().to_path_buf(), has_unit };
        let layout = Arc::new(CgroupLayout::V2 { root: dir.path().to_path_buf() });
        let cgroups = HostCgroups { layout, driver: ArcSwap::from_pointee(Driver::Systemd(Box::new(units))) };
        Host { dir, cgroups, asked }
    }

    fn root(&self) -> &Path {
        self.dir.path()
    }

    async fn taken(&self) -> Vec<(String, Vec<Property>)> {
        std::mem::take(&mut *self.asked.lock().await)
    }

    async fn verbs(&self) -> Vec<String> {
        self.taken().await.into_iter().map(|(verb, _)| verb).collect()
    }
}

fn values() -> CgroupValues {
    CgroupValues {
        cpu_shares: Some(512),
        cpu_quota: Some(12_345),
        cpu_period: Some(100_000),
        memory_limit: Some(64 << 20),
        pids_limit: Some(100),
        hugepage_limits: [("2MB".to_owned(), 4 << 20)].into(),
        ..CgroupValues::default()
    }
}

#[tokio::test]
async fn one_request_makes_the_slice_and_the_files_get_the_rest() {
    let host = Host::new(false);
    let pod = name(&["kubepods", "burstable", "pod12-ab"]);
    host.cgroups.ensure(&spec(&pod, values())).await.unwrap();

    let asked = host.taken().await;
    assert_eq!(asked.len(), 1, "{asked:?}");
    let (verb, properties) = &asked[0];
    assert_eq!(verb, "start kubepods-burstable-pod12_ab.slice");
    let has = |name, value| assert!(properties.contains(&(name, value)), "{name} in {properties:?}");
    has("Wants", PropertyValue::List(vec!["kubepods-burstable.slice".into()]));
    has("CPUWeight", PropertyValue::Number(20));
    has("CPUQuotaPerSecUSec", PropertyValue::Number(130_000));
    has("MemoryMax", PropertyValue::Number(64 << 20));
    has("TasksMax", PropertyValue::Number(100));

    let here = host.root().join(POD);
    assert_eq!(text(&here, "hugetlb.2MB.max"), "4194304", "systemd has no property for it");
    assert_eq!(text(&here, "cpu.max"), "12345 100000", "systemd rounds it");
    let handed_down = text(host.root(), "kubepods.slice/cgroup.subtree_control");
    assert!(handed_down.contains("+hugetlb"), "{handed_down}");
    assert_eq!(host.cgroups.children(&name(&["kubepods", "burstable"])).await.unwrap(), ["pod12-ab"]);
    assert!(host.cgroups.exists(&pod).await.unwrap());
}

#[tokio::test]
async fn nothing_is_asked_when_nothing_differs() {
    let host = Host::new(false);
    let pod = name(&["kubepods", "burstable", "pod12-ab"]);
    host.cgroups.ensure(&spec(&pod, values())).await.unwrap();
    assert_eq!(host.verbs().await.len(), 1);
    host.cgroups.ensure(&spec(&pod, values())).await.unwrap();
    assert!(host.verbs().await.is_empty());

    let more = CgroupValues { memory_limit: Some(128 << 20), ..CgroupValues::default() };
    host.cgroups.ensure(&spec(&pod, more)).await.unwrap();
    let set = (
        "set kubepods-burstable-pod12_ab.slice".to_owned(),
        vec![("MemoryMax", PropertyValue::Number(128 << 20))],
    );
    assert_eq!(host.taken().await, [set]);
    assert_eq!(text(&host.root().join(POD), "memory.max"), "134217728");
}

#[tokio::test]
async fn a_unit_without_its_cgroup_is_told_the_values() {
    let host = Host::new(true);
    let pod = name(&["kubepods", "burstable", "pod12-ab"]);
    host.cgroups.ensure(&spec(&pod, values())).await.unwrap();
    let unit = "kubepods-burstable-pod12_ab.slice";
    assert_eq!(host.verbs().await, [format!("start {unit}"), format!("set {unit}")]);
}

#[tokio::test]
async fn destroying_stops_the_slice() {
    let host = Host::new(false);
    let pod = name(&["kubepods", "burstable", "pod12-ab"]);
    host.cgroups.ensure(&spec(&pod, values())).await.unwrap();
    host.taken().await;
    host.cgroups.destroy(&pod).await.unwrap();
    assert_eq!(host.verbs().await, ["stop kubepods-burstable-pod12_ab.slice"]);
    assert!(!host.root().join(POD).exists());
    assert!(host.root().join("kubepods.slice/kubepods-burstable.slice").exists());
    assert!(host.cgroups.destroy(&name(&[])).await.is_err());
    assert!(host.verbs().await.is_empty(), "the root slice is never stopped");
}
