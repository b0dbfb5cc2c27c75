//! Back-offs: crash loops and image pulls. Both double from ten seconds; both are measured in wall time, because the
//! runtime's finish times are. Volumes have a shorter one.

use std::time::Duration;

use model::Wall;

/// The crash back-off of one container. The first restart is immediate, then the initial delay applies, then twice
/// that, and so on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CrashBackOff {
    /// The key of the definition that it counts for. Another definition starts again at zero.
    pub key: u64,
    pub delay: Duration,
    pub advanced_at: Wall,
}

/// Without a crash for this long, the count starts again.
const CRASH_FORGET: Duration = Duration::from_secs(600);
const PULL_INITIAL: Duration = Duration::from_secs(10);
const PULL_MAX: Duration = Duration::from_secs(300);
const PULL_FORGET: Duration = Duration::from_secs(600);
const STATUS_INITIAL: Duration = Duration::from_secs(1);
const STATUS_MAX: Duration = Duration::from_secs(300);
const VOLUME_INITIAL: Duration = Duration::from_millis(500);
const VOLUME_MAX: Duration = Duration::from_secs(122);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CrashLimits {
    pub initial: Duration,
    pub max: Duration,
}

/// When the next start is allowed, if it is not allowed now.
pub(crate) fn crash_back_off_until(
    entry: Option<&CrashBackOff>,
    key: u64,
    finished_at: Wall,
    now: Wall,
) -> Option<Wall> {
    let entry = entry.filter(|e| e.key == key)?;
    if finished_at.since(entry.advanced_at) > CRASH_FORGET {
        return None;
    }
    let until = finished_at.plus(entry.delay);
    // A finish time in the future: the clock was set back. Waiting until that time could take for ever.
    (finished_at <= now && now < until).then_some(until)
}

/// The entry after a start was decided.
pub(crate) fn next_crash_back_off(
    entry: Option<&CrashBackOff>,
    key: u64,
    finished_at: Wall,
    now: Wall,
    limits: CrashLimits,
) -> CrashBackOff {
    let first = limits.initial.min(limits.max);
    let delay = match entry.filter(|e| e.key == key) {
        Some(e) if finished_at.since(e.advanced_at) <= CRASH_FORGET => (e.delay * 2).min(limits.max),
        _ => first,
    };
    CrashBackOff { key, delay, advanced_at: now }
}

/// The delay before a missing status is requested again, after this many failures in a row.
pub(crate) fn status_delay(failures: u32) -> Duration {
    (STATUS_INITIAL * (1 << failures.saturating_sub(1).min(16))).min(STATUS_MAX)
}

/// The delay of a volume or its content after this many failures in a row.
pub fn volume_delay(failures: u32) -> Duration {
    (VOLUME_INITIAL * (1 << failures.saturating_sub(1).min(16))).min(VOLUME_MAX)
}

/// The pull back-off of one pod and image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PullBackOff {
    pub delay: Duration,
    pub failed_at: Wall,
    pub reason: model::Reason,
    pub message: String,
}

pub(crate) fn pull_back_off_until(entry: Option<&PullBackOff>, now: Wall) -> Option<Wall> {
    let entry = entry?;
    let until = entry.failed_at.plus(entry.delay);
    (entry.failed_at <= now && now < until && now.since(entry.failed_at) <= PULL_FORGET).then_some(until)
}

pub(crate) fn next_pull_back_off(
    entry: Option<&PullBackOff>,
    now: Wall,
    reason: model::Reason,
    message: String,
) -> PullBackOff {
    let delay = match entry {
        Some(e) if now.since(e.failed_at) <= PULL_FORGET => (e.delay * 2).min(PULL_MAX),
        _ => PULL_INITIAL,
    };
    PullBackOff { delay, failed_at: now, reason, message }
}

/// A duration as Go prints it: `10s`, `1m20s`, `5m0s`.
pub fn go_duration(d: Duration) -> String {
    let total = d.as_secs();
    let (hours, minutes, seconds) = (total / 3600, total % 3600 / 60, total % 60);
    let fraction = d.subsec_nanos();
    let seconds = if fraction == 0 {
        format!("{seconds}s")
    } else if total == 0 && fraction < 1_000_000_000 {
        return sub_second(fraction);
    } else {
        let digits = format!("{fraction:09}");
        format!("{seconds}.{}s", digits.trim_end_matches('0'))
    };
    match (hours, minutes) {
        (0, 0) => seconds,
        (0, m) => format!("{m}m{seconds}"),
        (h, m) => format!("{h}h{m}m{seconds}"),
    }
}

