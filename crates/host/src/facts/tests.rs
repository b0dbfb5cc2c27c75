//! Tests on a tree of files, and on the host that runs the test.

use std::fs;

use tempfile::TempDir;

use super::*;

fn host(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}

async fn facts(dir: &TempDir) -> HostFacts {
    let config = FactsConfig {
        node_ips: Some(vec!["192.0.2.1".into(), "2001:db8::1".into()]),
        root: dir.path().to_path_buf(),
        ..FactsConfig::default()
    };
    let facts = HostFactsReader::new(config).read().await.unwrap();
    // The values depend on the host that runs the test.
    HostFacts { addresses: HostAddresses::default(), root_fs_bytes: 0, architecture: String::new(), ..facts }
}

const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal: 1000 kB\nSwapTotal: 10 kB\n");
const V2: (&str, &str) =
    ("proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n");
const V1: (&str, &str) =
    ("proc/self/mountinfo", "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");

#[tokio::test]
async fn a_host_with_everything() {
    let dir = host(&[
        MEMINFO,
        V2,
        ("proc/self/cgroup", "0::/init.scope\n"),
        ("sys/fs/cgroup/init.scope/memory.swap.max", "max\n"),
        ("sys/devices/system/cpu/online", "0-3\n"),
        ("sys/devices/system/cpu/cpu10/thermal_throttle/x", ""),
        ("sys/devices/system/cpu/cpu2/thermal_throttle/x", ""),
        ("sys/devices/system/cpu/cpu3/topology/x", ""),
        ("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0\n"),
        ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "3\n"),
        ("sys/class/dmi/id/product_uuid", "u\n"),
        ("etc/os-release", "PRETTY_NAME=\"Test 1\"\n"),
        ("sys/module/apparmor/parameters/enabled", "Y\n"),
        ("sys/fs/selinux/enforce", "1"),
        ("etc/selinux/config", "# SELINUXTYPE=mls\nSELINUX=enforcing\nSELINUXTYPE=strict\n"),
        (
            "etc/selinux/strict/contexts/lxc_contexts",
            "process = \"u:r:t:s0\"\nfile = \"u:object_r:f_t:s0\"\n",
        ),
        ("proc/sys/kernel/osrelease", "6.1.0-test\n"),
        ("proc/sys/kernel/pid_max", "32768\n"),
        ("proc/sys/kernel/threads-max", "9000\n"),
        ("proc/sys/kernel/random/boot_id", "b\n"),
        ("etc/resolv.conf", "nameserver 192.0.2.53\n"),
        ("etc/hosts", "127.0.0.1 localhost\n"),
        ("var/lib/dbus/machine-id", "m\n"),
    ]);
    let expect = HostFacts {
        memory_bytes: 1_024_000,
        swap_bytes: 10_240,
        cpus: 4,
        online_cpus: (0..4).collect(),
        cgroup_version: CgroupVersion::V2,
        swap_controller: true,
        pid_limit: Some(9000),
        page_size: rustix::param::page_size() as u64,
        hugepage_sizes: vec!["2MB".into(), "1GB".into()],
        thermal_throttle_paths: vec![
            "/sys/devices/system/cpu/cpu2/thermal_throttle".into(),
            "/sys/devices/system/cpu/cpu10/thermal_throttle".into(),
        ],
        node_ips: vec!["192.0.2.1".into(), "2001:db8::1".into()],
        kernel_release: "6.1.0-test".into(),
        resolv_conf: "nameserver 192.0.2.53\n".into(),
        etc_hosts: "127.0.0.1 localhost\n".into(),
        apparmor_enabled: true,
        selinux_enabled: true,
        selinux_file_label: "u:object_r:f_t:s0".into(),
        boot_id: "b".into(),
        machine_id: "m".into(),
        subordinate_ids: None,
        system_uuid: "u".into(),
        os_image: "Test 1".into(),
        huge_pages: [(2 << 20, 6 << 20), (1 << 30, 0)].into(),
        ..HostFacts::default()
    };
    assert_eq!(facts(&dir).await, expect);
}

