use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::stats::VolumeFigures;
use crate::testing::metrics;
use model::report::{
    AgentCounters, CertificateCount, ImageRequests, NodeReport, PodReport, ProtectedMemoryReport,
    SelinuxCount, SelinuxOutcome, VolumeCount, WatchReport,
};

/// Reads the text format strictly: each family once, with HELP before TYPE before its samples, no sample twice, and
/// histograms whose buckets grow to `+Inf` and agree with their count. Gives type and label names per family.
fn read(text: &str) -> BTreeMap<String, (String, BTreeSet<String>)> {
    let mut families: BTreeMap<String, (String, BTreeSet<String>)> = BTreeMap::new();
    let mut helped: Option<String> = None;
    let mut current: Option<(String, String)> = None;
    let mut seen = BTreeSet::new();
    let mut last_bucket: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("help has text");
            assert!(!help.is_empty() && helped.is_none(), "{line}");
            helped = Some(name.to_owned());
            continue;
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(helped.take().as_deref(), Some(name), "help comes first");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert!(
                families.insert(name.to_owned(), (kind.to_owned(), BTreeSet::new())).is_none(),
                "twice: {name}"
            );
            current = Some((name.to_owned(), kind.to_owned()));
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let value: f64 = value.replace("+Inf", "inf").parse().unwrap_or_else(|_| panic!("{line}"));
        assert!(seen.insert(series.to_owned()), "twice: {series}");
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => (name, pairs(labels.strip_suffix('}').unwrap())),
            None => (series, Vec::new()),
        };
        let (family, kind) = current.clone().expect("a type before samples");
        let own: Vec<_> = labels.iter().filter(|(key, _)| key != "le").cloned().collect();
        let group = format!("{family}{own:?}");
        if kind == "histogram" {
            match name.strip_prefix(&family).unwrap() {
                "_bucket" => {
                    let le = labels.iter().find(|(key, _)| key == "le").unwrap().1.replace("+Inf", "inf");
                    let le: f64 = le.parse().unwrap();
                    if let Some((before, count)) = last_bucket.insert(group, (le, value)) {
                        assert!(before < le && count <= value, "{line}");
                    }
                }
                "_count" => assert_eq!(last_bucket[&group], (f64::INFINITY, value), "{line}"),
                suffix => assert_eq!(suffix, "_sum", "{line}"),
            }
        } else {
            assert_eq!(name, family);
            // Those without the ending are the kubelet's.
            let named = name.ends_with("_total")
                || ["kubelet_evictions", "kubelet_preemptions", "kubelet_pleg_discard_events"]
                    .contains(&name);
            assert!(kind == "gauge" || (value >= 0.0 && named), "{line}");
        }
        families.get_mut(&family).unwrap().1.extend(own.into_iter().map(|(key, _)| key));
    }
    families
}

