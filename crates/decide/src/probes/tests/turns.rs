use std::time::Duration;

use model::Mono;
use model::observed::ContainerState;
use model::probe::{ProbeKind, ProbeOutcome};
use serde_json::{Value, json};

use super::{Bed, failure, running, with_probes};
use crate::probes::ProbeResult;
use crate::status::sample::{at, instance};

use ProbeKind::{Liveness, Readiness, Startup};

const QUICK: Duration = Duration::from_millis(5);

fn yes(_: ProbeKind, _: u64) -> Option<ProbeOutcome> {
    Some(ProbeOutcome::Success)
}

fn no(_: ProbeKind, _: u64) -> Option<ProbeOutcome> {
    Some(failure())
}

fn times(attempts: &[(u64, ProbeKind)], kind: ProbeKind) -> Vec<u64> {
    attempts.iter().filter(|(_, k)| *k == kind).map(|(at, _)| *at).collect()
}

fn gaps(times: &[u64]) -> Vec<u64> {
    times.windows(2).map(|two| two[1] - two[0]).collect()
}

#[test]
fn whoever_waits_for_a_yes_is_asked_at_once() {
    // kind, delay, when it may be asked first: from, and before
    let check = |kind, delay: u64, from: u64, before: u64| {
        let mut bed = Bed::running(with_probes(&[(kind, json!({"initialDelaySeconds": delay}))]));
        let first = bed.live(60, QUICK, yes)[0].0;
        assert!(first >= from && first < before, "{kind:?} {delay}: {first}");
    };
    check(Readiness, 0, 0, 1);
    check(Readiness, 7, 7_000, 7_001);
    check(Startup, 0, 0, 1);
    check(Startup, 3, 3_000, 3_001);
    // a first sign of life is not urgent
    check(Liveness, 0, 0, 10_000);
    check(Liveness, 15, 15_000, 25_000);
}

#[test]
fn attempts_are_one_period_apart() {
    for period in [1u64, 2, 10, 30] {
        for kind in [Readiness, Liveness] {
            let mut bed = Bed::running(with_probes(&[(kind, json!({"periodSeconds": period}))]));
            let attempts = times(&bed.live(20 * period, QUICK, yes), kind);
            let gaps = gaps(&attempts);
            assert!(gaps.len() >= 17, "{kind:?} {period}: {attempts:?}");
            // the first of readiness stands off the grid
            let regular = if kind == Readiness { &gaps[1..] } else { &gaps };
            assert!(
                regular.iter().all(|gap| gap.abs_diff(period * 1000) <= 1),
                "{kind:?} {period}: {gaps:?}"
            );
            assert!((period * 500..=period * 1500).contains(&gaps[0]), "{gaps:?}");
        }
    }
}

#[test]
fn a_life_ends_no_sooner_than_its_threshold_allows() {
    let check = |period: u64, threshold: u32, delay: u64| {
        let numbers =
            json!({"periodSeconds": period, "failureThreshold": threshold, "initialDelaySeconds": delay});
        let mut bed = Bed::running(with_probes(&[(Liveness, numbers)]));
        let attempts = bed.live(1000, QUICK, no);
        assert_eq!(bed.verdict(Liveness), Some(ProbeResult::Failure));
        assert_eq!(attempts.len() as u32, threshold, "nothing more to ask");
        let last = attempts.last().unwrap().0;
        let least = (delay + period * u64::from(threshold - 1)) * 1000;
        assert!((least..least + period * 1000).contains(&last), "{period} {threshold} {delay}: {last}");
    };
    check(10, 3, 0);
    check(10, 1, 15);
    check(1, 5, 2);
    check(5, 2, 30);
}

#[test]
fn a_start_fails_no_sooner_than_its_threshold_allows() {
    let check = |period: u64, threshold: u32| {
        let numbers = json!({"periodSeconds": period, "failureThreshold": threshold});
        let mut bed = Bed::running(with_probes(&[(Startup, numbers)]));
        let attempts = bed.live(1000, QUICK, no);
        assert_eq!(bed.verdict(Startup), Some(ProbeResult::Failure));
        // the look before its time does not count
        assert_eq!(attempts.len() as u32, threshold + 1);
        let last = attempts.last().unwrap().0;
        let least = period * u64::from(threshold - 1) * 1000;
        assert!((least..=least + period * 1000).contains(&last), "{period} {threshold}: {last}");
    };
    check(10, 3);
    check(10, 1);
    check(1, 30);
}

#[test]
fn a_look_before_its_time_says_nothing_when_it_fails() {
    let mut bed = Bed::running(with_probes(&[(Startup, json!({"failureThreshold": 1}))]));
    assert_eq!(bed.go(true).len(), 1);
    let answer = bed.answer(Startup, &failure()).unwrap();
    assert_eq!((answer.event, answer.changed), (None, false));
    assert_eq!(bed.verdict(Startup), Some(ProbeResult::Unknown));
    let mut bed = Bed::running(with_probes(&[(Startup, json!({}))]));
    bed.go(true);
    assert!(bed.answer(Startup, &ProbeOutcome::Success).unwrap().changed);
}

