use model::Reason;
use model::cri::LinuxResources;
use model::observed::ContainerState::{Created, Exited, Running, Unknown};
use model::observed::{ObservedContainer, ObservedUser};
use model::pod::ContainerKind;
use serde_json::{Value, json};

use crate::status::container_statuses;
use crate::status::sample::{Scene, deleting, instance, observed, pod};

/// The status of the one container, as JSON without what these tables are not about.
fn shown(scene: &Scene, kind: ContainerKind) -> Value {
    let statuses = container_statuses(&scene.inputs(), kind);
    let mut value = serde_json::to_value(&statuses[0]).unwrap();
    for key in ["image", "imageID", "name", "ready", "started", "resources", "volumeMounts"] {
        value.as_object_mut().unwrap().remove(key);
    }
    value
}

fn one(containers: Vec<ObservedContainer>) -> Scene {
    Scene::new(pod(json!({"containers": [{"name": "c", "image": "i"}]})), observed(containers))
}

/// With the last status of the container.
fn with_old(mut scene: Scene, old: Value) -> Scene {
    let mut status = json!({"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0});
    for (key, value) in old.as_object().unwrap() {
        status[key] = value.clone();
    }
    scene.old = serde_json::from_value(json!({"phase": "Running", "containerStatuses": [status]})).unwrap();
    scene
}

fn end(name: &str, attempt: u64, exit_code: i32, reason: &str) -> Value {
    let time =
        |seconds: u64| serde_json::to_value(crate::status::sample::at(seconds).wall.api_time()).unwrap();
    json!({"terminated": {
        "containerID": format!("containerd://{name}{attempt}"), "exitCode": exit_code, "reason": reason,
        "startedAt": time(attempt * 10), "finishedAt": time(attempt * 10 + 5),
    }})
}

#[test]
fn one_that_is_killed_to_be_started_again_waits() {
    let ended = || one(vec![instance("c", 0, Exited, 0)]);
    let killed = |id: &str| {
        let mut scene = ended();
        scene.must_restart.insert("c".into(), id.into());
        scene
    };
    let all = |state: Value, last: Value| json!({"containerID": "containerd://c0", "restartCount": 0, "state": state, "lastState": last});
    let end = || end("c", 0, 0, "Completed");
    assert_eq!(shown(&ended(), ContainerKind::Regular), all(end(), json!({})));
    // an earlier instance was killed: this one ended by itself
    assert_eq!(shown(&killed("c9"), ContainerKind::Regular), all(end(), json!({})));
    let waits = json!({"waiting": {"reason": "ContainerCreating"}});
    assert_eq!(shown(&killed("c0"), ContainerKind::Regular), all(waits, end()));
    // what keeps it from starting is told as of any other
    let mut failing = killed("c0");
    failing.fail("c", Reason::CrashLoopBackOff, "back-off");
    let waits = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}});
    assert_eq!(shown(&failing, ContainerKind::Regular), all(waits, end()));
    // and it is running as soon as the next instance is
    let mut back = killed("c0");
    back.observed = observed(vec![instance("c", 1, Running, 0), instance("c", 0, Exited, 0)]);
    assert!(shown(&back, ContainerKind::Regular)["state"]["running"].is_object());
}

#[test]
fn defaults() {
    let check = |spec: Value, kind: ContainerKind, expect: &str| {
        let scene = Scene::new(pod(spec), observed(vec![]));
        let expect = json!({"lastState": {}, "restartCount": 0, "state": {"waiting": {"reason": expect}}});
        assert_eq!(shown(&scene, kind), expect);
    };
    let regular = json!([{"name": "c"}]);
    let init = json!([{"name": "i"}]);
    let both = json!({"containers": regular, "initContainers": init, "ephemeralContainers": [{"name": "e"}]});
    check(json!({"containers": regular}), ContainerKind::Regular, "ContainerCreating");
    check(both.clone(), ContainerKind::Regular, "PodInitializing");
    check(both.clone(), ContainerKind::Init, "PodInitializing");
    check(both, ContainerKind::Ephemeral, "PodInitializing");
    check(json!({"ephemeralContainers": [{"name": "e"}]}), ContainerKind::Ephemeral, "ContainerCreating");
}

