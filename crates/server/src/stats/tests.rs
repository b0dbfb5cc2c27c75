use super::*;
use model::GrpcCode;
use std::collections::BTreeSet;

use model::Wall;
use model::cri::FilesystemUsage;
use model::volume::MeasuredVolume;
use ports::{
    CgroupDetail, CgroupUsage, DiskCounters, DiskTraffic, FilesystemFigures, InterfaceFigures, MachineDisk,
    MachineUsage, NamedUsage, ProcessFigures, PsiByResource, PsiData, PsiStats, TrafficFigures, TreeFigures,
};
use reading::SystemContainerStats;
use serde_json::{Value, json};
use volumes::{VolumeFigures, VolumeStatsByPod};

use crate::metered::tests::{CountingEventSink, FakeImages};
use crate::testing::{FakeAgent, FakeAgentState, FakeFigures, FakeRuntime, StoppedClock, metrics};

fn usage(cpu: u64) -> CgroupUsage {
    CgroupUsage {
        at: Wall(1_700_000_000_500_000_000),
        cpu_nanos: Some(cpu),
        working_set_bytes: Some(700),
        memory_bytes: Some(1000),
        memory_limit_bytes: Some(2000),
        swap_bytes: Some(0),
        ..Default::default()
    }
}

/// With everything that can be known.
fn whole(cpu: u64) -> CgroupUsage {
    let stall = PsiData { total_micros: 1_500_000, averages: [1.0, 2.0, 3.0] };
    let pressure = Some(PsiStats { some: stall, full: stall });
    let disk = DiskTraffic { device: "/dev/sda".into(), major: 8, read_bytes: 5, ..Default::default() };
    let processes = ProcessFigures {
        processes: 2,
        open_files: Some(9),
        sockets: Some(1),
        open_files_limit: Some(64),
        ..Default::default()
    };
    let some = Some(1);
    let detail = CgroupDetail {
        cpu_user_nanos: some,
        cpu_system_nanos: some,
        cfs_periods: some,
        cfs_throttled_periods: some,
        cfs_throttled_nanos: some,
        burst_periods: some,
        burst_nanos: some,
        cpu_shares: some,
        cpu_quota: some,
        cpu_period: some,
        cache_bytes: some,
        mapped_bytes: some,
        kernel_bytes: some,
        max_usage_bytes: some,
        active_file_bytes: some,
        inactive_file_bytes: some,
        memory_failcnt: some,
        own_page_faults: some,
        own_major_page_faults: some,
        oom_kills: Some(3),
        memory_reservation_bytes: some,
        memory_swap_limit_raw_bytes: some,
        task_limit: some,
        disks: vec![disk],
        processes: Some(processes),
    };
    CgroupUsage {
        cpu_nano_cores: some,
        rss_bytes: some,
        page_faults: some,
        major_page_faults: some,
        swap_limit_bytes: Some(10),
        tasks: Some(4),
        pressure: PsiByResource { cpu: pressure, memory: pressure, io: pressure },
        detail: Some(Box::new(detail)),
        ..usage(cpu)
    }
}

fn reading_of(usage: fn(u64) -> CgroupUsage) -> StatsReading {
    let started = Wall(1_600_000_000_000_000_000);
    let container = ContainerFigures {
        id: "c1".into(),
        name: "web".into(),
        started,
        log_dir: "/logs".into(),
        cgroup: "/kubepods/podu1/c1".into(),
        image: "example/web:1".into(),
        usage: usage(1_500_000_000),
        layer: None,
    };
    let volume = |name: &str, on_disk| MeasuredVolume {
        name: name.into(),
        path: format!("/v/{name}"),
        plugin: "kubernetes.io/empty-dir".into(),
        ephemeral: true,
        on_disk,
        claim: (!on_disk).then(|| "data".to_owned()),
        of_driver: None,
    };
    let pod = PodFigures {
        namespace: "default".into(),
        name: "web-vm".into(),
        uid: "u1".into(),
        cgroup: "/kubepods/podu1".into(),
        sandbox_id: "s1".into(),
        sandbox: Some(NamedUsage { path: "/kubepods/podu1/s1".into(), usage: usage(1) }),
        started,
        usage: Some(usage(2_000_000_000)),
        interfaces: Vec::new(),
        default_interface: None,
        containers: vec![container],
        volumes: vec![volume("cache", true), volume("claimed", false)],
    };
    let pods = SystemContainerStats {
        name: "pods",
        cgroup: "/kubepods".into(),
        started: Some(started),
        usage: usage(5),
    };
    StatsReading {
        depth: CgroupDetailLevel::Full,
        machine: MachineUsage { root: usage(9_000_000_000), ..Default::default() },
        system: vec![pods],
        qos_cgroups: Vec::new(),
        pods: vec![pod],
        is_of_runtime: false,
    }
}

