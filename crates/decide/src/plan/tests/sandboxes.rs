//! Whether a sandbox is kept, what goes before a new one is made, and what it takes to make one.

use super::words::at;
use super::{NOW, Scene, check};
use crate::action::Action;
use crate::ledger::PodRetry;
use crate::plan::PlanNote;

/// What is seen was stopped by us already.
fn stopped(pod: &str, reading: &str) -> Scene {
    Scene::new(pod, reading).with(|scene| {
        let ids = scene.observed.sandboxes.iter().map(|s| s.id.clone());
        scene.entry.ledger.stopped_sandboxes = ids.collect();
    })
}

#[track_caller]
fn check_stopped(rows: &[(&str, &str, &str)]) {
    for (pod, reading, expect) in rows {
        stopped(pod, reading).stages(expect);
    }
}

#[test]
fn a_pod_without_a_sandbox_gets_its_first() {
    check(&[
        ("", "", "dirs + cgroup > sandbox#0"),
        (
            "spec: {volumes: [{name: v, emptyDir: {}}, {name: w, emptyDir: {}}]}; c: {volumeMounts: [{name: v, mountPath: /v}, {name: w, mountPath: /w}]}",
            "",
            "dirs + cgroup > volume v + volume w > sandbox#0",
        ),
        ("init i; run c", "", "dirs + cgroup > sandbox#0"),
        ("restart Never", "", "dirs + cgroup > sandbox#0"),
        ("spec: {hostNetwork: true}", "", "dirs + cgroup > sandbox#0"),
    ]);
    Scene::new("", "").with(|s| s.config.cgroups_per_qos = false).stages("dirs > sandbox#0");
    Scene::new("", "").why("creating sandbox#0");
}

#[test]
fn a_good_sandbox_is_kept() {
    check(&[
        ("", "s0 ready; c#0 running", "-"),
        ("", "s3 ready; c#0 running", "-"),
        ("", "s0 dead; s1 ready; c#0 exit(1) @s0; c#1 running", "-"),
        ("", "s0 ready silent; c#0 running", "-"),
        ("spec: {hostNetwork: true}", "s0 ready host; c#0 running", "-"),
        ("spec: {hostNetwork: true}", "s0 ready host no-ip; c#0 running", "-"),
    ]);
}

#[test]
fn what_is_left_of_a_bad_sandbox_is_stopped_first() {
    check(&[
        // more than one is ready
        ("", "s0 ready; s1 ready", "stop-sandbox s1 + stop-sandbox s0"),
        ("", "s0 ready; s1 ready; c#0 running", "stop c#0 30s > stop-sandbox s1 + stop-sandbox s0"),
        // the newest is not ready
        ("", "s0 dead", "stop-sandbox s0"),
        ("", "s0 ready; s1 dead", "stop-sandbox s1 + stop-sandbox s0"),
        ("", "s0 dead; c#0 running", "stop c#0 30s > stop-sandbox s0"),
        ("", "s0 dead; c#0 unknown", "stop c#0 30s > stop-sandbox s0"),
        ("", "s0 dead; c#0 exit(1)", "stop-sandbox s0"),
        ("run c d", "s0 dead; c#0 running; d#0 running", "stop d#0 30s + stop c#0 30s > stop-sandbox s0"),
        // the network is another one
        ("spec: {hostNetwork: true}", "s0 ready; c#0 running", "stop c#0 30s > stop-sandbox s0"),
        ("", "s0 ready host; c#0 running", "stop c#0 30s > stop-sandbox s0"),
        // it has no address
        ("", "s0 ready no-ip", "stop-sandbox s0"),
        // sidecars go after the others, the last one first
        (
            "init s* t*; run c",
            "s0 dead; s#0 running; t#0 running; c#0 running",
            "stop c#0 30s > stop t#0 30s > stop s#0 30s > stop-sandbox s0",
        ),
        // with the pod's own grace, but never less than two seconds
        ("spec: {terminationGracePeriodSeconds: 7}", "s0 dead; c#0 running", "stop c#0 7s > stop-sandbox s0"),
        ("spec: {terminationGracePeriodSeconds: 0}", "s0 dead; c#0 running", "stop c#0 2s > stop-sandbox s0"),
    ]);
}

