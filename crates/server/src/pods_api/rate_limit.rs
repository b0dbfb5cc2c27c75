//! How many lists and gets are answered: as many as the kubelet does.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tonic::Status;

/// 100 calls a second, and 10 at once.
const INTERVAL: Duration = Duration::from_millis(10);
const BURST: u32 = 10;

pub(super) struct RateLimit {
    begun: Instant,
    /// When the calls so far would be over at the permitted rate, in nanoseconds since `begun`.
    used_until: AtomicU64,
}

impl Default for RateLimit {
    fn default() -> Self {
        Self { begun: Instant::now(), used_until: AtomicU64::new(0) }
    }
}

impl RateLimit {
    pub fn permit(&self) -> Result<(), Status> {
        let now = nanoseconds(self.begun.elapsed());
        let ahead = nanoseconds(INTERVAL * (BURST - 1));
        let use_one = |until: u64| {
            let until = until.max(now);
            (until - now <= ahead).then(|| until + nanoseconds(INTERVAL))
        };
        let used = self.used_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, use_one);
        used.map(|_| ()).map_err(|_| Status::resource_exhausted("rejected by rate limit"))
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ten_at_once_and_a_hundred_a_second() {
        let limit = RateLimit::default();
        let permitted = |calls: usize| (0..calls).filter(|_| limit.permit().is_ok()).count();
        assert_eq!(permitted(50), 10);
        tokio::time::advance(Duration::from_millis(30)).await;
        assert_eq!(permitted(50), 3);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(permitted(50), 10, "a pause saves up one burst");
        assert_eq!(limit.permit().unwrap_err().code(), tonic::Code::ResourceExhausted);
    }
}
