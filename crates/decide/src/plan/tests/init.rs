//! Init containers and sidecars: how far the pod is, who is next, and what fails it.

use super::{Scene, check};

#[test]
fn one_after_the_other() {
    let pod = "init i j k; run c d";
    check(&[
        (pod, "s0 ready", "start i#0"),
        (pod, "s0 ready; i#0 created", "remove i#0?"),
        (pod, "s0 ready; i#0 running", "-"),
        (pod, "s0 ready; i#0 exit(0)", "start j#0"),
        (pod, "s0 ready; i#0 exit(0); j#0 running", "-"),
        (pod, "s0 ready; i#0 exit(0); j#0 exit(0)", "start k#0"),
        (pod, "s0 ready; i#0 exit(0); j#0 exit(0); k#0 running", "-"),
        (pod, "s0 ready; i#0 exit(0); j#0 exit(0); k#0 exit(0)", "start c#0? > start d#0?"),
        (pod, "s0 ready; i#0 exit(0); j#0 exit(0); k#0 exit(0); c#0 running", "start d#0?"),
        // the last one that came to life tells how far the pod is: earlier ones may be gone
        (pod, "s0 ready; k#0 exit(0)", "start c#0? > start d#0?"),
        (pod, "s0 ready; j#0 exit(0)", "start k#0"),
        (pod, "s0 ready; c#0 running", "start d#0?"),
        (pod, "s0 ready; c#0 created", "remove c#0? > start d#0?"),
    ]);
    Scene::new(pod, "s0 ready").why("c: waits for i; d: waits for i; i: starting");
    Scene::new(pod, "s0 ready; i#0 exit(0); j#0 running").why("c: waits for j; d: waits for j");
}

#[test]
fn a_regular_container_of_an_old_sandbox_does_not_count() {
    check(&[
        ("init i; run c", "s0 dead; s1 ready; c#0 exit(1) @s0", "start i#0"),
        ("init i; run c", "s0 dead; s1 ready; c#0 running @s0", "start i#0"),
        ("init i; run c", "s0 dead; s1 ready; c#0 created @s0", "start i#0"),
    ]);
}

#[test]
fn a_failed_one_is_run_again_or_fails_the_pod() {
    check(&[
        ("init i j", "s0 ready; i#0 exit(1)", "start i#1"),
        ("init i j", "s0 ready; i#0 exit(0); j#2 exit(1)", "start j#3"),
        ("restart OnFailure; init i", "s0 ready; i#0 exit(1)", "start i#1"),
        ("init i", "s0 ready; i#0 exit(0) reason=OOMKilled", "start i#1"),
        // it failed for good: all goes
        ("restart Never; init i", "s0 ready; i#0 exit(1)", "stop-sandbox s0"),
        ("restart Never; init s* i", "s0 ready; s#0 running; i#0 exit(1)", "stop s#0 30s > stop-sandbox s0"),
        ("restart OnFailure; init i", "s0 ready; i#0 exit(0) reason=OOMKilled", "stop-sandbox s0"),
        ("init i; i: {restartPolicy: Never}", "s0 ready; i#0 exit(1)", "stop-sandbox s0"),
        ("restart Never; init i; i: {restartPolicy: OnFailure}", "s0 ready; i#0 exit(1)", "start i#1"),
        ("restart Never; init i j", "s0 ready; i#0 exit(0)", "start j#0"),
    ]);
}

#[test]
fn an_unknown_one_is_killed_before_it_is_run_again() {
    check(&[
        ("init i", "s0 ready; i#0 unknown", "stop i#0 30s"),
        ("init s*", "s0 ready; s#0 unknown", "stop s#0 30s"),
        ("init s*", "s0 ready; s#0 unknown; c#0 running", "stop s#0 30s"),
    ]);
    assert_eq!(Scene::new("init i", "s0 ready; i#0 unknown").announced(), ["Killing i"]);
}

