//! A fake agent whose answers a test sets, and a small client.

use model::GrpcCode;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::body::Body;
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use model::cri::{ContainerConfig, ExecResult, LinuxResources, SandboxConfig};
use model::k8s::{Container, Pod, PodList, PodSpec};
use model::observed::{ContainerState, ObservedContainer, ObservedPod, ObservedSandbox};
use model::report::{ContainerView, NodeReport, PodReport, WhyLine, WhyReport};
use model::time::Wall;
use model::why::Cause;
use model::{ContainerId, SandboxId};
use ports::{AgentView, PodDetails, Runtime, RuntimeError, StreamFlags};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use crate::metrics::{AgentMetrics, BuildInfo};
use crate::{AGENT_TIMEOUT, Endpoints, HealthChecks};

#[derive(Clone, Copy, PartialEq)]
pub enum FakeAgentState {
    Well,
    Ended,
    Hanging,
}

pub struct FakeAgent(pub FakeAgentState);

impl FakeAgent {
    async fn respond<T>(&self, answer: T) -> Option<T> {
        match self.0 {
            FakeAgentState::Well => Some(answer),
            FakeAgentState::Ended => None,
            FakeAgentState::Hanging => std::future::pending().await,
        }
    }
}

fn pod(name: &str) -> Pod {
    let container =
        Container { name: "web".into(), image: Some("example/web:1".into()), ..Default::default() };
    let mut pod = Pod {
        spec: Some(PodSpec { containers: vec![container], ..Default::default() }),
        ..Default::default()
    };
    pod.metadata.name = Some(name.into());
    pod
}

pub fn report(name: &str, source: &str, status: &str) -> PodReport {
    let container = ContainerView {
        name: "web".into(),
        ready: true,
        restarts: 2,
        log_path: None,
        previous_log_path: None,
        running: true,
        init: false,
    };
    PodReport {
        namespace: "default".into(),
        name: name.into(),
        uid: "u1".into(),
        source: source.into(),
        lifecycle: "sync".into(),
        status: status.into(),
        ready: 1,
        containers: vec![container],
        restarts: 2,
        ip: "10.0.0.5".into(),
        since: Some(Wall(5)),
        log_dir: String::new(),
    }
}

/// Its container `web` runs as `c1`, was `c0` before; `late` waits, `shell` has a terminal.
fn inside() -> PodDetails {
    let pod = serde_json::json!({
        "metadata": { "name": "web-vm", "namespace": "default" },
        "spec": { "containers": [{ "name": "web" }, { "name": "late" }, { "name": "shell", "tty": true }] },
    });
    let ready = |name: &str, id: &str, state: serde_json::Value, last: serde_json::Value| {
        serde_json::json!({
            "name": name, "image": "", "imageID": "", "ready": true, "restartCount": 1,
            "containerID": id, "state": state, "lastState": last,
        })
    };
    let ended = serde_json::json!({ "terminated": { "exitCode": 1, "containerID": "containerd://c0" } });
    let running = serde_json::json!({ "running": {} });
    let waiting = serde_json::json!({ "waiting": { "reason": "ImagePullBackOff" } });
    let none = serde_json::json!({});
    let status = serde_json::json!({ "phase": "Running", "containerStatuses": [
        ready("web", "containerd://c1", running.clone(), ended),
        ready("late", "", waiting, none.clone()),
        ready("shell", "containerd://c2", running, none),
    ] });
    PodDetails {
        uid: "u1".into(),
        cgroup: Some("/kubepods/podu1".into()),
        pod: Arc::new(serde_json::from_value(pod).unwrap()),
        status: Some(Arc::new(serde_json::from_value(status).unwrap())),
        observed: Some(Arc::new(observed())),
        volumes: Vec::new(),
    }
}

/// The same pod with one more container, of which its status says that it runs as `id`.
fn inside_claiming(id: &str) -> PodDetails {
    let mut pod = inside();
    let container = serde_json::json!({ "name": "old" });
    let status = serde_json::json!({
        "name": "old", "image": "", "imageID": "", "ready": true, "restartCount": 0,
        "containerID": format!("containerd://{id}"), "state": { "running": {} },
    });
    let spec = Arc::make_mut(&mut pod.pod).spec.as_mut().unwrap();
    spec.containers.push(serde_json::from_value(container).unwrap());
    let known = Arc::make_mut(pod.status.as_mut().unwrap()).container_statuses.as_mut().unwrap();
    known.push(serde_json::from_value(status).unwrap());
    pod
}

