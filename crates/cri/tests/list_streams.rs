//! Lists as streams, over a real socket: longer than one answer may be, from a runtime that has no streams, and from one that
//! breaks off.

// What the runtime was asked is counted by its own threads.
#![allow(clippy::disallowed_types)]

mod false_runtime;

use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use cri::CriClient;
use false_runtime::{FalseRuntime, LONG, client, pb, socket};
use futures::StreamExt;
use futures::stream::BoxStream;
use pb::image_service_server::{ImageService, ImageServiceServer};
use pb::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use ports::{ContainerFilter, Images, Runtime, RuntimeError, SandboxFilter};
use tonic::service::Routes;
use tonic::{Request, Response, Status};

/// What comes of a stream.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Streams {
    Whole,
    Absent,
    BreakOff,
    NeverEnd,
}

#[derive(Clone)]
struct Lister {
    streams: Streams,
    containers: Vec<pb::Container>,
    asked: Arc<Mutex<Vec<&'static str>>>,
}

type Parts<T> = Result<Response<BoxStream<'static, Result<T, Status>>>, Status>;

impl Lister {
    fn asked(&self, call: &'static str) {
        self.asked.lock().expect("lock").push(call);
    }

    fn take_asked(&self) -> Vec<&'static str> {
        std::mem::take(&mut *self.asked.lock().expect("lock"))
    }

    /// The parts, and what follows on them.
    fn stream<T: Send + 'static>(&self, call: &'static str, parts: Vec<T>) -> Parts<T> {
        self.asked(call);
        let parts = futures::stream::iter(parts.into_iter().map(Ok).collect::<Vec<_>>());
        match self.streams {
            Streams::Whole => Ok(Response::new(parts.boxed())),
            Streams::Absent => Err(Status::unimplemented("unknown method")),
            Streams::BreakOff => {
                let end = futures::stream::iter([Err(Status::internal("out of order"))]);
                Ok(Response::new(parts.chain(end).boxed()))
            }
            Streams::NeverEnd => Ok(Response::new(parts.chain(futures::stream::pending()).boxed())),
        }
    }
}

fn sandbox(id: &str) -> pb::PodSandbox {
    let metadata = Some(pb::PodSandboxMetadata { uid: "u".into(), ..Default::default() });
    pb::PodSandbox { id: id.into(), metadata, ..Default::default() }
}

fn container_stats(id: &str, cpu: u64) -> pb::ContainerStats {
    let value = |value| Some(pb::UInt64Value { value });
    let cpu = pb::CpuUsage { timestamp: 7, usage_core_nano_seconds: value(cpu), ..Default::default() };
    pb::ContainerStats {
        attributes: Some(pb::ContainerAttributes { id: id.into(), ..Default::default() }),
        cpu: Some(cpu),
        ..Default::default()
    }
}

fn sandbox_stats() -> pb::PodSandboxStats {
    let value = |value| Some(pb::UInt64Value { value });
    let stall = |total| Some(pb::PsiData { total, avg10: 1.0, avg60: 2.0, avg300: 3.0 });
    let interface = |name: &str| pb::NetworkInterfaceUsage {
        name: name.into(),
        rx_bytes: value(1),
        rx_errors: value(2),
        tx_bytes: value(3),
        tx_errors: value(4),
    };
    let linux = pb::LinuxPodSandboxStats {
        cpu: Some(pb::CpuUsage { timestamp: 5, usage_nano_cores: value(6), ..Default::default() }),
        memory: Some(pb::MemoryUsage { timestamp: 9, working_set_bytes: value(8), ..Default::default() }),
        io: Some(pb::IoUsage { timestamp: 5, psi: Some(pb::PsiStats { full: stall(1), some: stall(2) }) }),
        network: Some(pb::NetworkUsage {
            timestamp: 5,
            default_interface: Some(interface("eth0")),
            interfaces: vec![interface("eth1")],
        }),
        process: Some(pb::ProcessUsage { timestamp: 5, process_count: value(12) }),
        // Of one it can't be told whose it is.
        containers: vec![container_stats("c1", 3), pb::ContainerStats::default()],
    };
    let attributes = Some(pb::PodSandboxAttributes { id: "s1".into() });
    pb::PodSandboxStats { attributes, linux: Some(linux) }
}

