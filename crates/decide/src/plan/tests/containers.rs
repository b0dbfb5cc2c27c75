//! Regular containers in a good sandbox: who is started, who is killed, who has ended for good.

use super::words::at;
use super::{NOW, Scene, check};
use crate::action::Action;
use crate::back_off::CrashBackOff;
use crate::images::ImageState;
use crate::ledger::StartFailure;
use crate::plan::PlanNote;
use model::Reason;
use model::files::{EnvFile, EnvFileRead};

#[test]
fn restart_policies_and_states() {
    check(&[
        ("restart Always", "s0 ready", "start c#0?"),
        ("restart Always", "s0 ready; c#0 created", "remove c#0?"),
        ("restart Always", "s0 ready; c#0 running", "-"),
        ("restart Always", "s0 ready; c#0 unknown", "stop c#0 30s"),
        ("restart Always", "s0 ready; c#0 exit(0)", "start c#1?"),
        ("restart Always", "s0 ready; c#0 exit(1)", "start c#1?"),
        ("restart Always", "s0 ready; c#0 exit(137)", "start c#1?"),
        ("restart OnFailure", "s0 ready", "start c#0?"),
        ("restart OnFailure", "s0 ready; c#0 created", "remove c#0?"),
        ("restart OnFailure", "s0 ready; c#0 running", "-"),
        ("restart OnFailure", "s0 ready; c#0 unknown", "stop c#0 30s"),
        ("restart OnFailure", "s0 ready; c#0 exit(1)", "start c#1?"),
        ("restart Never", "s0 ready", "start c#0?"),
        ("restart Never", "s0 ready; c#0 created", "remove c#0?"),
        ("restart Never", "s0 ready; c#0 running", "-"),
    ]);
}

#[test]
fn the_pod_is_killed_when_nothing_of_it_runs_or_will() {
    check(&[
        ("restart OnFailure", "s0 ready; c#0 exit(0)", "stop-sandbox s0"),
        ("restart Never", "s0 ready; c#0 exit(0)", "stop-sandbox s0"),
        ("restart Never", "s0 ready; c#0 exit(1)", "stop-sandbox s0"),
        ("restart Never; run c d", "s0 ready; c#0 exit(0); d#0 exit(1)", "stop-sandbox s0"),
        ("restart Never; run c d", "s0 ready; c#0 exit(0); d#0 running", "-"),
        ("restart Never; run c d", "s0 ready; c#0 exit(0)", "start d#0?"),
        // sidecars do not keep it, and are not restarted for it
        ("restart Never; init s*", "s0 ready; s#0 running; c#0 exit(0)", "stop s#0 30s > stop-sandbox s0"),
        (
            "restart OnFailure; init s*",
            "s0 ready; s#0 running; c#0 exit(0)",
            "stop s#0 30s > stop-sandbox s0",
        ),
        (
            "restart Never; init s* t*",
            "s0 ready; s#0 exit(1); t#0 running; c#0 exit(0)",
            "stop t#0 30s > stop-sandbox s0",
        ),
        // also when the last of them is down, as in a crash loop
        (
            "restart Never; init s* t*",
            "s0 ready; s#0 running; t#3 exit(1); c#0 exit(0)",
            "stop s#0 30s > stop-sandbox s0",
        ),
        (
            "restart OnFailure; init i s*",
            "s0 ready; i#0 exit(0); s#0 exit(1); c#0 exit(0)",
            "stop-sandbox s0",
        ),
        ("restart OnFailure; init s*", "s0 ready; s#0 exit(1); c#0 exit(4)", "start s#1?"),
        ("restart Always; init s*", "s0 ready; s#0 exit(1); c#0 exit(0)", "start s#1?"),
        ("restart Always; init s*", "s0 ready; s#0 running; c#0 exit(0)", "start c#1?"),
        (
            "restart Never; init s* t*; spec: {terminationGracePeriodSeconds: 9}",
            "s0 ready; s#0 running; t#0 running; c#0 exit(0)",
            "stop t#0 9s > stop s#0 9s > stop-sandbox s0",
        ),
    ]);
}

