//! The secure port: TLS, and limits on what hostile clients can do.
//!
//! ```text
//!   accept ─> idle ─(TLS within HANDSHAKE_TIMEOUT)─> active ─(a request is allowed)─> authorized
//!              └── at the limit, the oldest is closed: see `unauthenticated_connections`
//! ```
//!
//! The memory that unauthorized connections can use is bounded by their number times
//! [`MAX_UNAUTHENTICATED_HEADER_BYTES`].

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use crate::access::Peer;
use crate::listen::{ACCEPT_PAUSE, DRAIN_TIMEOUT, IDLE_TIMEOUT, ServeError, ServerHandle, bind_tcp};
use crate::tls::ClientAuthority;
use crate::unauthenticated_connections::{UnauthenticatedConnection, UnauthenticatedConnections};

/// How long a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest head of a request from a client without a trusted certificate.
const MAX_UNAUTHENTICATED_HEADER_BYTES: usize = 64 * 1024;
/// Longest head of any other request. Its first line, which holds the commands of exec, is limited to 64 KiB by hyper.
const MAX_HEADER_BYTES: usize = 1024 * 1024;

/// The TLS configuration, and the CAs of client certificates.
pub struct Tls {
    pub config: Arc<ServerConfig>,
    pub authority: Option<Arc<ClientAuthority>>,
}

/// Serves `router` over TLS. Its requests carry their [`Peer`].
pub async fn serve_tls(
    what: &'static str,
    host: &str,
    port: u16,
    tls: Tls,
    router: Router,
    stop: CancellationToken,
) -> Result<ServerHandle, ServeError> {
    let (listener, address) = bind_tcp(what, host, port).await?;
    let abort = CancellationToken::new();
    let acceptor = TlsAcceptor::from(tls.config);
    let server = SecureServer { what, acceptor, authority: tls.authority, router, stop, abort };
    Ok(ServerHandle::new(Some(address), tokio::spawn(serve(server, listener))))
}

#[derive(Clone)]
struct SecureServer {
    what: &'static str,
    acceptor: TlsAcceptor,
    authority: Option<Arc<ClientAuthority>>,
    router: Router,
    /// Takes no new request.
    stop: CancellationToken,
    /// Ends every connection, when the time to drain is over.
    abort: CancellationToken,
}

async fn serve(server: SecureServer, listener: TcpListener) {
    let open = TaskTracker::new();
    let mut guests = UnauthenticatedConnections::default();
    while let Some(accepted) = server.stop.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok((stream, _)) => {
                let guest = guests.add_connection();
                open.spawn(server.clone().handle_connection(stream, guest));
            }
            Err(error) => {
                tracing::debug!(%error, "the {} could not accept a connection", server.what);
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    open.close();
    if tokio::time::timeout(DRAIN_TIMEOUT, open.wait()).await.is_err() {
        server.abort.cancel();
    }
}

impl SecureServer {
    async fn handle_connection(self, stream: TcpStream, guest: Arc<UnauthenticatedConnection>) {
        let serving = async {
            // Keystrokes of a terminal must not wait for more.
            let _ = stream.set_nodelay(true);
            let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, self.acceptor.accept(stream)).await {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed on the {}", self.what),
                Err(_) => return tracing::debug!("TLS handshake timed out on the {}", self.what),
            };
            self.serve_requests(stream, guest.clone()).await;
        };
        tokio::select! {
            () = serving => {}
            () = self.abort.cancelled() => {}
            () = guest.displaced() => tracing::debug!("closed an unauthenticated connection: there are too many"),
        }
    }

    async fn serve_requests(&self, stream: TlsStream<TcpStream>, guest: Arc<UnauthenticatedConnection>) {
        let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let certificates: Vec<_> = certificates.iter().map(|one| one.clone().into_owned()).collect();
        let vouched = |authority: &Arc<ClientAuthority>| {
            authority.identify(&certificates).is_ok_and(|who| who.is_some())
        };
        let is_known = self.authority.as_ref().is_some_and(vouched);
        if is_known {
            guest.mark_active();
        }
        let headers = if is_known { MAX_HEADER_BYTES } else { MAX_UNAUTHENTICATED_HEADER_BYTES };
        let peer = Peer::new(certificates, guest.authorized.clone());
        let router = self.router.clone();
        let service = hyper::service::service_fn(move |mut request: http::Request<Incoming>| {
            guest.mark_active();
            request.extensions_mut().insert(peer.clone());
            router.clone().oneshot(request)
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE_TIMEOUT)
            .max_buf_size(headers)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades();
        let mut connection = std::pin::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = self.stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection of the {} failed", self.what);
        }
    }
}

#[cfg(test)]
mod tests;
