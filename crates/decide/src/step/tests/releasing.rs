//! After the last container: what is released, what is kept, and who may come after.

use model::node::NodeConfig;
use model::pod::Source;

use super::{check, check_on};
use crate::Event;

const RUNNING: &str = r"
    started
    ready
    file a
    read all: a = s0 ready; c#0 running
";

#[test]
fn a_failed_release_is_tried_again_from_its_beginning() {
    check(&format!(
        r"
        show events
        {RUNNING}
        file
        done a
        read a: s0 dead; c#0 exit(0)
        fail a: tear-down = busy            => W a FailedKillPod: error killing pod: busy
        why a                               => tear down volumes failed (busy) @1s
        state a                             => terminated
        due pod a @1s                       => run a: tear-down > drop-cgroup kubepods/besteffort/poda
        fail a: drop-cgroup kubepods/besteffort/poda = busy
        due pod a @3s                       => run a: tear-down > drop-cgroup kubepods/besteffort/poda
        done a                              => run a: remove c#0 > remove-sandbox s0 > remove-dir + remove-logs ns_a_a
        fail a: remove-sandbox s0 = no      => node ContainerGCFailed: no | read a
        read a: s0 dead                     => -
        due pod a @4s                       => run a: remove-sandbox s0 > remove-dir + remove-logs ns_a_a
        done a
        read a:                             => forget a
        "
    ));
}

#[test]
fn a_pod_that_is_wanted_again_comes_back_when_it_has_ended() {
    check(&format!(
        r"
        {RUNNING}
        file                                => run a: stop c#0 30s > stop-sandbox s0
        file a                              => -
        done a                              => read a
        read a: s0 dead; c#0 exit(0)        => run a: tear-down > drop-cgroup kubepods/besteffort/poda
        done a                              => forget a | run a: stop-sandbox s0
        state a                             => syncing
        counted                             => static-back 1
        done a
        read a: s0 dead; c#0 exit(0)        => run a: dirs + cgroup > sandbox#1 | look img-c:1
        looked img-c:1: yes
        done a
        read a: s0 dead; s1 ready; c#0 exit(0) @s0 => run a: start c#1?
        "
    ));
}

#[test]
fn wanted_again_and_not_after_all() {
    check(&format!(
        r"
        {RUNNING}
        file
        file a
        file                                => -
        done a
        read a: s0 dead; c#0 exit(0)
        done a                              => run a: remove c#0 > remove-sandbox s0 > remove-dir + remove-logs ns_a_a
        done a
        read a:                             => forget a
        "
    ));
}

#[test]
fn it_comes_back_as_it_was_last_wanted() {
    check(&format!(
        r"
        {RUNNING}
        file
        file a
        pod a = c: {{image: img-c:2}}
        file a                              => -
        done a
        read a: s0 dead; c#0 exit(0)
        done a
        done a
        read a: s0 dead; c#0 exit(0)        => run a: dirs + cgroup > sandbox#1 | look img-c:2
        "
    ));
}

#[test]
fn it_may_come_back_while_it_is_being_dropped() {
    check(&format!(
        r"
        {RUNNING}
        file
        done a
        read a: s0 dead; c#0 exit(0)
        done a                              => run a: remove c#0 > remove-sandbox s0 > remove-dir + remove-logs ns_a_a
        file a                              => -
        # what was read before the drop does not count
        done a                              => read a
        why a                               => releasing
        read a:                             => forget a | run a: dirs + cgroup > sandbox#0 | look img-c:1
        "
    ));
}

#[test]
fn an_orphan_that_is_wanted_after_all_comes_back() {
    check(
        r"
        started
        ready
        file
        read all: a = s0 ready; c#0 running => run a: stop c#0 2s > stop-sandbox s0
        file a                              => -
        done a
        read a: s0 dead; c#0 exit(0)
        done a                              => forget a | run a: stop-sandbox s0
        state a                             => syncing
        ",
    );
}

/// `b` replaces `a` under the same name.
const SAME_NAME: &str = "pod b = meta: {name: a}";

#[test]
fn a_static_pod_waits_for_the_end_of_its_namesake() {
    check(&format!(
        r"
        {SAME_NAME}
        {RUNNING}
        file b                              => run a: stop c#0 30s > stop-sandbox s0
        why b                               => name taken by a_ns(a)
        done a                              => read a
        read a: s0 dead; c#0 exit(0)        => run a: tear-down > drop-cgroup kubepods/besteffort/poda
        # volumes and cgroup are released: the name is free, whatever else is left
        done a
            => run a: remove c#0 > remove-sandbox s0 > remove-dir + remove-logs ns_a_a
            => run b: dirs + cgroup > sandbox#0 | look img-c:1
        fail a: remove c#0 = no
        state b                             => syncing
        "
    ));
}

#[test]
fn three_of_one_name_go_in_order() {
    check(&format!(
        r"
        {SAME_NAME}
        pod d = meta: {{name: a}}
        {RUNNING}
        file b
        file d                              => run b: tear-down > drop-cgroup kubepods/besteffort/podb
        # the second goes before it ever ran, and makes no place by that
        done b                              => run b: remove-dir + remove-logs ns_a_b
        done b                              => forget b
        why d                               => name taken by a_ns(a)
        done a
        read a: s0 dead; c#0 exit(0)
        done a
            => run a: remove c#0 > remove-sandbox s0 > remove-dir + remove-logs ns_a_a
            => run d: dirs + cgroup > sandbox#0 | look img-c:1
        "
    ));
}

