//! Compares names, types and labels with those recorded from the kubelet (`metrics.tsv`). Differences have to be in
//! docs/metrics.md, which is read here.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::pod::{PodView, Source};
use model::probe::{ProbeKind, ProbeOutcome};
use model::{FullName, PodUid};
use ports::{ApiRequest, EngineMetrics, PodStatusUpdate, ProbeIdentity};
use serde_json::{Value, json};

use super::tests::{fed, scrape};
use super::*;

/// Endpoint, name, type, labels.
const RECORDED: &str = include_str!("metrics.tsv");
const PAGE: &str = include_str!("../../../../docs/metrics.md");

/// Type and names of labels, by name.
type Families = BTreeMap<String, (String, BTreeSet<String>)>;

fn families(text: &str) -> Families {
    let mut families = Families::new();
    for line in text.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            families.insert(name.to_owned(), (kind.to_owned(), BTreeSet::new()));
        } else if !line.starts_with('#') {
            let (name, labels) = sample(line);
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            let name = if families.contains_key(name) { name } else { base.unwrap_or(name) };
            let family = families.get_mut(name).unwrap_or_else(|| panic!("no type before: {line}"));
            family.1.extend(labels.into_iter().filter(|label| label != "le"));
        }
    }
    families
}

/// Values of labels hold no quotes here.
fn sample(line: &str) -> (&str, Vec<String>) {
    let end = line.find(['{', ' ']).expect("a sample");
    let (name, rest) = line.split_at(end);
    let inside =
        rest.strip_prefix('{').and_then(|rest| rest.split_once('}')).map_or("", |(labels, _)| labels);
    let labels =
        inside.split("\",").filter_map(|label| label.split_once('=')).map(|(label, _)| label.to_owned());
    (name, labels.collect())
}

fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// Names, or beginnings of names with a star, that the page says are not served.
fn absent() -> Vec<&'static str> {
    let rows =
        PAGE.lines().skip_while(|line| *line != "## Not served").take_while(|line| *line != "## Also served");
    let names: Vec<_> =
        rows.filter_map(|row| row.strip_prefix("| ")?.split(" | ").next()).flat_map(quoted).collect();
    assert!(!names.is_empty(), "the page has no table of what is not served");
    names
}

fn is_absent(name: &str) -> bool {
    absent().iter().any(|told| match told.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => *told == name,
    })
}