#[test]
fn a_containers_own_policy_and_rules_come_before_the_pods() {
    let rules = |policy: &str, action: &str, operator: &str| {
        format!(
            "restart {policy}; run c d; c: {{restartPolicy: Never, restartPolicyRules: [{{action: {action}, exitCodes: {{operator: {operator}, values: [7, 9]}}}}]}}"
        )
    };
    let restart_in = rules("Always", "Restart", "In");
    let restart_not_in = rules("Always", "Restart", "NotIn");
    check(&[
        (
            "restart Never; run c d; c: {restartPolicy: Always}",
            "s0 ready; c#0 exit(0); d#0 running",
            "start c#1?",
        ),
        ("restart Never; run c d; c: {restartPolicy: OnFailure}", "s0 ready; c#0 exit(0); d#0 running", "-"),
        (
            "restart Never; run c d; c: {restartPolicy: OnFailure}",
            "s0 ready; c#0 exit(2); d#0 running",
            "start c#1?",
        ),
        ("restart Always; run c d; c: {restartPolicy: Never}", "s0 ready; c#0 exit(2); d#0 running", "-"),
        (&restart_in, "s0 ready; c#0 exit(7); d#0 running", "start c#1?"),
        (&restart_in, "s0 ready; c#0 exit(8); d#0 running", "-"),
        (&restart_not_in, "s0 ready; c#0 exit(8); d#0 running", "start c#1?"),
        (&restart_not_in, "s0 ready; c#0 exit(9); d#0 running", "-"),
        // rules without a policy of the container's own are not heard
        (
            "restart Never; run c d; c: {restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [7]}}]}",
            "s0 ready; c#0 exit(7); d#0 running",
            "-",
        ),
    ]);
}

#[test]
fn containers_are_independent_and_start_in_order() {
    check(&[
        ("run c d e", "s0 ready", "start c#0? > start d#0? > start e#0?"),
        ("run e d c", "s0 ready", "start e#0? > start d#0? > start c#0?"),
        ("run c d", "s0 ready; c#0 running", "start d#0?"),
        ("run c d", "s0 ready; c#2 exit(1); d#0 running", "start c#3?"),
        ("restart OnFailure; run c d", "s0 ready; c#0 exit(0); d#0 exit(1)", "start d#1?"),
        // whoever must be killed goes before anybody is started
        ("run c d", "s0 ready; c#0 running hash=old", "stop c#0 30s"),
    ]);
}

#[test]
fn a_changed_definition_is_killed_whatever_the_policy() {
    for policy in ["Always", "OnFailure", "Never"] {
        let pod = format!("restart {policy}; spec: {{terminationGracePeriodSeconds: 5}}");
        check(&[
            (&pod, "s0 ready; c#0 running hash=old", "stop c#0 5s"),
            (&pod, "s0 ready; c#0 running hash=none", "-"),
        ]);
    }
    let scene = Scene::new("run c d", "s0 ready; c#0 running hash=old; d#0 running");
    scene.stages("stop c#0 30s");
    assert_eq!(scene.announced(), ["Killing c"]);
    let plan = scene.plan();
    let said = plan.notes.iter().any(|note| {
        matches!(note, PlanNote::Announce { event, .. } if event.message == "Container c definition changed, will be restarted")
    });
    assert!(said, "{:?}", plan.notes);
    Scene::new("run c d", "s0 ready; c#0 running hash=old; d#0 running hash=old")
        .stages("stop c#0 30s + stop d#0 30s");
}

#[test]
fn the_number_of_a_restart_follows_the_newest_instance_or_the_logs() {
    check(&[
        ("", "s0 ready; c#0 exit(1); c#1 exit(1)", "start c#2?"),
        ("", "s0 dead; s1 ready; c#5 exit(1) @s0", "start c#6?"),
    ]);
    let logs = |reading: &str| {
        Scene::new("", reading).with(|s| s.entry.ledger.log_numbers = [("c".to_owned(), 4)].into())
    };
    logs("s0 ready").stages("start c#5?");
    // a log of a higher number is from an instance that is gone: its number is taken
    logs("s0 ready; c#1 exit(1)").stages("start c#5?");
}

