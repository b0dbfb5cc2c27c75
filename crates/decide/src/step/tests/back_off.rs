//! Containers that crash: the waits, and what users see of them.

use std::time::Duration;

use model::node::NodeConfig;

use super::{check, check_on};

#[test]
fn the_first_restart_is_at_once_then_delays_double() {
    check(
        r"
        show timers
        started
        ready
        file a
        read all: a = s0 ready; c#0 running
        +5s
        read a: s0 ready; c#0 exit(1)               => look img-c:1
        looked img-c:1: yes                         => run a: dirs + cgroup
        done a                                      => run a: start c#1?
        done a                                      => read a
        read a: s0 ready; c#0 exit(1); c#1 running
        # it ends again, and was seen half a second later
        +2.5s
        read a: s0 ready; c#0 exit(1) 2.5s; c#1 exit(1) 0.5s
            => run a: remove c#0? | timer pod a @17s
        done a                                      => read a
        read a: s0 ready; c#1 exit(1) 0.5s          => -
        why a                                       => c: crash back-off 10s exit(1) restarts=1 @17s
        due pod a @17s                              => look img-c:1
        looked img-c:1: yes                         => run a: start c#2?
        done a                                      => read a
        read a: s0 ready; c#2 running
        +3s
        read a: s0 ready; c#2 exit(0)               => timer pod a @40s
        why a                                       => c: crash back-off 20s exit(0) restarts=2 @40s
        ",
    );
}

#[test]
fn every_delay_up_to_the_maximum() {
    let mut script = String::from(
        "show timers\nstarted\nready\nfile a\nread all: a = s0 ready; c#0 running\n+1s\nread a: s0 ready; c#0 exit(1)\nlooked img-c:1: yes\ndone a\n",
    );
    let mut now = 1;
    for (restart, delay) in [10, 20, 40, 80, 160, 300, 300].into_iter().enumerate() {
        let n = restart + 1;
        // Long enough to confirm that the previous instance is gone, whatever the length of the confirmation delay.
        script +=
            &format!("done a\nread a: s0 ready; c#{n} running\n+300s\nread a: s0 ready; c#{n} exit(1)\n");
        now += 300 + delay;
        script += &format!("=> timer pod a @{now}s\n");
        script +=
            &format!("due pod a @{now}s => look img-c:1\nlooked img-c:1: yes => run a: start c#{}?\n", n + 1);
    }
    check(&script);
}

#[test]
fn a_node_may_have_its_own_maximum() {
    let config = NodeConfig { crash_back_off_max: Duration::from_secs(4), ..Default::default() };
    check_on(
        config,
        r"
        show timers
        started
        ready
        file a
        read all: a = s0 ready; c#0 running
        read a: s0 ready; c#0 exit(1)
        looked img-c:1: yes
        done a
        done a
        read a: s0 ready; c#1 exit(1)               => timer pod a @4s
        due pod a @4s
        looked img-c:1: yes
        done a
        read a: s0 ready; c#1 exit(1); c#2 exit(1)  => run a: remove c#1? | timer pod a @8s
        ",
    );
}

#[test]
fn ten_quiet_minutes_are_forgiven() {
    check(
        r"
        started
        ready
        file a
        read all: a = s0 ready; c#0 running
        read a: s0 ready; c#0 exit(1)
        looked img-c:1: yes
        done a
        done a
        read a: s0 ready; c#1 running
        +601s
        read a: s0 ready; c#1 exit(1)               => look img-c:1
        looked img-c:1: yes                         => run a: start c#2?
        done a
        read a: s0 ready; c#2 exit(1)               => -
        why a                                       => c: crash back-off 10s exit(1) restarts=2 @611s
        ",
    );
}

