//! Everything behind the secure port, after [`crate::access`] let the request through.
//!
//! ```text
//!   /exec /attach /portForward ─> target ─> CRI: a URL ─> proxy (upgrade on both sides) ─> splice, translate or tunnel
//!   /containerLogs ─> which instance, by the pod's status ─> its file
//!   /pods /runningpods /metrics ... ─> the same answers as the read-only port gives
//! ```

mod checkpoint;
mod container_logs;
mod debug;
mod exec;
pub(crate) mod log_query;
mod node_log_files;
mod node_logs;
pub(crate) mod node_query;
mod port_forward;
mod profiling;
mod proxy;
pub(crate) mod query;
pub(crate) mod request_spans;
mod spdy;
mod splice;
mod target;
mod translate;
mod tunnel;
mod websocket;
mod zpages;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::middleware;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{any, get, post, put};
use http::{Method, StatusCode, Uri, header};
use ports::{ContainerLogs, CpuProfiler, Runtime, Tracing, WallClock};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

pub use self::proxy::StreamingTls;
use self::request_spans::{CallerTrust, with_tracing};
use crate::Endpoints;
use crate::access::{Access, authorize_request};
use crate::endpoints::with_not_found_fallback;
use crate::health::plain;
use crate::inflight::count_requests;

/// The configuration of the API.
#[derive(Clone, Debug)]
pub struct ApiSettings {
    /// `enableDebuggingHandlers`
    pub debugging: bool,
    /// `enableSystemLogHandler`
    pub node_logs: bool,
    /// `enableSystemLogQuery`
    pub node_log_query: bool,
    /// `enableDebugFlagsHandler`
    pub debug_flags: bool,
    /// `enableProfilingHandler`
    pub profiling: bool,
    /// Gate `PodLogsQuerySplitStreams`.
    pub split_log_streams: bool,
    /// Gate `ContainerCheckpoint`.
    pub checkpoint: bool,
    /// Gate `ComponentFlagz`.
    pub flagz: bool,
    /// Gate `ComponentStatusz`.
    pub statusz: bool,
    /// Gate `ExtendWebSocketsToKubelet`.
    pub extended_websockets: bool,
    /// `streamingConnectionIdleTimeout`; zero is no limit.
    pub stream_idle: Duration,
    /// Where `checkpoints/` is.
    pub root_dir: PathBuf,
    /// What `/logs/` shows.
    pub node_log_dir: PathBuf,
    /// What reads the journal.
    pub journal_program: PathBuf,
    /// The effective `KubeletConfiguration`.
    pub configz: Value,
    /// Flags by name, as `/flagz` lists them.
    pub flags: BTreeMap<String, String>,
}

/// Changes how much is logged.
pub type SetVerbosity = Arc<dyn Fn(u32) + Send + Sync>;

/// The secure port's answers, and what they are made from.
pub struct SecureApi {
    pub endpoints: Endpoints,
    pub runtime: Arc<dyn Runtime>,
    pub logs: Arc<dyn ContainerLogs>,
    pub wall: Arc<dyn WallClock>,
    pub settings: ApiSettings,
    pub set_verbosity: SetVerbosity,
    pub profiler: Arc<dyn CpuProfiler>,
    /// What requests are put under.
    pub tracing: Tracing,
    /// For a runtime that streams over TLS.
    pub streaming_tls: StreamingTls,
    /// Ends streams that outlive their connection's request.
    pub stop: CancellationToken,
}

type Api = axum::extract::State<Arc<SecureApi>>;

impl SecureApi {
    /// All routes, behind the two questions of `access`.
    pub fn routes(self, access: Arc<Access>) -> Router {
        let metrics = self.endpoints.metrics.clone();
        let common = self.endpoints.common();
        let tracing = self.tracing.clone();
        let debugging = self.settings.debugging;
        let router = match debugging {
            true => common
                .merge(self.endpoints.running_pods())
                .merge(debugging_routes(&self.settings).with_state(Arc::new(self))),
            false => common.merge(disabled_routes()),
        };
        let router = match debugging {
            true => with_not_found_fallback(router).fallback(respond_not_found),
            false => with_not_found_fallback(router),
        };
        let router = with_tracing(router, tracing, CallerTrust::Authenticated);
        let router = router.layer(middleware::from_fn_with_state(access, authorize_request));
        count_requests(router, metrics, "readwrite")
    }
}