/// The texts of a reading in which everything is known.
pub(crate) fn everything() -> Vec<(&'static str, String)> {
    let mut reading = reading_of(whole);
    let traffic = Some(DiskCounters::default());
    reading.machine.disks = vec![MachineDisk { device: "/dev/sda".into(), traffic, ..Default::default() }];
    reading.machine.interfaces = vec![InterfaceFigures { name: "eth0".into(), ..Default::default() }];
    vec![
        ("/metrics/cadvisor", cadvisor::text(Some(&reading))),
        ("/metrics/resource", resource::text(Some(&reading))),
    ]
}

fn reading() -> StatsReading {
    reading_of(usage)
}

fn disks() -> DiskReading {
    let layer = FilesystemUsage { used_bytes: 50, inodes_used: 5, ..Default::default() };
    DiskReading {
        root: FilesystemFigures { capacity_bytes: 10_000, ..Default::default() },
        layers: [("c1".to_owned(), layer)].into(),
        logs: Arc::new([("c1".to_owned(), TreeFigures { bytes: 20, inodes: 1 })].into()),
        pods: [("u1".to_owned(), TreeFigures { bytes: 7, inodes: 1 })].into(),
        ..Default::default()
    }
}

fn sizes(reading: &StatsReading) -> VolumeStatsByPod {
    let pod = &reading.pods[0];
    let used = TreeFigures { bytes: 1000, inodes: 10 };
    let figures = pod.volumes.iter().map(|volume| VolumeFigures {
        volume: volume.clone(),
        at: Wall(0),
        filesystem: FilesystemFigures::default(),
        used,
        abnormal: volume.claim.is_some().then_some(true),
    });
    [(pod.uid.clone(), figures.map(Arc::new).collect())].into()
}

fn value(summary: &[u8]) -> Value {
    serde_json::from_slice(summary).unwrap()
}

#[test]
fn resource_metrics_have_the_kubelets_names_and_the_time_of_their_reading() {
    let text = resource::text(Some(&reading()));
    for line in [
        r#"container_cpu_usage_seconds_total{container="web",namespace="default",pod="web-vm"} 1.5 1700000000500"#,
        r#"container_memory_working_set_bytes{container="web",namespace="default",pod="web-vm"} 700 1700000000500"#,
        r#"container_start_time_seconds{container="web",namespace="default",pod="web-vm"} 1600000000"#,
        r#"pod_cpu_usage_seconds_total{namespace="default",pod="web-vm"} 2 1700000000500"#,
        "node_cpu_usage_seconds_total 9 1700000000500",
        "# TYPE node_cpu_usage_seconds_total counter",
        "resource_scrape_error 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
    assert!(!text.contains("container_swap_limit_bytes"), "what is not known is not told");
    assert!(resource::text(None).ends_with("\nresource_scrape_error 1\n"));
}

/// Samples are told apart by the pod's name: the one that went and the one that came would be the same sample twice.
#[test]
fn of_a_pod_that_was_replaced_the_newer_one_is_told() {
    let (mut replaced, older) = (reading(), reading());
    for mut pod in older.pods {
        pod.started = Wall(pod.started.0 - 1);
        (pod.uid, pod.usage) = ("u0".into(), Some(usage(7_000_000_000)));
        replaced.pods.push(pod);
    }
    let text = resource::text(Some(&replaced));
    let mut series: Vec<_> =
        text.lines().filter_map(|line| line.split_once("} ").map(|(name, _)| name)).collect();
    let told = series.len();
    series.sort_unstable();
    series.dedup();
    assert_eq!(series.len(), told, "{text}");
    assert!(text.contains(r#"pod_cpu_usage_seconds_total{namespace="default",pod="web-vm"} 2 "#), "{text}");
}

#[test]
fn summaries_leave_out_what_is_not_known() {
    let reading = reading();
    let lean = value(&summary::to_json(&summary::cpu_and_memory_summary("vm", &reading)));
    let container = json!({
        "name": "web", "startTime": "2020-09-13T12:26:40Z",
        "cpu": { "time": "2023-11-14T22:13:20Z", "usageCoreNanoSeconds": 1_500_000_000 },
        "memory": {
            "time": "2023-11-14T22:13:20Z", "availableBytes": 1300, "usageBytes": 1000, "workingSetBytes": 700,
        },
    });
    assert_eq!(lean["pods"][0]["containers"], json!([container]));
    assert_eq!(lean["pods"][0]["podRef"], json!({ "name": "web-vm", "namespace": "default", "uid": "u1" }));
    assert_eq!(lean["node"]["systemContainers"][0]["name"], "pods");
    let full =
        value(&summary::to_json(&summary::full_summary("vm", &reading, &disks(), &VolumeStatsByPod::new())));
    let pod = &full["pods"][0];
    assert_eq!(pod["ephemeral-storage"]["usedBytes"], 77);
    assert_eq!(pod["containers"][0]["logs"]["usedBytes"], 20);
    assert_eq!(full["node"]["rlimit"]["curproc"], 0);
    for absent in ["network", "volume", "process_stats"] {
        assert!(pod.get(absent).is_none(), "{absent}");
    }
}

#[test]
fn ephemeral_storage_is_layers_logs_files_of_the_agent_and_volumes_on_disk() {
    let reading = reading();
    let full = value(&summary::to_json(&summary::full_summary("vm", &reading, &disks(), &sizes(&reading))));
    let pod = &full["pods"][0];
    let storage = &pod["ephemeral-storage"];
    assert_eq!((&storage["usedBytes"], &storage["inodesUsed"]), (&json!(1077), &json!(17)));
    assert_eq!(pod["volume"][0]["usedBytes"], 1000);
    assert!(pod["volume"][0].get("pvcRef").is_none());
    assert!(pod["volume"][0].get("volumeHealthStats").is_none());
    assert_eq!(pod["volume"][1]["pvcRef"], json!({ "name": "data", "namespace": "default" }));
    assert_eq!(pod["volume"][1]["volumeHealthStats"], json!({ "abnormal": true }));
}

/// Every leaf, such as `.pods[].cpu.time`.
fn leaves(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| leaves(value, &format!("{path}.{name}"), found));
        }
        Value::Array(items) => items.iter().for_each(|item| leaves(item, &format!("{path}[]"), found)),
        _ => drop(found.insert(path.to_owned())),
    }
}

