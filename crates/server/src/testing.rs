//! An agent that answers as a test says, and a client of a few lines.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use axum::body::Body;
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use model::k8s::{Container, Pod, PodList, PodSpec};
use model::report::{ContainerView, NodeReport, PodReport, WhyLine, WhyReport};
use model::time::Wall;
use model::why::Cause;
use ports::AgentView;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use crate::metrics::{AgentMetrics, BuildInfo};
use crate::{Endpoints, HealthChecks, PATIENCE};

#[derive(Clone, Copy, PartialEq)]
pub enum Mood {
    Well,
    Ended,
    Hanging,
}

pub struct FakeAgent(pub Mood);

impl FakeAgent {
    async fn say<T>(&self, answer: T) -> Option<T> {
        match self.0 {
            Mood::Well => Some(answer),
            Mood::Ended => None,
            Mood::Hanging => std::future::pending().await,
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

fn report(name: &str, source: &str, status: &str) -> PodReport {
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
        status: status.into(),
        ready: 1,
        containers: vec![container],
        restarts: 2,
        ip: "10.0.0.5".into(),
        since: Some(Wall(5)),
        log_dir: String::new(),
    }
}

#[async_trait]
impl AgentView for FakeAgent {
    async fn pods(&self) -> Option<PodList> {
        self.say(PodList { items: vec![pod("web-vm"), pod("db-vm")], ..Default::default() }).await
    }
    async fn running_pods(&self) -> Option<PodList> {
        self.say(PodList { items: vec![pod("web-vm")], ..Default::default() }).await
    }
    async fn reports(&self) -> Option<Vec<PodReport>> {
        let reports = vec![
            report("web-vm", "file", "Running"),
            report("old-vm", "file", "Terminating"),
            report("db", "api", "Pending"),
        ];
        self.say(reports).await
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
        self.say(vec![report]).await
    }
    async fn node(&self) -> Option<NodeReport> {
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
        };
        self.say(report).await
    }
}

pub fn metrics() -> Arc<AgentMetrics> {
    AgentMetrics::new(BuildInfo { kubernetes: "v1.36.4".into(), rubelet: "0.1.0".into() })
}

pub fn endpoints(mood: Mood) -> Endpoints {
    let agent: Arc<dyn AgentView> = Arc::new(FakeAgent(mood));
    let health = Arc::new(HealthChecks::of_agent(agent.clone(), PATIENCE));
    Endpoints { agent, health, metrics: metrics() }
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
