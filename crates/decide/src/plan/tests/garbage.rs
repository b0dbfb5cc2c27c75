//! What a pod drops of its dead, and what it keeps.

use std::time::Duration;

use super::words::{at, observed};
use super::{NOW, Scene};
use crate::ledger::PodRetry;
use crate::plan::dead_overall;

fn keeping(limit: i32, reading: &str) -> Scene {
    Scene::new("restart Never; run c d", reading).with(|s| s.config.max_dead_containers_per_container = limit)
}

#[test]
fn the_newest_dead_of_each_container_are_kept() {
    let reading = "s0 ready; c#0 exit(1); c#1 exit(1); c#2 exit(1); d#0 exit(0); d#1 running";
    for (limit, expect) in [
        (1, "remove c#1 + remove c#0?"),
        (2, "remove c#0?"),
        (3, "-"),
        (-1, "-"),
        // one is always kept: it tells that the container ran
        (0, "remove c#1 + remove c#0?"),
    ] {
        keeping(limit, reading).stages(expect);
    }
}

#[test]
fn living_and_newest_instances_are_no_garbage() {
    for (reading, expect) in [
        ("s0 ready; c#0 running; d#0 running", "-"),
        ("s0 ready; c#0 exit(1); c#1 running; d#0 running", "-"),
        ("s0 ready; c#0 exit(1); c#1 unknown; d#0 running", "stop c#1 30s"),
        ("s0 ready; c#0 created; c#1 exit(1); c#2 exit(1); d#0 running", "remove c#1 + remove c#0?"),
        // only created, and nothing newer: it may be about to start
        ("s0 ready; d#0 running; c#0 exit(0); e#0 created", "-"),
        // of a container that the spec does not name any more
        ("s0 ready; c#0 running; d#0 running; e#0 exit(1); e#1 exit(1)", "remove e#0?"),
    ] {
        keeping(1, reading).stages(expect);
    }
}

#[test]
fn the_young_wait_for_their_age() {
    let scene =
        |reading: &str| keeping(1, reading).with(|s| s.config.min_container_ttl = Duration::from_secs(60));
    let young = scene("s0 ready; c#0 exit(1) 0s age=20; c#1 exit(1) 0s age=10; d#0 running");
    young.stages("-");
    young.wakes("@1040s");
    let both =
        scene("s0 ready; c#0 exit(1) 0s age=70; c#1 exit(1) 0s age=59.5; c#2 exit(1) 0s age=1; d#0 running");
    both.stages("remove c#0?");
    both.wakes("@1000.5s");
    scene("s0 ready; c#0 exit(1) 0s age=60; c#1 exit(1) 0s age=1; d#0 running").stages("remove c#0?");
}

#[test]
fn dead_sandboxes_go_when_they_are_empty_and_not_the_newest() {
    let running = |more: &str| keeping(1, &format!("{more}; c#5 running; d#0 running"));
    running("s0 dead; s1 dead; s2 ready").stages("remove-sandbox s1 + remove-sandbox s0?");
    running("s0 dead; s1 ready; c#0 exit(1) @s0").stages("-");
    running("s0 dead; s1 ready; c#0 exit(1) @s0; c#1 exit(1) @s1").stages("remove c#0? > remove-sandbox s0?");
    running("s0 ready").stages("-");
}

#[test]
fn what_the_node_has_too_many_of_goes_too_but_never_the_last_that_tells() {
    let scene = |ids: &[&str]| {
        let ids: Vec<_> = ids.iter().map(|id| (*id).into()).collect();
        keeping(2, "s0 ready; c#0 exit(1); c#1 exit(1); d#0 running")
            .with(|s| s.entry.ledger.excess_dead_containers = ids.into_iter().collect())
    };
    scene(&["c#0"]).stages("remove c#0?");
    scene(&["c#1"]).stages("-");
    scene(&["c#0", "c#1"]).stages("remove c#0?");
    scene(&["d#0", "gone"]).stages("-");
}

#[test]
fn over_all_pods_the_oldest_go_first() {
    let a = "s0 ready; c#0 exit(1) 0s age=50; c#1 running 0s age=40; d#0 exit(0) 0s age=20; d#1 exit(0) 0s age=10";
    let a = observed("a", a, at(NOW));
    let b = observed(
        "b",
        "s0 ready; c#0 exit(1) 0s age=30; c#1 created 0s age=5; e#0 exit(0) 0s age=90",
        at(NOW),
    );
    // the newest of each stays, however old it is: a.d#1, b.e#0
    for (limit, expect) in
        [(3, &[][..]), (9, &[]), (2, &["a.c#0"]), (1, &["b.c#0", "a.c#0"]), (0, &["a.d#0", "b.c#0", "a.c#0"])]
    {
        let beyond = dead_overall([&a, &b].into_iter(), limit, at(NOW));
        let ids: Vec<&str> = beyond.iter().map(|c| c.id.as_str()).collect();
        assert_eq!(ids, expect, "limit {limit}");
    }
}

#[test]
fn a_removal_that_failed_waits() {
    let scene = |left: f64| {
        keeping(1, "s0 ready; c#0 exit(1); c#1 exit(1); d#0 running").with(|s| {
            let at = at(NOW + left).mono;
            s.entry.ledger.pod_retry =
                Some(PodRetry { step: "remove container", message: "no".into(), at, attempts: 1 });
        })
    };
    scene(2.0).stages("-");
    scene(2.0).wakes("@1002s");
    scene(0.0).stages("remove c#0?");
}

#[test]
fn garbage_waits_while_something_is_to_be_started() {
    Scene::new("run c d", "s0 ready; c#0 exit(1); c#1 exit(1); d#0 running").stages("start c#2?");
}

#[test]
fn a_restart_in_back_off_does_not_keep_garbage() {
    let scene = Scene::new("run c d", "s0 ready; c#0 exit(1); c#1 exit(1); d#0 running")
        .with(|s| s.entry.ledger.image_states.clear());
    scene.stages("remove c#0?");
}