fn observed() -> ObservedPod {
    let name = model::FullName { name: "web-vm".into(), namespace: "default".into() };
    let container = |id: &str, name: &str, state: ContainerState| ObservedContainer {
        id: id.into(),
        sandbox_id: "s1".into(),
        name: name.into(),
        state,
        log_path: format!("/logs/{id}.log"),
        ..blank()
    };
    ObservedPod {
        missing_status: Default::default(),
        sandboxes: vec![ObservedSandbox {
            id: "s1".into(),
            attempt: 0,
            created_at: Wall(0),
            ready: true,
            network: model::cri::NamespaceMode::Pod,
            has_network_status: true,
            ips: Vec::new(),
            runtime_handler: String::new(),
        }],
        containers: vec![
            container("c1", "web", ContainerState::Running),
            container("c0", "web", ContainerState::Exited),
            container("c2", "shell", ContainerState::Running),
        ],
        ..ObservedPod::empty("u1".into(), name)
    }
}

fn blank() -> ObservedContainer {
    ObservedContainer {
        id: "".into(),
        sandbox_id: "".into(),
        name: String::new(),
        state: ContainerState::Unknown,
        restart_count: 0,
        hash: None,
        created_at: Wall(0),
        started_at: Wall(0),
        finished_at: Wall(0),
        exit_code: 0,
        reason: String::new(),
        message: String::new(),
        image: String::new(),
        image_ref: String::new(),
        image_id: String::new(),
        log_path: String::new(),
        pod_grace: None,
        pre_stop: None,
        resources: None,
        user: None,
        stop_signal: 0,
        image_mounts: Default::default(),
    }
}

#[async_trait]
impl AgentView for FakeAgent {
    async fn pods(&self) -> Option<PodList> {
        self.respond(PodList { items: vec![pod("web-vm"), pod("db-vm")], ..Default::default() }).await
    }
    async fn running_pods(&self) -> Option<PodList> {
        self.respond(PodList { items: vec![pod("web-vm")], ..Default::default() }).await
    }
    async fn pod_reports(&self) -> Option<Vec<PodReport>> {
        let reports = vec![
            report("web-vm", "file", "Running"),
            report("old-vm", "file", "Terminating"),
            report("db", "api", "Pending"),
        ];
        self.respond(reports).await
    }
    async fn why(&self, namespace: Option<String>, name: String) -> Option<Vec<WhyReport>> {
        let reason = WhyLine {
            container: None,
            cause: Cause::Observing,
            since: Wall(7),
            next_attempt_secs: Some(1.5),
        };
        let report = WhyReport {
            namespace: namespace.unwrap_or_else(|| "any".into()),
            name,
            uid: "u1".into(),
            phase: "Pending".into(),
            reasons: vec![reason],
            events: Vec::new(),
        };
        self.respond(vec![report]).await
    }
    async fn find_pod(&self, namespace: String, name: String) -> Option<Option<PodDetails>> {
        let found = match name.strip_prefix("claims-") {
            Some(id) => Some(inside_claiming(id)),
            None => (namespace == "default" && name == "web-vm").then(inside),
        };
        self.respond(found).await
    }
    /// Only `c1` runs.
    async fn container_ended(&self, _: model::PodUid, container: ContainerId) -> Option<()> {
        match container.as_str() {
            "c1" => std::future::pending().await,
            _ => self.respond(()).await,
        }
    }
    async fn all_pod_details(&self) -> Option<Vec<PodDetails>> {
        self.respond(vec![inside()]).await
    }
    async fn node_report(&self) -> Option<NodeReport> {
        let report = NodeReport {
            name: "vm".into(),
            runtime: "containerd 1.6.20".into(),
            runtime_ready: true,
            network_ready: false,
            message: "no CNI".into(),
            sources_ready: true,
            pods: 2,
            running_pods: 1,
            containers: [("running".to_owned(), 3), ("exited".to_owned(), 1)].into(),
            mirror_pods: 0,
            orphans: 0,
            ephemeral_containers: 0,
            counts: Default::default(),
            volumes: Vec::new(),
            selinux_volumes: Vec::new(),
            pod_certificates: Vec::new(),
            protected_memory: None,
            signals: Vec::new(),
            watches: Vec::new(),
        };
        self.respond(report).await
    }
}

pub struct StoppedClock;

