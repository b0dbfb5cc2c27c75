use super::*;
use std::sync::Arc;

use model::pod::Source;
use serde_json::{Value, json};

struct Told {
    metrics: PodMetrics,
    registry: Registry,
}

impl Told {
    fn new() -> Self {
        let registry = Registry::new();
        Self { metrics: PodMetrics::new(&registry), registry }
    }

    fn status(&self, status: Value, rejected: Option<&str>) {
        let pod = json!({
            "metadata": { "name": "web", "namespace": "ns", "uid": "u1", "creationTimestamp": "1970-01-01T00:00:00Z" },
            "spec": { "containers": [{ "name": "c" }, { "name": "d" }] },
        });
        let view = PodView::new(Arc::new(serde_json::from_value(pod).unwrap()), Source::Api);
        let status = serde_json::from_value(status).unwrap();
        self.metrics.status(&PodStatusUpdate { pod: &view, status: &status, rejected }, Wall(30_000_000_000));
    }

    /// Samples but for buckets and sums.
    fn lines(&self) -> Vec<String> {
        let text = prometheus::TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap();
        let shown =
            |line: &&str| !line.starts_with('#') && !line.contains("_bucket") && !line.contains("_sum");
        text.lines().filter(shown).map(str::to_owned).collect()
    }

    fn has(&self, line: &str) {
        assert!(self.lines().iter().any(|found| found == line), "{line} in {:#?}", self.lines());
    }
}

fn phase(phase: &str, containers: Value) -> Value {
    json!({ "phase": phase, "containerStatuses": containers })
}

fn container(state: Value, last: Value) -> Value {
    let (started, restarts) = (true, 0);
    let id = if state.get("waiting").is_some() { Value::Null } else { json!("x://1") };
    json!({
        "name": "c", "image": "", "imageID": "", "ready": started, "restartCount": restarts,
        "containerID": id, "state": state, "lastState": last,
    })
}

fn ended(id: &str, code: i32, reason: &str) -> Value {
    json!({ "terminated": { "containerID": id, "exitCode": code, "reason": reason } })
}

#[tokio::test(start_paused = true)]
async fn a_start_is_timed_from_its_sight_and_from_its_making() {
    let told = Told::new();
    let uid = PodUid::new("u1");
    told.status(phase("Pending", json!([])), None);
    told.metrics.plan_started(&uid);
    told.metrics.plan_ended(&uid, false, Duration::from_millis(5));
    told.metrics.track_image_pull(&uid, true);
    tokio::time::advance(Duration::from_secs(4)).await;
    told.metrics.track_image_pull(&uid, false);
    told.metrics.plan_ended(&uid, false, Duration::from_millis(5));
    let running = || phase("Running", json!([container(json!({ "running": {} }), json!({}))]));
    told.status(running(), None);
    told.status(running(), None);
    for line in [
        "kubelet_containers_per_pod_count_count 1",
        "kubelet_pod_start_duration_seconds_count 1",
        "kubelet_pod_worker_start_duration_seconds_count 1",
        r#"kubelet_pod_worker_duration_seconds_count{operation_type="create"} 1"#,
        r#"kubelet_pod_worker_duration_seconds_count{operation_type="sync"} 1"#,
    ] {
        told.has(line);
    }
    let sum = |histogram: &HistogramVec| histogram.with_label_values(&NO_LABELS).get_sample_sum();
    let metrics = &told.metrics;
    assert_eq!((sum(&metrics.start), sum(&metrics.start_total), sum(&metrics.start_sli)), (4.0, 30.0, 26.0));
    assert_eq!(*metrics.first_network_start.borrow(), Some(26.0));
    metrics.plan_ended(&uid, true, Duration::ZERO);
    told.has(r#"kubelet_pod_worker_duration_seconds_count{operation_type="kill"} 1"#);
}

#[test]
fn ends_are_counted_once_per_instance() {
    let told = Told::new();
    told.status(
        phase("Running", json!([container(json!({ "running": {} }), ended("x://0", 1, "Error"))])),
        None,
    );
    assert!(!told.lines().iter().any(|line| line.contains("terminated")), "that was before our time");
    let first =
        || phase("Running", json!([container(ended("x://1", 137, "OOMKilled"), ended("x://0", 1, "Error"))]));
    told.status(first(), None);
    told.status(first(), None);
    told.status(
        phase(
            "Running",
            json!([container(ended("x://2", 0, "Completed"), ended("x://1", 137, "OOMKilled"))]),
        ),
        None,
    );
    told.has(r#"kubelet_terminated_containers_total{container_type="container",exit_code="137",reason="OOMKilled"} 1"#);
    told.has(r#"kubelet_terminated_containers_total{container_type="container",exit_code="0",reason="Completed"} 1"#);
    assert!(!told.lines().iter().any(|line| line.contains("pod_start")), "its start was not seen");
    told.metrics.forget(&PodUid::new("u1"));
    assert!(told.metrics.known.borrow().is_empty());
}

#[test]
fn a_crash_loop_piles_nothing_up() {
    let told = Told::new();
    told.status(phase("Running", json!([container(json!({ "running": {} }), json!({}))])), None);
    for number in 1..=50 {
        let (last, now) = (format!("x://{}", number - 1), format!("x://{number}"));
        let ends = container(ended(&now, 1, "Error"), ended(&last, 1, "Error"));
        told.status(phase("Running", json!([ends])), None);
        // It waits for its next start meanwhile.
        let waits = json!({ "waiting": { "reason": "CrashLoopBackOff" } });
        told.status(phase("Running", json!([container(waits, ended(&now, 1, "Error"))])), None);
    }
    told.has(
        r#"kubelet_terminated_containers_total{container_type="container",exit_code="1",reason="Error"} 51"#,
    );
    let known = told.metrics.known.borrow();
    assert_eq!(known.values().map(|pod| pod.ended.len()).collect::<Vec<_>>(), [1]);
}

#[test]
fn rejections_and_failed_starts_are_counted_when_they_come_up() {
    let told = Told::new();
    let failed = |reason: &str| {
        phase("Pending", json!([container(json!({ "waiting": { "reason": reason } }), json!({}))]))
    };
    for reason in ["ContainerCreating", "ErrImagePull", "ErrImagePull", "ImagePullBackOff", "ErrImagePull"] {
        told.status(failed(reason), None);
    }
    told.has(r#"kubelet_started_containers_errors_total{code="ErrImagePull",container_type="container"} 2"#);
    for _ in 0..2 {
        told.status(json!({ "phase": "Failed", "reason": "OutOfcpu" }), Some("OutOfcpu"));
    }
    told.has(r#"kubelet_admission_rejections_total{reason="OutOfcpu"} 1"#);
}
