//! One call over a plugin's socket: its deadline, and its failure in the words of gRPC.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use model::GrpcCode;
use model::text_limits::{TextLimit, truncate_text};
use ports::CsiError;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request, Response, Status};

/// The limit of gRPC where nobody sets another one; that of the kubelet too.
pub(crate) const MAX_ANSWER_BYTES: usize = 4 << 20;
/// How much earlier than here a deadline may be over at a plugin.
const DEADLINE_SKEW: Duration = Duration::from_secs(1);

/// Connects at its first call, and again at the next call after its connection ended. Needs a tokio runtime.
pub(crate) fn channel(socket: &Path) -> Channel {
    let path = PathBuf::from(socket);
    let connector = tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(&path).await.map(TokioIo::new) }
    });
    // The authority is never resolved, but servers want a valid one.
    Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector)
}

/// An endpoint as a plugin gives it: a path, or `unix://` and a path.
pub(crate) fn socket_path(endpoint: &str) -> &Path {
    let path = endpoint.strip_prefix("unix://").or_else(|| endpoint.strip_prefix("unix:"));
    Path::new(path.unwrap_or(endpoint))
}

pub(crate) async fn call<M, A, F>(
    socket: &Path,
    deadline: Duration,
    message: M,
    send: impl FnOnce(Request<M>) -> F,
) -> Result<A, CsiError>
where
    F: Future<Output = Result<Response<A>, Status>>,
{
    let mut request = Request::new(message);
    request.set_timeout(deadline);
    let begun = tokio::time::Instant::now();
    match tokio::time::timeout(deadline, send(request)).await {
        Err(_) => Err(CsiError::timed_out()),
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        // The plugin knows the deadline too, and its clock may be a little ahead.
        Ok(Err(status))
            if status.code() == Code::Cancelled && begun.elapsed() + DEADLINE_SKEW >= deadline =>
        {
            Err(CsiError::timed_out())
        }
        Ok(Err(status)) => Err(failure(socket, &status)),
    }
}

fn failure(socket: &Path, status: &Status) -> CsiError {
    // A status with a source did not come from the plugin: the way to it failed, or our clock was first.
    if let Some(cause) = status.source() {
        let deepest = root(cause);
        if deepest.is::<tonic::TimeoutExpired>() {
            return CsiError::timed_out();
        }
        let message = format!("{}: {deepest}", socket.display());
        return CsiError::Rpc { code: GrpcCode::Unavailable, message };
    }
    CsiError::Rpc {
        code: GrpcCode::of_number(status.code() as i32).unwrap_or(GrpcCode::Unknown),
        message: truncate_text(status.message(), TextLimit::PluginMessage),
    }
}

fn root<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    let mut deepest = error;
    while let Some(next) = deepest.source() {
        deepest = next;
    }
    deepest
}