impl ports::WallClock for StoppedClock {
    fn wall(&self) -> Wall {
        Wall(1_700_000_000_000_000_000)
    }
}

pub fn metrics() -> Arc<AgentMetrics> {
    let build = BuildInfo { kubernetes: "v1.36.4".into(), rubelet: "0.1.0".into() };
    AgentMetrics::new(build, Arc::new(StoppedClock))
}

pub fn endpoints(mood: FakeAgentState) -> Endpoints {
    let agent: Arc<dyn AgentView> = Arc::new(FakeAgent(mood));
    let health = Arc::new(HealthChecks::of_agent(agent.clone(), AGENT_TIMEOUT));
    Endpoints { agent, health, metrics: metrics(), stats: None }
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub content_type: String,
    pub body: String,
}

pub async fn get_tcp(address: SocketAddr, path: &'static str) -> Answer {
    try_get_tcp(address, path).await.unwrap()
}

pub async fn try_get_tcp(address: SocketAddr, path: &'static str) -> Result<Answer, hyper::Error> {
    exchange(TcpStream::connect(address).await.unwrap(), "GET", path).await
}

pub async fn tcp(address: SocketAddr, method: &str, path: &str) -> Answer {
    exchange(TcpStream::connect(address).await.unwrap(), method, path).await.unwrap()
}

pub async fn get_unix(socket: &Path, path: &str) -> Answer {
    exchange(UnixStream::connect(socket).await.unwrap(), "GET", path).await.unwrap()
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    method: &str,
    path: &str,
) -> Result<Answer, hyper::Error> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = http::Request::builder().method(method).uri(path).header("host", "test");
    let response = sender.send_request(request.body(Body::empty()).unwrap()).await?;
    let status = response.status().as_u16();
    let content_type = response.headers().get("content-type").map(|v| v.to_str().unwrap().to_owned());
    let body = response.into_body().collect().await?.to_bytes();
    let body = String::from_utf8(body.to_vec()).unwrap();
    Ok(Answer { status, content_type: content_type.unwrap_or_default(), body })
}

/// Answers what the API asks of a runtime; nothing else is asked.
#[derive(Default)]
pub struct FakeRuntime {
    /// Where streams go.
    pub streaming: Option<String>,
    /// What it says of figures. `None`: it has no such calls.
    pub figures: Option<Result<FakeFigures, RuntimeError>>,
}

/// Of pods and containers.
#[derive(Clone, Default)]
pub struct FakeFigures {
    pub sandboxes: Vec<model::cri::SandboxStats>,
    pub descriptors: Vec<model::cri::MetricDescriptor>,
    pub metrics: Vec<model::cri::Metric>,
}

impl FakeRuntime {
    fn figures(&self, call: &'static str) -> Result<FakeFigures, RuntimeError> {
        self.figures.clone().unwrap_or(Err(RuntimeError::Unsupported { call }))
    }

    fn url(&self, what: &str) -> Result<String, RuntimeError> {
        let call = "Exec";
        match what {
            "missing" => Err(RuntimeError::NotFound { call, message: "no such container".into() }),
            "exhausted" => Err(RuntimeError::Failed {
                call,
                code: GrpcCode::ResourceExhausted,
                message: "too much".into(),
            }),
            "broken" => {
                Err(RuntimeError::Failed { call, code: GrpcCode::Unknown, message: "runtime trouble".into() })
            }
            _ => Ok(format!("{}/exec/token", self.streaming.as_deref().unwrap_or("http://127.0.0.1:1"))),
        }
    }
}