fn metrics() -> pb::PodSandboxMetrics {
    let metric = |name: &str, value| pb::Metric {
        name: name.into(),
        timestamp: 4,
        metric_type: pb::MetricType::Gauge.into(),
        label_values: vec!["web".into()],
        value,
    };
    let of_container = vec![metric("of_container", Some(pb::UInt64Value { value: 2 }))];
    pb::PodSandboxMetrics {
        metrics: vec![metric("of_pod", Some(pb::UInt64Value { value: 1 })), metric("without a value", None)],
        container_metrics: vec![pb::ContainerMetrics { metrics: of_container }],
    }
}

#[tonic::async_trait]
impl RuntimeService for Lister {
    async fn list_pod_sandbox(
        &self,
        _: Request<pb::ListPodSandboxRequest>,
    ) -> Result<Response<pb::ListPodSandboxResponse>, Status> {
        self.asked("ListPodSandbox");
        Ok(Response::new(pb::ListPodSandboxResponse { items: vec![sandbox("plain")] }))
    }
    async fn list_containers(
        &self,
        _: Request<pb::ListContainersRequest>,
    ) -> Result<Response<pb::ListContainersResponse>, Status> {
        self.asked("ListContainers");
        Ok(Response::new(pb::ListContainersResponse { containers: self.containers.clone() }))
    }
    async fn list_container_stats(
        &self,
        _: Request<pb::ListContainerStatsRequest>,
    ) -> Result<Response<pb::ListContainerStatsResponse>, Status> {
        self.asked("ListContainerStats");
        Ok(Response::new(pb::ListContainerStatsResponse { stats: vec![container_stats("plain", 1)] }))
    }
    async fn stream_pod_sandboxes(
        &self,
        request: Request<pb::StreamPodSandboxesRequest>,
    ) -> Parts<pb::StreamPodSandboxesResponse> {
        // The filter comes along.
        let id = request.into_inner().filter.unwrap_or_default().id;
        let part = |id: &str| pb::StreamPodSandboxesResponse { pod_sandboxes: vec![sandbox(id)] };
        self.stream("StreamPodSandboxes", vec![part(&id), part("second")])
    }
    async fn stream_containers(
        &self,
        _: Request<pb::StreamContainersRequest>,
    ) -> Parts<pb::StreamContainersResponse> {
        let part =
            |containers: &[pb::Container]| pb::StreamContainersResponse { containers: containers.to_vec() };
        self.stream("StreamContainers", self.containers.chunks(5).map(part).collect())
    }
    async fn stream_container_stats(
        &self,
        _: Request<pb::StreamContainerStatsRequest>,
    ) -> Parts<pb::StreamContainerStatsResponse> {
        let part = pb::StreamContainerStatsResponse { container_stats: vec![container_stats("c1", 3)] };
        self.stream("StreamContainerStats", vec![part])
    }
    async fn stream_pod_sandbox_stats(
        &self,
        _: Request<pb::StreamPodSandboxStatsRequest>,
    ) -> Parts<pb::StreamPodSandboxStatsResponse> {
        let part = pb::StreamPodSandboxStatsResponse { pod_sandbox_stats: vec![sandbox_stats()] };
        self.stream("StreamPodSandboxStats", vec![part])
    }
    async fn stream_pod_sandbox_metrics(
        &self,
        _: Request<pb::StreamPodSandboxMetricsRequest>,
    ) -> Parts<pb::StreamPodSandboxMetricsResponse> {
        let part = pb::StreamPodSandboxMetricsResponse { pod_sandbox_metrics: vec![metrics()] };
        self.stream("StreamPodSandboxMetrics", vec![part])
    }
}

