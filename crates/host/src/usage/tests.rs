use super::*;
use crate::cgroup::Hierarchy;
use crate::clock::SystemClock;

fn write(dir: &Path, files: &[(&str, &str)]) {
    fs::create_dir_all(dir).unwrap();
    for (name, content) in files {
        fs::write(dir.join(name), content).unwrap();
    }
}

fn v1(root: &Path) -> Layout {
    let one = |name: &str| Hierarchy { mount: root.join(name), controllers: vec![name.to_owned()] };
    Layout::V1(vec![one("cpuacct"), one("memory"), one("pids")])
}

#[test]
fn both_versions_tell_the_same() {
    let temp = tempfile::tempdir().unwrap();
    let old = temp.path().join("v1");
    write(
        &old.join("cpuacct/kubepods/podu"),
        &[("cpuacct.usage", "5000000000\n"), ("cpuacct.stat", "user 2\nsystem 1\n")],
    );
    write(
        &old.join("memory/kubepods/podu"),
        &[
            ("memory.usage_in_bytes", "1000"),
            ("memory.limit_in_bytes", "9223372036854771712"),
            (
                "memory.stat",
                "inactive_file 1\nrss 2\ntotal_inactive_file 300\ntotal_rss 200\ntotal_pgfault 7\ntotal_pgmajfault 1\ntotal_swap 4\n",
            ),
        ],
    );
    write(&old.join("pids/kubepods/podu"), &[("pids.current", "3")]);
    let new = temp.path().join("v2");
    write(
        &new.join("kubepods/podu"),
        &[
            ("cpu.stat", "usage_usec 5000000\nuser_usec 20000\nsystem_usec 10000\n"),
            ("memory.current", "1000"),
            ("memory.max", "max"),
            ("memory.stat", "anon 200\ninactive_file 300\npgfault 7\npgmajfault 1\n"),
            ("memory.swap.current", "4"),
            ("memory.swap.max", "max"),
            ("pids.current", "3"),
        ],
    );
    let expect = CgroupUsage {
        cpu_nanos: Some(5_000_000_000),
        memory_bytes: Some(1000),
        working_set_bytes: Some(700),
        rss_bytes: Some(200),
        page_faults: Some(7),
        major_page_faults: Some(1),
        swap_bytes: Some(4),
        processes: Some(3),
        cpu_user_nanos: Some(20_000_000),
        cpu_system_nanos: Some(10_000_000),
        ..Default::default()
    };
    assert_eq!(cgroup::read(&v1(&old), "/kubepods/podu"), Some(expect.clone()));
    assert_eq!(cgroup::read(&Layout::V2 { root: new }, "/kubepods/podu"), Some(expect));
    assert_eq!(cgroup::read(&v1(&old), "/kubepods/other"), None);
}

#[test]
fn containers_are_found_by_their_id_however_they_are_called() {
    let temp = tempfile::tempdir().unwrap();
    write(&temp.path().join("pod/cri-containerd-abc.scope"), &[("cgroup.procs", "")]);
    write(&temp.path().join("pod/def"), &[("cgroup.procs", "42\n43\n")]);
    let layout = Layout::V2 { root: temp.path().into() };
    let find = |id: &str| cgroup::child(&layout, "/pod", id);
    assert_eq!(find("abc").as_deref(), Some("/pod/cri-containerd-abc.scope"));
    assert_eq!(find("def").as_deref(), Some("/pod/def"));
    assert_eq!((find("x"), find("")), (None, None));
    assert_eq!(cgroup::any_process(&layout, "/pod"), Some(42));
}

#[test]
fn interfaces_without_loopback() {
    let text = "Inter-|   Receive                  |  Transmit\n face |bytes packets errs\n    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n  \
                eth0: 100 2 3 0 0 0 0 0 200 4 5 0 0 0 0 0\n";
    let expect =
        InterfaceFigures { name: "eth0".into(), rx_bytes: 100, rx_errors: 3, tx_bytes: 200, tx_errors: 5 };
    assert_eq!(proc::interfaces(text), [expect]);
}

#[tokio::test(start_paused = true)]
async fn rates_are_over_the_time_between_readings() {
    let usage = HostUsage::new(Layout::V2 { root: "/nonexistent".into() }, Arc::new(SystemClock));
    assert_eq!(usage.rate("/a", 1_000_000_000).await, None);
    tokio::time::advance(Duration::from_millis(500)).await;
    assert_eq!(usage.rate("/a", 1_500_000_000).await, None, "too early to tell");
    tokio::time::advance(Duration::from_millis(1500)).await;
    assert_eq!(usage.rate("/a", 2_000_000_000).await, Some(500_000_000));
    assert_eq!(usage.rate("/a", 9_000_000_000).await, Some(500_000_000), "the last one holds for a moment");
    assert_eq!(usage.rate("/b", 0).await, None);
}

#[tokio::test]
async fn this_machine_has_figures() {
    let layout = crate::cgroup::detect(Path::new("/sys/fs/cgroup")).unwrap();
    let usage = HostUsage::new(layout, Arc::new(SystemClock));
    let machine = usage.machine().await.unwrap();
    let root = &machine.root;
    assert!(root.cpu_nanos.unwrap() > 0);
    assert!(root.working_set_bytes.unwrap() > 0 && root.working_set_bytes <= root.memory_bytes);
    assert!(root.memory_bytes.unwrap() <= machine.memory_capacity_bytes);
    assert!(machine.processes > 0 && machine.most_processes > machine.processes);
    assert!(machine.boot > model::Wall(0));
    let disk = usage.filesystem("/").await.unwrap();
    assert!(disk.capacity_bytes >= disk.used_bytes + disk.available_bytes && disk.inodes >= disk.inodes_free);
}
