//! What is told about work on volumes while it goes on.

use async_trait::async_trait;
use model::PodUid;
use model::volume::VolumeNotice;

#[async_trait]
pub trait VolumeNoticeFeed: Send + Sync {
    /// Waits for the next. Each is told once.
    async fn next(&self) -> (PodUid, VolumeNotice);
}
