//! The route to the server: direct, or through a proxy.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderValue, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower::{Service, ServiceExt};

type BoxError = Box<dyn std::error::Error + Send + Sync>;
pub type ServerStream = MaybeHttpsStream<TokioIo<TcpStream>>;

const CONNECT_WITHIN: Duration = Duration::from_secs(30);
/// The idle time after which TCP keepalive probes are sent.
const KEEPALIVE: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub enum ServerConnector {
    Direct(HttpConnector),
    /// CONNECT through an HTTP proxy.
    Tunnel(Tunnel<HttpConnector>),
    /// The same, over TLS to the proxy.
    SecureTunnel(Tunnel<HttpsConnector<HttpConnector>>),
    Socks(SocksV5<HttpConnector>),
}

impl ServerConnector {
    /// `proxy` comes from the kubeconfig; without it the proxy environment variables are used.
    pub fn to(server: &Uri, proxy: Option<&Uri>) -> io::Result<ServerConnector> {
        let matcher = match proxy {
            Some(proxy) => Matcher::builder().all(proxy.to_string()).build(),
            None => Matcher::from_env(),
        };
        let Some(through) = matcher.intercept(server) else { return Ok(ServerConnector::Direct(tcp())) };
        let uri = through.uri().clone();
        match uri.scheme_str() {
            Some("socks5" | "socks5h") => {
                let socks = SocksV5::new(uri, tcp());
                Ok(ServerConnector::Socks(match through.raw_auth() {
                    Some((user, password)) => socks.with_auth(user.to_owned(), password.to_owned()),
                    None => socks,
                }))
            }
            Some("https") => {
                let tls = HttpsConnectorBuilder::new()
                    .with_provider_and_native_roots(rustls::crypto::ring::default_provider())?
                    .https_only()
                    .enable_http1()
                    .wrap_connector(tcp());
                Ok(ServerConnector::SecureTunnel(tunnel(uri, tls, through.basic_auth())))
            }
            _ => Ok(ServerConnector::Tunnel(tunnel(uri, tcp(), through.basic_auth()))),
        }
    }
}

fn tunnel<C>(proxy: Uri, connector: C, auth: Option<&HeaderValue>) -> Tunnel<C> {
    let tunnel = Tunnel::new(proxy, connector);
    match auth {
        Some(auth) => tunnel.with_auth(auth.clone()),
        None => tunnel,
    }
}

fn tcp() -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_WITHIN));
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp
}

impl Service<Uri> for ServerConnector {
    type Response = ServerStream;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<ServerStream, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let route = self.clone();
        Box::pin(async move {
            Ok(match route {
                ServerConnector::Direct(tcp) => ServerStream::Http(tcp.oneshot(to).await?),
                ServerConnector::Tunnel(tunnel) => ServerStream::Http(tunnel.oneshot(with_port(to)).await?),
                ServerConnector::SecureTunnel(tunnel) => tunnel.oneshot(with_port(to)).await?,
                ServerConnector::Socks(socks) => ServerStream::Http(socks.oneshot(with_port(to)).await?),
            })
        })
    }
}

/// CONNECT needs the port even if it is the default of the scheme.
fn with_port(to: Uri) -> Uri {
    if to.port().is_some() {
        return to;
    }
    let Some(host) = to.host() else { return to };
    let port = if to.scheme_str() == Some("http") { 80 } else { 443 };
    let authority = format!("{host}:{port}");
    let mut parts = to.clone().into_parts();
    match authority.parse() {
        Ok(authority) => parts.authority = Some(authority),
        Err(_) => return to,
    }
    Uri::from_parts(parts).unwrap_or(to)
}