#[test]
fn an_old_status_is_the_default() {
    let check = |old: Value, expect: Value| {
        assert_eq!(shown(&with_old(one(vec![]), old.clone()), ContainerKind::Regular), expect, "{old}");
    };
    let creating = json!({"waiting": {"reason": "ContainerCreating"}});
    let ended = json!({"terminated": {"exitCode": 3}});
    // over: everything stays
    check(
        json!({"restartCount": 2, "state": ended, "lastState": ended, "containerID": "x://1"}),
        json!({"restartCount": 2, "state": {"terminated": {"exitCode": 3}},
            "lastState": {"terminated": {"exitCode": 3}}, "containerID": "x://1"}),
    );
    // not over: what can't be read from the runtime stays
    check(
        json!({"restartCount": 2, "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended, "containerID": "x://1"}),
        json!({"restartCount": 2, "state": creating,
            "lastState": {"terminated": {"exitCode": 3}}}),
    );
}

#[test]
fn containers_that_vanished() {
    let running = json!({"restartCount": 1, "state": {"running": {}}});
    let vanished = json!({"terminated": {
        "exitCode": 137, "reason": "ContainerStatusUnknown",
        "message": "The container could not be located when the pod was deleted.  The container used to be Running",
    }});
    let creating = json!({"waiting": {"reason": "ContainerCreating"}});
    let scene = with_old(one(vec![]), running.clone());
    let expect = json!({"restartCount": 2, "state": creating, "lastState": vanished});
    assert_eq!(shown(&scene, ContainerKind::Regular), expect);

    let mut scene = with_old(one(vec![]), running);
    scene.pod = deleting(&scene.pod);
    let expect = json!({"restartCount": 1, "state": creating, "lastState": vanished});
    assert_eq!(shown(&scene, ContainerKind::Regular), expect);

    // an end that is known is not replaced by a guess
    let known = json!({"terminated": {"exitCode": 3}});
    let scene =
        with_old(one(vec![]), json!({"restartCount": 1, "state": {"running": {}}, "lastState": known}));
    let expect = json!({"restartCount": 1, "state": creating, "lastState": known});
    assert_eq!(shown(&scene, ContainerKind::Regular), expect);
}

#[test]
fn containers_removed_to_restart_them_all() {
    let rule = json!({"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}});
    let spec = json!({"containers": [{"name": "c"}, {"name": "t", "restartPolicy": "Never", "restartPolicyRules": [rule]}]});
    let message = "The container is removed because RestartAllContainers in place";
    let removed = |count: i32| {
        json!({
            "restartCount": count,
            "state": {"waiting": {"reason": "RestartingAllContainers", "message": message}},
            "lastState": {"terminated": {"exitCode": 137, "reason": "RestartingAllContainers", "message": message}},
        })
    };
    for old in [json!({"running": {}}), json!({"terminated": {"exitCode": 0}})] {
        let scene = Scene::new(pod(spec.clone()), observed(vec![instance("t", 0, Exited, 1)]));
        let mut scene = with_old(scene, json!({"restartCount": 4, "state": old}));
        assert_eq!(shown(&scene, ContainerKind::Regular), removed(5));
        scene.advance();
        assert_eq!(shown(&scene, ContainerKind::Regular), removed(5), "counted once");
    }
    let scene = Scene::new(pod(spec), observed(vec![instance("t", 0, Running, 0)]));
    let scene = with_old(scene, json!({"restartCount": 4, "state": {"running": {}}}));
    assert_eq!(shown(&scene, ContainerKind::Regular)["state"]["waiting"]["reason"], "ContainerCreating");
}

#[test]
fn states_of_the_runtime() {
    let check = |instance: ObservedContainer, old: Option<Value>, state: Value, count: i32| {
        let mut scene = one(vec![instance.clone()]);
        if let Some(old) = &old {
            scene = with_old(scene, old.clone());
        }
        let shown = shown(&scene, ContainerKind::Regular);
        assert_eq!(
            (&shown["state"], &shown["restartCount"]),
            (&state, &json!(count)),
            "{instance:?} {old:?}"
        );
        assert_eq!(shown["containerID"], json!(format!("containerd://{}", instance.id)));
    };
    let started = serde_json::to_value(crate::status::sample::at(20).wall.api_time()).unwrap();
    let running = json!({"running": {"startedAt": started}});
    let lost = json!({"terminated": {
        "exitCode": 137, "reason": "ContainerStatusUnknown",
        "message": "The container could not be located when the pod was terminated",
    }});
    let old = |state: Value, count: i32, id: &str| {
        Some(json!({"state": state, "restartCount": count, "containerID": format!("containerd://{id}")}))
    };
    let waiting = json!({"waiting": {}});
    let was_running = json!({"running": {}});
    let was_over = json!({"terminated": {"exitCode": 1}});
    check(instance("c", 2, Running, 0), None, running.clone(), 2);
    check(instance("c", 2, Created, 0), None, waiting.clone(), 2);
    check(instance("c", 2, Exited, 0), None, end("c", 2, 0, "Completed"), 2);
    check(instance("c", 2, Exited, 7), None, end("c", 2, 7, "Error"), 2);
    check(instance("c", 2, Unknown, 0), None, waiting.clone(), 2);
    check(instance("c", 2, Unknown, 0), old(waiting.clone(), 2, "c2"), waiting.clone(), 2);
    check(instance("c", 2, Unknown, 0), old(was_running.clone(), 2, "c2"), lost.clone(), 3);
    check(instance("c", 2, Unknown, 0), old(lost.clone(), 3, "c2"), lost, 3);
    check(instance("c", 2, Unknown, 0), old(was_over.clone(), 1, "c1"), waiting, 2);
    // counts only grow
    check(instance("c", 2, Running, 0), old(was_running.clone(), 1, "c1"), running.clone(), 2);
    check(instance("c", 2, Running, 0), old(was_running, 5, "c1"), running.clone(), 5);
    check(instance("c", 2, Running, 0), old(was_over.clone(), 1, "c1"), running.clone(), 2);
    check(instance("c", 2, Running, 0), old(was_over.clone(), 2, "x"), running.clone(), 3);
    check(instance("c", 2, Running, 0), old(was_over.clone(), 5, "x"), running, 6);
    check(instance("c", 2, Exited, 0), old(was_over, 5, "x"), end("c", 2, 0, "Completed"), 5);
}

#[test]
fn last_states() {
    let check = |containers: Vec<ObservedContainer>, old: Option<Value>, expect: Value| {
        let mut scene = one(containers);
        if let Some(old) = old {
            scene = with_old(scene, old);
        }
        assert_eq!(shown(&scene, ContainerKind::Regular)["lastState"], expect);
    };
    let running = instance("c", 2, Running, 0);
    let known = json!({"terminated": {"exitCode": 9}});
    check(vec![running.clone()], None, json!({}));
    check(vec![running.clone(), instance("c", 1, Exited, 1)], None, end("c", 1, 1, "Error"));
    check(
        vec![instance("c", 0, Exited, 5), running.clone(), instance("c", 1, Exited, 1)],
        None,
        end("c", 1, 1, "Error"),
    );
    check(
        vec![running.clone()],
        Some(json!({"state": known, "containerID": "containerd://c1"})),
        known.clone(),
    );
    let carried = json!({"state": {"running": {}}, "lastState": known, "containerID": "containerd://c2"});
    check(vec![running.clone()], Some(carried.clone()), known.clone());
    check(vec![running.clone(), instance("c", 1, Unknown, 0)], Some(carried.clone()), known.clone());
    check(
        vec![instance("c", 2, Unknown, 0), instance("c", 1, Exited, 1)],
        Some(carried.clone()),
        known.clone(),
    );
    check(vec![running, instance("c", 1, Exited, 1)], Some(carried), end("c", 1, 1, "Error"));
}

#[test]
fn failed_starts() {
    let check =
        |containers: Vec<ObservedContainer>, policy: &str, deleted: bool, state: Value, last: Value| {
            let mut spec = json!({"containers": [{"name": "c"}]});
            spec["restartPolicy"] = json!(policy);
            let mut scene = Scene::new(pod(spec), observed(containers.clone()));
            if deleted {
                scene.pod = deleting(&scene.pod);
            }
            scene.fail("c", Reason::CrashLoopBackOff, "back-off 10s");
            let shown = shown(&scene, ContainerKind::Regular);
            assert_eq!((&shown["state"], &shown["lastState"]), (&state, &last), "{policy} {containers:?}");
        };
    let waiting = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}});
    let creating = json!({"waiting": {"reason": "ContainerCreating"}});
    let failed = || instance("c", 1, Exited, 1);
    check(vec![], "Never", false, waiting.clone(), json!({}));
    check(vec![], "Always", true, creating, json!({}));
    check(vec![failed()], "Always", false, waiting.clone(), end("c", 1, 1, "Error"));
    check(vec![failed()], "OnFailure", false, waiting.clone(), end("c", 1, 1, "Error"));
    check(vec![failed()], "Never", false, end("c", 1, 1, "Error"), json!({}));
    check(vec![failed()], "Always", true, end("c", 1, 1, "Error"), json!({}));
    check(vec![instance("c", 1, Exited, 0)], "OnFailure", false, end("c", 1, 0, "Completed"), json!({}));
    check(vec![instance("c", 1, Exited, 0)], "Always", false, waiting.clone(), end("c", 1, 0, "Completed"));
    check(vec![instance("c", 1, Created, 0)], "Never", false, waiting, json!({}));
    let running = json!({"running": {"startedAt": serde_json::to_value(crate::status::sample::at(10).wall.api_time()).unwrap()}});
    check(vec![instance("c", 1, Running, 0)], "Always", false, running, json!({}));
}

#[test]
fn a_failed_start_of_a_container_that_is_gone_remembers_only_its_end() {
    let mut scene = with_old(
        one(vec![]),
        json!({"state": {"terminated": {"exitCode": 1}}, "restartCount": 3, "containerID": "containerd://c3", "imageID": "sha256:i"}),
    );
    scene.fail("c", Reason::ErrImagePull, "no");
    let expect = json!({
        "restartCount": 3, "state": {"waiting": {"reason": "ErrImagePull", "message": "no"}},
        "lastState": {"terminated": {"exitCode": 1}},
    });
    assert_eq!(shown(&scene, ContainerKind::Regular), expect);
    scene.advance();
    assert_eq!(shown(&scene, ContainerKind::Regular), expect);
}

#[test]
fn init_containers() {
    let check = |init: Value, containers: Vec<ObservedContainer>, state: Value| {
        let spec = json!({"containers": [{"name": "c"}], "initContainers": [init]});
        let mut scene = Scene::new(pod(spec), observed(containers.clone()));
        scene.fail("i", Reason::CrashLoopBackOff, "m");
        assert_eq!(shown(&scene, ContainerKind::Init)["state"], state, "{init} {containers:?}");
    };
    let waiting = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "m"}});
    let done_unseen = json!({"terminated": {
        "exitCode": 0, "reason": "Completed",
        "message": "Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally",
    }});
    let normal = || json!({"name": "i"});
    let sidecar = || json!({"name": "i", "restartPolicy": "Always"});
    check(normal(), vec![], waiting.clone());
    check(normal(), vec![instance("i", 0, Exited, 1)], waiting.clone());
    check(normal(), vec![instance("i", 0, Exited, 0)], end("i", 0, 0, "Completed"));
    check(normal(), vec![instance("c", 0, Running, 0)], done_unseen.clone());
    check(normal(), vec![instance("c", 0, Created, 0)], done_unseen.clone());
    check(normal(), vec![instance("c", 0, Exited, 1)], done_unseen);
    check(normal(), vec![instance("c", 0, Unknown, 1)], waiting.clone());
    check(sidecar(), vec![instance("c", 0, Running, 0)], waiting.clone());
    check(sidecar(), vec![instance("i", 0, Exited, 1)], waiting);
    check(sidecar(), vec![instance("i", 0, Exited, 0)], end("i", 0, 0, "Completed"));
}

