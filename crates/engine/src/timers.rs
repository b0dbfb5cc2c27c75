//! Waits for the timers of the node: one sleep, until the first timer of [`TimerQueue`] is due.
//!
//! Timers of tokio reach two years at most, and a pod may ask for a deadline in two hundred. So one sleep lasts a day
//! at most and is then started again; the timer still fires at its exact time.

use std::pin::Pin;
use std::time::Duration;

use decide::{TimerKey, TimerQueue};
use model::Mono;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::clock::Clock;

const LONGEST_SLEEP: Duration = Duration::from_secs(24 * 60 * 60);

pub(crate) struct Timers {
    clock: Clock,
    queue: TimerQueue,
    sleep: Pin<Box<Sleep>>,
}

impl Timers {
    pub fn new(clock: Clock) -> Self {
        Self { clock, queue: TimerQueue::default(), sleep: Box::pin(sleep_until(Instant::now())) }
    }

    pub fn set(&mut self, key: TimerKey, at: Option<Mono>) {
        self.queue.set(key, at);
    }

    /// The next timer that fires. Never returns while there is none. It may be dropped and called again: a timer is
    /// taken out of the queue only when it is returned.
    pub async fn fired(&mut self) -> TimerKey {
        loop {
            let Some(due) = self.queue.next_due() else { return std::future::pending().await };
            if let Some(key) = self.queue.take_due(self.clock.mono()) {
                return key;
            }
            let until = self.clock.instant(due).min(Instant::now() + LONGEST_SLEEP);
            if self.sleep.deadline() != until {
                self.sleep.as_mut().reset(until);
            }
            self.sleep.as_mut().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::Wall;
    use ports::WallClock;

    use super::*;

    struct NoWall;

    impl WallClock for NoWall {
        fn wall(&self) -> Wall {
            Wall(0)
        }
    }

    const MILLI: u64 = 1_000_000;
    const YEAR: u64 = 365 * 24 * 60 * 60 * 1_000 * MILLI;

    /// Each timer fires, in this order, at its time or within the millisecond that tokio's clock is coarse by.
    async fn check(set: &[u64], expect: &[u64]) {
        let clock = Clock::new(Arc::new(NoWall));
        let mut timers = Timers::new(clock.clone());
        for at in set {
            timers.set(TimerKey::PodWakeUp(at.to_string().as_str().into()), Some(Mono(*at)));
        }
        for at in expect {
            let key = timers.fired().await;
            assert_eq!(key, TimerKey::PodWakeUp(at.to_string().as_str().into()), "{set:?}");
            let now = clock.mono().0;
            assert!(now >= *at && now - at < 2 * MILLI, "{key:?} fired at {now}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn far_timers_fire_at_their_exact_time() {
        check(&[5 * MILLI, MILLI, 3 * MILLI], &[MILLI, 3 * MILLI, 5 * MILLI]).await;
        // The timer wheel that the queue was built on earlier ends at 2^36 milliseconds.
        let edge = (1 << 36) * MILLI;
        check(&[edge + MILLI, edge, edge - MILLI], &[edge - MILLI, edge, edge + MILLI]).await;
        check(&[40 * YEAR + 123 * MILLI, 2 * YEAR], &[2 * YEAR, 40 * YEAR + 123 * MILLI]).await;
        // A timer at u64::MAX is accepted and delays no other timer.
        check(&[u64::MAX, MILLI], &[MILLI]).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_is_dropped_loses_no_timer() {
        let clock = Clock::new(Arc::new(NoWall));
        let mut timers = Timers::new(clock.clone());
        timers.set(TimerKey::Sweep, Some(Mono(10 * MILLI)));
        for _ in 0..3 {
            let early = tokio::time::timeout(Duration::from_millis(2), timers.fired()).await;
            assert!(early.is_err(), "{early:?}");
        }
        timers.set(TimerKey::Sweep, Some(Mono(3 * YEAR)));
        timers.set(TimerKey::FullRelist, Some(Mono(20 * MILLI)));
        assert_eq!(timers.fired().await, TimerKey::FullRelist);
        assert_eq!(timers.fired().await, TimerKey::Sweep);
        timers.set(TimerKey::Sweep, Some(Mono(4 * YEAR)));
        timers.set(TimerKey::Sweep, None);
        assert!(tokio::time::timeout(Duration::from_secs(200 * 365 * 86_400), timers.fired()).await.is_err());
    }
}
