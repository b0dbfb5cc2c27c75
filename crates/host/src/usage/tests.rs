use super::*;
use crate::cgroup::Hierarchy;
use crate::clock::SystemClock;
use ports::{CgroupDetail, DiskTraffic, PsiData, PsiStats, TrafficFigures};

fn write(dir: &Path, files: &[(&str, &str)]) {
    fs::create_dir_all(dir).unwrap();
    for (name, content) in files {
        fs::write(dir.join(name), content).unwrap();
    }
}

fn v1(root: &Path) -> CgroupLayout {
    let one = |name: &str| Hierarchy { mount: root.join(name), controllers: vec![name.to_owned()] };
    CgroupLayout::V1(["blkio", "cpu", "cpuacct", "memory", "pids"].map(one).into())
}

fn read(layout: &CgroupLayout, path: &str, depth: CgroupDetailLevel) -> Option<CgroupUsage> {
    let place = UsageRoots {
        cgroups: CgroupMounts::new(layout),
        proc: "/nonexistent".into(),
        sys: "/nonexistent".into(),
    };
    Reader::new(&place, depth).cgroup(path)
}

fn tree_v1(root: &Path) -> CgroupLayout {
    let at = |controller: &str| root.join(controller).join("kubepods/podu");
    write(&at("cpuacct"), &[("cpuacct.usage", "5000000000\n"), ("cpuacct.stat", "user 2\nsystem 1\n")]);
    let cap = "nr_periods 10\nnr_throttled 4\nthrottled_time 7000\nnr_bursts 1\nburst_time 2000\n";
    let cpu = [
        ("cpu.stat", cap),
        ("cpu.shares", "1024"),
        ("cpu.cfs_quota_us", "50000"),
        ("cpu.cfs_period_us", "100000"),
    ];
    write(&at("cpu"), &cpu);
    let own =
        "cache 1\nrss 2\nmapped_file 1\npgfault 3\npgmajfault 0\ninactive_file 1\nactive_file 1\nswap 1\n";
    let total = "total_cache 600\ntotal_rss 200\ntotal_mapped_file 50\ntotal_pgfault 7\ntotal_pgmajfault 1\n\
                 total_inactive_file 300\ntotal_active_file 100\ntotal_swap 4\n";
    let stat = format!("{own}hierarchical_memory_limit 9223372036854771712\n{total}");
    let memory = [
        ("memory.usage_in_bytes", "1000"),
        ("memory.limit_in_bytes", "9223372036854771712"),
        ("memory.soft_limit_in_bytes", "9223372036854771712"),
        ("memory.max_usage_in_bytes", "1100"),
        ("memory.kmem.usage_in_bytes", "90"),
        ("memory.failcnt", "6"),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
        ("memory.stat", stat.as_str()),
    ];
    write(&at("memory"), &memory);
    write(&at("pids"), &[("pids.current", "3"), ("pids.max", "100")]);
    let bytes = "8:0 Read 4096\n8:0 Write 512\n8:0 Total 4608\nTotal 4608\n";
    let calls = "8:0 Read 2\n8:0 Write 1\nTotal 3\n";
    let blkio = [("blkio.throttle.io_service_bytes", bytes), ("blkio.throttle.io_serviced", calls)];
    write(&at("blkio"), &blkio);
    v1(root)
}

fn tree_v2(root: &Path) -> CgroupLayout {
    let cpu = "usage_usec 5000000\nuser_usec 20000\nsystem_usec 10000\nnr_periods 10\nnr_throttled 4\n\
               throttled_usec 7\nnr_bursts 1\nburst_usec 2\n";
    let memory = "anon 200\nfile 600\nkernel 90\nfile_mapped 50\ninactive_file 300\nactive_file 100\npgfault 7\npgmajfault 1\n";
    let files = [
        ("cpu.stat", cpu),
        ("cpu.max", "50000 100000\n"),
        ("cpu.weight", "39"),
        (
            "cpu.pressure",
            "some avg10=1.50 avg60=0.00 avg300=0.25 total=42\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n",
        ),
        ("memory.current", "1000"),
        ("memory.max", "max"),
        ("memory.peak", "1100"),
        ("memory.min", "0"),
        ("memory.events", "low 0\nhigh 0\nmax 6\noom 2\noom_kill 2\n"),
        ("memory.stat", memory),
        ("memory.swap.current", "4"),
        ("memory.swap.max", "max"),
        ("pids.current", "3"),
        ("pids.max", "100"),
        ("io.stat", "8:0 rbytes=4096 wbytes=512 rios=2 wios=1 dbytes=0 dios=0\n"),
    ];
    write(&root.join("kubepods/podu"), &files);
    CgroupLayout::V2 { root: root.into() }
}

