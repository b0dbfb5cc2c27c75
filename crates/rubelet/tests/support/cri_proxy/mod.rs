//! A CRI proxy between the agent and the real runtime that injects faults by a script.
//!
//! ```text
//! agent ──> proxy.sock ──(script: what becomes of this call?)──> containerd.sock
//!                                                    Seen, ctr ──^   tests ask past the proxy
//! ```
//!
//! It knows gRPC only as far as it must: paths, frames and the final status. Messages go through as bytes, so every
//! method of every version passes, the streams of events too.
//!
//! What reaches the runtime is always carried to its end, whatever becomes of the caller: a call is never cut inside
//! containerd, and its deadline does not travel along. containerd 1.6 can lose a task whose start is cancelled in its
//! middle, and these tests are about the agent. The agent sees the same: no answer, an error, a lost connection, and
//! an effect that comes later than it waited.

mod relay;
mod script;
mod stream;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper::client::conn::http2 as client;
use hyper::server::conn::http2 as server;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::support::harness::Runtime;
use relay::Line;
use script::Book;
pub use script::{Fault, Rule, Script, When};

/// As the agent's own: a list of a full node must not wait for window updates.
const WINDOW: u32 = 1024 * 1024;

pub struct Proxy {
    socket: PathBuf,
    book: Arc<watch::Sender<Book>>,
    /// Cancelled and made anew to cut every connection.
    connections: Arc<watch::Sender<CancellationToken>>,
    _io: tokio::runtime::Runtime,
}

impl Proxy {
    /// Listens on a socket beside the runtime's own. It injects no faults yet.
    pub fn start(runtime: &Runtime) -> Proxy {
        let socket = runtime.dir.join("proxy.sock");
        let io = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let io = io.expect("an async runtime for the proxy");
        let inside = io.enter();
        let listener = UnixListener::bind(&socket).expect("listen on the proxy's socket");
        drop(inside);
        let book = Arc::new(watch::Sender::new(Book::default()));
        let connections = Arc::new(watch::Sender::new(CancellationToken::new()));
        let upstream = PathBuf::from(runtime.fact("socket"));
        io.spawn(accept(listener, upstream, book.clone(), connections.clone()));
        Proxy { socket, book, connections, _io: io }
    }

    /// The endpoint for the agent's configuration.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// Applies these rules from now on, and starts counting anew.
    pub fn play(&self, script: Script) {
        self.book.send_modify(|book| book.play(script));
    }

    /// Injects no faults from now on. Calls that are held for good fail now.
    pub fn quiet(&self) {
        self.play(Script::default());
    }

    /// Cuts every connection, once.
    pub fn cut(&self) {
        self.connections.send_replace(CancellationToken::new()).cancel();
    }

    /// How often a method was called since the proxy began.
    pub fn calls(&self, method: &str) -> u64 {
        self.book.borrow().calls(method)
    }

    /// The request of each `PullImage`, as bytes.
    pub fn pulls(&self) -> Vec<Vec<u8>> {
        self.book.borrow().pulls()
    }

    /// How often each fault was injected since the proxy began, by `Method fault`.
    pub fn faults(&self) -> BTreeMap<String, u64> {
        self.book.borrow().faults()
    }
}

async fn accept(
    listener: UnixListener,
    upstream: PathBuf,
    book: Arc<watch::Sender<Book>>,
    connections: Arc<watch::Sender<CancellationToken>>,
) {
    while let Ok((stream, _)) = listener.accept().await {
        let (upstream, book) = (upstream.clone(), book.clone());
        let cut = connections.borrow().child_token();
        tokio::spawn(async move {
            // A runtime that is away is a connection that ends at once.
            if let Ok(line) = connect(&upstream, book, cut.clone()).await {
                serve(stream, line, cut).await;
            }
        });
    }
}

/// Each connection of the agent has its own connection to the runtime, so the order of calls is kept.
async fn connect(
    upstream: &Path,
    book: Arc<watch::Sender<Book>>,
    cut: CancellationToken,
) -> io::Result<Line> {
    let stream = UnixStream::connect(upstream).await?;
    let (sender, connection) = client::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    let ended = cut.clone();
    // It outlives the agent's connection as long as a call is under way.
    tokio::spawn(async move {
        let _ = connection.await;
        ended.cancel();
    });
    Ok(Line { sender, book, cut })
}

async fn serve(stream: UnixStream, line: Line, cut: CancellationToken) {
    let service = service_fn(move |request| {
        let line = line.clone();
        async move { Ok::<_, std::convert::Infallible>(line.relay(request).await) }
    });
    let connection = server::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_concurrent_streams(10_000)
        .serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        _ = connection => {}
        () = cut.cancelled() => {}
    }
}
