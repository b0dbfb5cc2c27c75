//! Runtimes that are silent, away, or go while they are asked: deadlines, cancelling, and coming back.

// Tests with real processes and servers live in real time.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

mod false_runtime;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cri::CriClient;
use false_runtime::{FalseRuntime, LONG, client, pb, socket};
use model::cri::{ImageSpec, SandboxConfig};
use pb::image_service_server::{ImageService, ImageServiceServer};
use pb::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use ports::{Images, Runtime, RuntimeError};
use tokio::sync::Notify;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

/// Has nothing.
struct Empty;

#[tonic::async_trait]
impl RuntimeService for Empty {
    async fn list_containers(
        &self,
        _: Request<pb::ListContainersRequest>,
    ) -> Result<Response<pb::ListContainersResponse>, Status> {
        Ok(Response::new(pb::ListContainersResponse::default()))
    }
}

#[tonic::async_trait]
impl ImageService for Empty {
    async fn list_images(
        &self,
        _: Request<pb::ListImagesRequest>,
    ) -> Result<Response<pb::ListImagesResponse>, Status> {
        Ok(Response::new(pb::ListImagesResponse::default()))
    }
}

fn serve_empty(socket: &Path) -> FalseRuntime {
    FalseRuntime::serve(socket, Routes::new(RuntimeServiceServer::new(Empty)))
}

