//! The Pods API: agents on this node list, get and watch its pods without the API server.
//!
//! ```text
//!   agent ── gRPC on <root>/pods-api/pods-api.sock ──> PodsService ──> PodWatches (the engine)
//!                                                           └──> binary_pod: Pod ─> protobuf
//! ```
//!
//! A watch begins with an ADDED for each pod and INITIAL_SYNC_COMPLETE; changes follow as they happen. Pods are encoded
//! when the client takes them, so what waits for a slow client is references. A client that does not keep up gets
//! ResourceExhausted after what it had been sent; it has to watch again. Only root can connect.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

use futures::future::ready;
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use model::PodUid;
use ports::{PodSnapshot, PodWatch, PodWatchEvent, PodWatches};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use self::binary_pod::{EncodeError, encode, encode_identity};
use self::protocol::pods_server::{Pods, PodsServer};
use self::protocol::{
    EventType, GetPodRequest, GetPodResponse, ListPodsRequest, ListPodsResponse, WatchPodsEvent,
    WatchPodsRequest,
};
use self::rate_limit::RateLimit;
use crate::endpoints::ask_agent;
use crate::listen::{ACCEPT_PAUSE, DRAIN_TIMEOUT, OwnedSocket, ServeError, ServerHandle, bind_unix};
use crate::metrics::AgentMetrics;

mod binary_pod;
mod rate_limit;

/// The service as it is published.
mod protocol {
    #![allow(clippy::all)]
    include!(concat!(env!("OUT_DIR"), "/server/v1alpha1.rs"));
}

/// The other side, for tests.
#[cfg(any(test, feature = "pods-client"))]
pub mod client {
    #![allow(clippy::all)]
    include!(concat!(env!("OUT_DIR"), "/client/v1alpha1.rs"));
}

const WHAT: &str = "Pods API";
/// Relative to the agent's root directory.
const SOCKET: &str = "pods-api/pods-api.sock";
/// A request is a UID at most.
const MAX_REQUEST_BYTES: usize = 4096;
/// Watches at a time. Each holds a name for every pod and up to a hundred changes.
const MAX_WATCHES: usize = 128;
/// Calls at a time of one connection.
const MAX_STREAMS: u32 = 256;

/// Serves the API on its socket. A socket that nobody answers on is replaced.
pub async fn serve_pods_api(
    root_dir: &Path,
    pods: Arc<dyn PodWatches>,
    metrics: Arc<AgentMetrics>,
    stop: CancellationToken,
) -> Result<ServerHandle, ServeError> {
    let path = root_dir.join(SOCKET);
    create_directory(&path).map_err(|source| ServeError::Socket {
        what: WHAT,
        path: path.clone(),
        source,
    })?;
    let (listener, socket) = bind_unix(WHAT, &path).await?;
    let service = PodsService {
        pods,
        metrics,
        calls: RateLimit::default(),
        watches: Arc::new(Semaphore::new(MAX_WATCHES)),
        stop: stop.clone(),
    };
    tracing::info!(path = %path.display(), "serving the {WHAT}");
    Ok(ServerHandle::new(None, tokio::spawn(serve(listener, socket, service, stop))))
}

/// Nobody but root gets to the socket, whatever its own mode is.
fn create_directory(socket: &Path) -> io::Result<()> {
    let Some(directory) = socket.parent() else { return Ok(()) };
    DirBuilder::new().recursive(true).mode(0o750).create(directory)
}

async fn serve(listener: UnixListener, socket: OwnedSocket, service: PodsService, stop: CancellationToken) {
    let service = PodsServer::new(service).max_decoding_message_size(MAX_REQUEST_BYTES);
    let serving = tonic::transport::Server::builder()
        .max_concurrent_streams(MAX_STREAMS)
        .add_service(service)
        .serve_with_incoming_shutdown(connections(listener), stop.clone().cancelled_owned());
    let overdue = async {
        stop.cancelled().await;
        tokio::time::sleep(DRAIN_TIMEOUT).await;
    };
    tokio::select! {
        ended = serving => if let Err(error) = ended {
            tracing::error!(%error, "the {WHAT} ended");
        },
        // A client that takes nothing holds up nobody.
        () = overdue => {}
    }
    socket.remove();
}

