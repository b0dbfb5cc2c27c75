//! Time as the decision core sees it: handed in, never read.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// A span that is too long to be counted (584 years and more) is as long as can be counted.
pub fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// A point of the monotonic clock, counted from the start of the agent. Freshness, timers and waits use it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Mono(pub u64);

impl Mono {
    pub const ZERO: Mono = Mono(0);
    pub fn from_duration(since_start: Duration) -> Self {
        Self(nanos(since_start))
    }
    pub fn as_duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(nanos(by)))
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
        Self(self.0.saturating_add_unsigned(nanos(by)))
    }
    /// Zero when `earlier` is later (a clock that was set back).
    pub fn since(self, earlier: Wall) -> Duration {
        Duration::from_nanos(u64::try_from(i128::from(self.0) - i128::from(earlier.0)).unwrap_or(0))
    }
    /// Negative when `later` is earlier.
    pub fn seconds_until(self, later: Wall) -> f64 {
        (i128::from(later.0) - i128::from(self.0)) as f64 / 1e9
    }
    pub fn timestamp(self) -> jiff::Timestamp {
        jiff::Timestamp::from_nanosecond(i128::from(self.0)).unwrap_or(jiff::Timestamp::UNIX_EPOCH)
    }
    /// API times have whole seconds.
    pub fn api_time(self) -> crate::k8s::Time {
        let whole = jiff::Timestamp::from_second(self.0.div_euclid(NANOS_PER_SECOND));
        k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(whole.unwrap_or(jiff::Timestamp::UNIX_EPOCH))
    }
    /// Times of leases have microseconds.
    pub fn api_micro_time(self) -> crate::k8s::MicroTime {
        let whole = jiff::Timestamp::from_microsecond(self.0.div_euclid(1_000));
        crate::k8s::MicroTime(whole.unwrap_or(jiff::Timestamp::UNIX_EPOCH))
    }
    /// Times that nanoseconds in 64 bits can't say (after 2262, before 1677) become the nearest that they can.
    pub fn from_timestamp(at: jiff::Timestamp) -> Self {
        let nanos = at.as_nanosecond().clamp(i128::from(i64::MIN), i128::from(i64::MAX));
        Self(i64::try_from(nanos).unwrap_or(i64::MAX))
    }
    /// Seconds since the Unix epoch, as certificates and the runtime tell them.
    pub fn from_seconds(seconds: i64) -> Self {
        Self(seconds.saturating_mul(NANOS_PER_SECOND))
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

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::MAX;

    #[test]
    fn what_is_too_far_away_is_as_far_away_as_can_be_said() {
        assert_eq!(Mono::from_duration(LONG), Mono(u64::MAX));
        assert_eq!(Mono(7).plus(LONG), Mono(u64::MAX));
        // One more than 64 bits hold: cut off, it would be next to nothing.
        assert_eq!(Mono(7).plus(Duration::from_nanos(u64::MAX) + Duration::from_nanos(2)), Mono(u64::MAX));
        assert_eq!(Mono(7).plus(Duration::from_nanos(5)), Mono(12));
        assert_eq!(Mono(5).since(Mono(7)), Duration::ZERO);
        assert_eq!(Wall(7).plus(LONG), Wall(i64::MAX));
        assert_eq!(Wall(-7).plus(Duration::from_nanos(u64::MAX)), Wall(i64::MAX));
        assert_eq!(Wall(-7).plus(Duration::from_nanos(5)), Wall(-2));
        assert_eq!(Wall(i64::MAX).since(Wall(i64::MIN)), Duration::from_nanos(u64::MAX));
        assert_eq!(Wall(i64::MIN).since(Wall(i64::MAX)), Duration::ZERO);
        assert_eq!(Wall(9).since(Wall(-1)), Duration::from_nanos(10));
        assert_eq!(Wall::from_seconds(i64::MAX), Wall(i64::MAX));
        assert_eq!(Wall::from_seconds(i64::MIN), Wall(i64::MIN));
        assert_eq!(Wall::from_seconds(-2), Wall(-2_000_000_000));
        let far = Now { mono: Mono(3), wall: Wall(0) };
        assert_eq!(far.mono_at(Wall(i64::MAX)), Mono(i64::MAX as u64 + 3));
        assert_eq!(Now { mono: Mono(u64::MAX), ..far }.mono_at(Wall(9)), Mono(u64::MAX));
    }

    #[test]
    fn every_time_can_be_told_and_read() {
        let check = |text: &str, expect: i64| {
            let at: jiff::Timestamp = text.parse().expect("a timestamp");
            assert_eq!(Wall::from_timestamp(at), Wall(expect), "{text}");
        };
        check("1970-01-01T00:00:01Z", 1_000_000_000);
        check("1969-12-31T23:59:59Z", -1_000_000_000);
        check("2262-04-11T23:47:16.854775807Z", i64::MAX);
        check("2262-04-11T23:47:16.854775808Z", i64::MAX);
        check("9999-12-30T22:00:00Z", i64::MAX);
        check("0001-01-01T00:00:00Z", i64::MIN);
        check("-009998-01-01T00:00:00Z", i64::MIN);
        for at in [i64::MIN, -1, 0, 1, i64::MAX] {
            assert_eq!(Wall::from_timestamp(Wall(at).timestamp()), Wall(at));
            assert_eq!(Wall(at).api_time().0.as_second(), at.div_euclid(NANOS_PER_SECOND));
            assert_eq!(Wall(at).api_micro_time().0.as_microsecond(), at.div_euclid(1_000));
            assert!(!format!("{:?}", Wall(at)).is_empty());
        }
    }
}
