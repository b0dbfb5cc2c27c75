//! The imperative shell around the decision core.
//!
//! ```text
//!   feeds, hints, timers ──┐                              ┌─> executor: one task per running plan
//!   outcomes, readings  ───┴─> dispatcher ──> step ──> effects ─> readings, image calls, sweeps, timers
//!                              (owns NodeState)
//! ```
//!
//! One dispatcher task owns the state. Every effect that takes time runs in its own task, which sends an event when it
//! ends. Nothing here reads a pod's spec or makes a decision.

mod api_calls;
mod clock;
mod csi;
mod disk_calls;
mod dispatcher;
mod event_recorder;
mod executor;
mod exit_waiters;
#[cfg(test)]
mod fake_api;
mod hooks;
mod image_calls;
mod lease_renewer;
mod node_duties;
mod node_reconciler;
mod object_watches;
mod observe;
mod panicked_calls;
mod panics;
mod plugin_calls;
mod probe_calls;
mod query;
mod sweep;
mod tasks;
mod tear_down;
mod timers;

use std::sync::Arc;

use decide::NodeState;
use ports::{
    Cgroups, ClusterPorts, EngineMetrics, EventSink, HttpHooks, Images, PanicRecords, PodFeed, PodFiles,
    ProbeRecordStore, Prober, PullRecords, RegistryCredentials, Runtime, RuntimeEvents, Tracing,
    VolumeNoticeFeed, WallClock,
};
use tokio_util::sync::CancellationToken;

pub use clock::Clock;
pub use csi::{CsiPorts, VolumeCalls};
pub use dispatcher::EngineError;
pub use event_recorder::EventRecorder;
pub use node_duties::NodeDuties;
pub use query::EngineHandle;
pub use tasks::EssentialTasks;

/// The ports that the engine uses.
#[derive(Clone)]
pub struct Ports {
    pub runtime: Arc<dyn Runtime>,
    pub images: Arc<dyn Images>,
    pub credentials: Arc<dyn RegistryCredentials>,
    /// `None`: pulls are not recorded.
    pub pull_records: Option<Arc<dyn PullRecords>>,
    pub hints: Arc<dyn RuntimeEvents>,
    pub files: Arc<dyn PodFiles>,
    pub volume_news: Arc<dyn VolumeNoticeFeed>,
    pub cgroups: Arc<dyn Cgroups>,
    pub events: Arc<dyn EventSink>,
    pub http_hooks: Arc<dyn HttpHooks>,
    pub prober: Arc<dyn Prober>,
    pub probe_records: Arc<dyn ProbeRecordStore>,
    pub panic_records: Arc<dyn PanicRecords>,
    pub wall: Arc<dyn WallClock>,
    pub meter: Arc<dyn EngineMetrics>,
    /// `None`: no storage driver can register.
    pub csi: Option<CsiPorts>,
    /// Where plans send their spans.
    pub tracing: Tracing,
    /// `None`: the node runs without a cluster.
    pub cluster: Option<ClusterPorts>,
}

/// An engine that has not started. Queries may be sent already; they are answered once it runs.
pub struct Engine(dispatcher::PreparedEngine);

impl Engine {
    /// Adds the node's duties: in a cluster its Node object and Lease, and everywhere the facts about the host.
    pub fn with_node_duties(mut self, duties: NodeDuties) -> Self {
        self.0.duties = Some(duties);
        self
    }

    /// Makes every step panic that plans a pod of this name, or one with a container of this name, so that tests see
    /// what follows. Only in debug builds.
    #[cfg(debug_assertions)]
    pub fn with_test_panic(mut self, name: String) -> Self {
        self.0.with_test_panic(name);
        self
    }

    /// Runs until `stop` is cancelled; the pods keep running then. Any other end is an error, and the process must end
    /// too.
    pub fn start(self) -> tokio::task::JoinHandle<Result<(), EngineError>> {
        self.0.start()
    }
}

pub fn new(
    state: NodeState,
    ports: Ports,
    feeds: Vec<Box<dyn PodFeed>>,
    stop: CancellationToken,
) -> (EngineHandle, Engine) {
    let (handle, ready) = dispatcher::prepare(state, ports, feeds, stop);
    (handle, Engine(ready))
}
