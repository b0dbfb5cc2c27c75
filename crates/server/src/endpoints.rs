//! Which port answers what.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use http::{StatusCode, header};
use model::k8s::PodList;
use ports::{AgentView, Tracing};

use crate::api::request_spans::{CallerTrust, with_tracing};
use crate::gzip::with_gzip;
use crate::health::{self, HealthChecks, plain};
use crate::inflight::count_requests;
use crate::metrics::{AgentMetrics, AgentSnapshot, ScrapeInputs};
use crate::stats::NodeStats;
use crate::{AGENT_TIMEOUT, api, control, pod_list};

/// As the kubelet announces its metrics.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

/// How long a scrape waits for an agent that hangs.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Clone)]
pub struct Endpoints {
    pub agent: Arc<dyn AgentView>,
    pub health: Arc<HealthChecks>,
    pub metrics: Arc<AgentMetrics>,
    /// `None`: usage is not served.
    pub stats: Option<Arc<NodeStats>>,
}

impl Endpoints {
    /// The health port: `/healthz` and its single checks.
    pub fn healthz(&self) -> Router {
        with_not_found_fallback(health::routes(self.health.clone(), self.metrics.clone()))
    }

    /// The read-only port: pods, metrics and health, without authentication.
    pub fn read_only(&self, tracing: &Tracing) -> Router {
        let routes = self.common().merge(api::disabled_routes());
        let routes =
            with_tracing(with_not_found_fallback(routes), tracing.clone(), CallerTrust::Unauthenticated);
        count_requests(routes, self.metrics.clone(), "readonly")
    }

    /// What the read-only port and the secure port have in common.
    pub(crate) fn common(&self) -> Router {
        // Any method will do for metrics, as with the kubelet.
        let metrics = Router::new()
            .route("/metrics", any(metrics))
            .route("/metrics/probes", any(probe_metrics))
            .route("/metrics/resource", any(resource_metrics))
            .route("/metrics/cadvisor", any(cgroup_metrics))
            .route("/metrics/slis", any(sli_metrics));
        Router::new()
            .route("/pods", get(pods))
            .route("/pods/", get(pods))
            .route("/stats/summary", get(summary).post(summary))
            .route("/stats/summary/", get(summary).post(summary))
            .merge(with_gzip(metrics))
            .with_state(self.clone())
            .merge(health::routes(self.health.clone(), self.metrics.clone()))
    }

    /// What is in the runtime, which only the secure port tells.
    pub(crate) fn running_pods(&self) -> Router {
        Router::new().route("/runningpods/", get(running_pods)).with_state(self.clone())
    }

    /// The control socket, for our own commands.
    pub fn control(&self) -> Router {
        control::routes(self.agent.clone())
    }
}