macro_rules! not_asked {
    ($($method:ident($($of:ty),*) -> $answer:ty;)*) => {
        #[async_trait]
        impl Runtime for FakeRuntime {
            $(async fn $method(&self, $(_: $of),*) -> Result<$answer, RuntimeError> {
                unreachable!(stringify!($method))
            })*
            async fn exec_sync(
                &self,
                id: &ContainerId,
                command: &[String],
                _: Duration,
            ) -> Result<ExecResult, RuntimeError> {
                assert_eq!(id.as_str(), "c1");
                let exit_code = i32::from(command[0] == "false");
                let stdout = format!("{command:?}").into_bytes();
                Ok(ExecResult { stdout, stderr: b"+err".to_vec(), exit_code })
            }
            async fn exec(
                &self,
                id: &ContainerId,
                command: &[String],
                streams: StreamFlags,
            ) -> Result<String, RuntimeError> {
                assert_eq!((id.as_str(), streams.stdout), ("c1", true));
                self.url(command.first().map_or("", String::as_str))
            }
            async fn attach(&self, id: &ContainerId, streams: StreamFlags) -> Result<String, RuntimeError> {
                assert_eq!((id.as_str(), streams.tty, streams.stderr), ("c2", true, false));
                self.url("")
            }
            async fn port_forward(&self, id: &SandboxId, _: &[i32]) -> Result<String, RuntimeError> {
                assert_eq!(id.as_str(), "s1");
                self.url("")
            }
            async fn list_container_stats(
                &self,
                _: &ports::ContainerFilter,
            ) -> Result<Vec<model::cri::ContainerStats>, RuntimeError> {
                Ok(Vec::new())
            }
            async fn list_pod_sandbox_stats(
                &self,
                _: &ports::SandboxFilter,
            ) -> Result<Vec<model::cri::SandboxStats>, RuntimeError> {
                Ok(self.figures("ListPodSandboxStats")?.sandboxes)
            }
            async fn list_metric_descriptors(&self) -> Result<Vec<model::cri::MetricDescriptor>, RuntimeError> {
                Ok(self.figures("ListMetricDescriptors")?.descriptors)
            }
            async fn list_pod_sandbox_metrics(&self) -> Result<Vec<model::cri::Metric>, RuntimeError> {
                Ok(self.figures("ListPodSandboxMetrics")?.metrics)
            }
            /// What runs as `own`, `stolen` and `renamed` was not seen in the last reading; the labels tell whose it is.
            async fn container_status(&self, id: &ContainerId) -> Result<ports::ContainerStatus, RuntimeError> {
                let (pod, name) = match id.as_str() {
                    "own" => ("u1", "old"),
                    "stolen" => ("u2", "old"),
                    "renamed" => ("u1", "web"),
                    _ => unreachable!("nobody asks for {id}"),
                };
                Ok(status_with_labels(id, pod, name))
            }
            async fn checkpoint_container(
                &self,
                id: &ContainerId,
                _: &str,
                _: Duration,
            ) -> Result<(), RuntimeError> {
                match id.as_str() {
                    "c1" => Ok(()),
                    _ => Err(RuntimeError::Failed { call: "Checkpoint", code: GrpcCode::Unknown, message: "no".into() }),
                }
            }
        }
    };
}

fn status_with_labels(id: &ContainerId, pod: &str, name: &str) -> ports::ContainerStatus {
    let labels = [(model::pod::LABEL_POD_UID, pod), (model::pod::LABEL_CONTAINER_NAME, name)];
    ports::ContainerStatus {
        id: id.clone(),
        name: name.into(),
        attempt: 0,
        state: ContainerState::Exited,
        created_at: 0,
        started_at: 0,
        finished_at: 0,
        exit_code: 0,
        image: String::new(),
        image_ref: String::new(),
        image_id: String::new(),
        reason: String::new(),
        message: String::new(),
        labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        annotations: Default::default(),
        mounts: Vec::new(),
        log_path: format!("/logs/{id}.log"),
        resources: None,
        user: None,
        stop_signal: 0,
    }
}

not_asked! {
    version() -> model::cri::RuntimeVersion;
    status() -> model::cri::RuntimeStatus;
    cgroup_driver() -> model::cgroup::CgroupDriver;
    update_runtime_config(&str) -> ();
    run_pod_sandbox(&SandboxConfig, &str) -> SandboxId;
    stop_pod_sandbox(&SandboxId) -> ();
    remove_pod_sandbox(&SandboxId) -> ();
    pod_sandbox_status(&SandboxId) -> ports::SandboxStatus;
    list_pod_sandboxes(&ports::SandboxFilter) -> Vec<ports::SandboxInfo>;
    update_pod_sandbox_resources(&SandboxId, Option<&LinuxResources>, Option<&LinuxResources>) -> ();
    create_container(&SandboxId, &ContainerConfig, &SandboxConfig) -> ContainerId;
    start_container(&ContainerId) -> ();
    stop_container(&ContainerId, Duration) -> ();
    remove_container(&ContainerId) -> ();
    list_containers(&ports::ContainerFilter) -> Vec<ports::ContainerInfo>;
    update_container_resources(&ContainerId, &LinuxResources) -> ();
    reopen_container_log(&ContainerId) -> ();
    container_stats(&ContainerId) -> model::cri::ContainerStats;
}