#[test]
fn the_others_wait_for_the_start() {
    let probes = [
        (Startup, json!({"periodSeconds": 2, "failureThreshold": 100})),
        (Readiness, json!({})),
        (Liveness, json!({})),
    ];
    let mut bed = Bed::running(with_probes(&probes));
    let attempts = bed.live(100, QUICK, |kind, at| {
        Some(if kind == Startup && at < 30_000 { failure() } else { ProbeOutcome::Success })
    });
    let startup = times(&attempts, Startup);
    let started = *startup.last().unwrap();
    assert!((30_000..32_001).contains(&started), "{started}");
    // readiness at once, life at its own next turn
    let readiness = times(&attempts, Readiness)[0];
    assert!(readiness >= started && readiness - started <= 10, "{started} {readiness}");
    let liveness = times(&attempts, Liveness)[0];
    assert!(liveness > started && liveness - started <= 10_005, "{started} {liveness}");
}

#[test]
fn whoever_has_not_started_is_not_asked_anything_else() {
    let check = |startup: Option<ProbeOutcome>, expect: &[ProbeKind]| {
        let numbers = || json!({"failureThreshold": 1, "periodSeconds": 1});
        let mut bed =
            Bed::running(with_probes(&[(Startup, numbers()), (Readiness, numbers()), (Liveness, numbers())]));
        if let Some(outcome) = &startup {
            bed.ask(Startup, outcome);
        }
        let mut asked: Vec<_> = bed.go(false).into_iter().map(|due| due.kind).collect();
        bed.pass(Duration::from_secs(2));
        asked.extend(bed.go(false).into_iter().map(|due| due.kind));
        asked.sort();
        assert_eq!(asked, expect, "{startup:?}");
    };
    check(None, &[Startup]);
    check(Some(ProbeOutcome::Success), &[Readiness, Liveness]);
    // it is about to be killed
    check(Some(failure()), &[]);
}

#[test]
fn a_probe_that_hangs_is_not_asked_again_before_its_end() {
    let never = |_, _| None;
    for kind in [Startup, Readiness, Liveness] {
        let mut bed = Bed::running(with_probes(&[(kind, json!({"periodSeconds": 1}))]));
        assert_eq!(bed.live(100, QUICK, never).len(), 1, "{kind:?}");
        assert_eq!(bed.wake, None, "nothing to wake for");
    }
    // and the others go on
    let one = |kind| (kind, json!({"periodSeconds": 1}));
    let mut bed = Bed::running(with_probes(&[one(Readiness), one(Liveness)]));
    let attempts = bed.live(20, QUICK, |kind, _| (kind == Liveness).then_some(ProbeOutcome::Success));
    assert_eq!(times(&attempts, Readiness).len(), 1);
    assert!(times(&attempts, Liveness).len() >= 19);
}

#[test]
fn a_slow_probe_is_asked_again_when_it_is_over() {
    let mut bed = Bed::running(with_probes(&[(Liveness, json!({"periodSeconds": 1}))]));
    let attempts = times(&bed.live(60, Duration::from_millis(3_500), yes), Liveness);
    assert!(attempts.len() >= 15, "{attempts:?}");
    assert!(gaps(&attempts).iter().all(|gap| (3_500..=4_500).contains(gap)), "{attempts:?}");
}

#[test]
fn news_make_readiness_be_asked_at_once_unless_it_is_ready() {
    let check = |kind, verdict: &[bool], news: bool, expect: usize| {
        let mut bed =
            Bed::running(with_probes(&[(kind, json!({"failureThreshold": 1, "periodSeconds": 1000}))]));
        bed.go(false);
        bed.answer(kind, &failure());
        for good in verdict {
            bed.ask(kind, &if *good { ProbeOutcome::Success } else { failure() });
        }
        bed.pass(Duration::from_millis(1));
        assert_eq!(bed.go(news).len(), expect, "{kind:?} {verdict:?} {news}");
    };
    check(Readiness, &[], true, 1);
    check(Readiness, &[false], true, 1);
    check(Readiness, &[true, false], true, 1);
    check(Readiness, &[true], true, 0);
    check(Readiness, &[], false, 0);
    check(Startup, &[], true, 0);
    check(Liveness, &[], true, 0);
    check(Liveness, &[true], true, 0);
}

