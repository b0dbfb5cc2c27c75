//! Carries an upgraded connection to the runtime's streaming server.
//!
//! ```text
//!   client ──upgrade──> us ──the same upgrade──> runtime
//!      <──── 101, with the runtime's headers ────┘
//!      <═══════════════ splice ═══════════════>
//! ```
//!
//! SPDY and the older WebSocket protocols pass unchanged. Protocols that runtimes don't support are translated
//! ([`Translation`]): WebSocket v5 by [`super::translate`], SPDY inside of WebSocket by [`super::tunnel`]. Bytes that
//! come together with the head of a request or response are kept.

use model::GrpcCode;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use http_body_util::{BodyExt, Limited};
use hyper_util::rt::TokioIo;
use ports::{RuntimeError, StreamFlags};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::splice::{StreamEnd, splice};
use super::translate::{self, translate};
use super::tunnel::tunnel;
use super::{SecureApi, plain_text, spdy, websocket};
use crate::inflight::InflightGuard;
use crate::upgrade_request;

/// The streaming server is on this machine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// It answers an upgrade at once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Text of a refused upgrade.
const MAX_REFUSAL_BYTES: usize = 64 * 1024;

/// Why the runtime's streaming server could not be reached.
#[derive(thiserror::Error, Debug)]
enum ProxyError {
    #[error("the runtime's streaming URL {0:?} can't be used")]
    Url(String),
    #[error("error dialing backend {address}: {source}")]
    Connect { address: String, source: io::Error },
    #[error("the runtime's streaming server at {0} did not respond in time")]
    TimedOut(String),
    #[error("the runtime's streaming server at {address}: {source}")]
    Exchange { address: String, source: hyper::Error },
}

/// What begins the name of a protocol that is SPDY inside of a WebSocket.
const TUNNEL_PREFIX: &str = "SPDY/3.1+";
const TUNNEL_SUFFIX: &str = ".k8s.io";

/// Which translation a stream needs between the client's protocol and the runtime's.
#[derive(Clone, Debug)]
pub(super) enum Translation {
    /// Client and runtime use the same protocol.
    Unchanged,
    /// WebSocket v5 to the SPDY streams of a command.
    Channels(StreamFlags),
    /// The SPDY inside of a WebSocket, by the protocols that the client offers for it.
    Tunnel(Vec<String>),
}

impl Translation {
    /// For a command with these streams. Nothing is translated when the gate is off.
    pub(super) fn of_command(gate: bool, headers: &HeaderMap, streams: StreamFlags) -> Self {
        let mut offered = upgrade_request::offered_protocols(headers);
        let wanted = gate && upgrade_request::names_websocket(headers);
        match wanted && offered.any(|protocol| protocol == translate::CLIENT_PROTOCOL) {
            true => Translation::Channels(streams),
            false => Translation::Unchanged,
        }
    }

    /// For forwarded ports. Nothing is translated when the gate is off.
    pub(super) fn of_ports(gate: bool, headers: &HeaderMap) -> Self {
        if !gate || !upgrade_request::names_websocket(headers) {
            return Translation::Unchanged;
        }
        let inner = |name: &str| {
            let inner = name.strip_prefix(TUNNEL_PREFIX).filter(|inner| inner.ends_with(TUNNEL_SUFFIX));
            inner.map(str::to_owned)
        };
        let inner: Vec<String> = upgrade_request::offered_protocols(headers).filter_map(inner).collect();
        if inner.is_empty() { Translation::Unchanged } else { Translation::Tunnel(inner) }
    }

    /// Whether anything is translated.
    pub(super) fn is_needed(&self) -> bool {
        !matches!(self, Translation::Unchanged)
    }

