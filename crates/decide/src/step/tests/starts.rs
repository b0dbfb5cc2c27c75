//! Starts whose outcome is not known, or not shown yet.

use super::check;

/// The runtime creates the container, and the connection breaks while it starts it.
const UNHEARD: &str = r"
    show timers clocks
    started
    ready
    file a
    read all: a = s0 ready
    looked img-c:1: yes
    done a                             => run a: start c#0?
    fail a: start c#0 = start: !connection reset
    read a: s0 ready; c#0 created
    why a                              => c: starting
";

#[test]
fn a_container_of_whose_start_nothing_was_heard_is_waited_for() {
    // Another instance would do the work of the first one again.
    for late in ["c#0 running", "c#0 exit(0)"] {
        check(&format!(
            r"
            pod a = restart Never
            {UNHEARD}
            due start a @2s                => read a | timer start a @4s
            read a @2s: s0 ready; c#0 created => -
            due start a @4s                => read a | timer start a @6s
            read a @4s: s0 ready; {late}
            due start a @6s                => read a
            read a @6s: s0 ready; {late}   => -
            "
        ));
    }
}

#[test]
fn a_container_that_is_not_started_for_long_is_replaced() {
    check(&format!(
        r"
        {UNHEARD}
        due start a @2s                    => read a | timer start a @4s
        due start a @4s                    => timer start a @6s
        due start a @6s                    => timer start a @8s
        due start a @8s                    => timer start a @10s
        # an observation that began before the ten seconds were over tells nothing
        read a @8s: s0 ready; c#0 created  => -
        due start a @10s                   => read a
        read a @9.9s: s0 ready; c#0 created => -
        read a @10s: s0 ready; c#0 created => run a: remove c#0?
        done a                             => read a
        "
    ));
}

#[test]
fn a_runtime_that_refuses_a_start_does_not_start_later() {
    check(
        r"
        started
        ready
        file a
        read all: a = s0 ready
        looked img-c:1: yes
        done a                             => run a: start c#0?
        fail a: start c#0 = start: no such file
        read a: s0 ready; c#0 created      => run a: remove c#0?
        ",
    );
}

#[test]
fn an_agent_that_comes_back_waits_for_the_starts_of_the_one_before_it() {
    check(
        r"
        show timers clocks
        started
        ready
        file a
        read all: a = s0 ready; c#0 created
        why a                              => c: starting
        due start a @2s                    => read a | timer start a @4s
        read a @2s: s0 ready; c#0 running  => -
        why a                              => running
        due start a @4s                    => read a
        ",
    );
}

#[test]
fn every_start_is_followed_by_one_more_observation() {
    check(
        r"
        started
        ready
        file a
        read all: a = s0 ready
        looked img-c:1: yes
        done a                             => run a: start c#0?
        +1s
        done a                             => read a
        # the list is older than the exit that the runtime told of before
        read a @1s: s0 ready; c#0 running  => -
        due start a @3s                    => read a
        read a @3s: s0 ready; c#0 exit(1)  => look img-c:1
        ",
    );
}