fn expected() -> (CgroupUsage, CgroupDetail) {
    let usage = CgroupUsage {
        cpu_nanos: Some(5_000_000_000),
        memory_bytes: Some(1000),
        working_set_bytes: Some(700),
        rss_bytes: Some(200),
        page_faults: Some(7),
        major_page_faults: Some(1),
        swap_bytes: Some(4),
        tasks: Some(3),
        ..Default::default()
    };
    let disk = DiskTraffic {
        device: "8:0".into(),
        major: 8,
        read_bytes: 4096,
        written_bytes: 512,
        reads: 2,
        writes: 1,
        ..Default::default()
    };
    let detail = CgroupDetail {
        cpu_user_nanos: Some(20_000_000),
        cpu_system_nanos: Some(10_000_000),
        cfs_periods: Some(10),
        cfs_throttled_periods: Some(4),
        cfs_throttled_nanos: Some(7000),
        burst_periods: Some(1),
        burst_nanos: Some(2000),
        cpu_quota: Some(50_000),
        cpu_period: Some(100_000),
        cache_bytes: Some(600),
        mapped_bytes: Some(50),
        kernel_bytes: Some(90),
        max_usage_bytes: Some(1100),
        active_file_bytes: Some(100),
        inactive_file_bytes: Some(300),
        memory_failcnt: Some(6),
        oom_kills: Some(2),
        task_limit: Some(100),
        disks: vec![disk],
        ..Default::default()
    };
    (usage, detail)
}

#[test]
fn both_versions_tell_the_same() {
    let temp = tempfile::tempdir().unwrap();
    let (old, new) = (tree_v1(&temp.path().join("v1")), tree_v2(&temp.path().join("v2")));
    let (usage, detail) = expected();
    let old_detail = CgroupDetail {
        cpu_shares: Some(1024),
        own_page_faults: Some(3),
        own_major_page_faults: Some(0),
        ..detail.clone()
    };
    let new_detail = CgroupDetail {
        // 1024 shares went through a weight, which is coarser.
        cpu_shares: Some(998),
        own_page_faults: Some(7),
        own_major_page_faults: Some(1),
        ..detail
    };
    let some = PsiData { total_micros: 42, averages: [1.5, 0.0, 0.25] };
    let full = PsiData { total_micros: 7, ..Default::default() };
    let mut new_usage = usage.clone();
    new_usage.pressure.cpu = Some(PsiStats { some, full });
    assert_eq!(read(&old, "/kubepods/podu", CgroupDetailLevel::Basic), Some(usage.clone()));
    assert_eq!(read(&new, "/kubepods/podu", CgroupDetailLevel::Basic), Some(new_usage.clone()));
    let whole = |usage: CgroupUsage, detail| CgroupUsage { detail: Some(Box::new(detail)), ..usage };
    assert_eq!(read(&old, "/kubepods/podu", CgroupDetailLevel::Full), Some(whole(usage, old_detail)));
    assert_eq!(read(&new, "/kubepods/podu", CgroupDetailLevel::Full), Some(whole(new_usage, new_detail)));
    for layout in [old, new] {
        assert_eq!(read(&layout, "/kubepods/other", CgroupDetailLevel::Full), None);
    }
}

#[test]
fn containers_are_found_by_their_id_however_they_are_called() {
    let temp = tempfile::tempdir().unwrap();
    write(&temp.path().join("pod/cri-containerd-abc.scope"), &[("cgroup.procs", "")]);
    write(&temp.path().join("pod/def"), &[("cgroup.procs", "0\n42\n43\n")]);
    let trees = CgroupMounts::new(&CgroupLayout::V2 { root: temp.path().into() });
    let find = |id: &str| trees.child("/pod", id);
    assert_eq!(find("abc").as_deref(), Some("/pod/cri-containerd-abc.scope"));
    assert_eq!(find("def").as_deref(), Some("/pod/def"));
    assert_eq!((find("x"), find("")), (None, None));
    assert_eq!(trees.processes(&mut KernelFileReader::default(), "/pod/def"), [42, 43]);
}