#[test]
fn reasons_are_told_per_container() {
    let check = |pod: &str, reading: &str, expect: &str| Scene::new(pod, reading).why(expect);
    check("", "s0 ready; c#0 running", "running");
    check("run c d", "s0 ready; c#0 running", "d: starting");
    check("restart Never; run c d", "s0 ready; c#0 exit(3); d#0 running", "c: completed(3)");
    check("", "s0 ready; c#0 unknown", "c: stopping 30s");
    check("restart Never; init s*", "s0 ready; s#0 running; c#0 exit(0)", "c: completed(0); stopping 30s");
}

/// `c` crashed `ago` seconds ago while its delay was `delay` seconds, last advanced when it was started.
fn crashed(pod: &str, ago: &str, delay: u64, advanced: f64) -> Scene {
    let scene = Scene::new(pod, &format!("s0 ready; c#3 exit(1) {ago}s"));
    let key = match scene.plan().notes.iter().find(|n| matches!(n, PlanNote::CrashAdvance { .. })) {
        Some(PlanNote::CrashAdvance { entry, .. }) => entry.key,
        _ => panic!("a first restart is immediate"),
    };
    let entry =
        CrashBackOff { key, delay: std::time::Duration::from_secs(delay), advanced_at: at(advanced).wall };
    scene.with(|s| {
        s.entry.ledger.crash_back_offs.insert("c".into(), entry);
    })
}

#[test]
fn a_crash_waits_from_its_end_for_exactly_its_delay() {
    // seconds since the end, delay, when it may start
    for (ago, delay, expect) in [
        ("0", 10, "@1010s"),
        ("4", 10, "@1006s"),
        ("9.75", 10, "@1000.25s"),
        ("4", 20, "@1016s"),
        ("0", 300, "@1300s"),
        ("299.5", 300, "@1000.5s"),
    ] {
        let scene = crashed("", ago, delay, NOW - 300.0);
        scene.stages("-");
        scene.wakes(expect);
        scene.why(&format!("c: crash back-off {delay}s exit(1) restarts=3 {expect}"));
    }
    for (ago, delay) in [("10", 10), ("11", 10), ("20", 20), ("301", 300)] {
        crashed("", ago, delay, NOW - 310.0).stages("start c#4?");
    }
}

#[test]
fn crash_delays_advance_with_each_start() {
    let advanced = |scene: &Scene| -> Vec<u64> {
        let plan = scene.plan();
        let notes = plan.notes.iter().filter_map(|n| match n {
            PlanNote::CrashAdvance { entry, .. } => Some(entry.delay.as_secs()),
            _ => None,
        });
        notes.collect()
    };
    assert_eq!(advanced(&Scene::new("", "s0 ready")), [0; 0], "a first start is no restart");
    assert_eq!(advanced(&Scene::new("", "s0 ready; c#0 exit(0)")), [10], "a success counts too");
    for (delay, ago, since, expect) in
        [(10, "10", 20.0, 20), (80, "80", 90.0, 160), (160, "160", 170.0, 300), (300, "300", 310.0, 300)]
    {
        assert_eq!(advanced(&crashed("", ago, delay, NOW - since)), [expect], "after {delay}");
    }
    // ran for more than ten minutes
    assert_eq!(advanced(&crashed("", "0", 160, NOW - 601.0)), [10]);
    assert_eq!(advanced(&crashed("", "160", 160, NOW - 760.0)), [300]);
}

#[test]
fn another_image_is_another_container_to_the_back_off() {
    crashed("", "1", 300, NOW - 300.0).stages("-");
    let scene = crashed("", "1", 300, NOW - 300.0);
    let changed = Scene::new("c: {image: other}", "s0 ready; c#3 exit(1) 1s")
        .with(|s| s.entry.ledger.crash_back_offs = scene.entry.ledger.crash_back_offs.clone());
    changed.stages("start c#4?");
}

