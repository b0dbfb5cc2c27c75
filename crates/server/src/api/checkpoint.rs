//! `/checkpoint`: the state of a container into a file.

use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::response::Response;
use http::StatusCode;

use super::query::Parameters;
use super::target::{RequestParams, running};
use super::{Api, json_bytes, plain_text};

pub(super) async fn make(State(api): Api, Path(params): Path<RequestParams>, request: Request) -> Response {
    let pod = match api.pod(&params, || "pod does not exist".into()).await {
        Ok(pod) => pod,
        Err(answer) => return answer,
    };
    let Some(id) = running(&pod, &params) else {
        return plain_text(StatusCode::NOT_FOUND, format!("container {} does not exist", params.container));
    };
    let timeout = match Parameters::of(request.uri()).last("timeout").map(str::parse::<u32>).transpose() {
        Ok(seconds) => Duration::from_secs(u64::from(seconds.unwrap_or_default())),
        Err(_) => return plain_text(StatusCode::NOT_FOUND, "cannot parse value of timeout parameter"),
    };
    let now = api.wall.wall().timestamp().strftime("%Y-%m-%dT%H:%M:%SZ");
    let (namespace, name, container) = (&params.namespace, &params.pod, &params.container);
    let file = format!("checkpoint-{name}_{namespace}-{container}-{now}.tar");
    let file = api.settings.root_dir.join("checkpoints").join(file).to_string_lossy().into_owned();
    match api.runtime.checkpoint_container(id, &file, timeout).await {
        Ok(()) => json_bytes(serde_json::json!({ "items": [file] }).to_string().into_bytes()),
        // Also when the runtime has no such call: 404 would be about the pod.
        Err(error) => {
            let text =
                format!("checkpointing of {namespace}/{name}/{container} failed ({})", error.user_message());
            plain_text(StatusCode::INTERNAL_SERVER_ERROR, text)
        }
    }
}