#[tonic::async_trait]
impl ImageService for Lister {
    async fn list_images(
        &self,
        _: Request<pb::ListImagesRequest>,
    ) -> Result<Response<pb::ListImagesResponse>, Status> {
        self.asked("ListImages");
        Ok(Response::new(pb::ListImagesResponse::default()))
    }
    async fn stream_images(&self, _: Request<pb::StreamImagesRequest>) -> Parts<pb::StreamImagesResponse> {
        let images = vec![pb::Image { id: "sha256:1".into(), ..Default::default() }];
        self.stream("StreamImages", vec![pb::StreamImagesResponse { images }])
    }
}

fn serve(socket: &Path, streams: Streams, containers: Vec<pb::Container>) -> (FalseRuntime, Lister) {
    let lister = Lister { streams, containers, asked: Arc::default() };
    let routes = Routes::new(RuntimeServiceServer::new(lister.clone()))
        .add_service(ImageServiceServer::new(lister.clone()));
    (FalseRuntime::serve(socket, routes), lister)
}

fn streaming(socket: &Path, timeout: Duration) -> CriClient {
    client(socket, timeout).with_list_streaming(true)
}

async fn container_count(client: &CriClient) -> Result<usize, RuntimeError> {
    client.list_containers(&ContainerFilter::default()).await.map(|found| found.len())
}

async fn sandbox_ids(client: &CriClient) -> Result<Vec<String>, RuntimeError> {
    let filter = SandboxFilter { id: Some("first".into()), pod_uid: None };
    let found = client.list_pod_sandboxes(&filter).await?;
    Ok(found.into_iter().map(|sandbox| sandbox.id.to_string()).collect())
}

#[tokio::test]
async fn a_list_beyond_one_answer_comes_in_parts() {
    let (_directory, socket) = socket();
    // 20 MiB together, of which no part is near the bound.
    let annotations = || [("much".to_owned(), "x".repeat(1 << 20))].into();
    let container = |number: usize| pb::Container {
        id: format!("c{number}"),
        pod_sandbox_id: "s".into(),
        metadata: Some(pb::ContainerMetadata { name: "main".into(), attempt: 0 }),
        annotations: annotations(),
        ..Default::default()
    };
    let (_server, lister) = serve(&socket, Streams::Whole, (0..20).map(container).collect());
    let plain = client(&socket, LONG);
    let error = container_count(&plain).await.expect_err("too long for one answer");
    assert!(matches!(error, RuntimeError::Failed { call: "ListContainers", .. }), "{error:?}");
    assert_eq!(lister.take_asked(), ["ListContainers"], "no stream without the gate");
    assert_eq!(container_count(&streaming(&socket, LONG)).await, Ok(20));
    assert_eq!(lister.take_asked(), ["StreamContainers"]);
}

