//! A real systemd: a user's instance, started for the test with nothing to run, in a cgroup of the test's own. It
//! manages what is below that cgroup as the system's instance manages everything, speaks the same D-Bus interface, and
//! can be had wherever systemd is installed, booted or not.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use model::cgroup::{CgroupDriver, CgroupValues};
use model::node::CgroupVersion;
use ports::Cgroups;
use tempfile::TempDir;

use super::super::systemd::{self, PropertyValue, Slice, SystemdBus, SystemdUnits};
use super::super::{ArcSwap, CgroupLayout, Driver, HostCgroups};
use super::kernel::{Kernel, Own};
use super::{name, spec};

const SYSTEMD: &str = "/usr/lib/systemd/systemd";

/// In a mount namespace, so that it can be made to believe that the system runs systemd. (It refuses otherwise.)
const START: &str = r#"
    echo $$ > "$CGROUP/cgroup.procs" &&
    mount --make-rprivate / && mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system &&
    exec "$SYSTEMD" --user --unit=default.target
"#;

/// A message bus is all that it is to run.
const UNITS: [(&str, &str); 3] = [
    ("default.target", "[Unit]\nWants=dbus.socket dbus.service\n"),
    ("dbus.socket", "[Socket]\nListenStream=%t/bus\n"),
    (
        "dbus.service",
        "[Service]\nType=notify\nExecStart=dbus-daemon --session --address=systemd: --nofork --nopidfile\n",
    ),
];

struct Manager {
    process: Child,
    home: TempDir,
}

impl Manager {
    fn start(cgroup: &Path) -> Manager {
        let home = tempfile::tempdir().unwrap();
        let units = home.path().join("units");
        fs::create_dir(&units).unwrap();
        for (unit, text) in UNITS {
            fs::write(units.join(unit), text).unwrap();
        }
        let process = Command::new("unshare")
            .args(["--mount", "sh", "-c", START])
            .env("CGROUP", cgroup)
            .env("SYSTEMD", SYSTEMD)
            .env("XDG_RUNTIME_DIR", home.path())
            .env("SYSTEMD_UNIT_PATH", &units)
            .env("SYSTEMD_LOG_TARGET", "console")
            .env("HOME", home.path())
            .env_remove("DBUS_SESSION_BUS_ADDRESS")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Manager { process, home }
    }

    /// What it knows of a unit.
    fn properties(&self, unit: &str) -> String {
        let shown = Command::new("systemctl")
            .args(["--user", "show", unit])
            .env("XDG_RUNTIME_DIR", self.home.path())
            .env("DBUS_SESSION_BUS_ADDRESS", format!("unix:path={}/bus", self.home.path().display()))
            .output()
            .unwrap();
        assert!(shown.status.success(), "{shown:?}");
        String::from_utf8(shown.stdout).unwrap()
    }