fn connections(listener: UnixListener) -> impl Stream<Item = io::Result<UnixStream>> {
    stream::unfold(listener, async |listener| {
        loop {
            match listener.accept().await {
                Ok((connection, _)) => return Some((Ok(connection), listener)),
                Err(error) => {
                    tracing::debug!(%error, "the {WHAT} could not accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    })
}

struct PodsService {
    pods: Arc<dyn PodWatches>,
    metrics: Arc<AgentMetrics>,
    /// Of lists and gets.
    calls: RateLimit,
    watches: Arc<Semaphore>,
    stop: CancellationToken,
}

#[tonic::async_trait]
impl Pods for PodsService {
    async fn watch_pods(
        &self,
        _: Request<WatchPodsRequest>,
    ) -> Result<Response<BoxStream<'static, Result<WatchPodsEvent, Status>>>, Status> {
        let permit = self.watches.clone().try_acquire_owned().map_err(|_| {
            Status::resource_exhausted(format!("there are {MAX_WATCHES} watches of pods already"))
        })?;
        let watch = ask_agent(self.pods.watch_pods()).await.map_err(|error| unavailable(&error))?;
        let metrics = self.metrics.clone();
        let events = watch_events(watch, self.stop.clone()).map(move |event| {
            // Held until the client has everything, or is gone.
            let _held = &permit;
            event.inspect_err(|status| {
                if status.code() == tonic::Code::Internal {
                    metrics.pod_watch_event_dropped();
                }
            })
        });
        Ok(Response::new(events.boxed()))
    }

    async fn list_pods(&self, _: Request<ListPodsRequest>) -> Result<Response<ListPodsResponse>, Status> {
        self.calls.permit()?;
        let pods = ask_agent(self.pods.list_pods()).await.map_err(|error| unavailable(&error))?;
        let pods: Result<_, Status> = pods.iter().map(binary).collect();
        Ok(Response::new(ListPodsResponse { pods: pods? }))
    }

    async fn get_pod(&self, request: Request<GetPodRequest>) -> Result<Response<GetPodResponse>, Status> {
        self.calls.permit()?;
        let uid = request.into_inner().pod_uid;
        let asked = self.pods.get_pod(PodUid::new(uid.as_str()));
        let found = ask_agent(asked).await.map_err(|error| unavailable(&error))?;
        let pod = found.ok_or_else(|| Status::not_found(format!("pod with UID {uid} not found")))?;
        Ok(Response::new(GetPodResponse { pod: binary(&pod)? }))
    }
}

fn watch_events(
    watch: PodWatch,
    stop: CancellationToken,
) -> impl Stream<Item = Result<WatchPodsEvent, Status>> + Send + 'static {
    let added = stream::iter(watch.pods).map(|pod| event(EventType::Added, binary(&pod)));
    let complete = stream::once(ready(event(EventType::InitialSyncComplete, Ok(Vec::new()))));
    let changes = watch.events.take_until(stop.cancelled_owned()).map(|change| match change {
        PodWatchEvent::Added(pod) => event(EventType::Added, binary(&pod)),
        PodWatchEvent::Modified(pod) => event(EventType::Modified, binary(&pod)),
        PodWatchEvent::Deleted { uid, full_name } => {
            event(EventType::Deleted, encode_identity(&uid, &full_name).map_err(|error| not_encoded(&error)))
        }
        PodWatchEvent::FellBehind => Err(Status::resource_exhausted(
            "the watcher is too slow and missed a change of a pod: it has to watch again",
        )),
    });
    let end = stream::once(ready(Err(Status::unavailable("the agent is shutting down"))));
    added.chain(complete).chain(changes).chain(end)
}

fn event(kind: EventType, pod: Result<Vec<u8>, Status>) -> Result<WatchPodsEvent, Status> {
    Ok(WatchPodsEvent { r#type: kind.into(), pod: pod? })
}

fn binary(pod: &PodSnapshot) -> Result<Vec<u8>, Status> {
    encode(&pod.pod, pod.status.as_deref()).map_err(|error| not_encoded(&error))
}

fn not_encoded(error: &EncodeError) -> Status {
    Status::internal(format!("failed to marshal pod: {error}"))
}

fn unavailable(error: &dyn std::error::Error) -> Status {
    Status::unavailable(error.to_string())
}

#[cfg(test)]
mod tests;
