//! A sandbox or container whose status the runtime does not give costs its own pod, and that pod as little as possible.

use model::node::NodeConfig;
use model::observed::Scope;
use model::pod::Source;

use super::{check, check_on};
use crate::plan::tests::words::at;

/// `a` has a ready sandbox whose status is refused; `b` has crashed and is to be started again.
const REFUSED: &str = r"
    started                            => check+driver | read all
    ready                              => -
    file a b                           => -
    read all: a = s0 ready refused; c#0 running / b = s0 ready; c#0 exit(1)
";

#[test]
fn every_other_pod_goes_on_and_the_reading_counts_as_complete() {
    let run = check(
        r#"
        show events
        started                            => check+driver | read all
        ready                              => -
        file a b                           => -
        read all: a = s0 ready refused; c#0 running / b = s0 ready; c#0 exit(1)
                                           => W a FailedPodSandBoxStatus: Unable to get pod sandbox status: busy
                                           => look img-c:1
        why a                              => no status of sandbox a.s0 (busy) @1s
        looked img-c:1: yes
                                           => N b/c Pulled: Container image "img-c:1" already present on machine and can be accessed by the pod
                                           => run b: dirs + cgroup
        file a b c                         => run c: dirs + cgroup > sandbox#0 | look img-c:1
        "#,
    );
    assert!(run.state.full_observation.last.is_some());
}

#[test]
fn a_missing_status_is_asked_for_ever_later_and_told_once() {
    check(&format!(
        r"
        {REFUSED}
        show events logs
        due pod a @1s                      => read a
        read a @1s: s0 ready refused; c#0 running => -
        why a                              => no status of sandbox a.s0 (busy) @3s
        due pod a @3s                      => read a
        read a @3s: s0 ready refused; c#0 running => -
        why a                              => no status of sandbox a.s0 (busy) @7s
        # a complete reading that began before it was time did not ask for it
        read all @5s: a = s0 ready refused; c#0 running / b = s0 ready; c#0 exit(1) => -
        why a                              => no status of sandbox a.s0 (busy) @7s
        due pod a @7s                      => read a
        read a @7s: s0 ready; c#0 running
                                           => log the container runtime gives every status of the pod again
        why a                              => running
        "
    ));
}

/// A pod that no source has delivered yet: each complete reading, and each hint about the pod, would otherwise ask for
/// every status of it again.
#[test]
fn a_missing_status_of_an_unclaimed_pod_backs_off_too() {
    let sources = vec![Source::File, Source::Api];
    let config = NodeConfig { sources, ..NodeConfig::default() };
    let run = check_on(
        config,
        r"
        show logs
        started
        ready
        file
        read all: a = s0 ready refused; c#0 running
                                           => log the container runtime does not return the status of sandbox a.s0 (a.s0) of pod a_ns, wanted by no source: busy
        hint a                             => read all
        read all: a = s0 ready refused; c#0 running => -
        +1s
        hint a                             => read all
        read all @1s: a = s0 ready refused; c#0 running => -
        ",
    );
    let asks = |seconds: f64| {
        let known = run.state.previous_observations(&Scope::All, at(seconds).mono);
        known[&"a".into()].retry_missing_status
    };
    assert_eq!([0.0, 2.9, 3.0].map(asks), [false, false, true], "1 s, then 2 s");
    assert_eq!(
        run.state.previous_observations(&Scope::All, at(0.0).mono)[&"a".into()].pod.containers.len(),
        1
    );
}

#[test]
fn another_sandbox_without_status_is_asked_for_as_eagerly_as_the_first() {
    check(&format!(
        r"
        {REFUSED}
        due pod a @1s                      => read a
        read a @1s: s0 ready refused; c#0 running => -
        due pod a @3s                      => read a
        read a @3s: s0 dead; s1 ready refused; c#0 running => -
        why a                              => no status of sandbox a.s1 (busy) @4s
        "
    ));
}