fn debugging_routes(settings: &ApiSettings) -> Router<Arc<SecureApi>> {
    let routes = Router::new()
        .route("/exec/{namespace}/{pod}/{container}", get(exec::exec).post(exec::exec))
        .route("/exec/{namespace}/{pod}/{uid}/{container}", get(exec::exec).post(exec::exec))
        .route("/attach/{namespace}/{pod}/{container}", get(exec::attach).post(exec::attach))
        .route("/attach/{namespace}/{pod}/{uid}/{container}", get(exec::attach).post(exec::attach))
        .route("/run/{namespace}/{pod}/{container}", post(exec::run))
        .route("/run/{namespace}/{pod}/{uid}/{container}", post(exec::run))
        .route("/portForward/{namespace}/{pod}", get(port_forward::forward).post(port_forward::forward))
        .route("/portForward/{namespace}/{pod}/{uid}", get(port_forward::forward).post(port_forward::forward))
        .route("/containerLogs/{namespace}/{pod}/{container}", get(container_logs::read))
        // Any method will do, as with the kubelet.
        .route("/configz", any(zpages::configz))
        .route("/debug/why/{namespace}/{pod}", get(debug::why));
    let routes = gated_routes(settings, routes);
    let routes = match settings.profiling {
        true => routes
            .route("/debug/pprof/", get(profiling::index))
            .route("/debug/pprof/{name}", get(profiling::read)),
        false => routes
            .route("/debug/pprof/", any(async || disabled("profiling endpoint is disabled.\n")))
            .route("/debug/pprof/{*rest}", any(async || disabled("profiling endpoint is disabled.\n"))),
    };
    let routes = match settings.debug_flags {
        true => routes.route("/debug/flags/v", put(debug::set_verbosity).fallback(debug::only_put)),
        false => routes.route("/debug/flags/v", any(async || disabled("flags endpoint is disabled.\n"))),
    };
    match settings.node_logs {
        true => {
            routes.route("/logs/", get(node_logs::read_root)).route("/logs/{*path}", get(node_logs::read))
        }
        false => routes
            .route("/logs/", any(async || disabled("logs endpoint is disabled.\n")))
            .route("/logs/{*path}", any(async || disabled("logs endpoint is disabled.\n"))),
    }
}

/// With its gate off, a path is not there at all.
fn gated_routes(settings: &ApiSettings, mut routes: Router<Arc<SecureApi>>) -> Router<Arc<SecureApi>> {
    if settings.flagz {
        routes = routes.route("/flagz", any(zpages::flagz));
    }
    if settings.statusz {
        routes = routes.route("/statusz", any(zpages::statusz));
    }
    let absent = || any(async || plain(StatusCode::NOT_FOUND, "404 page not found\n".into()));
    match settings.checkpoint {
        true => routes.route("/checkpoint/{namespace}/{pod}/{container}", post(checkpoint::make)),
        false => routes.route("/checkpoint", absent()).route("/checkpoint/{*rest}", absent()),
    }
}

/// The paths of debug endpoints, when these are disabled.
pub(crate) fn disabled_routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    const PATHS: [&str; 8] =
        ["run", "exec", "attach", "portForward", "containerLogs", "runningpods", "debug/pprof", "logs"];
    let mut routes = Router::new();
    for path in PATHS {
        let answer = || any(async || disabled("Debug endpoints are disabled.\n"));
        routes = routes.route(&format!("/{path}/"), answer()).route(&format!("/{path}/{{*rest}}"), answer());
    }
    routes
}

/// Where the kubelet has nothing: the names of some directories lead into them, and others say it in their own words.
async fn respond_not_found(method: Method, uri: Uri) -> Response {
    const DIRECTORIES: [&str; 5] = ["/checkpoint", "/debug/pprof", "/logs", "/runningpods", "/stats"];
    const SERVICES: [&str; 7] =
        ["attach", "checkpoint", "containerLogs", "exec", "portForward", "run", "stats"];
    if DIRECTORIES.contains(&uri.path()) {
        let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        let place = format!("{}/{query}", uri.path());
        let page = format!("<a href=\"{}/\">Temporary Redirect</a>.\n\n", uri.path());
        let page = if method == Method::GET { Html(page).into_response() } else { ().into_response() };
        return (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, place)], page).into_response();
    }
    match SERVICES.iter().any(|name| uri.path().split('/').nth(1) == Some(name)) {
        true => plain(StatusCode::NOT_FOUND, "404: Page Not Found".into()),
        false => plain(StatusCode::NOT_FOUND, "404 page not found\n".into()),
    }
}

fn disabled(text: &'static str) -> Response {
    plain(StatusCode::METHOD_NOT_ALLOWED, text.into())
}

/// As Go writes an error: the text alone.
fn plain_text(status: StatusCode, text: impl ToString) -> Response {
    plain(status, text.to_string())
}

fn json_bytes(body: Vec<u8>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

#[cfg(test)]
mod tests;
