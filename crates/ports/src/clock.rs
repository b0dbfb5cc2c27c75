//! The clock on the wall, where Events go, and who counts what the engine does.

use model::{ApiEvent, EventSubject, Wall};

/// Real time. The monotonic clock is tokio's; this one is only for times that others read.
pub trait WallClock: Send + Sync {
    fn wall(&self) -> Wall;
}

/// Takes Kubernetes Events. Must not block.
pub trait EventSink: Send + Sync {
    fn record(&self, about: &EventSubject, event: &ApiEvent);
}

/// Counts what the engine does. Must not block.
pub trait Meter: Send + Sync {
    /// One event was stepped; `event` is the name of its kind.
    fn step(&self, event: &'static str, took: std::time::Duration);
    /// The whole runtime was read.
    fn relist(&self, took: std::time::Duration);
    fn plan_started(&self);
}
