//! Lines of our own log that others can cause: a flood of requests must not become a flood of lines.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Lines per period.
const MOST: u64 = 10;
const PERIOD: Duration = Duration::from_secs(10);

pub(crate) struct Sparing {
    begun: Instant,
    period: AtomicU64,
    told: AtomicU64,
    left_out: AtomicU64,
}

impl Default for Sparing {
    fn default() -> Self {
        let (period, told, left_out) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        Self { begun: Instant::now(), period, told, left_out }
    }
}

impl Sparing {
    /// Whether a line may be written now, and how many like it were left out before it.
    pub fn turn(&self) -> Option<u64> {
        let period = self.begun.elapsed().as_secs() / PERIOD.as_secs();
        if self.period.swap(period, Ordering::Relaxed) != period {
            self.told.store(0, Ordering::Relaxed);
        }
        if self.told.fetch_add(1, Ordering::Relaxed) < MOST {
            return Some(self.left_out.swap(0, Ordering::Relaxed));
        }
        self.left_out.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_ten_lines_and_a_number() {
        let lines = Sparing::default();
        let told = |times: usize| (0..times).filter_map(|_| lines.turn()).collect::<Vec<u64>>();
        assert_eq!(told(1000), [0; 10]);
        tokio::time::advance(PERIOD / 2).await;
        assert_eq!(told(5), [0; 0]);
        tokio::time::advance(PERIOD / 2).await;
        assert_eq!(told(2), [995, 0]);
        tokio::time::advance(PERIOD).await;
        assert_eq!(told(1), [0]);
    }
}
