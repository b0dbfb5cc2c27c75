use model::ContainerId;
use model::probe::{ProbeErrorState, ProbeKind, ProbeOutcome};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Bed, failure, running, with_probes};
use crate::probes::{ProbeResult, record_outcome};

use ProbeKind::{Liveness, Readiness, Startup};

/// Answers, one letter each: `+` yes, `-` no, `w` yes with a warning, `?` could not be asked. After each, the verdict:
/// `+`, `-`, or `.` for neither yet.
#[track_caller]
fn check(kind: ProbeKind, numbers: Value, answers: &str, expect: &str) {
    let mut bed = Bed::running(with_probes(&[(kind, numbers.clone())]));
    let verdicts: String = answers
        .chars()
        .map(|answer| {
            bed.ask(kind, &outcome(answer));
            match bed.verdict(kind) {
                Some(ProbeResult::Success) => '+',
                Some(ProbeResult::Failure) => '-',
                Some(ProbeResult::Unknown) => '.',
                None => ' ',
            }
        })
        .collect();
    assert_eq!(verdicts, expect, "{kind:?} {numbers} {answers}");
}

fn outcome(letter: char) -> ProbeOutcome {
    match letter {
        '+' => ProbeOutcome::Success,
        '-' => failure(),
        'w' => ProbeOutcome::Warning { output: "o".into() },
        _ => ProbeOutcome::unknown("e"),
    }
}

#[test]
fn a_verdict_takes_as_many_equal_answers_as_its_threshold_says() {
    let fails = |n: u32| json!({"failureThreshold": n});
    let both = |s: u32, f: u32| json!({"successThreshold": s, "failureThreshold": f});
    check(Readiness, fails(3), "+", "+");
    check(Readiness, fails(3), "-", "-");
    check(Readiness, fails(3), "+--", "+++");
    check(Readiness, fails(3), "+---", "+++-");
    check(Readiness, fails(1), "+-+-", "+-+-");
    check(Readiness, fails(3), "+--+--", "++++++");
    check(Readiness, fails(2), "+---+", "++--+");
    check(Readiness, both(2, 1), "+", "-");
    check(Readiness, both(2, 1), "++", "-+");
    check(Readiness, both(3, 2), "+++-", "--++");
    check(Readiness, both(3, 2), "+++--++", "--++---");
    check(Readiness, both(3, 2), "+++--+++", "--++---+");
    check(Readiness, both(2, 1), "+-++", "---+");
    check(Liveness, fails(3), "--", "++");
    check(Liveness, fails(3), "---", "++-");
    check(Liveness, fails(3), "--+--", "+++++");
    check(Liveness, fails(1), "-", "-");
    check(Liveness, fails(1), "+", "+");
    check(Startup, fails(3), "-", ".");
    check(Startup, fails(3), "--", "..");
    check(Startup, fails(3), "---", "..-");
    check(Startup, fails(3), "--+", "..+");
    check(Startup, fails(1), "+", "+");
}

#[test]
fn a_warning_is_a_success() {
    check(Readiness, json!({}), "w", "+");
    check(Readiness, json!({"successThreshold": 2}), "w+", "-+");
    check(Liveness, json!({"failureThreshold": 2}), "-w-", "+++");
    check(Startup, json!({}), "w", "+");
}

#[test]
fn what_could_not_be_asked_counts_for_nothing() {
    check(Readiness, json!({"failureThreshold": 2}), "+?-?-", "++++-");
    check(Readiness, json!({"successThreshold": 2}), "+?+", "--+");
    check(Liveness, json!({"failureThreshold": 2}), "-?-", "++-");
    check(Liveness, json!({"failureThreshold": 1}), "????", "++++");
    check(Startup, json!({"failureThreshold": 1}), "??", "..");
}

#[test]
fn an_instance_that_failed_for_good_is_asked_nothing_more() {
    let check = |kind: ProbeKind, answers: &str, held: bool| {
        let mut bed = Bed::running(with_probes(&[(kind, json!({"failureThreshold": 2}))]));
        for answer in answers.chars() {
            bed.ask(kind, &outcome(answer));
        }
        let worker = bed.probes.worker("c", kind).unwrap();
        assert_eq!(worker.on_hold, held, "{kind:?} {answers}");
        if held {
            assert_eq!((worker.result_run, worker.next), (0, None));
            // until there is another
            bed.see(vec![running("c", 1)]);
            assert!(!bed.probes.worker("c", kind).unwrap().on_hold);
        }
    };
    check(Liveness, "--", true);
    check(Liveness, "-", false);
    check(Liveness, "++", false);
    check(Startup, "--", true);
    check(Startup, "+", true);
    check(Startup, "-", false);
    check(Readiness, "--", false);
    check(Readiness, "++", false);
}