#[test]
fn order_mounts_and_users() {
    let spec = json!({
        "containers": [{"name": "b"}, {"name": "a", "volumeMounts": [
            {"name": "v", "mountPath": "/v"},
            {"name": "r", "mountPath": "/r", "readOnly": true},
            {"name": "e", "mountPath": "/e", "readOnly": true, "recursiveReadOnly": "Enabled"},
            {"name": "p", "mountPath": "/p", "readOnly": true, "recursiveReadOnly": "IfPossible"},
        ]}],
        "initContainers": [{"name": "z"}, {"name": "y"}],
        "ephemeralContainers": [{"name": "q"}, {"name": "p"}],
    });
    let mut seen = instance("a", 0, Running, 0);
    seen.user = Some(ObservedUser { uid: 1, gid: 2, supplemental_groups: vec![2, 3] });
    let mut scene = Scene::new(pod(spec), observed(vec![seen]));
    let names = |scene: &Scene, kind| -> String {
        let statuses = container_statuses(&scene.inputs(), kind);
        statuses.iter().map(|status| status.name.as_str()).collect()
    };
    assert_eq!(names(&scene, ContainerKind::Regular), "ab");
    assert_eq!(names(&scene, ContainerKind::Init), "zy");
    assert_eq!(names(&scene, ContainerKind::Ephemeral), "pq");

    for (supported, word) in [(false, "Disabled"), (true, "Enabled")] {
        scene.recursive_read_only = supported;
        let status =
            serde_json::to_value(&container_statuses(&scene.inputs(), ContainerKind::Regular)[0]).unwrap();
        let expect = json!([
            {"name": "v", "mountPath": "/v"},
            {"name": "r", "mountPath": "/r", "readOnly": true, "recursiveReadOnly": "Disabled"},
            {"name": "e", "mountPath": "/e", "readOnly": true, "recursiveReadOnly": word},
            {"name": "p", "mountPath": "/p", "readOnly": true, "recursiveReadOnly": word},
        ]);
        assert_eq!(status["volumeMounts"], expect);
        assert_eq!(status["user"], json!({"linux": {"uid": 1, "gid": 2, "supplementalGroups": [2, 3]}}));
    }
}