#[tokio::test]
async fn every_list_has_its_stream() {
    let (_directory, socket) = socket();
    let (_server, lister) = serve(&socket, Streams::Whole, Vec::new());
    let client = streaming(&socket, LONG);
    assert_eq!(sandbox_ids(&client).await, Ok(vec!["first".into(), "second".into()]));
    assert_eq!(container_count(&client).await, Ok(0), "a stream of nothing");
    let stats = client.list_container_stats(&ContainerFilter::default()).await.expect("stats");
    assert_eq!(stats[0].usage.cpu_usage_core_nano_seconds, Some(3));
    let images = client.list_images().await.expect("images");
    assert_eq!(images[0].id, "sha256:1");

    let stats = client.list_pod_sandbox_stats(&SandboxFilter::default()).await.expect("stats");
    let interface = |name: &str| {
        serde_json::json!({
            "name": name, "rx_bytes": 1, "rx_errors": 2, "tx_bytes": 3, "tx_errors": 4,
        })
    };
    let stall = |total: u64| serde_json::json!({ "total": total, "avg10": 1.0, "avg60": 2.0, "avg300": 3.0 });
    let expect = serde_json::json!([{
        "id": "s1",
        "usage": {
            "timestamp": 5, "cpu_usage_nano_cores": 6, "memory_working_set_bytes": 8,
            "io_pressure": { "some": stall(2), "full": stall(1) },
        },
        "default_interface": interface("eth0"),
        "interfaces": [interface("eth1")],
        "process_count": 12,
        "containers": [{ "id": "c1", "usage": { "timestamp": 7, "cpu_usage_core_nano_seconds": 3 } }],
    }]);
    assert_eq!(serde_json::to_value(stats).expect("JSON"), expect);

    let metrics = client.list_pod_sandbox_metrics().await.expect("metrics");
    let metric = |name: &str, value: u64| {
        serde_json::json!({
            "name": name, "timestamp": 4, "is_gauge": true, "label_values": ["web"], "value": value,
        })
    };
    let expect = serde_json::json!([metric("of_pod", 1), metric("of_container", 2)]);
    assert_eq!(serde_json::to_value(metrics).expect("JSON"), expect);
    let streams = [
        "StreamPodSandboxes",
        "StreamContainers",
        "StreamContainerStats",
        "StreamImages",
        "StreamPodSandboxStats",
        "StreamPodSandboxMetrics",
    ];
    assert_eq!(lister.take_asked(), streams);
}

/// One refusal is enough for all lists of the service, until its connection is made anew.
#[tokio::test]
async fn without_streams_plain_lists_are_asked_for() {
    let (_directory, socket) = socket();
    let (server, lister) = serve(&socket, Streams::Absent, Vec::new());
    let client = streaming(&socket, LONG);
    for _ in 0..2 {
        assert_eq!(sandbox_ids(&client).await, Ok(vec!["plain".into()]));
    }
    assert_eq!(container_count(&client).await, Ok(0));
    let stats = client.list_pod_sandbox_stats(&SandboxFilter::default()).await;
    assert_eq!(stats, Err(RuntimeError::Unsupported { call: "ListPodSandboxStats" }));
    let asked = ["StreamPodSandboxes", "ListPodSandbox", "ListPodSandbox", "ListContainers"];
    assert_eq!(lister.take_asked(), asked);
    for _ in 0..2 {
        assert_eq!(client.list_images().await, Ok(Vec::new()));
    }
    assert_eq!(lister.take_asked(), ["StreamImages", "ListImages", "ListImages"], "a service of its own");

    drop(server);
    let (_server, lister) = serve(&socket, Streams::Whole, Vec::new());
    let found = async {
        while sandbox_ids(&client).await != Ok(vec!["first".into(), "second".into()]) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, found).await.expect("the new runtime's streams");
    assert!(lister.take_asked().contains(&"StreamPodSandboxes"));
}

#[tokio::test]
async fn a_stream_that_breaks_off_gives_no_list() {
    let (_directory, socket) = socket();
    let (_server, lister) = serve(&socket, Streams::BreakOff, Vec::new());
    let error = sandbox_ids(&streaming(&socket, LONG)).await.expect_err("half a list");
    assert!(matches!(error, RuntimeError::Failed { call: "StreamPodSandboxes", .. }), "{error:?}");
    assert_eq!(lister.take_asked(), ["StreamPodSandboxes"]);
}

#[tokio::test]
async fn the_deadline_is_that_of_the_whole_stream() {
    let (_directory, socket) = socket();
    let (_server, _) = serve(&socket, Streams::NeverEnd, Vec::new());
    let error = sandbox_ids(&streaming(&socket, Duration::from_millis(200))).await.expect_err("no end");
    assert!(matches!(error, RuntimeError::TimedOut { call: "StreamPodSandboxes", .. }), "{error:?}");
}
