//! Converts CPU amounts to shares and quotas of the kernel's scheduler.

use model::node::NodeConfig;

pub const MIN_SHARES: u64 = 2;
const MAX_SHARES: u64 = 262_144;
const SHARES_PER_CPU: i64 = 1024;
const MILLIS_PER_CPU: i64 = 1000;
/// Microseconds; the kernel refuses less.
const MIN_QUOTA: i64 = 1000;

/// Relative weight of a request in millicores.
pub fn cpu_shares(milli_cpu: i64) -> u64 {
    let shares = milli_cpu.saturating_mul(SHARES_PER_CPU) / MILLIS_PER_CPU;
    u64::try_from(shares).unwrap_or(0).clamp(MIN_SHARES, MAX_SHARES)
}

/// Microseconds per period that a limit in millicores allows; 0 when there is no limit.
pub fn cpu_quota(milli_cpu: i64, period_micros: i64) -> i64 {
    if milli_cpu == 0 {
        return 0;
    }
    (milli_cpu.saturating_mul(period_micros) / MILLIS_PER_CPU).max(MIN_QUOTA)
}

/// The cgroup v2 weight that stands for v1 shares, by the linear rule for the agent's own cgroups.
pub fn cpu_weight(shares: u64) -> u64 {
    let shares = shares.clamp(MIN_SHARES, MAX_SHARES);
    1 + (shares - MIN_SHARES) * 9999 / (MAX_SHARES - MIN_SHARES)
}

/// The configured accounting period.
pub fn quota_period_micros(config: &NodeConfig) -> i64 {
    i64::try_from(config.cpu_cfs_quota_period.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_weights() {
        let check = |milli, shares, weight| {
            assert_eq!(cpu_shares(milli), shares, "{milli}m");
            assert_eq!(cpu_weight(shares), weight, "{milli}m");
        };
        check(0, 2, 1);
        check(1, 2, 1);
        check(2, 2, 1);
        check(100, 102, 4);
        check(250, 256, 10);
        check(500, 512, 20);
        check(1000, 1024, 39);
        check(2000, 2048, 79);
        check(256_000, 262_144, 10_000);
        check(1_000_000, 262_144, 10_000);
        check(i64::MAX, 262_144, 10_000);
        check(-5, 2, 1);
    }

    #[test]
    fn quotas() {
        let check =
            |milli, period, quota| assert_eq!(cpu_quota(milli, period), quota, "{milli}m per {period}");
        check(0, 100_000, 0);
        check(1, 100_000, 1000);
        check(9, 100_000, 1000);
        check(10, 100_000, 1000);
        check(11, 100_000, 1100);
        check(100, 100_000, 10_000);
        check(2500, 100_000, 250_000);
        check(500, 10_000, 5000);
    }
}