    /// Method and headers of the request to the runtime.
    fn runtime_request(&self, method: &Method, headers: &HeaderMap) -> (Method, HeaderMap) {
        let protocols: Vec<&str> = match self {
            Translation::Unchanged => return (method.clone(), headers.clone()),
            Translation::Channels(_) => vec![translate::RUNTIME_PROTOCOL],
            Translation::Tunnel(inner) => inner.iter().map(String::as_str).collect(),
        };
        const WEBSOCKET: [HeaderName; 5] = [
            header::SEC_WEBSOCKET_KEY,
            header::SEC_WEBSOCKET_VERSION,
            header::SEC_WEBSOCKET_PROTOCOL,
            header::SEC_WEBSOCKET_EXTENSIONS,
            header::ORIGIN,
        ];
        let mut asked = headers.clone();
        WEBSOCKET.iter().for_each(|name| drop(asked.remove(name)));
        asked.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        asked.insert(header::UPGRADE, HeaderValue::from_static(spdy::UPGRADE));
        asked.remove(spdy::PROTOCOL_VERSION);
        for protocol in protocols.into_iter().filter_map(|protocol| protocol.parse().ok()) {
            asked.append(spdy::PROTOCOL_VERSION, protocol);
        }
        (Method::POST, asked)
    }

    /// Headers of the response to the client after the runtime has accepted.
    fn client_response_headers(
        &self,
        method: &Method,
        headers: &HeaderMap,
        runtime: &HeaderMap,
    ) -> Result<HeaderMap, websocket::HandshakeError> {
        match self {
            Translation::Unchanged => Ok(runtime.clone()),
            Translation::Channels(_) => websocket::accept(method, headers, Some(translate::CLIENT_PROTOCOL)),
            Translation::Tunnel(_) => {
                let inner = runtime.get(spdy::PROTOCOL_VERSION).and_then(|value| value.to_str().ok());
                let chosen = inner.map(|inner| format!("{TUNNEL_PREFIX}{}", inner.trim()));
                websocket::accept(method, headers, chosen.as_deref())
            }
        }
    }

    async fn relay(self, client: impl ByteStream, runtime: impl ByteStream, idle: Duration) -> StreamEnd {
        match self {
            Translation::Unchanged => splice(client, runtime, idle).await,
            Translation::Channels(streams) => translate(client, runtime, streams, idle).await,
            Translation::Tunnel(_) => tunnel(client, runtime, idle).await,
        }
    }
}

/// Asks the runtime where to stream, and carries the request there.
pub(super) async fn proxy_stream(
    api: &SecureApi,
    mut request: Request,
    translation: Translation,
    url: impl Future<Output = Result<String, RuntimeError>>,
) -> Response {
    if !upgrade_request::wants_upgrade(request.headers()) {
        return plain_text(StatusCode::INTERNAL_SERVER_ERROR, "Upgrade request required\n");
    }
    // A handshake that can't be answered is refused before the runtime makes anything for it.
    if let Err(bad) =
        translation.client_response_headers(request.method(), request.headers(), &HeaderMap::new())
    {
        return plain_text(bad.status(), bad);
    }
    let url = match url.await {
        Ok(url) => url,
        Err(error) => return runtime_error_response(&error),
    };
    let (method, headers) = translation.runtime_request(request.method(), request.headers());
    let upgraded = match request_upgrade(&api.streaming_tls, &url, method, headers).await {
        Ok(answer) => answer,
        Err(error) => return plain_text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    };
    if upgraded.status() != StatusCode::SWITCHING_PROTOCOLS {
        return copy_refusal(upgraded).await;
    }
    let headers =
        match translation.client_response_headers(request.method(), request.headers(), upgraded.headers()) {
            Ok(headers) => headers,
            Err(bad) => return plain_text(bad.status(), bad),
        };
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *answer.headers_mut() = headers;
    let client = hyper::upgrade::on(&mut request);
    let (idle, stop) = (api.settings.stream_idle, api.stop.clone());
    // The request is in progress for as long as its stream.
    let counted = request.extensions().get::<InflightGuard>().cloned();
    tokio::spawn(async move {
        let _counted = counted;
        let streaming = async {
            let (client, server) = tokio::try_join!(client, hyper::upgrade::on(upgraded))?;
            let carried = translation.relay(TokioIo::new(client), TokioIo::new(server), idle);
            Ok::<StreamEnd, hyper::Error>(carried.await)
        };
        match stop.run_until_cancelled(streaming).await {
            Some(Ok(ended)) => tracing::debug!(?ended, "a stream ended"),
            Some(Err(error)) => tracing::debug!(%error, "upgrading a stream failed"),
            None => {}
        }
    });
    answer
}

