//! One pool of connections to one server with one identity.
//!
//! ```text
//! Wire::open(access, pair) -> request ... request -> (replaced) -> idle connections close, watches end
//! ```
//!
//! Over HTTP/2 calls share one connection, which is pinged. A server limits concurrent requests per connection (100 by
//! default), and a watch is a request for as long as it lasts. So watches have connections of their own, as many as
//! they need. For a server or proxy that speaks only HTTP/1.1 each concurrent request has its own connection. The
//! identity of a pool never changes: a new identity means a new pool.

mod connection_slots;
mod route;
pub mod tls;

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, Uri, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use ports::ApiError;
use rustls::pki_types::ServerName;
use tokio::sync::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

use crate::kubeconfig::{Impersonation, KeyPair, ResolvedKubeconfig};
use connection_slots::ConnectionSlots;
use route::ServerConnector;
use tls::TlsSetupError;

/// An idle HTTP/2 connection is pinged this often, and closed if no answer arrives within the timeout below.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_WITHIN: Duration = Duration::from_secs(15);
/// The flow window of one stream: enough for a list of pods, without waiting for every 64 KiB of it.
const STREAM_WINDOW: u32 = 1 << 20;
/// Watches wait this long for the first one, which opens their shared connection. After that each opens its own.
const FIRST_CONNECTION_WAIT: Duration = Duration::from_secs(5);

