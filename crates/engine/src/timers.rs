//! One queue for all timers. A key has at most one.

use std::collections::HashMap;
use std::task::Poll;

use decide::TimerKey;
use model::Mono;
use tokio_util::time::{DelayQueue, delay_queue};

use crate::clock::Clock;

pub(crate) struct Timers {
    clock: Clock,
    queue: DelayQueue<TimerKey>,
    keys: HashMap<TimerKey, delay_queue::Key>,
}

impl Timers {
    pub fn new(clock: Clock) -> Self {
        Self { clock, queue: DelayQueue::new(), keys: HashMap::new() }
    }

    pub fn set(&mut self, key: TimerKey, at: Option<Mono>) {
        let Some(at) = at else {
            if let Some(old) = self.keys.remove(&key) {
                self.queue.remove(&old);
            }
            return;
        };
        let instant = self.clock.instant(at);
        match self.keys.get(&key) {
            Some(old) => self.queue.reset_at(old, instant),
            None => {
                let handle = self.queue.insert_at(key.clone(), instant);
                self.keys.insert(key, handle);
            }
        }
    }

    /// The next timer that fires. Never returns while there is none.
    pub async fn fired(&mut self) -> TimerKey {
        std::future::poll_fn(|cx| match self.queue.poll_expired(cx) {
            Poll::Ready(Some(expired)) => {
                let key = expired.into_inner();
                self.keys.remove(&key);
                Poll::Ready(key)
            }
            // An empty queue says so at once; the caller is woken by its other sources.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        })
        .await
    }
}
