//! The clock on the wall, where Events go, and who counts what the engine does.

use std::time::Duration;

use model::k8s::PodStatus;
use model::pod::PodView;
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
pub struct ProbeIdentity<'a> {
    pub uid: &'a PodUid,
    pub pod: &'a FullName,
    pub container: &'a str,
    pub kind: ProbeKind,
}

/// A pod whose status says something new.
#[derive(Clone, Copy, Debug)]
pub struct PodStatusUpdate<'a> {
    pub pod: &'a PodView,
    pub status: &'a PodStatus,
    /// The reason that it was not let in with.
    pub rejected: Option<&'a str>,
}

/// Counts what the engine does. Must not block.
pub trait EngineMetrics: Send + Sync {
    /// One event was stepped; `event` is the name of its kind.
    fn step(&self, event: &'static str, took: Duration);
    /// The whole runtime was read.
    fn relist(&self, took: Duration);
    /// The runtime was read for one pod.
    fn pod_relist(&self, took: Duration);
    fn pod_status(&self, seen: &PodStatusUpdate<'_>);
    /// The API server has taken a status, so long after it was to be told.
    fn status_synced(&self, took: Duration);
    fn plan_started(&self, pod: &PodUid);
    /// `ending`: of a pod that is going.
    fn plan_ended(&self, pod: &PodUid, ending: bool, took: Duration);
    /// A volume was set up, or could not be.
    fn volume_set_up(&self, plugin: &str, ok: bool, took: Duration);
    /// An attempt at a probe ended.
    fn probe(&self, of: &ProbeIdentity<'_>, outcome: &ProbeOutcome, took: Duration);
    /// A hook that sleeps was not let sleep to its end.
    fn record_sleep_cut_short(&self);
    /// Leftovers were looked for: of so many pods that nobody wants volumes were to be cleaned up, and so many times that
    /// failed.
    fn record_sweep(&self, pods: usize, failed: usize);
    /// The pod is gone: nothing more is to be told of it.
    fn forget(&self, pod: &PodUid);
}

/// A request to the API server.
#[derive(Clone, Copy, Debug)]
pub struct ApiRequest<'a> {
    pub host: &'a str,
    pub method: &'a str,
    /// `None`: there was no answer.
    pub code: Option<u16>,
    /// Until the head of the answer.
    pub took: Duration,
    pub sent_bytes: u64,
    /// Where the server told before sending.
    pub received_bytes: Option<u64>,
}

/// Counts requests to the API server. Must not block.
pub trait ApiRequestMetrics: Send + Sync {
    fn request(&self, request: &ApiRequest<'_>);
}
