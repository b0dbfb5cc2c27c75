//! Version 2 on plain files, for the controllers that a hybrid kernel keeps on version 1. The files that the kernel
//! would make with a directory are put there beforehand.

use std::fs;
use std::path::Path;

use model::cgroup::{CgroupDriver, CgroupValues};
use ports::{CgroupError, Cgroups};
use tempfile::TempDir;

use super::super::{CgroupLayout, HostCgroups};
use super::{name, spec};

const CONTROLLERS: &str = "cpuset cpu io memory hugetlb pids\n";

/// As the kernel makes it below a parent that hands everything down.
pub(super) fn make(root: &Path, below: &str) {
    let directory = root.join(below);
    fs::create_dir_all(&directory).unwrap();
    let files = [
        ("cgroup.controllers", CONTROLLERS),
        ("cgroup.subtree_control", "\n"),
        ("cgroup.procs", ""),
        ("cpu.weight", "100\n"),
        ("cpu.max", "max 100000\n"),
        ("memory.max", "max\n"),
        ("pids.max", "max\n"),
        ("hugetlb.2MB.max", "max\n"),
    ];
    for (file, text) in files {
        fs::write(directory.join(file), text).unwrap();
    }
}

pub(super) fn text(root: &Path, file: &str) -> String {
    fs::read_to_string(root.join(file)).unwrap()
}

fn tree(below: &[&str]) -> (TempDir, HostCgroups) {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path(), "");
    below.iter().for_each(|below| make(dir.path(), below));
    let layout = CgroupLayout::V2 { root: dir.path().to_path_buf() };
    (dir, HostCgroups::new(layout, CgroupDriver::Cgroupfs))
}

#[test]
fn a_root_that_is_not_there_is_told_by_its_paths() {
    let (dir, _) = tree(&["pods"]);
    let layout = CgroupLayout::V2 { root: dir.path().to_path_buf() };
    assert!(layout.missing("/").is_empty() && layout.missing("/pods").is_empty());
    assert_eq!(layout.missing("/other"), [dir.path().join("other")]);
    // Of version 1 only what pods need is insisted on.
    let hierarchy = |name: &str| {
        fs::create_dir_all(dir.path().join(name)).unwrap();
        super::super::Hierarchy { mount: dir.path().join(name), controllers: vec![name.to_owned()] }
    };
    let layout = CgroupLayout::V1(vec![hierarchy("memory"), hierarchy("freezer")]);
    assert!(layout.missing("/").is_empty());
    assert_eq!(layout.missing("/other"), [dir.path().join("memory/other")]);
}

#[tokio::test]
async fn controllers_are_handed_down_and_values_written() {
    let (dir, cgroups) = tree(&["kubepods", "kubepods/burstable", "kubepods/burstable/pod1"]);
    let pod = name(&["kubepods", "burstable", "pod1"]);
    let values = CgroupValues {
        cpu_shares: Some(1024),
        cpu_quota: Some(-1),
        cpu_period: Some(100_000),
        memory_limit: Some(1 << 30),
        pids_limit: Some(1024),
        hugepage_limits: [("2MB".to_owned(), 0)].into(),
        ..CgroupValues::default()
    };
    cgroups.ensure(&spec(&pod, values)).await.unwrap();

    let all = "+cpu +cpuset +hugetlb +io +memory +pids";
    assert_eq!(text(dir.path(), "cgroup.subtree_control"), all);
    assert_eq!(text(dir.path(), "kubepods/cgroup.subtree_control"), all);
    assert_eq!(text(dir.path(), "kubepods/burstable/cgroup.subtree_control"), all);
    let here = dir.path().join("kubepods/burstable/pod1");
    assert_eq!(text(&here, "cgroup.subtree_control"), "\n", "the runtime's to enable");
    assert_eq!(text(&here, "cpu.weight"), "39");
    assert_eq!(text(&here, "cpu.max"), "max 100000\n", "as it was");
    assert_eq!(text(&here, "memory.max"), "1073741824");
    assert_eq!(text(&here, "pids.max"), "1024");
    assert_eq!(text(&here, "hugetlb.2MB.max"), "0");
    assert!(cgroups.exists(&pod).await.unwrap());
    assert_eq!(cgroups.children(&name(&["kubepods"])).await.unwrap(), ["burstable"]);
}

#[tokio::test]
async fn it_exists_with_all_that_the_host_has() {
    let (dir, cgroups) = tree(&["kubepods"]);
    let kubepods = name(&["kubepods"]);
    let check = async |own: &str, expect: bool| {
        fs::write(dir.path().join("kubepods/cgroup.controllers"), own).unwrap();
        assert_eq!(cgroups.exists(&kubepods).await.unwrap(), expect, "{own}");
    };
    check(CONTROLLERS, true).await;
    check("cpuset cpu memory hugetlb pids", true).await;
    check("cpuset cpu memory pids", false).await;
    check("", false).await;
    fs::write(dir.path().join("cgroup.controllers"), "cpuset cpu memory pids").unwrap();
    check("cpuset cpu memory pids", true).await;
    assert!(!cgroups.exists(&name(&["absent"])).await.unwrap());
    assert!(!cgroups.exists(&name(&["cgroup.procs"])).await.unwrap(), "a file is no cgroup");
}

#[tokio::test]
async fn a_process_that_does_not_go_is_told_of() {
    let (dir, cgroups) = tree(&["kubepods", "kubepods/pod1"]);
    // Our own process is never killed, so it stays.
    let own = std::process::id().to_string();
    fs::write(dir.path().join("kubepods/pod1/cgroup.procs"), format!("0\n{own}\n")).unwrap();
    let error = cgroups.destroy(&name(&["kubepods"])).await.unwrap_err();
    assert!(matches!(&error, CgroupError::Busy { path, pids: 1 } if path == "/kubepods"), "{error}");
    assert!(dir.path().join("kubepods/pod1").exists());
}

#[test]
fn only_controllers_of_written_values_are_needed() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("sys")).unwrap();
    std::fs::write(dir.path().join("cgroup.controllers"), "cpuset cpu io memory hugetlb pids\n").unwrap();
    std::fs::write(dir.path().join("sys/cgroup.controllers"), "cpu pids\n").unwrap();
    let none = CgroupValues::default();
    let cpu = CgroupValues { cpu_shares: Some(2), pids_limit: Some(9), ..none.clone() };
    let memory = CgroupValues { memory_limit: Some(1), ..cpu.clone() };
    let pages = CgroupValues { hugepage_limits: [("2MB".to_owned(), 0)].into(), ..cpu.clone() };
    for (values, missing) in
        [(none, vec![]), (cpu, vec![]), (memory, vec!["memory"]), (pages, vec!["hugetlb"])]
    {
        let found = super::super::v2::missing_for(dir.path(), "sys", &values).unwrap();
        assert_eq!(found, missing, "{values:?}");
    }
}
