//! The connection to the API server, and its replacement when the kubeconfig or a certificate changes.
//!
//! ```text
//! open(kubeconfig) -> pool 1 --(certificate, authority or kubeconfig changed)--> pool 2 --> ...
//! ```
//!
//! When the kubeconfig or certificate changes, a new connection pool replaces the old one. Running calls finish on the
//! old pool. Watches are closed and resume on the new pool from their last resource version. If the kubeconfig can't be
//! read, the old pool stays in use and the problem is reported.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use ports::{ApiError, ApiRequest, ApiRequestMetrics, Span, SpanKind, Tracing, WallClock};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::call_rate::CallRate;
use crate::certificate_chain::earliest_expiry;
use crate::credential::{ApiCredentials, CredentialError, RequestCredentials};
use crate::file_watch::FileWatch;
use crate::kubeconfig::{self, KeyPair, KubeconfigError, ResolvedKubeconfig};
use crate::request::Call;
use crate::transport::{ApiTransport, ApiTransportError, WatchSlot, error_chain};

/// Bounds the path in a span, because thousands of spans may be buffered.
const MAX_PATH_BYTES: usize = 512;

#[derive(thiserror::Error, Debug)]
pub enum ConnectError {
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    #[error("kubeconfig {}: no connection can be made from it", file.display())]
    Transport {
        file: PathBuf,
        #[source]
        source: ApiTransportError,
    },
    #[error("kubeconfig {}: its credentials can't be used", file.display())]
    Credential {
        file: PathBuf,
        #[source]
        source: CredentialError,
    },
}

pub struct Connection {
    generation: ArcSwap<ConnectionGeneration>,
    /// The client certificate does not come from the kubeconfig; this is the current one.
    rotating: bool,
    rotated_certificate: ArcSwapOption<KeyPair>,
    /// Counts the connection pools.
    count: watch::Sender<u64>,
    wall: Arc<dyn WallClock>,
    /// `kubelet/v1.36.4 (linux/amd64)`
    agent: String,
    meter: OnceLock<Arc<dyn ApiRequestMetrics>>,
    rate: OnceLock<CallRate>,
    tracing: OnceLock<Tracing>,
}

struct ConnectionGeneration {
    kubeconfig: Arc<ResolvedKubeconfig>,
    credentials: Arc<ApiCredentials>,
    /// A client certificate from an exec plugin.
    plugin_certificate: Option<Arc<KeyPair>>,
    transport: ApiTransport,
    logged_expired: AtomicBool,
}

impl Connection {
    /// Reads the kubeconfig. Nothing is connected before the first call.
    pub fn open(
        kubeconfig: &Path,
        agent: &str,
        wall: Arc<dyn WallClock>,
    ) -> Result<Arc<Connection>, ConnectError> {
        Connection::with_access(kubeconfig::load(kubeconfig)?, false, agent, wall)
    }

    /// The same, but the client certificate is not read from the kubeconfig's files: it is set by
    /// [`Connection::use_certificate`], now and later. Until then calls are sent without one.
    pub fn open_rotating(
        kubeconfig: &Path,
        agent: &str,
        wall: Arc<dyn WallClock>,
    ) -> Result<Arc<Connection>, ConnectError> {
        Connection::with_access(kubeconfig::load_without_client_certificate(kubeconfig)?, true, agent, wall)
    }

    fn with_access(
        access: ResolvedKubeconfig,
        rotating: bool,
        agent: &str,
        wall: Arc<dyn WallClock>,
    ) -> Result<Arc<Connection>, ConnectError> {
        let era = ConnectionGeneration::begin(Arc::new(access), None, agent, &wall)?;
        Ok(Arc::new(Connection {
            generation: ArcSwap::from_pointee(era),
            rotating,
            rotated_certificate: ArcSwapOption::empty(),
            count: watch::channel(1).0,
            wall,
            agent: agent.to_owned(),
            meter: OnceLock::new(),
            rate: OnceLock::new(),
            tracing: OnceLock::new(),
        }))
    }

    /// Replaces the connection pool by one with this certificate.
    pub fn use_certificate(&self, pair: Arc<KeyPair>) -> Result<(), ConnectError> {
        let access = self.kubeconfig();
        let era = ConnectionGeneration::begin(access, Some(&pair), &self.agent, &self.wall)?;
        self.rotated_certificate.store(Some(pair));
        self.switch_to_generation(era);
        Ok(())
    }

    pub fn kubeconfig(&self) -> Arc<ResolvedKubeconfig> {
        self.generation.load().kubeconfig.clone()
    }

    /// Grows with every new connection pool.
    pub fn subscribe_generations(&self) -> watch::Receiver<u64> {
        self.count.subscribe()
    }

    /// Reads the kubeconfig and its files again. Returns true if something changed and the connection pool was
    /// replaced.
    pub fn reload(&self) -> Result<bool, ConnectError> {
        let old = self.generation.load_full();
        let file = &old.kubeconfig.file;
        let access = if self.rotating {
            kubeconfig::load_without_client_certificate(file)
        } else {
            kubeconfig::load(file)
        }?;
        old.credentials.reread_token_file();
        if access == *old.kubeconfig {
            return Ok(false);
        }
        let rotated = self.rotated_certificate.load_full();
        self.switch_to_generation(ConnectionGeneration::begin(
            Arc::new(access),
            rotated.as_deref(),
            &self.agent,
            &self.wall,
        )?);
        Ok(true)
    }