#[test]
fn sidecars_run_beside() {
    let pod = "init s* i t*; run c";
    check(&[
        (pod, "s0 ready", "start s#0?"),
        (pod, "s0 ready; s#0 running", "start i#0"),
        (pod, "s0 ready; s#0 running; i#0 running", "-"),
        (pod, "s0 ready; s#0 running; i#0 exit(0)", "start t#0?"),
        (pod, "s0 ready; s#0 running; i#0 exit(0); t#0 running", "start c#0?"),
        (pod, "s0 ready; s#0 running; i#0 exit(0); t#0 running; c#0 running", "-"),
    ]);
    check(&[
        ("init s*", "s0 ready; s#0 running", "start c#0?"),
        ("init s* t*", "s0 ready", "start s#0?"),
        ("init s* t*", "s0 ready; s#0 running", "start t#0?"),
    ]);
}

#[test]
fn a_sidecar_that_ended_is_started_again() {
    let pod = "init s* i t*; run c";
    check(&[
        // while the pod comes up
        (pod, "s0 ready; s#0 exit(1)", "start s#1?"),
        (pod, "s0 ready; s#0 exit(0)", "start s#1?"),
        (pod, "s0 ready; s#0 created", "remove s#0?"),
        (pod, "s0 ready; s#0 exit(1); i#0 running", "start s#1?"),
        (pod, "s0 ready; s#0 exit(1); i#0 exit(0)", "start s#1? > start t#0?"),
        (pod, "s0 ready; s#0 running; i#0 exit(1)", "start i#1"),
        (pod, "s0 ready; s#0 exit(1); i#0 exit(1)", "start s#1? > start i#1"),
        (pod, "s0 ready; s#0 running; i#0 exit(0); t#0 exit(1)", "start t#1?"),
        // and when it runs
        (pod, "s0 ready; s#0 exit(1); i#0 exit(0); t#0 running; c#0 running", "start s#1?"),
        (pod, "s0 ready; s#0 exit(1); i#0 exit(0); t#3 exit(1); c#0 running", "start s#1? > start t#4?"),
        (pod, "s0 ready; s#0 running; i#0 exit(0); t#0 exit(2); c#0 exit(1)", "start t#1?"),
        // one that is gone from the runtime too
        (pod, "s0 ready; i#0 exit(0); t#0 running; c#0 running", "start s#0?"),
        (pod, "s0 ready; c#0 running", "start s#0? > start t#0?"),
        // whatever the pod's policy
        ("restart Never; init s*", "s0 ready; s#0 exit(1); c#0 running", "start s#1?"),
        ("restart Never; init s*", "s0 ready; s#0 exit(1)", "start s#1?"),
    ]);
}

#[test]
fn a_sidecar_of_another_definition_is_killed() {
    check(&[
        ("init s*", "s0 ready; s#0 running hash=old; c#0 running", "stop s#0 30s"),
        ("init s*", "s0 ready; s#0 running hash=old", "stop s#0 30s"),
        // a normal one is left to end
        ("init i", "s0 ready; i#0 running hash=old", "-"),
    ]);
    let scene = Scene::new("init s*", "s0 ready; s#0 running hash=old; c#0 running");
    assert_eq!(scene.announced(), ["Killing s"]);
}

#[test]
fn once_regular_containers_run_normal_init_containers_are_history() {
    check(&[
        ("init i", "s0 ready; i#0 exit(1); c#0 running", "-"),
        ("init i", "s0 ready; i#0 running; c#0 running", "-"),
        ("init i", "s0 ready; i#0 created; c#0 created", "remove c#0?"),
        // all of them ended: the init container's end still tells that the pod was initialised
        ("init i", "s0 ready; i#0 exit(0); c#0 exit(1)", "start c#1?"),
        ("restart Never; init i", "s0 ready; i#0 exit(0); c#0 exit(1)", "stop-sandbox s0"),
    ]);
}
