//! Runtime classes, and pods with users of their own.

use model::node::NodeConfig;

use super::check_on;
use super::script::Script;

/// With the gate that distinguishes images by their runtime handlers.
#[track_caller]
fn check(script: &str) -> Script {
    let features = [("RuntimeClassInImageCriApi".to_owned(), true)].into();
    check_on(NodeConfig { features, ..NodeConfig::default() }, script)
}

#[test]
fn without_the_gate_the_runtime_is_not_told_whose_images_they_are() {
    check_on(
        NodeConfig::default(),
        r"
        pod a = spec: {runtimeClassName: fast}
        pod b =
        classes fast=crun
        up
        file a b
        => run a: dirs + cgroup > sandbox#0 by crun | look img-c:1
        => run b: dirs + cgroup > sandbox#0
        looked img-c:1: no            => pull img-c:1
        ",
    );
}

#[test]
fn the_class_chooses_the_handler_and_its_images() {
    check(
        r"
        pod a = spec: {runtimeClassName: fast}
        pod b =
        classes fast=crun
        up
        file a b
        => run a: dirs + cgroup > sandbox#0 by crun | look img-c:1 crun
        => run b: dirs + cgroup > sandbox#0 | look img-c:1
        # whose storage it is for decides who is served
        looked img-c:1 crun: no       => pull img-c:1 crun
        looked img-c:1: yes           => -
        pulled img-c:1 crun: ok       => -
        done a                        => read a
        read a: s0 ready by=crun      => run a: start c#0?
        ",
    );
}

#[test]
fn a_class_that_nobody_knows_is_waited_for() {
    check(
        r"
        show events
        pod a = spec: {runtimeClassName: fast}
        up
        file a
        => W a FailedCreatePodSandBox: Failed to create pod sandbox: runtimeclass.node.k8s.io 'fast' not found
        why a    => create pod sandbox failed (runtimeclass.node.k8s.io 'fast' not found)
        classes slow=kata
        => W a FailedCreatePodSandBox: Failed to create pod sandbox: runtimeclass.node.k8s.io 'fast' not found
        # told again what is known
        classes slow=kata             => -
        classes slow=kata fast=crun   => run a: dirs + cgroup > sandbox#0 by crun | look img-c:1 crun
        "
        .replace('\'', "\"")
        .as_str(),
    );
}

#[test]
fn without_a_change_a_missing_class_is_looked_for_at_the_usual_time() {
    check(
        r"
        pod a = spec: {runtimeClassName: fast}
        up
        file a                        => -
        due pod a @10s                => -
        due pod a @20s                => -
        ",
    );
}

#[test]
fn pods_without_a_class_do_not_care() {
    check(
        r"
        up
        file a                        => run a: dirs + cgroup > sandbox#0 | look img-c:1
        classes fast=crun             => -
        classes                       => -
        ",
    );
}

#[test]
fn a_class_that_goes_takes_nothing_from_who_runs() {
    check(
        r"
        pod a = spec: {runtimeClassName: fast}
        started
        ready
        classes fast=crun
        file a
        read all: a = s0 ready by=crun; c#0 running
        classes                       => -
        # not even a restart
        read a: s0 ready by=crun; c#0 exit(1)  => look img-c:1 crun
        looked img-c:1 crun: yes               => run a: dirs + cgroup
        done a                                 => run a: start c#1?
        ",
    );
}

#[test]
fn a_changed_handler_counts_for_the_next_sandbox() {
    check(
        r"
        pod a = spec: {runtimeClassName: fast}
        started
        ready
        classes fast=crun
        file a
        read all: a = s0 ready by=crun; c#0 running
        classes fast=kata                              => -
        read a: s0 dead by=crun; c#0 exit(137)         => run a: stop-sandbox s0
        done a                                         => read a
        read a: s0 dead by=crun; c#0 exit(137)         => run a: dirs + cgroup > sandbox#1 by kata | look img-c:1 kata
        ",
    );
}

#[test]
fn the_clusters_class_counts_more_than_a_files() {
    check_on(
        NodeConfig { sources: vec![model::pod::Source::Api], ..Default::default() },
        r"
        pod a = spec: {runtimeClassName: fast}
        up
        classes fast=crun
        api-classes fast=kata
        api a                         => run a: dirs + cgroup > sandbox#0 by kata | look img-c:1
        ",
    );
}

const OWN_USERS: &str = r"
    pod a = spec: {hostUsers: false}
    pod b = spec: {hostUsers: false}
    started
    ready handlers=default,crun
    read all:
";

#[test]
fn ids_are_on_record_before_the_sandbox_is_made() {
    check(&format!(
        r"
        {OWN_USERS}
        file a   => run a: dirs + cgroup > ids 1 > sandbox#0 | look img-c:1
        ids      => a=1
        file a b => run b: dirs + cgroup > ids 2 > sandbox#0
        ids      => a=1 b=2
        "
    ));
}