    /// Replaces the connection pool by a new one with the same identity.
    pub fn reset(&self) -> Result<(), ConnectError> {
        let old = self.generation.load_full();
        self.switch_to_generation(old.with_new_connections(
            old.plugin_certificate.clone(),
            self.rotated_certificate.load_full(),
            &self.agent,
        )?);
        Ok(())
    }

    fn switch_to_generation(&self, era: ConnectionGeneration) {
        let old = self.generation.swap(Arc::new(era));
        // Running calls still hold the old pool, so watches can't wait for it to be dropped.
        old.transport.replaced().cancel();
        self.count.send_modify(|count| *count += 1);
    }

    /// Watches the files that the identity was read from, until cancelled. Changes are reported by inotify; the files
    /// are also checked once a minute in case inotify fails.
    pub async fn watch_credential_files(&self, cancel: CancellationToken) {
        let mut watch = FileWatch::new();
        loop {
            let era = self.generation.load_full();
            let mut files = era.kubeconfig.files.clone();
            files.extend(era.credentials.file());
            drop(era);
            tokio::select! {
                () = cancel.cancelled() => return,
                () = watch.changed(&files) => {}
            }
            match self.reload() {
                Ok(true) => tracing::info!("the API server credentials changed: reconnecting"),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!("keeping the previous API server credentials: {}", error_chain(&error));
                }
            }
        }
    }

    /// Sets the meter that counts requests from now on. A second call has no effect.
    pub fn set_meter(&self, meter: Arc<dyn ApiRequestMetrics>) {
        let _ = self.meter.set(meter);
    }

    /// Limits the calls from now on. Zero per second: no limit. A second call has no effect.
    pub fn set_call_rate(&self, per_second: u32, burst: u32) {
        if let Some(rate) = CallRate::new(per_second, burst) {
            let _ = self.rate.set(rate);
        }
    }

    /// Ends when one more call may be sent.
    pub(crate) async fn wait_for_turn(&self) {
        if let Some(rate) = self.rate.get() {
            rate.wait().await;
        }
    }

    /// Sets the tracing of requests from now on. A second call has no effect.
    pub fn set_tracing(&self, tracing: Tracing) {
        let _ = self.tracing.set(tracing);
    }

    fn record_request(
        &self,
        era: &ConnectionGeneration,
        call: &Call,
        took: Duration,
        answer: Option<&Response<Incoming>>,
    ) {
        let Some(meter) = self.meter.get() else { return };
        let length = answer.and_then(|answer| answer.headers().get(http::header::CONTENT_LENGTH));
        meter.request(&ApiRequest {
            host: era.kubeconfig.server.authority().map_or("", |authority| authority.as_str()),
            method: call.method.as_str(),
            code: answer.map(|answer| answer.status().as_u16()),
            took,
            sent_bytes: call.body.as_ref().map_or(0, |(_, body)| body.len() as u64),
            received_bytes: length.and_then(|length| length.to_str().ok()?.parse().ok()),
        });
    }

    /// Sends one request. Returns the server's response, with its body not yet read.
    pub(crate) async fn send(&self, call: &Call) -> Result<Sent, ApiError> {
        self.send_on(call, PoolChoice::Calls).await
    }

    /// The same for a watch, whose response has no fixed end.
    pub(crate) async fn send_watch(&self, call: &Call) -> Result<Sent, ApiError> {
        self.send_on(call, PoolChoice::Watches).await
    }

    /// Runs in its own span, which ends with the head of the response.
    async fn send_on(&self, call: &Call, way: PoolChoice) -> Result<Sent, ApiError> {
        let Some(tracing) = self.tracing.get().filter(|tracing| tracing.is_on()) else {
            return self.send_untraced(call, way).await;
        };
        let failed = |sent: &Result<Sent, ApiError>| match sent {
            Ok(sent) => sent.answer.status().is_server_error().then(|| sent.answer.status().to_string()),
            Err(error) => Some(error.to_string()),
        };
        tracing.in_span(|| self.span(call), self.send_untraced(call, way), failed).await
    }

    fn span(&self, call: &Call) -> Span {
        let server = self.kubeconfig().server.authority().map(ToString::to_string).unwrap_or_default();
        let path = call.path.split('?').next().unwrap_or_default();
        Span {
            name: format!("HTTP {}", call.method).into(),
            kind: SpanKind::Client,
            attributes: vec![
                ("http.request.method", call.method.to_string()),
                ("server.address", server),
                ("url.path", path.chars().take(MAX_PATH_BYTES).collect()),
            ],
        }
    }

    async fn send_untraced(&self, call: &Call, way: PoolChoice) -> Result<Sent, ApiError> {
        let name = call.name();
        let (era, shown) = self.credential(&name).await?;
        let request = request(&era.transport, call, &shown)
            .map_err(|error| ApiError::Invalid { call: name.clone(), message: error.to_string() })?;
        let begun = Instant::now();
        let answer = match way {
            PoolChoice::Calls => era.transport.request(request, &name).await.map(|answer| (answer, None)),
            PoolChoice::Watches => {
                era.transport.watch(request, &name).await.map(|(answer, place)| (answer, Some(place)))
            }
        };
        self.record_request(&era, call, begun.elapsed(), answer.as_ref().map(|(answer, _)| answer).ok());
        let (answer, place) = answer?;
        if answer.status() == StatusCode::UNAUTHORIZED {
            era.credentials.invalidate(&shown).await;
            self.log_if_expired(&era, &shown);
        }
        Ok(Sent { answer, slot: place, replaced: era.transport.replaced() })
    }

    /// The server's Unauthorized does not say why. An expired certificate may be the reason, so it is logged, once per
    /// connection pool.
    fn log_if_expired(&self, era: &ConnectionGeneration, shown: &RequestCredentials) {
        let rotated = self.rotated_certificate.load_full();
        let pair = shown.pair.as_deref().or(rotated.as_deref()).or(era.kubeconfig.certificate.as_ref());
        let end = pair.and_then(|pair| earliest_expiry(&pair.chain)).filter(|end| *end < self.wall.wall());
        if let Some(end) = end
            && !era.logged_expired.swap(true, Ordering::Relaxed)
        {
            let (file, end) = (era.kubeconfig.file.display(), end.timestamp());
            tracing::error!(
                "kubeconfig {file}: its client certificate expired at {end}, and the API server refuses it"
            );
        }
    }

    async fn credential(
        &self,
        call: &str,
    ) -> Result<(Arc<ConnectionGeneration>, RequestCredentials), ApiError> {
        let failed = |message: String| ApiError::Credentials { call: call.to_owned(), message };
        let era = self.generation.load_full();
        let shown = era.credentials.current().await.map_err(|error| failed(error_chain(&error)))?;
        if shown.pair == era.plugin_certificate {
            return Ok((era, shown));
        }
        let next = era
            .with_new_connections(shown.pair.clone(), self.rotated_certificate.load_full(), &self.agent)
            .map_err(|error| failed(error_chain(&error)))?;
        self.switch_to_generation(next);
        Ok((self.generation.load_full(), shown))
    }
}