/// Everything else is not there.
pub(crate) fn with_not_found_fallback(routes: Router) -> Router {
    routes
        .fallback(async || plain(StatusCode::NOT_FOUND, "404 page not found\n".into()))
        .method_not_allowed_fallback(async || {
            plain(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed".into())
        })
}

async fn pods(State(endpoints): State<Endpoints>) -> Response {
    list(ask_agent(endpoints.agent.pods()).await)
}

async fn running_pods(State(endpoints): State<Endpoints>) -> Response {
    list(ask_agent(endpoints.agent.running_pods()).await)
}

fn list(answer: Result<PodList, AgentUnavailable>) -> Response {
    let list = match answer {
        Ok(list) => list,
        Err(unanswered) => return plain(StatusCode::SERVICE_UNAVAILABLE, format!("{unanswered}\n")),
    };
    match pod_list::to_json(&list) {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

/// Counters are served even when the engine hangs, because that is when they are needed.
async fn metrics(State(endpoints): State<Endpoints>) -> Response {
    let agent = &endpoints.agent;
    let asked = ask_agent(async {
        Some(AgentSnapshot::new(agent.node_report().await?, &agent.pod_reports().await?))
    });
    let figures = tokio::time::timeout(SCRAPE_TIMEOUT, asked).await.ok().and_then(Result::ok);
    let mut scrape = ScrapeInputs { now: endpoints.metrics.now(), figures, ..Default::default() };
    // If the engine did not answer, it would not answer the following either, and scrapers give up after ten seconds.
    if let Some(stats) = endpoints.stats.as_ref().filter(|_| scrape.figures.is_some()) {
        scrape.logs = stats.log_sizes().await;
        scrape.claims = stats.claims().await;
        scrape.pull_records = stats.pull_records().await;
    }
    metrics_text(endpoints.metrics.text(&scrape))
}

async fn probe_metrics(State(endpoints): State<Endpoints>) -> Response {
    metrics_text(endpoints.metrics.probes.text())
}

async fn resource_metrics(State(endpoints): State<Endpoints>) -> Response {
    match &endpoints.stats {
        Some(stats) => metrics_text(Ok(stats.resource_metrics().await)),
        None => plain(StatusCode::NOT_FOUND, "404 page not found\n".into()),
    }
}

async fn cgroup_metrics(State(endpoints): State<Endpoints>) -> Response {
    match &endpoints.stats {
        Some(stats) => metrics_text(Ok(stats.cgroup_metrics().await)),
        None => plain(StatusCode::NOT_FOUND, "404 page not found\n".into()),
    }
}

/// The results of the checks of `/healthz`, whenever they were requested.
async fn sli_metrics(State(endpoints): State<Endpoints>) -> Response {
    metrics_text(endpoints.metrics.health.text())
}

#[derive(serde::Deserialize)]
struct SummaryQuery {
    #[serde(default)]
    only_cpu_and_memory: String,
}

async fn summary(State(endpoints): State<Endpoints>, Query(which): Query<SummaryQuery>) -> Response {
    let Some(stats) = &endpoints.stats else {
        return plain(StatusCode::NOT_FOUND, "404 page not found\n".into());
    };
    match stats.summary(which.only_cpu_and_memory == "true").await {
        Ok(summary) => ([(header::CONTENT_TYPE, "application/json")], summary).into_response(),
        Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, format!("Internal Error: {error}\n")),
    }
}

fn metrics_text(text: Result<String, prometheus::Error>) -> Response {
    match text {
        Ok(text) => ([(header::CONTENT_TYPE, METRICS_TYPE)], text).into_response(),
        Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

/// Why a question has no answer.
#[derive(thiserror::Error, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AgentUnavailable {
    #[error("the agent is shutting down")]
    ShuttingDown,
    #[error("the agent did not answer within {} seconds", AGENT_TIMEOUT.as_secs())]
    TimedOut,
}

pub(crate) async fn ask_agent<T>(answer: impl Future<Output = Option<T>>) -> Result<T, AgentUnavailable> {
    match tokio::time::timeout(AGENT_TIMEOUT, answer).await {
        Ok(Some(answer)) => Ok(answer),
        Ok(None) => Err(AgentUnavailable::ShuttingDown),
        Err(_) => Err(AgentUnavailable::TimedOut),
    }
}

/// Label values must not be the caller's to choose.
pub(crate) fn method_label(method: &http::Method) -> &'static str {
    const KNOWN: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    KNOWN.into_iter().find(|known| *known == method.as_str()).unwrap_or("other")
}

/// The first element of the path, or the first two of metrics.
pub(crate) fn path_label(path: &str) -> &'static str {
    const KNOWN: [&str; 20] = [
        "attach",
        "checkpoint",
        "configz",
        "containerLogs",
        "debug",
        "exec",
        "flagz",
        "healthz",
        "logs",
        "metrics",
        "metrics/cadvisor",
        "metrics/probes",
        "metrics/resource",
        "metrics/slis",
        "pods",
        "portForward",
        "run",
        "runningpods",
        "stats",
        "statusz",
    ];
    let mut words = path.trim_start_matches('/').split('/');
    let first = words.next().unwrap_or_default();
    let both = format!("{first}/{}", words.next().unwrap_or_default());
    let find = |wanted: &str| KNOWN.into_iter().find(|known| *known == wanted);
    find(&both).or_else(|| find(first)).unwrap_or("other")
}

#[cfg(test)]
mod tests;
