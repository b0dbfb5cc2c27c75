//! Rate limit for log lines that clients can trigger, so that a flood of requests does not flood the log.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Lines per period.
const MAX_LINES_PER_PERIOD: u64 = 10;
const PERIOD: Duration = Duration::from_secs(10);

pub(crate) struct LogRateLimiter {
    begun: Instant,
    period: AtomicU64,
    told: AtomicU64,
    suppressed: AtomicU64,
}

impl Default for LogRateLimiter {
    fn default() -> Self {
        let (period, told, left_out) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        Self { begun: Instant::now(), period, told, suppressed: left_out }
    }
}

impl LogRateLimiter {
    /// Whether a line may be written now, and how many like it were left out before it.
    pub fn permit(&self) -> Option<u64> {
        let period = self.begun.elapsed().as_secs() / PERIOD.as_secs();
        if self.period.swap(period, Ordering::Relaxed) != period {
            self.told.store(0, Ordering::Relaxed);
        }
        if self.told.fetch_add(1, Ordering::Relaxed) < MAX_LINES_PER_PERIOD {
            return Some(self.suppressed.swap(0, Ordering::Relaxed));
        }
        self.suppressed.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_ten_lines_and_a_number() {
        let lines = LogRateLimiter::default();
        let told = |times: usize| (0..times).filter_map(|_| lines.permit()).collect::<Vec<u64>>();
        assert_eq!(told(1000), [0; 10]);
        tokio::time::advance(PERIOD / 2).await;
        assert_eq!(told(5), [0; 0]);
        tokio::time::advance(PERIOD / 2).await;
        assert_eq!(told(2), [995, 0]);
        tokio::time::advance(PERIOD).await;
        assert_eq!(told(1), [0]);
    }
}
