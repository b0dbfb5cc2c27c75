//! A gRPC server over a unix socket that answers as a test wants, for what no sound runtime does.

#![allow(dead_code)] // each test binary uses its part

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use cri::CriClient;
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::service::Routes;
use tonic::transport::Server;

pub mod pb {
    #![allow(clippy::all)]
    include!(concat!(env!("OUT_DIR"), "/server/runtime.v1.rs"));
}

pub mod containerd {
    #![allow(clippy::all)]
    include!(concat!(env!("OUT_DIR"), "/server/containerd.services.events.v1.rs"));
}

/// Serves until dropped. It has a thread and a tokio runtime of its own, so that its connections end with it, as
/// those of a killed process do.
pub struct FalseRuntime {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl FalseRuntime {
    pub fn serve(socket: &Path, routes: Routes) -> Self {
        let _ = std::fs::remove_file(socket);
        let listener = UnixListener::bind(socket).expect("bind");
        listener.set_nonblocking(true).expect("non-blocking");
        let (stop, stopped) = oneshot::channel();
        let serve = async move {
            let listener = tokio::net::UnixListener::from_std(listener).expect("listener");
            let incoming = UnixListenerStream::new(listener);
            tokio::select! {
                result = Server::builder().add_routes(routes).serve_with_incoming(incoming) => result.expect("serve"),
                _ = stopped => {}
            }
        };
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
            runtime.block_on(serve);
        });
        Self { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for FalseRuntime {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A place for a socket, for as long as the directory lives.
pub fn socket() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("cri.sock");
    (directory, path)
}

pub fn client(socket: &Path, timeout: Duration) -> CriClient {
    CriClient::connect(&format!("unix://{}", socket.display()), None, timeout).expect("endpoint")
}

/// Longer than any test takes.
pub const LONG: Duration = Duration::from_secs(60);
