//! The kernel of the machine that runs the tests. Needs root. On a hybrid host both versions are tried: v1 as it is
//! used, and v2 on the bare tree with the controllers that are left to it.

// Tests with real processes and servers live in real time.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use model::cgroup::{CgroupDriver, CgroupName, CgroupValues};
use ports::{CgroupError, Cgroups};

use super::super::{CgroupLayout, HostCgroups, clear, detect};
use super::{name, spec};
use crate::process::FileLock;

/// The versions that this kernel has mounted, for one test at a time: enabling a controller changes the root of a
/// tree, which is put back as it was.
pub(super) struct Kernel {
    pub(super) owns: Vec<Own>,
    /// `cgroup.subtree_control` of a hybrid host's bare tree, and what it said. (Where v2 is the main tree, its
    /// controllers are in use by others.)
    bare: Option<(PathBuf, String)>,
    _one_at_a_time: FileLock,
}

impl Kernel {
    pub(super) fn hold() -> Kernel {
        let lock = std::env::temp_dir().join("rubelet-test-cgroup.lock");
        let lock = FileLock::acquire(&lock).unwrap();
        if !rustix::process::geteuid().is_root() {
            eprintln!("not root: the kernel's cgroups are not tried");
            return Kernel { owns: Vec::new(), bare: None, _one_at_a_time: lock };
        }
        let main = detect(Path::new("/sys/fs/cgroup")).unwrap();
        let bare = match &main {
            CgroupLayout::V1(hierarchies) => hierarchies.iter().find(|h| h.controllers.is_empty()),
            CgroupLayout::V2 { .. } => None,
        };
        let bare = bare.map(|h| h.mount.clone());
        let layouts = [Some(main), bare.clone().map(|root| CgroupLayout::V2 { root })];
        Kernel {
            owns: layouts.into_iter().flatten().map(Own::new).collect(),
            bare: bare.map(|root| {
                let control = root.join("cgroup.subtree_control");
                let before = fs::read_to_string(&control).unwrap();
                (control, before)
            }),
            _one_at_a_time: lock,
        }
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // Each in all: what a test starts may have been put elsewhere as well.
        for own in &self.owns {
            let directories: Vec<PathBuf> = self.owns.iter().flat_map(|o| o.directories(&own.top)).collect();
            for _ in 0..100 {
                let _ = clear::kill(&directories);
                directories.iter().for_each(|directory| remove(directory));
                if !directories.iter().any(|directory| directory.exists()) {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        }
        let Some((control, before)) = &self.bare else { return };
        for controller in fs::read_to_string(control).unwrap_or_default().split_whitespace() {
            if !before.split_whitespace().any(|had| had == controller) {
                let _ = fs::write(control, format!("-{controller}"));
            }
        }
    }
}

/// A top cgroup of one test, removed by `Kernel` with all that is in it however the test ends.
pub(super) struct Own {
    pub(super) layout: CgroupLayout,
    pub(super) cgroups: HostCgroups,
    pub(super) top: CgroupName,
}

impl Own {
    fn new(layout: CgroupLayout) -> Own {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let top = format!("rubelet-test-{}-{number}", std::process::id());
        Own {
            cgroups: HostCgroups::new(layout.clone(), CgroupDriver::Cgroupfs),
            layout,
            top: CgroupName(vec![top]),
        }
    }

    fn below(&self, parts: &[&str]) -> CgroupName {
        parts.iter().fold(self.top.clone(), |name, part| name.child(*part))
    }

    pub(super) fn directories(&self, name: &CgroupName) -> Vec<PathBuf> {
        self.layout.directories(&name.to_path(CgroupDriver::Cgroupfs))
    }

    /// The file's text in the first hierarchy that has it.
    pub(super) fn file(&self, name: &CgroupName, file: &str) -> Option<String> {
        let read = |directory: PathBuf| fs::read_to_string(directory.join(file)).ok();
        self.directories(name).into_iter().find_map(read).map(|text| text.trim().to_owned())
    }

    /// A process that would stay for long, in the cgroup by all its hierarchies.
    pub(super) fn sleeper(&self, name: &CgroupName) -> Sleeper {
        let child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
        let sleeper = Sleeper(child);
        for directory in self.directories(name) {
            fs::write(directory.join("cgroup.procs"), sleeper.0.id().to_string()).unwrap();
        }
        sleeper
    }
}

fn remove(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).for_each(|e| remove(&e.path()));
    let _ = fs::remove_dir(directory);
}

pub(super) struct Sleeper(Child);

impl Sleeper {
    pub(super) fn killed(&mut self) -> bool {
        use std::os::unix::process::ExitStatusExt;
        self.0.wait().unwrap().signal() == Some(9)
    }