#[test]
fn news_while_it_is_asked_make_it_be_asked_once_more() {
    let mut bed = Bed::running(with_probes(&[(Readiness, json!({"periodSeconds": 1000}))]));
    assert_eq!(bed.go(true).len(), 1);
    assert!(bed.go(true).is_empty());
    assert!(bed.go(true).is_empty());
    bed.answer(Readiness, &failure());
    assert_eq!(bed.go(false).len(), 1);
    bed.answer(Readiness, &failure());
    assert!(bed.go(false).is_empty());
}

#[test]
fn news_do_not_shorten_the_delay() {
    let mut bed = Bed::running(with_probes(&[(Readiness, json!({"initialDelaySeconds": 30}))]));
    assert!(bed.go(true).is_empty());
    bed.pass(Duration::from_secs(29));
    assert!(bed.go(true).is_empty());
    bed.pass(Duration::from_secs(1));
    assert_eq!(bed.go(true).len(), 1);
}

#[test]
fn an_agent_that_comes_up_asks_each_at_its_own_time() {
    let first = |uid: &str, kind, period: u64, delay: u64| {
        let mut pod = with_probes(&[(kind, json!({"periodSeconds": period, "initialDelaySeconds": delay}))]);
        pod.uid = uid.into();
        let mut bed = Bed::new(pod);
        bed.agent_started = at(500).wall;
        bed.now = model::Now { mono: Mono(1), wall: at(500).wall };
        bed.see(vec![running("c", 0)]);
        bed.live(1000, QUICK, yes)[0].0
    };
    for kind in [Startup, Readiness, Liveness] {
        let mut all: Vec<u64> = (0..100).map(|n| first(&format!("u{n}"), kind, 10, 0)).collect();
        assert!(all.iter().all(|at| *at <= 10_000), "within one period: {all:?}");
        all.sort_unstable();
        all.dedup();
        assert!(all.len() > 90, "{kind:?}: {all:?}");
    }
    // a delay that was over is over
    assert!(first("u", Readiness, 10, 400) <= 10_000);
    // and one that was not goes on
    let late = first("u", Readiness, 10, 560);
    assert!((60_000..70_001).contains(&late), "{late}");
}

#[test]
fn the_timer_stands_at_the_earliest_turn() {
    let probes: [(ProbeKind, Value); 2] =
        [(Readiness, json!({"initialDelaySeconds": 9})), (Liveness, json!({"initialDelaySeconds": 100}))];
    let mut bed = Bed::running(with_probes(&probes));
    bed.go(true);
    assert_eq!(bed.wake, Some(at(9).mono));
    bed.see(vec![instance("c", 0, ContainerState::Exited, 0)]);
    bed.go(true);
    assert_eq!(bed.wake, None);
    bed.see(vec![instance("c", 0, ContainerState::Exited, 0), running("c", 1)]);
    bed.go(true);
    // the second instance started ten seconds later
    assert_eq!(bed.wake, Some(at(9).mono), "the delay is counted from what the clocks agree on");
}

#[test]
fn a_period_that_was_slept_through_is_not_made_up_for() {
    let mut bed = Bed::running(with_probes(&[(Liveness, json!({"periodSeconds": 1}))]));
    bed.live(5, QUICK, yes);
    bed.pass(Duration::from_secs(3600));
    assert_eq!(bed.go(false).len(), 1);
    bed.answer(Liveness, &ProbeOutcome::Success);
    assert!(bed.go(false).is_empty());
    assert!(bed.wake.unwrap().since(bed.now.mono) <= Duration::from_secs(1));
}

/// When a hundred pods are asked in a minute, all from the same moment on: the most in any tenth of a second, after the
/// first `skipped` attempts of each.
fn busiest_tenth(found: bool, period: u64, skipped: usize) -> usize {
    let mut slots = std::collections::BTreeMap::new();
    for number in 0..100 {
        let mut pod = with_probes(&[(Readiness, json!({"periodSeconds": period}))]);
        pod.uid = format!("6f1e2ab0-0000-4000-8000-{number:012}").into();
        let mut bed = Bed::new(pod);
        if found {
            // An agent that comes up, and has them all before it.
            (bed.agent_started, bed.now) = (at(50).wall, at(60));
        }
        bed.see(vec![running("c", 0)]);
        let attempts = times(&bed.live(60, QUICK, yes), Readiness);
        for millis in &attempts[skipped..] {
            *slots.entry(millis / 100).or_insert(0) += 1;
        }
    }
    slots.into_values().max().unwrap_or_default()
}

#[test]
fn a_hundred_pods_that_began_together_are_never_asked_together() {
    // spread evenly, there would be one per tenth of a second, and ten where the period is a second
    assert!(busiest_tenth(true, 10, 0) <= 6);
    assert!(busiest_tenth(true, 1, 0) <= 24);
    // the first look at one that just started comes at once, the next in its turn
    assert!(busiest_tenth(false, 10, 1) <= 6);
    assert!(busiest_tenth(false, 1, 1) <= 24);
}
