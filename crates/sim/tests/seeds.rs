//! A few seeds of each profile. Many more: `cargo run --release -p sim -- run --seeds A..B`.

use sim::record::{self, Window};
use sim::{Mutant, Options, Profile, run, shrink};

fn all_good(profile: Profile, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let outcome = run(seed, &Options { profile, ..Options::default() });
        assert!(outcome.failure.is_none(), "{outcome}");
    }
}

#[test]
fn calm() {
    all_good(Profile::Calm, 0..30);
}

#[test]
fn faults() {
    all_good(Profile::Faults, 0..60);
}

#[test]
fn short() {
    all_good(Profile::Short, 0..200);
}

#[test]
fn storage() {
    all_good(Profile::Storage, 0..40);
}

#[test]
fn devices() {
    all_good(Profile::Devices, 0..40);
}

/// Signers that are late, deny or lose requests.
#[test]
fn certificates() {
    all_good(Profile::Certificates, 0..40);
}

#[test]
fn logs() {
    all_good(Profile::Logs, 0..40);
}

#[test]
fn memory_that_runs_short() {
    all_good(Profile::Pressure, 0..40);
}

#[test]
fn images() {
    all_good(Profile::Images, 0..60);
}

#[test]
fn one_stuck_pod_holds_up_nobody() {
    all_good(Profile::Stuck, 0..20);
}

#[test]
fn one_refused_status_holds_up_nobody_else() {
    all_good(Profile::Refused, 0..40);
}

#[test]
fn what_stays_listed_for_ever_costs_little() {
    all_good(Profile::Ghosts, 0..40);
}

/// K8 and K10 for all other pods, over the restarts that the panics cause.
#[test]
fn one_pod_over_which_steps_panic_holds_up_nobody() {
    all_good(Profile::Poisoned, 0..60);
}

#[test]
fn extreme_pods_hold_up_nobody() {
    all_good(Profile::Extreme, 0..60);
}

/// The same seed is the same run: every event and every effect, to the last byte.
#[test]
fn a_seed_decides_everything() {
    for profile in Profile::ALL {
        for seed in 0..2 {
            let options = Options { profile, digest: true, ..Options::default() };
            let (first, second) = (run(seed, &options), run(seed, &options));
            assert_eq!(
                (first.digest, first.events),
                (second.digest, second.events),
                "seed {seed} {profile:?}"
            );
        }
    }
    let digest = |seed| run(seed, &Options { digest: true, ..Options::default() }).digest;
    assert_ne!(digest(1), digest(2), "another seed is another run");
}

/// A failing seed is shrunk, its log is written, read and replayed, and ends as the run did.
#[test]
fn a_failing_seed_becomes_a_short_log() {
    let options = Options { profile: Profile::Short, mutant: Mutant::IgnoresStages, ..Options::default() };
    let seed = (0..100).find(|seed| run(*seed, &options).failure.is_some()).expect("a failing seed");
    let whole = run(seed, &options);
    let shrunk = shrink(seed, &options).expect("it fails");
    assert!(shrunk.only.len() < shrunk.parts_before, "{} parts are left", shrunk.only.len());
    let invariant = |outcome: &sim::Outcome| outcome.failure.as_ref().map(|f| f.violation.invariant);
    assert_eq!(invariant(&shrunk.outcome), invariant(&whole));

    let again = run(seed, &Options { only: Some(shrunk.only), record: true, ..options });
    assert_eq!(invariant(&again), invariant(&whole), "the parts that are left are enough");
    assert!(again.replay_command().contains("--only"), "{}", again.replay_command());
    let file = std::env::temp_dir().join(format!("rubelet-sim-{}.jsonl", std::process::id()));
    record::write(&file, &again.record).expect("the log is written");
    let lines = record::read(&file).expect("the log is read");
    std::fs::remove_file(&file).expect("the log is there");
    let mut told = String::new();
    record::replay_log(&lines, &Window::default(), &mut |text| told.push_str(text));
    assert!(told.contains("breaks") && told.contains("why"), "{told}");
    assert_eq!(told.matches(" event ").count() as u64, again.events);
}
