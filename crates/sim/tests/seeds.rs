//! A bounded number of seeds of each profile. More: `cargo run -p sim -- run --seeds A..B --profile …`.

use sim::{Options, Profile, run};

fn all_good(profile: Profile, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let outcome = run(seed, &Options { profile, ..Options::default() });
        assert!(outcome.failure.is_none(), "{outcome}");
    }
}

#[test]
fn calm_first_half() {
    all_good(Profile::Calm, 0..75);
}

#[test]
fn calm_second_half() {
    all_good(Profile::Calm, 75..150);
}

#[test]
fn faults_first_half() {
    all_good(Profile::Faults, 0..150);
}

#[test]
fn faults_second_half() {
    all_good(Profile::Faults, 150..300);
}

/// Seeds that once broke something, so that they stay in sight while the world they ran in stays the same.
#[test]
fn faults_that_found_something() {
    for seed in [57, 98, 287, 411, 823, 893, 901, 1421, 1444, 1596] {
        all_good(Profile::Faults, seed..seed + 1);
    }
}

#[test]
fn one_stuck_pod_holds_up_nobody() {
    all_good(Profile::Stuck, 0..40);
}

/// The same seed is the same run: every event and every effect, to the last byte.
#[test]
fn a_seed_decides_everything() {
    for profile in [Profile::Calm, Profile::Faults, Profile::Stuck] {
        for seed in 0..6 {
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
