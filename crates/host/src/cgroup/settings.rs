//! Converts numbers to files: the values for each version of the kernel's interface.
//!
//! Pure. `file::apply` writes the result.

use model::cgroup::CgroupValues;

/// One file of a cgroup and its wanted value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Setting {
    pub file: String,
    pub value: String,
    pub kind: Kind,
    /// Whether the file may be missing.
    pub optional: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Words; words that are not written keep their state.
    Words,
    /// A number of bytes, which the kernel rounds to whole pages.
    Bytes,
}

/// From here on the kernel means "no limit" (v1 shows the largest number of whole pages instead of a word).
const UNLIMITED_FROM: u64 = i64::MAX as u64 - (1 << 30);

impl Setting {
    fn words(file: impl Into<String>, value: impl ToString) -> Self {
        Self { file: file.into(), value: value.to_string(), kind: Kind::Words, optional: false }
    }

    fn bytes(file: impl Into<String>, value: impl ToString) -> Self {
        Self { file: file.into(), value: value.to_string(), kind: Kind::Bytes, optional: false }
    }

    fn optional(self) -> Self {
        Self { optional: true, ..self }
    }

    /// Whether the file already has the value, so that it is not written again.
    pub fn holds(&self, current: &str, page_size: u64) -> bool {
        match self.kind {
            Kind::Words => {
                let mut current = current.split_whitespace();
                self.value.split_whitespace().all(|want| current.next() == Some(want))
            }
            Kind::Bytes => match (limit(&self.value), limit(current)) {
                (Some(want), Some(have)) if want >= UNLIMITED_FROM => have >= UNLIMITED_FROM,
                (Some(want), Some(have)) => have == want - want % page_size.max(1),
                _ => false,
            },
        }
    }
}

