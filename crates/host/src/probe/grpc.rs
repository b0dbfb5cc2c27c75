//! `grpc.health.v1.Health/Check`, encoded by hand: one call with one field each way is not worth a gRPC client.
//!
//! ```text
//!   request   00 <length: 4 bytes> 0a <length> <service>        answer   00 <length: 4 bytes> 08 <status>
//! ```

use model::GrpcCode;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};
use http::header::{CONTENT_TYPE, HeaderMap, TE, USER_AGENT};
use http::{Request, Version};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use model::probe::ProbeOutcome;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::dial;

const PATH: &str = "/grpc.health.v1.Health/Check";
const SERVING: u64 = 1;
const MAX_ANSWER: usize = 64 << 10;
/// A failed connection attempt is repeated after this delay, while there is time.
const RECONNECT: Duration = Duration::from_secs(1);

/// The result of a call.
enum Reply {
    Status(u64),
    Failed {
        code: GrpcCode,
        message: String,
    },
    /// A number that is no code of gRPC.
    UnknownCode {
        code: u32,
        message: String,
    },
}

pub async fn check(
    host: &str,
    port: u16,
    service: &str,
    timeout: Duration,
    deadline: Instant,
) -> ProbeOutcome {
    let address = dial::address(host, port);
    let shown = super::go_duration(timeout);
    let connected = Arc::new(AtomicBool::new(false));
    let asking = async {
        loop {
            let began = Instant::now();
            connected.store(false, Relaxed);
            if let Ok(stream) = dial::dial(host, port).await
                && let Some(reply) = ask(Http2Detector::new(stream, &connected), &address, service).await
            {
                return reply;
            }
            sleep_until(began + RECONNECT).await;
        }
    };
    let Ok(reply) = timeout_at(deadline, asking).await else {
        return ProbeOutcome::failure(match connected.load(Relaxed) {
            true => format!("timeout: health rpc did not complete within {shown}"),
            false => format!(
                "timeout: failed to connect service {address:?} within {shown}: context deadline exceeded"
            ),
        });
    };
    match reply {
        Reply::Status(SERVING) => ProbeOutcome::Success,
        Reply::Status(status) => {
            ProbeOutcome::failure(format!("service unhealthy (responded with {:?})", status_name(status)))
        }
        Reply::Failed { code: GrpcCode::Unimplemented, message } => ProbeOutcome::failure(format!(
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {message}"
        )),
        Reply::Failed { code: GrpcCode::DeadlineExceeded, .. } => {
            ProbeOutcome::failure(format!("timeout: health rpc did not complete within {shown}"))
        }
        Reply::Failed { code, message } => ProbeOutcome::failure(format!(
            "error: health rpc probe failed: rpc error: code = {code} desc = {message}"
        )),
        Reply::UnknownCode { code, message } => ProbeOutcome::failure(format!(
            "error: health rpc probe failed: rpc error: code = Code({code}) desc = {message}"
        )),
    }
}

/// `None`: the peer is not a gRPC server.
async fn ask(stream: Http2Detector, address: &str, service: &str) -> Option<Reply> {
    let spoke = stream.speaks_http2.clone();
    let handshake = http2::Builder::new(TokioExecutor::new()).handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.ok()?;
    let request = request(address, service)?;
    let work = async {
        match sender.send_request(request).await {
            Ok(response) => Some(read(response).await),
            Err(_) if !spoke.load(Relaxed) => None,
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                let message = format!("error reading from server: {}", cause.unwrap_or(error.to_string()));
                Some(Reply::Failed { code: GrpcCode::Unavailable, message })
            }
        }
    };
    match select(pin!(work), pin!(connection)).await {
        Either::Left((reply, _)) => reply,
        Either::Right((_, work)) => work.await,
    }
}

/// A connection that checks whether the peer speaks HTTP/2: its first frame must be a SETTINGS frame.
struct Http2Detector {
    stream: TcpStream,
    heard: usize,
    speaks_http2: Arc<AtomicBool>,
}

impl Http2Detector {
    fn new(stream: TcpStream, spoke: &Arc<AtomicBool>) -> Self {
        Self { stream, heard: 0, speaks_http2: spoke.clone() }
    }
}