/// The connection that a request uses.
#[derive(Clone, Copy)]
enum PoolChoice {
    Calls,
    Watches,
}

/// A response, and the token that is cancelled when its connection pool is replaced.
pub(crate) struct Sent {
    pub answer: Response<Incoming>,
    /// Only for a watch: released when the response is no longer read.
    pub slot: Option<WatchSlot>,
    pub replaced: CancellationToken,
}

impl ConnectionGeneration {
    fn begin(
        access: Arc<ResolvedKubeconfig>,
        rotated: Option<&KeyPair>,
        agent: &str,
        wall: &Arc<dyn WallClock>,
    ) -> Result<ConnectionGeneration, ConnectError> {
        let file = || access.file.clone();
        let keeper = ApiCredentials::new(&access.credential, wall.clone())
            .map_err(|source| ConnectError::Credential { file: file(), source })?;
        let wire = ApiTransport::open(&access, rotated.or(access.certificate.as_ref()), agent)
            .map_err(|source| ConnectError::Transport { file: file(), source })?;
        Ok(ConnectionGeneration {
            kubeconfig: access,
            credentials: Arc::new(keeper),
            plugin_certificate: None,
            transport: wire,
            logged_expired: AtomicBool::new(false),
        })
    }

    /// The same kubeconfig with new connections.
    fn with_new_connections(
        &self,
        given: Option<Arc<KeyPair>>,
        rotated: Option<Arc<KeyPair>>,
        agent: &str,
    ) -> Result<ConnectionGeneration, ConnectError> {
        let access = self.kubeconfig.clone();
        let pair = given.as_deref().or(rotated.as_deref()).or(access.certificate.as_ref());
        let wire = ApiTransport::open(&access, pair, agent)
            .map_err(|source| ConnectError::Transport { file: access.file.clone(), source })?;
        Ok(ConnectionGeneration {
            credentials: self.credentials.clone(),
            plugin_certificate: given,
            transport: wire,
            kubeconfig: access,
            logged_expired: AtomicBool::new(false),
        })
    }
}

fn request(
    wire: &ApiTransport,
    call: &Call,
    shown: &RequestCredentials,
) -> Result<Request<Full<Bytes>>, http::Error> {
    let mut request = Request::builder()
        .method(call.method.clone())
        .uri(wire.uri(&call.path)?)
        .header(ACCEPT, HeaderValue::from_static("application/json"));
    if let Some(trace) = Tracing::current() {
        request = request.header("traceparent", trace.traceparent());
    }
    if let Some(authorization) = &shown.authorization {
        request = request.header(AUTHORIZATION, authorization.clone());
    }
    match &call.body {
        None => request.body(Full::default()),
        Some((kind, body)) => {
            request.header(CONTENT_TYPE, HeaderValue::from_static(kind)).body(Full::new(body.clone()))
        }
    }
}
