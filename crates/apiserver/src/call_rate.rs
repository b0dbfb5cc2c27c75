//! How many calls per second are sent to the API server.
//!
//! Calls wait in the order in which they came. A call whose delay would be seen as a failure of the node, or would keep
//! the end of a pod from its users, does not wait at all: leases, the Node's status, Events (which have a limit of their
//! own), and statuses of pods that have ended.

use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

pub(crate) struct CallRate {
    /// One call more may begin after this time.
    interval: Duration,
    burst: u32,
    /// Held while waiting, so that later calls wait behind this one.
    bucket: Mutex<Option<Bucket>>,
}

#[derive(Clone, Copy)]
struct Bucket {
    calls: u32,
    since: Instant,
}

impl CallRate {
    /// `None`: no limit.
    pub fn new(per_second: u32, burst: u32) -> Option<Self> {
        let interval = Duration::from_secs(1).checked_div(per_second)?;
        Some(Self { interval, burst: burst.max(1), bucket: Mutex::new(None) })
    }

    /// Ends when one more call may be sent.
    pub async fn wait(&self) {
        let mut bucket = self.bucket.lock().await;
        let mut now = self.refilled(*bucket, Instant::now());
        if now.calls == 0 {
            let next = now.since + self.interval;
            tokio::time::sleep_until(next).await;
            now = self.refilled(Some(now), Instant::now().max(next));
        }
        *bucket = Some(Bucket { calls: now.calls.saturating_sub(1), since: now.since });
    }

    fn refilled(&self, bucket: Option<Bucket>, now: Instant) -> Bucket {
        let full = Bucket { calls: self.burst, since: now };
        let Some(bucket) = bucket else { return full };
        let passed = now.saturating_duration_since(bucket.since).as_nanos() / self.interval.as_nanos().max(1);
        let fresh = u32::try_from(passed).unwrap_or(u32::MAX);
        if fresh >= self.burst - bucket.calls.min(self.burst) {
            return full;
        }
        Bucket { calls: bucket.calls + fresh, since: bucket.since + self.interval * fresh }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_then_one_by_one() {
        let rate = CallRate::new(10, 3).unwrap();
        let begun = Instant::now();
        let mut times = Vec::new();
        for _ in 0..6 {
            rate.wait().await;
            times.push(begun.elapsed().as_millis());
        }
        assert_eq!(times, [0, 0, 0, 100, 200, 300]);
        tokio::time::sleep(Duration::from_secs(5)).await;
        let begun = Instant::now();
        for _ in 0..4 {
            rate.wait().await;
        }
        assert_eq!(begun.elapsed().as_millis(), 100, "no more than the burst was saved up");
    }

    #[tokio::test(start_paused = true)]
    async fn who_gives_up_takes_nothing() {
        let rate = CallRate::new(1, 1).unwrap();
        rate.wait().await;
        let begun = Instant::now();
        assert!(tokio::time::timeout(Duration::from_millis(500), rate.wait()).await.is_err());
        rate.wait().await;
        assert_eq!(begun.elapsed().as_millis(), 1000);
    }

    #[test]
    fn none_and_huge() {
        assert!(CallRate::new(0, 5).is_none());
        assert!(CallRate::new(u32::MAX, u32::MAX).is_some_and(|rate| rate.burst == u32::MAX));
    }
}