#[test]
fn our_own_cgroup_is_found_in_either_version() {
    let old = "5:pids:/a\n4:memory,hugetlb:/system.slice/rubelet.service\n0::/other\n";
    assert_eq!(parse_own_cgroup(old, false).as_deref(), Some("/system.slice/rubelet.service"));
    assert_eq!(parse_own_cgroup(old, true).as_deref(), Some("/other"));
    assert_eq!((parse_own_cgroup("4:memory:/\n", false), parse_own_cgroup("", true)), (None, None));
}

#[test]
fn interfaces_without_loopback() {
    let text = "Inter-|   Receive                  |  Transmit\n face |bytes packets errs\n    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n  \
                eth0: 100 2 3 1 0 0 0 0 200 4 5 6 0 0 0 0\n";
    let rx = TrafficFigures { bytes: 100, packets: 2, errors: 3, dropped: 1 };
    let tx = TrafficFigures { bytes: 200, packets: 4, errors: 5, dropped: 6 };
    assert_eq!(machine::interfaces(text), [InterfaceFigures { name: "eth0".into(), rx, tx }]);
}

#[tokio::test(start_paused = true)]
async fn rates_are_over_the_time_between_readings() {
    let mut samples = BTreeMap::new();
    let mut at = |path: &str, cpu: u64| rate(&mut samples, path, Instant::now(), cpu);
    assert_eq!(at("/a", 1_000_000_000), None);
    tokio::time::advance(Duration::from_millis(500)).await;
    assert_eq!(at("/a", 1_500_000_000), None, "too early to tell");
    tokio::time::advance(Duration::from_millis(1500)).await;
    assert_eq!(at("/a", 2_000_000_000), Some(500_000_000));
    assert_eq!(at("/a", 9_000_000_000), Some(500_000_000), "the last one holds for a moment");
    assert_eq!(at("/b", 0), None);
}

#[tokio::test]
async fn this_machine_has_figures() {
    let layout = crate::cgroup::detect(Path::new("/sys/fs/cgroup")).unwrap();
    let usage = HostUsage::new(layout, Arc::new(SystemClock));
    let machine = usage.machine(CgroupDetailLevel::Full).await.unwrap();
    let root = &machine.root;
    assert!(root.cpu_nanos.unwrap() > 0);
    assert!(root.working_set_bytes.unwrap() > 0 && root.working_set_bytes <= root.memory_bytes);
    assert!(root.memory_bytes.unwrap() <= machine.memory_capacity_bytes);
    assert!(machine.processes > 0 && machine.process_limit > machine.processes);
    assert!(machine.boot > model::Wall(0) && machine.facts.cores > 0);
    let disk = usage.filesystem("/").await.unwrap();
    assert!(disk.capacity_bytes >= disk.used_bytes + disk.available_bytes && disk.inodes >= disk.inodes_free);
}

#[tokio::test]
async fn pods_are_read_in_one_go_and_in_their_order() {
    let temp = tempfile::tempdir().unwrap();
    let layout = tree_v2(temp.path());
    for leaf in ["sandbox", "c1"] {
        write(
            &temp.path().join("kubepods/podu").join(leaf),
            &[("cpu.stat", "usage_usec 1\n"), ("cgroup.procs", "")],
        );
    }
    let usage = HostUsage::new(layout, Arc::new(SystemClock));
    let query = PodCgroups {
        cgroup: "/kubepods/podu".into(),
        sandbox: "sandbox".into(),
        containers: vec!["gone".into(), "c1".into()],
        own_network: true,
    };
    let gone = PodCgroups { cgroup: "/kubepods/podx".into(), ..query.clone() };
    let found = usage.pods(vec![gone, query], CgroupDetailLevel::Basic).await.unwrap();
    assert_eq!(found[0], PodCgroupUsage { containers: vec![None, None], ..Default::default() });
    let whole = found[1].whole.as_ref().unwrap();
    assert!(whole.cpu_nanos == Some(5_000_000_000) && whole.at > Wall(0));
    assert_eq!(found[1].sandbox.as_ref().unwrap().path, "/kubepods/podu/sandbox");
    assert!(found[1].containers[0].is_none());
    assert_eq!(found[1].containers[1].as_ref().unwrap().usage.cpu_nanos, Some(1000));
}