/// What the recorded kubelet showed, we show under the same names; and what it could not show on its machine.
#[test]
fn the_summary_has_the_recorded_shape() {
    let mut reading = reading_of(whole);
    let eth0 = InterfaceFigures { name: "eth0".into(), ..Default::default() };
    reading.machine.interfaces = vec![eth0.clone()];
    reading.pods[0].interfaces = vec![eth0];
    let sizes = sizes(&reading);
    let ours = value(&summary::to_json(&summary::full_summary("vm", &reading, &disks(), &sizes)));
    let recorded = serde_json::from_str(include_str!("fixtures/stats-summary.json")).unwrap();
    let (mut have, mut want) = (BTreeSet::new(), BTreeSet::new());
    leaves(&ours, "", &mut have);
    leaves(&recorded, "", &mut want);
    let missing: Vec<_> = want.difference(&have).collect();
    assert_eq!(missing, [""; 0].map(String::from).iter().collect::<Vec<_>>());
    // That machine had no claims, and its version 1 no pressure of containers and no limit of swap above pods.
    let known = |path: &&String| {
        path.contains(".psi.")
            || path.ends_with(".swapAvailableBytes")
            || path.contains(".pvcRef.")
            || path.contains(".volumeHealthStats.")
            || path.starts_with(".pods[].memory.availableBytes")
    };
    let more: Vec<_> = have.difference(&want).filter(|path| !known(path)).collect();
    assert!(
        more.iter()
            .all(|path| path.starts_with(".pods[].network") || path.starts_with(".pods[].process_stats")),
        "{more:?}"
    );
}