/// Lets everything happen that is counted.
fn lived() -> Arc<AgentMetrics> {
    let metrics = fed();
    let uid = PodUid::new("u1");
    let status = |status: Value, rejected: Option<&str>| {
        let pod = json!({ "metadata": { "name": "web", "namespace": "ns", "uid": "u1" }, "spec": { "containers": [] } });
        let pod = PodView::new(Arc::new(serde_json::from_value(pod).expect("a pod")), Source::Api);
        let status = serde_json::from_value(status).expect("a status");
        metrics.pod_status(&PodStatusUpdate { pod: &pod, status: &status, rejected });
    };
    let container = |state: Value| json!([{ "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state }]);
    status(json!({ "phase": "Pending" }), None);
    metrics.plan_started(&uid);
    metrics.plan_ended(&uid, false, Duration::ZERO);
    let waiting = container(json!({ "waiting": { "reason": "ErrImagePull" } }));
    status(json!({ "phase": "Pending", "containerStatuses": waiting }), None);
    status(json!({ "phase": "Running" }), None);
    let ended =
        container(json!({ "terminated": { "exitCode": 1, "reason": "Error", "containerID": "x://1" } }));
    status(json!({ "phase": "Running", "containerStatuses": ended }), None);
    status(json!({ "phase": "Failed" }), Some("OutOfcpu"));
    metrics.status_synced(Duration::ZERO);
    metrics.server_certificate_replaced(Duration::ZERO);
    let took = Duration::ZERO;
    let request = ApiRequest {
        host: "h",
        method: "GET",
        code: Some(200),
        took,
        sent_bytes: 1,
        received_bytes: Some(1),
    };
    metrics.cluster.request(&request);
    metrics.cluster.node_registering();
    metrics.cluster.node_registered();
    metrics.cluster.node_ready();
    let pod = FullName::new("web", "ns");
    let of = ProbeIdentity { uid: &uid, pod: &pod, container: "c", kind: ProbeKind::Readiness };
    metrics.probe(&of, &ProbeOutcome::Success, took);
    metrics.websocket_stream("exec");
    metrics.plugins.observe_driver_call("d", "/csi.v1.Node/NodeGetInfo", "OK", took);
    metrics.plugins.observe_credential_plugin("p", false, took);
    metrics.plugins.set_socket_state("/s", SocketState::Seen);
    metrics.set_credential_config(std::iter::empty());
    metrics
}

/// What upstream v1.36.4 registers and the recorded run did not come by.
const REGISTERED: [&str; 34] = [
    "csi_operations_seconds",
    "kubelet_certificate_manager_server_rotation_seconds",
    "kubelet_container_aligned_compute_resources_count",
    "kubelet_container_aligned_compute_resources_failure_count",
    "kubelet_container_requested_resizes_total",
    "kubelet_credential_provider_config_info",
    "kubelet_credential_provider_plugin_duration",
    "kubelet_credential_provider_plugin_errors_total",
    "kubelet_device_plugin_alloc_duration_seconds",
    "kubelet_device_plugin_registration_total",
    "kubelet_image_garbage_collected_total",
    "kubelet_memory_qos_node_memory_low_bytes",
    "kubelet_memory_qos_node_memory_min_bytes",
    "kubelet_pod_deferred_accepted_resizes_total",
    "kubelet_pod_infeasible_resizes_total",
    "kubelet_pod_pending_resizes",
    "kubelet_pod_resize_duration_milliseconds",
    "kubelet_pod_resources_endpoint_requests_total",
    "kubelet_podcertificate_states",
    "kubelet_started_host_process_containers_errors_total",
    "kubelet_started_host_process_containers_total",
    "kubelet_websocket_streaming_requests_total",
    "plugin_manager_total_plugins",
    "resource_manager_allocation_errors_total",
    "resource_manager_allocations_total",
    "resource_manager_container_assignments",
    "scrape_error",
    "volume_manager_selinux_container_errors_total",
    "volume_manager_selinux_container_warnings_total",
    "volume_manager_selinux_pod_context_mismatch_errors_total",
    "volume_manager_selinux_pod_context_mismatch_warnings_total",
    "volume_manager_selinux_volume_context_mismatch_errors_total",
    "volume_manager_selinux_volume_context_mismatch_warnings_total",
    "volume_manager_selinux_volumes_admitted_total",
];

#[tokio::test]
async fn what_upstream_registers_is_served_or_told_to_be_absent() {
    let served: BTreeSet<String> =
        served().into_iter().flat_map(|(_, families)| families.into_keys()).collect();
    for name in REGISTERED {
        assert_ne!(
            served.contains(name),
            is_absent(name),
            "{name}: served, or in the page's table, and not both"
        );
    }
}

fn served() -> Vec<(&'static str, Families)> {
    let metrics = lived();
    let ping = crate::CheckResult { name: "ping", outcome: Ok(()) };
    let mut texts = crate::stats::tests::everything();
    texts.push(("/metrics", metrics.text(&scrape()).expect("text")));
    texts.push(("/metrics/probes", metrics.probes.text().expect("text")));
    metrics.health.observe(&[ping]);
    texts.push(("/metrics/slis", metrics.health.text().expect("text")));
    texts.into_iter().map(|(endpoint, text)| (endpoint, families(&text))).collect()
}

#[tokio::test]
async fn names_types_and_labels_are_the_recorded_ones() {
    let mentioned = quoted(PAGE);
    let mut wrong = Vec::new();
    for (endpoint, served) in served() {
        let mut recorded = BTreeSet::new();
        for row in RECORDED.lines().skip(1) {
            let cells: Vec<&str> = row.split('\t').collect();
            let [at, name, kind, labels] = cells[..] else { panic!("{row:?}") };
            if at != endpoint {
                continue;
            }
            recorded.insert(name);
            let labels: BTreeSet<String> =
                labels.split(',').filter(|l| !l.is_empty()).map(str::to_owned).collect();
            match (served.get(name), is_absent(name)) {
                (None, true) => {}
                (None, false) => wrong.push(format!("{endpoint}: {name} is missing")),
                (Some(_), true) => {
                    wrong.push(format!("{endpoint}: {name} is served, though the page says it is not"))
                }
                (Some(found), false) if *found != (kind.to_owned(), labels.clone()) => {
                    wrong
                        .push(format!("{endpoint}: {name} is {found:?}, recorded as {kind} with {labels:?}"));
                }
                (Some(_), false) => {}
            }
        }
        let more = served.keys().filter(|name| !recorded.contains(name.as_str()));
        let unknown = more.filter(|name| !mentioned.contains(&name.as_str()));
        wrong.extend(
            unknown.map(|name| format!("{endpoint}: {name} is served, and the page does not mention it")),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