#[tokio::test]
async fn ids_come_from_the_first_file_that_has_one() {
    let dir = host(&[MEMINFO, ("run/empty", "\n"), ("run/machine", "m2\n"), ("run/boot", "b2\n")]);
    let config = FactsConfig {
        root: dir.path().to_path_buf(),
        machine_id_files: ["/run/missing", "/run/empty", "/run/machine"].map(str::to_owned).to_vec(),
        boot_id_files: vec!["/run/boot".into()],
        node_ips: Some(vec!["192.0.2.1".into()]),
        ..FactsConfig::default()
    };
    let facts = HostFactsReader::new(config).read().await.unwrap();
    assert_eq!((facts.machine_id.as_str(), facts.boot_id.as_str()), ("m2", "b2"));
}

#[tokio::test]
async fn a_host_with_next_to_nothing() {
    let expect = HostFacts {
        memory_bytes: 1_024_000,
        swap_bytes: 10_240,
        cgroup_version: CgroupVersion::V1,
        page_size: rustix::param::page_size() as u64,
        os_image: "Unknown".into(),
        node_ips: vec!["192.0.2.1".into(), "2001:db8::1".into()],
        ..HostFacts::default()
    };
    assert_eq!(facts(&host(&[MEMINFO])).await, expect);
}

#[tokio::test]
async fn without_memory_there_is_no_answer() {
    for files in [&[][..], &[("proc/meminfo", "MemTotal: much\n")][..]] {
        let dir = host(files);
        let config = FactsConfig { root: dir.path().to_path_buf(), ..FactsConfig::default() };
        let error = HostFactsReader::new(config).read().await.unwrap_err();
        assert_eq!(error.to_string(), "can't read /proc/meminfo");
    }
}

#[tokio::test]
async fn where_swap_is_counted() {
    let check = async |files: &[(&str, &str)], expect: bool| {
        let dir = host(&[&[MEMINFO, ("proc/cgroups", "memory\t4\t1\t1\n")][..], files].concat());
        assert_eq!(facts(&dir).await.swap_controller, expect, "{files:?}");
    };
    check(&[V1, ("sys/fs/cgroup/memory/memory.memsw.limit_in_bytes", "")], true).await;
    check(&[V1, ("sys/fs/cgroup/memory/memory.limit_in_bytes", "")], false).await;
    check(&[V2, ("sys/fs/cgroup/memory.swap.max", "")], false).await;
    check(&[V2, ("proc/self/cgroup", "0::/a/b\n"), ("sys/fs/cgroup/a/b/memory.swap.max", "")], true).await;
    check(&[V2, ("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/kubepods/memory.swap.max", "")], true).await;
}

#[tokio::test]
async fn the_resolver_file_is_the_configured_one_or_none() {
    let dir = host(&[MEMINFO, ("etc/resolv.conf", "a"), ("run/resolv.conf", "b"), ("etc/hosts", "\u{e9}")]);
    fs::write(dir.path().join("run/bytes"), [b'x', 0xff]).unwrap();
    for (path, expect) in [("", ""), ("/run/resolv.conf", "b"), ("/absent", ""), ("/run/bytes", "x\u{fffd}")]
    {
        let config = FactsConfig {
            resolv_conf: path.into(),
            root: dir.path().to_path_buf(),
            node_ips: Some(vec!["192.0.2.1".into()]),
            ..FactsConfig::default()
        };
        assert_eq!(HostFactsReader::new(config).read().await.unwrap().resolv_conf, expect, "{path:?}");
    }
}

#[tokio::test]
async fn this_host() {
    let facts = HostFactsReader::new(FactsConfig::default()).read().await.unwrap();
    assert!(facts.memory_bytes > 16 << 20);
    let online = std::process::Command::new("getconf").arg("_NPROCESSORS_ONLN").output().unwrap();
    assert_eq!(facts.cpus.to_string(), String::from_utf8(online.stdout).unwrap().trim());
    assert_eq!(facts.node_ips.len(), 1);
    assert!(facts.node_ips[0].parse::<IpAddr>().is_ok());
    assert_eq!(facts.kernel_release, rustix::system::uname().release().to_str().unwrap());
    assert_eq!(facts.boot_id.len(), 36);
    assert!(facts.root_fs_bytes > 1 << 20);
    assert!(["amd64", "arm64"].contains(&facts.architecture.as_str()));
    assert!(facts.addresses.local.iter().all(|address| !address.is_loopback()));
    assert_eq!(is_swap_enabled(), facts.swap_bytes > 0);
}