#[test]
fn cgroup_metrics_are_labelled_as_cadvisors() {
    let mut reading = reading();
    let rx = TrafficFigures { bytes: 5, packets: 2, ..Default::default() };
    reading.pods[0].interfaces = vec![InterfaceFigures { name: "eth0".into(), rx, ..Default::default() }];
    let text = cadvisor::text(Some(&reading));
    let of_container = r#"container="web",id="/kubepods/podu1/c1",image="example/web:1",name="c1",namespace="default",pod="web-vm""#;
    let of_pod = r#"container="",id="/kubepods/podu1",image="",name="",namespace="default",pod="web-vm""#;
    let of_sandbox =
        r#"container="",id="/kubepods/podu1/s1",image="",name="s1",namespace="default",pod="web-vm""#;
    for line in [
        format!("container_memory_working_set_bytes{{{of_container}}} 700 1700000000500"),
        format!("container_memory_rss{{{of_pod}}}"),
        format!(r#"container_cpu_usage_seconds_total{{{of_pod},cpu="total"}} 2 1700000000500"#),
        r#"container_cpu_usage_seconds_total{container="",id="/",image="",name="",namespace="",pod="",cpu="total"} 9 1700000000500"#.into(),
        format!(r#"container_network_receive_bytes_total{{{of_sandbox},interface="eth0"}} 5 1700000000500"#),
        format!(r#"container_network_receive_packets_total{{{of_sandbox},interface="eth0"}} 2 1700000000500"#),
        r#"machine_memory_bytes{boot_id="",machine_id="",system_uuid=""} 0"#.into(),
        "container_scrape_error 0".into(),
    ] {
        // What was not read is not told.
        let expected = !line.starts_with("container_memory_rss");
        assert_eq!(text.lines().any(|found| found == line), expected, "{line} in\n{text}");
    }
}

#[test]
fn cgroup_metrics_tell_everything_that_was_read() {
    let mut reading = reading_of(whole);
    let traffic = Some(DiskCounters { reads: 7, ..Default::default() });
    reading.machine.disks = vec![MachineDisk { device: "/dev/sdb".into(), traffic, ..Default::default() }];
    let text = cadvisor::text(Some(&reading));
    let root = r#"container="",id="/",image="",name="",namespace="",pod="""#;
    for line in [
        format!("container_oom_events_total{{{root}}} 3 1700000000500"),
        format!("container_pressure_io_stalled_seconds_total{{{root}}} 1.5 1700000000500"),
        format!(r#"container_fs_reads_total{{{root},device="/dev/sdb"}} 7 1700000000500"#),
        format!(r#"container_fs_reads_bytes_total{{{root},device="/dev/sda"}} 5 1700000000500"#),
        format!(r#"container_ulimits_soft{{{root},ulimit="max_open_files"}} 64 1700000000500"#),
        format!(r#"container_tasks_state{{{root},state="sleeping"}} 0 1700000000500"#),
        format!("container_file_descriptors{{{root}}} 9 1700000000500"),
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
    let mut seen = BTreeSet::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let series = line.rsplit_once("} ").map_or(line, |(series, _)| series);
        assert!(seen.insert(series), "twice: {series}");
    }
}

/// Of a node whose runtime answers so.
fn node_stats(figures: Option<Result<FakeFigures, RuntimeError>>) -> NodeStats {
    let ports = StatsPorts {
        agent: Arc::new(FakeAgent(FakeAgentState::Well)),
        usage: Arc::new(cost::RecordingUsageReader::default()),
        runtime: Arc::new(FakeRuntime { figures, ..Default::default() }),
        images: Arc::new(FakeImages),
        drivers: None,
        events: Arc::new(CountingEventSink::default()),
        wall: Arc::new(StoppedClock),
    };
    let settings =
        StatsSettings { root_dir: "/root-dir".into(), stats_from_runtime: true, ..Default::default() };
    NodeStats::new(ports, settings, metrics())
}

/// The pod of [`FakeAgent`], and one that nobody knows.
fn told_figures() -> FakeFigures {
    let usage = |cpu: u64| model::cri::ResourceUsage {
        timestamp: 1_700_000_000_500_000_000,
        cpu_usage_core_nano_seconds: Some(cpu),
        cpu_usage_nano_cores: Some(5),
        memory_working_set_bytes: Some(700),
        memory_available_bytes: Some(1300),
        ..Default::default()
    };
    let container = |id: &str, used_bytes| model::cri::ContainerStats {
        id: id.into(),
        usage: model::cri::ResourceUsage {
            swap_usage_bytes: Some(3),
            swap_available_bytes: Some(4),
            ..usage(1_500_000_000)
        },
        writable_layer: Some(FilesystemUsage { used_bytes, ..Default::default() }),
        ..Default::default()
    };
    let lo0 = model::cri::InterfaceStats {
        name: "net1".into(),
        rx_bytes: Some(1),
        rx_errors: Some(2),
        tx_bytes: Some(3),
        tx_errors: Some(4),
    };
    let sandbox = |id: &str| model::cri::SandboxStats {
        id: id.into(),
        usage: usage(2_000_000_000),
        default_interface: Some(lo0.clone()),
        interfaces: Vec::new(),
        process_count: Some(9),
        containers: vec![container("c1", 50), container("gone", 1_000_000), container("c2", 60)],
    };
    let label_keys = vec!["pod".to_owned()];
    let descriptor = model::cri::MetricDescriptor { name: "a_total".into(), help: "A.".into(), label_keys };
    let label_values = vec!["web-vm".to_owned()];
    let metric = model::cri::Metric { name: "a_total".into(), label_values, value: 7, ..Default::default() };
    FakeFigures {
        sandboxes: vec![sandbox("unknown"), sandbox("s1")],
        descriptors: vec![descriptor],
        metrics: vec![metric],
    }
}

#[tokio::test]
async fn figures_of_pods_are_the_runtimes_with_the_gate() {
    let stats = node_stats(Some(Ok(told_figures())));
    let summary = value(&stats.summary(false).await.unwrap());
    let pods = summary["pods"].as_array().unwrap();
    let [pod] = pods.as_slice() else { panic!("{summary}") };
    let time = "2023-11-14T22:13:20Z";
    assert_eq!(
        pod["cpu"],
        json!({ "time": time, "usageNanoCores": 5, "usageCoreNanoSeconds": 2_000_000_000 })
    );
    assert_eq!(pod["memory"], json!({ "time": time, "availableBytes": 1300, "workingSetBytes": 700 }));
    // All that the runtime lists counts, also a container that no reading has shown.
    assert_eq!(pod["swap"], json!({ "time": time, "swapAvailableBytes": 12, "swapUsageBytes": 9 }));
    assert_eq!(pod["process_stats"]["process_count"], 9);
    assert_eq!((&pod["network"]["name"], &pod["network"]["txBytes"]), (&json!("net1"), &json!(3)));
    let containers = pod["containers"].as_array().unwrap();
    let told: Vec<_> = containers.iter().map(|one| (&one["name"], &one["rootfs"]["usedBytes"])).collect();
    assert_eq!(told, [(&json!("shell"), &json!(60)), (&json!("web"), &json!(50))]);
    assert_eq!(containers[0]["cpu"]["usageCoreNanoSeconds"], 1_500_000_000);
    assert!(summary["node"]["cpu"]["time"].is_string(), "the machine's own are there");

    let resource = stats.resource_metrics().await;
    let line = r#"container_memory_working_set_bytes{container="web",namespace="default",pod="web-vm"} 700 "#;
    assert!(resource.contains(line), "{resource}");
    let text = stats.cgroup_metrics().await;
    for line in ["a_total{pod=\"web-vm\"} 7", "container_scrape_error 0", "machine_scrape_error 0"] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
    assert!(text.contains("\nmachine_cpu_cores{") && !text.contains("container_cpu_usage"), "{text}");
}

#[tokio::test]
async fn what_has_no_figures_has_the_time_of_the_reading() {
    let mut figures = told_figures();
    figures.sandboxes[1].usage = Default::default();
    figures.sandboxes[1].containers[0].usage = Default::default();
    let stats = node_stats(Some(Ok(figures)));
    let summary = value(&stats.summary(false).await.unwrap());
    let pod = &summary["pods"][0];
    let web = pod["containers"].as_array().unwrap().iter().find(|one| one["name"] == "web").unwrap();
    for part in [&pod["cpu"], &pod["memory"], &web["cpu"], &web["memory"], &web["swap"]] {
        assert_eq!(part["time"], "2023-11-14T22:13:20Z", "{pod}");
    }
    assert!(web["cpu"].get("usageCoreNanoSeconds").is_none(), "{web}");
}

#[tokio::test]
async fn a_runtime_without_figures_leaves_them_to_cgroups_and_its_metrics_out() {
    let stats = node_stats(None);
    let summary = value(&stats.summary(false).await.unwrap());
    assert_eq!(summary["pods"][0]["containers"].as_array().map(Vec::len), Some(2), "{summary}");
    let text = stats.cgroup_metrics().await;
    assert!(text.lines().any(|line| line == "container_scrape_error 1"), "{text}");
    assert!(text.contains("\nmachine_cpu_cores{"), "{text}");
}

#[tokio::test]
async fn a_runtime_that_fails_is_an_error_of_the_answer() {
    let refused = RuntimeError::Failed {
        call: "ListPodSandboxStats",
        code: GrpcCode::Unknown,
        message: "broken".into(),
    };
    let stats = node_stats(Some(Err(refused)));
    let error = stats.summary(false).await.unwrap_err();
    assert_eq!(error.to_string(), "failed to list pod stats: ListPodSandboxStats: broken");
    assert!(stats.resource_metrics().await.contains("\nresource_scrape_error 1\n"));
    assert!(stats.cgroup_metrics().await.contains("\ncontainer_scrape_error 1\n"));
}