    fn alive(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn values() -> CgroupValues {
    CgroupValues {
        cpu_shares: Some(512),
        cpu_quota: Some(50_000),
        cpu_period: Some(100_000),
        memory_limit: Some(64 << 20),
        pids_limit: Some(100),
        hugepage_limits: [("2MB".to_owned(), 4 << 20)].into(),
        ..CgroupValues::default()
    }
}

#[tokio::test]
async fn made_with_its_parents_and_filled() {
    for own in &Kernel::hold().owns {
        let pod = own.below(&["kubepods", "burstable", "pod12-ab"]);
        assert!(!own.cgroups.exists(&pod).await.unwrap());
        assert!(own.cgroups.children(&own.top).await.unwrap().is_empty());

        own.cgroups.ensure(&spec(&pod, values())).await.unwrap();
        assert!(own.directories(&pod).iter().all(|directory| directory.is_dir()), "{:?}", own.layout);
        assert!(own.cgroups.exists(&pod).await.unwrap());
        assert!(own.cgroups.exists(&own.top).await.unwrap());
        let expect = [
            ("cpu.shares", "512"),
            ("cpu.cfs_quota_us", "50000"),
            ("cpu.cfs_period_us", "100000"),
            ("memory.limit_in_bytes", "67108864"),
            ("cpu.weight", "20"),
            ("cpu.max", "50000 100000"),
            ("memory.max", "67108864"),
            ("pids.max", "100"),
            ("hugetlb.2MB.limit_in_bytes", "4194304"),
            ("hugetlb.2MB.max", "4194304"),
            ("hugetlb.2MB.rsvd.max", "4194304"),
        ];
        let mut seen = 0;
        for (file, expect) in expect {
            if let Some(text) = own.file(&pod, file) {
                assert_eq!(text, expect, "{file} in {:?}", own.layout);
                seen += 1;
            }
        }
        assert!(seen > 0, "no controller at all in {:?}", own.layout);

        own.cgroups.ensure(&spec(&pod, values())).await.unwrap();
        own.cgroups.destroy(&own.top).await.unwrap();
        assert!(!own.cgroups.exists(&own.top).await.unwrap());
        assert!(own.directories(&own.top).iter().all(|directory| !directory.exists()));
    }
}

#[tokio::test]
async fn values_change_up_down_and_away() {
    for own in &Kernel::hold().owns {
        let pod = own.below(&["kubepods", "pod1"]);
        let check = async |values: CgroupValues, file: &str, expect: &str| {
            own.cgroups.ensure(&spec(&pod, values.clone())).await.unwrap();
            if let Some(text) = own.file(&pod, file) {
                assert_eq!(text, expect, "{file} after {values:?}");
            }
        };
        let quota = |quota, period| CgroupValues {
            cpu_quota: Some(quota),
            cpu_period: Some(period),
            ..CgroupValues::default()
        };
        check(quota(20_000, 100_000), "cpu.cfs_quota_us", "20000").await;
        // A parent that allows half a cpu: in either order, one of quota and period is refused at first.
        let parent = own.below(&["kubepods"]);
        own.cgroups.ensure(&spec(&parent, quota(50_000, 100_000))).await.unwrap();
        check(quota(5_000, 10_000), "cpu.cfs_quota_us", "5000").await;
        check(quota(50_000, 100_000), "cpu.cfs_quota_us", "50000").await;
        check(quota(-1, 100_000), "cpu.cfs_quota_us", "-1").await;

        let memory = |bytes| CgroupValues { memory_limit: Some(bytes), ..CgroupValues::default() };
        check(memory(10_000_000), "memory.limit_in_bytes", "9998336").await;
        check(memory(-1), "memory.limit_in_bytes", "9223372036854771712").await;
        let pids = |count| CgroupValues { pids_limit: Some(count), ..CgroupValues::default() };
        check(pids(7), "pids.max", "7").await;
        check(pids(-1), "pids.max", "max").await;
        check(CgroupValues::default(), "pids.max", "max").await;
        let pages = |bytes| CgroupValues {
            hugepage_limits: [("2MB".to_owned(), bytes)].into(),
            ..CgroupValues::default()
        };
        check(pages(0), "hugetlb.2MB.max", "0").await;
        check(pages(1 << 62), "hugetlb.2MB.max", "4611686018427387904").await;
    }
}

#[tokio::test]
async fn destroying_kills_what_is_inside_and_nothing_else() {
    for own in &Kernel::hold().owns {
        let pod = own.below(&["kubepods", "pod1"]);
        let container = pod.child("container");
        let neighbour = own.below(&["kubepods", "pod2"]);
        for cgroup in [&container, &neighbour] {
            own.cgroups.ensure(&spec(cgroup, CgroupValues::default())).await.unwrap();
        }
        let mut inside = [own.sleeper(&container), own.sleeper(&container)];
        let mut outside = own.sleeper(&neighbour);
        assert_eq!(own.cgroups.children(&own.below(&["kubepods"])).await.unwrap(), ["pod1", "pod2"]);

        own.cgroups.destroy(&pod).await.unwrap();
        assert!(inside.iter_mut().all(Sleeper::killed));
        assert!(outside.alive());
        assert_eq!(own.cgroups.children(&own.below(&["kubepods"])).await.unwrap(), ["pod2"]);
        own.cgroups.destroy(&pod).await.unwrap();

        own.cgroups.destroy(&neighbour).await.unwrap();
        assert!(outside.killed());
    }
}

#[tokio::test]
async fn a_frozen_process_dies_as_well() {
    for own in &Kernel::hold().owns {
        let pod = own.below(&["pod1"]);
        own.cgroups.ensure(&spec(&pod, CgroupValues::default())).await.unwrap();
        let mut frozen = own.sleeper(&pod);
        for directory in own.directories(&pod) {
            for (file, word) in [("freezer.state", "FROZEN"), ("cgroup.freeze", "1")] {
                if directory.join(file).exists() {
                    fs::write(directory.join(file), word).unwrap();
                }
            }
        }
        own.cgroups.destroy(&pod).await.unwrap();
        assert!(frozen.killed());
    }
}

#[tokio::test]
async fn a_cgroup_in_part_does_not_exist_and_is_completed() {
    for own in &Kernel::hold().owns {
        let CgroupLayout::V1(hierarchies) = &own.layout else { continue };
        let pod = own.below(&["pod1"]);
        own.cgroups.ensure(&spec(&pod, CgroupValues::default())).await.unwrap();
        let path = pod.to_path(CgroupDriver::Cgroupfs);
        let removed = |controller: &str| {
            let hierarchy = hierarchies.iter().find(|h| h.has(controller)).unwrap();
            fs::remove_dir(hierarchy.mount.join(&path[1..])).unwrap();
        };
        removed("devices");
        assert!(own.cgroups.exists(&pod).await.unwrap(), "nothing of ours is in devices");
        removed("pids");
        assert!(!own.cgroups.exists(&pod).await.unwrap());
        own.cgroups.ensure(&spec(&pod, CgroupValues::default())).await.unwrap();
        assert!(own.cgroups.exists(&pod).await.unwrap());
        assert_eq!(own.cgroups.children(&own.top).await.unwrap(), ["pod1"]);
    }
}

#[tokio::test]
async fn names_that_lead_elsewhere_are_refused() {
    for own in &Kernel::hold().owns {
        let outside = own.below(&["outside"]);
        own.cgroups.ensure(&spec(&outside, CgroupValues::default())).await.unwrap();
        let inside = own.below(&["inside"]);
        for part in ["", ".", "..", "a/b", "/", "../outside", "a\0b"] {
            let bad = inside.child(part);
            let refused = |result: Result<(), CgroupError>| {
                let Err(CgroupError::Io { source, .. }) = result else { panic!("{part:?}: {result:?}") };
                assert_eq!(source.kind(), std::io::ErrorKind::InvalidInput, "{part:?}");
            };
            refused(own.cgroups.ensure(&spec(&bad, CgroupValues::default())).await);
            refused(own.cgroups.destroy(&bad).await);
            refused(own.cgroups.exists(&bad).await.map(drop));
            refused(own.cgroups.children(&bad).await.map(drop));
        }
        assert!(own.cgroups.exists(&outside).await.unwrap());
        let root = name(&[]);
        assert!(own.cgroups.destroy(&root).await.is_err());
        assert!(own.cgroups.ensure(&spec(&root, CgroupValues::default())).await.is_err());
        assert!(own.cgroups.exists(&root).await.unwrap());
    }
}
