use super::*;
use serde_json::json;

fn reading() -> Reading {
    let usage = |cpu: u64| CgroupUsage {
        at: Wall(1_700_000_000_500_000_000),
        cpu_nanos: Some(cpu),
        working_set_bytes: Some(700),
        memory_bytes: Some(1000),
        memory_limit_bytes: Some(2000),
        swap_bytes: Some(0),
        ..Default::default()
    };
    let container = ContainerFigures {
        id: "c1".into(),
        name: "web".into(),
        started: Wall(1_600_000_000_000_000_000),
        log_dir: "/logs".into(),
        cgroup: "/kubepods/podu1/c1".into(),
        image: "example/web:1".into(),
        usage: usage(1_500_000_000),
    };
    let pod = PodFigures {
        namespace: "default".into(),
        name: "web-vm".into(),
        uid: "u1".into(),
        cgroup: "/kubepods/podu1".into(),
        sandbox: "s1".into(),
        started: Wall(1_600_000_000_000_000_000),
        usage: Some(usage(2_000_000_000)),
        interfaces: Vec::new(),
        containers: vec![container],
    };
    Reading { machine: MachineUsage { root: usage(9_000_000_000), ..Default::default() }, pods: vec![pod] }
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

#[test]
fn summaries_leave_out_what_is_not_known() {
    let lean = summary::lean("vm", &reading());
    let container = json!({
        "name": "web", "startTime": "2020-09-13T12:26:40Z",
        "cpu": { "time": "2023-11-14T22:13:20Z", "usageCoreNanoSeconds": 1_500_000_000 },
        "memory": {
            "time": "2023-11-14T22:13:20Z", "availableBytes": 1300, "usageBytes": 1000, "workingSetBytes": 700,
        },
    });
    assert_eq!(lean["pods"][0]["containers"], json!([container]));
    assert_eq!(lean["pods"][0]["podRef"], json!({ "name": "web-vm", "namespace": "default", "uid": "u1" }));
    let layer = model::cri::FilesystemUsage { used_bytes: 50, inodes_used: 5, ..Default::default() };
    let disks = summary::Disks {
        root: FilesystemFigures { capacity_bytes: 10_000, ..Default::default() },
        image_fs: FilesystemFigures::default(),
        image_use: None,
        container_use: None,
        layers: [("c1".to_owned(), layer)].into(),
        logs: [("c1".to_owned(), (20, 1))].into(),
    };
    let full = summary::full("vm", &reading(), &disks);
    let pod = &full["pods"][0];
    assert_eq!(
        (&pod["ephemeral-storage"]["usedBytes"], &pod["ephemeral-storage"]["inodesUsed"]),
        (&json!(70), &json!(6))
    );
    assert_eq!(pod["containers"][0]["logs"]["usedBytes"], 20);
    assert_eq!(full["node"]["rlimit"]["curproc"], 0);
    assert!(pod.get("network").is_none());
}

#[test]
fn cgroup_metrics_are_labelled_as_cadvisors() {
    let mut reading = reading();
    let eth0 = InterfaceFigures { name: "eth0".into(), rx_bytes: 5, ..Default::default() };
    reading.pods[0].interfaces = vec![eth0];
    let text = cadvisor::text(Some(&reading));
    let of_container = r#"container="web",id="/kubepods/podu1/c1",image="example/web:1",name="c1",namespace="default",pod="web-vm""#;
    let of_pod = r#"id="/kubepods/podu1",image="",name="",namespace="default",pod="web-vm""#;
    for line in [
        format!("container_memory_working_set_bytes{{{of_container}}} 700 1700000000500"),
        format!(r#"container_memory_rss{{container="",{of_pod}}}"#),
        format!(r#"container_cpu_usage_seconds_total{{container="",cpu="total",{of_pod}}} 2 1700000000500"#),
        r#"container_cpu_usage_seconds_total{container="",cpu="total",id="/",image="",name="",namespace="",pod=""} 9 1700000000500"#.into(),
        r#"container_network_receive_bytes_total{container="",id="/kubepods/podu1/s1",image="",interface="eth0",name="s1",namespace="default",pod="web-vm"} 5 1700000000500"#.into(),
        r#"machine_memory_bytes{boot_id="",machine_id="",system_uuid=""} 0"#.into(),
        "container_scrape_error 0".into(),
    ] {
        // What was not read is not told.
        let expected = !line.starts_with("container_memory_rss");
        assert_eq!(text.lines().any(|found| found == line), expected, "{line} in\n{text}");
    }
}
