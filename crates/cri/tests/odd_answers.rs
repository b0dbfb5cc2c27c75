//! What the client makes of answers that no sound runtime gives: each is an error that names its call, or a sane
//! value, and never a panic or a wait without end.

mod false_runtime;

use model::GrpcCode;
use std::path::Path;

use false_runtime::{FalseRuntime, LONG, client, pb, socket};
use model::cri::{ImageSpec, SandboxConfig};
use model::observed::ContainerState;
use pb::image_service_server::{ImageService, ImageServiceServer};
use pb::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use ports::{Images, Runtime, RuntimeError};
use tonic::service::Routes;
use tonic::{Code, Request, Response, Status};

/// Answers each question with what it was made with.
#[derive(Clone, Default)]
struct Canned {
    version: pb::VersionResponse,
    sandboxes: Vec<pb::PodSandbox>,
    sandbox: Option<pb::PodSandboxStatus>,
    containers: Vec<pb::Container>,
    container: Option<pb::ContainerStatus>,
    image: Option<pb::Image>,
    stats: Option<pb::ContainerStats>,
    cgroup_driver: i32,
}

#[tonic::async_trait]
impl RuntimeService for Canned {
    async fn version(&self, _: Request<pb::VersionRequest>) -> Result<Response<pb::VersionResponse>, Status> {
        Ok(Response::new(self.version.clone()))
    }
    async fn status(&self, _: Request<pb::StatusRequest>) -> Result<Response<pb::StatusResponse>, Status> {
        Ok(Response::new(pb::StatusResponse::default()))
    }
    async fn runtime_config(
        &self,
        _: Request<pb::RuntimeConfigRequest>,
    ) -> Result<Response<pb::RuntimeConfigResponse>, Status> {
        let linux = Some(pb::LinuxRuntimeConfiguration { cgroup_driver: self.cgroup_driver });
        Ok(Response::new(pb::RuntimeConfigResponse { linux }))
    }
    async fn run_pod_sandbox(
        &self,
        _: Request<pb::RunPodSandboxRequest>,
    ) -> Result<Response<pb::RunPodSandboxResponse>, Status> {
        Ok(Response::new(pb::RunPodSandboxResponse::default()))
    }
    async fn list_pod_sandbox(
        &self,
        _: Request<pb::ListPodSandboxRequest>,
    ) -> Result<Response<pb::ListPodSandboxResponse>, Status> {
        Ok(Response::new(pb::ListPodSandboxResponse { items: self.sandboxes.clone() }))
    }
    async fn pod_sandbox_status(
        &self,
        _: Request<pb::PodSandboxStatusRequest>,
    ) -> Result<Response<pb::PodSandboxStatusResponse>, Status> {
        Ok(Response::new(pb::PodSandboxStatusResponse { status: self.sandbox.clone() }))
    }
    async fn list_containers(
        &self,
        _: Request<pb::ListContainersRequest>,
    ) -> Result<Response<pb::ListContainersResponse>, Status> {
        Ok(Response::new(pb::ListContainersResponse { containers: self.containers.clone() }))
    }
    async fn container_status(
        &self,
        _: Request<pb::ContainerStatusRequest>,
    ) -> Result<Response<pb::ContainerStatusResponse>, Status> {
        Ok(Response::new(pb::ContainerStatusResponse { status: self.container.clone() }))
    }
    async fn container_stats(
        &self,
        _: Request<pb::ContainerStatsRequest>,
    ) -> Result<Response<pb::ContainerStatsResponse>, Status> {
        Ok(Response::new(pb::ContainerStatsResponse { stats: self.stats.clone() }))
    }
    async fn exec(&self, _: Request<pb::ExecRequest>) -> Result<Response<pb::ExecResponse>, Status> {
        Ok(Response::new(pb::ExecResponse::default()))
    }
}

