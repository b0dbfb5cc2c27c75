//! A client of the Pods API, with messages of its own for what tests look at.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use prost::Message;
use server::pods_client::pods_client::PodsClient;
pub use server::pods_client::{EventType, GetPodRequest, ListPodsRequest, WatchPodsEvent, WatchPodsRequest};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Status, Streaming};

use crate::support::harness::Agent;

#[derive(Clone, PartialEq, Message)]
pub struct Pod {
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<Metadata>,
    #[prost(message, optional, tag = "2")]
    pub spec: Option<Spec>,
    #[prost(message, optional, tag = "3")]
    pub status: Option<PodStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Metadata {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "3")]
    pub namespace: String,
    #[prost(string, tag = "5")]
    pub uid: String,
    #[prost(message, optional, tag = "9")]
    pub deletion_timestamp: Option<Time>,
    #[prost(btree_map = "string, string", tag = "11")]
    pub labels: std::collections::BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "12")]
    pub annotations: std::collections::BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Time {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Spec {
    #[prost(message, repeated, tag = "2")]
    pub containers: Vec<Container>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Container {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub image: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct PodStatus {
    #[prost(string, tag = "1")]
    pub phase: String,
    #[prost(string, tag = "6")]
    pub pod_ip: String,
    #[prost(message, repeated, tag = "8")]
    pub container_statuses: Vec<ContainerStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerStatus {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(bool, tag = "4")]
    pub ready: bool,
    #[prost(int32, tag = "5")]
    pub restart_count: i32,
    #[prost(string, tag = "8")]
    pub container_id: String,
}

impl Pod {
    pub fn meta(&self) -> Metadata {
        self.metadata.clone().unwrap_or_default()
    }

    pub fn uid(&self) -> String {
        self.meta().uid
    }

    pub fn name(&self) -> String {
        self.meta().name
    }

    pub fn phase(&self) -> String {
        self.status.clone().unwrap_or_default().phase
    }

    pub fn first_container(&self) -> ContainerStatus {
        let status = self.status.clone().unwrap_or_default();
        status.container_statuses.into_iter().next().unwrap_or_default()
    }

    pub fn is_ready(&self) -> bool {
        self.phase() == "Running" && self.first_container().ready
    }
}

pub fn decode(bytes: &[u8]) -> Pod {
    Pod::decode(bytes).expect("a pod")
}

/// What a watcher was told.
#[derive(Clone, Debug)]
pub struct Told {
    pub kind: EventType,
    pub pod: Pod,
}

impl Told {
    fn of(event: &WatchPodsEvent) -> Told {
        Told { kind: event.r#type(), pod: decode(&event.pod) }
    }

    pub fn is(&self, kind: EventType, name: &str) -> bool {
        self.kind == kind && self.pod.name() == name
    }
}

pub struct PodsApi {
    runtime: tokio::runtime::Runtime,
    socket: PathBuf,
    client: PodsClient<Channel>,
}

impl PodsApi {
    pub fn of(agent: &Agent) -> PodsApi {
        let socket = agent.root_dir().join("pods-api/pods-api.sock");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let client = runtime.block_on(async { connect(socket.clone()) });
        PodsApi { runtime, socket, client }
    }

    pub fn list(&self) -> Result<Vec<Pod>, Status> {
        let mut client = self.client.clone();
        let listed = self.runtime.block_on(client.list_pods(ListPodsRequest {}))?.into_inner();
        Ok(listed.pods.iter().map(|pod| decode(pod)).collect())
    }

    pub fn get_bytes(&self, uid: &str) -> Result<Vec<u8>, Status> {
        let mut client = self.client.clone();
        let request = GetPodRequest { pod_uid: uid.to_owned() };
        Ok(self.runtime.block_on(client.get_pod(request))?.into_inner().pod)
    }

    pub fn get(&self, uid: &str) -> Result<Pod, Status> {
        self.get_bytes(uid).map(|pod| decode(&pod))
    }

    /// A watch whose events are taken as they come. It has a connection of its own.
    pub fn watch(&self) -> Watch {
        let mut stream = self.watch_idle();
        let (sender, told) = channel();
        self.runtime.spawn(async move {
            loop {
                let next = match stream.message().await {
                    Ok(Some(event)) => Ok(Told::of(&event)),
                    Ok(None) => return,
                    Err(status) => Err(status),
                };
                if sender.send(next).is_err() {
                    return;
                }
            }
        });
        Watch { told, seen: Vec::new() }
    }

    /// A watch of which nothing is taken until somebody asks.
    pub fn watch_idle(&self) -> Streaming<WatchPodsEvent> {
        let socket = self.socket.clone();
        self.runtime
            .block_on(async { connect(socket).watch_pods(WatchPodsRequest {}).await })
            .expect("a watch")
            .into_inner()
    }

    /// Takes everything, and gives the status at the end.
    pub fn drain(&self, stream: &mut Streaming<WatchPodsEvent>) -> (Vec<Told>, Status) {
        let mut told = Vec::new();
        loop {
            match self.runtime.block_on(stream.message()) {
                Ok(Some(event)) => told.push(Told::of(&event)),
                Ok(None) => return (told, Status::ok("")),
                Err(status) => return (told, status),
            }
        }
    }
}

fn connect(socket: PathBuf) -> PodsClient<Channel> {
    let connector = tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(&socket).await.map(TokioIo::new) }
    });
    // Little is on its way, so that it shows soon when nothing is taken.
    let endpoint = Endpoint::from_static("http://localhost")
        .initial_stream_window_size(65_535)
        .initial_connection_window_size(65_535);
    PodsClient::new(endpoint.connect_with_connector_lazy(connector))
}

pub struct Watch {
    told: Receiver<Result<Told, Status>>,
    pub seen: Vec<Told>,
}

impl Watch {
    /// Takes events until one is as wanted.
    ///
    /// # Panics
    /// At the deadline, or when the watch ends, with what was seen.
    #[track_caller]
    pub fn wait(&mut self, what: &str, deadline: Duration, wanted: impl Fn(&Told) -> bool) -> Told {
        let end = Instant::now() + deadline;
        loop {
            match self.told.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(Ok(told)) => {
                    self.seen.push(told.clone());
                    if wanted(&told) {
                        return told;
                    }
                }
                Ok(Err(status)) => panic!("the watch ended before {what}: {status}"),
                Err(end) => panic!("{end} before {what}; seen: {:?}", self.lines()),
            }
        }
    }

    /// Waits for the end of the watch.
    #[track_caller]
    pub fn wait_ended(&mut self, deadline: Duration) -> Option<Status> {
        let end = Instant::now() + deadline;
        loop {
            match self.told.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(Ok(told)) => self.seen.push(told),
                Ok(Err(status)) => return Some(status),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => panic!("the watch goes on: {:?}", self.lines()),
            }
        }
    }

    /// What was told of a pod, in order.
    pub fn kinds_of(&self, name: &str) -> Vec<EventType> {
        self.seen.iter().filter(|told| told.pod.name() == name).map(|told| told.kind).collect()
    }

    pub fn lines(&self) -> Vec<String> {
        let line = |told: &Told| format!("{:?} {} {}", told.kind, told.pod.name(), told.pod.phase());
        self.seen.iter().map(line).collect()
    }
}