    /// Its bus, once it answers there.
    async fn bus(&self) -> SystemdBus {
        let bus = SystemdBus::on(&self.home.path().join("bus"));
        for _ in 0..200 {
            match bus.stop("never-seen.slice").await {
                Ok(()) => return bus,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
        panic!("systemd does not answer in {}", self.home.path().display());
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The v2 tree of this host, if there is one and systemd is installed.
fn usable(kernel: &Kernel) -> Option<(&Own, PathBuf)> {
    let v2 = |own: &&Own| matches!(own.layout, CgroupLayout::V2 { .. });
    let own = kernel.owns.iter().find(v2).filter(|_| Path::new(SYSTEMD).exists());
    if own.is_none() {
        eprintln!("no cgroup v2, no systemd or not root: the real systemd is not tried");
    }
    own.map(|own| (own, own.directories(&own.top).remove(0)))
}

#[tokio::test]
async fn slices_come_and_go() {
    let kernel = Kernel::hold();
    let Some((own, root)) = usable(&kernel) else { return };
    own.cgroups.ensure(&spec(&own.top, CgroupValues::default())).await.unwrap();
    let manager = Manager::start(&root);
    let bus = manager.bus().await;
    let layout = CgroupLayout::V2 { root: root.clone() };
    let cgroups =
        HostCgroups { layout: layout.into(), driver: ArcSwap::from_pointee(Driver::Systemd(Box::new(bus))) };

    let values = CgroupValues {
        cpu_shares: Some(512),
        cpu_quota: Some(12_345),
        cpu_period: Some(50_000),
        memory_limit: Some(64 << 20),
        pids_limit: Some(100),
        hugepage_limits: [("2MB".to_owned(), 4 << 20)].into(),
        ..CgroupValues::default()
    };
    let pod = name(&["kubepods", "burstable", "pod12-ab"]);
    let path = root.join(&pod.to_path(CgroupDriver::Systemd)[1..]);
    cgroups.ensure(&spec(&pod, values.clone())).await.unwrap();
    assert!(path.is_dir());
    assert!(cgroups.exists(&pod).await.unwrap());
    assert_eq!(cgroups.children(&name(&["kubepods", "burstable"])).await.unwrap(), ["pod12-ab"]);
    let written = |file: &str| fs::read_to_string(path.join(file)).ok().map(|text| text.trim().to_owned());
    for (file, expect) in [
        ("hugetlb.2MB.max", "4194304"),
        ("memory.max", "67108864"),
        ("cpu.weight", "20"),
        ("cpu.max", "12345 50000"),
        ("pids.max", "100"),
    ] {
        assert!(written(file).is_none_or(|text| text == expect), "{file}: {:?}", written(file));
    }

    let told = manager.properties("kubepods-burstable-pod12_ab.slice");
    for property in [
        "CPUWeight=20",
        "CPUQuotaPerSecUSec=250ms",
        "CPUQuotaPeriodUSec=50ms",
        "MemoryMax=67108864",
        "TasksMax=100",
        "MemoryAccounting=yes",
        "Wants=kubepods-burstable.slice",
    ] {
        assert!(told.lines().any(|line| line == property), "{property} in {told}");
    }

    let changed = CgroupValues {
        hugepage_limits: [("2MB".to_owned(), 0)].into(),
        memory_limit: Some(-1),
        cpu_quota: Some(-1),
        ..values
    };
    cgroups.ensure(&spec(&pod, changed)).await.unwrap();
    assert!(written("hugetlb.2MB.max").is_none_or(|text| text == "0"));
    let told = manager.properties("kubepods-burstable-pod12_ab.slice");
    for property in ["MemoryMax=infinity", "CPUQuotaPerSecUSec=infinity", "CPUWeight=20"] {
        assert!(told.lines().any(|line| line == property), "{property} in {told}");
    }

    cgroups.destroy(&pod).await.unwrap();
    assert!(!path.exists());
    assert!(cgroups.children(&name(&["kubepods", "burstable"])).await.unwrap().is_empty());
    cgroups.destroy(&pod).await.unwrap();
    cgroups.destroy(&name(&["kubepods"])).await.unwrap();
    assert!(!root.join("kubepods.slice").exists());
    drop(manager);
    // The rest of what it ran, and what it keeps in a hybrid host's named hierarchy.
    for layout in &kernel.owns {
        layout.cgroups.destroy(&own.top).await.unwrap();
    }
}

/// systemd takes the older properties on every host; only their effect needs version 1.
#[tokio::test]
async fn the_properties_of_version_1_are_known() {
    let kernel = Kernel::hold();
    let Some((own, root)) = usable(&kernel) else { return };
    own.cgroups.ensure(&spec(&own.top, CgroupValues::default())).await.unwrap();
    let manager = Manager::start(&root);
    let bus = manager.bus().await;
    let slice = Slice::of(&name(&["kubepods"])).unwrap();
    let values = CgroupValues {
        cpu_shares: Some(512),
        cpu_quota: Some(50_000),
        memory_limit: Some(64 << 20),
        ..CgroupValues::default()
    };
    // Made, then changed.
    for made in [false, true] {
        systemd::ensure(&bus, &slice, CgroupVersion::V1, &values, made).await.unwrap();
    }
    let told = manager.properties("kubepods.slice");
    for property in
        ["CPUShares=512", "CPUQuotaPerSecUSec=500ms", "MemoryLimit=67108864", "BlockIOAccounting=yes"]
    {
        assert!(told.lines().any(|line| line == property), "{property} in {told}");
    }
}

#[tokio::test]
async fn a_slice_cannot_be_delegated() {
    let kernel = Kernel::hold();
    let Some((own, root)) = usable(&kernel) else { return };
    own.cgroups.ensure(&spec(&own.top, CgroupValues::default())).await.unwrap();
    let manager = Manager::start(&root);
    let delegate = ("Delegate", PropertyValue::Flag(true));
    let error = manager.bus().await.start_transient("kubepods.slice", &[delegate]).await.unwrap_err();
    assert!(error.to_string().contains("Delegat"), "{error}");
}
