//! RestartAllContainers: who goes, in which order, and what stays.

use model::k8s::PodStatus;
use serde_json::json;

use super::{Scene, check};
use crate::back_off::CrashBackOff;
use crate::plan::PlanNote;

/// `c` asks for all when it ends with 42.
const RULED: &str = "c: {restartPolicy: Never, restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [42]}}]}";

fn ruled(pod: &str) -> String {
    format!("{pod}; {RULED}")
}

fn rows(rows: &[(&str, &str, &str)]) {
    for (pod, reading, expect) in rows {
        check(&[(&ruled(pod), reading, expect)]);
    }
}

#[test]
fn who_runs_is_stopped_at_once_and_who_asked_goes_last() {
    rows(&[
        ("run c", "s0 ready; c#0 exit(42)", "reset c#0"),
        ("run c d", "s0 ready; c#0 exit(42); d#0 running", "stop d#0 2s > reset d#0 > reset c#0"),
        ("run c d", "s0 ready; c#0 exit(42); d#0 unknown", "stop d#0 2s > reset d#0 > reset c#0"),
        ("run c d", "s0 ready; c#0 exit(42); d#0 exit(0)", "reset d#0 > reset c#0"),
        ("run c d", "s0 ready; c#0 exit(42); d#0 created", "reset d#0 > reset c#0"),
        ("run c d", "s0 ready; c#0 exit(42)", "reset c#0"),
        (
            "init i s*; run c d",
            "s0 ready; i#0 exit(0); s#0 running; c#0 exit(42); d#0 running",
            "stop d#0 2s + stop s#0 2s > reset d#0 > reset s#0 + reset i#0 > reset c#0",
        ),
    ]);
}

#[test]
fn every_instance_goes_not_only_the_newest() {
    rows(&[(
        "run c d",
        "s0 ready; c#0 exit(1); c#1 exit(42); d#0 exit(0); d#1 running",
        "stop d#1 2s > reset d#1 + reset d#0 + reset c#0 > reset c#1",
    )]);
}

#[test]
fn an_init_container_may_ask_too() {
    let rule = "restartPolicy: Never, restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [7]}}]";
    let pod = format!("init i j; run c; j: {{{rule}}}");
    check(&[
        (&pod, "s0 ready; i#0 exit(0); j#0 exit(7)", "reset i#0 > reset j#0"),
        // and a sidecar whose own policy is to come back
        (
            "init s*; run c; s: {restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: NotIn, values: [0]}}]}",
            "s0 ready; s#0 exit(1); c#0 running",
            "stop c#0 2s > reset c#0 > reset s#0",
        ),
    ]);
}

#[test]
fn other_ends_restart_one_container_or_none() {
    rows(&[
        ("run c d", "s0 ready; c#0 exit(1); d#0 running", "-"),
        ("run c d", "s0 ready; c#0 exit(0); d#0 running", "-"),
        ("run c d", "s0 ready; c#0 running; d#0 exit(42)", "start d#1?"),
        // it asked, and is back already
        ("run c d", "s0 ready; c#0 exit(42); c#1 running; d#0 running", "-"),
    ]);
}

#[test]
fn when_nothing_is_left_the_pod_starts_as_a_new_one() {
    rows(&[("run c d", "s0 ready", "start c#0? > start d#0?"), ("init i; run c d", "s0 ready", "start i#0")]);
    // with the numbers that its logs lead to
    Scene::new(&ruled("init i; run c"), "s0 ready")
        .with(|scene| {
            scene.entry.ledger.log_numbers = [("i".to_owned(), 0), ("c".to_owned(), 3)].into();
        })
        .stages("start i#1");
    Scene::new(&ruled("run c"), "s0 ready")
        .with(|scene| {
            scene.entry.ledger.log_numbers = [("c".to_owned(), 3)].into();
        })
        .stages("start c#4?");
}

#[test]
fn a_reset_that_was_begun_is_finished_although_nobody_asks_any_more() {
    let begun = |reading: &str| {
        Scene::new(&ruled("run c d"), reading)
            .with(|scene| scene.entry.ledger.restarting_all_containers = true)
    };
    begun("s0 ready; d#0 running").stages("stop d#0 2s > reset d#0");
    begun("s0 ready; d#0 exit(137)").stages("reset d#0");
    begun("s0 ready").stages("start c#0? > start d#0?");
    // or when only the status tells of it
    let status: PodStatus = serde_json::from_value(
        json!({"conditions": [{"type": "AllContainersRestarting", "status": "True"}]}),
    )
    .unwrap();
    Scene::new(&ruled("run c d"), "s0 ready; d#0 running")
        .with(|scene| scene.entry.status = Some(status.into()))
        .stages("stop d#0 2s > reset d#0");
}