#[tonic::async_trait]
impl ImageService for Canned {
    async fn image_status(
        &self,
        _: Request<pb::ImageStatusRequest>,
    ) -> Result<Response<pb::ImageStatusResponse>, Status> {
        Ok(Response::new(pb::ImageStatusResponse { image: self.image.clone() }))
    }
    async fn pull_image(
        &self,
        _: Request<pb::PullImageRequest>,
    ) -> Result<Response<pb::PullImageResponse>, Status> {
        Ok(Response::new(pb::PullImageResponse::default()))
    }
}

fn serve(socket: &Path, canned: Canned) -> FalseRuntime {
    let routes =
        Routes::new(RuntimeServiceServer::new(canned.clone())).add_service(ImageServiceServer::new(canned));
    FalseRuntime::serve(socket, routes)
}

/// An answer that lacks something is an error that names the call and the missing part.
fn check_lacks<T: std::fmt::Debug>(result: Result<T, RuntimeError>, call: &str, what: &str) {
    let text = match result {
        Err(error @ RuntimeError::Failed { .. }) => error.to_string(),
        other => panic!("{call} without {what}: {other:?}"),
    };
    assert_eq!(text, format!("{call}: runtime answered without {what}"));
}

#[tokio::test]
async fn empty_answers_are_errors_that_name_the_call() {
    let (_directory, socket) = socket();
    let _server = serve(&socket, Canned::default());
    let client = client(&socket, LONG);
    let id = &"c".into();
    check_lacks(client.status().await, "Status", "status");
    check_lacks(client.run_pod_sandbox(&SandboxConfig::default(), "").await, "RunPodSandbox", "an id");
    check_lacks(client.pod_sandbox_status(&"s".into()).await, "PodSandboxStatus", "status");
    check_lacks(client.container_status(id).await, "ContainerStatus", "status");
    check_lacks(client.container_stats(id).await, "ContainerStats", "stats");
    check_lacks(client.exec(id, &[], Default::default()).await, "Exec", "a URL");
    check_lacks(client.pull_image(&ImageSpec::default(), None, None).await, "PullImage", "a reference");
    assert_eq!(client.image_status(&ImageSpec::default()).await, Ok(None));
    let error = client.version().await.expect_err("no version").to_string();
    assert!(error.contains("speaks version \"\""), "{error}");
}

#[tokio::test]
async fn statuses_without_metadata_are_errors() {
    let (_directory, socket) = socket();
    let canned = Canned {
        sandbox: Some(pb::PodSandboxStatus { id: "s".into(), created_at: 1, ..Default::default() }),
        container: Some(pb::ContainerStatus { id: "c".into(), created_at: 1, ..Default::default() }),
        image: Some(pb::Image { size: 7, ..Default::default() }),
        stats: Some(pb::ContainerStats::default()),
        cgroup_driver: 77,
        ..Default::default()
    };
    let _server = serve(&socket, canned);
    let client = client(&socket, LONG);
    check_lacks(client.pod_sandbox_status(&"s".into()).await, "PodSandboxStatus", "metadata");
    check_lacks(client.container_status(&"c".into()).await, "ContainerStatus", "metadata");
    check_lacks(client.image_status(&ImageSpec::default()).await, "ImageStatus", "the id of an image");
    check_lacks(client.container_stats(&"c".into()).await, "ContainerStats", "attributes of stats");
    check_lacks(client.cgroup_driver().await, "RuntimeConfig", "a known cgroup driver");
}

