//! Pods that end: why, with which grace, and that nothing starts any more.

use model::node::NodeConfig;

use super::{check, check_on};

const RUNNING: &str = r"
    started
    ready
    file a
    read all: a = s0 ready; c#0 running
";

/// A pod of the API that runs.
const RUNNING_API: &str = r"
    started
    ready
    api a
    read all: a = s0 ready; c#0 running
";

fn of_api() -> NodeConfig {
    NodeConfig { sources: vec![model::pod::Source::Api], ..Default::default() }
}

/// `pod a = ..` of a pod that the API server wants gone.
fn deleted(grace: i64) -> String {
    format!(
        "pod a = meta: {{deletionTimestamp: \"2024-01-01T00:00:00Z\", deletionGracePeriodSeconds: {grace}}}"
    )
}

#[test]
fn a_removed_pod_goes_step_by_step() {
    check(&format!(
        r"
        show events
        {RUNNING}
        file                          => N a/c Killing: Stopping container c | run a: stop c#0 30s > stop-sandbox s0
        state a                       => terminating 30s
        done a                        => read a
        read a: s0 dead; c#0 exit(0)  => run a: tear-down > drop-cgroup kubepods/besteffort/poda
        state a                       => terminated
        done a                        => run a: remove c#0 > remove-sandbox s0 > remove-dir + remove-logs ns_a_a
        state a                       => finished
        done a                        => read a
        read a:                       => forget a
        state a                       => gone
        "
    ));
}

#[test]
fn a_pod_without_anything_in_the_runtime_goes_as_well() {
    check(
        r"
        up
        file a
        looked img-c:1: no
        file                          => cancel a
        skip a                        => run a: tear-down > drop-cgroup kubepods/besteffort/poda
        done a                        => run a: remove-dir + remove-logs ns_a_a
        done a                        => forget a
        ",
    );
}

#[test]
fn the_grace_is_the_specs_or_the_deletions() {
    for (spec, expect) in [(30, "stop c#0 30s"), (5, "stop c#0 5s"), (1, "stop c#0 2s"), (0, "stop c#0 2s")] {
        check(&format!(
            r"
            pod a = spec: {{terminationGracePeriodSeconds: {spec}}}
            {RUNNING}
            file                      => run a: {expect} > stop-sandbox s0
            "
        ));
    }
    for (grace, expect) in [(60, "stop c#0 60s"), (5, "stop c#0 5s"), (0, "stop c#0 2s")] {
        let deleted = deleted(grace);
        check_on(
            of_api(),
            &format!(
                r"
                {RUNNING_API}
                {deleted}
                api a                 => run a: {expect} > stop-sandbox s0
                "
            ),
        );
    }
}

#[test]
fn a_deleted_pod_stays_until_the_api_lets_it_go() {
    let deleted = deleted(30);
    check_on(
        of_api(),
        &format!(
            r"
            {RUNNING_API}
            {deleted}
            api a
            done a
            read a: s0 dead; c#0 exit(0)
            done a                    => -
            state a                   => finished
            why a                     => finished Succeeded
            api                       => run a: remove c#0 > remove-sandbox s0 > remove-dir + remove-logs ns_a_a
            done a
            read a:                   => forget a
            "
        ),
    );
}

#[test]
fn a_pod_that_comes_already_deleted_is_only_stopped() {
    let deleted = deleted(10);
    check_on(
        of_api(),
        &format!(
            r"
            started
            ready
            {deleted}
            read all: a = s0 ready; c#0 running
            api a                     => run a: stop c#0 10s > stop-sandbox s0
            "
        ),
    );
}

#[test]
fn a_shorter_grace_cuts_the_wait_short() {
    let (first, second, longer) = (deleted(60), deleted(20), deleted(90));
    check_on(
        of_api(),
        &format!(
            r"
            {RUNNING_API}
            {first}
            api a                     => run a: stop c#0 60s > stop-sandbox s0
            +10s
            # longer is no change
            {longer}
            api a                     => -
            {second}
            api a                     => cancel a
            # told once
            {second}; run c
            api a                     => -
            +1s
            cut a                     => read a
            read a: s0 ready; c#0 running => run a: stop c#0 19s > stop-sandbox s0
            "
        ),
    );
}

#[test]
fn removal_after_deletion_does_not_lengthen_the_grace() {
    let deleted = deleted(5);
    check_on(
        of_api(),
        &format!(
            r"
            {RUNNING_API}
            {deleted}
            api a                     => run a: stop c#0 5s > stop-sandbox s0
            api                       => -
            state a                   => terminating 5s
            "
        ),
    );
}