#[test]
fn the_change_is_announced_only_where_a_sandbox_is_replaced() {
    for (pod, reading, expect) in [
        ("", "s0 dead", &["SandboxChanged"][..]),
        ("", "s0 dead; c#0 running", &["SandboxChanged", "Killing c"]),
        ("", "s0 ready; s1 ready", &["SandboxChanged"]),
        ("", "s0 ready no-ip", &["SandboxChanged"]),
        ("", "", &[]),
        ("", "s0 ready host", &[]),
        ("restart Never", "s0 dead; c#0 exit(0)", &[]),
        ("restart OnFailure", "s0 dead; c#0 exit(0)", &[]),
    ] {
        assert_eq!(Scene::new(pod, reading).announced(), expect, "{pod} | {reading}");
    }
}

#[test]
fn the_next_sandbox_has_the_next_attempt() {
    check_stopped(&[
        ("", "s0 dead", "dirs + cgroup > sandbox#1"),
        ("", "s4 dead; c#7 exit(1)", "dirs + cgroup > sandbox#5"),
        ("", "s0 dead; s1 dead", "dirs + cgroup > sandbox#2"),
    ]);
}

#[test]
fn a_stopped_sandbox_that_is_still_ready_is_stopped_again_after_a_pause() {
    let scene = stopped("", "s0 ready; s1 ready");
    scene.stages("-");
    scene.why("stop pod sandbox failed (sandbox s1 was stopped, and is still ready)");
    failed_before("", "s0 ready; s1 ready", 0.0).stages("stop-sandbox s1 + stop-sandbox s0");
}

#[test]
fn what_ran_once_does_not_run_in_a_second_sandbox() {
    check_stopped(&[
        ("restart Never", "s0 dead; c#0 exit(0)", "-"),
        ("restart Never", "s0 dead; c#0 exit(1)", "-"),
        ("restart Never; init i", "s0 dead; i#0 exit(0)", "-"),
        // it never came to a container
        ("restart Never", "s0 dead", "dirs + cgroup > sandbox#1"),
        ("restart Never", "c#0 exit(0)", "dirs + cgroup > sandbox#0"),
    ]);
}

#[test]
fn what_succeeded_is_not_run_again_for_a_new_sandbox() {
    check_stopped(&[
        ("restart OnFailure", "s0 dead; c#0 exit(0)", "-"),
        ("restart OnFailure", "s0 dead; c#0 exit(3)", "dirs + cgroup > sandbox#1"),
        ("restart OnFailure; run c d", "s0 dead; c#0 exit(0); d#0 exit(0)", "-"),
        ("restart OnFailure; run c d", "s0 dead; c#0 exit(0); d#0 exit(1)", "dirs + cgroup > sandbox#1"),
        ("restart OnFailure; run c d", "s0 dead; c#0 exit(0)", "dirs + cgroup > sandbox#1"),
        ("c: {restartPolicy: OnFailure}", "s0 dead; c#0 exit(0)", "-"),
        (
            "restart OnFailure; c: {restartPolicy: Always}",
            "s0 dead; c#0 exit(0)",
            "dirs + cgroup > sandbox#1",
        ),
    ]);
    stopped("restart OnFailure", "s0 dead; c#0 exit(0)").why("releasing");
}

#[test]
fn init_containers_are_purged_for_a_new_sandbox() {
    check_stopped(&[
        ("init i", "s0 dead; i#0 exit(0); c#0 exit(1)", "remove i#0 > dirs + cgroup > sandbox#1"),
        (
            "init i s*",
            "s0 dead; i#0 exit(1); i#1 exit(0); s#0 exit(0); c#0 exit(1)",
            "remove i#1 + remove s#0 + remove i#0 > dirs + cgroup > sandbox#1",
        ),
    ]);
}

/// Images asked for while the sandbox is made.
fn fetched(scene: &Scene) -> Vec<String> {
    let need = |note: &PlanNote| match note {
        PlanNote::NeedImage(need) => Some(need.container.clone()),
        _ => None,
    };
    scene.plan().notes.iter().filter_map(need).collect()
}

