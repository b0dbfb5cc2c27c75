//! The connection to the API server, whatever becomes of it.
//!
//! ```text
//! open(kubeconfig) -> Era 1 --(certificate, authority or kubeconfig changed)--> Era 2 --> ...
//! ```
//!
//! An era is one reading of the kubeconfig with one pool of connections. A call runs to its end in the era it began
//! in; watches are ended with their era, and begin again in the next where they were. A kubeconfig that became
//! unreadable changes nothing: the old era goes on, and the problem is told.

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

use crate::certificates::earliest_expiry;
use crate::credential::{ApiCredentials, CredentialError, RequestCredentials};
use crate::file_watch::FileWatch;
use crate::kubeconfig::{self, KeyPair, KubeconfigError, ResolvedKubeconfig};
use crate::request::Call;
use crate::transport::{ApiTransport, ApiTransportError, WatchSlot, error_chain};

/// Thousands of spans wait for their collector at a time.
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
    /// The client certificate is kept elsewhere, and this is the current one.
    rotating: bool,
    rotated_certificate: ArcSwapOption<KeyPair>,
    /// Counts eras.
    count: watch::Sender<u64>,
    wall: Arc<dyn WallClock>,
    /// `kubelet/v1.36.4 (linux/amd64)`
    agent: String,
    meter: OnceLock<Arc<dyn ApiRequestMetrics>>,
    tracing: OnceLock<Tracing>,
}

struct ConnectionGeneration {
    kubeconfig: Arc<ResolvedKubeconfig>,
    credentials: Arc<ApiCredentials>,
    /// A certificate that came from a plugin.
    plugin_certificate: Option<Arc<KeyPair>>,
    transport: ApiTransport,
    logged_expired: AtomicBool,
}

impl Connection {
    /// Reads the kubeconfig; nothing is connected before the first call.
    pub fn open(
        kubeconfig: &Path,
        agent: &str,
        wall: Arc<dyn WallClock>,
    ) -> Result<Arc<Connection>, ConnectError> {
        Connection::with_access(kubeconfig::load(kubeconfig)?, false, agent, wall)
    }

    /// The same with a client certificate that is not read from the kubeconfig's files: it comes by
    /// [`Connection::use_certificate`], now and later. Until then calls go without one.
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
            tracing: OnceLock::new(),
        }))
    }

    /// Connects anew with this certificate.
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

    /// Counts up with every new era.
    pub fn subscribe_generations(&self) -> watch::Receiver<u64> {
        self.count.subscribe()
    }

    /// Reads the kubeconfig and its files again. True when something changed and old connections were left.
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

    /// Leaves all connections, for new ones with the same identity.
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
        // Calls that still run there hold it; watches must not wait for them.
        old.transport.replaced().cancel();
        self.count.send_modify(|count| *count += 1);
    }

    /// Follows the files that the identity came from, until cancelled. Changes are told by the system, and looked for
    /// once a minute in case that it can't.
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
                Ok(true) => tracing::info!("the identity towards the API server changed: connecting anew"),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(
                        "going on with the old identity towards the API server: {}",
                        error_chain(&error)
                    );
                }
            }
        }
    }

    /// Who counts the requests from now on. The first one stays.
    pub fn set_meter(&self, meter: Arc<dyn ApiRequestMetrics>) {
        let _ = self.meter.set(meter);
    }

    /// What requests are put under from now on. The first one stays.
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

    /// Sends one request. The answer is whatever the server said, with its body still to come.
    pub(crate) async fn send(&self, call: &Call) -> Result<Sent, ApiError> {
        self.send_on(call, PoolChoice::Calls).await
    }

    /// The same for an answer that goes on and on.
    pub(crate) async fn send_watch(&self, call: &Call) -> Result<Sent, ApiError> {
        self.send_on(call, PoolChoice::Watches).await
    }

    /// Under a span of its own, which ends with the head of the answer.
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

    /// A server only says that it does not know us. This may be why, and is told once in an era.
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

/// On which connection a request goes.
#[derive(Clone, Copy)]
enum PoolChoice {
    Calls,
    Watches,
}

/// An answer, and the end of the era that it belongs to.
pub(crate) struct Sent {
    pub answer: Response<Incoming>,
    /// Of a watch: let go when the answer is not read any more.
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
