//! Time as the decision core sees it: handed in, never read.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A point of the monotonic clock, counted from the start of the agent. Freshness, timers and waits use it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Mono(pub u64);

impl Mono {
    pub const ZERO: Mono = Mono(0);
    pub fn from_duration(since_start: Duration) -> Self {
        Self(since_start.as_nanos() as u64)
    }
    pub fn as_duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(by.as_nanos() as u64))
    }
    /// Zero when `earlier` is later.
    pub fn since(self, earlier: Mono) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for Mono {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "+{:?}", self.as_duration())
    }
}

/// Nanoseconds since the Unix epoch: the clock that the runtime's times and the API's times are in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Wall(pub i64);

impl Wall {
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(by.as_nanos() as i64))
    }
    /// Zero when `earlier` is later (a clock that was set back).
    pub fn since(self, earlier: Wall) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0).max(0) as u64)
    }
    pub fn timestamp(self) -> jiff::Timestamp {
        jiff::Timestamp::from_nanosecond(i128::from(self.0)).unwrap_or(jiff::Timestamp::UNIX_EPOCH)
    }
    /// API times have whole seconds.
    pub fn api_time(self) -> crate::k8s::Time {
        let whole = jiff::Timestamp::from_second(self.0.div_euclid(1_000_000_000));
        k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(whole.unwrap_or(jiff::Timestamp::UNIX_EPOCH))
    }
    /// Times of leases have microseconds.
    pub fn api_micro_time(self) -> crate::k8s::MicroTime {
        let whole = jiff::Timestamp::from_microsecond(self.0.div_euclid(1_000));
        crate::k8s::MicroTime(whole.unwrap_or(jiff::Timestamp::UNIX_EPOCH))
    }
    pub fn from_timestamp(at: jiff::Timestamp) -> Self {
        Self(at.as_nanosecond() as i64)
    }
}

impl fmt::Debug for Wall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.timestamp())
    }
}

/// Both clocks at the moment of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Now {
    pub mono: Mono,
    pub wall: Wall,
}

impl Now {
    /// When the monotonic clock will show what `wall` means, seen from here.
    pub fn mono_at(&self, wall: Wall) -> Mono {
        self.mono.plus(wall.since(self.wall))
    }
}
