//! What the human commands ask, over the control socket: JSON of the model's reports.

use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use ports::AgentView;
use serde::{Deserialize, Serialize};

use crate::endpoints::{AgentUnavailable, ask_agent};

type Agent = State<Arc<dyn AgentView>>;

pub(crate) fn routes(agent: Arc<dyn AgentView>) -> Router {
    Router::new()
        .route("/v1/pods", get(pods))
        .route("/v1/why", get(why))
        .route("/v1/node", get(node))
        .fallback(async || refuse(StatusCode::NOT_FOUND, "unknown path"))
        .method_not_allowed_fallback(async || refuse(StatusCode::METHOD_NOT_ALLOWED, "only GET is supported"))
        .with_state(agent)
}

async fn pods(State(agent): Agent) -> Response {
    answer(ask_agent(agent.pod_reports()).await)
}

async fn node(State(agent): Agent) -> Response {
    answer(ask_agent(agent.node_report()).await)
}

#[derive(Deserialize)]
struct WhyQuery {
    #[serde(default)]
    name: String,
    namespace: Option<String>,
}

async fn why(State(agent): Agent, Query(which): Query<WhyQuery>) -> Response {
    if which.name.is_empty() {
        return refuse(StatusCode::BAD_REQUEST, "the query must name a pod: name=");
    }
    let namespace = which.namespace.filter(|namespace| !namespace.is_empty());
    answer(ask_agent(agent.why(namespace, which.name)).await)
}

fn answer<T: Serialize>(answer: Result<T, AgentUnavailable>) -> Response {
    match answer {
        Ok(answer) => Json(answer).into_response(),
        Err(unanswered) => refuse(StatusCode::SERVICE_UNAVAILABLE, &unanswered.to_string()),
    }
}

fn refuse(status: StatusCode, error: &str) -> Response {
    (status, Json(serde_json::json!({ "error": error }))).into_response()
}
