//! Sends Kubernetes Events. Recording one never blocks: if the queue is full, the newest Event is dropped.
//!
//! One task sends them in order. While the API server is unavailable it retries the current Event for a limited time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use decide::events::{EventCorrelator, EventSource, EventWrite as ToSend, TokenBucket, event_object};
use decide::jitter::JitterSeed;
use model::node::NodeObjectConfig;
use model::{ApiEvent, EventSubject, Wall};
use ports::{ApiError, Disposition, EventApi, EventSink, WallClock};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::tasks::EssentialTasks;

const QUEUE: usize = 1000;
const TRIES: u32 = 12;
const BETWEEN_TRIES: Duration = Duration::from_secs(10);

struct QueuedEvent {
    about: EventSubject,
    event: ApiEvent,
    at: Wall,
}

/// Sends Events to the cluster.
pub struct EventRecorder {
    queue: mpsc::Sender<QueuedEvent>,
    wall: Arc<dyn WallClock>,
    dropped_events: AtomicU64,
}

impl EventRecorder {
    /// Starts the task that sends, until `stop` is cancelled.
    pub fn start(
        api: Arc<dyn EventApi>,
        setup: &NodeObjectConfig,
        wall: Arc<dyn WallClock>,
        seed: u64,
        stop: CancellationToken,
        essential: &EssentialTasks,
    ) -> Arc<Self> {
        let (queue, records) = mpsc::channel(QUEUE);
        let sender = EventSender {
            api,
            source: EventSource { host: setup.name.clone() },
            correlator: EventCorrelator::default(),
            rate: TokenBucket::per_second(setup.event_qps, setup.event_burst),
            clock: Clock::new(wall.clone()),
            seed: JitterSeed(seed),
        };
        let send = stop.run_until_cancelled_owned(sender.run(records));
        essential.spawn("the sender of Events", send);
        Arc::new(Self { queue, wall, dropped_events: AtomicU64::new(0) })
    }

    /// How many Events were dropped because the queue was full.
    pub fn dropped_count(&self) -> u64 {
        self.dropped_events.load(Ordering::Relaxed)
    }
}

impl EventSink for EventRecorder {
    fn record(&self, about: &EventSubject, event: &ApiEvent) {
        let record = QueuedEvent { about: about.clone(), event: event.clone(), at: self.wall.wall() };
        if let Err(mpsc::error::TrySendError::Full(_)) = self.queue.try_send(record) {
            let lost = self.dropped_events.fetch_add(1, Ordering::Relaxed) + 1;
            tracing::debug!(lost, reason = event.reason, "Event dropped: the queue is full");
        }
    }
}

struct EventSender {
    api: Arc<dyn EventApi>,
    source: EventSource,
    correlator: EventCorrelator,
    rate: TokenBucket,
    clock: Clock,
    seed: JitterSeed,
}

impl EventSender {
    async fn run(mut self, mut records: mpsc::Receiver<QueuedEvent>) {
        while let Some(QueuedEvent { about, event, at }) = records.recv().await {
            let event = event_object(&self.source, &about, &event, at);
            if let Some(send) = self.correlator.correlate(event, self.clock.now()) {
                self.send_with_retries(&send).await;
            }
        }
    }

    async fn send_with_retries(&mut self, send: &ToSend) {
        for attempt in 1..=TRIES {
            let error = match self.attempt(send).await {
                Ok(()) => return,
                Err(error) => error,
            };
            let event = send.event();
            let reason = event.reason.as_deref().unwrap_or_default();
            // A conflict is final: retrying the same Event gives the same answer.
            let final_word = matches!(error, ApiError::Conflict { .. } | ApiError::Gone { .. });
            if final_word || error.disposition() != Disposition::Retry {
                tracing::debug!(reason, "Event rejected by the API server: {error}");
                return;
            }
            if attempt == TRIES {
                tracing::warn!(reason, "Event dropped after {TRIES} attempts to send it: {error}");
                return;
            }
            // All nodes lose the server at the same moment, so the first wait is random: they must not all come back at
            // once.
            let wait = if attempt == 1 { BETWEEN_TRIES.mul_f64(self.seed.fraction()) } else { BETWEEN_TRIES };
            tokio::time::sleep(error.retry_after().unwrap_or(wait)).await;
        }
    }

    async fn attempt(&mut self, send: &ToSend) -> Result<(), ApiError> {
        while !self.rate.try_take(self.clock.mono()) {
            let next = self.rate.next_token_at(self.clock.mono());
            tokio::time::sleep_until(self.clock.instant(next)).await;
        }
        match send {
            ToSend::Create(event) => self.api.create(event).await.map(drop),
            ToSend::Patch { event, patch } => {
                let meta = &event.metadata;
                let (namespace, name) = (meta.namespace.as_deref(), meta.name.as_deref());
                let patched =
                    self.api.patch(namespace.unwrap_or_default(), name.unwrap_or_default(), patch).await;
                match patched {
                    // The API server deletes Events after an hour, so the one to patch may no longer exist.
                    Err(ApiError::NotFound { .. }) => self.api.create(event).await.map(drop),
                    other => other.map(drop),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
