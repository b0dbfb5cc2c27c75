//! What is told about work on volumes while it goes on.

use async_trait::async_trait;
use model::PodUid;
use model::volume::VolumeNews;

#[async_trait]
pub trait VolumeNewsFeed: Send + Sync {
    /// Waits for the next. Each is told once.
    async fn next(&self) -> (PodUid, VolumeNews);
}