fn sub_second(nanos: u32) -> String {
    let (unit, size) = match nanos {
        0..1_000 => ("ns", 1),
        1_000..1_000_000 => ("µs", 1_000),
        _ => ("ms", 1_000_000),
    };
    let whole = nanos / size;
    let rest = nanos % size;
    if rest == 0 {
        return format!("{whole}{unit}");
    }
    let width = match size {
        1_000 => 3,
        _ => 6,
    };
    let digits = format!("{rest:0width$}");
    format!("{whole}.{}{unit}", digits.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Reason;

    fn at(secs: i64) -> Wall {
        Wall(secs * 1_000_000_000)
    }
    fn limits(initial: u64, max: u64) -> CrashLimits {
        CrashLimits { initial: Duration::from_secs(initial), max: Duration::from_secs(max) }
    }

    /// Crashes at once after each start: when is each restart allowed, measured from the finish?
    fn delays(limits: CrashLimits, restarts: usize) -> Vec<u64> {
        let mut entry: Option<CrashBackOff> = None;
        let mut now = at(1_000);
        let mut seen = Vec::new();
        for _ in 0..restarts {
            let finished = now;
            let allowed = crash_back_off_until(entry.as_ref(), 7, finished, now).unwrap_or(now);
            seen.push(allowed.since(finished).as_secs());
            now = allowed;
            assert_eq!(
                crash_back_off_until(entry.as_ref(), 7, finished, now),
                None,
                "not allowed when the wait is over"
            );
            entry = Some(next_crash_back_off(entry.as_ref(), 7, finished, now, limits));
        }
        seen
    }

    #[test]
    fn crash_delays_double_from_immediate_to_the_maximum() {
        assert_eq!(delays(limits(10, 300), 9), [0, 10, 20, 40, 80, 160, 300, 300, 300]);
    }

    #[test]
    fn a_small_maximum_is_also_the_first_delay() {
        assert_eq!(delays(limits(10, 4), 4), [0, 4, 4, 4]);
        assert_eq!(delays(limits(10, 15), 4), [0, 10, 15, 15]);
    }

    #[test]
    fn ten_quiet_minutes_start_the_count_anew() {
        let entry = CrashBackOff { key: 7, delay: Duration::from_secs(160), advanced_at: at(0) };
        assert_eq!(crash_back_off_until(Some(&entry), 7, at(600), at(600)), Some(at(760)));
        assert_eq!(crash_back_off_until(Some(&entry), 7, at(601), at(601)), None);
        assert_eq!(
            next_crash_back_off(Some(&entry), 7, at(601), at(601), limits(10, 300)).delay,
            Duration::from_secs(10)
        );
    }

    #[test]
    fn another_definition_starts_anew() {
        let entry = CrashBackOff { key: 7, delay: Duration::from_secs(160), advanced_at: at(0) };
        assert_eq!(crash_back_off_until(Some(&entry), 8, at(1), at(1)), None);
        assert_eq!(
            next_crash_back_off(Some(&entry), 8, at(1), at(1), limits(10, 300)).delay,
            Duration::from_secs(10)
        );
    }

    #[test]
    fn pull_delays_double_and_are_forgotten() {
        let mut entry = None;
        let mut now = at(0);
        let mut seen = Vec::new();
        for _ in 0..7 {
            let failed = next_pull_back_off(entry.as_ref(), now, Reason::ErrImagePull, "no".into());
            seen.push(failed.delay.as_secs());
            assert_eq!(pull_back_off_until(Some(&failed), now), Some(now.plus(failed.delay)));
            now = now.plus(failed.delay);
            assert_eq!(pull_back_off_until(Some(&failed), now), None);
            entry = Some(failed);
        }
        assert_eq!(seen, [10, 20, 40, 80, 160, 300, 300]);
        let late = next_pull_back_off(
            entry.as_ref(),
            now.plus(Duration::from_secs(601)),
            Reason::ErrImagePull,
            "no".into(),
        );
        assert_eq!(late.delay, PULL_INITIAL);
    }

    #[test]
    fn volume_delays_double_from_half_a_second_to_two_minutes() {
        let millis: Vec<_> = (1..=11).map(|n| volume_delay(n).as_millis()).collect();
        assert_eq!(millis, [500, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 122_000, 122_000, 122_000]);
        assert_eq!(volume_delay(u32::MAX), VOLUME_MAX);
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_prolong_a_wait() {
        let crash = CrashBackOff { key: 7, delay: Duration::from_secs(10), advanced_at: at(5_000) };
        assert_eq!(crash_back_off_until(Some(&crash), 7, at(5_001), at(5_002)), Some(at(5_011)));
        assert_eq!(crash_back_off_until(Some(&crash), 7, at(5_001), at(1_400)), None);
        let pull = next_pull_back_off(None, at(5_000), Reason::ErrImagePull, "no".into());
        assert_eq!(pull_back_off_until(Some(&pull), at(5_000)), Some(at(5_010)));
        assert_eq!(pull_back_off_until(Some(&pull), at(1_400)), None);
    }

    #[test]
    fn durations_print_as_go_prints_them() {
        let check =
            |millis: u64, expect: &str| assert_eq!(go_duration(Duration::from_millis(millis)), expect);
        check(10_000, "10s");
        check(80_000, "1m20s");
        check(300_000, "5m0s");
        check(3_600_000, "1h0m0s");
        check(1_500, "1.5s");
        check(250, "250ms");
        check(0, "0s");
        assert_eq!(go_duration(Duration::from_micros(1_500)), "1.5ms");
        assert_eq!(go_duration(Duration::from_nanos(12)), "12ns");
    }
}
