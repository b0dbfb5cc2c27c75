//! One gRPC call: its deadline, and the classification of its failure.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use model::GrpcCode;
use model::text_limits::{TextLimit, truncate_text};
use ports::{RuntimeError, Span, SpanKind, Tracing};
use tonic::{Code, Request, Response, Status};

use crate::stream_refusal::StreamRefusal;

/// containerd's message, with code Unknown, while its CRI plugin still restores its state after a start.
const NOT_INITIALIZED: &str = "server is not initialized yet";

/// A limit that fits into the gRPC timeout header, because users may set any grace period.
const LONGEST_DEADLINE: Duration = Duration::from_secs(365 * 24 * 3600);

/// Target of a call: socket, gRPC service, tracing.
pub(crate) struct CallTarget<'a> {
    pub socket: &'a Path,
    /// The service's name on the wire.
    pub service: &'static str,
    pub tracing: &'a Tracing,
    /// Set if lists are requested as streams. Records that the runtime refused that.
    pub streams: Option<&'a StreamRefusal>,
}

impl CallTarget<'_> {
    fn span(&self, call: &'static str) -> Span {
        Span {
            name: format!("{}/{call}", self.service).into(),
            kind: SpanKind::Client,
            attributes: vec![
                ("rpc.system", "grpc".to_owned()),
                ("rpc.service", self.service.to_owned()),
                ("rpc.method", call.to_owned()),
            ],
        }
    }
}

/// Sends `message` with `send` and waits for the answer, at most `deadline`. The request carries the deadline, so that
/// the server stops working after it, and the trace context.
pub(crate) async fn call<M, A, F>(
    call: &'static str,
    line: CallTarget<'_>,
    deadline: Option<Duration>,
    message: M,
    send: impl FnOnce(Request<M>) -> F,
) -> Result<A, RuntimeError>
where
    F: Future<Output = Result<Response<A>, Status>>,
{
    let work = exchange(call, line.socket, deadline, message, send);
    let failed = |result: &Result<A, RuntimeError>| result.as_ref().err().map(ToString::to_string);
    line.tracing.in_span(|| line.span(call), work, failed).await
}

async fn exchange<M, A, F>(
    call: &'static str,
    socket: &Path,
    deadline: Option<Duration>,
    message: M,
    send: impl FnOnce(Request<M>) -> F,
) -> Result<A, RuntimeError>
where
    F: Future<Output = Result<Response<A>, Status>>,
{
    let mut request = Request::new(message);
    let trace = Tracing::current().and_then(|trace| trace.traceparent().parse().ok());
    if let Some(trace) = trace {
        request.metadata_mut().insert("traceparent", trace);
    }
    let result = match deadline {
        None => send(request).await,
        Some(deadline) => {
            let deadline = deadline.min(LONGEST_DEADLINE);
            request.set_timeout(deadline);
            match tokio::time::timeout(deadline, send(request)).await {
                Ok(result) => result,
                Err(_) => return Err(RuntimeError::TimedOut { call, after: deadline }),
            }
        }
    };
    match result {
        Ok(answer) => Ok(answer.into_inner()),
        Err(status) => Err(classify(call, socket, deadline.unwrap_or_default(), &status)),
    }
}

/// Converts a gRPC status. `deadline` is reported with a timeout.
pub(crate) fn classify(
    call: &'static str,
    socket: &Path,
    deadline: Duration,
    status: &Status,
) -> RuntimeError {
    if let Some(cause) = status.source() {
        // A status with a source did not come from the server: the transport failed, or its clock ran out first.
        return match root(cause).is::<tonic::TimeoutExpired>() {
            true => RuntimeError::TimedOut { call, after: deadline },
            false => RuntimeError::Unavailable { call, message: transport_message(socket, cause) },
        };
    }
    let message = truncate_text(status.message(), TextLimit::RuntimeMessage);
    match status.code() {
        Code::NotFound => RuntimeError::NotFound { call, message },
        Code::Unavailable => RuntimeError::Unavailable { call, message },
        Code::Unknown if message == NOT_INITIALIZED => RuntimeError::Unavailable { call, message },
        Code::DeadlineExceeded => RuntimeError::TimedOut { call, after: deadline },
        Code::Unimplemented => RuntimeError::Unsupported { call },
        code => RuntimeError::Failed { call, code: grpc_code(code), message },
    }
}

fn grpc_code(code: Code) -> GrpcCode {
    GrpcCode::of_number(code as i32).unwrap_or(GrpcCode::Unknown)
}

/// An answer that violates the CRI.
pub(crate) fn malformed(call: &'static str, what: &str) -> RuntimeError {
    RuntimeError::Failed {
        call,
        code: GrpcCode::Internal,
        message: format!("runtime answered without {what}"),
    }
}

fn root<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    let mut deepest = error;
    while let Some(next) = deepest.source() {
        deepest = next;
    }
    deepest
}

/// Only the innermost error names the cause; the outer ones are "transport error" and "connection error".
fn transport_message(socket: &Path, cause: &(dyn Error + 'static)) -> String {
    let socket = socket.display();
    let deepest = root(cause);
    match deepest.downcast_ref::<std::io::Error>() {
        Some(io) => format!("{socket}: {io}"),
        None => format!("{socket}: connection lost: {deepest}"),
    }
}