#[test]
fn resources() {
    let check = |allocated: Value, reported: Option<LinuxResources>, before: Value, expect: Value| {
        let spec = json!({"containers": [{"name": "c", "resources": allocated}]});
        let mut running = instance("c", 0, Running, 0);
        running.resources = reported;
        let mut scene = Scene::new(pod(spec), observed(vec![running]));
        if before.is_object() {
            let old =
                json!({"state": {"running": {}}, "containerID": "containerd://c0", "resources": before});
            scene = with_old(scene, old);
        }
        let status =
            serde_json::to_value(&container_statuses(&scene.inputs(), ContainerKind::Regular)[0]).unwrap();
        assert_eq!(status["resources"], expect, "{allocated} {before}");
        assert_eq!(status["allocatedResources"], allocated["requests"]);
    };
    let linux = |shares, quota, memory| {
        Some(LinuxResources {
            cpu_shares: shares,
            cpu_quota: quota,
            cpu_period: 100_000,
            memory_limit_in_bytes: memory,
            ..Default::default()
        })
    };
    let both =
        json!({"limits": {"cpu": "100m", "memory": "64Mi"}, "requests": {"cpu": "50m", "memory": "16Mi"}});
    check(json!({}), linux(2, 10_000, 1 << 20), json!(null), json!({}));
    check(both.clone(), None, json!(null), both.clone());
    check(both.clone(), linux(51, 10_000, 64 << 20), json!(null), both.clone());
    // what the runtime enforces is shown; requests of memory are known to nobody but us
    check(
        both.clone(),
        linux(102, 20_000, 128 << 20),
        json!(null),
        json!({"limits": {"cpu": "200m", "memory": "128Mi"}, "requests": {"cpu": "100m", "memory": "16Mi"}}),
    );
    // no limit and no shares are no report: then what was shown stays
    let before =
        json!({"limits": {"cpu": "150m", "memory": "32Mi"}, "requests": {"cpu": "75m", "memory": "8Mi"}});
    check(
        both.clone(),
        linux(0, -1, 0),
        before.clone(),
        json!({"limits": {"cpu": "150m", "memory": "32Mi"}, "requests": {"cpu": "75m", "memory": "16Mi"}}),
    );
    check(
        both,
        None,
        before,
        json!({"limits": {"cpu": "150m", "memory": "32Mi"}, "requests": {"cpu": "75m", "memory": "16Mi"}}),
    );
    // the kernel can't tell tiny amounts apart
    let tiny = json!({"limits": {"cpu": "5m"}, "requests": {"cpu": "1m"}});
    check(tiny.clone(), linux(2, 1_000, 0), json!(null), tiny.clone());
    check(
        tiny,
        linux(3, 1_100, 0),
        json!(null),
        json!({"limits": {"cpu": "11m"}, "requests": {"cpu": "3m"}}),
    );
    check(
        json!({"requests": {"memory": "1Mi"}}),
        linux(2, 0, 0),
        json!(null),
        json!({"requests": {"memory": "1Mi"}}),
    );
}

