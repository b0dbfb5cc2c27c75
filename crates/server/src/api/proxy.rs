//! Carries an upgraded connection to the runtime's streaming server.
//!
//! ```text
//!   client ──upgrade──> us ──the same upgrade──> runtime
//!      <──── 101, with the runtime's headers ────┘
//!      <═══════════════ splice ═══════════════>
//! ```
//!
//! SPDY and WebSocket pass unread. Bytes that come together with the head of a request or answer are kept.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http::{HeaderMap, HeaderName, Method, StatusCode, Uri, header};
use http_body_util::{BodyExt, Limited};
use hyper_util::rt::TokioIo;
use ports::RuntimeError;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::splice::{Ended, splice};
use super::{SecureApi, failure};
use crate::counted::Counted;

/// The streaming server is on this machine.
const CONNECT: Duration = Duration::from_secs(10);
/// It answers an upgrade at once.
const ANSWER: Duration = Duration::from_secs(30);
/// Text of a refused upgrade.
const REFUSAL: usize = 64 * 1024;
/// gRPC's code for "no more of it".
const RESOURCE_EXHAUSTED: i32 = 8;

/// Why the runtime's streaming server could not be reached.
#[derive(thiserror::Error, Debug)]
enum ProxyError {
    #[error("the runtime's streaming URL {0:?} can't be used")]
    Url(String),
    #[error("error dialing backend {address}: {source}")]
    Connect { address: String, source: io::Error },
    #[error("the runtime's streaming server at {0} does not answer")]
    Silent(String),
    #[error("the runtime's streaming server at {address}: {source}")]
    Exchange { address: String, source: hyper::Error },
}

/// Asks the runtime where to stream, and carries the request there.
pub(super) async fn carry(
    api: &SecureApi,
    mut request: Request,
    url: impl Future<Output = Result<String, RuntimeError>>,
) -> Response {
    if !wants_upgrade(request.headers()) {
        return failure(StatusCode::INTERNAL_SERVER_ERROR, "Upgrade request required\n");
    }
    let url = match url.await {
        Ok(url) => url,
        Err(error) => return refused(&error),
    };
    let upgraded =
        match offer(api.streaming_tls.clone(), &url, request.method().clone(), request.headers().clone())
            .await
        {
            Ok(answer) => answer,
            Err(error) => return failure(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        };
    if upgraded.status() != StatusCode::SWITCHING_PROTOCOLS {
        return told(upgraded).await;
    }
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *answer.headers_mut() = upgraded.headers().clone();
    let client = hyper::upgrade::on(&mut request);
    let (idle, stop) = (api.settings.stream_idle, api.stop.clone());
    // The request is in progress for as long as its stream.
    let counted = request.extensions().get::<Counted>().cloned();
    tokio::spawn(async move {
        let _counted = counted;
        let streaming = async {
            let (client, server) = tokio::try_join!(client, hyper::upgrade::on(upgraded))?;
            Ok::<Ended, hyper::Error>(splice(TokioIo::new(client), TokioIo::new(server), idle).await)
        };
        match stop.run_until_cancelled(streaming).await {
            Some(Ok(ended)) => tracing::debug!(?ended, "a stream ended"),
            Some(Err(error)) => tracing::debug!(%error, "a stream was not upgraded"),
            None => {}
        }
    });
    answer
}

fn wants_upgrade(headers: &HeaderMap) -> bool {
    let words = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let mut words = words.flat_map(|list| list.split(','));
    headers.contains_key(header::UPGRADE) && words.any(|word| word.trim().eq_ignore_ascii_case("upgrade"))
}

/// The runtime does not want to stream.
fn refused(error: &RuntimeError) -> Response {
    let text = error.user_message();
    match error {
        RuntimeError::NotFound { .. } => failure(StatusCode::NOT_FOUND, text),
        RuntimeError::Failed { code: RESOURCE_EXHAUSTED, .. } => {
            let mut answer = failure(StatusCode::TOO_MANY_REQUESTS, text);
            answer.headers_mut().insert(header::RETRY_AFTER, http::HeaderValue::from_static("60"));
            answer
        }
        _ => failure(StatusCode::INTERNAL_SERVER_ERROR, text),
    }
}

/// Sends the head of the request to the runtime, and gives its answer.
async fn offer(
    config: Arc<ClientConfig>,
    url: &str,
    method: Method,
    headers: HeaderMap,
) -> Result<http::Response<hyper::body::Incoming>, ProxyError> {
    let bad = || ProxyError::Url(url.to_owned());
    let uri: Uri = url.parse().map_err(|_| bad())?;
    let tls = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return Err(bad()),
    };
    let host = uri.host().ok_or_else(bad)?.trim_matches(['[', ']']);
    let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
    let address = format!("{host}:{port}");
    let stream = match tokio::time::timeout(CONNECT, TcpStream::connect((host, port))).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(source)) => return Err(ProxyError::Connect { address, source }),
        Err(_) => return Err(ProxyError::Silent(address)),
    };
    let _ = stream.set_nodelay(true);
    let stream: Box<dyn Wire> = match tls {
        false => Box::new(stream),
        true => match tokio::time::timeout(CONNECT, over_tls(config, stream)).await {
            Ok(Ok(stream)) => Box::new(stream),
            Ok(Err(source)) => return Err(ProxyError::Connect { address, source }),
            Err(_) => return Err(ProxyError::Silent(address)),
        },
    };
    let exchange = async {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection.with_upgrades());
        let mut head = http::Request::new(Body::empty());
        *head.method_mut() = method;
        *head.uri_mut() =
            uri.path_and_query().map_or_else(|| Uri::from_static("/"), |path| path.clone().into());
        *head.headers_mut() = passed_on(headers, uri.authority().map(|host| host.as_str()));
        sender.send_request(head).await
    };
    match tokio::time::timeout(ANSWER, exchange).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(source)) => Err(ProxyError::Exchange { address, source }),
        Err(_) => Err(ProxyError::Silent(address)),
    }
}

/// Either kind of connection to the runtime.
trait Wire: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Wire for T {}

/// The runtime's streaming server makes its own certificate, which nobody vouches for. So this is only for a peer on this
/// very machine, and the address says that: whoever could listen there in the runtime's place is root here.
async fn over_tls(
    config: Arc<ClientConfig>,
    stream: TcpStream,
) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let peer = stream.peer_addr()?;
    if !peer.ip().is_loopback() && peer.ip() != stream.local_addr()?.ip() {
        let text = "TLS to a streaming server on another machine is not supported, nobody vouches for it";
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    TlsConnector::from(config).connect(ServerName::from(peer.ip()), stream).await
}

/// All headers but those that are about us: whom the client spoke to, and who it is.
fn passed_on(mut passed: HeaderMap, host: Option<&str>) -> HeaderMap {
    const OURS: [HeaderName; 5] = [
        header::HOST,
        header::AUTHORIZATION,
        header::COOKIE,
        header::CONTENT_LENGTH,
        header::TRANSFER_ENCODING,
    ];
    for name in OURS {
        passed.remove(name);
    }
    if let Some(host) = host.and_then(|host| host.parse().ok()) {
        passed.insert(header::HOST, host);
    }
    passed
}

/// What the runtime answered instead of an upgrade.
async fn told(answer: http::Response<hyper::body::Incoming>) -> Response {
    let (head, body) = answer.into_parts();
    let read = tokio::time::timeout(ANSWER, Limited::new(body, REFUSAL).collect()).await;
    let text = read.ok().and_then(Result::ok).map(|body| body.to_bytes()).unwrap_or_default();
    failure(head.status, String::from_utf8_lossy(&text))
}