#[test]
fn of_two_sources_the_first_has_the_name() {
    let config = NodeConfig { sources: vec![Source::File, Source::Http], ..Default::default() };
    check_on(
        config,
        &format!(
            r"
            {SAME_NAME}
            pod d = meta: {{name: a}}; restart Never
            started
            ready
            file a
            read all: a = s0 ready; c#0 running
            http b
            why b                           => name taken by a_ns(a)
            file d                          => run a: stop c#0 30s > stop-sandbox s0
            why d                           => name taken by a_ns(a)
            done a
            read a: s0 dead; c#0 exit(0)
            done a
                => run a: remove c#0 > remove-sandbox s0 > remove-dir + remove-logs ns_a_a
                => run b: dirs + cgroup > sandbox#0 | look img-c:1
            why d                           => name taken by a_ns(b)
            "
        ),
    );
}

#[test]
fn an_orphan_of_the_same_name_ends_first() {
    check(&format!(
        r"
        {SAME_NAME}
        started
        ready
        file b
        read all: a = s0 ready; c#0 running
            => run a: stop c#0 2s > stop-sandbox s0
        why b                               => name taken by a_ns(a)
        done a
        read a: s0 dead; c#0 exit(0)
        done a
            => run a: remove c#0 > remove-sandbox s0 > remove-dir + remove-logs ns_a_a
            => run b: dirs + cgroup > sandbox#0 | look img-c:1
        "
    ));
}

#[test]
fn what_nobody_has_claimed_yet_holds_its_name_too() {
    let config = NodeConfig { sources: vec![Source::File, Source::Http], ..Default::default() };
    let unclaimed = format!(
        r"
        {SAME_NAME}
        started
        ready
        read all: a = s0 ready; c#0 running
        file b                              => -
        why b                               => name taken by a_ns(a)
        "
    );
    // nobody wants it
    check_on(
        config.clone(),
        &format!("{unclaimed}\nhttp => run a: stop c#0 2s > stop-sandbox s0\nwhy b => name taken by a_ns(a)"),
    );
    // somebody wants it: it runs, so the other one waits
    check_on(
        config.clone(),
        &format!(
            r"
            {unclaimed}
            http a                          => -
            why a                           => running
            why b                           => name taken by a_ns(a)
            http                            => run a: stop c#0 30s > stop-sandbox s0
            done a
            read a: s0 dead; c#0 exit(0)
            done a
                => run a: remove c#0 > remove-sandbox s0 > remove-dir + remove-logs ns_a_a
                => run b: dirs + cgroup > sandbox#0 | look img-c:1
            "
        ),
    );
    // it vanishes
    check_on(
        config,
        &format!(
            r"
            {unclaimed}
            hint-all
            read all:                       => -
            due confirm @1s                 => read all
            read all @1s:                   => run b: dirs + cgroup > sandbox#0 | look img-c:1
            "
        ),
    );
}

#[test]
fn pods_of_the_api_do_not_wait_for_a_name() {
    let config = NodeConfig { sources: vec![Source::Api], ..Default::default() };
    check_on(
        config,
        &format!(
            r"
            {SAME_NAME}
            started
            ready
            api a
            read all: a = s0 ready; c#0 running
            api b
                => run a: stop c#0 30s > stop-sandbox s0
                => run b: dirs + cgroup > sandbox#0 | look img-c:1
            "
        ),
    );
}

#[test]
fn a_waiting_pod_that_goes_never_ran() {
    check(&format!(
        r"
        {SAME_NAME}
        {RUNNING}
        file b                              => run a: stop c#0 30s > stop-sandbox s0
        file                                => run b: tear-down > drop-cgroup kubepods/besteffort/podb
        done b                              => run b: remove-dir + remove-logs ns_a_b
        done b                              => forget b
        state a                             => terminating 30s
        "
    ));
}

#[test]
fn a_finished_pod_does_not_hold_its_name() {
    let config = NodeConfig { sources: vec![Source::File, Source::Http], ..Default::default() };
    check_on(
        config,
        &format!(
            r"
            {SAME_NAME}
            pod a = restart Never
            started
            ready
            file a
            read all: a = s0 dead; c#0 exit(0)
            http b
            why b                           => name taken by a_ns(a)
            done a
            read a: s0 dead; c#0 exit(0)    => run a: tear-down > drop-cgroup kubepods/besteffort/poda
            done a                          => run b: dirs + cgroup > sandbox#0 | look img-c:1
            "
        ),
    );
}

#[test]
fn a_hook_that_was_answered_without_tls_is_told() {
    let mut script = check(&format!("show events\n{RUNNING}"));
    let event = Event::HookFellBackToHttp { uid: "a".into(), host: "10.0.0.1:8443".into() };
    let expect = "W a LifecycleHTTPFallback: request to HTTPS lifecycle hook 10.0.0.1:8443 got HTTP response, \
                  retry with HTTP succeeded";
    assert_eq!(script.event(event), [expect]);
}
