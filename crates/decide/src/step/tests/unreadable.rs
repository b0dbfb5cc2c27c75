//! Pods whose objects can't be decoded cost themselves only.

use model::node::NodeConfig;
use model::pod::Source;

use super::check_on;
use super::script::Script;

fn check(script: &str) -> Script {
    check_on(NodeConfig { sources: vec![Source::Api], ..Default::default() }, script)
}

/// After a restart: what runs is neither stopped nor swept, and goes only when its object goes.
#[test]
fn what_runs_of_a_pod_that_was_never_read_is_left_alone() {
    check(
        r"
        started
        ready
        read all: a = s0 ready; c#0 running / x = s1 ready; c#0 running
        api-unreadable a                    => -
        api b                               => run x: stop c#0 2s > stop-sandbox s1 | run b: dirs + cgroup > sandbox#0 | look img-c:1
        leftovers dirs=a,y logs=ns_a_a      => sweep dirs=y
        swept
        timer full                          => read all
        read all: a = s0 ready; c#0 running / x = s1 ready; c#0 running
        counted                             => orphans 1
        gone a                              => run a: stop c#0 2s > stop-sandbox s0
        ",
    );
    // The next list is without it.
    check(
        r"
        started
        ready
        read all: a = s0 ready; c#0 running
        api-unreadable a
        api                                 => -
        api-unreadable
        api                                 => run a: stop c#0 2s > stop-sandbox s0
        ",
    );
    // It can be read after all: it is the same pod.
    check(
        r"
        started
        ready
        read all: a = s0 ready; c#0 running
        api-unreadable a
        api
        api-unreadable
        api a
        counted                             => -
        why a                               => running
        ",
    );
}

#[test]
fn what_is_known_of_an_older_version_goes_on() {
    check(
        r"
        up
        api a b
        done a
        read a: s0 ready; c#0 running
        unreadable a                        => -
        why a                               => running
        api-unreadable a
        api b                               => -
        why a                               => running
        api-unreadable
        api b                               => run a: stop c#0 30s > stop-sandbox s0
        ",
    );
}

#[test]
fn it_is_told_once() {
    check(
        r"
        show events logs
        up
        unreadable a
            => log The object of pod a_ns(a) can't be read, so nothing is done for it or to it: spec.x: wrong
            => W a UnreadablePod: The object of pod a_ns(a) can't be read, so nothing is done for it or to it: spec.x: wrong
        api-unreadable a                    => -
        api                                 => -
        unreadable a                        => -
        ",
    );
}
