//! Stopping a pod, and releasing what it had.

use model::PodUid;

use super::words::{at, pod, show_stages};
use super::{NOW, Scene};
use crate::ledger::PodRetry;
use crate::state::{EndReason, FailureReason, PodEntry};

#[test]
fn everything_stops_with_what_is_left_of_the_grace() {
    // grace, seconds since it was asked, what is seen, plan
    for (grace, ago, reading, expect) in [
        (30, 0.0, "s0 ready; c#0 running", "stop c#0 30s > stop-sandbox s0"),
        (30, 12.0, "s0 ready; c#0 running", "stop c#0 18s > stop-sandbox s0"),
        (30, 28.0, "s0 ready; c#0 running", "stop c#0 2s > stop-sandbox s0"),
        (30, 300.0, "s0 ready; c#0 running", "stop c#0 2s > stop-sandbox s0"),
        (1, 0.0, "s0 ready; c#0 running", "stop c#0 2s > stop-sandbox s0"),
        (30, 0.0, "s0 ready; c#0 running; d#0 running", "stop d#0 30s + stop c#0 30s > stop-sandbox s0"),
        (30, 0.0, "s0 ready; c#0 unknown", "stop c#0 30s > stop-sandbox s0"),
        (30, 0.0, "s0 ready; c#0 exit(0)", "stop-sandbox s0"),
        (30, 0.0, "s0 ready; c#0 created", "stop-sandbox s0"),
        (30, 0.0, "s0 dead; c#0 exit(0)", "stop-sandbox s0"),
        (30, 0.0, "s0 dead; s1 ready; c#0 running @s1", "stop c#0 30s > stop-sandbox s1 + stop-sandbox s0"),
        // of a container that the spec does not know
        (30, 0.0, "s0 ready; x#0 running", "stop x#0 30s > stop-sandbox s0"),
        (30, 0.0, "c#0 running", "stop c#0 30s"),
        (30, 0.0, "", "-"),
    ] {
        let scene = Scene::new("run c d", reading).terminating(grace, ago);
        assert_eq!(show_stages(&scene.plan().stages), expect, "{grace} {ago} {reading}");
    }
}

#[test]
fn sidecars_stop_after_the_others_and_in_reverse() {
    let pod = "init i s* t*; run c d";
    for (reading, expect) in [
        (
            "s0 ready; s#0 running; t#0 running; c#0 running; d#0 running",
            "stop d#0 30s + stop c#0 30s > stop t#0 30s > stop s#0 30s > stop-sandbox s0",
        ),
        ("s0 ready; s#0 running; t#0 exit(0); c#0 running", "stop c#0 30s > stop s#0 30s > stop-sandbox s0"),
        ("s0 ready; s#0 running; t#0 running", "stop t#0 30s > stop s#0 30s > stop-sandbox s0"),
        ("s0 ready; s#0 running; i#0 running", "stop i#0 30s > stop s#0 30s > stop-sandbox s0"),
    ] {
        Scene::new(pod, reading).terminating(30, 0.0).stages(expect);
    }
}

#[test]
fn sidecars_wait_for_each_other_only_as_long_as_there_is_grace() {
    let reading = "s0 ready; s#0 running; t#0 running; c#0 running";
    let plan = Scene::new("init s* t*; run c", reading).terminating(30, 10.0).plan();
    let over = Some(at(NOW + 20.0).mono);
    let begins: Vec<_> = plan.stages.iter().map(|stage| stage.not_after).collect();
    assert_eq!(begins, [None, over, over, None], "{}", show_stages(&plan.stages));
}

#[test]
fn each_stop_is_told_and_announced() {
    let scene = Scene::new("init s*; run c", "s0 ready; s#0 running; c#0 running").terminating(30, 10.0);
    scene.why("s: stopping 20s; c: stopping 20s");
    assert_eq!(scene.announced(), ["Killing s", "Killing c"]);
    Scene::new("", "s0 ready; c#0 exit(0)").terminating(30, 0.0).why("releasing");
}

#[test]
fn an_end_waits_for_the_runtime_and_for_its_retry() {
    let scene = || Scene::new("", "s0 ready; c#0 running").terminating(30, 1.0);
    let away = scene().with(|s| {
        s.runtime.ready = false;
        s.runtime.message = "away".into();
    });
    away.stages("-");
    away.why("runtime not ready (away)");
    let failed = scene().with(|s| {
        let at = at(NOW + 2.0).mono;
        s.entry.ledger.pod_retry =
            Some(PodRetry { step: "stop container", message: "no".into(), at, attempts: 2 });
    });
    failed.stages("-");
    failed.why("stop container failed (no) @1002s");
    failed.wakes("@1002s");
}

#[test]
fn a_network_that_is_not_ready_holds_back_no_end() {
    let scene = Scene::new("", "s0 ready; c#0 running").terminating(30, 0.0);
    scene.with(|s| s.runtime.network_ready = false).stages("stop c#0 30s > stop-sandbox s0");
}

/// All containers are stopped.
fn ended(pod: &str, reading: &str, released: bool) -> Scene {
    end_of(Scene::new(pod, reading), released)
}

fn end_of(scene: Scene, released: bool) -> Scene {
    scene.with(|s| {
        s.end(EndReason::Completed, 30, 60.0);
        stop(s, released);
    })
}