#[test]
fn only_the_images_that_are_next_are_fetched_ahead() {
    for (pod, reading, expect) in [
        ("run c d", "", &["c", "d"][..]),
        ("init i j; run c", "", &["i"]),
        ("restart OnFailure; run c d", "s0 dead; c#0 exit(0); d#0 exit(1)", &["d"]),
        ("restart Never", "s0 dead; c#0 exit(0)", &[]),
    ] {
        let scene = stopped(pod, reading).with(|s| s.entry.ledger.image_states.clear());
        assert_eq!(fetched(&scene), expect, "{pod} | {reading}");
    }
    let stopping = Scene::new("", "s0 dead").with(|s| s.entry.ledger.image_states.clear());
    assert_eq!(fetched(&stopping), [""; 0], "not while the old one is stopped");
}

#[test]
fn a_network_that_is_not_ready_holds_back_those_who_need_it() {
    let without = |pod: &str, reading: &str| {
        Scene::new(pod, reading).with(|s| {
            s.runtime.network_ready = false;
            s.runtime.network_message = "no plugin".into();
        })
    };
    without("", "").stages("-");
    without("", "").why("network not ready");
    assert_eq!(without("", "").announced(), ["NetworkNotReady"]);
    without("spec: {hostNetwork: true}", "").stages("dirs + cgroup > sandbox#0");
    // a sandbox that is there has its network
    without("", "s0 ready").stages("start c#0?");
}

#[test]
fn nothing_is_done_without_a_runtime_or_a_name() {
    for (pod, reading) in
        [("", ""), ("", "s0 dead; c#0 running"), ("", "s0 ready"), ("", "s0 ready; c#0 unknown")]
    {
        let scene = Scene::new(pod, reading).with(|s| {
            s.runtime.ready = false;
            s.runtime.message = "away".into();
        });
        scene.stages("-");
        scene.why("runtime not ready (away)");
        let scene = Scene::new(pod, reading).with(|s| s.name_holder = Some("p_ns(old)".into()));
        scene.stages("-");
        scene.why("name taken by p_ns(old)");
    }
}

/// A step of the pod failed; `left`: seconds until it may be tried again.
fn failed_before(pod: &str, reading: &str, left: f64) -> Scene {
    stopped(pod, reading).with(|s| {
        let at = at(NOW + left).mono;
        s.entry.ledger.pod_retry =
            Some(PodRetry { step: "create pod sandbox", message: "no".into(), at, attempts: 1 });
    })
}

#[test]
fn a_failed_step_waits_for_its_time() {
    failed_before("", "", 4.5).stages("-");
    failed_before("", "", 4.5).why("create pod sandbox failed (no) @1004.5s");
    failed_before("", "", 4.5).wakes("@1004.5s");
    failed_before("", "", 0.0).stages("dirs + cgroup > sandbox#0");
    failed_before("", "", -1.0).stages("dirs + cgroup > sandbox#0");
}

#[test]
fn a_failed_stop_waits_as_well() {
    for reading in ["s0 ready; s1 ready", "s0 ready; c#0 running hash=old", "s0 ready; c#0 unknown"] {
        failed_before("", reading, 4.5).stages("-");
        failed_before("", reading, 4.5).wakes("@1004.5s");
        assert_ne!(failed_before("", reading, 0.0).plan().stages, [], "{reading}");
    }
}

#[test]
fn what_cannot_be_rendered_is_a_failure_of_the_pod() {
    let long = format!(
        "spec: {{hostname: {}, subdomain: {}, setHostnameAsFQDN: true}}",
        "h".repeat(63),
        "s".repeat(63)
    );
    let scene = Scene::new(&long, "");
    scene.stages("-");
    let plan = scene.plan();
    let failures: Vec<_> = plan.notes.iter().filter(|n| matches!(n, PlanNote::PodFailure { .. })).collect();
    assert_eq!(failures.len(), 1, "{:?}", plan.notes);
}

#[test]
fn the_sandbox_is_told_its_attempt_and_its_pod() {
    let plan = stopped("", "s0 dead").plan();
    let configs: Vec<_> = plan
        .stages
        .iter()
        .flat_map(|s| &s.actions)
        .filter_map(|a| match a {
            Action::RunSandbox { config, .. } => Some(&config.metadata),
            _ => None,
        })
        .collect();
    assert_eq!(configs.len(), 1);
    assert_eq!((configs[0].uid.as_str(), configs[0].attempt), ("p", 1));
}