#[test]
fn a_plan_is_cancelled_when_its_pod_goes() {
    // between two steps
    check(
        r"
        up
        file a                        => run a: dirs + cgroup > sandbox#0 | look img-c:1
        file                          => cancel a
        cut a 0                       => run a: tear-down > drop-cgroup kubepods/besteffort/poda
        ",
    );
    // the sandbox came up in the meantime
    check(
        r"
        up
        file a
        file                          => cancel a
        cut a 1                       => read a
        read a: s0 ready              => run a: stop-sandbox s0
        ",
    );
    // a start that was under way
    check(
        r"
        pod a = run c d
        started
        ready
        file a
        read all: a = s0 ready
        looked img-c:1: yes
        looked img-d:1: yes
        done a                        => run a: start c#0? > start d#0?
        file                          => cancel a
        cut a 0                       => read a
        read a: s0 ready; c#0 running => run a: stop c#0 30s > stop-sandbox s0
        ",
    );
}

#[test]
fn nothing_starts_once_the_end_was_asked_for() {
    check(&format!(
        r"
        {RUNNING}
        read a: s0 ready; c#0 exit(1)  => look img-c:1
        file                           => run a: stop-sandbox s0
        looked img-c:1: yes            => -
        done a                         => read a
        # not even when the pod looks as if it should
        read a: s0 dead                => run a: tear-down > drop-cgroup kubepods/besteffort/poda
        "
    ));
}

#[test]
fn completed_pods_release_what_they_had_and_stay() {
    for (policy, code, phase) in
        [("Never", 0, "Succeeded"), ("Never", 3, "Failed"), ("OnFailure", 0, "Succeeded")]
    {
        check(&format!(
            r"
            show status
            pod a = restart {policy}
            {RUNNING}
            read a: s0 ready; c#0 exit({code}) => status a {phase} c=exit({code}) | run a: stop-sandbox s0
            done a                             => read a
            read a: s0 dead; c#0 exit({code})
                => status a {phase} c=exit({code}) | run a: tear-down > drop-cgroup kubepods/besteffort/poda
            done a                             => -
            state a                            => finished
            why a                              => finished {phase}
            hint a                             => read a
            read a: s0 dead; c#0 exit({code})  => -
            "
        ));
    }
}

#[test]
fn a_pod_is_completed_although_its_sidecar_runs() {
    check(
        r"
        show status
        pod a = restart Never; init s*; run c
        started
        ready
        file a
        read all: a = s0 ready; s#0 running; c#0 running => status a Running s=running c=running
        read a: s0 ready; s#0 running; c#0 exit(0)
            => status a Running s=running c=exit(0) | run a: stop s#0 30s > stop-sandbox s0
        done a                                           => read a
        read a: s0 dead; s#0 exit(143); c#0 exit(0)
            => status a Succeeded s=exit(143) c=exit(0)
            => run a: tear-down > drop-cgroup kubepods/besteffort/poda
        ",
    );
}

#[test]
fn a_failed_init_container_ends_a_pod_that_runs_once() {
    check(
        r"
        show status
        pod a = restart Never; init s* i; run c
        started
        ready
        file a
        read all: a = s0 ready; s#0 running; i#0 running
        read a: s0 ready; s#0 running; i#0 exit(2)
            => status a Failed s=running i=exit(2) c=wait:PodInitializing
            => run a: stop s#0 30s > stop-sandbox s0
        ",
    );
}

#[test]
fn a_rejected_pod_never_runs() {
    let config = {
        let mut config = NodeConfig::default();
        config.node_object.capacity.max_pods = 1;
        config
    };
    check_on(
        config.clone(),
        r"
        show events status
        started
        ready
        read all: a = s0 ready; c#0 running
        file a
        file a b
            => W b UnexpectedAdmissionError: Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: [(res: pods, q: 1), ]
            => status b Failed(UnexpectedAdmissionError)
            => run b: tear-down > drop-cgroup kubepods/besteffort/podb
        done b
        state b                        => finished
        why b                          => rejected UnexpectedAdmissionError
        file a                         => run b: remove-dir + remove-logs ns_b_b
        done b                         => forget b
        ",
    );
    // One that an earlier agent admitted stays, whether it was delivered before it was seen or afterwards.
    let seen = "read all: a = s0 ready; c#0 running / b = s0 ready; c#0 running";
    for (first, then) in [(seen, "file a b"), ("file a b", seen)] {
        let script = format!("started\n ready\n {first}\n {then} => -\n state b => syncing");
        check_on(config.clone(), &script);
    }
}

#[test]
fn orphans_are_stopped_with_the_grace_they_were_made_with() {
    for (grace, expect) in [("grace=7", "7s"), ("grace=0", "2s"), ("", "2s")] {
        check(&format!(
            r"
            started
            ready
            file
            read all: x = s0 ready; c#0 running {grace} => run x: stop c#0 {expect} > stop-sandbox s0
            done x                                      => read x
            read x: s0 dead; c#0 exit(0)
                => run x: tear-down > drop-cgroup kubepods/podx + drop-cgroup kubepods/burstable/podx + drop-cgroup kubepods/besteffort/podx
            done x
                => run x: remove c#0 > remove-sandbox s0 > remove-dir + remove-logs ns_x_x
            done x                                      => read x
            read x:                                     => forget x
            "
        ));
    }
}