#[test]
fn a_pod_that_is_to_go_is_stopped_and_removed_by_its_list_entries() {
    check(&format!(
        r"
        {REFUSED}
        file b                             => run a: stop c#0 30s > stop-sandbox s0
        why a                              => c: stopping 30s; no status of sandbox a.s0 (busy) @1s
        done a                             => read a
        read a: s0 dead refused; c#0 exit(137) refused
                                           => run a: tear-down > drop-cgroup kubepods/besteffort/poda
        done a                             => run a: remove c#0 > remove-sandbox s0 > remove-dir + remove-logs ns_a_a
        done a                             => read a
        read a:                            => forget a
        "
    ));
}

#[test]
fn an_orphan_is_stopped_by_its_list_entries() {
    check(
        r"
        started                            => check+driver | read all
        ready                              => -
        file                               => -
        read all: o = s0 ready refused; c#0 running refused grace=7
                                           => run o: stop c#0 7s > stop-sandbox s0
        ",
    );
}

#[test]
fn what_a_list_tells_of_the_dead_is_enough() {
    // The sandbox is dead: another one is made, whatever the old one's status is.
    check(
        r"
        started                            => check+driver | read all
        ready                              => -
        file a                             => -
        read all: a = s0 dead refused      => run a: stop-sandbox s0
        ",
    );
    // An older instance whose end can't be read keeps nobody from starting the next one.
    check(
        r"
        started                            => check+driver | read all
        ready                              => -
        file a                             => -
        read all: a = s0 ready; c#1 running; c#0 exit(137) refused => -
        why a                              => running; no status of container c (busy) @1s
        ",
    );
}

#[test]
fn nothing_is_started_for_a_container_whose_end_is_not_known() {
    // It may have succeeded, and the pod be over.
    check(
        r"
        show status events
        pod a = restart OnFailure; run c
        started                            => check+driver | read all
        ready                              => -
        file a                             => -
        read all: a = s0 ready; c#0 exit(137) refused
                                           => W a/c FailedSync: error determining status: busy
        why a                              => no status of container c (busy) @1s
        due pod a @1s                      => read a
        read a @1s: s0 ready; c#0 exit(0)  => status a Succeeded c=exit(0) | run a: stop-sandbox s0
        ",
    );
}

#[test]
fn the_end_of_a_pod_that_goes_is_told_without_it() {
    let config = NodeConfig { sources: vec![model::pod::Source::Api], ..Default::default() };
    let run = check_on(
        config,
        r"
        pod a = restart Never; run c
        started
        ready
        services
        api a
        read all: a = s0 ready; c#0 running
        pod a = restart Never; run c; meta: {deletionTimestamp: '2024-01-01T00:00:00Z', deletionGracePeriodSeconds: 5}
        api a
        done a
        read a: s0 dead; c#0 exit(137) refused
        ",
    );
    let status = run.state.pods[&"a".into()].status.clone().expect("a status");
    let end = status.container_statuses.iter().flatten().find_map(|c| c.state.as_ref()?.terminated.clone());
    let end = end.expect("an end");
    assert_eq!((end.exit_code, end.reason.as_deref()), (137, Some("ContainerStatusUnknown")));
    assert!(end.message.is_some_and(|text| text.ends_with(": busy")));
}

#[test]
fn the_pods_deadline_ends_it_all_the_same() {
    check(
        r"
        pod a = spec: {activeDeadlineSeconds: 60}; run c
        started
        ready
        file a
        read all: a = s0 ready; c#0 running
        hint a                             => read a
        read a: s0 dead; c#0 exit(137) refused; s1 ready refused => -
        +60s
        timer pod a                        => read a | run a: stop-sandbox s1 + stop-sandbox s0
        ",
    );
}

#[test]
fn a_complete_reading_that_fails_says_so_once() {
    check(
        r"
        show logs
        started                            => check+driver | read all
        read-failed all                    => log listing pods in the container runtime failed: no answer
        due full @1s                       => read all
        read-failed all                    => -
        due full @2s                       => read all
        read all:                          => log the container runtime can be read again
        ",
    );
}
