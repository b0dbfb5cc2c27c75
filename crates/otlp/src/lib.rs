//! Traces over OTLP: `ports::Tracer` that sends what was sampled to a collector, by gRPC.
//!
//! ```text
//!   spans that ended ──> queue (QUEUED, what is over it is dropped and counted) ──> batches ──> collector
//! ```
//!
//! Work never waits for the collector. One that is away costs the spans of that time, and says so once in the log.
//! The numbers are those of the reference's exporter.

mod batch;
mod endpoint;
mod settings;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use model::Wall;
use ports::{FinishedSpan, TraceContext, Tracer, WallClock};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use endpoint::EndpointError;
pub use settings::OtlpSettings;

/// OTLP, as far as we speak it.
pub(crate) mod pb {
    #![allow(clippy::all)]
    include!(concat!(env!("OUT_DIR"), "/client/opentelemetry.proto.collector.trace.v1.rs"));
}

/// The other side, for tests that play the collector.
#[cfg(feature = "collector")]
pub mod collector {
    #![allow(clippy::all, missing_docs)]
    include!(concat!(env!("OUT_DIR"), "/server/opentelemetry.proto.collector.trace.v1.rs"));
}

/// Where a collector is when nobody says: the standard's port on this machine.
pub const DEFAULT_ENDPOINT: &str = "localhost:4317";

/// Spans that wait to be sent.
const MAX_QUEUE_SIZE: usize = 2048;

/// Samples, numbers and hands over to the sender.
pub struct OtlpTracer {
    wall: Arc<dyn WallClock>,
    /// Traces whose number is below it are sampled.
    threshold: u64,
    queue: mpsc::Sender<FinishedSpan>,
    dropped: Arc<AtomicU64>,
}

impl OtlpTracer {
    /// Starts to send, until `stop`; the task ends when what was there then is sent, or could not be in time. A collector
    /// that is not there is no error: it may come.
    pub fn start(
        settings: &OtlpSettings,
        wall: Arc<dyn WallClock>,
        stop: CancellationToken,
    ) -> Result<(Arc<Self>, JoinHandle<()>), EndpointError> {
        let channel = endpoint::channel(&settings.endpoint)?;
        let (queue, spans) = mpsc::channel(MAX_QUEUE_SIZE);
        let dropped = Arc::new(AtomicU64::new(0));
        let sender = batch::SpanExporter::new(channel, settings, dropped.clone());
        let task = tokio::spawn(sender.run(spans, stop));
        let threshold = threshold(settings.sampled_per_million);
        Ok((Arc::new(Self { wall, threshold, queue, dropped }), task))
    }
}

impl Tracer for OtlpTracer {
    fn begin(&self, parent: Option<TraceContext>) -> TraceContext {
        let span = fastrand::u64(1..);
        match parent {
            Some(parent) => TraceContext { span, ..parent },
            None => {
                let trace = fastrand::u128(1..);
                TraceContext { trace, span, sampled: is_sampled(trace, self.threshold) }
            }
        }
    }

    fn finish(&self, span: FinishedSpan) {
        if self.queue.try_send(span).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn now(&self) -> Wall {
        self.wall.wall()
    }
}

fn threshold(per_million: u32) -> u64 {
    let part = u128::from(per_million.min(1_000_000)) * (1_u128 << 63) / 1_000_000;
    // At most 2^63.
    u64::try_from(part).unwrap_or(u64::MAX)
}

/// By the number itself, so that all who sample the same part of traces choose the same ones.
fn is_sampled(trace: u128, threshold: u64) -> bool {
    ((trace as u64) >> 1) < threshold
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wanted_part_is_sampled() {
        for (per_million, least, most) in [(0, 0, 0), (1_000_000, 10_000, 10_000), (250_000, 2_200, 2_800)] {
            let threshold = threshold(per_million);
            let mut numbers = fastrand::Rng::with_seed(7);
            let count = (0..10_000).filter(|_| is_sampled(numbers.u128(1..), threshold)).count();
            assert!((least..=most).contains(&count), "{per_million}: {count}");
        }
        assert!(is_sampled(u128::MAX, threshold(1_000_000)));
        assert!(!is_sampled(1 << 64, threshold(0)));
    }
}
