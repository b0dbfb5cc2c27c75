//! `/debug`: why a pod is as it is, and how much is logged.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use http_body_util::{BodyExt, Limited};

use super::target::Place;
use super::{Api, failure, json_bytes};
use crate::endpoints::ask;

/// A number and some white space.
const LONGEST_NUMBER: usize = 64;

pub(super) async fn why(State(api): Api, Path(place): Path<Place>) -> Response {
    let asked = api.endpoints.agent.why(Some(place.namespace.clone()), place.pod.clone());
    match ask(asked).await {
        Ok(found) if found.is_empty() => failure(StatusCode::NOT_FOUND, "pod does not exist"),
        Ok(found) => match serde_json::to_vec(&found) {
            Ok(body) => json_bytes(body),
            Err(error) => failure(StatusCode::INTERNAL_SERVER_ERROR, error),
        },
        Err(unanswered) => failure(StatusCode::SERVICE_UNAVAILABLE, unanswered),
    }
}

/// Nothing else is done with the verbosity.
pub(super) async fn only_put() -> Response {
    words(StatusCode::NOT_ACCEPTABLE, "unsupported http method\n".into())
}

/// As the kubelet announces its words here.
fn words(status: StatusCode, text: String) -> Response {
    (status, [(header::CONTENT_TYPE, "text/plain")], text).into_response()
}

pub(super) async fn set_verbosity(State(api): Api, body: Body) -> Response {
    let Ok(body) = Limited::new(body, LONGEST_NUMBER).collect().await else {
        return words(StatusCode::BAD_REQUEST, "the body must be a number\n".into());
    };
    let body = body.to_bytes();
    let text = String::from_utf8_lossy(&body);
    match text.trim().parse() {
        Ok(level) => {
            (api.set_verbosity)(level);
            tracing::info!(level, "verbosity was set");
            words(StatusCode::OK, format!("successfully set klog.logging.verbosity to {}\n", text.trim()))
        }
        Err(error) => {
            let text = format!("the verbosity must be a number, not {:?}: {error}\n", text.trim());
            words(StatusCode::BAD_REQUEST, text)
        }
    }
}