#[test]
fn a_container_that_does_not_run_shows_what_was_allocated() {
    let allocated = json!({"limits": {"memory": "24Mi"}, "requests": {"memory": "24Mi"}});
    let mut ended = instance("c", 0, Exited, 137);
    ended.resources = Some(LinuxResources { memory_limit_in_bytes: 1, ..Default::default() });
    let spec = json!({"containers": [{"name": "c", "resources": allocated}]});
    let scene = Scene::new(pod(spec), observed(vec![ended]));
    let status =
        serde_json::to_value(&container_statuses(&scene.inputs(), ContainerKind::Regular)[0]).unwrap();
    assert_eq!(status["resources"], allocated);
}

#[test]
fn stop_signals_are_shown_where_containers_may_choose_them() {
    let shown = |allowed: bool, signal: i32| {
        let mut running = instance("c", 0, Running, 0);
        running.stop_signal = signal;
        let mut scene = Scene::new(pod(json!({"containers": [{"name": "c"}]})), observed(vec![running]));
        scene.stop_signals = allowed;
        scene.derive().container_statuses.unwrap()[0].stop_signal.clone()
    };
    assert_eq!(shown(true, 23).as_deref(), Some("SIGTERM"));
    assert_eq!(shown(true, 0), None);
    assert_eq!(shown(false, 23), None);
}

