//! The node around the pods: the runtime's health, sources, what nobody owns, and the cgroups above.

use std::sync::Arc;
use std::time::Duration;

use model::cgroup::CgroupDriver;
use model::node::{HostFacts, NodeConfig};
use model::observed::{Observation, Scope};
use model::pod::Source;
use model::{Mono, Now, PodUid, Wall};

use super::{check, check_on};
use crate::state::FailureReason;
use crate::{Event, NodeState};

fn two_sources() -> NodeConfig {
    NodeConfig { sources: vec![Source::File, Source::Http], ..Default::default() }
}

// ---- the runtime -------------------------------------------------------------------------------------------------

#[test]
fn a_runtime_that_is_not_ready_holds_everything_and_says_why() {
    for (answer, why) in [
        ("not-ready starting", "container runtime not ready: RuntimeReady=false reason:Bad message:starting"),
        ("away", "container runtime is down: connection refused"),
    ] {
        check(&format!(
            r"
            started
            read all:
            {answer}
            file a                         => -
            why a                          => runtime not ready ({why})
            ready                          => read all | run a: dirs + cgroup > sandbox#0 | look img-c:1
            "
        ));
    }
    check(
        r"
        started
        read all:
        file a
        why a => runtime not ready (container runtime status check may not have completed yet)
        ",
    );
}

#[test]
fn a_runtime_is_asked_more_often_while_it_is_not_well() {
    check(
        r"
        show clocks
        started                            => check+driver | read all
        away                               => timer check @1s
        due check @1s                      => check+driver
        away                               => timer check @3s
        due check @3s
        away                               => timer check @7s
        due check @7s
        away                               => timer check @12s
        due check @12s
        away                               => timer check @17s
        due check @17s
        no-network                         => timer check @18s
        due check @18s                     => check
        not-ready                          => timer check @19s
        due check @19s                     => check
        ready                              => timer check @49s
        due check @49s                     => check
        ready                              => timer check @79s
        ",
    );
}

#[test]
fn one_check_at_a_time() {
    check(
        r"
        started                            => check+driver | read all
        hint-all                           => -
        timer check                        => -
        ready
        hint-all                           => check
        ",
    );
}

#[test]
fn what_failed_for_want_of_a_runtime_is_tried_at_once_when_it_is_back() {
    check(
        r"
        up
        file a
        looked img-c:1: yes
        fail a: sandbox#0 = !unavailable   => check | read a
        away
        read a:                            => -
        +3s
        ready                              => read all | run a: dirs + cgroup > sandbox#0
        ",
    );
    // but a failure of another kind keeps its time while the runtime is well
    check(
        r"
        up
        file a
        looked img-c:1: yes
        fail a: sandbox#0 = no network     => read a
        read a:                            => -
        why a                              => create pod sandbox failed (no network) @10s
        timer check                        => check
        ready                              => -
        due pod a @10s                     => run a: dirs + cgroup > sandbox#0
        ",
    );
    check(
        r"
        started
        ready
        file a
        read all: a = s0 ready
        looked img-c:1: yes
        done a
        fail a: start c#0 = create: !gone  => check | read a
        away
        read a: s0 ready
        ready                              => read all | look img-c:1
        ",
    );
}

#[test]
fn steps_that_fail_are_told_in_their_own_words() {
    for (step, event) in [
        ("dirs", "Failed: error making pod data directories: no"),
        ("cgroup", "FailedCreatePodContainer: unable to ensure pod container exists: no"),
        ("volume v", "FailedMount: MountVolume.SetUp failed for volume ^v^ : no"),
        ("sandbox#0", "FailedCreatePodSandBox: Failed to create pod sandbox: no"),
    ] {
        let last = if step == "sandbox#0" { " | read a" } else { "" };
        check(
            &format!(
                r"
                pod a = spec: {{volumes: [{{name: v, emptyDir: {{}}}}]}}; c: {{volumeMounts: [{{name: v, mountPath: /v}}]}}
                up
                file a                     => run a: dirs + cgroup > volume v > sandbox#0 | look img-c:1
                show events
                fail a: {step} = no        => W a {event}{last}
                "
            )
            .replace('^', "\""),
        );
    }
}

#[test]
fn a_network_that_comes_lets_pods_go_on() {
    check(
        r"
        show events
        started
        no-network cni
        read all:
        file a
            => W a NetworkNotReady: network is not ready: container runtime network not ready: NetworkReady=false reason:Bad message:cni
            => look img-c:1
        why a                              => network not ready; c: pulling img-c:1
        looked img-c:1: no                 => N a/c Pulling: Pulling image ^img-c:1^ | pull img-c:1
        timer check
        no-network cni                     => -
        timer check
        ready                              => run a: dirs + cgroup > sandbox#0
        "
        .replace('^', "\"")
        .as_str(),
    );
}

#[test]
fn the_cgroup_driver_is_the_runtimes() {
    for (answer, driver) in [
        ("ready", CgroupDriver::Cgroupfs),
        ("ready cgroupfs", CgroupDriver::Cgroupfs),
        ("ready systemd", CgroupDriver::Systemd),
    ] {
        let run = check(&format!("started => check+driver | read all\n{answer}\ntimer check => check"));
        assert_eq!(run.state.config.cgroup_driver, driver, "{answer}");
    }
}

