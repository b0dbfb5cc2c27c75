//! `/debug`: why a pod is as it is, and how much is logged.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use http_body_util::{BodyExt, Limited};

use super::target::RequestParams;
use super::{Api, json_bytes, plain_text};
use crate::endpoints::ask_agent;

/// A number and some white space.
const MAX_NUMBER_BYTES: usize = 64;

pub(super) async fn why(State(api): Api, Path(params): Path<RequestParams>) -> Response {
    let asked = api.endpoints.agent.why(Some(params.namespace.clone()), params.pod.clone());
    match ask_agent(asked).await {
        Ok(found) if found.is_empty() => plain_text(StatusCode::NOT_FOUND, "pod does not exist"),
        Ok(found) => match serde_json::to_vec(&found) {
            Ok(body) => json_bytes(body),
            Err(error) => plain_text(StatusCode::INTERNAL_SERVER_ERROR, error),
        },
        Err(unanswered) => plain_text(StatusCode::SERVICE_UNAVAILABLE, unanswered),
    }
}

/// Nothing else is done with the verbosity.
pub(super) async fn only_put() -> Response {
    text_without_charset(StatusCode::NOT_ACCEPTABLE, "unsupported http method\n".into())
}

/// As the kubelet announces its words here.
fn text_without_charset(status: StatusCode, text: String) -> Response {
    (status, [(header::CONTENT_TYPE, "text/plain")], text).into_response()
}

pub(super) async fn set_verbosity(State(api): Api, body: Body) -> Response {
    let Ok(body) = Limited::new(body, MAX_NUMBER_BYTES).collect().await else {
        return text_without_charset(StatusCode::BAD_REQUEST, "the body must be a number\n".into());
    };
    let body = body.to_bytes();
    let text = String::from_utf8_lossy(&body);
    match text.trim().parse() {
        Ok(level) => {
            (api.set_verbosity)(level);
            tracing::info!(level, "verbosity was set");
            text_without_charset(
                StatusCode::OK,
                format!("successfully set klog.logging.verbosity to {}\n", text.trim()),
            )
        }
        Err(error) => {
            let text = format!("the verbosity must be a number, not {:?}: {error}\n", text.trim());
            text_without_charset(StatusCode::BAD_REQUEST, text)
        }
    }
}