#[test]
fn the_wait_is_shown_and_told_once() {
    check(
        r"
        show events status
        started
        ready
        file a
        read all: a = s0 ready; c#0 running         => status a Running c=running
        read a: s0 ready; c#0 exit(1)               => status a Running c=exit(1) | look img-c:1
        looked img-c:1: yes
            => N a/c Pulled: Container image ^img-c:1^ already present on machine and can be accessed by the pod
            => run a: dirs + cgroup
        done a                                      => run a: start c#1?
        done a
            => N a/c Created: Container created | N a/c Started: Container started | read a
        read a: s0 ready; c#1 running               => status a Running c=running
        +1s
        read a: s0 ready; c#1 exit(1)
            => status a Running c=exit(1)
            => W a/c BackOff: Back-off restarting failed container c in pod a_ns(a)
            => status a Running c=wait:CrashLoopBackOff
        hint a                                      => read a
        +1s
        read a: s0 ready; c#1 exit(1) 1s            => -
        timer pod a                                 => -
        due pod a @11s                              => look img-c:1
        "
        .replace('^', "\"")
        .as_str(),
    );
}

#[test]
fn the_message_names_delay_container_and_pod() {
    let run = check(
        r"
        started
        ready
        file a
        read all: a = s0 ready; c#0 running
        read a: s0 ready; c#0 exit(1)
        looked img-c:1: yes
        done a
        done a
        read a: s0 ready; c#1 exit(1)
        ",
    );
    let failure = &run.state.pods[&"a".into()].ledger.start_failures["c"];
    assert_eq!(failure.reason, model::Reason::CrashLoopBackOff);
    assert_eq!(failure.message, "back-off 10s restarting failed container=c pod=a_ns(a)");
}

#[test]
fn init_containers_and_sidecars_back_off_too() {
    check(
        r"
        pod a = init s* i; run c
        started
        ready
        file a
        read all: a = s0 ready; s#0 running; i#0 exit(1)         => look img-i:1
        looked img-i:1: yes
        done a                                                   => run a: start i#1
        done a
        read a: s0 ready; s#0 running; i#1 exit(1)
        why a                                                    => c: waits for i | i: crash back-off 10s exit(1) restarts=1 @10s
        ".replace(" | i:", "; i:").as_str(),
    );
    check(
        r"
        pod a = init s*; run c
        started
        ready
        file a
        read all: a = s0 ready; s#0 exit(0); c#0 running         => look img-s:1
        looked img-s:1: yes
        done a                                                   => run a: start s#1?
        done a
        read a: s0 ready; s#1 exit(0); c#0 running
        why a                                                    => s: crash back-off 10s exit(0) restarts=1 @10s
        ",
    );
}

#[test]
fn a_failed_start_is_tried_again_after_ten_seconds() {
    for (how, reason) in [
        ("files: no disk", "CreateContainerConfigError (no disk)"),
        ("create: bad", "CreateContainerError (bad)"),
    ] {
        check(&format!(
            r"
            show timers
            started
            ready
            file a
            read all: a = s0 ready                   => look img-c:1
            looked img-c:1: yes
            done a                                   => run a: start c#0?
            +1s
            fail a: start c#0 = {how}                => read a
            read a: s0 ready                         => timer pod a @11s
            why a                                    => c: {reason} @11s
            due pod a @11s                           => look img-c:1
            looked img-c:1: yes                      => run a: start c#0?
            ",
        ));
    }
}

#[test]
fn one_that_was_created_and_did_not_start_is_a_crash() {
    check(
        r"
        show events
        started
        ready
        file a
        read all: a = s0 ready
        looked img-c:1: yes
        done a                                      => run a: start c#0?
        fail a: start c#0 = start: no such file
            => N a/c Created: Container created | W a/c Failed: Error: no such file | read a
        read a: s0 ready; c#0 exit(128)             => look img-c:1
        looked img-c:1: yes
        why a                                       => c: starting
        fail a: start c#1 = start: no such file
        read a: s0 ready; c#1 exit(128)
        why a                                       => c: crash back-off 10s exit(128) restarts=1 @10s
        ",
    );
}

