//! A simulated container runtime over a real CRI socket: any kubelet can connect to it. Nothing runs; sandboxes and
//! containers are entries in a table, and calls return at once. It is for measuring a kubelet with more pods than a
//! machine can run. Never linked into the product.
//!
//! ```text
//!   kubelet ── unix socket ── service (RuntimeService, ImageService) ── World (table) ── FakeRuntime (the benchmark)
//!      ^                                                                  |
//!      +────────────── GetContainerEvents ────────────────────────────────+
//! ```

mod images;
mod service;
mod table;

use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::SystemTime;

use tokio::sync::oneshot;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

pub use table::SharedTable;

/// CRI v1, as far as the adapter speaks it.
pub(crate) mod pb {
    #![allow(clippy::all)]
    include!(concat!(env!("OUT_DIR"), "/server/runtime.v1.rs"));
}

/// Serves in its own thread until dropped.
pub struct FakeRuntime {
    shared: Arc<SharedTable>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl FakeRuntime {
    /// # Errors
    /// If the socket can't be created.
    pub fn serve(socket: &Path) -> io::Result<FakeRuntime> {
        let listener = UnixListener::bind(socket)?;
        listener.set_nonblocking(true)?;
        let shared = Arc::new(SharedTable::default());
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let service = service::Service(shared.clone());
        let thread = std::thread::spawn(move || {
            runtime.block_on(async move {
                let Ok(listener) = tokio::net::UnixListener::from_std(listener) else { return };
                let server = Server::builder()
                    .add_service(pb::runtime_service_server::RuntimeServiceServer::new(service.clone()))
                    .add_service(pb::image_service_server::ImageServiceServer::new(service))
                    .serve_with_incoming(UnixListenerStream::new(listener));
                tokio::select! {
                    ended = server => if let Err(error) = ended { eprintln!("the simulated runtime ended: {error}") },
                    _ = stopped => {}
                }
            });
        });
        Ok(FakeRuntime { shared, stop: Some(stop), thread: Some(thread) })
    }

    /// Ends the running container of a pod, as a crash of its program would, and sends the event. `None`: no container
    /// runs.
    pub fn exit(&self, pod: &str) -> Option<SystemTime> {
        self.shared.lock_from_thread(|world| world.exit_container_of_pod(pod, 1))
    }

    /// When containers of the pod were started, in order.
    pub fn starts(&self, pod: &str) -> Vec<SystemTime> {
        self.shared.lock_from_thread(|world| world.starts.get(pod).cloned().unwrap_or_default())
    }

    /// How many containers run.
    pub fn running(&self) -> usize {
        self.shared.lock_from_thread(|world| world.running())
    }

    /// How often each call was received.
    pub fn calls(&self) -> BTreeMap<&'static str, u64> {
        self.shared.lock_from_thread(|world| world.calls.clone())
    }
}

impl Drop for FakeRuntime {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