#[test]
fn a_pod_that_shares_the_hosts_users_gets_none() {
    check(
        r"
        pod a = spec: {hostUsers: true}
        pod b =
        started
        ready handlers=default
        read all:
        file a b
        ids      => none
        ",
    );
}

#[test]
fn ids_are_kept_until_the_directory_is_gone() {
    check(&format!(
        r"
        {OWN_USERS}
        file a
        looked img-c:1: yes
        done a
        read a: s0 ready
        done a
        read a: s0 ready; c#0 running
        file
        ids                             => a=1
        done a
        read a: s0 dead; c#0 exit(0)
        done a                          => run a: remove c#0 > remove-sandbox s0 > remove-dir + remove-logs ns_a_a
        ids                             => a=1
        file b                          => run b: dirs + cgroup > ids 2 > sandbox#0 | look img-c:1
        done a
        read a:                         => forget a
        ids                             => b=2
        "
    ));
}

#[test]
fn what_is_found_on_disk_is_used_again() {
    let mut run = super::script::Script::new(NodeConfig::default());
    let ids = |block: u32| model::cri::IdMapping { host_id: block * 65536, container_id: 0, length: 65536 };
    // as the engine does before the first event: pod a and one that nobody knows any more
    run.state.user_ids = [("a".into(), Some(ids(2))), ("gone".into(), Some(ids(1)))].into();
    for (line, expect) in [
        ("pod a = spec: {hostUsers: false}", ""),
        ("pod b = spec: {hostUsers: false}", ""),
        ("started", "check+driver | read all"),
        ("ready handlers=default", ""),
        ("file a b", ""),
        (
            "read all:",
            "run a: dirs + cgroup > ids 2 > sandbox#0 | look img-c:1 | run b: dirs + cgroup > ids 3 > sandbox#0",
        ),
        ("ids", "a=2 b=3 gone=1"),
        // its directory is there still
        ("leftovers dirs=a,b,gone", "sweep dirs=gone"),
        ("swept busy", ""),
        ("ids", "a=2 b=3 gone=1"),
        ("due sweep", ""),
        ("leftovers dirs=a,b,gone", "sweep dirs=gone"),
        ("swept", ""),
        ("ids", "a=2 b=3"),
    ] {
        assert_eq!(run.line(line).join(" | "), expect, "{line}");
    }
}

/// One failed look at the pods' directories frees nothing: what is in them may still run.
#[test]
fn a_listing_that_fails_frees_no_ids() {
    let mut run = super::script::Script::new(NodeConfig::default());
    let ids = |block: u32| model::cri::IdMapping { host_id: block * 65536, container_id: 0, length: 65536 };
    run.state.user_ids = [("old".into(), Some(ids(1))), ("bad".into(), None)].into();
    for (line, expect) in [
        ("up", "check+driver | read all"),
        ("file", ""),
        ("leftovers incomplete", ""),
        ("ids", "bad=? old=1"),
        // What is left elsewhere of such a pod is removed, and its directory is still not known to be gone.
        ("due sweep", ""),
        (
            "leftovers incomplete logs=ns_old_old cgroups=kubepods/podbad",
            "sweep logs=ns_old_old cgroups=kubepods/podbad",
        ),
        ("swept", ""),
        ("ids", "bad=? old=1"),
        ("due sweep", ""),
        ("leftovers dirs=bad", "sweep dirs=bad"),
        ("ids", "bad=?"),
        ("swept", ""),
        ("ids", "none"),
    ] {
        assert_eq!(run.line(line).join(" | "), expect, "{line}");
    }
}

/// Some ids are in use by a pod whose record can't be read. Whoever got them as well could read that pod's files.
#[test]
fn a_record_that_can_not_be_read_frees_no_ids() {
    let mut run = super::script::Script::new(NodeConfig::default());
    let ids = |block: u32| model::cri::IdMapping { host_id: block * 65536, container_id: 0, length: 65536 };
    run.state.user_ids = [("a".into(), Some(ids(2))), ("bad".into(), None)].into();
    let why = "create pod sandbox failed (can't allocate a user namespace: the record of the ids of pod bad can't be \
               read, so any id may be in use until that pod's directory is gone)";
    for (line, expect) in [
        ("pod a = spec: {hostUsers: false}", ""),
        ("pod b = spec: {hostUsers: false}", ""),
        ("started", "check+driver | read all"),
        ("ready handlers=default", ""),
        ("file a b", ""),
        ("read all:", "run a: dirs + cgroup > ids 2 > sandbox#0 | look img-c:1"),
        ("why b", why),
        ("ids", "a=2 bad=?"),
    ] {
        assert_eq!(run.line(line).join(" | "), expect, "{line}");
    }
}

