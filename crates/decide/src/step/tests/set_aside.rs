//! Pods that are set aside, over their life.

use model::node::NodeConfig;
use model::why::Cause;

use super::script::Script;
use crate::effect::Effect;
use crate::plan::tests::words::api_pod;
use crate::set_aside::{REASON, SetAside, definition_hash};

const RUNS: &str = "read all: a = s0 ready; c#0 running";

/// A node whose earlier agents panicked over the pod `a`, and whose source delivers `a` and `b`.
fn node(unreported: bool) -> Script {
    let mut run = Script::new(NodeConfig::default());
    let definition = definition_hash(&api_pod("a", "run c"));
    let why = SetAside { definition, unreported, message: "it panicked".into() };
    run.state.set_aside.insert("a".into(), why);
    for line in ["pod a = run c", "pod b = run d", "started", "ready", "file a b"] {
        run.line(line);
    }
    run
}

fn has_plan(run: &Script, uid: &str) -> bool {
    run.state.pods.get(&uid.into()).is_some_and(|entry| entry.plan.is_some())
}

#[test]
fn it_is_left_alone_and_everybody_else_goes_on() {
    let mut run = node(false);
    run.line(RUNS);
    assert!(!has_plan(&run, "a") && has_plan(&run, "b"));
    let entry = &run.state.pods[&"a".into()];
    let causes: Vec<_> = entry.why.iter().map(|w| w.why.cause.clone()).collect();
    assert_eq!(causes, [Cause::SetAside { message: "it panicked".into() }]);
    let status = entry.status.as_deref().expect("a status");
    assert_eq!(status.reason.as_deref(), Some(REASON));
    assert_eq!((status.message.as_deref(), status.phase.as_deref()), (Some("it panicked"), Some("Pending")));
    // Whatever becomes of what runs, nothing follows; and nobody takes it for a leftover.
    for line in ["read all: a = s0 ready; c#0 exit(1)", "read all: ", "file a b", "+600s"] {
        run.line(line);
        assert!(!has_plan(&run, "a"), "{line}");
    }
    assert!(run.state.pods.contains_key(&"a".into()) && run.state.unclaimed.is_empty());
}

#[test]
fn an_event_and_the_status_tell_of_it_once() {
    let mut run = node(false);
    let told = |run: &Script| {
        run.effects()
            .iter()
            .filter(|effect| match effect {
                Effect::RecordEvent { uid, event, .. } => uid.as_str() == "a" && event.reason == REASON,
                Effect::StatusChanged { uid, .. } => uid.as_str() == "a",
                _ => false,
            })
            .count()
    };
    assert_eq!(told(&run), 2);
    for line in [RUNS, "file a b"] {
        run.line(line);
        assert_eq!(told(&run), 0, "{line}");
    }
}

/// Where reporting it was what panicked, only `why` tells.
#[test]
fn a_status_that_panicked_is_not_tried_again() {
    let mut run = node(true);
    run.line(RUNS);
    let entry = &run.state.pods[&"a".into()];
    assert!(entry.status.is_none() && entry.plan.is_none() && !entry.why.is_empty());
}

#[test]
fn another_definition_lifts_it() {
    let mut run = node(false);
    run.line(RUNS);
    run.line("pod a = run c e");
    run.line("file a b");
    let entry = &run.state.pods[&"a".into()];
    assert!(entry.set_aside.is_none(), "{:?}", entry.why);
    assert!(run.state.set_aside.is_empty());
    run.line("read all: a = s0 ready; c#0 running; e#0 running");
    let status = run.state.pods[&"a".into()].status.as_deref();
    assert_eq!(status.and_then(|s| s.reason.as_deref()), None, "it is a pod like any other");
}

#[test]
fn its_removal_lifts_it_and_it_ends_like_any_other() {
    let mut run = node(false);
    run.line(RUNS);
    run.line("file b");
    assert!(has_plan(&run, "a"), "it is stopped");
}

/// The step says of whom it is before it does anything for a pod.
#[test]
fn who_is_in_work_is_known_only_during_a_step() {
    let mut run = node(false);
    run.line(RUNS);
    assert_eq!(run.state.pod_in_step, None);
}