/// The runtime does not want to stream.
fn runtime_error_response(error: &RuntimeError) -> Response {
    let text = error.user_message();
    match error {
        RuntimeError::NotFound { .. } => plain_text(StatusCode::NOT_FOUND, text),
        RuntimeError::Failed { code: GrpcCode::ResourceExhausted, .. } => {
            let mut answer = plain_text(StatusCode::TOO_MANY_REQUESTS, text);
            answer.headers_mut().insert(header::RETRY_AFTER, http::HeaderValue::from_static("60"));
            answer
        }
        _ => plain_text(StatusCode::INTERNAL_SERVER_ERROR, text),
    }
}

/// Sends the head of the request to the runtime, and gives its answer.
async fn request_upgrade(
    tls_settings: &StreamingTls,
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
    let stream = match tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect((host, port))).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(source)) => return Err(ProxyError::Connect { address, source }),
        Err(_) => return Err(ProxyError::TimedOut(address)),
    };
    let _ = stream.set_nodelay(true);
    let stream: Box<dyn ByteStream> = match tls {
        false => Box::new(stream),
        true => match tokio::time::timeout(CONNECT_TIMEOUT, tls_settings.connect(host, stream)).await {
            Ok(Ok(stream)) => Box::new(stream),
            Ok(Err(source)) => return Err(ProxyError::Connect { address, source }),
            Err(_) => return Err(ProxyError::TimedOut(address)),
        },
    };
    let exchange = async {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection.with_upgrades());
        let mut head = http::Request::new(Body::empty());
        *head.method_mut() = method;
        *head.uri_mut() =
            uri.path_and_query().map_or_else(|| Uri::from_static("/"), |path| path.clone().into());
        *head.headers_mut() = forwarded_headers(headers, uri.authority().map(|host| host.as_str()));
        sender.send_request(head).await
    };
    match tokio::time::timeout(ANSWER_TIMEOUT, exchange).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(source)) => Err(ProxyError::Exchange { address, source }),
        Err(_) => Err(ProxyError::TimedOut(address)),
    }
}

/// Either kind of connection to the runtime.
trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> ByteStream for T {}

/// TLS with the runtime's streaming server.
#[derive(Clone)]
pub struct StreamingTls {
    /// For a streaming server on this machine. It has a self-signed certificate, which is not verified: only root could
    /// listen there in the runtime's place.
    pub for_local_runtime: Arc<ClientConfig>,
    /// For a streaming server elsewhere, verified by the CAs of this machine. Made on demand: few nodes have such a
    /// runtime, and there are many CAs.
    pub for_remote_runtime: Arc<dyn Fn() -> io::Result<Arc<ClientConfig>> + Send + Sync>,
}

impl StreamingTls {
    /// The TLS configuration for this peer, and the name that its certificate must have.
    fn config_for(
        &self,
        host: &str,
        peer: IpAddr,
        local: IpAddr,
    ) -> io::Result<(Arc<ClientConfig>, ServerName<'static>)> {
        if peer.is_loopback() || peer == local {
            return Ok((self.for_local_runtime.clone(), ServerName::from(peer)));
        }
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        Ok(((self.for_remote_runtime)()?, name))
    }

    async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let (peer, local) = (stream.peer_addr()?.ip(), stream.local_addr()?.ip());
        let (config, name) = self.config_for(host, peer, local)?;
        TlsConnector::from(config).connect(name, stream).await
    }
}

