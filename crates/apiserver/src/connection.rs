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
use ports::{ApiError, ApiMeter, ApiRequest, Span, SpanKind, Tracing, WallClock};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::certificates::earliest_end;
use crate::credential::{CredentialError, Keeper, Shown};
use crate::file_watch::FileWatch;
use crate::kubeconfig::{self, Access, KeyPair, KubeconfigError};
use crate::request::Call;
use crate::transport::{Place, Wire, WireError, causes};

/// Thousands of spans wait for their collector at a time.
const LONGEST_PATH: usize = 512;

#[derive(thiserror::Error, Debug)]
pub enum ConnectError {
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    #[error("kubeconfig {}: no connection can be made from it", file.display())]
    Wire {
        file: PathBuf,
        #[source]
        source: WireError,
    },
    #[error("kubeconfig {}: its credentials can't be used", file.display())]
    Credential {
        file: PathBuf,
        #[source]
        source: CredentialError,
    },
}

pub struct Connection {
    era: ArcSwap<Era>,
    /// The client certificate is kept elsewhere, and this is the current one.
    rotating: bool,
    rotated: ArcSwapOption<KeyPair>,
    /// Counts eras.
    count: watch::Sender<u64>,
    wall: Arc<dyn WallClock>,
    /// `kubelet/v1.36.4 (linux/amd64)`
    agent: String,
    meter: OnceLock<Arc<dyn ApiMeter>>,
    tracing: OnceLock<Tracing>,
}

struct Era {
    access: Arc<Access>,
    keeper: Arc<Keeper>,
    /// A certificate that came from a plugin.
    given: Option<Arc<KeyPair>>,
    wire: Wire,
    told_expired: AtomicBool,
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
        Connection::with_access(kubeconfig::load_rotating(kubeconfig)?, true, agent, wall)
    }

    fn with_access(
        access: Access,
        rotating: bool,
        agent: &str,
        wall: Arc<dyn WallClock>,
    ) -> Result<Arc<Connection>, ConnectError> {
        let era = Era::begin(Arc::new(access), None, agent, &wall)?;
        Ok(Arc::new(Connection {
            era: ArcSwap::from_pointee(era),
            rotating,
            rotated: ArcSwapOption::empty(),
            count: watch::channel(1).0,
            wall,
            agent: agent.to_owned(),
            meter: OnceLock::new(),
            tracing: OnceLock::new(),
        }))
    }

    /// Connects anew with this certificate.
    pub fn use_certificate(&self, pair: Arc<KeyPair>) -> Result<(), ConnectError> {
        let access = self.access();
        let era = Era::begin(access, Some(&pair), &self.agent, &self.wall)?;
        self.rotated.store(Some(pair));
        self.enter(era);
        Ok(())
    }

    pub fn access(&self) -> Arc<Access> {
        self.era.load().access.clone()
    }

    /// Counts up with every new era.
    pub fn eras(&self) -> watch::Receiver<u64> {
        self.count.subscribe()
    }

    /// Reads the kubeconfig and its files again. True when something changed and old connections were left.
    pub fn reload(&self) -> Result<bool, ConnectError> {
        let old = self.era.load_full();
        let file = &old.access.file;
        let access = if self.rotating { kubeconfig::load_rotating(file) } else { kubeconfig::load(file) }?;
        old.keeper.look_again();
        if access == *old.access {
            return Ok(false);
        }
        let rotated = self.rotated.load_full();
        self.enter(Era::begin(Arc::new(access), rotated.as_deref(), &self.agent, &self.wall)?);
        Ok(true)
    }

    /// Leaves all connections, for new ones with the same identity.
    pub fn reset(&self) -> Result<(), ConnectError> {
        let old = self.era.load_full();
        self.enter(old.again(old.given.clone(), self.rotated.load_full(), &self.agent)?);
        Ok(())
    }

    fn enter(&self, era: Era) {
        let old = self.era.swap(Arc::new(era));
        // Calls that still run there hold it; watches must not wait for them.
        old.wire.gone().cancel();
        self.count.send_modify(|count| *count += 1);
    }

    /// Follows the files that the identity came from, until cancelled. Changes are told by the system, and looked for
    /// once a minute in case that it can't.
    pub async fn follow_files(&self, cancel: CancellationToken) {
        let mut watch = FileWatch::new();
        loop {
            let era = self.era.load_full();
            let mut files = era.access.files.clone();
            files.extend(era.keeper.file());
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
                        causes(&error)
                    );
                }
            }
        }
    }

    /// Who counts the requests from now on. The first one stays.
    pub fn count_with(&self, meter: Arc<dyn ApiMeter>) {
        let _ = self.meter.set(meter);
    }

    /// What requests are put under from now on. The first one stays.
    pub fn trace_with(&self, tracing: Tracing) {
        let _ = self.tracing.set(tracing);
    }

    fn tell(&self, era: &Era, call: &Call, took: Duration, answer: Option<&Response<Incoming>>) {
        let Some(meter) = self.meter.get() else { return };
        let length = answer.and_then(|answer| answer.headers().get(http::header::CONTENT_LENGTH));
        meter.request(&ApiRequest {
            host: era.access.server.authority().map_or("", |authority| authority.as_str()),
            method: call.method.as_str(),
            code: answer.map(|answer| answer.status().as_u16()),
            took,
            sent_bytes: call.body.as_ref().map_or(0, |(_, body)| body.len() as u64),
            received_bytes: length.and_then(|length| length.to_str().ok()?.parse().ok()),
        });
    }

    /// Sends one request. The answer is whatever the server said, with its body still to come.
    pub(crate) async fn send(&self, call: &Call) -> Result<Sent, ApiError> {
        self.send_on(call, Way::Shared).await
    }

    /// The same for an answer that goes on and on.
    pub(crate) async fn send_watch(&self, call: &Call) -> Result<Sent, ApiError> {
        self.send_on(call, Way::OwnPlace).await
    }

    /// Under a span of its own, which ends with the head of the answer.
    async fn send_on(&self, call: &Call, way: Way) -> Result<Sent, ApiError> {
        let Some(tracing) = self.tracing.get().filter(|tracing| tracing.is_on()) else {
            return self.send_untraced(call, way).await;
        };
        let failed = |sent: &Result<Sent, ApiError>| match sent {
            Ok(sent) => sent.answer.status().is_server_error().then(|| sent.answer.status().to_string()),
            Err(error) => Some(error.to_string()),
        };
        tracing.under(|| self.span(call), self.send_untraced(call, way), failed).await
    }

    fn span(&self, call: &Call) -> Span {
        let server = self.access().server.authority().map(ToString::to_string).unwrap_or_default();
        let path = call.path.split('?').next().unwrap_or_default();
        Span {
            name: format!("HTTP {}", call.method).into(),
            kind: SpanKind::Client,
            attributes: vec![
                ("http.request.method", call.method.to_string()),
                ("server.address", server),
                ("url.path", path.chars().take(LONGEST_PATH).collect()),
            ],
        }
    }

    async fn send_untraced(&self, call: &Call, way: Way) -> Result<Sent, ApiError> {
        let name = call.name();
        let (era, shown) = self.credential(&name).await?;
        let request = request(&era.wire, call, &shown)
            .map_err(|error| ApiError::Invalid { call: name.clone(), message: error.to_string() })?;
        let begun = Instant::now();
        let answer = match way {
            Way::Shared => era.wire.request(request, &name).await.map(|answer| (answer, None)),
            Way::OwnPlace => {
                era.wire.watch(request, &name).await.map(|(answer, place)| (answer, Some(place)))
            }
        };
        self.tell(&era, call, begun.elapsed(), answer.as_ref().map(|(answer, _)| answer).ok());
        let (answer, place) = answer?;
        if answer.status() == StatusCode::UNAUTHORIZED {
            era.keeper.refused(&shown).await;
            self.tell_if_expired(&era, &shown);
        }
        Ok(Sent { answer, place, gone: era.wire.gone() })
    }

    /// A server only says that it does not know us. This may be why, and is told once in an era.
    fn tell_if_expired(&self, era: &Era, shown: &Shown) {
        let rotated = self.rotated.load_full();
        let pair = shown.pair.as_deref().or(rotated.as_deref()).or(era.access.certificate.as_ref());
        let end = pair.and_then(|pair| earliest_end(&pair.chain)).filter(|end| *end < self.wall.wall());
        if let Some(end) = end
            && !era.told_expired.swap(true, Ordering::Relaxed)
        {
            let (file, end) = (era.access.file.display(), end.timestamp());
            tracing::error!(
                "kubeconfig {file}: its client certificate expired at {end}, and the API server refuses it"
            );
        }
    }

    async fn credential(&self, call: &str) -> Result<(Arc<Era>, Shown), ApiError> {
        let failed = |message: String| ApiError::Credentials { call: call.to_owned(), message };
        let era = self.era.load_full();
        let shown = era.keeper.show().await.map_err(|error| failed(causes(&error)))?;
        if shown.pair == era.given {
            return Ok((era, shown));
        }
        let next = era
            .again(shown.pair.clone(), self.rotated.load_full(), &self.agent)
            .map_err(|error| failed(causes(&error)))?;
        self.enter(next);
        Ok((self.era.load_full(), shown))
    }
}