/// A record is read again: the disk may have failed for a moment only.
#[test]
fn a_record_that_can_be_read_again_is_taken() {
    let mut run = super::script::Script::new(NodeConfig::default());
    run.state.user_ids = [("bad".into(), None)].into();
    for (line, expect) in [
        ("pod b = spec: {hostUsers: false}", ""),
        ("started", "check+driver | read all"),
        ("ready handlers=default", ""),
        ("file b", ""),
        ("read all:", ""),
        ("due user-ids @1s", "read ids"),
        // of a pod that is forgotten meanwhile: its ids are free
        ("ids-read bad=? gone=2", ""),
        ("ids", "bad=?"),
        ("due user-ids @3s", "read ids"),
        ("ids-read bad=1", "run b: dirs + cgroup > ids 2 > sandbox#0 | look img-c:1"),
        ("ids", "b=2 bad=1"),
    ] {
        assert_eq!(run.line(line).join(" | "), expect, "{line}");
    }
}

#[test]
fn nothing_is_given_when_the_pods_directories_can_not_be_listed() {
    let mut run = super::script::Script::new(NodeConfig::default());
    run.state.user_id_listing_failed = true;
    let why = "create pod sandbox failed (can't allocate a user namespace: the directories of pods could not be \
               listed, so any id may be in use)";
    for (line, expect) in [
        ("pod b = spec: {hostUsers: false}", ""),
        ("started", "check+driver | read all"),
        ("ready handlers=default", ""),
        ("file b", ""),
        ("read all:", ""),
        ("why b", why),
        ("ids", "none"),
        ("due user-ids @1s", "read ids"),
        ("ids-read unlisted", ""),
        ("why b", why),
        ("due user-ids @3s", "read ids"),
        ("ids-read old=1", "run b: dirs + cgroup > ids 2 > sandbox#0 | look img-c:1"),
        ("ids", "b=2 old=1"),
    ] {
        assert_eq!(run.line(line).join(" | "), expect, "{line}");
    }
}

#[test]
fn a_pod_that_comes_back_keeps_its_ids() {
    check(&format!(
        r"
        {OWN_USERS}
        file a
        looked img-c:1: yes
        done a
        read a: s0 ready
        done a
        read a: s0 ready; c#0 running
        file
        file a
        done a
        read a: s0 dead; c#0 exit(0)
        ids                             => a=1
        done a                          => forget a | run a: stop-sandbox s0
        ids                             => a=1
        "
    ));
}

#[test]
fn a_runtime_that_cant_refuses_until_it_can() {
    let refused = "can't set `spec.hostUsers: false`, runtime does not support user namespaces";
    check(&format!(
        r"
        show events
        pod a = spec: {{hostUsers: false}}
        up
        file a             => W a FailedCreatePodSandBox: Failed to create pod sandbox: {refused}
        ids                => none
        why a              => create pod sandbox failed ({refused})
        due pod a @10s     => W a FailedCreatePodSandBox: Failed to create pod sandbox: {refused}
        ready handlers=default => run a: dirs + cgroup > ids 1 > sandbox#0 | look img-c:1
        "
    ));
}

#[test]
fn a_handler_that_cant_is_named() {
    let refused =
        "can't set `spec.hostUsers: false`, RuntimeClass handler \"kata\" does not support user namespaces";
    check(&format!(
        r"
        show events
        pod a = spec: {{hostUsers: false, runtimeClassName: vm}}
        classes vm=kata
        started
        ready handlers=default,crun
        read all:
        file a             => W a FailedCreatePodSandBox: Failed to create pod sandbox: {refused}
        classes vm=crun    => run a: dirs + cgroup > ids 1 > sandbox#0 by crun | look img-c:1 crun
        "
    ));
}

#[test]
fn ids_may_run_out_and_are_given_on_when_one_is_free() {
    let few = NodeConfig {
        user_ids: model::user_namespace::IdRange { first: 65536, count: 65536 },
        ..Default::default()
    };
    check_on(
        few,
        &format!(
            r"
            {OWN_USERS}
            file a b
            why b    => create pod sandbox failed (could not find an empty slot to allocate a user namespace)
            ids      => a=1
            "
        ),
    );
}

/// `<pod>=<block> ..` (`?`: not readable), or `unlisted`.
pub fn user_ids_read(rest: &str) -> crate::event::Event {
    let ids = rest.split_whitespace().filter_map(|word| word.split_once('=')).map(|(uid, block)| {
        let ids = block.parse::<u32>().ok();
        let ids =
            ids.map(|block| model::cri::IdMapping { host_id: block * 65536, container_id: 0, length: 65536 });
        (uid.into(), ids)
    });
    crate::event::Event::UserIdsRead { ids: ids.collect(), unlisted: rest == "unlisted" }
}
