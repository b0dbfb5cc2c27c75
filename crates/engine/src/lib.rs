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
mod context;
mod csi;
mod disk_calls;
mod dispatcher;
mod engine_ports;
mod event_recorder;
mod executor;
mod exit_waiters;
#[cfg(test)]
mod fake_api;
mod hooks;
mod image_call_state;
mod image_calls;
mod image_garbage_calls;
mod lease_renewer;
mod log_calls;
mod node_duties;
mod node_figures;
mod node_reconciler;
mod object_watches;
mod observe;
mod outbox;
mod panicked_calls;
mod panics;
mod plugin_calls;
mod pod_watchers;
mod probe_calls;
mod query;
mod startup;
mod sweep;
mod tasks;
mod tear_down;
mod timers;

use decide::NodeState;
use ports::PodFeed;
use tokio_util::sync::CancellationToken;

pub use clock::Clock;
pub use csi::{CsiPorts, VolumeCalls};
pub use dispatcher::EngineError;
pub use engine_ports::Ports;
pub use event_recorder::EventRecorder;
pub use node_duties::NodeDuties;
pub use query::EngineHandle;
pub use tasks::EssentialTasks;
#[cfg(debug_assertions)]
pub use tasks::TaskPanic;

/// An engine that has not started. Queries may be sent already; they are answered once it runs.
pub struct Engine(startup::PreparedEngine);

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

    /// Makes one of the tasks that start with the engine panic, so that tests see what follows. Only in debug builds.
    #[cfg(debug_assertions)]
    pub fn with_task_panic(mut self, panic: TaskPanic) -> Self {
        self.0.with_task_panic(panic);
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
    let (handle, ready) = startup::prepare(state, ports, feeds, stop);
    (handle, Engine(ready))
}
