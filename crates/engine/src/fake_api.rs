//! A simulated API server with one Node, one Lease and Events, and faults on demand. For tests with paused time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use model::k8s::{Event, Lease, Node};
use model::{ApiEvent, EventSubject, Wall};
use ports::{ApiError, EventApi, EventSink, LeaseApi, NodeApi, ObservedObject, WallClock};
use serde_json::{Value, json};
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    Conflict,
    NotFound,
    Forbidden,
    Invalid,
    Server,
    Hang,
}

#[derive(Default)]
struct FakeApiState {
    version: u64,
    uids: u64,
    lease: Option<Lease>,
    events: Vec<Event>,
    /// Calls in order: seconds since the start, and the name of the call.
    calls: Vec<(f64, String)>,
    /// Faults for the next calls whose names begin with the string.
    faults: VecDeque<(String, Fault)>,
}

pub(crate) struct FakeApi {
    began: Instant,
    state: Mutex<FakeApiState>,
    node: watch::Sender<Option<Arc<Node>>>,
}

impl FakeApi {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { began: Instant::now(), state: Mutex::default(), node: watch::Sender::new(None) })
    }

    pub async fn fail(&self, call: &str, fault: Fault, times: usize) {
        let mut state = self.state.lock().await;
        state.faults.extend(std::iter::repeat_n((call.to_owned(), fault), times));
    }

    pub fn node(&self) -> Option<Arc<Node>> {
        self.node.borrow().clone()
    }

    pub async fn lease(&self) -> Option<Lease> {
        self.state.lock().await.lease.clone()
    }

    pub async fn events(&self) -> Vec<Event> {
        self.state.lock().await.events.clone()
    }

    /// Names of the calls since this was last called.
    pub async fn calls(&self) -> Vec<String> {
        self.timed_calls().await.into_iter().map(|(_, call)| call).collect()
    }

    pub async fn timed_calls(&self) -> Vec<(f64, String)> {
        std::mem::take(&mut self.state.lock().await.calls)
    }

    /// Changes the Node as another client would.
    pub async fn change_node(&self, change: impl FnOnce(&mut Node)) {
        let mut node = (*self.node().expect("a node")).clone();
        change(&mut node);
        self.store(&mut *self.state.lock().await, node);
    }

    pub async fn put_node(&self, node: Node) {
        self.store(&mut *self.state.lock().await, node);
    }

    pub fn delete_node(&self) {
        self.node.send_replace(None);
    }

    pub async fn change_lease(&self, change: impl FnOnce(&mut Option<Lease>)) {
        let mut state = self.state.lock().await;
        change(&mut state.lease);
        state.version += 1;
        let version = state.version.to_string();
        if let Some(lease) = &mut state.lease {
            lease.metadata.resource_version = Some(version);
        }
    }

    fn store(&self, state: &mut FakeApiState, mut node: Node) -> Arc<Node> {
        state.version += 1;
        node.metadata.resource_version = Some(state.version.to_string());
        if node.metadata.uid.is_none() {
            state.uids += 1;
            node.metadata.uid = Some(format!("uid-{}", state.uids));
        }
        let node = Arc::new(node);
        self.node.send_replace(Some(node.clone()));
        node
    }

    async fn enter(&self, call: &str, patience: Duration) -> Result<(), ApiError> {
        let mut state = self.state.lock().await;
        state.calls.push((self.began.elapsed().as_secs_f64(), call.to_owned()));
        let position = state.faults.iter().position(|(name, _)| call.starts_with(name));
        let fault = position.and_then(|at| state.faults.remove(at)).map(|(_, fault)| fault);
        drop(state);
        let (call, message) = (call.to_owned(), String::from("made up"));
        Err(match fault {
            None => return Ok(()),
            Some(Fault::Conflict) => ApiError::Conflict { call, message },
            Some(Fault::NotFound) => ApiError::NotFound { call, message },
            Some(Fault::Forbidden) => ApiError::Forbidden { call, message },
            Some(Fault::Invalid) => ApiError::Invalid { call, message },
            Some(Fault::Server) => ApiError::ServerFault { call, code: 500, message },
            Some(Fault::Hang) => {
                tokio::time::sleep(patience).await;
                ApiError::TimedOut { call, after: patience }
            }
        })
    }

    fn there(&self, call: &str) -> Result<Arc<Node>, ApiError> {
        let absent = || ApiError::NotFound { call: call.into(), message: "nodes not found".into() };
        self.node().ok_or_else(absent)
    }
}

const API_TIMEOUT: Duration = Duration::from_secs(30);

#[async_trait]
impl NodeApi for FakeApi {
    async fn get(&self, _: &str) -> Result<Arc<Node>, ApiError> {
        self.enter("get node", API_TIMEOUT).await?;
        self.there("get node")
    }

    async fn create(&self, node: &Node) -> Result<Arc<Node>, ApiError> {
        self.enter("create node", API_TIMEOUT).await?;
        if self.node().is_some() {
            return Err(ApiError::AlreadyExists { call: "create node".into(), message: "there".into() });
        }
        Ok(self.store(&mut *self.state.lock().await, node.clone()))
    }

