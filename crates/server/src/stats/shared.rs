//! Concurrent callers share one reading.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

/// The last reading and when it began.
pub(super) struct SharedReading<T>(Mutex<Option<(Instant, Arc<T>)>>);

impl<T> Default for SharedReading<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T> SharedReading<T> {
    /// A reading that `fits` and that began at most `age` before this call. If there is none, one is made, and other
    /// callers wait for it. If the caller that reads is cancelled, the next waiting caller reads.
    pub async fn get<E>(
        &self,
        age: Duration,
        fits: impl Fn(&T) -> bool,
        read: impl Future<Output = Result<T, E>>,
    ) -> Result<Arc<T>, E> {
        let asked = Instant::now();
        let mut last = self.0.lock().await;
        if let Some((begun, reading)) = &*last
            && *begun + age >= asked
            && fits(reading)
        {
            return Ok(reading.clone());
        }
        let begun = Instant::now();
        let reading = Arc::new(read.await?);
        *last = Some((begun, reading.clone()));
        Ok(reading)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[tokio::test(start_paused = true)]
    async fn those_who_ask_at_the_same_time_share_a_reading_that_is_young_enough() {
        let (shared, made) = (SharedReading::default(), AtomicU32::new(0));
        let get = async |millis: u64, least: u32| {
            let read = async {
                tokio::time::sleep(Duration::from_millis(10)).await;
                Ok::<u32, ()>(made.fetch_add(1, Ordering::Relaxed) + 1)
            };
            *shared.get(Duration::from_millis(millis), |found| *found >= least, read).await.unwrap()
        };
        assert_eq!(tokio::join!(get(100, 0), get(100, 0), get(100, 0)), (1, 1, 1));
        tokio::time::advance(Duration::from_millis(85)).await;
        assert_eq!(get(100, 0).await, 1);
        tokio::time::advance(Duration::from_millis(10)).await;
        assert_eq!(get(100, 0).await, 2);
        assert_eq!(get(100, 3).await, 3, "young, but not what was asked for");
        assert_eq!(get(0, 0).await, 4, "one that began before the question is too old");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_nobody_elses() {
        let shared = SharedReading::default();
        let any = |_: &u32| true;
        assert_eq!(shared.get(Duration::from_secs(1), any, async { Err("away") }).await, Err("away"));
        assert_eq!(
            shared.get(Duration::from_secs(1), any, async { Ok::<u32, &str>(7) }).await,
            Ok(Arc::new(7))
        );
    }
}