#[test]
fn cgroups_above_pods_follow_what_is_asked_for() {
    check(
        r"
        show cgroups
        pod a = c: {resources: {requests: {cpu: 500m}}}
        pod b = c: {resources: {requests: {cpu: 1500m}}}
        started
        # their spelling is not known before the runtime has spoken, nor which pods were admitted before it has listed
        file a                             => -
        ready                              => -
        read all: a = s0 ready; c#0 running => cgroups burstable=512
        file a b                           => cgroups burstable=2048 | run b: dirs + cgroup > sandbox#0 | look img-c:1
        file b                             => run a: stop c#0 30s > stop-sandbox s0
        done a
        # while it runs it weighs
        read a: s0 dead; c#0 exit(0)       => run a: tear-down > drop-cgroup kubepods/burstable/poda | cgroups burstable=1536
        done a
            => run a: remove c#0 > remove-sandbox s0 > remove-dir + remove-logs ns_a_a
        ",
    );
}

// ---- sources -----------------------------------------------------------------------------------------------------

#[test]
fn orphans_are_only_taken_when_all_sources_have_spoken() {
    check_on(
        two_sources(),
        r"
        started
        ready
        read all: x = s0 ready; c#0 running => -
        file a                              => run a: dirs + cgroup > sandbox#0 | look img-c:1
        http                                => run x: stop c#0 2s > stop-sandbox s0
        counted                             => orphans 1
        ",
    );
    check_on(
        two_sources(),
        r"
        started
        ready
        file
        http
        # nothing was read so far
        state x                             => gone
        read all: x = s0 ready; c#0 running => run x: stop c#0 2s > stop-sandbox s0
        ",
    );
    check_on(
        two_sources(),
        r"
        started
        ready
        read all: x = s0 ready; c#0 running
        file
        http x                              => -
        why x                               => running
        ",
    );
}

#[test]
fn each_source_has_its_own_set() {
    check_on(
        two_sources(),
        r"
        started
        ready
        read all: a = s0 ready; c#0 running / b = s0 ready; c#0 running
        file a
        http b
        file a                              => -
        file                                => run a: stop c#0 30s > stop-sandbox s0
        http b                              => -
        ",
    );
}

#[test]
fn the_second_of_one_name_in_a_set_is_ignored() {
    check(
        r"
        show events
        pod b = meta: {name: a}
        started
        ready
        read all: a = s0 ready; c#0 running
        file a b
            => W b FailedValidation: Error validating pod a_ns(b) from file due to duplicate pod name ^a^, ignoring
        state b                             => gone
        "
        .replace('^', "\"")
        .as_str(),
    );
}

#[test]
fn a_changed_label_changes_nothing_that_runs() {
    check(
        r"
        started
        ready
        file a
        read all: a = s0 ready; c#0 running
        pod a = meta: {labels: {x: z}}
        file a                              => -
        pod a = meta: {labels: {x: z}}; status: {phase: Running}
        file a                              => -
        ",
    );
}

// ---- what nobody owns --------------------------------------------------------------------------------------------

#[test]
fn leftovers_are_looked_for_once_all_is_known_and_then_now_and_then() {
    check_on(
        two_sources(),
        r"
        show sweeps clocks
        started
        ready
        file                                => -
        read all:                           => timer full @60s
        http                                => list leftovers
        leftovers                           => timer sweep @300s
        due sweep @300s                     => list leftovers
        # one at a time
        timer sweep                         => -
        ",
    );
    check_on(
        two_sources(),
        r"
        show sweeps
        started
        ready
        file
        http                                => -
        read all:                           => list leftovers
        read all:                           => -
        ",
    );
}

#[test]
fn only_what_belongs_to_nobody_is_swept() {
    check(
        r"
        started
        ready
        file a
        read all: a = s0 ready; c#0 running
        leftovers dirs=a,x logs=ns_a_a,ns_n_y,odd cgroups=kubepods/poda,kubepods/burstable/podz,kubepods/besteffort/pod links=l
            => sweep dirs=x logs=ns_n_y links=l cgroups=kubepods/burstable/podz
        ",
    );
    check("started\nready\nfile a\nread all: a = s0 ready; c#0 running\nleftovers dirs=a logs=ns_a_a => -");
}

#[test]
fn what_runs_unclaimed_is_not_swept() {
    check_on(
        two_sources(),
        r"
        started
        ready
        read all: x = s0 ready; c#0 running
        timer sweep                         => -
        leftovers dirs=x,y                  => sweep dirs=y
        ",
    );
}

#[test]
fn a_pod_that_comes_while_its_remains_are_swept_waits() {
    for (left, sweep) in [
        ("dirs=a", "dirs=a"),
        ("logs=ns_a_a", "logs=ns_a_a"),
        ("cgroups=kubepods/besteffort/poda", "cgroups=kubepods/besteffort/poda"),
    ] {
        check(&format!(
            r"
            up
            file
            leftovers {left}                => sweep {sweep}
            file a b                        => run b: dirs + cgroup > sandbox#0 | look img-c:1
            why a                           => releasing
            swept                           => run a: dirs + cgroup > sandbox#0
            "
        ));
    }
}