#[test]
fn a_failed_stop_is_tried_again_with_growing_waits() {
    check(&format!(
        r"
        show events timers
        {RUNNING}
        file
        fail a: stop c#0 30s = stuck   => W a FailedKillPod: error killing pod: stuck | read a
        read a: s0 ready; c#0 running  => timer pod a @1s
        why a                          => stop container failed (stuck) @1s
        due pod a @1s                  => run a: stop c#0 29s > stop-sandbox s0
        fail a: stop c#0 29s = stuck   => W a FailedKillPod: error killing pod: stuck | read a
        read a: s0 ready; c#0 running  => timer pod a @3s
        due pod a @3s                  => run a: stop c#0 27s > stop-sandbox s0
        fail a: stop c#0 27s = stuck
        read a: s0 ready; c#0 running  => timer pod a @7s
        due pod a @7s
        fail a: stop c#0 23s = stuck
        read a: s0 ready; c#0 running  => timer pod a @15s
        due pod a @15s
        fail a: stop c#0 15s = stuck
        read a: s0 ready; c#0 running  => timer pod a @23s
        # it ended after all
        read a: s0 ready; c#0 exit(0)  => -
        due pod a @23s                 => run a: stop-sandbox s0
        "
    ));
}

#[test]
fn a_sandbox_that_cannot_be_stopped_is_tried_again() {
    check(&format!(
        r"
        {RUNNING}
        file
        fail a: stop-sandbox s0 = network   => read a
        read a: s0 ready; c#0 exit(0)       => -
        why a                               => stop pod sandbox failed (network) @1s
        due pod a @1s                       => run a: stop-sandbox s0
        done a
        # its stop succeeded, so it is not asked again, although it is still listed
        read a: s0 dead; c#0 exit(0)        => run a: tear-down > drop-cgroup kubepods/besteffort/poda
        "
    ));
}

#[test]
fn a_runtime_that_is_away_holds_an_end_back_until_it_answers() {
    check(&format!(
        r"
        {RUNNING}
        away                                => -
        file                                => -
        why a                               => runtime not ready (container runtime is down: connection refused)
        state a                             => terminating 30s
        +10s
        ready                               => read all | run a: stop c#0 20s > stop-sandbox s0
        "
    ));
    // it went away while a stop was under way
    check(&format!(
        r"
        {RUNNING}
        file
        fail a: stop c#0 30s = !unavailable => check | read a
        away                                => -
        read-failed a                       => check
        +1s
        ready                               => read all
        read all: a = s0 ready; c#0 running => run a: stop c#0 29s > stop-sandbox s0
        "
    ));
}

#[test]
fn a_stop_that_did_not_take_is_not_repeated_without_a_pause() {
    check(&format!(
        r"
        {RUNNING}
        file                                => run a: stop c#0 30s > stop-sandbox s0
        done a                              => read a
        read a: s0 ready; c#0 running       => -
        why a                               => stop container failed (container a.c#0 is still running after a successful StopContainer)
        due pod a @1s                       => run a: stop c#0 29s > stop-sandbox s0
        done a
        read a: s0 dead; c#0 exit(0)        => run a: tear-down > drop-cgroup kubepods/besteffort/poda
        "
    ));
}

#[test]
fn an_unknown_container_that_stays_unknown_is_not_killed_without_a_pause() {
    check(&format!(
        r"
        {RUNNING}
        read a: s0 ready; c#0 unknown       => run a: stop c#0 30s
        done a                              => read a
        read a: s0 ready; c#0 unknown       => -
        due pod a @10s                      => run a: stop c#0 30s
        "
    ));
}

#[test]
fn a_deadline_ends_a_pod_that_runs_at_its_second() {
    check(
        r"
        show status events timers
        pod a = spec: {activeDeadlineSeconds: 30, terminationGracePeriodSeconds: 5}
        started
        ready
        file a
        +2s
        # from when the agent first told of it
        read all: a = s0 ready; c#0 running => status a Running c=running | timer pod a @32s
        hint a
        read a: s0 ready; c#0 running       => -
        due pod a @32s
            => status a Failed(DeadlineExceeded) c=running
            => N a DeadlineExceeded: Pod was active on the node longer than the specified deadline
            => N a/c Killing: Stopping container c | run a: stop c#0 5s > stop-sandbox s0
        done a                              => read a
        read a: s0 dead; c#0 exit(143)
            => status a Failed(DeadlineExceeded) c=exit(143)
            => run a: tear-down > drop-cgroup kubepods/besteffort/poda
        ",
    );
    // also while it waits for something else, and also when it never ran
    check(
        r"
        pod a = spec: {activeDeadlineSeconds: 5}
        started
        ready
        file a
        read all: a = s0 ready
        looked img-c:1: no
        pulled img-c:1: denied
        due pod a @1s                       => -
        due pod a @5s                       => run a: stop-sandbox s0
        ",
    );
}
