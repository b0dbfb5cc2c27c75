//! RestartAllContainers from the exit that asks for it to the pod that runs again, also over a crash of the agent.

use super::check;

const POD: &str = "pod a = restart Never; init i; run c d; \
    c: {restartPolicy: Never, restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [42]}}]}";

const RUNNING: &str = r"
    started
    ready
    file a
    read all: a = s0 ready; i#0 exit(0); c#0 running; d#0 running
";

#[test]
fn all_go_and_all_come_back() {
    check(&format!(
        r"
        {POD}
        {RUNNING}
        show status
        read a: s0 ready; i#0 exit(0); c#0 exit(42); d#0 running
        => status a Running i=exit(0) c=exit(42) d=running
        => run a: stop d#0 2s > reset d#0 > reset i#0 > reset c#0
        done a        => read a
        read a: s0 ready
        => status a Running i=wait:RestartingAllContainers c=wait:RestartingAllContainers d=wait:RestartingAllContainers
        => look img-i:1
        looked img-i:1: yes => run a: dirs + cgroup
        done a        => run a: start i#0
        done a        => read a
        read a: s0 ready; i#0 exit(0)
        => status a Running i=exit(0) c=wait:RestartingAllContainers d=wait:RestartingAllContainers
        => look img-c:1 | look img-d:1
        looked img-c:1: yes => run a: start c#0?
        looked img-d:1: yes => -
        done a        => read a
        read a: s0 ready; i#0 exit(0); c#0 running
        => status a Running i=exit(0) c=running d=wait:RestartingAllContainers
        => run a: start d#0?
        "
    ));
}

#[test]
fn an_agent_that_died_in_between_finishes_it() {
    // whatever was reached, who asked is still there to tell
    for (left, expect) in [
        ("i#0 exit(0); c#0 exit(42); d#0 running", "stop d#0 2s > reset d#0 > reset i#0 > reset c#0"),
        ("i#0 exit(0); c#0 exit(42); d#0 exit(137)", "reset d#0 > reset i#0 > reset c#0"),
        ("i#0 exit(0); c#0 exit(42)", "reset i#0 > reset c#0"),
        ("c#0 exit(42)", "reset c#0"),
    ] {
        check(&format!(
            r"
            {POD}
            started
            ready
            file a
            read all: a = s0 ready; {left}  => run a: {expect}
            done a                          => read a
            read a: s0 ready                => look img-i:1
            "
        ));
    }
}

/// Found by the simulation: who was stopped for it looked like a pod that is done.
#[test]
fn a_pod_that_starts_over_for_its_sidecar_is_not_over_in_between() {
    check(
        r"
        pod a = restart Never; init s*; run c; s: {restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [42]}}]}
        started
        ready
        file a
        read all: a = s0 ready; s#0 running; c#0 running
        read a: s0 ready; s#0 exit(42); c#0 running  => run a: stop c#0 2s > reset c#0 > reset s#0
        hint a                                       => read a
        read a: s0 ready; s#0 exit(42); c#0 exit(0)  => -
        state a                                      => syncing
        done a                                       => read a
        read a: s0 ready                             => look img-s:1
        ",
    );
}

#[test]
fn a_step_that_failed_is_tried_again_and_the_rest_follows() {
    check(&format!(
        r"
        {POD}
        {RUNNING}
        read a: s0 ready; i#0 exit(0); c#0 exit(42); d#0 running
        => run a: stop d#0 2s > reset d#0 > reset i#0 > reset c#0
        fail a: reset d#0 = no                                   => read a
        read a: s0 ready; i#0 exit(0); c#0 exit(42); d#0 exit(137) => -
        why a                                                    => remove container failed (no) @10s
        due pod a @10s                     => run a: reset d#0 > reset i#0 > reset c#0
        done a                             => read a
        read a: s0 ready                   => look img-i:1
        "
    ));
}

#[test]
fn a_pod_that_is_removed_meanwhile_is_stopped_and_not_started_over() {
    check(&format!(
        r"
        {POD}
        {RUNNING}
        read a: s0 ready; i#0 exit(0); c#0 exit(42); d#0 running
        => run a: stop d#0 2s > reset d#0 > reset i#0 > reset c#0
        file                               => cancel a
        cut a 0                            => read a
        read a: s0 ready; i#0 exit(0); c#0 exit(42); d#0 running
        => run a: stop d#0 30s > stop-sandbox s0
        done a                             => read a
        read a: s0 dead; i#0 exit(0); c#0 exit(42); d#0 exit(0)
        => run a: tear-down > drop-cgroup kubepods/besteffort/poda
        "
    ));
}

#[test]
fn the_condition_holds_until_all_are_gone() {
    let run = check(&format!(
        r"
        {POD}
        {RUNNING}
        read a: s0 ready; i#0 exit(0); c#0 exit(42); d#0 running
        "
    ));
    assert_eq!(condition(&run), ("True".into(), Some("RestartAllContainersStarted".into())));
    let run = check(&format!(
        r"
        {POD}
        {RUNNING}
        read a: s0 ready; i#0 exit(0); c#0 exit(42); d#0 running
        done a
        read a: s0 ready
        "
    ));
    assert_eq!(condition(&run), ("False".into(), None));
}

fn condition(run: &super::script::Script) -> (String, Option<String>) {
    let status = run.state.pods[&"a".into()].status.clone().expect("a status");
    let conditions = status.conditions.clone().unwrap_or_default();
    let found = conditions.into_iter().find(|c| c.type_ == "AllContainersRestarting").expect("the condition");
    (found.status, found.reason)
}