#[test]
fn what_could_not_be_swept_is_told() {
    check(
        r"
        show logs clocks
        up
        file
        leftovers dirs=x
        swept pods/x is busy
            => log removing leftovers of pods that are gone failed: pods/x is busy | timer sweep @300s
        ",
    );
}

// ---- garbage over all pods ---------------------------------------------------------------------------------------

#[test]
fn a_limit_over_all_pods_takes_the_oldest() {
    let config =
        NodeConfig { max_dead_containers: 2, max_dead_containers_per_container: -1, ..Default::default() };
    check_on(
        config,
        r"
        started
        ready
        file a b
        read all: a = s0 ready; c#0 exit(0) 0s age=50; c#1 running / b = s0 ready; c#0 running => -
        read b: s0 ready; c#0 exit(0) 0s age=30; c#1 exit(0) 0s age=20; c#2 running age=10     => run a: remove c#0?
        done a                              => read a
        read a: s0 ready; c#1 running       => -
        ",
    );
}

#[test]
fn no_limit_takes_the_last_that_tells_what_has_ended() {
    let config = NodeConfig { max_dead_containers: 0, ..Default::default() };
    check_on(
        config.clone(),
        r"
        pod a = restart OnFailure; run c d
        started
        ready
        file a
        read all: a = s0 ready; c#0 exit(1) 0s age=9; c#1 exit(0); d#0 running => run a: remove c#0?
        done a
        read a: s0 ready; c#1 exit(0); d#0 running => -
        ",
    );
    // nor does that of a pod that is over go before the pod is dropped
    check_on(
        config,
        r"
        pod a = restart Never
        started
        ready
        file a
        read all: a = s0 dead; c#0 exit(0)
        done a
        read a: s0 dead; c#0 exit(0)
        done a                              => -
        why a                               => finished Succeeded
        ",
    );
}

#[test]
fn garbage_that_is_too_young_is_taken_when_it_is_not() {
    let config = NodeConfig { min_container_ttl: Duration::from_secs(60), ..Default::default() };
    check_on(
        config,
        r"
        show timers
        started
        ready
        file a
        read all: a = s0 ready; c#0 exit(1) 0s age=30; c#1 exit(1) 0s age=10; c#2 running 0s age=5 => timer pod a @30s
        due pod a @30s                      => run a: remove c#0?
        ",
    );
}

/// Whatever order a source lists them in, the pod that was made first has the room.
#[test]
fn room_is_for_who_was_first() {
    let pod = |name: &str, created: &str| {
        let pod = serde_json::json!({
            "metadata": {"name": name, "namespace": "ns", "uid": name, "creationTimestamp": created},
            "spec": {"nodeName": "node", "containers": [
                {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}},
            ]},
        });
        Arc::new(serde_json::from_value::<model::k8s::Pod>(pod).expect("a pod"))
    };
    let config = NodeConfig { sources: vec![Source::Api], ..NodeConfig::default() };
    let mut state = NodeState::new(config, HostFacts::default(), Wall(0));
    let pods = vec![pod("newer", "2026-01-02T00:00:00Z"), pod("older", "2026-01-01T00:00:00Z")];
    crate::step(&mut state, Now::default(), Event::PodSetDelivered { source: Source::Api, pods });
    let nothing_runs = Observation { at: Mono::ZERO, scope: Scope::All, pods: Vec::new() };
    crate::step(&mut state, Now::default(), Event::Observed(nothing_runs));
    let refused = |name: &str| state.pods[&PodUid::from(name)].standing().rejection().cloned();
    assert_eq!(refused("older"), None);
    let message = "Node didn't have enough resource: cpu, requested: 1000, used: 1000, capacity: 1000";
    assert_eq!(refused("newer"), Some(FailureReason::new("OutOfcpu", message)));
}

/// A changed static pod has a new UID; its ports are those of the one that it replaces.
#[test]
fn who_goes_makes_room() {
    let pod = |uid: &str| {
        let pod = serde_json::json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": uid},
            "spec": {"containers": [{
                "name": "c", "image": "i",
                "ports": [{"containerPort": 80, "hostPort": 80}],
                "resources": {"requests": {"cpu": "1"}},
            }]},
        });
        Arc::new(serde_json::from_value::<model::k8s::Pod>(pod).expect("a pod"))
    };
    let config = NodeConfig { sources: vec![Source::File], ..NodeConfig::default() };
    let mut state = NodeState::new(config, HostFacts::default(), Wall(0));
    for uid in ["b", "a", "c"] {
        let pods = vec![pod(uid)];
        crate::step(&mut state, Now::default(), Event::PodSetDelivered { source: Source::File, pods });
        assert_eq!(state.pods[&PodUid::from(uid)].standing().rejection(), None, "{uid}");
    }
}
