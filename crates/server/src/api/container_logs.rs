//! `/containerLogs`: from the file, never through the runtime.

use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use futures::StreamExt;
use http::{StatusCode, header};
use model::observed::ContainerState;
use model::pod::{LABEL_CONTAINER_NAME, LABEL_POD_UID};
use model::{ContainerId, Wall};
use ports::{LogOptions, PodDetails};

use super::log_query::{LogQuery, instance};
use super::query::Parameters;
use super::target::{RequestParams, tty};
use super::{Api, SecureApi, plain_text};

pub(super) async fn read(State(api): Api, Path(params): Path<RequestParams>, request: Request) -> Response {
    let parameters = Parameters::of(request.uri());
    let query = LogQuery::parse(&parameters, api.wall.wall(), api.settings.split_log_streams);
    let query = match query {
        Ok(query) => query,
        Err((status, text)) => return plain_text(status, text),
    };
    let pod = match api.pod(&params, || format!("pod {:?} does not exist", params.pod)).await {
        Ok(pod) => pod,
        Err(answer) => return answer,
    };
    if tty(&pod, &params.container).is_none() {
        let text = format!("container {:?} not found in pod {:?}", params.container, params.pod);
        return plain_text(StatusCode::NOT_FOUND, text);
    }
    match open(&api, &params, &pod, query).await {
        Ok(body) => ([(header::CONTENT_TYPE, "text/plain")], body).into_response(),
        Err(text) => plain_text(StatusCode::BAD_REQUEST, text),
    }
}

async fn open(
    api: &Arc<SecureApi>,
    params: &RequestParams,
    pod: &PodDetails,
    query: LogQuery,
) -> Result<Body, String> {
    let status = pod.status.as_deref().or(pod.pod.status.as_ref());
    let id = instance(&params.pod, status, &params.container, query.previous)?;
    let id = ContainerId::from(id.split_once("://").map_or(id.as_str(), |(_, id)| id));
    let path = log_path(api, params, pod, &id).await?;
    let options =
        LogOptions { first_line_within: first_line_within(pod, &id, api.wall.wall()), ..query.options };
    let (agent, uid) = (api.endpoints.agent.clone(), pod.uid.clone());
    // Also ends when the agent stops.
    let ended = async move { agent.container_ended(uid, id).await.unwrap_or_default() }.boxed();
    let pieces = api.logs.open(&path, options, ended).await;
    let pieces = pieces.map_err(|error| format!("failed to open log file {:?}: {error}", path.display()))?;
    let stop = api.stop.clone();
    Ok(Body::from_stream(pieces.take_until(async move { stop.cancelled().await })))
}

/// A client that sees a container run and requests its log expects the first line. But the status says that it runs a
/// few milliseconds after its start, when its process may not have written anything yet.
const FIRST_LINE: Duration = Duration::from_secs(1);

/// What is left of that time for this container. Nothing, once it has run longer or has ended.
fn first_line_within(pod: &PodDetails, id: &ContainerId, now: Wall) -> Duration {
    let mut seen = pod.observed.iter().flat_map(|observed| &observed.containers);
    let runs = seen.find(|c| c.id == *id && c.state == ContainerState::Running);
    let ends = runs.map(|container| container.started_at.plus(FIRST_LINE));
    ends.map_or(Duration::ZERO, |ends| ends.since(now)).min(FIRST_LINE)
}

/// The id comes from the pod's status, which others than this node may have written. So the runtime's own labels must
/// say that the container is this one of this pod.
async fn log_path(
    api: &SecureApi,
    params: &RequestParams,
    pod: &PodDetails,
    id: &ContainerId,
) -> Result<PathBuf, String> {
    let foreign =
        || format!("container {id} is not container {:?} of pod {:?}", params.container, params.pod);
    let mut seen = pod.observed.iter().flat_map(|observed| &observed.containers);
    let path = match seen.find(|container| container.id == *id) {
        // What was seen of a pod was put together by the label of its uid.
        Some(container) if container.name == params.container => container.log_path.clone(),
        Some(_) => return Err(foreign()),
        // An old instance that is not among those that were last seen may still be there.
        None => match api.runtime.container_status(id).await {
            Ok(status) => {
                let label = |key: &str| status.labels.get(key).map(String::as_str);
                let is_own = label(LABEL_POD_UID) == Some(pod.uid.as_str())
                    && label(LABEL_CONTAINER_NAME) == Some(params.container.as_str());
                if !is_own {
                    return Err(foreign());
                }
                status.log_path
            }
            Err(error) => {
                let text = error.user_message();
                return Err(format!("unable to retrieve container logs for {id}: {text}"));
            }
        },
    };
    Some(FilePath::new(&path))
        .filter(|path| path.is_absolute())
        .map(FilePath::to_path_buf)
        .ok_or_else(|| format!("container {id} has no log"))
}
