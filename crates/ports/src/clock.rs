//! The wall clock, the sink for Events, and the counters of the engine.

use std::time::Duration;

use model::k8s::PodStatus;
use model::pod::PodView;
use model::probe::{ProbeKind, ProbeOutcome};
use model::{ApiEvent, EventSubject, FullName, PodUid, Wall};

/// The wall clock, for times that are shown to others. The monotonic clock is tokio's.
pub trait WallClock: Send + Sync {
    fn wall(&self) -> Wall;
}

/// Takes Kubernetes Events. Must not block.
pub trait EventSink: Send + Sync {
    fn record(&self, about: &EventSubject, event: &ApiEvent);
}

/// Identifies a probe.
#[derive(Clone, Copy, Debug)]
pub struct ProbeIdentity<'a> {
    pub uid: &'a PodUid,
    pub pod: &'a FullName,
    pub container: &'a str,
    pub kind: ProbeKind,
}

/// A status change of a pod.
#[derive(Clone, Copy, Debug)]
pub struct PodStatusUpdate<'a> {
    pub pod: &'a PodView,
    pub status: &'a PodStatus,
    /// Reason of the rejection, if admission refused the pod.
    pub rejected: Option<&'a str>,
}

/// Counts what the engine does. Must not block.
pub trait EngineMetrics: Send + Sync {
    /// One event was handled; `event` is the name of its kind.
    fn step(&self, event: &'static str, took: Duration);
    /// A full relist was made.
    fn relist(&self, took: Duration);
    /// One pod was observed.
    fn pod_relist(&self, took: Duration);
    fn pod_status(&self, seen: &PodStatusUpdate<'_>);
    /// The API server has accepted a status, `took` after it was due to be reported.
    fn status_synced(&self, took: Duration);
    fn plan_started(&self, pod: &PodUid);
    /// `ending`: the pod is terminating.
    fn plan_ended(&self, pod: &PodUid, ending: bool, took: Duration);
    /// A volume was set up, or its set-up failed.
    fn volume_set_up(&self, plugin: &str, ok: bool, took: Duration);
    /// An attempt at a probe ended.
    fn probe(&self, of: &ProbeIdentity<'_>, outcome: &ProbeOutcome, took: Duration);
    /// A sleep hook was interrupted before its end.
    fn record_sleep_cut_short(&self);
    /// A watcher of the Pods API did not keep up, so it misses an event and its watch ends.
    fn record_watcher_cut(&self);
    /// A pod is to be evicted on figures of this age. `signal`: what the node is short of.
    fn eviction_figures_age(&self, signal: &str, age: Duration);
    /// A sweep ended: `pods` orphaned pods had volumes to clean up, `failed` of the clean-ups failed.
    fn record_sweep(&self, pods: usize, failed: usize);
    /// The pod is forgotten, and so are its metrics.
    fn forget(&self, pod: &PodUid);
}

/// A request to the API server.
#[derive(Clone, Copy, Debug)]
pub struct ApiRequest<'a> {
    pub host: &'a str,
    pub method: &'a str,
    /// `None`: there was no answer.
    pub code: Option<u16>,
    /// Time until the response headers.
    pub took: Duration,
    pub sent_bytes: u64,
    /// The Content-Length of the response, if it has one.
    pub received_bytes: Option<u64>,
}

/// Counts requests to the API server. Must not block.
pub trait ApiRequestMetrics: Send + Sync {
    fn request(&self, request: &ApiRequest<'_>);
}