    async fn patch(&self, _: &str, patch: &Value) -> Result<Arc<Node>, ApiError> {
        self.patch_status("", patch, API_TIMEOUT).await
    }

    async fn patch_status(&self, _: &str, patch: &Value, patience: Duration) -> Result<Arc<Node>, ApiError> {
        self.enter("patch node", patience).await?;
        let before = self.there("patch node")?;
        let mut value = serde_json::to_value(&*before).expect("JSON");
        merge(&mut value, patch);
        let node = serde_json::from_value(value).expect("still a node");
        Ok(self.store(&mut *self.state.lock().await, node))
    }

    fn watch(&self, _: &str) -> BoxStream<'static, ObservedObject<Node>> {
        let states = self.node.subscribe();
        futures::stream::unfold((states, true), |(mut states, first)| async move {
            if !first {
                states.changed().await.ok()?;
            }
            let seen =
                states.borrow_and_update().clone().map_or(ObservedObject::Absent, ObservedObject::Present);
            Some((seen, (states, false)))
        })
        .boxed()
    }
}

/// A strategic merge patch, as far as the patches of a node need it.
fn merge(target: &mut Value, patch: &Value) {
    let (Value::Object(target), Value::Object(patch)) = (target, patch) else { return };
    for (key, value) in patch.iter().filter(|(key, _)| !key.starts_with('$')) {
        match value {
            Value::Null => {
                target.remove(key);
            }
            Value::Object(_) => merge(target.entry(key).or_insert_with(|| json!({})), value),
            Value::Array(changes) if key == "conditions" => {
                let list = target.entry(key).or_insert_with(|| json!([]));
                let list = list.as_array_mut().expect("a list");
                for change in changes {
                    match list.iter_mut().find(|item| item["type"] == change["type"]) {
                        Some(item) => merge(item, change),
                        None => list.push(change.clone()),
                    }
                }
            }
            Value::Array(items) => {
                let items = items.iter().filter(|item| item.get("$patch").is_none());
                target.insert(key.clone(), items.cloned().collect());
            }
            other => {
                target.insert(key.clone(), other.clone());
            }
        }
    }
}

#[async_trait]
impl LeaseApi for FakeApi {
    async fn get(&self, _: &str, patience: Duration) -> Result<Lease, ApiError> {
        self.enter("get lease", patience).await?;
        let absent = ApiError::NotFound { call: "get lease".into(), message: "no lease".into() };
        self.lease().await.ok_or(absent)
    }

    async fn create(&self, lease: &Lease, patience: Duration) -> Result<Lease, ApiError> {
        self.enter("create lease", patience).await?;
        self.change_lease(|stored| *stored = Some(lease.clone())).await;
        Ok(self.lease().await.expect("made"))
    }

    async fn update(&self, lease: &Lease, patience: Duration) -> Result<Lease, ApiError> {
        self.enter("update lease", patience).await?;
        let call = || "update lease".to_owned();
        let absent = ApiError::NotFound { call: call(), message: "no lease".into() };
        let stored = self.lease().await.ok_or(absent)?;
        if stored.metadata.resource_version != lease.metadata.resource_version {
            return Err(ApiError::Conflict { call: call(), message: "the object has been modified".into() });
        }
        self.change_lease(|stored| *stored = Some(lease.clone())).await;
        Ok(self.lease().await.expect("there"))
    }
}

#[async_trait]
impl EventApi for FakeApi {
    async fn create(&self, event: &Event) -> Result<Event, ApiError> {
        self.enter("create event", API_TIMEOUT).await?;
        self.state.lock().await.events.push(event.clone());
        Ok(event.clone())
    }

    async fn patch(&self, namespace: &str, name: &str, patch: &Value) -> Result<Event, ApiError> {
        self.enter("patch event", API_TIMEOUT).await?;
        let mut state = self.state.lock().await;
        let found = state.events.iter_mut().find(|event| {
            (event.metadata.namespace.as_deref(), event.metadata.name.as_deref())
                == (Some(namespace), Some(name))
        });
        let absent = ApiError::NotFound { call: "patch event".into(), message: "no event".into() };
        let event = found.ok_or(absent)?;
        event.count = patch["count"].as_i64().and_then(|count| i32::try_from(count).ok());
        Ok(event.clone())
    }
}

/// The wall clock of a test: it advances with tokio's clock.
pub(crate) struct TestWall(Instant);

impl TestWall {
    pub fn new() -> Arc<Self> {
        Arc::new(Self(Instant::now()))
    }
}

impl WallClock for TestWall {
    fn wall(&self) -> Wall {
        Wall(1_700_000_000_000_000_000 + self.0.elapsed().as_nanos() as i64)
    }
}

/// The reasons of the recorded Events.
pub(crate) struct RecordedReasons(watch::Sender<Vec<String>>);

impl RecordedReasons {
    pub fn new() -> Arc<Self> {
        Arc::new(Self(watch::Sender::new(Vec::new())))
    }

    pub fn take(&self) -> Vec<String> {
        self.0.send_replace(Vec::new())
    }
}

impl EventSink for RecordedReasons {
    fn record(&self, _: &EventSubject, event: &ApiEvent) {
        self.0.send_modify(|told| told.push(event.reason.clone()));
    }
}
