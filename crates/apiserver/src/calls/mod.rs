//! The API calls of a kubelet, with their types. Each has a deadline and is sent exactly once: the caller decides
//! whether and when to retry.

mod cluster;
mod identity;
mod node;
mod pods;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use model::codec::CodecError;
use ports::ApiError;

use crate::connection::Connection;
use crate::json::WatchLineError;
use crate::object_list::ObjectList;
use crate::request::{Call, JSON, STRATEGIC_MERGE, escaped};
use crate::watch::{self, Watch, WatchStart};
use crate::watch_event::WatchEvent;
use crate::watch_progress::WatchStatuses;

pub use pods::DeletePodOptions;

/// The default deadline of a call.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// The freshness of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// From the server's watch cache: cheap, but may be outdated.
    Cached,
    /// The current state.
    Latest,
}

/// All calls over one connection. Cheap to clone.
#[derive(Clone)]
pub struct Api {
    connection: Arc<Connection>,
    deadline: Duration,
    watches: WatchStatuses,
    /// Calls do not wait for their turn.
    unlimited: bool,
}

/// One kind of object in the API.
struct Resource {
    /// `/api/v1`
    group: &'static str,
    /// `pods`
    plural: &'static str,
}

impl Resource {
    const fn new(group: &'static str, plural: &'static str) -> Self {
        Self { group, plural }
    }

    /// An empty namespace means all namespaces, or a kind without namespaces.
    fn collection_path(&self, namespace: &str) -> String {
        let Resource { group, plural } = self;
        match namespace {
            "" => format!("{group}/{plural}"),
            namespace => format!("{group}/namespaces/{}/{plural}", escaped(namespace)),
        }
    }

    fn object_path(&self, namespace: &str, name: &str) -> String {
        format!("{}/{}", self.collection_path(namespace), escaped(name))
    }
}

fn namespaced_name(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}

type Decoder<T> = fn(&[u8]) -> Result<T, CodecError>;

impl Api {
    pub fn new(connection: Arc<Connection>) -> Api {
        Api { connection, deadline: DEADLINE, watches: WatchStatuses::default(), unlimited: false }
    }

    /// The same calls with another deadline. It bounds the whole call; for watches, the time until they start.
    pub fn with_deadline(&self, deadline: Duration) -> Api {
        Api { deadline, ..self.clone() }
    }

    /// The same calls without the limit on calls per second.
    pub(crate) fn unlimited(&self) -> Api {
        Api { unlimited: true, ..self.clone() }
    }

    pub fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    pub(crate) fn watch_statuses(&self) -> &WatchStatuses {
        &self.watches
    }

    /// Reads `/healthz`, `/readyz`, `/livez` or `/version`.
    pub async fn get_raw(&self, path: &'static str) -> Result<Bytes, ApiError> {
        Call::get("get", path.to_owned(), path).run(&self.connection, self.deadline).await
    }

    async fn run<T>(&self, mut call: Call, decode: Decoder<T>) -> Result<T, ApiError> {
        call.unlimited = self.unlimited;
        let name = call.name();
        let answer = call.run(&self.connection, self.deadline).await?;
        decode(&answer).map_err(|error| ApiError::Decode { call: name, message: error.to_string() })
    }

    async fn get<T>(
        &self,
        what: &'static str,
        resource: &Resource,
        (namespace, name): (&str, &str),
        decode: Decoder<T>,
    ) -> Result<T, ApiError> {
        let call = Call::get(what, resource.object_path(namespace, name), namespaced_name(namespace, name));
        self.run(call, decode).await
    }

    async fn create<T>(
        &self,
        what: &'static str,
        path: String,
        object: String,
        body: Vec<u8>,
        decode: Decoder<T>,
    ) -> Result<T, ApiError> {
        self.run(Call::new(what, Method::POST, path, object).body(JSON, body), decode).await
    }

    async fn patch<T>(
        &self,
        what: &'static str,
        path: String,
        object: String,
        patch: &serde_json::Value,
        decode: Decoder<T>,
    ) -> Result<T, ApiError> {
        let body = crate::json::write_value(patch);
        self.run(Call::new(what, Method::PATCH, path, object).body(STRATEGIC_MERGE, body), decode).await
    }

    async fn list<T>(
        &self,
        what: &'static str,
        path: String,
        selector: &str,
        freshness: Freshness,
        decode: Decoder<ObjectList<T>>,
    ) -> Result<ObjectList<T>, ApiError> {
        let version = if freshness == Freshness::Cached { "0" } else { "" };
        let query = [("fieldSelector", selector), ("resourceVersion", version)];
        self.run(Call::get(what, path, selector).query(&query), decode).await
    }

    async fn watch<T>(
        &self,
        what: &'static str,
        path: String,
        selector: &str,
        since: WatchStart<'_>,
        decode: fn(&[u8]) -> Result<WatchEvent<T>, WatchLineError>,
    ) -> Result<Watch<T>, ApiError> {
        let call = Call::get(what, path, selector).query(&[("fieldSelector", selector)]);
        watch::open(&self.connection, call, since, self.deadline, decode).await
    }
}
