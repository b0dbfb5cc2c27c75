//! The clock on the wall, and where Events go.

use model::{ApiEvent, FullName, PodUid, Wall};

/// Real time. The monotonic clock is tokio's; this one is only for times that others read.
pub trait WallClock: Send + Sync {
    fn wall(&self) -> Wall;
}

/// Takes Kubernetes Events. Must not block.
pub trait EventSink: Send + Sync {
    fn record(&self, uid: &PodUid, pod: &FullName, event: &ApiEvent);
}