#[test]
fn mounts_of_image_volumes_tell_their_image_with_the_gate_once_the_runtime_told_it() {
    let references = |gate: bool, told: &[(&str, &str)]| {
        let spec = json!({
            "containers": [{"name": "c", "volumeMounts": [
                {"name": "image", "mountPath": "image"}, {"name": "data", "mountPath": "/data"},
            ]}],
            "volumes": [{"name": "image", "image": {"reference": "a/b:1"}}, {"name": "data", "emptyDir": {}}],
        });
        let mut running = instance("c", 0, Running, 0);
        running.image_mounts = told.iter().map(|(path, image)| ((*path).into(), (*image).into())).collect();
        let mut scene = Scene::new(pod(spec), observed(vec![running]));
        scene.image_volume_digests = gate;
        let mounts = scene.derive().container_statuses.unwrap().remove(0).volume_mounts.unwrap();
        let image = |mount: model::k8s::VolumeMountStatus| Some(mount.volume_status?.image?.image_ref);
        mounts.into_iter().map(image).collect::<Vec<_>>()
    };
    let told = [("/image", "sha256:1"), ("/data", "sha256:2")];
    assert_eq!(
        references(true, &told),
        [Some("sha256:1".to_owned()), None],
        "only a volume that is an image"
    );
    assert_eq!(references(true, &[]), [None, None], "an older runtime");
    assert_eq!(references(false, &told), [None, None]);
}

#[test]
fn ephemeral_containers_have_a_list_of_their_own_and_no_say_in_the_phase() {
    let spec = json!({
        "restartPolicy": "Never",
        "containers": [{"name": "c"}],
        "ephemeralContainers": [{"name": "f", "image": "x"}, {"name": "e", "image": "x"}],
    });
    // what c does, what e does, and the phase that comes of it
    for (name, c, e, phase) in [
        ("both run", Some((Running, 0)), Some((Running, 0)), "Running"),
        ("e failed", Some((Running, 0)), Some((Exited, 1)), "Running"),
        ("e never came", Some((Running, 0)), None, "Running"),
        ("c is done", Some((Exited, 0)), Some((Running, 0)), "Succeeded"),
        ("c is done, e failed", Some((Exited, 0)), Some((Exited, 1)), "Succeeded"),
        ("c failed, e is done", Some((Exited, 1)), Some((Exited, 0)), "Failed"),
        ("only e runs", None, Some((Running, 0)), "Pending"),
    ] {
        let of = |name: &str, state: Option<(model::observed::ContainerState, i32)>| {
            state.map(|(s, code)| instance(name, 0, s, code))
        };
        let seen = of("c", c).into_iter().chain(of("e", e)).collect();
        let status = Scene::new(pod(spec.clone()), observed(seen)).derive();
        assert_eq!(status.phase.as_deref(), Some(phase), "{name}");
        let names: Vec<_> =
            status.ephemeral_container_statuses.iter().flatten().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["e", "f"], "{name}");
        let ready: Vec<_> =
            status.ephemeral_container_statuses.iter().flatten().map(|s| (s.ready, s.started)).collect();
        assert_eq!(ready, [(false, None), (false, None)], "{name}");
    }
}