#[test]
fn a_back_off_of_one_does_not_hold_the_others() {
    let scene = crashed("run c d", "1", 10, NOW - 20.0);
    scene.stages("start d#0?");
    scene.why("c: crash back-off 10s exit(1) restarts=3 @1009s; d: starting");
}

#[test]
fn a_failed_start_waits_for_its_retry() {
    let scene = |left: f64| {
        Scene::new("run c d", "s0 ready; d#0 running").with(|s| {
            let failure = StartFailure { reason: Reason::CreateContainerError, message: "no".into() };
            s.entry.ledger.start_failures.insert("c".into(), failure);
            s.entry.ledger.retry_at.insert("c".into(), at(NOW + left).mono);
        })
    };
    scene(3.0).stages("-");
    scene(3.0).why("c: CreateContainerError (no) @1003s");
    scene(3.0).wakes("@1003s");
    scene(0.0).stages("start c#0?");
}

#[test]
fn nothing_starts_without_its_image_or_its_files() {
    let scene = Scene::new("", "s0 ready").with(|s| s.entry.ledger.image_states.clear());
    scene.stages("-");
    scene.why("c: pulling img-c:1");
    for state in [ImageState::Inspecting, ImageState::Pulling { since: at(0.0).mono }] {
        let scene = Scene::new("run c d", "s0 ready").with(|s| {
            s.entry.ledger.image_states.insert("c".into(), state);
        });
        scene.stages("start d#0?");
    }
    // an agent that came up again makes sure of the files before it starts something
    let again = |reading: &str| Scene::new("", reading).with(|s| s.entry.ledger.prerequisites_ready = false);
    again("s0 ready").stages("dirs + cgroup");
    again("s0 ready; c#0 exit(1)").stages("dirs + cgroup");
    again("s0 ready; c#0 running").stages("-");
}

#[test]
fn a_deleted_pod_restarts_nothing() {
    let deleted = "meta: {deletionTimestamp: \"2024-01-01T00:00:00Z\"}; run c d";
    Scene::new(deleted, "s0 ready; c#0 exit(1); d#0 running").stages("-");
}

#[test]
fn variables_in_files_are_read_before_the_start() {
    let file = EnvFile { volume: "v".into(), path: "f".into() };
    let pod = "spec: {volumes: [{name: v, emptyDir: {}}]}; \
               c: {args: [$(A)], env: [{name: A, valueFrom: {fileKeyRef: {volumeName: v, path: f, key: K}}}]}";
    let scene = |read: Option<Result<&str, &str>>| {
        Scene::new(pod, "s0 ready").with(|scene| {
            scene.config.features.insert("EnvFiles".into(), true);
            scene.entry.ledger.volumes_set_up.insert("v".into());
            if let Some(text) = read {
                let text = text.map(str::to_owned).map_err(str::to_owned);
                let read = vec![EnvFileRead { file: file.clone(), text }];
                scene.entry.ledger.env_files.insert("c".into(), read);
            }
        })
    };
    scene(None).stages("read c v/f?");
    let plan = scene(Some(Ok("K='x'"))).plan();
    let Action::StartContainer(start) = &plan.stages[0].actions[0] else { panic!("{plan:?}") };
    assert_eq!(start.config.args, ["x"], "a variable of a file counts as any other");
    let failure = |read: Result<&str, &str>| {
        let plan = scene(Some(read)).plan();
        let failure = plan.notes.into_iter().find_map(|note| match note {
            PlanNote::Failure { failure, .. } => Some(failure),
            _ => None,
        });
        let failure = failure.expect("a failure");
        assert_eq!(failure.reason, Reason::CreateContainerConfigError);
        failure.message
    };
    assert!(failure(Ok("")).starts_with("environment variable key \"K\" not found in file \""));
    assert_eq!(failure(Err("no such file")), "couldn't parse env file: no such file");
    // Without the gate the reference means nothing.
    let off = scene(None).with(|scene| {
        scene.config.features.insert("EnvFiles".into(), false);
    });
    off.stages("start c#0?");
}