/// The client's headers without those that name this node or hold the client's credentials.
fn forwarded_headers(mut passed: HeaderMap, host: Option<&str>) -> HeaderMap {
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
async fn copy_refusal(answer: http::Response<hyper::body::Incoming>) -> Response {
    let (head, body) = answer.into_parts();
    let read = tokio::time::timeout(ANSWER_TIMEOUT, Limited::new(body, MAX_REFUSAL_BYTES).collect()).await;
    let text = read.ok().and_then(Result::ok).map(|body| body.to_bytes()).unwrap_or_default();
    plain_text(head.status, String::from_utf8_lossy(&text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::tests::TestClient;

    #[test]
    fn who_has_to_prove_who_it_is() {
        let (here, elsewhere) = (TestClient::new("", None).config, TestClient::new("", None).config);
        let given = elsewhere.clone();
        let tls = StreamingTls {
            for_local_runtime: here.clone(),
            for_remote_runtime: Arc::new(move || Ok(given.clone())),
        };
        let check = |host: &str, peer: &str, local: &str, expect: Option<&str>| {
            let (config, name) = tls.config_for(host, peer.parse().unwrap(), local.parse().unwrap()).unwrap();
            let verified = Arc::ptr_eq(&config, &elsewhere);
            assert!(verified || Arc::ptr_eq(&config, &here));
            let expect = expect.map(|name| ServerName::try_from(name.to_owned()).unwrap());
            assert_eq!(verified.then_some(name), expect, "{host} {peer} {local}");
        };
        check("127.0.0.1", "127.0.0.1", "127.0.0.1", None);
        check("::1", "::1", "::1", None);
        check("node.example", "10.0.0.1", "10.0.0.1", None);
        check("runtime.example", "10.0.0.2", "10.0.0.1", Some("runtime.example"));
        check("10.0.0.2", "10.0.0.2", "10.0.0.1", Some("10.0.0.2"));
    }

    #[test]
    fn what_is_translated_and_what_is_not() {
        let streams = StreamFlags { stdin: true, stdout: true, stderr: false, tty: false };
        let headers = |upgrade: &str, protocols: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::UPGRADE, upgrade.parse().unwrap());
            headers.insert(header::SEC_WEBSOCKET_PROTOCOL, protocols.parse().unwrap());
            headers.insert(header::USER_AGENT, HeaderValue::from_static("me"));
            headers.insert(header::SEC_WEBSOCKET_KEY, HeaderValue::from_static("k"));
            headers
        };
        let both = headers("websocket", "v5.channel.k8s.io, v4.channel.k8s.io");
        let old = headers("websocket", "v4.channel.k8s.io");
        let spdy_itself = headers("SPDY/3.1", "v5.channel.k8s.io");
        let command = |gate, headers: &HeaderMap| Translation::of_command(gate, headers, streams);
        let channels = command(true, &both);
        assert!(matches!(channels, Translation::Channels(wanted) if wanted.stdin && !wanted.stderr));
        for (gate, headers) in [(false, &both), (true, &old), (true, &spdy_itself)] {
            assert!(!command(gate, headers).is_needed(), "{gate} {headers:?}");
        }
        let ports = headers("websocket", "SPDY/3.1+portforward.k8s.io, SPDY/3.1+other, v4.channel.k8s.io");
        let tunnel = Translation::of_ports(true, &ports);
        assert!(matches!(&tunnel, Translation::Tunnel(inner) if *inner == ["portforward.k8s.io"]));
        assert!(!Translation::of_ports(false, &ports).is_needed());
        assert!(!Translation::of_ports(true, &old).is_needed());

        let (method, asked) = tunnel.runtime_request(&Method::GET, &ports);
        assert_eq!((method, &asked[header::UPGRADE]), (Method::POST, &HeaderValue::from_static("SPDY/3.1")));
        assert_eq!(asked[spdy::PROTOCOL_VERSION], "portforward.k8s.io");
        assert_eq!(asked[header::USER_AGENT], "me");
        assert!(
            !asked.contains_key(header::SEC_WEBSOCKET_KEY)
                && !asked.contains_key(header::SEC_WEBSOCKET_PROTOCOL)
        );
        assert_eq!(
            channels.runtime_request(&Method::GET, &both).1[spdy::PROTOCOL_VERSION],
            "v4.channel.k8s.io"
        );
    }
}