#[tokio::test]
async fn one_odd_entry_does_not_hide_the_others() {
    let (_directory, socket) = socket();
    let metadata = Some(pb::PodSandboxMetadata { name: "p".into(), uid: "u".into(), ..Default::default() });
    let canned = Canned {
        sandboxes: vec![
            pb::PodSandbox { id: "without-metadata".into(), ..Default::default() },
            pb::PodSandbox { metadata: metadata.clone(), ..Default::default() },
            pb::PodSandbox {
                id: "odd-state".into(),
                metadata,
                state: 99,
                created_at: -5,
                ..Default::default()
            },
        ],
        containers: vec![
            pb::Container { id: "without-metadata".into(), ..Default::default() },
            pb::Container {
                id: "odd-state".into(),
                metadata: Some(pb::ContainerMetadata { name: "c".into(), attempt: u32::MAX }),
                state: -1,
                created_at: i64::MIN,
                ..Default::default()
            },
        ],
        ..Default::default()
    };
    let _server = serve(&socket, canned);
    let client = client(&socket, LONG);

    let sandboxes = client.list_pod_sandboxes(&Default::default()).await.expect("list");
    let [sandbox] = sandboxes.as_slice() else { panic!("{sandboxes:?}") };
    assert_eq!((sandbox.id.as_str(), sandbox.ready, sandbox.created_at), ("odd-state", false, -5));

    let containers = client.list_containers(&Default::default()).await.expect("list");
    let [container] = containers.as_slice() else { panic!("{containers:?}") };
    assert_eq!((container.id.as_str(), container.state), ("odd-state", ContainerState::Unknown));
    assert_eq!((container.attempt, container.created_at), (u32::MAX, i64::MIN));
}

#[tokio::test]
async fn unknown_numbers_take_the_meaning_that_does_least() {
    let (_directory, socket) = socket();
    let odd_namespaces = pb::NamespaceOption { network: 42, pid: 43, ipc: -44, ..Default::default() };
    let canned = Canned {
        sandbox: Some(pb::PodSandboxStatus {
            id: "s".into(),
            metadata: Some(pb::PodSandboxMetadata {
                name: "p".into(),
                uid: "u".into(),
                namespace: "n".into(),
                attempt: 1,
            }),
            state: 5,
            created_at: -1,
            network: Some(pb::PodSandboxNetworkStatus {
                ip: String::new(),
                additional_ips: vec![pb::PodIp { ip: "10.0.0.9".into() }],
            }),
            linux: Some(pb::LinuxPodSandboxStatus {
                namespaces: Some(pb::Namespace { options: Some(odd_namespaces) }),
            }),
            ..Default::default()
        }),
        container: Some(pb::ContainerStatus {
            id: "c".into(),
            metadata: Some(pb::ContainerMetadata { name: "c".into(), attempt: 0 }),
            state: 1000,
            created_at: 1,
            exit_code: i32::MIN,
            image: Some(pb::ImageSpec { image: "i".into(), ..Default::default() }),
            image_ref: "r".into(),
            mounts: vec![pb::Mount { propagation: 12, ..Default::default() }],
            stop_signal: -3,
            ..Default::default()
        }),
        ..Default::default()
    };
    let _server = serve(&socket, canned);
    let client = client(&socket, LONG);

    let sandbox = client.pod_sandbox_status(&"s".into()).await.expect("status");
    assert!(!sandbox.info.ready);
    assert!(sandbox.has_network);
    assert_eq!(sandbox.ips, Vec::<String>::new(), "further addresses don't stand in for the first");
    assert_eq!(sandbox.namespaces, Default::default());

    let container = client.container_status(&"c".into()).await.expect("status");
    assert_eq!(container.state, ContainerState::Unknown);
    assert_eq!((container.exit_code, container.stop_signal), (i32::MIN, -3));
    assert_eq!(container.mounts[0].propagation, Default::default());
}

#[tokio::test]
async fn another_version_of_the_interface_is_refused() {
    let (_directory, socket) = socket();
    let version = pb::VersionResponse {
        version: "0.2.0".into(),
        runtime_name: "newer".into(),
        runtime_version: "9".into(),
        runtime_api_version: "v2".into(),
    };
    let _server = serve(&socket, Canned { version, ..Default::default() });
    let error = client(&socket, LONG).version().await.expect_err("refused");
    assert!(matches!(error, RuntimeError::Failed { call: "Version", .. }), "{error:?}");
    assert!(error.to_string().contains("\"newer\" speaks version \"0.2.0\""), "{error}");
}

