//! `/checkpoint`: the state of a container into a file.

use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::response::Response;
use http::StatusCode;

use super::query::Parameters;
use super::target::{Place, running};
use super::{Api, failure, json_bytes};

pub(super) async fn make(State(api): Api, Path(place): Path<Place>, request: Request) -> Response {
    let pod = match api.pod(&place, || "pod does not exist".into()).await {
        Ok(pod) => pod,
        Err(answer) => return answer,
    };
    let Some(id) = running(&pod, &place) else {
        return failure(StatusCode::NOT_FOUND, format!("container {} does not exist", place.container));
    };
    let timeout = match Parameters::of(request.uri()).last("timeout").map(str::parse::<u32>).transpose() {
        Ok(seconds) => Duration::from_secs(u64::from(seconds.unwrap_or_default())),
        Err(_) => return failure(StatusCode::NOT_FOUND, "cannot parse value of timeout parameter"),
    };
    let now = api.wall.wall().timestamp().strftime("%Y-%m-%dT%H:%M:%SZ");
    let (namespace, name, container) = (&place.namespace, &place.pod, &place.container);
    let file = format!("checkpoint-{name}_{namespace}-{container}-{now}.tar");
    let file = api.settings.root_dir.join("checkpoints").join(file).to_string_lossy().into_owned();
    match api.runtime.checkpoint_container(id, &file, timeout).await {
        Ok(()) => json_bytes(serde_json::json!({ "items": [file] }).to_string().into_bytes()),
        // Also when the runtime has no such call: 404 would be about the pod.
        Err(error) => {
            let text =
                format!("checkpointing of {namespace}/{name}/{container} failed ({})", error.user_message());
            failure(StatusCode::INTERNAL_SERVER_ERROR, text)
        }
    }
}
