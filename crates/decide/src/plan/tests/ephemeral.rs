//! Ephemeral containers: started once, and nobody's business afterwards.

use model::cri::NamespaceMode;

use super::{Scene, check};
use crate::Action;
use crate::action::StartContainer;
use crate::plan::PlanNote;

#[test]
fn one_that_was_never_there_is_started() {
    check(&[
        ("debug e", "s0 ready; c#0 running", "start e#0?"),
        ("debug e f", "s0 ready; c#0 running", "start e#0? > start f#0?"),
        ("debug e f", "s0 ready; c#0 running; e#0 running", "start f#0?"),
        ("debug e", "s0 ready", "start e#0? > start c#0?"),
    ]);
}

#[test]
fn it_comes_before_the_others_and_waits_for_no_init_container() {
    check(&[
        ("init i; run c; debug e", "s0 ready", "start e#0? > start i#0"),
        ("init i; run c; debug e", "s0 ready; i#0 running", "start e#0?"),
        ("init i; run c; debug e", "s0 ready; i#0 exit(0)", "start e#0? > start c#0?"),
    ]);
}

#[test]
fn it_is_never_started_again() {
    for policy in ["Always", "OnFailure", "Never"] {
        let pod = format!("restart {policy}; run c; debug e");
        check(&[
            (&pod, "s0 ready; c#0 running; e#0 running", "-"),
            (&pod, "s0 ready; c#0 running; e#0 exit(0)", "-"),
            (&pod, "s0 ready; c#0 running; e#0 exit(1)", "-"),
            (&pod, "s0 ready; c#0 running; e#0 unknown", "-"),
            (&pod, "s0 dead; s1 ready; c#0 running; e#0 exit(1) @s0", "-"),
        ]);
    }
}

#[test]
fn one_whose_start_was_lost_is_made_anew_but_not_one_that_failed() {
    check(&[("debug e", "s0 ready; c#0 running; e#0 created", "remove e#0?")]);
    Scene::new("debug e", "s0 ready; c#0 running; e#0 created")
        .with(|scene| {
            scene.entry.ledger.failed_attempts.insert("e".into(), 0);
        })
        .stages("-");
}

#[test]
fn another_image_does_not_touch_it() {
    check(&[("debug e", "s0 ready; c#0 running; e#0 running hash=old", "-")]);
}

#[test]
fn it_does_not_keep_a_pod_alive() {
    check(&[
        (
            "restart Never; run c; debug e",
            "s0 ready; c#0 exit(0); e#0 running",
            "stop e#0 30s > stop-sandbox s0",
        ),
        ("restart Never; run c; debug e", "s0 ready; c#0 exit(0)", "stop-sandbox s0"),
    ]);
}

#[test]
fn it_does_not_start_before_there_is_a_sandbox() {
    check(&[("debug e", "", "dirs + cgroup > sandbox#0")]);
}

#[test]
fn it_goes_with_the_pod() {
    Scene::new("debug e", "s0 ready; c#0 running; e#0 running")
        .terminating(30, 0.0)
        .stages("stop e#0 30s + stop c#0 30s > stop-sandbox s0");
    let scene = Scene::new("debug e", "s0 ready; c#0 running").terminating(30, 0.0);
    scene.stages("stop c#0 30s > stop-sandbox s0");
}

#[test]
fn its_failure_stops_nobody() {
    // every stage of a start goes on after a failure: see the question marks
    check(&[("init s*; run c d; debug e", "s0 ready; s#0 running", "start e#0? > start c#0? > start d#0?")]);
}

fn start_of(scene: &Scene, name: &str) -> Option<StartContainer> {
    let actions = scene.plan().stages.into_iter().flat_map(|s| s.actions);
    actions.into_iter().find_map(|action| match action {
        Action::StartContainer(start) if start.name == name => Some(*start),
        _ => None,
    })
}

#[test]
fn the_target_shows_its_processes() {
    let target = "debug e; e: {targetContainerName: c}";
    let namespaces = |pod: &str| {
        let scene = Scene::new(pod, "s0 ready; c#0 running");
        let config = start_of(&scene, "e").expect("a start").config;
        let context = config.linux.and_then(|l| l.security_context).expect("a security context");
        let options = context.namespace_options.expect("namespaces");
        (options.pid, options.target_id)
    };
    assert_eq!(namespaces(target), (NamespaceMode::Target, "c#0".into()));
    assert_eq!(namespaces("debug e"), (NamespaceMode::Container, String::new()));
    // where all see each other there is nothing to aim at
    let shared = format!("{target}; spec: {{shareProcessNamespace: true}}");
    assert_eq!(namespaces(&shared), (NamespaceMode::Pod, String::new()));
    let host = format!("{target}; spec: {{hostPID: true}}");
    assert_eq!(namespaces(&host), (NamespaceMode::Node, String::new()));
}

#[test]
fn a_target_that_is_not_there_is_an_error_of_this_container_alone() {
    let scene = Scene::new("run c; debug e; e: {targetContainerName: x}", "s0 ready");
    scene.stages("start c#0?");
    scene.why("e: CreateContainerConfigError (unable to find target container x) @1010s; c: starting");
    let failed = scene.plan().notes.into_iter().find_map(|note| match note {
        PlanNote::Failure { container, failure, .. } => Some((container, failure.reason.to_string())),
        _ => None,
    });
    assert_eq!(failed, Some(("e".into(), "CreateContainerConfigError".into())));
    // an ended one is a target still: it is the runtime that knows whether it can be joined
    let ended = Scene::new(
        "restart Never; run c d; debug e; e: {targetContainerName: c}",
        "s0 ready; c#0 exit(0); d#0 running",
    );
    assert!(start_of(&ended, "e").is_some());
}

#[test]
fn its_image_is_fetched_like_any_other() {
    let scene = Scene::new("debug e", "s0 ready; c#0 running").with(|scene| {
        scene.entry.ledger.image_states.remove("e");
    });
    scene.stages("-");
    scene.why("e: pulling img-e:1");
}
