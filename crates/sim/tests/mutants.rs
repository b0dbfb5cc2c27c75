//! Drivers that are wrong on purpose. Each must be caught, and by an invariant that has to do with what is wrong; a check
//! that can't fail proves nothing.

use std::collections::BTreeMap;

use sim::{Mutant, Options, Profile, run};

/// Runs seeds until `enough` of them break something, and tells what broke.
fn caught(mutant: Mutant, profile: Profile, seeds: u64, enough: usize) -> BTreeMap<&'static str, usize> {
    let mut broken = BTreeMap::new();
    for seed in 0..seeds {
        let outcome = run(seed, &Options { profile, mutant, ..Options::default() });
        if let Some(failure) = outcome.failure {
            *broken.entry(failure.violation.invariant).or_default() += 1;
        }
        if broken.values().sum::<usize>() >= enough {
            break;
        }
    }
    broken
}

fn check(mutant: Mutant, profile: Profile, expect: &[&str]) {
    let broken = caught(mutant, profile, 120, 12);
    assert!(!broken.is_empty(), "{mutant:?} was not caught");
    assert!(
        expect.iter().any(|name| broken.contains_key(name)),
        "{mutant:?} broke {broken:?}, not {expect:?}"
    );
}

#[test]
fn reading_times_that_are_too_late() {
    // Plans on the past: what runs is stopped, removed or made twice, and what is not done is taken for done.
    check(
        Mutant::LateReadingTimes,
        Profile::Calm,
        &["K1", "K5", "K9", "restart counts", "release last", "no live removal"],
    );
}

#[test]
fn plans_that_never_end() {
    check(Mutant::DropsPlanEnded, Profile::Calm, &["K8"]);
}

#[test]
fn cancels_that_are_ignored() {
    check(Mutant::IgnoresCancel, Profile::Calm, &["K3"]);
}

#[test]
fn stages_that_do_not_wait() {
    check(Mutant::IgnoresStages, Profile::Calm, &["prepare first", "K5", "release last"]);
}

#[test]
fn failures_that_are_hidden() {
    check(Mutant::HidesFailures, Profile::Faults, &["prepare first"]);
}

#[test]
fn timers_that_never_come() {
    check(Mutant::DropsTimers, Profile::Calm, &["K8"]);
}

#[test]
fn one_that_drags_all_with_it() {
    check(Mutant::SharesFate, Profile::Stuck, &["K10"]);
}

#[test]
fn objects_whose_changes_are_not_told() {
    check(Mutant::LosesObjectNews, Profile::Calm, &["K8"]);
}