fn pairs(text: &str) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (key, after) = rest.split_once("=\"").unwrap();
        assert!(key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'), "{key}");
        let mut end = 0;
        let bytes = after.as_bytes();
        while bytes[end] != b'"' {
            end += if bytes[end] == b'\\' { 2 } else { 1 };
        }
        pairs.push((key.to_owned(), after[..end].to_owned()));
        rest = &after[end + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    pairs
}

fn figures() -> AgentSnapshot {
    let node = NodeReport {
        name: "vm \"one\"\\".into(),
        runtime: "containerd".into(),
        runtime_ready: true,
        network_ready: false,
        message: String::new(),
        sources_ready: true,
        pods: 2,
        running_pods: 1,
        containers: [("running".to_owned(), 3), ("exited".to_owned(), 1)].into(),
        mirror_pods: 0,
        orphans: 0,
        ephemeral_containers: 0,
        counts: AgentCounters {
            orphans: 3,
            static_pods_recreated: 2,
            api_pods_recreated: 0,
            preemptions: [("cpu".to_owned(), 2)].into(),
            evictions: [("emptydirfs.limit".to_owned(), 1)].into(),
            images_collected: [("space".to_owned(), 3)].into(),
            image_requests: vec![ImageRequests {
                policy: "never".into(),
                present: Some(true),
                pull_required: None,
                count: 4,
            }],
            access_checks: [("mustAuthenticate".to_owned(), 2)].into(),
        },
        volumes: vec![VolumeCount { plugin: "kubernetes.io/secret".into(), wanted: 5, set_up: 4 }],
        selinux_volumes: [
            (SelinuxOutcome::Admitted, 7),
            (SelinuxOutcome::PodMismatchError, 1),
            (SelinuxOutcome::PodMismatchWarning, 2),
            (SelinuxOutcome::VolumeMismatchError, 3),
            (SelinuxOutcome::VolumeMismatchWarning, 4),
        ]
        .map(|(outcome, count)| SelinuxCount {
            outcome,
            plugin: "kubernetes.io/csi/d".into(),
            access_mode: "RWO".into(),
            count,
        })
        .into(),
        protected_memory: Some(ProtectedMemoryReport { min_bytes: 64, low_bytes: 32 }),
        pod_certificates: vec![CertificateCount {
            signer_name: "a.b/c".into(),
            state: "fresh".into(),
            count: 2,
        }],
        signals: Vec::new(),
        watches: vec![WatchReport { resource: "services".into(), last_word_secs: 7.0, ..Default::default() }],
    };
    let pod = |source: &str, lifecycle: &str| PodReport {
        source: source.into(),
        lifecycle: lifecycle.into(),
        ..crate::testing::report("web", source, "Running")
    };
    AgentSnapshot::new(node, &[pod("file", "sync"), pod("file", "terminated")])
}

pub(super) fn scrape() -> ScrapeInputs {
    let owner = ["u1", "ns", "web", "c"].map(str::to_owned);
    let (now, logs) = (Wall(1_700_000_000_000_000_000), vec![(owner, 70)]);
    let volume = model::volume::MeasuredVolume {
        name: "data".into(),
        path: String::new(),
        plugin: String::new(),
        ephemeral: false,
        on_disk: false,
        claim: Some("data".into()),
        of_driver: None,
    };
    let filesystem = ports::FilesystemFigures { capacity_bytes: 1000, ..Default::default() };
    let used = ports::TreeFigures { bytes: 10, inodes: 1 };
    let claim = VolumeFigures { volume, at: now, filesystem, used, abnormal: Some(true) };
    let claims = vec![(["ns", "data"].map(str::to_owned), claim)];
    ScrapeInputs { now, figures: Some(figures()), logs, claims, pull_records: Some([3, 0]) }
}

pub(super) fn fed() -> Arc<AgentMetrics> {
    let metrics = metrics();
    metrics.set_cgroup_version(2);
    metrics.observe_runtime_call("create_container", 0.2, true);
    metrics.observe_runtime_call("create_container", 400.0, false);
    metrics.observe_sandbox("", true, 0.3, true);
    metrics.observe_sandbox("kata", false, 99.0, false);
    metrics.container_started(ContainerKind::Init);
    metrics.observe_relist(0.01);
    metrics.observe_relist(0.01);
    metrics.observe_pod_relist(0.01);
    metrics.observe_eviction_figures_age("memory.available", 0.01);
    metrics.observe_cgroup("create", 0.01);
    metrics.observe_volume("kubernetes.io/empty-dir", true, 0.01);
    metrics.observe_volume("kubernetes.io/secret", false, 0.01);
    metrics.observe_volume_size("du", 0.01);
    metrics.observe_pull(50 << 20, 3.0);
    metrics.set_feature("SomeGate", "BETA", true);
    metrics.observe_step("Hint", 0.000_02);
    metrics.count_plan();
    drop(metrics.clone().request("GET", "pods", "readonly"));
    metrics
}

#[test]
fn the_text_is_well_formed_and_has_the_kubelets_names_types_and_labels() {
    let families = read(&fed().text(&scrape()).unwrap());
    let expect = [
        ("apiserver_client_certificate_expiration_seconds", "histogram", ""),
        ("kubelet_active_pods", "gauge", "static"),
        ("kubelet_cgroup_manager_duration_seconds", "histogram", "operation_type"),
        ("kubelet_cgroup_version", "gauge", ""),
        ("kubelet_container_log_filesystem_used_bytes", "gauge", "container,namespace,pod,uid"),
        ("kubelet_desired_pods", "gauge", "static"),
        ("kubelet_eviction_stats_age_seconds", "histogram", "eviction_signal"),
        ("kubelet_evictions", "counter", "eviction_signal"),
        ("kubelet_http_inflight_requests", "gauge", "long_running,method,path,server_type"),
        ("kubelet_http_requests_duration_seconds", "histogram", "long_running,method,path,server_type"),
        ("kubelet_http_requests_total", "counter", "long_running,method,path,server_type"),
        ("kubelet_image_garbage_collected_total", "counter", "reason"),
        (
            "kubelet_image_manager_ensure_image_requests_total",
            "counter",
            "present_locally,pull_policy,pull_required",
        ),
        ("kubelet_image_pull_duration_seconds", "histogram", "image_size_in_bytes"),
        ("kubelet_image_volume_mounted_errors_total", "counter", ""),
        ("kubelet_image_volume_mounted_succeed_total", "counter", ""),
        ("kubelet_image_volume_requested_total", "counter", ""),
        ("kubelet_imagemanager_image_mustpull_checks_total", "counter", "result"),
        ("kubelet_imagemanager_ondisk_pulledrecords", "gauge", ""),
        ("kubelet_imagemanager_ondisk_pullintents", "gauge", ""),
        ("kubelet_lifecycle_handler_http_fallbacks_total", "counter", ""),
        ("kubelet_managed_ephemeral_containers", "gauge", ""),
        ("kubelet_memory_qos_node_memory_low_bytes", "gauge", ""),
        ("kubelet_memory_qos_node_memory_min_bytes", "gauge", ""),
        ("kubelet_metrics_provider", "gauge", "provider"),
        ("kubelet_mirror_pods", "gauge", ""),
        ("kubelet_node_name", "gauge", "node"),
        ("kubelet_orphan_pod_cleaned_volumes", "gauge", ""),
        ("kubelet_orphan_pod_cleaned_volumes_errors", "gauge", ""),
        ("kubelet_orphaned_runtime_pods_total", "counter", ""),
        ("kubelet_pleg_discard_events", "counter", ""),
        ("kubelet_pleg_last_seen_seconds", "gauge", ""),
        ("kubelet_pleg_pod_relist_duration_seconds", "histogram", ""),
        ("kubelet_pleg_relist_duration_seconds", "histogram", ""),
        ("kubelet_pleg_relist_interval_seconds", "histogram", ""),
        ("kubelet_pod_watch_events_dropped_total", "counter", ""),
        ("kubelet_podcertificate_states", "gauge", "signer_name,state"),
        ("kubelet_preemptions", "counter", "preemption_signal"),
        ("kubelet_restarted_pods_total", "counter", "static"),
        ("kubelet_run_podsandbox_duration_seconds", "histogram", "runtime_handler"),
        ("kubelet_run_podsandbox_errors_total", "counter", "runtime_handler"),
        ("kubelet_running_containers", "gauge", "container_state"),
        ("kubelet_running_pods", "gauge", ""),
        ("kubelet_runtime_operations_duration_seconds", "histogram", "operation_type"),
        ("kubelet_runtime_operations_errors_total", "counter", "operation_type"),
        ("kubelet_runtime_operations_total", "counter", "operation_type"),
        ("kubelet_sleep_action_terminated_early_total", "counter", ""),
        ("kubelet_started_containers_total", "counter", "container_type"),
        ("kubelet_started_pods_errors_total", "counter", ""),
        ("kubelet_started_pods_total", "counter", ""),
        ("kubelet_started_user_namespaced_pods_errors_total", "counter", ""),
        ("kubelet_started_user_namespaced_pods_total", "counter", ""),
        ("kubelet_volume_metric_collection_duration_seconds", "histogram", "metric_source"),
        ("kubelet_volume_stats_available_bytes", "gauge", "namespace,persistentvolumeclaim"),
        ("kubelet_volume_stats_capacity_bytes", "gauge", "namespace,persistentvolumeclaim"),
        ("kubelet_volume_stats_health_status_abnormal", "gauge", "namespace,persistentvolumeclaim"),
        ("kubelet_volume_stats_inodes", "gauge", "namespace,persistentvolumeclaim"),
        ("kubelet_volume_stats_inodes_free", "gauge", "namespace,persistentvolumeclaim"),
        ("kubelet_volume_stats_inodes_used", "gauge", "namespace,persistentvolumeclaim"),
        ("kubelet_volume_stats_used_bytes", "gauge", "namespace,persistentvolumeclaim"),
        ("kubelet_working_pods", "gauge", "config,lifecycle,static"),
        (
            "kubernetes_build_info",
            "gauge",
            "build_date,compiler,git_commit,git_tree_state,git_version,go_version,major,minor,platform",
        ),
        ("kubernetes_feature_enabled", "gauge", "name,stage"),
        ("process_cpu_seconds_total", "counter", ""),
        ("process_max_fds", "gauge", ""),
        ("process_network_receive_bytes_total", "counter", ""),
        ("process_network_transmit_bytes_total", "counter", ""),
        ("process_open_fds", "gauge", ""),
        ("process_resident_memory_bytes", "gauge", ""),
        ("process_start_time_seconds", "gauge", ""),
        ("process_virtual_memory_bytes", "gauge", ""),
        ("process_virtual_memory_max_bytes", "gauge", ""),
        ("rubelet_build_info", "gauge", "version"),
        ("rubelet_events_total", "counter", "event"),
        ("rubelet_network_ready", "gauge", ""),
        ("rubelet_plans_total", "counter", ""),
        ("rubelet_runtime_ready", "gauge", ""),
        ("rubelet_sources_ready", "gauge", ""),
        ("rubelet_step_duration_seconds", "histogram", ""),
        ("rubelet_unreadable_objects", "gauge", "resource"),
        ("rubelet_watch_last_word_age_seconds", "gauge", "resource"),
        ("rubelet_watches_held", "gauge", "resource"),
        ("storage_operation_duration_seconds", "histogram", "migrated,operation_name,status,volume_plugin"),
        ("volume_manager_selinux_pod_context_mismatch_errors_total", "gauge", "access_mode"),
        ("volume_manager_selinux_pod_context_mismatch_warnings_total", "gauge", "access_mode"),
        ("volume_manager_selinux_volume_context_mismatch_errors_total", "gauge", "access_mode,volume_plugin"),
        (
            "volume_manager_selinux_volume_context_mismatch_warnings_total",
            "gauge",
            "access_mode,volume_plugin",
        ),
        ("volume_manager_selinux_volumes_admitted_total", "gauge", "access_mode,volume_plugin"),
        ("volume_manager_total_volumes", "gauge", "plugin_name,state"),
        ("volume_operation_total_seconds", "histogram", "operation_name,plugin_name"),
    ];
    let found: Vec<_> = families
        .iter()
        .map(|(name, (kind, labels))| {
            (name.as_str(), kind.as_str(), labels.iter().cloned().collect::<Vec<_>>().join(","))
        })
        .collect();
    let expect: Vec<_> = expect.iter().map(|(n, k, l)| (*n, *k, l.to_string())).collect();
    assert_eq!(found, expect);
}

#[test]
fn values_are_those_that_were_fed() {
    let text = fed().text(&scrape()).unwrap();
    for line in [
        "kubelet_cgroup_version 2",
        r#"kubelet_desired_pods{static=""} 0"#,
        r#"kubelet_desired_pods{static="true"} 2"#,
        r#"kubelet_node_name{node="vm \"one\"\\"} 1"#,
        r#"kubelet_running_containers{container_state="running"} 3"#,
        r#"kubelet_running_containers{container_state="exited"} 1"#,
        r#"kubelet_runtime_operations_total{operation_type="create_container"} 2"#,
        r#"kubelet_runtime_operations_errors_total{operation_type="create_container"} 1"#,
        r#"kubelet_runtime_operations_duration_seconds_bucket{operation_type="create_container",le="0.1953125"} 0"#,
        r#"kubelet_runtime_operations_duration_seconds_bucket{operation_type="create_container",le="0.48828125"} 1"#,
        "kubelet_started_pods_total 2",
        "kubelet_orphaned_runtime_pods_total 3",
        r#"kubelet_restarted_pods_total{static="true"} 2"#,
        r#"kubelet_evictions{eviction_signal="emptydirfs.limit"} 1"#,
        r#"kubelet_preemptions{preemption_signal="cpu"} 2"#,
        r#"kubelet_image_garbage_collected_total{reason="space"} 3"#,
        r#"kubelet_image_manager_ensure_image_requests_total{present_locally="true",pull_policy="never",pull_required="unknown"} 4"#,
        r#"kubelet_imagemanager_image_mustpull_checks_total{result="mustAuthenticate"} 2"#,
        r#"volume_manager_total_volumes{plugin_name="kubernetes.io/secret",state="actual_state_of_world"} 4"#,
        r#"volume_manager_total_volumes{plugin_name="kubernetes.io/secret",state="desired_state_of_world"} 5"#,
        "kubelet_started_pods_errors_total 1",
        r#"kubelet_run_podsandbox_errors_total{runtime_handler="kata"} 1"#,
        r#"kubelet_started_containers_total{container_type="init_container"} 1"#,
        "kubelet_started_user_namespaced_pods_total 1",
        r#"kubelet_active_pods{static="true"} 1"#,
        r#"kubelet_working_pods{config="desired",lifecycle="terminated",static="true"} 1"#,
        r#"kubelet_container_log_filesystem_used_bytes{container="c",namespace="ns",pod="web",uid="u1"} 70"#,
        r#"kubelet_volume_stats_capacity_bytes{namespace="ns",persistentvolumeclaim="data"} 1000"#,
        r#"kubelet_volume_stats_health_status_abnormal{namespace="ns",persistentvolumeclaim="data"} 1"#,
        "kubelet_pleg_relist_interval_seconds_count 1",
        r#"kubelet_image_pull_duration_seconds_count{image_size_in_bytes="10MB-100MB"} 1"#,
        r#"kubernetes_feature_enabled{name="SomeGate",stage="BETA"} 1"#,
        r#"kubelet_http_inflight_requests{long_running="false",method="GET",path="pods",server_type="readonly"} 0"#,
        "rubelet_runtime_ready 1",
        "rubelet_network_ready 0",
        r#"rubelet_events_total{event="Hint"} 1"#,
        "rubelet_plans_total 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
}

#[test]
fn what_was_never_fed_does_not_show() {
    let families = read(&metrics().text(&ScrapeInputs::default()).unwrap());
    let ours: Vec<_> = families.keys().filter(|name| !name.starts_with("process_")).cloned().collect();
    let always = [
        "apiserver_client_certificate_expiration_seconds",
        "kubelet_image_volume_mounted_errors_total",
        "kubelet_image_volume_mounted_succeed_total",
        "kubelet_image_volume_requested_total",
        "kubelet_lifecycle_handler_http_fallbacks_total",
        "kubelet_metrics_provider",
        "kubelet_orphan_pod_cleaned_volumes",
        "kubelet_orphan_pod_cleaned_volumes_errors",
        "kubelet_pleg_discard_events",
        "kubelet_pod_watch_events_dropped_total",
        "kubelet_sleep_action_terminated_early_total",
        "kubelet_started_pods_errors_total",
        "kubelet_started_pods_total",
        "kubelet_started_user_namespaced_pods_errors_total",
        "kubelet_started_user_namespaced_pods_total",
        "kubernetes_build_info",
        "rubelet_build_info",
    ];
    assert_eq!(ours, always);
}

/// What is told of the probes but for the process.
fn probe_lines(metrics: &AgentMetrics) -> Vec<String> {
    let text = metrics.probes.text().unwrap();
    read(&text);
    let told =
        text.lines().filter(|l| l.starts_with("prober_") && !l.contains("_bucket") && !l.contains("_sum"));
    told.map(str::to_owned).collect()
}

#[test]
fn probes_are_counted_by_what_they_said_and_go_with_their_pod() {
    use model::probe::{ProbeKind, ProbeOutcome};
    use ports::{EngineMetrics, ProbeIdentity};
    let metrics = metrics();
    assert_eq!(probe_lines(&metrics), [""; 0]);
    let pod = model::FullName::new("web", "ns");
    let (old, new) = (model::PodUid::new("u1"), model::PodUid::new("u2"));
    let say = |uid, kind, outcome: &ProbeOutcome| {
        let of = ProbeIdentity { uid, pod: &pod, container: "c", kind };
        metrics.probe(&of, outcome, std::time::Duration::from_millis(20));
    };
    let (good, warned) = (ProbeOutcome::Success, ProbeOutcome::Warning { output: "moved".into() });
    for outcome in [&good, &good, &warned, &ProbeOutcome::failure("no"), &ProbeOutcome::unknown("away")] {
        say(&old, ProbeKind::Readiness, outcome);
    }
    say(&old, ProbeKind::Liveness, &ProbeOutcome::failure("dead"));
    say(&new, ProbeKind::Readiness, &good);
    let total = |kind: &str, result: &str, uid: &str, count: u32| {
        let labels = format!(
            r#"container="c",namespace="ns",pod="web",pod_uid="{uid}",probe_type="{kind}",result="{result}""#
        );
        format!("prober_probe_total{{{labels}}} {count}")
    };
    let took = |count: u32| {
        format!(
            r#"prober_probe_duration_seconds_count{{container="c",namespace="ns",pod="web",probe_type="Readiness"}} {count}"#
        )
    };
    let expect = [
        // A failure says nothing about how long an answer takes.
        took(5),
        total("Liveness", "failed", "u1", 1),
        total("Readiness", "failed", "u1", 1),
        total("Readiness", "successful", "u1", 3),
        total("Readiness", "unknown", "u1", 1),
        total("Readiness", "successful", "u2", 1),
    ];
    assert_eq!(probe_lines(&metrics), expect);
    let text = metrics.probes.text().unwrap();
    assert!(text.contains(r#",le="0.01"} 0"#) && text.contains(r#",le="0.025"} 5"#), "{text}");
    assert!(text.contains("process_start_time_seconds "), "{text}");

    metrics.forget(&old);
    // The next pod of that name goes on.
    assert_eq!(probe_lines(&metrics), [took(5), total("Readiness", "successful", "u2", 1)]);
    metrics.forget(&new);
    metrics.forget(&new);
    assert_eq!(probe_lines(&metrics), [""; 0]);
}

#[test]
fn checks_are_told_as_they_are_and_counted() {
    let verdict = |ok: bool| crate::CheckResult {
        name: "ping",
        outcome: if ok { Ok(()) } else { Err(crate::CheckFailure("no".into())) },
    };
    let metrics = metrics();
    metrics.health.observe(&[verdict(true)]);
    metrics.health.observe(&[verdict(false)]);
    // To look is no check.
    metrics.health.text().unwrap();
    let text = metrics.health.text().unwrap();
    read(&text);
    for line in [
        r#"kubernetes_healthcheck{name="ping",type="healthz"} 0"#,
        r#"kubernetes_healthchecks_total{name="ping",status="success",type="healthz"} 1"#,
        r#"kubernetes_healthchecks_total{name="ping",status="error",type="healthz"} 1"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
}

#[test]
fn images_have_upstreams_classes_of_size() {
    for (bytes, expect) in [
        (0, "0-10MB"),
        (10 << 20, "0-10MB"),
        ((10 << 20) + 1, "10MB-100MB"),
        (1 << 30, "500MB-1GB"),
        (u64::MAX, "GT100GB"),
    ] {
        assert_eq!(size_class(bytes), expect, "{bytes}");
    }
}

/// As many as callers have shown, by how long they are still good.
#[test]
fn certificates_of_callers_are_told_by_what_is_left_of_them() {
    let metrics = metrics();
    let now = metrics.now();
    metrics.observe_certificate(Wall(now.0 + 3_000 * 1_000_000_000));
    metrics.observe_certificate(Wall(now.0 - 1));
    let text = metrics.text(&ScrapeInputs::default()).unwrap();
    for (upper, count) in [("0", 1), ("1800", 1), ("3600", 2), ("+Inf", 2)] {
        let line =
            format!("apiserver_client_certificate_expiration_seconds_bucket{{le=\"{upper}\"}} {count}");
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
}
