//! When the figures are read next: at the earliest moment at which a threshold could be crossed.
//!
//! A node that is far from its thresholds is read seldom; one that is near them, or whose figures fall fast, often.

use std::time::Duration;

use model::Mono;
use model::eviction::{FigureGroup, SignalKind};

use super::signals::SignalReading;

/// While a threshold is met: somebody has to see when it is no longer.
const WHILE_MET: Duration = Duration::from_secs(1);

/// The shortest and the longest time between two readings.
fn bounds(group: FigureGroup) -> (Duration, Duration) {
    match group {
        FigureGroup::Memory => (Duration::from_millis(100), Duration::from_secs(10)),
        FigureGroup::NodeFilesystem => (Duration::from_millis(200), Duration::from_secs(120)),
        // The runtime is asked.
        FigureGroup::ImageFilesystem => (Duration::from_secs(1), Duration::from_secs(120)),
        FigureGroup::Processes => (Duration::from_millis(250), Duration::from_secs(10)),
    }
}

/// How fast it may be used up by something that was quiet so far, per second.
fn sudden_rate(kind: SignalKind) -> u64 {
    match kind {
        SignalKind::Memory => 1 << 30,
        SignalKind::Bytes => 400 << 20,
        SignalKind::Inodes => 20_000,
        SignalKind::Processes => 4_000,
    }
}

/// How much less there was than before, per second.
pub fn rate(before: &SignalReading, now: &SignalReading) -> u64 {
    let fallen = u64::try_from(before.available.saturating_sub(now.available)).unwrap_or(0);
    let nanos = now.at.since(before.at).as_nanos();
    if nanos == 0 {
        return 0;
    }
    u64::try_from(u128::from(fallen) * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
}

/// `room`: how much may still be used until the threshold is met. Negative: it is met.
pub fn pause(group: FigureGroup, kind: SignalKind, room: i64, rate: u64) -> Duration {
    let (shortest, longest) = bounds(group);
    let Ok(room) = u64::try_from(room) else { return WHILE_MET };
    let rate = rate.max(sudden_rate(kind));
    let nanos = u128::from(room) * 1_000_000_000 / u128::from(rate);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).clamp(shortest, longest)
}

/// Without a reading.
pub fn longest_pause(group: FigureGroup) -> Duration {
    bounds(group).1
}

/// No reading begins sooner after the one before, whatever notices come.
pub fn soonest(group: FigureGroup, last: Mono) -> Mono {
    last.plus(bounds(group).0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: i64 = 1 << 30;
    const MIB: i64 = 1 << 20;

    fn memory(room: i64, rate: u64) -> f64 {
        pause(FigureGroup::Memory, SignalKind::Memory, room, rate).as_secs_f64()
    }

    #[test]
    fn the_nearer_the_sooner() {
        assert_eq!(memory(100 * GIB, 0), 10.0);
        assert_eq!(memory(4 * GIB, 0), 4.0);
        assert_eq!(memory(512 * MIB, 0), 0.5);
        assert_eq!(memory(MIB, 0), 0.1);
        assert_eq!(memory(0, 0), 0.1);
        assert_eq!(memory(-1, 0), 1.0);
        assert_eq!(memory(i64::MAX, u64::MAX), 0.5f64.min(memory(i64::MAX, u64::MAX)));
    }

    #[test]
    fn the_faster_the_sooner() {
        assert_eq!(memory(4 * GIB, 8 << 30), 0.5);
        let disk =
            |room, rate| pause(FigureGroup::NodeFilesystem, SignalKind::Bytes, room, rate).as_secs_f64();
        assert_eq!(disk(4000 * MIB, 0), 10.0);
        assert_eq!(disk(4000 * MIB, 4000 << 20), 1.0);
        assert_eq!(disk(1000 * GIB, 0), 120.0);
    }

    #[test]
    fn only_what_falls_has_a_rate() {
        let reading = |secs, available| SignalReading {
            available,
            capacity: 100,
            at: Mono::from_duration(Duration::from_secs(secs)),
        };
        assert_eq!(rate(&reading(0, 50), &reading(2, 30)), 10);
        assert_eq!(rate(&reading(0, 50), &reading(2, 70)), 0);
        assert_eq!(rate(&reading(2, 50), &reading(2, 30)), 0);
        assert_eq!(rate(&reading(0, i64::MAX), &reading(1, i64::MIN)), i64::MAX as u64);
    }
}
