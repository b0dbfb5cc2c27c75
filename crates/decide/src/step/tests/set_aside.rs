//! Pods that are set aside, over their life.

use std::sync::Arc;

use model::PodReason;
use model::k8s::Pod;
use model::node::NodeConfig;
use model::pod::Source;
use model::runtime_class::RuntimeClass;
use model::why::Cause;
use serde_json::json;

use super::script::Script;
use crate::effect::Effect;
use crate::event::Event;
use crate::plan::tests::words::{EPOCH, api_pod};
use crate::set_aside::{SetAside, definition_hash, pods_to_set_aside};

const RUNS: &str = "read all: a = s0 ready; c#0 running";

/// A node whose earlier agents panicked over the pod `a`, and whose source delivers `a` and `b`.
fn node(unreported: bool) -> Script {
    let mut run = Script::new(NodeConfig::default());
    let definition = definition_hash(&api_pod("a", "run c"));
    let why = SetAside { definition, unreported, unmergeable: false, message: "it panicked".into() };
    run.state.set_aside.insert("a".into(), vec![why]);
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
    assert_eq!(PodReason::of(status), Some(PodReason::SetAside));
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
                Effect::RecordEvent { uid, event, .. } => {
                    uid.as_str() == "a" && event.reason == PodReason::SetAside.as_str()
                }
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
    assert!(!entry.standing().is_set_aside(), "{:?}", entry.why);
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

/// The agent panics three times over the pod, then starts again: `first` is what it was told before each panic, `again`
/// what it is told now. Returns whether the pod is set aside.
fn is_set_aside_again(config: &NodeConfig, first: &[Event], again: &[Event]) -> bool {
    let told = |events: &[Event], set_aside| {
        let mut run = Script::new(config.clone());
        run.state.set_aside = set_aside;
        for line in ["started", "ready", "read all:"] {
            run.line(line);
        }
        for event in events {
            run.event(event.clone());
        }
        run
    };
    let records = (0..3).map(|_| {
        let mut before = told(first, Default::default());
        before.state.pod_in_step = Some("a".into());
        before.state.panic_record("timer", "it panicked", EPOCH)
    });
    let run = told(again, pods_to_set_aside(&records.collect::<Vec<_>>()));
    run.state.pods[&"a".into()].standing().is_set_aside()
}

fn set(source: Source, pod: &Arc<Pod>) -> Event {
    Event::PodSetDelivered { source, pods: vec![pod.clone()] }
}

/// A static pod has the overhead of its class in its entry, but not in its file.
#[test]
fn a_pod_with_the_overhead_of_a_class_is_found_again() {
    let pod = api_pod("a", "run c; spec: {runtimeClassName: costly}");
    let overhead = serde_json::from_value(json!({"memory": "8Mi"})).unwrap();
    let classes = [("costly".to_owned(), RuntimeClass { handler: "costly".into(), overhead })].into();
    let classes = Event::RuntimeClasses { source: Source::File, classes };
    let (classes_first, pod_first) = ([classes.clone(), set(Source::File, &pod)], [set(Source::File, &pod)]);
    let last = [set(Source::File, &pod), classes];
    for first in [&classes_first[..], &pod_first, &last] {
        for again in [&classes_first[..], &pod_first, &last] {
            assert!(is_set_aside_again(&NodeConfig::default(), first, again), "{first:?} {again:?}");
        }
    }
}

/// A pod that was resized has in its entry what was allocated to it.
#[test]
fn a_pod_that_was_resized_is_found_again() {
    let pod = |cpu: &str| api_pod("a", &format!("run c; c: {{resources: {{requests: {{cpu: {cpu}}}}}}}"));
    let (old, new) = (pod("1"), pod("2"));
    let config = NodeConfig { sources: vec![Source::Api], ..NodeConfig::default() };
    let resized = [set(Source::Api, &old), Event::PodChanged { source: Source::Api, pod: new.clone() }];
    assert!(is_set_aside_again(&config, &resized, &[set(Source::Api, &new)]));
    assert!(!is_set_aside_again(&config, &resized, &[set(Source::Api, &old)]), "another definition");
}

/// What runs of it takes what it took before: the node must not be given away twice.
#[test]
fn what_it_requests_counts() {
    let poison = api_pod(
        "a",
        "run c; c: {resources: {requests: {cpu: 60}}, ports: [{containerPort: 80, hostPort: 80}]}",
    );
    let costly = api_pod("b", "run c; c: {resources: {requests: {cpu: 10}}}");
    let open = api_pod("d", "run c; c: {ports: [{containerPort: 80, hostPort: 80}]}");
    let mut run = Script::new(NodeConfig::default());
    let definition = definition_hash(&poison);
    let why = SetAside { definition, unreported: false, unmergeable: false, message: "it panicked".into() };
    run.state.set_aside.insert("a".into(), vec![why]);
    for line in ["started", "ready", RUNS] {
        run.line(line);
    }
    run.event(Event::PodSetDelivered { source: Source::File, pods: vec![poison, costly, open] });
    assert!(run.state.pods[&"a".into()].standing().is_set_aside());
    let rejection = |uid: &str| {
        let rejection = run.state.pods[&uid.into()].standing().rejection();
        rejection.map(|why| why.reason.clone()).unwrap_or_default()
    };
    assert_eq!(["b", "d"].map(rejection), ["UnexpectedAdmissionError", "NodePorts"]);
    assert_eq!(run.state.pods.requests().burstable_milli_cpu(), 60_000);
    assert_eq!(run.state.pods.requests(), &run.state.pods.sum_requests());
}

/// An annotation may be what a step panics over.
#[test]
fn another_annotation_lifts_it() {
    let mut run = node(false);
    run.line(RUNS);
    run.line("pod a = run c; meta: {annotations: {a: b}}");
    run.line("file a b");
    assert!(!run.state.pods[&"a".into()].standing().is_set_aside());
}

/// An object that can't even be merged into its set counts as one that can't be decoded: what runs of it is left alone.
#[test]
fn an_object_that_can_not_be_merged_is_left_out() {
    for source in [Source::File, Source::Api] {
        let mut run = Script::new(NodeConfig { sources: vec![source], ..NodeConfig::default() });
        let [poison, other] = ["a", "b"].map(|name| api_pod(name, "run c"));
        let why = SetAside {
            definition: definition_hash(&poison),
            unreported: false,
            unmergeable: true,
            message: "it panicked".into(),
        };
        run.state.set_aside.insert("a".into(), vec![why]);
        for line in ["started", "ready", RUNS] {
            run.line(line);
        }
        let pods = vec![poison.clone(), other];
        run.event(Event::PodSetDelivered { source, pods: pods.clone() });
        let told = |run: &Script| {
            let unreadable = |effect: &&Effect| matches!(effect, Effect::RecordEvent { uid, event, .. } if uid.as_str() == "a" && event.reason == "UnreadablePod");
            run.effects().iter().filter(unreadable).count()
        };
        assert_eq!(told(&run), 1);
        run.event(Event::PodSetDelivered { source, pods });
        run.event(Event::PodChanged { source, pod: poison.clone() });
        assert_eq!(told(&run), 0, "it is reported once");
        assert!(run.state.pods.contains_key(&"b".into()) && !run.state.pods.contains_key(&"a".into()));
        assert!(run.state.unclaimed.contains_key(&"a".into()), "what runs of it is left alone");
        let mended = api_pod("a", "run c; meta: {labels: {a: b}}");
        run.event(Event::PodChanged { source, pod: mended });
        assert!(run.state.pods.contains_key(&"a".into()) && run.state.unclaimed.is_empty());
    }
}

/// The step says of whom it is before it does anything for a pod.
#[test]
fn who_is_in_work_is_known_only_during_a_step() {
    let mut run = node(false);
    run.line(RUNS);
    assert_eq!(run.state.pod_in_step, None);
}