#[tokio::test]
async fn lists_may_be_larger_than_grpc_allows_by_itself_but_not_boundless() {
    let (_directory, socket) = socket();
    let container = |id: String, size: usize| pb::Container {
        id,
        metadata: Some(pb::ContainerMetadata { name: "c".into(), attempt: 0 }),
        annotations: [("large".to_string(), "x".repeat(size))].into(),
        ..Default::default()
    };
    let of = |count: usize| (0..count).map(|n| container(n.to_string(), 1024 * 1024)).collect::<Vec<_>>();
    {
        let _server = serve(&socket, Canned { containers: of(10), ..Default::default() });
        let listed = client(&socket, LONG).list_containers(&Default::default()).await.expect("10 MiB");
        assert_eq!(listed.len(), 10);
    }
    let _server = serve(&socket, Canned { containers: of(17), ..Default::default() });
    let error = client(&socket, LONG).list_containers(&Default::default()).await.expect_err("17 MiB");
    assert!(matches!(error, RuntimeError::Failed { call: "ListContainers", .. }), "{error:?}");
}

/// Knows no call at all.
struct Ignorant;
#[tonic::async_trait]
impl RuntimeService for Ignorant {}

#[tokio::test]
async fn unknown_calls_and_unknown_services_are_unsupported() {
    let (_directory, socket) = socket();
    // The runtime's service is there and knows no call; the image service is not there at all.
    let _server = FalseRuntime::serve(&socket, Routes::new(RuntimeServiceServer::new(Ignorant)));
    let client = client(&socket, LONG);
    let check = |error: RuntimeError, call| {
        assert_eq!(error, RuntimeError::Unsupported { call });
        assert_eq!(error.disposition(), ports::Disposition::Unsupported);
    };
    check(client.cgroup_driver().await.expect_err("unknown"), "RuntimeConfig");
    check(client.start_container(&"c".into()).await.expect_err("unknown"), "StartContainer");
    check(client.list_images().await.expect_err("unknown"), "ListImages");
}

/// Fails StartContainer with the given status, by code in the container's id.
struct Failing;
#[tonic::async_trait]
impl RuntimeService for Failing {
    async fn start_container(
        &self,
        request: Request<pb::StartContainerRequest>,
    ) -> Result<Response<pb::StartContainerResponse>, Status> {
        let id = request.into_inner().container_id;
        let (code, message) = id.split_once(' ').expect("code and message");
        Err(Status::new(Code::from_i32(code.parse().expect("code")), message))
    }
}

#[tokio::test]
async fn a_status_becomes_the_error_that_says_what_to_do() {
    let (_directory, socket) = socket();
    let _server = FalseRuntime::serve(&socket, Routes::new(RuntimeServiceServer::new(Failing)));
    let client = client(&socket, LONG);
    let call = "StartContainer";
    let text = String::from("it is so");
    let table = [
        (Code::NotFound, text.clone(), RuntimeError::NotFound { call, message: text.clone() }),
        (Code::Unavailable, text.clone(), RuntimeError::Unavailable { call, message: text.clone() }),
        (Code::DeadlineExceeded, text.clone(), RuntimeError::TimedOut { call, after: LONG }),
        (Code::Unimplemented, text.clone(), RuntimeError::Unsupported { call }),
        (
            Code::Unknown,
            text.clone(),
            RuntimeError::Failed { call, code: GrpcCode::Unknown, message: text.clone() },
        ),
        (
            Code::InvalidArgument,
            text.clone(),
            RuntimeError::Failed { call, code: GrpcCode::InvalidArgument, message: text.clone() },
        ),
        // The code alone tells what is not found: a message may speak of anything.
        (
            Code::Unknown,
            "exec: \"x\": not found".into(),
            RuntimeError::Failed { call, code: GrpcCode::Unknown, message: "exec: \"x\": not found".into() },
        ),
        (
            Code::Unknown,
            "server is not initialized yet".into(),
            RuntimeError::Unavailable { call, message: "server is not initialized yet".into() },
        ),
    ];
    for (code, message, expect) in table {
        let id = format!("{} {message}", code as i32);
        assert_eq!(client.start_container(&id.into()).await, Err(expect), "{code:?} {message}");
    }
}
