//! The clock on the wall, where Events go, and who counts what the engine does.

use model::probe::{ProbeKind, ProbeOutcome};
use model::{ApiEvent, EventSubject, FullName, PodUid, Wall};

/// Real time. The monotonic clock is tokio's; this one is only for times that others read.
pub trait WallClock: Send + Sync {
    fn wall(&self) -> Wall;
}

/// Takes Kubernetes Events. Must not block.
pub trait EventSink: Send + Sync {
    fn record(&self, about: &EventSubject, event: &ApiEvent);
}

/// Whose probe it is.
#[derive(Clone, Copy, Debug)]
pub struct ProbeOf<'a> {
    pub uid: &'a PodUid,
    pub pod: &'a FullName,
    pub container: &'a str,
    pub kind: ProbeKind,
}

/// Counts what the engine does. Must not block.
pub trait Meter: Send + Sync {
    /// One event was stepped; `event` is the name of its kind.
    fn step(&self, event: &'static str, took: std::time::Duration);
    /// The whole runtime was read.
    fn relist(&self, took: std::time::Duration);
    fn plan_started(&self);
    /// An attempt at a probe ended.
    fn probe(&self, of: &ProbeOf<'_>, outcome: &ProbeOutcome, took: std::time::Duration);
    /// The pod is gone: nothing more is to be told of its probes.
    fn forget_probes(&self, pod: &PodUid);
}
