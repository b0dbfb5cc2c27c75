//! The imperative shell around the decision core.
//!
//! ```text
//!   feeds, hints, timers ──┐                              ┌─> executor: one task per running plan
//!   outcomes, readings  ───┴─> dispatcher ──> step ──> effects ─> readings, image calls, sweeps, timers
//!                              (owns NodeState)
//! ```
//!
//! One dispatcher task owns the state. Every effect that takes time runs in a task of its own and ends by sending an
//! event. Nothing here looks at a pod's spec or chooses between two ways.

mod clock;
mod dispatcher;
mod executor;
mod image_calls;
mod observe;
mod query;
mod sweep;
mod timers;

use std::sync::Arc;

use decide::NodeState;
use ports::{
    Cgroups, EventSink, Images, Meter, PodFeed, PodFiles, PullRecords, RegistryCredentials, Runtime,
    RuntimeEvents, WallClock,
};
use tokio_util::sync::CancellationToken;

pub use clock::Clock;
pub use query::EngineHandle;

/// The outside, as the engine uses it.
#[derive(Clone)]
pub struct Ports {
    pub runtime: Arc<dyn Runtime>,
    pub images: Arc<dyn Images>,
    pub credentials: Arc<dyn RegistryCredentials>,
    /// `None`: pulls are not recorded.
    pub pull_records: Option<Arc<dyn PullRecords>>,
    pub hints: Arc<dyn RuntimeEvents>,
    pub files: Arc<dyn PodFiles>,
    pub cgroups: Arc<dyn Cgroups>,
    pub events: Arc<dyn EventSink>,
    pub wall: Arc<dyn WallClock>,
    pub meter: Arc<dyn Meter>,
}

/// Starts the engine. It runs until `stop` is cancelled; pods are left as they are then.
pub fn start(
    state: NodeState,
    ports: Ports,
    feeds: Vec<Box<dyn PodFeed>>,
    stop: CancellationToken,
) -> (EngineHandle, tokio::task::JoinHandle<()>) {
    dispatcher::start(state, ports, feeds, stop)
}
