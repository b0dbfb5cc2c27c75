//! Mistakes made on purpose. Each must be noticed, and by an invariant that has to do with what is wrong; a check that
//! can't fail proves nothing. `cargo run --release -p sim -- mutants` tells how many seeds each takes.

use std::collections::BTreeMap;

use sim::{Mutant, Options, run};

/// Seeds that each mistake has to show itself.
const SEEDS: u64 = 300;

fn check(mutant: Mutant, expect: &[&str]) {
    let all = Mutant::all();
    let profile =
        all.iter().find(|(m, _)| *m == mutant).map(|(_, profile)| *profile).expect("a known mistake");
    let mut broken: BTreeMap<&'static str, usize> = BTreeMap::new();
    for seed in 0..SEEDS {
        let outcome = run(seed, &Options { profile, mutant, ..Options::default() });
        if let Some(failure) = outcome.failure {
            *broken.entry(failure.violation.invariant).or_default() += 1;
        }
        if expect.iter().any(|name| broken.contains_key(name)) {
            return;
        }
    }
    panic!("{mutant:?} broke {broken:?} in {SEEDS} seeds, and none of {expect:?}");
}

#[test]
fn reading_times_that_are_too_late() {
    // Plans on the past: what runs is stopped, removed or made twice, and what is not done is taken for done.
    let past = ["K1", "K5", "K9", "restart counts", "release last", "no live removal"];
    check(Mutant::LateReadingTimes, &past);
}

#[test]
fn plans_that_never_end() {
    check(Mutant::DropsPlanEnded, &["K8"]);
}

#[test]
fn cancels_that_are_ignored() {
    check(Mutant::IgnoresCancel, &["K3"]);
}

#[test]
fn stages_that_do_not_wait() {
    check(Mutant::IgnoresStages, &["prepare first", "K5", "release last"]);
}

#[test]
fn failures_that_are_hidden() {
    check(Mutant::HidesFailures, &["prepare first"]);
}

#[test]
fn figures_that_are_never_read_again() {
    check(Mutant::ForgetsFigures, &["K8"]);
}

#[test]
fn logs_that_are_forgotten() {
    check(Mutant::ForgetsLogs, &["K8"]);
}

#[test]
fn cgroups_that_are_written_once_only() {
    check(Mutant::LosesCgroupNews, &["K8"]);
}

#[test]
fn decisions_that_offer_what_is_reserved() {
    check(Mutant::ForgetsReservations, &["allocatable"]);
}

#[test]
fn timers_that_never_come() {
    check(Mutant::DropsTimers, &["K8"]);
}

#[test]
fn one_that_drags_all_with_it() {
    check(Mutant::BlocksAllReadings, &["K10"]);
}

#[test]
fn readings_that_fail_by_one_status() {
    check(Mutant::FailsTheWholeReading, &["K8", "K10"]);
}

#[test]
fn objects_whose_changes_are_not_told() {
    check(Mutant::LosesObjectNews, &["K8"]);
}

#[test]
fn decisions_that_forget_what_was_changed() {
    check(Mutant::ForgetsMutations, &["K1", "K9", "restart counts"]);
}

#[test]
fn decisions_that_bring_back_what_has_ended() {
    check(Mutant::TerminalPhaseFlips, &["K2"]);
}

#[test]
fn decisions_that_overlook_a_deletion() {
    check(Mutant::IgnoresDeletion, &["K3"]);
}

#[test]
fn decisions_that_give_more_time() {
    check(Mutant::GraceGrows, &["K4"]);
}

#[test]
fn decisions_that_stop_sidecars_first() {
    check(Mutant::StopsAtOnce, &["K5"]);
}

#[test]
fn decisions_that_release_too_early() {
    check(Mutant::ReleasesEarly, &["release last"]);
}

#[test]
fn decisions_that_delete_objects_too_early() {
    check(Mutant::DeletesObjectEarly, &["K6"]);
}

#[test]
fn decisions_that_never_come_to_rest() {
    check(Mutant::ForgetsPrepared, &["K7"]);
}

#[test]
fn decisions_that_distrust_an_earlier_agent() {
    check(Mutant::ForgetsContainerHashes, &["K9"]);
}

#[test]
fn decisions_that_forget_back_offs() {
    check(Mutant::ForgetsBackOffs, &["K10"]);
}

#[test]
fn volumes_that_are_not_staged() {
    check(Mutant::SkipsStaging, &["stage first"]);
}

#[test]
fn decisions_that_do_not_wait_for_a_claim() {
    check(Mutant::IgnoresBinding, &["claims first"]);
}

#[test]
fn decisions_that_believe_every_list() {
    check(Mutant::AcceptsEveryReading, &["lies wait"]);
}

#[test]
fn decisions_that_overlook_requests() {
    check(Mutant::OverlooksRequests, &["room"]);
}

#[test]
fn decisions_that_misread_priorities() {
    check(Mutant::MisreadsPriorities, &["victims"]);
}

#[test]
fn decisions_that_forget_what_was_removed() {
    check(Mutant::ForgetsRemovals, &["few removals"]);
}

#[test]
fn decisions_that_do_not_wait_for_an_attachment() {
    check(Mutant::IgnoresAttachments, &["attach first"]);
}

#[test]
fn decisions_that_forget_what_is_still_staged() {
    check(Mutant::ForgetsWhatIsStaged, &["detach last"]);
}

#[test]
fn decisions_that_share_what_is_for_one_pod() {
    check(Mutant::SharesClaims, &["one pod"]);
}

#[test]
fn certificates_of_which_nothing_is_heard() {
    check(Mutant::LosesCertificateNews, &["K8"]);
}

#[test]
fn decisions_that_write_a_certificate_beside_another_key() {
    check(Mutant::MixesKeys, &["one key"]);
}

#[test]
fn volumes_without_a_record() {
    check(Mutant::SkipsRecords, &["record first"]);
}

#[test]
fn devices_that_stay_mapped() {
    check(Mutant::LeavesMaps, &["unmap first"]);
}

#[test]
fn drivers_that_are_asked_while_they_are_at_work() {
    check(Mutant::GivesUpEarly, &["one at a time"]);
}

#[test]
fn walks_that_nobody_waits_for() {
    check(Mutant::LeavesWalks, &["walk first"]);
}

#[test]
fn pods_that_end_before_their_volumes() {
    check(Mutant::AnswersTearDownsAtOnce, &["publication first", "no deletion through a mount"]);
}

#[test]
fn volumes_of_an_earlier_agent_that_nobody_finds() {
    check(Mutant::ForgetsPastVolumes, &["K8", "detach last"]);
}

#[test]
fn volumes_that_are_published_for_going_pods() {
    check(Mutant::PublishesForGoingPods, &["no late publish"]);
}

#[test]
fn volumes_that_are_unstaged_under_their_users() {
    check(Mutant::OverlooksUsers, &["unstage last"]);
}

#[test]
fn volumes_that_broken_records_may_name() {
    check(Mutant::OverlooksBrokenRecords, &["unstage last"]);
}

#[test]
fn volumes_that_are_unstaged_once_only() {
    check(Mutant::UnstagesOnce, &["K8"]);
}

#[test]
fn containers_that_are_removed_while_the_runtime_starts_them() {
    check(Mutant::ForgetsUnheardStarts, &["no live removal"]);
}

#[test]
fn decisions_that_remove_images_in_use() {
    check(Mutant::OverlooksImageUsers, &["images in use"]);
}

#[test]
fn decisions_that_believe_in_images_that_are_gone() {
    check(Mutant::BelievesOutdatedImages, &["images first", "images in use"]);
}