impl AsyncRead for Http2Detector {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        const KIND_AT: usize = 3;
        const SETTINGS: u8 = 4;
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        let new = &buf.filled()[before..];
        if let Some(kind) = KIND_AT.checked_sub(self.heard).and_then(|at| new.get(at)) {
            self.speaks_http2.store(*kind == SETTINGS, Relaxed);
        }
        self.heard = self.heard.saturating_add(new.len());
        polled
    }
}

impl AsyncWrite for Http2Detector {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

fn request(address: &str, service: &str) -> Option<Request<Full<Bytes>>> {
    let mut message = Vec::new();
    if !service.is_empty() {
        message.push(0x0a);
        push_varint(&mut message, service.len() as u64);
        message.extend_from_slice(service.as_bytes());
    }
    let mut frame = vec![0];
    frame.extend_from_slice(&u32::try_from(message.len()).ok()?.to_be_bytes());
    frame.extend_from_slice(&message);
    let request = Request::post(format!("http://{address}{PATH}"))
        .version(Version::HTTP_2)
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers")
        .header(USER_AGENT, super::USER_AGENT);
    request.body(Full::new(frame.into())).ok()
}

async fn read(response: http::Response<hyper::body::Incoming>) -> Reply {
    let (head, body) = response.into_parts();
    if let Some(failed) = failure(&head.headers) {
        return failed;
    }
    if head.status != http::StatusCode::OK {
        let message = format!("unexpected HTTP status code received from server: {}", head.status);
        return Reply::Failed { code: http_code(head.status.as_u16()), message };
    }
    let collected = match Limited::new(body, MAX_ANSWER).collect().await {
        Ok(collected) => collected,
        Err(error) => return Reply::Failed { code: GrpcCode::Unavailable, message: error.to_string() },
    };
    let trailers = collected.trailers().cloned().unwrap_or_default();
    if let Some(failed) = failure(&trailers) {
        return failed;
    }
    let status = collected.to_bytes().get(5..).and_then(status_field);
    status.map_or_else(
        || Reply::Failed {
            code: GrpcCode::Internal,
            message: "grpc: failed to unmarshal the received message".into(),
        },
        Reply::Status,
    )
}

/// The gRPC error in headers or trailers; `None` if the status is OK or missing.
fn failure(headers: &HeaderMap) -> Option<Reply> {
    let number = headers.get("grpc-status")?.to_str().ok()?.parse::<u32>();
    let message = headers.get("grpc-message").and_then(|m| m.to_str().ok()).unwrap_or_default();
    let message = percent_decoded(message);
    let Ok(code) = number else { return Some(Reply::Failed { code: GrpcCode::Unknown, message }) };
    match i32::try_from(code).ok().and_then(GrpcCode::of_number) {
        Some(GrpcCode::Ok) => None,
        Some(code) => Some(Reply::Failed { code, message }),
        None => Some(Reply::UnknownCode { code, message }),
    }
}

fn http_code(status: u16) -> GrpcCode {
    match status {
        400 => GrpcCode::Internal,
        401 => GrpcCode::Unauthenticated,
        403 => GrpcCode::PermissionDenied,
        404 => GrpcCode::Unimplemented,
        429 | 502..=504 => GrpcCode::Unavailable,
        _ => GrpcCode::Unknown,
    }
}

/// Field 1 of the response; in an empty response it has its default. Other fields are skipped.
fn status_field(mut message: &[u8]) -> Option<u64> {
    let mut status = 0;
    while !message.is_empty() {
        let tag = varint(&mut message)?;
        match tag & 7 {
            0 => {
                let value = varint(&mut message)?;
                if tag >> 3 == 1 {
                    status = value;
                }
            }
            1 => message = message.get(8..)?,
            2 => {
                let length = usize::try_from(varint(&mut message)?).ok()?;
                message = message.get(length..)?;
            }
            5 => message = message.get(4..)?,
            _ => return None,
        }
    }
    Some(status)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn percent_decoded(text: &str) -> String {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let code = tail.get(..2).filter(|_| *first == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match code.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &tail[2..];
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn status_name(status: u64) -> String {
    match status {
        0 => "UNKNOWN".into(),
        1 => "SERVING".into(),
        2 => "NOT_SERVING".into(),
        3 => "SERVICE_UNKNOWN".into(),
        other => other.to_string(),
    }
}