/// A pod that ends has stopped, and perhaps released what it had.
fn stop(scene: &mut Scene, released: bool) {
    scene.entry.standing_mut().containers_stopped();
    if released {
        scene.entry.standing_mut().released();
    }
    scene.entry.ledger.volumes_and_cgroup_released = released;
}

fn remove(scene: &mut Scene) {
    scene.end(EndReason::Removed, 30, 0.0);
}

#[test]
fn volumes_go_first_then_the_cgroup() {
    ended("", "s0 dead; c#0 exit(0)", false).stages("tear-down > drop-cgroup kubepods/besteffort/podp");
    let burstable = "c: {resources: {requests: {cpu: 1}}}";
    ended(burstable, "", false).stages("tear-down > drop-cgroup kubepods/burstable/podp");
    ended("", "", false).with(|s| s.config.cgroups_per_qos = false).stages("tear-down");
}

#[test]
fn the_class_of_an_orphan_is_not_known() {
    let orphan = Scene::new("", "").with(|s| {
        s.entry = PodEntry::orphan(s.entry.view().clone(), 30, at(NOW - 60.0).mono);
        stop(s, false);
    });
    orphan.stages(
        "tear-down > drop-cgroup kubepods/podp + drop-cgroup kubepods/burstable/podp + drop-cgroup kubepods/besteffort/podp",
    );
}

#[test]
fn what_nobody_wants_any_more_goes_altogether() {
    let gone = |reading: &str| ended("", reading, true).with(remove);
    let content = "remove-dir + remove-logs ns_p_p";
    gone("").stages(content);
    gone("s0 dead; c#0 exit(0)").stages(&format!("remove c#0 > remove-sandbox s0 > {content}"));
    gone("s0 dead; s1 dead; c#0 exit(0) @s0; c#1 created")
        .stages(&format!("remove c#1 + remove c#0 > remove-sandbox s1 + remove-sandbox s0 > {content}"));
    gone("").with(|s| s.entry.ledger.directories_removed = true).stages("-");
    gone("c#0 exit(0)").with(|s| s.entry.ledger.directories_removed = true).stages("remove c#0");
    gone("c#0 exit(0)").why("releasing");
    // not before volumes and cgroup are released
    let held = ended("", "s0 dead; c#0 exit(0)", false).with(remove);
    held.stages("tear-down > drop-cgroup kubepods/besteffort/podp");
}

#[test]
fn what_is_released_does_not_wait_for_the_runtime() {
    let away = |released| {
        ended("", "s0 dead; c#0 exit(0)", released).with(|s| {
            remove(s);
            s.runtime.ready = false;
        })
    };
    away(false).stages("tear-down > drop-cgroup kubepods/besteffort/podp");
    away(true).stages("-");
}

#[test]
fn a_finished_pod_that_is_still_wanted_keeps_its_record() {
    ended("restart Never", "s0 dead; c#0 exit(0)", true).stages("-");
    ended("restart Never", "s0 dead; c#0 exit(0)", true).why("finished ");
    // but not its garbage
    ended("restart Never", "s0 dead; s1 dead; c#0 exit(1) @s0; c#1 exit(0)", true)
        .stages("remove c#0? > remove-sandbox s0?");
    let wanted_again = ended("", "s0 dead; c#0 exit(0)", true).with(|s| {
        remove(s);
        let again = s.entry.view().clone();
        s.entry.standing_mut().recreate_from(again);
    });
    wanted_again.stages("-");
}

#[test]
fn a_rejected_pod_says_why() {
    let scene = Scene::new("", "").with(|s| {
        let why = FailureReason::new("OutOfpods", "full");
        s.end(EndReason::Rejected(why), 1, 0.0);
        stop(s, true);
    });
    scene.stages("-");
    scene.why("rejected OutOfpods");
}

#[test]
fn a_failed_release_waits_for_its_retry() {
    for released in [false, true] {
        let scene = |left: f64| {
            ended("", "c#0 exit(0)", released).with(|s| {
                remove(s);
                let at = at(NOW + left).mono;
                s.entry.ledger.pod_retry =
                    Some(PodRetry { step: "tear down volumes", message: "busy".into(), at, attempts: 1 });
            })
        };
        scene(1.0).stages("-");
        scene(1.0).why("tear down volumes failed (busy) @1001s");
        assert_ne!(scene(0.0).plan().stages, []);
    }
}

#[test]
fn what_comes_to_life_late_is_stopped_before_anything_is_taken_from_it() {
    for released in [false, true] {
        for removed in [false, true] {
            let scene = |reading: &str| {
                ended("restart Never", reading, released).with(|s| {
                    if removed {
                        remove(s);
                    }
                    s.entry.ledger.stopped_sandboxes = ["s0".into()].into();
                })
            };
            scene("s0 dead; s1 ready").stages("stop-sandbox s1");
            scene("s0 dead; s1 ready; c#1 running").stages("stop c#1 2s > stop-sandbox s1");
            scene("s0 dead; s1 ready").why("releasing");
            scene("s0 ready").stages("-");
            scene("s0 ready").why("stop pod sandbox failed (sandbox s0 was stopped, and is still ready)");
        }
    }
}

#[test]
fn nothing_of_another_pod_is_named() {
    let mut other = pod("");
    other.uid = PodUid::from("q");
    end_of(Scene::of(other, "s0 dead; c#0 exit(0)"), false)
        .stages("tear-down > drop-cgroup kubepods/besteffort/podq");
}