#[test]
fn events_say_what_was_answered() {
    let check = |kind: ProbeKind, outcome: ProbeOutcome, expect: Option<(&str, &str)>| {
        let mut bed = Bed::running(with_probes(&[(kind, json!({}))]));
        let event = bed.ask(kind, &outcome).event;
        let got = event.as_ref().map(|e| (e.reason.as_str(), e.message.as_str()));
        assert_eq!(got, expect, "{kind:?} {outcome:?}");
        if let Some(event) = event {
            assert_eq!(event.kind, model::EventType::Warning);
            assert_eq!(event.field_path().as_deref(), Some("spec.containers{c}"));
        }
    };
    let warning = |output: &str| ProbeOutcome::Warning { output: output.into() };
    let errored = |state, message: &str| ProbeOutcome::Errored { state, message: message.into() };
    check(Readiness, ProbeOutcome::Success, None);
    check(Readiness, ProbeOutcome::failure("o"), Some(("Unhealthy", "Readiness probe failed: o")));
    check(Liveness, ProbeOutcome::failure(""), Some(("Unhealthy", "Liveness probe failed: ")));
    check(Startup, ProbeOutcome::failure("a\nb"), Some(("Unhealthy", "Startup probe failed: a\nb")));
    check(Liveness, warning("w"), Some(("ProbeWarning", "Liveness probe warning: w")));
    let text = "Readiness probe errored and resulted in unknown state: e";
    check(Readiness, errored(ProbeErrorState::Unknown, "e"), Some(("Unhealthy", text)));
    let text = "Startup probe errored and resulted in failure state: e";
    check(Startup, errored(ProbeErrorState::Failure, "e"), Some(("Unhealthy", text)));
}

#[test]
fn an_answer_that_nobody_waits_for_is_dropped() {
    let pod = with_probes(&[(Readiness, json!({}))]);
    let first = ContainerId::new("c0");
    let good = &ProbeOutcome::Success;
    // not asked
    let mut bed = Bed::running(pod.clone());
    assert_eq!(bed.answer(Readiness, good), None);
    // asked, and answered twice
    assert_eq!(bed.go(false).len(), 1);
    assert!(bed.answer(Readiness, good).is_some_and(|a| a.changed));
    assert_eq!(bed.answer(Readiness, &failure()), None);
    // another instance, kind or container
    let mut bed = Bed::running(pod.clone());
    assert_eq!(bed.go(false).len(), 1);
    let answer = |bed: &mut Bed, probe, id: &str| {
        record_outcome(&mut bed.probes, &pod, probe, &ContainerId::new(id), good)
    };
    assert_eq!(answer(&mut bed, ("c", Readiness), "c9"), None);
    assert_eq!(answer(&mut bed, ("c", Liveness), "c0"), None);
    assert_eq!(answer(&mut bed, ("d", Readiness), "c0"), None);
    assert!(answer(&mut bed, ("c", Readiness), "c0").is_some());
    // the instance was replaced, or ended, while it was asked
    let mut bed = Bed::running(pod.clone());
    bed.go(false);
    bed.see(vec![running("c", 1)]);
    assert_eq!(record_outcome(&mut bed.probes, &pod, ("c", Readiness), &first, good), None);
    assert_eq!(bed.verdict(Readiness), Some(ProbeResult::Failure));
    let mut bed = Bed::running(pod.clone());
    bed.go(false);
    bed.see(vec![crate::status::sample::instance("c", 0, model::observed::ContainerState::Exited, 1)]);
    assert_eq!(record_outcome(&mut bed.probes, &pod, ("c", Readiness), &first, good), None);
}

#[test]
fn how_often_readiness_answered_goes_on_counting_with_the_next_instance() {
    let check = |kind, numbers: Value, before: &str, after: &str, expect| {
        let mut bed = Bed::running(with_probes(&[(kind, numbers)]));
        before.chars().for_each(|answer| drop(bed.ask(kind, &outcome(answer))));
        bed.see(vec![running("c", 1)]);
        after.chars().for_each(|answer| drop(bed.ask(kind, &outcome(answer))));
        assert_eq!(bed.verdict(kind), Some(expect), "{kind:?} {before} {after}");
    };
    check(Readiness, json!({"successThreshold": 2}), "+", "+", ProbeResult::Success);
    check(Readiness, json!({"successThreshold": 2}), "-", "+", ProbeResult::Failure);
    // no life ends for what an earlier one did
    check(Liveness, json!({"failureThreshold": 3}), "--", "-", ProbeResult::Success);
    check(Liveness, json!({"failureThreshold": 3}), "--", "---", ProbeResult::Failure);
    check(Startup, json!({"failureThreshold": 3}), "--", "-", ProbeResult::Unknown);
}

proptest! {
    #[test]
    fn a_verdict_changes_only_after_enough_equal_answers(
        answers in proptest::collection::vec(any::<bool>(), 1..40), yes in 1u32..5, no in 1u32..5,
    ) {
        let numbers = json!({"successThreshold": yes, "failureThreshold": no});
        let mut bed = Bed::running(with_probes(&[(Readiness, numbers)]));
        for (number, good) in answers.iter().enumerate() {
            let before = bed.verdict(Readiness);
            bed.ask(Readiness, &if *good { ProbeOutcome::Success } else { failure() });
            let row = answers[..=number].iter().rev().take_while(|a| *a == good).count() as u32;
            let enough = row >= if *good { yes } else { no };
            let expect = if enough { Some(ProbeResult::of(*good)) } else { before };
            prop_assert_eq!(bed.verdict(Readiness), expect);
        }
    }
}
