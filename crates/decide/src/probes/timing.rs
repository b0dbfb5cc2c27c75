//! The settings of a probe, and the schedule of its attempts.

use std::time::Duration;

use model::probe::ProbeKind;
use model::{Mono, PodUid, k8s};

use model::hash::fnv1a_64;

/// The settings of a probe, with their defaults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Timing {
    pub delay: Duration,
    pub period: Duration,
    pub timeout: Duration,
    pub successes: u32,
    pub failures: u32,
}

impl Timing {
    pub fn of(probe: &k8s::Probe) -> Self {
        let number = |field: Option<i32>, default: u32| {
            field.and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0).unwrap_or(default)
        };
        let seconds = |field, default| Duration::from_secs(u64::from(number(field, default)));
        Self {
            delay: seconds(probe.initial_delay_seconds, 0),
            period: seconds(probe.period_seconds, 10),
            timeout: seconds(probe.timeout_seconds, 1),
            successes: number(probe.success_threshold, 1),
            failures: number(probe.failure_threshold, 3),
        }
    }
}

/// Times one period apart, with an offset that is specific to the worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct AttemptSchedule {
    offset: u64,
    period: u64,
}

impl AttemptSchedule {
    pub fn new(uid: &PodUid, container: &str, kind: ProbeKind, period: Duration) -> Self {
        let name = format!("{uid}/{container}/{}", kind.as_str());
        let period = model::time::nanos(period).max(1);
        Self { offset: mix_hash(fnv1a_64(name.as_bytes())) % period, period }
    }

    /// The first time that is not before `at`.
    pub fn from(&self, at: Mono) -> Mono {
        let beyond = at.0.saturating_sub(self.offset);
        Mono(self.offset.saturating_add(beyond.div_ceil(self.period).saturating_mul(self.period)))
    }

    /// The first time after `at`.
    pub fn after(&self, at: Mono) -> Mono {
        self.from(Mono(at.0.saturating_add(1)))
    }
}

/// Mixes the hash: names that differ only in the last letter would otherwise get nearly equal offsets.
fn mix_hash(mut hash: u64) -> u64 {
    for shift in [33, 29, 32] {
        hash = (hash ^ (hash >> shift)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    }
    hash
}
