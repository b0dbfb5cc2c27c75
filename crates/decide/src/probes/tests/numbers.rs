use std::collections::BTreeMap;
use std::time::Duration;

use model::probe::ProbeKind;
use model::{Mono, PodUid};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::KINDS;
use crate::probes::timing::{AttemptSchedule, Timing};

#[test]
fn a_probes_numbers_have_defaults() {
    let check = |probe: Value, expect: (u64, u64, u64, u32, u32)| {
        let timing = Timing::of(&serde_json::from_value(probe.clone()).unwrap());
        let seconds = [timing.delay, timing.period, timing.timeout].map(|d| d.as_secs());
        let got = (seconds[0], seconds[1], seconds[2], timing.successes, timing.failures);
        assert_eq!(got, expect, "{probe}");
    };
    check(json!({}), (0, 10, 1, 1, 3));
    check(json!({"initialDelaySeconds": 7}), (7, 10, 1, 1, 3));
    check(json!({"periodSeconds": 1}), (0, 1, 1, 1, 3));
    check(json!({"timeoutSeconds": 30}), (0, 10, 30, 1, 3));
    check(json!({"successThreshold": 2}), (0, 10, 1, 2, 3));
    check(json!({"failureThreshold": 1}), (0, 10, 1, 1, 1));
    // what can't be is not there
    check(json!({"initialDelaySeconds": 0, "periodSeconds": 0, "timeoutSeconds": 0}), (0, 10, 1, 1, 3));
    check(json!({"initialDelaySeconds": -1, "periodSeconds": -1}), (0, 10, 1, 1, 3));
    check(json!({"successThreshold": 0, "failureThreshold": -2}), (0, 10, 1, 1, 3));
    check(json!({"periodSeconds": i32::MAX}), (0, i32::MAX as u64, 1, 1, 3));
}

fn grid(uid: &str, kind: ProbeKind, period: u64) -> AttemptSchedule {
    AttemptSchedule::new(&PodUid::new(uid), "c", kind, Duration::from_secs(period))
}

proptest! {
    #[test]
    fn points_of_a_grid_are_one_period_apart(
        uid in "[a-z0-9-]{1,36}", period in 1u64..3600, at in 0u64..1_000_000_000_000_000,
    ) {
        let grid = grid(&uid, ProbeKind::Readiness, period);
        let span = Duration::from_secs(period);
        let (from, after) = (grid.from(Mono(at)), grid.after(Mono(at)));
        // not before, and less than a period later
        prop_assert!(from >= Mono(at) && from.since(Mono(at)) < span);
        prop_assert!(after > Mono(at) && after.since(Mono(at)) <= span);
        prop_assert_eq!(grid.from(from), from);
        prop_assert_eq!(grid.after(from), from.plus(span));
    }
}

/// The most that are asked within any tenth of a second of a period.
fn busiest_tenth(workers: impl Iterator<Item = (String, ProbeKind)>, period: u64) -> usize {
    let mut slots: BTreeMap<u64, usize> = BTreeMap::new();
    for (uid, kind) in workers {
        let first = grid(&uid, kind, period).from(Mono::ZERO);
        *slots.entry(first.0 / 100_000_000).or_default() += 1;
    }
    slots.into_values().max().unwrap_or_default()
}

#[test]
fn a_hundred_pods_are_not_asked_together() {
    // names that differ in nothing but their last letters, as those of one set of pods do
    let pods = || (0..100).map(|number| format!("6f1e2ab0-0000-4000-8000-{number:012}"));
    for kind in KINDS {
        let most = busiest_tenth(pods().map(|uid| (uid, kind)), 10);
        assert!(most <= 6, "{most} of 100 within a tenth of a second");
    }
    let most = busiest_tenth(pods().flat_map(|uid| KINDS.map(|kind| (uid.clone(), kind))), 10);
    assert!(most <= 12, "{most} of 300 within a tenth of a second");
}

#[test]
fn every_worker_has_its_own_offset_for_good() {
    let first = |uid: &str, kind, period| grid(uid, kind, period).from(Mono::ZERO);
    assert_eq!(first("u", ProbeKind::Liveness, 10), first("u", ProbeKind::Liveness, 10));
    assert_ne!(first("u", ProbeKind::Liveness, 10), first("u", ProbeKind::Readiness, 10));
    assert_ne!(first("u", ProbeKind::Liveness, 10), first("v", ProbeKind::Liveness, 10));
}
