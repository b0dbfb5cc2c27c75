//! What watchers of the Pods API are told of.

use model::node::NodeConfig;
use model::pod::Source;

use super::script::{Script, check_on};
use crate::state::shown_pod::{self, has_finished, is_listed};

fn config(source: Source, on: bool) -> NodeConfig {
    let features = [(shown_pod::GATE.to_owned(), on)].into();
    NodeConfig { sources: vec![source], features, ..NodeConfig::default() }
}

#[test]
fn a_pod_is_shown_from_its_arrival_to_its_end() {
    let run = check_on(
        config(Source::File, true),
        r"
        show status
        pod a = restart Never; run c
        up
        file a             => status a Pending c=wait:ContainerCreating
                           => run a: dirs + cgroup > sandbox#0 | look img-c:1 | changed a
        file a             => -
        done a             => read a
        looked img-c:1: yes
        read a: s0 ready   => status a Pending c=wait:ContainerCreating
                           => run a: start c#0? | changed a
        done a             => read a
        read a: s0 ready; c#0 running  => status a Running c=running | changed a
        read a: s0 ready; c#0 running  => -
        ",
    );
    let entry = &run.state.pods[&"a".into()];
    assert!(is_listed(entry) && !has_finished(entry));
}

#[test]
fn a_pod_that_ended_is_listed_until_its_source_removes_it() {
    let mut run = Script::new(config(Source::File, true));
    for line in [
        "pod a = restart Never; run c",
        "started",
        "ready",
        "file a",
        "read all: a = s0 ready; c#0 exit(0)",
        "done a",
        "read a: s0; c#0 exit(0)",
        "done a",
    ] {
        run.line(line);
    }
    let seen = |run: &Script| run.state.pods.get(&"a".into()).map(|e| (is_listed(e), has_finished(e)));
    assert_eq!(seen(&run), Some((true, true)), "{:?}", run.effects());
    run.line("file");
    assert!(matches!(seen(&run), None | Some((false, true))));
}

/// The status that was reported comes back with a new version of the object.
#[test]
fn an_echo_of_the_status_is_no_change() {
    let mut run = Script::new(config(Source::Api, true));
    for line in ["pod a = run c", "up", "api a", "read all: a = s0 ready; c#0 running"] {
        run.line(line);
    }
    let pod = |version: &str, label: &str, phase: &str| {
        let mut pod = crate::plan::tests::words::api_pod("a", "run c").as_ref().clone();
        pod.metadata.resource_version = Some(version.into());
        pod.metadata.labels = Some([("state".to_owned(), label.to_owned())].into());
        pod.status.get_or_insert_default().phase = Some(phase.into());
        std::sync::Arc::new(pod)
    };
    let mut deliver = |version: &str, label: &str, phase: &str| {
        let pod = pod(version, label, phase);
        run.event(crate::Event::PodChanged { source: Source::Api, pod })
    };
    let is_told = |told: Vec<String>| told.iter().any(|line| line == "changed a");
    assert!(is_told(deliver("7", "old", "Pending")), "the label is new");
    assert!(!is_told(deliver("8", "old", "Running")));
    assert!(is_told(deliver("9", "new", "Running")));
}

#[test]
fn nothing_is_told_with_the_gate_off() {
    check_on(
        config(Source::File, false),
        r"
        pod a = restart Never; run c
        up
        file a             => run a: dirs + cgroup > sandbox#0 | look img-c:1
        ",
    );
}

#[test]
fn orphans_are_never_shown() {
    let mut run = Script::new(config(Source::File, true));
    let mut told = Vec::new();
    for line in ["started", "ready", "file", "read all: a = s0 ready; c#0 running", "done a", "read a:"] {
        told.extend(run.line(line));
    }
    assert!(told.iter().all(|line| line != "changed a"), "{told:?}");
}