#[derive(thiserror::Error, Debug)]
pub enum ApiTransportError {
    #[error(transparent)]
    Tls(#[from] TlsSetupError),
    #[error("the proxy can't be used")]
    Proxy(#[source] io::Error),
    #[error("{header} can't hold {value:?}")]
    Header { header: &'static str, value: String },
}

/// Connections to one server: one, if it speaks HTTP/2.
type Pool = Client<HttpsConnector<ServerConnector>, Full<Bytes>>;

pub struct ApiTransport {
    calls: Pool,
    watches: ConnectionSlots<Arc<WatchPool>>,
    server: Uri,
    headers: HeaderMap,
    replaced: CancellationToken,
}

/// The watches that share this connection.
struct WatchPool {
    pool: Pool,
    /// True after a response arrived on this connection. Before that hyper does not know that the server speaks HTTP/2
    /// and would open one connection per request.
    established: AtomicBool,
    /// Held by the watch that opens the connection.
    first: Mutex<()>,
}

impl WatchPool {
    fn new(pool: Pool) -> Self {
        Self { pool, established: AtomicBool::new(false), first: Mutex::default() }
    }

    /// Waits until a connection exists that can be shared. Returns the guard to the caller that has to open it.
    async fn wait_for_first_connection(&self) -> Option<MutexGuard<'_, ()>> {
        let known = || self.established.load(Ordering::Relaxed);
        if known() {
            return None;
        }
        let guard = tokio::time::timeout(FIRST_CONNECTION_WAIT, self.first.lock()).await.ok()?;
        (!known()).then_some(guard)
    }
}

/// A watch's slot on its connection; dropping it frees the slot.
pub struct WatchSlot {
    _place: connection_slots::ConnectionSlot,
    shared: Arc<WatchPool>,
}

impl WatchSlot {
    /// Call when a watch broke: the connection is probably gone, so the next watch must establish a new one before the
    /// others share it.
    pub fn mark_broken(&self) {
        self.shared.established.store(false, Ordering::Relaxed);
    }
}

impl Drop for ApiTransport {
    fn drop(&mut self) {
        self.replaced.cancel();
    }
}

impl ApiTransport {
    /// `pair` replaces the kubeconfig's client certificate, for example with one from an exec plugin.
    pub fn open(
        access: &ResolvedKubeconfig,
        pair: Option<&KeyPair>,
        agent: &str,
    ) -> Result<ApiTransport, ApiTransportError> {
        let config = tls::client_config(&access.trust, pair)?;
        let route =
            ServerConnector::to(&access.server, access.proxy.as_ref()).map_err(ApiTransportError::Proxy)?;
        let builder = HttpsConnectorBuilder::new().with_tls_config(config).https_or_http();
        let builder =
            match access.tls_server_name.as_deref().map(|name| ServerName::try_from(name.to_owned())) {
                Some(Ok(name)) => builder.with_server_name_resolver(FixedServerNameResolver::new(name)),
                _ => builder,
            };
        // client-go has the same switch.
        let old_only = std::env::var_os("DISABLE_HTTP2").is_some_and(|value| !value.is_empty());
        let connector = if old_only {
            builder.enable_http1().wrap_connector(route)
        } else {
            builder.enable_all_versions().wrap_connector(route)
        };
        let pool = move || pool(connector.clone());
        let headers = fixed_headers(&access.impersonate, agent)?;
        Ok(ApiTransport {
            calls: pool(),
            watches: ConnectionSlots::new(move || Arc::new(WatchPool::new(pool()))),
            server: access.server.clone(),
            headers,
            replaced: CancellationToken::new(),
        })
    }

    /// Cancelled when this pool was replaced: readers of a stream should end then.
    pub fn replaced(&self) -> CancellationToken {
        self.replaced.clone()
    }

    /// `path` with its query, from the root of the API.
    pub fn uri(&self, path: &str) -> Result<Uri, http::Error> {
        let base = self.server.path().trim_end_matches('/');
        let mut parts = self.server.clone().into_parts();
        parts.path_and_query = Some(format!("{base}{path}").parse()?);
        Ok(Uri::from_parts(parts)?)
    }

    pub async fn request(
        &self,
        request: Request<Full<Bytes>>,
        call: &str,
    ) -> Result<Response<Incoming>, ApiError> {
        self.send(&self.calls, request, call).await
    }

    /// Sends a watch request. Its slot is taken until the returned [`WatchSlot`] is dropped.
    pub async fn watch(
        &self,
        request: Request<Full<Bytes>>,
        call: &str,
    ) -> Result<(Response<Incoming>, WatchSlot), ApiError> {
        let (shared, place) = self.watches.take().await;
        let first = shared.wait_for_first_connection().await;
        let answer = self.send(&shared.pool, request, call).await;
        shared.established.store(answer.is_ok(), Ordering::Relaxed);
        drop(first);
        Ok((answer?, WatchSlot { _place: place, shared }))
    }

    async fn send(
        &self,
        pool: &Pool,
        mut request: Request<Full<Bytes>>,
        call: &str,
    ) -> Result<Response<Incoming>, ApiError> {
        for (name, value) in &self.headers {
            request.headers_mut().append(name, value.clone());
        }
        pool.request(request).await.map_err(|error| transport_failure(call, &error))
    }
}

fn pool(connector: HttpsConnector<ServerConnector>) -> Pool {
    Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(PING_EVERY)
        .http2_keep_alive_timeout(PING_WITHIN)
        .http2_keep_alive_while_idle(true)
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(4 * STREAM_WINDOW)
        .build(connector)
}

fn fixed_headers(impersonate: &Impersonation, agent: &str) -> Result<HeaderMap, ApiTransportError> {
    let mut headers = HeaderMap::new();
    let mut put = |name: &'static str, value: &str| {
        let value = HeaderValue::from_str(value)
            .map_err(|_| ApiTransportError::Header { header: name, value: value.to_owned() })?;
        headers.append(name, value);
        Ok::<(), ApiTransportError>(())
    };
    put(header::USER_AGENT.as_str(), agent)?;
    if let Some(user) = &impersonate.user {
        put("impersonate-user", user)?;
    }
    if let Some(uid) = &impersonate.uid {
        put("impersonate-uid", uid)?;
    }
    for group in &impersonate.groups {
        put("impersonate-group", group)?;
    }
    Ok(headers)
}

/// Classifies a transport failure by its cause.
pub fn transport_failure(call: &str, error: &(dyn StdError + 'static)) -> ApiError {
    match tls::find_tls_fault(error) {
        Some((fault, message)) => ApiError::Tls { call: call.to_owned(), fault, message },
        None => ApiError::Unavailable { call: call.to_owned(), message: error_chain(error) },
    }
}

/// An error and its causes in one line, each once.
pub fn error_chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        cause = error.source();
    }
    // Some errors end with a link to the manual of their library.
    if let Some(link) = text.find(": https://docs.rs/") {
        text.truncate(link);
    }
    text.replace(['\n', '\r'], " ")
}