/// On which connection a request goes.
#[derive(Clone, Copy)]
enum Way {
    Shared,
    OwnPlace,
}

/// An answer, and the end of the era that it belongs to.
pub(crate) struct Sent {
    pub answer: Response<Incoming>,
    /// Of a watch: let go when the answer is not read any more.
    pub place: Option<Place>,
    pub gone: CancellationToken,
}

impl Era {
    fn begin(
        access: Arc<Access>,
        rotated: Option<&KeyPair>,
        agent: &str,
        wall: &Arc<dyn WallClock>,
    ) -> Result<Era, ConnectError> {
        let file = || access.file.clone();
        let keeper = Keeper::new(&access.credential, wall.clone())
            .map_err(|source| ConnectError::Credential { file: file(), source })?;
        let wire = Wire::open(&access, rotated.or(access.certificate.as_ref()), agent)
            .map_err(|source| ConnectError::Wire { file: file(), source })?;
        Ok(Era { access, keeper: Arc::new(keeper), given: None, wire, told_expired: AtomicBool::new(false) })
    }

    /// The same kubeconfig with new connections.
    fn again(
        &self,
        given: Option<Arc<KeyPair>>,
        rotated: Option<Arc<KeyPair>>,
        agent: &str,
    ) -> Result<Era, ConnectError> {
        let access = self.access.clone();
        let pair = given.as_deref().or(rotated.as_deref()).or(access.certificate.as_ref());
        let wire = Wire::open(&access, pair, agent)
            .map_err(|source| ConnectError::Wire { file: access.file.clone(), source })?;
        Ok(Era { keeper: self.keeper.clone(), given, wire, access, told_expired: AtomicBool::new(false) })
    }
}

fn request(wire: &Wire, call: &Call, shown: &Shown) -> Result<Request<Full<Bytes>>, http::Error> {
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
