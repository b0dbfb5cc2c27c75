//! Listening sockets.
//!
//! Binding happens at once, so that a port or socket in use is an error of the start. Serving goes on in a task until
//! it is told to stop; open requests get [`DRAIN_TIMEOUT`] to finish. These ports have no authentication. The number
//! of connections is limited: see `unauthenticated_connections`.

use std::fs;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::unauthenticated_connections::UnauthenticatedConnections;

/// How long open requests may go on when the agent stops.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// A connection that sends no request for so long is closed.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Pause after a failed accept: the usual cause is that there are no file descriptors left.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Longest head of a request. No client needs long ones here.
const MAX_HEADER_BYTES: usize = 64 * 1024;
/// Connections that the kernel may hold until they are accepted.
const BACKLOG: i32 = 128;

#[derive(thiserror::Error, Debug)]
pub enum ServeError {
    #[error("cannot listen on {address} for {what}")]
    Bind {
        what: &'static str,
        address: String,
        #[source]
        source: io::Error,
    },
    #[error("{address:?} is not an IP address to listen on for {what}")]
    Address { what: &'static str, address: String },
    #[error("another agent answers on {}", path.display())]
    InUse { path: PathBuf },
    #[error("{} exists and is not a socket: cannot create the {what}", path.display())]
    NotASocket { what: &'static str, path: PathBuf },
    #[error("cannot create the {what} {}", path.display())]
    Socket {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// A listener that is being served. Dropping it changes nothing: only the token given to it ends it.
pub struct ServerHandle {
    address: Option<SocketAddr>,
    task: JoinHandle<()>,
}

impl ServerHandle {
    pub(crate) fn new(address: Option<SocketAddr>, task: JoinHandle<()>) -> Self {
        Self { address, task }
    }

    /// Where it listens; `None` for a unix socket.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Waits until it has ended, for whatever reason. It is not to be waited for again after that.
    pub async fn closed(&mut self) {
        let _ = (&mut self.task).await;
    }

    /// Waits until it was told to stop and open requests had their time.
    pub async fn ended(self) {
        // A panic was already printed, and there is nothing left to end.
        let _ = self.task.await;
    }
}

/// Listens on an address of this host; with port 0 on one that is free. `what` names the port in errors and logs.
pub(crate) async fn bind_tcp(
    what: &'static str,
    host: &str,
    port: u16,
) -> Result<(TcpListener, SocketAddr), ServeError> {
    let ip = host.parse().map_err(|_| ServeError::Address { what, address: host.to_owned() })?;
    let wanted = SocketAddr::new(ip, port);
    let bind = |source| ServeError::Bind { what, address: wanted.to_string(), source };
    let listener = TcpListener::bind(wanted).await.map_err(bind)?;
    let address = listener.local_addr().map_err(bind)?;
    tracing::info!(%address, "serving the {what}");
    Ok((listener, address))
}

/// Serves `router` on an address of this host. `what` names the port in errors and logs.
pub async fn serve_tcp(
    what: &'static str,
    host: &str,
    port: u16,
    router: Router,
    stop: CancellationToken,
) -> Result<ServerHandle, ServeError> {
    let (listener, address) = bind_tcp(what, host, port).await?;
    Ok(ServerHandle { address: Some(address), task: tokio::spawn(serve(what, listener, router, stop)) })
}

/// Serves `router` on a unix socket that only its owner can connect to. A socket that nobody answers on is replaced.
pub async fn serve_unix(
    what: &'static str,
    path: &Path,
    router: Router,
    stop: CancellationToken,
) -> Result<ServerHandle, ServeError> {
    let (listener, socket) = bind_unix(what, path).await?;
    tracing::info!(path = %path.display(), "serving the {what}");
    let task = tokio::spawn(async move {
        serve(what, listener, router, stop).await;
        socket.remove();
    });
    Ok(ServerHandle { address: None, task })
}

/// Listens on a unix socket that only its owner can connect to. A socket that nobody answers on is replaced.
pub(crate) async fn bind_unix(
    what: &'static str,
    path: &Path,
) -> Result<(UnixListener, OwnedSocket), ServeError> {
    check_socket_path(what, path).await?;
    let failed = |source| ServeError::Socket { what, path: path.to_owned(), source };
    let listener = private_listener(path).map_err(failed)?;
    let identity = identity(path).map_err(failed)?;
    Ok((listener, OwnedSocket { path: path.to_owned(), identity }))
}

/// A socket that this process made.
pub(crate) struct OwnedSocket {
    path: PathBuf,
    identity: (u64, u64),
}

impl OwnedSocket {
    /// Another process may have replaced the socket since: that one is not removed.
    pub fn remove(self) {
        if identity(&self.path).is_ok_and(|now| now == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Checks that the path may be replaced.
async fn check_socket_path(what: &'static str, path: &Path) -> Result<(), ServeError> {
    let failed = |source| ServeError::Socket { what, path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(ServeError::NotASocket { what, path: path.to_owned() });
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Ok(_) => {}
        Err(error) => return Err(failed(error)),
    }
    match UnixStream::connect(path).await {
        Ok(_) => Err(ServeError::InUse { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

/// The socket is bound under a temporary name, restricted to its owner, and then renamed. So other users can never
/// connect, and a stale socket is replaced atomically.
fn private_listener(path: &Path) -> io::Result<UnixListener> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};

    let mut temporary_path = path.as_os_str().to_owned();
    temporary_path.push(".new");
    let temporary_path = PathBuf::from(temporary_path);
    match fs::remove_file(&temporary_path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    bind(&socket, &SocketAddrUnix::new(&temporary_path)?)?;
    fs::set_permissions(&temporary_path, fs::Permissions::from_mode(0o600))?;
    listen(&socket, BACKLOG)?;
    fs::rename(&temporary_path, path)?;
    UnixListener::from_std(std::os::unix::net::UnixListener::from(socket))
}

/// Device and inode.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

/// What both kinds of listener can do.
trait StreamListener: Send + 'static {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    fn accept_stream(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl StreamListener for TcpListener {
    type Stream = TcpStream;
    async fn accept_stream(&self) -> io::Result<TcpStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

impl StreamListener for UnixListener {
    type Stream = UnixStream;
    async fn accept_stream(&self) -> io::Result<UnixStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

async fn serve(what: &'static str, listener: impl StreamListener, router: Router, stop: CancellationToken) {
    let open = GracefulShutdown::new();
    let abort = CancellationToken::new();
    let mut guests = UnauthenticatedConnections::default();
    while let Some(accepted) = stop.run_until_cancelled(listener.accept_stream()).await {
        match accepted {
            Ok(stream) => {
                let guest = guests.add_connection();
                let (router, asks) = (router.clone(), guest.clone());
                let service = hyper::service::service_fn(move |request: http::Request<Incoming>| {
                    asks.mark_active();
                    router.clone().oneshot(request)
                });
                let connection = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(IDLE_TIMEOUT)
                    .max_buf_size(MAX_HEADER_BYTES)
                    .serve_connection(TokioIo::new(stream), service);
                let connection = open.watch(connection);
                let abort = abort.clone();
                tokio::spawn(async move {
                    tokio::select! {
                        ended = connection => if let Err(error) = ended {
                            tracing::debug!(%error, "a connection of the {what} failed");
                        },
                        () = abort.cancelled() => {}
                        () = guest.displaced() => tracing::debug!("closed a connection of the {what}: there are too many"),
                    }
                });
            }
            Err(error) => {
                tracing::debug!(%error, "the {what} could not accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    if tokio::time::timeout(DRAIN_TIMEOUT, open.shutdown()).await.is_err() {
        abort.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{get_tcp, get_unix};
    use axum::routing::get;

    fn hello() -> Router {
        Router::new().route("/", get(async || "hello"))
    }

    #[tokio::test]
    async fn a_taken_port_is_an_error_that_names_the_address() {
        let stop = CancellationToken::new();
        let first = serve_tcp("health port", "127.0.0.1", 0, hello(), stop.clone()).await.unwrap();
        let address = first.address().unwrap();
        assert_eq!(get_tcp(address, "/").await.body, "hello");
        let second = serve_tcp("health port", "127.0.0.1", address.port(), hello(), stop.clone()).await;
        let error = second.map(|_| ()).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot listen on {address} for health port"));
        let wrong = serve_tcp("health port", "localhost", 0, hello(), stop.clone()).await.map(|_| ());
        assert_eq!(
            wrong.unwrap_err().to_string(),
            r#""localhost" is not an IP address to listen on for health port"#
        );
        stop.cancel();
        first.ended().await;
        assert!(TcpStream::connect(address).await.is_err(), "the port is free again");
    }

    #[tokio::test]
    async fn both_families_can_be_listened_on() {
        let without_ipv6 = std::net::TcpListener::bind("[::1]:0").is_err();
        let hosts = ["127.0.0.1", "0.0.0.0", "::1", "::"];
        for host in hosts.into_iter().filter(|host| !(without_ipv6 && host.contains(':'))) {
            let stop = CancellationToken::new();
            let serving = serve_tcp("port", host, 0, hello(), stop.clone()).await.unwrap();
            let port = serving.address().unwrap().port();
            let here = if host.contains(':') { "::1" } else { "127.0.0.1" };
            assert_eq!(get_tcp(SocketAddr::new(here.parse().unwrap(), port), "/").await.body, "hello");
            stop.cancel();
            serving.ended().await;
        }
    }

    #[tokio::test]
    async fn the_socket_is_private_replaces_a_stale_one_and_goes_with_the_agent() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "a stale socket is there");

        let stop = CancellationToken::new();
        let serving = serve_unix("control socket", &path, hello(), stop.clone()).await.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(get_unix(&path, "/").await.body, "hello");
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["agent.sock"]);

        let second = serve_unix("control socket", &path, hello(), stop.clone()).await.map(|_| ());
        assert!(matches!(second.unwrap_err(), ServeError::InUse { path: named } if named == path));
        assert_eq!(get_unix(&path, "/").await.body, "hello", "the first one still serves");

        stop.cancel();
        serving.ended().await;
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn what_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        fs::write(&path, "precious").unwrap();
        let refused =
            serve_unix("control socket", &path, hello(), CancellationToken::new()).await.map(|_| ());
        assert!(matches!(refused.unwrap_err(), ServeError::NotASocket { .. }));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");

        let missing = dir.path().join("absent/agent.sock");
        let refused =
            serve_unix("control socket", &missing, hello(), CancellationToken::new()).await.map(|_| ());
        assert!(matches!(refused.unwrap_err(), ServeError::Socket { .. }));
        let long = dir.path().join("x".repeat(120));
        let refused =
            serve_unix("control socket", &long, hello(), CancellationToken::new()).await.map(|_| ());
        assert!(matches!(refused.unwrap_err(), ServeError::Socket { .. }));
    }

    /// Idle connections are bounded. They displace neither new connections nor those that wait for a response.
    #[tokio::test]
    async fn a_crowd_pushes_itself_out() {
        use tokio::io::AsyncReadExt;
        let (asked, go) = (CancellationToken::new(), CancellationToken::new());
        let (tells, waits) = (asked.clone(), go.clone());
        let slow = get(async move || {
            tells.cancel();
            waits.cancelled().await;
            "at last"
        });
        let router = hello().route("/slow", slow);
        let serving = serve_tcp("port", "127.0.0.1", 0, router, CancellationToken::new()).await.unwrap();
        let at = serving.address().unwrap();
        let waiting = tokio::spawn(crate::testing::try_get_tcp(at, "/slow"));
        asked.cancelled().await;
        let mut silent = Vec::new();
        for _ in 0..3 * crate::unauthenticated_connections::MAX_UNAUTHENTICATED_CONNECTIONS {
            silent.push(TcpStream::connect(at).await.unwrap());
        }
        assert_eq!(get_tcp(at, "/").await.body, "hello");
        // All but the last ones are closed, far sooner than the idle timeout would.
        for stream in
            silent.iter_mut().take(crate::unauthenticated_connections::MAX_UNAUTHENTICATED_CONNECTIONS)
        {
            let ended = tokio::time::timeout(IDLE_TIMEOUT / 2, stream.read(&mut [0]))
                .await
                .expect("closed for others");
            assert!(matches!(ended, Ok(0) | Err(_)));
        }
        go.cancel();
        assert_eq!(waiting.await.unwrap().unwrap().body, "at last");
    }

    #[tokio::test]
    async fn a_request_that_never_ends_does_not_hold_the_end() {
        let stop = CancellationToken::new();
        let endless = Router::new().route("/", get(std::future::pending::<&'static str>));
        let serving = serve_tcp("port", "127.0.0.1", 0, endless, stop.clone()).await.unwrap();
        let asking = tokio::spawn(crate::testing::try_get_tcp(serving.address().unwrap(), "/"));
        tokio::time::sleep(Duration::from_millis(100)).await;
        stop.cancel();
        serving.ended().await;
        assert!(asking.await.unwrap().is_err());
    }
}