fn limit(text: &str) -> Option<u64> {
    match text.trim() {
        "max" | "-1" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

/// The settings for a v1 hierarchy that has the controllers for which `has` is true.
pub(super) fn v1(values: &CgroupValues, has: impl Fn(&str) -> bool) -> Vec<Setting> {
    let mut out = Vec::new();
    if has("cpu") {
        if let Some(shares) = values.cpu_shares {
            out.push(Setting::words("cpu.shares", shares.clamp(2, 262_144)));
        }
        if let Some(period) = values.cpu_period {
            out.push(Setting::words("cpu.cfs_period_us", period));
        }
        if let Some(quota) = values.cpu_quota {
            out.push(Setting::words("cpu.cfs_quota_us", quota.max(-1)));
        }
    }
    if has("memory")
        && let Some(bytes) = values.memory_limit
    {
        out.push(Setting::bytes("memory.limit_in_bytes", bytes.max(-1)));
    }
    if has("pids")
        && let Some(count) = values.pids_limit
    {
        out.push(Setting::words("pids.max", or_max(count)));
    }
    if has("hugetlb") {
        for (size, bytes) in &values.hugepage_limits {
            out.push(Setting::bytes(format!("hugetlb.{size}.limit_in_bytes"), bytes));
            // Reservations are limited separately since 5.7; without this a mapping could reserve more than it may use.
            out.push(Setting::bytes(format!("hugetlb.{size}.rsvd.limit_in_bytes"), bytes).optional());
        }
    }
    out
}

/// The settings for a v2 cgroup. `cpu_max` is the file's present content, because a period can't be written alone.
pub(super) fn v2(values: &CgroupValues, has: impl Fn(&str) -> bool, cpu_max: &str) -> Vec<Setting> {
    let mut out = Vec::new();
    if has("cpu") {
        if let Some(shares) = values.cpu_shares {
            out.push(Setting::words("cpu.weight", weight(shares)));
        }
        let quota = match values.cpu_quota {
            Some(quota) => or_max(quota),
            None => cpu_max.split_whitespace().next().unwrap_or("max").to_owned(),
        };
        match (values.cpu_quota, values.cpu_period) {
            (_, Some(period)) => out.push(Setting::words("cpu.max", format!("{quota} {period}"))),
            (Some(_), None) => out.push(Setting::words("cpu.max", quota)),
            (None, None) => {}
        }
    }
    if has("memory")
        && let Some(bytes) = values.memory_limit
    {
        out.push(Setting::bytes("memory.max", or_max(bytes)));
    }
    if has("memory") {
        let protected = [("memory.min", values.memory_min), ("memory.low", values.memory_low)];
        let wanted = protected.into_iter().filter_map(|(file, bytes)| Some(Setting::bytes(file, bytes?)));
        out.extend(wanted);
    }
    if has("pids")
        && let Some(count) = values.pids_limit
    {
        out.push(Setting::words("pids.max", or_max(count)));
    }
    if has("hugetlb") {
        for (size, bytes) in &values.hugepage_limits {
            out.push(Setting::bytes(format!("hugetlb.{size}.max"), bytes));
            out.push(Setting::bytes(format!("hugetlb.{size}.rsvd.max"), bytes).optional());
        }
    }
    out
}

fn or_max(value: i64) -> String {
    if value < 0 { "max".into() } else { value.to_string() }
}

/// The linear map from shares (2 to 262144) to weights (1 to 10000).
pub(super) fn weight(shares: u64) -> u64 {
    let shares = shares.clamp(2, 262_144);
    1 + (shares - 2) * 9_999 / 262_142
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all() -> CgroupValues {
        CgroupValues {
            cpu_shares: Some(512),
            cpu_quota: Some(50_000),
            cpu_period: Some(100_000),
            memory_limit: Some(64 << 20),
            memory_min: Some(32 << 20),
            memory_low: Some(0),
            pids_limit: Some(100),
            hugepage_limits: [("2MB".to_owned(), 4 << 20)].into(),
        }
    }

    fn shown(settings: &[Setting]) -> Vec<String> {
        settings.iter().map(|s| format!("{}={}", s.file, s.value)).collect()
    }

    #[test]
    fn each_version_has_its_files() {
        assert_eq!(
            shown(&v1(&all(), |_| true)),
            [
                "cpu.shares=512",
                "cpu.cfs_period_us=100000",
                "cpu.cfs_quota_us=50000",
                "memory.limit_in_bytes=67108864",
                "pids.max=100",
                "hugetlb.2MB.limit_in_bytes=4194304",
                "hugetlb.2MB.rsvd.limit_in_bytes=4194304",
            ]
        );
        assert_eq!(
            shown(&v2(&all(), |_| true, "max 100000")),
            [
                "cpu.weight=20",
                "cpu.max=50000 100000",
                "memory.max=67108864",
                "memory.min=33554432",
                "memory.low=0",
                "pids.max=100",
                "hugetlb.2MB.max=4194304",
                "hugetlb.2MB.rsvd.max=4194304",
            ]
        );
    }

    #[test]
    fn only_the_controllers_that_are_there() {
        assert_eq!(shown(&v1(&all(), |c| c == "pids")), ["pids.max=100"]);
        assert_eq!(
            shown(&v2(&all(), |c| c == "memory", "")),
            ["memory.max=67108864", "memory.min=33554432", "memory.low=0"]
        );
        assert!(v1(&CgroupValues::default(), |_| true).is_empty());
        assert!(v2(&CgroupValues::default(), |_| true, "").is_empty());
    }

    #[test]
    fn no_limit_is_spelt_by_version() {
        let none = CgroupValues {
            cpu_quota: Some(-1),
            memory_limit: Some(-1),
            pids_limit: Some(-1),
            ..CgroupValues::default()
        };
        assert_eq!(
            shown(&v1(&none, |_| true)),
            ["cpu.cfs_quota_us=-1", "memory.limit_in_bytes=-1", "pids.max=max"]
        );
        assert_eq!(shown(&v2(&none, |_| true, "5 7")), ["cpu.max=max", "memory.max=max", "pids.max=max"]);
    }

    #[test]
    fn a_period_alone_keeps_the_quota() {
        let values = CgroupValues { cpu_period: Some(50_000), ..CgroupValues::default() };
        assert_eq!(shown(&v2(&values, |_| true, "7000 100000\n")), ["cpu.max=7000 50000"]);
        assert_eq!(shown(&v2(&values, |_| true, "")), ["cpu.max=max 50000"]);
    }

    #[test]
    fn weights_of_the_documented_shares() {
        let check = |shares, expect| assert_eq!(weight(shares), expect, "{shares}");
        check(0, 1);
        check(2, 1);
        check(102, 4);
        check(256, 10);
        check(512, 20);
        check(1024, 39);
        check(2048, 79);
        check(262_144, 10_000);
        check(u64::MAX, 10_000);
    }

    #[test]
    fn what_counts_as_already_written() {
        let check = |setting: Setting, current: &str, expect: bool| {
            assert_eq!(setting.holds(current, 4096), expect, "{setting:?} in {current:?}");
        };
        check(Setting::words("cpu.max", "max"), "max 100000\n", true);
        check(Setting::words("cpu.max", "max 50000"), "max 100000\n", false);
        check(Setting::words("cpu.shares", 5), "5\n", true);
        check(Setting::words("cpu.shares", 5), "50\n", false);
        check(Setting::words("cpu.shares", 5), "", false);
        check(Setting::bytes("m", 10_000), "8192\n", true);
        check(Setting::bytes("m", 10_000), "10000\n", false);
        check(Setting::bytes("m", -1), "9223372036854771712\n", true);
        check(Setting::bytes("m", "max"), "max\n", true);
        check(Setting::bytes("m", "max"), "4096\n", false);
        check(Setting::bytes("m", 4096), "max\n", false);
        check(Setting::bytes("m", 1u64 << 62), "4611686018427387904\n", true);
        check(Setting::bytes("m", 4096), "gibberish", false);
    }

    proptest! {
        #[test]
        fn weights_stay_in_range_and_in_order(a in any::<u64>(), b in any::<u64>()) {
            let (low, high) = (a.min(b), a.max(b));
            prop_assert!((1..=10_000).contains(&weight(a)));
            prop_assert!(weight(low) <= weight(high));
        }

        #[test]
        fn any_text_is_compared_without_panic(text in ".{0,40}", want in any::<u64>(), page in any::<u64>()) {
            let _ = Setting::bytes("f", want).holds(&text, page);
            let _ = Setting::words("f", want).holds(&text, page);
        }

        #[test]
        fn what_was_written_holds(want in 0u64..(1 << 50)) {
            let kept = want / 4096 * 4096;
            prop_assert!(Setting::bytes("f", want).holds(&kept.to_string(), 4096));
        }
    }
}