#[test]
fn one_that_stays_created_is_not_made_again_and_again() {
    check(
        r"
        started
        ready
        file a
        read all: a = s0 ready
        looked img-c:1: yes
        done a
        fail a: start c#0 = start: no such file
        read a: s0 ready; c#0 created               => run a: remove c#0?
        done a                                      => read a
        read a: s0 ready                            => -
        why a                                       => c: RunContainerError (no such file) @10s
        due pod a @10s                              => look img-c:1
        looked img-c:1: yes                         => run a: start c#1?
        ",
    );
    // nor when one before it ended long ago: that end says nothing about this start
    check(
        r"
        started
        ready
        file a
        read all: a = s0 ready; c#0 exit(1) 0s age=900
        +900s
        looked img-c:1: yes
        done a                                      => run a: start c#1?
        fail a: start c#1 = start: no such file
        read a: s0 ready; c#0 exit(1) 900s; c#1 created => run a: remove c#1?
        done a                                      => read a
        read a: s0 ready; c#0 exit(1) 900s          => -
        why a                                       => c: RunContainerError (no such file) @910s
        due pod a @910s                             => look img-c:1
        looked img-c:1: yes                         => run a: start c#2?
        fail a: start c#2 = start: no such file
        read a: s0 ready; c#0 exit(1) 910s          => -
        why a                                       => c: RunContainerError (no such file) @920s
        ",
    );
}

#[test]
fn a_changed_definition_runs_whatever_the_policy() {
    // what the policy would take for the end of the pod is not shown as such
    for (policy, code) in [("Always", 137), ("OnFailure", 137), ("OnFailure", 0), ("Never", 137)] {
        check(&format!(
            r"
            show status probes
            pod a = restart {policy}
            started
            ready
            file a
            read all: a = s0 ready; c#0 running      => status a Running c=running
            pod a = restart {policy}; c: {{image: img-c:2}}
            file a                                   => run a: stop c#0 30s | keep probes a
            done a                                   => read a
            read a: s0 ready; c#0 exit({code})       => status a Running c=wait:ContainerCreating | look img-c:2
            looked img-c:2: no                       => pull img-c:2
            pulled img-c:2: ok                       => run a: dirs + cgroup
            done a                                   => run a: start c#1?
            done a                                   => read a
            "
        ));
    }
}

#[test]
fn a_changed_definition_that_cannot_run_yet_waits_whatever_the_policy() {
    let killed = r"
        show status
        pod a = restart Never
        started
        ready
        file a
        read all: a = s0 ready; c#0 running
        pod a = restart Never; c: {image: img-c:2}
        file a
        done a
        ";
    check(&format!(
        r"{killed}
        read a: s0 ready; c#0 exit(137)          => status a Running c=wait:ContainerCreating | look img-c:2
        looked img-c:2: no                       => pull img-c:2
        pulled img-c:2: denied                   => status a Running c=wait:ErrImagePull
        due pod a @1s                            => status a Running c=wait:ImagePullBackOff
        due pod a @10s                           => look img-c:2
        looked img-c:2: yes                      => status a Running c=wait:ContainerCreating | run a: dirs + cgroup
        done a                                   => run a: start c#1?
        "
    ));
    // its sandbox died with it, and a pod that runs once gets no second one
    check(&format!(
        r"{killed}
        read a: s0 dead; c#0 exit(137)           => status a Failed c=exit(137) | run a: stop-sandbox s0
        "
    ));
    check(&format!(
        r"{killed}
        read a: s0 ready; c#0 exit(137)          => status a Running c=wait:ContainerCreating | look img-c:2
        file                                     => status a Running c=exit(137) | run a: stop-sandbox s0
        done a                                   => read a
        read a: s0 dead; c#0 exit(137)           => status a Failed c=exit(137) | run a: tear-down > drop-cgroup kubepods/besteffort/poda
        "
    ));
}