#[test]
fn a_broken_sandbox_does_not_keep_containers_from_being_reset() {
    rows(&[("run c d", "s0 dead; c#0 exit(42); d#0 exit(137)", "reset d#0 > reset c#0")]);
}

#[test]
fn one_that_was_killed_to_be_restarted_did_not_ask() {
    Scene::new(&ruled("run c d"), "s0 ready; c#0 exit(42); d#0 running")
        .with(|scene| {
            scene.entry.ledger.must_restart.insert("c".into(), "c#0".into());
        })
        .stages("start c#1?");
}

#[test]
fn ephemeral_containers_are_left_alone() {
    rows(&[(
        "run c d; debug e",
        "s0 ready; c#0 exit(42); d#0 running; e#0 running",
        "stop d#0 2s > reset d#0 > reset c#0",
    )]);
}

#[test]
fn who_asks_again_and_again_backs_off() {
    let asked_before = |pod: &str, reading: &str| {
        Scene::new(&ruled(pod), reading).with(|scene| {
            let begun = Scene::new(&ruled(pod), "s0 ready; c#0 exit(42) 1s").plan();
            let advance = begun.notes.iter().find_map(|note| match note {
                PlanNote::CrashAdvance { entry, .. } => Some(entry.clone()),
                _ => None,
            });
            let entry: CrashBackOff = advance.expect("a reset counts as a start");
            scene.entry.ledger.crash_back_offs.insert("c".into(), entry);
        })
    };
    let scene = asked_before("run c d", "s0 ready; c#1 exit(42) 3s; d#1 running");
    scene.stages("-");
    scene.why("c: crash back-off 10s exit(42) restarts=1 @1007s");
    scene.wakes("@1007s");
    // the others are looked after meanwhile
    asked_before("run c d", "s0 ready; c#1 exit(42) 3s; d#1 exit(1)").stages("start d#2?");
    asked_before("run c d", "s0 ready; c#1 exit(42) 10s; d#1 running")
        .stages("stop d#1 2s > reset d#1 > reset c#1");
    // also when nobody looks at it before a sidecar is back
    asked_before("init s*; run c", "s0 ready; s#1 running; c#1 exit(42) 3s").wakes("@1007s");
    let down = asked_before("init s*; run c", "s0 ready; s#1 created; c#1 exit(42) 3s");
    down.stages("remove s#1?");
    down.wakes("@1007s");
    // a reset that was begun is not held up by it
    asked_before("run c d", "s0 ready; c#1 exit(42) 3s; d#1 running")
        .with(|scene| scene.entry.ledger.restarting_all_containers = true)
        .stages("stop d#1 2s > reset d#1 > reset c#1");
}

#[test]
fn a_failed_step_is_tried_again_at_its_time() {
    let scene = Scene::new(&ruled("run c d"), "s0 ready; c#0 exit(42); d#0 running").with(|scene| {
        scene.entry.ledger.pod_retry = Some(crate::ledger::PodRetry {
            step: "stop container",
            message: "no".into(),
            at: super::at(1010.0).mono,
            attempts: 1,
        });
    });
    scene.stages("-");
    scene.why("stop container failed (no) @1010s");
}

#[test]
fn a_pod_that_goes_is_not_reset() {
    Scene::new(&ruled("run c d"), "s0 ready; c#0 exit(42); d#0 running")
        .terminating(30, 0.0)
        .stages("stop d#0 30s > stop-sandbox s0");
}

#[test]
fn hooks_do_not_run_and_users_are_told() {
    let pod = ruled("run c d; d: {lifecycle: {preStop: {sleep: {seconds: 5}}}}");
    let scene = Scene::new(&pod, "s0 ready; c#0 exit(42); d#0 running");
    assert_eq!(scene.announced(), ["Killing d"]);
    scene.why("restarting all");
    let crate::Action::StopContainer { pre_stop, .. } = &scene.plan().stages[0].actions[0] else {
        panic!("a stop comes first")
    };
    assert_eq!(*pre_stop, None);
}