type Told = (&'static str, Option<String>);

/// Never answers; notes the deadlines that it is told, and when a caller leaves.
#[derive(Clone, Default)]
struct Silent {
    /// The call, and the deadline as the header has it.
    told: Arc<Mutex<Vec<Told>>>,
    arrived: Arc<Notify>,
    left: Arc<Notify>,
}

impl Silent {
    async fn hang<A, B>(&self, call: &'static str, request: &Request<A>) -> Result<Response<B>, Status> {
        struct OnLeaving(Arc<Notify>);
        impl Drop for OnLeaving {
            fn drop(&mut self) {
                self.0.notify_one();
            }
        }
        let _leaving = OnLeaving(self.left.clone());
        let deadline = request.metadata().get("grpc-timeout").map(|v| v.to_str().expect("text").to_owned());
        self.told.lock().expect("lock").push((call, deadline));
        self.arrived.notify_one();
        std::future::pending().await
    }
}

#[tonic::async_trait]
impl RuntimeService for Silent {
    async fn version(&self, r: Request<pb::VersionRequest>) -> Result<Response<pb::VersionResponse>, Status> {
        self.hang("Version", &r).await
    }
    async fn run_pod_sandbox(
        &self,
        r: Request<pb::RunPodSandboxRequest>,
    ) -> Result<Response<pb::RunPodSandboxResponse>, Status> {
        self.hang("RunPodSandbox", &r).await
    }
    async fn stop_container(
        &self,
        r: Request<pb::StopContainerRequest>,
    ) -> Result<Response<pb::StopContainerResponse>, Status> {
        self.hang("StopContainer", &r).await
    }
    async fn exec_sync(
        &self,
        r: Request<pb::ExecSyncRequest>,
    ) -> Result<Response<pb::ExecSyncResponse>, Status> {
        self.hang("ExecSync", &r).await
    }
    async fn checkpoint_container(
        &self,
        r: Request<pb::CheckpointContainerRequest>,
    ) -> Result<Response<pb::CheckpointContainerResponse>, Status> {
        self.hang("CheckpointContainer", &r).await
    }
}

#[tonic::async_trait]
impl ImageService for Silent {
    async fn pull_image(
        &self,
        r: Request<pb::PullImageRequest>,
    ) -> Result<Response<pb::PullImageResponse>, Status> {
        self.hang("PullImage", &r).await
    }
}

fn serve_silent(socket: &Path, silent: &Silent) -> FalseRuntime {
    let routes = Routes::new(RuntimeServiceServer::new(silent.clone()))
        .add_service(ImageServiceServer::new(silent.clone()));
    FalseRuntime::serve(socket, routes)
}

#[tokio::test]
async fn a_silent_runtime_costs_the_deadline_and_no_more() {
    let (_directory, socket) = socket();
    let silent = Silent::default();
    let _server = serve_silent(&socket, &silent);
    let short = Duration::from_millis(150);
    let client = client(&socket, short);
    let seconds = Duration::from_secs;
    let id = &model::ContainerId::from("c");

    let error = client.version().await.expect_err("no answer");
    assert_eq!(error, RuntimeError::TimedOut { call: "Version", after: short });
    assert_eq!(error.disposition(), ports::Disposition::Retry);
    let error = client.run_pod_sandbox(&SandboxConfig::default(), "").await.expect_err("no answer");
    assert_eq!(error, RuntimeError::TimedOut { call: "RunPodSandbox", after: short * 2 });
    let error = client.exec_sync(id, &[], Duration::from_millis(10)).await.expect_err("no answer");
    assert_eq!(
        error,
        RuntimeError::TimedOut { call: "ExecSync", after: Duration::from_millis(10) },
        "the command's time"
    );

    // These wait longer than a test should: what they told the server is enough.
    let exec = client.exec_sync(id, &[], Duration::ZERO);
    tokio::select! { r = exec => panic!("{r:?}"), _ = silent.arrived_after(4) => {} }
    let stop = client.stop_container(id, seconds(30));
    tokio::select! { r = stop => panic!("{r:?}"), _ = silent.arrived_after(5) => {} }
    let checkpoint = client.checkpoint_container(id, "/x", seconds(7));
    tokio::select! { r = checkpoint => panic!("{r:?}"), _ = silent.arrived_after(6) => {} }
    let image = ImageSpec::default();
    let pull = client.pull_image(&image, None, None);
    tokio::select! { r = pull => panic!("{r:?}"), _ = silent.arrived_after(7) => {} }

    // Users may write any number.
    let forever = client.stop_container(id, Duration::MAX);
    tokio::select! { r = forever => panic!("{r:?}"), _ = silent.arrived_after(8) => {} }

    let told = silent.told.lock().expect("lock").clone();
    let micros = |d: Duration| Some(d.as_micros());
    let expect = [
        ("Version", micros(short)),
        ("RunPodSandbox", micros(short * 2)),
        ("ExecSync", micros(short + Duration::from_millis(10))),
        ("ExecSync", None),
        ("StopContainer", micros(short + seconds(30))),
        ("CheckpointContainer", micros(seconds(7))),
        ("PullImage", None),
        ("StopContainer", micros(seconds(365 * 24 * 3600))),
    ];
    let told: Vec<_> = told.iter().map(|(call, text)| (*call, text.as_deref().map(timeout_micros))).collect();
    assert_eq!(told, expect);
}

impl Silent {
    async fn arrived_after(&self, calls: usize) {
        while self.told.lock().expect("lock").len() < calls {
            self.arrived.notified().await;
        }
    }
}

/// The value of a `grpc-timeout` header.
fn timeout_micros(text: &str) -> u128 {
    let (number, unit) = text.split_at(text.len() - 1);
    let number: u128 = number.parse().expect("number");
    match unit {
        "n" => number / 1000,
        "u" => number,
        "m" => number * 1000,
        "S" => number * 1_000_000,
        "M" => number * 60_000_000,
        other => panic!("unit {other}"),
    }
}

#[tokio::test]
async fn dropping_a_call_cancels_it_at_the_server() {
    let (_directory, socket) = socket();
    let silent = Silent::default();
    let _server = serve_silent(&socket, &silent);
    let client = client(&socket, LONG);
    let image = ImageSpec::default();
    tokio::select! {
        result = client.pull_image(&image, None, None) => panic!("{result:?}"),
        _ = silent.arrived_after(1) => {}
    }
    tokio::time::timeout(LONG, silent.left.notified()).await.expect("the server was not told");
}

#[tokio::test]
async fn a_runtime_may_come_go_and_come_back() {
    let (_directory, socket) = socket();
    let client = client(&socket, LONG);
    let path = socket.display().to_string();
    let check_away = |error: RuntimeError| {
        assert_eq!(error.disposition(), ports::Disposition::Retry);
        let text = error.to_string();
        assert!(text.starts_with("ListContainers: runtime is not reachable: "), "{text}");
        assert!(text.contains(&path), "{text}");
    };
    let all = ports::ContainerFilter::default();
    let list = || client.list_containers(&all);

    check_away(list().await.expect_err("no socket"));
    for _ in 0..3 {
        let server = serve_empty(&socket);
        assert_eq!(list().await, Ok(vec![]), "the first call after the socket appeared");
        drop(server);
        check_away(list().await.expect_err("nobody listens"));
        check_away(list().await.expect_err("nobody listens"));
    }
    // Away and back with no call in between: the old connection is dead, which nobody noticed yet.
    let server = serve_empty(&socket);
    list().await.expect("connected");
    drop(server);
    let _server = serve_empty(&socket);
    let recovered = async {
        while list().await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, recovered).await.expect("it is back");
}

#[tokio::test]
async fn a_call_in_flight_fails_when_the_runtime_dies() {
    let (_directory, socket) = socket();
    let silent = Silent::default();
    let server = serve_silent(&socket, &silent);
    let client = client(&socket, LONG);
    let die = async {
        silent.arrived_after(1).await;
        drop(server);
        std::future::pending::<()>().await
    };
    let image = ImageSpec::default();
    tokio::select! {
        result = client.pull_image(&image, None, None) => {
            let error = result.expect_err("it died");
            assert!(matches!(error, RuntimeError::Unavailable { call: "PullImage", .. }), "{error:?}");
            assert!(error.to_string().contains(&socket.display().to_string()), "{error}");
        }
        _ = die => {}
    }
}

#[tokio::test]
async fn a_socket_that_speaks_something_else_is_unavailable() {
    let (_directory, socket) = socket();
    let listener = tokio::net::UnixListener::bind(&socket).expect("bind");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            use tokio::io::AsyncWriteExt;
            let _ = stream.write_all(b"220 mail.example.org ESMTP ready\r\n").await;
        }
    });
    let error = client(&socket, LONG).version().await.expect_err("no gRPC");
    assert!(matches!(error, RuntimeError::Unavailable { .. }), "{error:?}");
}

#[tokio::test]
async fn the_image_service_may_have_its_own_socket() {
    let (_directory, runtime_socket) = socket();
    let image_socket = runtime_socket.with_file_name("images.sock");
    let _server = FalseRuntime::serve(&image_socket, Routes::new(ImageServiceServer::new(Empty)));
    let image_endpoint = format!("unix://{}", image_socket.display());
    let runtime_endpoint = runtime_socket.display().to_string();
    let client = CriClient::connect(&runtime_endpoint, Some(&image_endpoint), LONG).expect("endpoints");
    assert_eq!(client.list_images().await, Ok(vec![]));
    assert!(matches!(client.version().await, Err(RuntimeError::Unavailable { .. })));
}
