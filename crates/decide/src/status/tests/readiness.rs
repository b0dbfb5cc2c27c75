use model::k8s;
use model::observed::ContainerState::{self, Created, Exited, Running};
use model::pod::{ContainerKind, Source};
use serde_json::{Value, json};

use crate::status::sample::{Scene, at, instance, observed, view};
use crate::status::{ProbeReport, container_statuses};

/// `started ready` of the one container.
fn check(
    kind: ContainerKind,
    container: Value,
    state: ContainerState,
    exit: i32,
    set: impl Fn(&mut Scene),
    expect: (bool, bool),
) {
    let list = match kind {
        ContainerKind::Init => "initContainers",
        _ => "containers",
    };
    let mut spec = json!({});
    spec[list] = json!([container]);
    let pod = view(json!({}), spec, Value::Null, Source::Api);
    let mut scene = Scene::new(pod, observed(vec![instance("c", 0, state, exit)]));
    set(&mut scene);
    let status = &container_statuses(&scene.inputs(), kind)[0];
    assert_eq!((status.started, status.ready), (Some(expect.0), expect.1), "{container} {state:?}");
}

fn report(startup: Option<bool>, readiness: Option<bool>, workers: (bool, bool)) -> impl Fn(&mut Scene) {
    move |scene| {
        let report = ProbeReport {
            startup,
            readiness,
            has_startup_worker: workers.0,
            has_readiness_worker: workers.1,
        };
        scene.probes.insert("c".to_owned(), report);
    }
}

fn plain() -> Value {
    json!({"name": "c"})
}

#[test]
fn without_probes_running_is_ready() {
    let nothing = |_: &mut Scene| {};
    let sidecar = || json!({"name": "c", "restartPolicy": "Always"});
    check(ContainerKind::Regular, plain(), Running, 0, nothing, (true, true));
    check(ContainerKind::Regular, plain(), Created, 0, nothing, (false, false));
    check(ContainerKind::Regular, plain(), Exited, 0, nothing, (false, false));
    check(ContainerKind::Init, sidecar(), Running, 0, nothing, (true, true));
    check(ContainerKind::Init, sidecar(), Exited, 0, nothing, (false, false));
    check(ContainerKind::Init, plain(), Running, 0, nothing, (true, false));
    check(ContainerKind::Init, plain(), Exited, 0, nothing, (false, true));
    check(ContainerKind::Init, plain(), Exited, 1, nothing, (false, false));
}

#[test]
fn probes_decide() {
    let regular =
        |set: &dyn Fn(&mut Scene), expect| check(ContainerKind::Regular, plain(), Running, 0, set, expect);
    regular(&report(None, None, (false, false)), (true, true));
    regular(&report(None, None, (true, false)), (false, false));
    regular(&report(Some(false), None, (true, false)), (false, false));
    regular(&report(Some(true), None, (true, false)), (true, true));
    regular(&report(None, None, (false, true)), (true, false));
    regular(&report(None, Some(false), (false, true)), (true, false));
    regular(&report(None, Some(true), (false, true)), (true, true));
    regular(&report(Some(true), Some(true), (true, true)), (true, true));
    regular(&report(Some(false), Some(true), (true, true)), (false, false));
    check(
        ContainerKind::Regular,
        plain(),
        Exited,
        0,
        report(Some(true), Some(true), (true, true)),
        (false, false),
    );
}

#[test]
fn a_defined_probe_is_waited_for() {
    let nothing = |_: &mut Scene| {};
    let probed = |probe: &str| {
        let mut container = plain();
        container[probe] = json!({});
        container
    };
    check(ContainerKind::Regular, probed("readinessProbe"), Running, 0, nothing, (true, false));
    check(ContainerKind::Regular, probed("startupProbe"), Running, 0, nothing, (false, false));
    check(ContainerKind::Regular, probed("livenessProbe"), Running, 0, nothing, (true, true));
    let worker_gone = report(None, None, (false, false));
    check(ContainerKind::Regular, probed("readinessProbe"), Running, 0, worker_gone, (true, true));
}

fn started_before(id: &'static str) -> impl Fn(&mut Scene) {
    move |scene| {
        report(None, None, (true, false))(scene);
        scene.old = serde_json::from_value(json!({"containerStatuses": [{
            "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0, "started": true,
            "state": {"running": {}}, "containerID": id,
        }]}))
        .unwrap();
    }
}

#[test]
fn started_is_kept_for_the_same_instance() {
    check(ContainerKind::Regular, plain(), Running, 0, started_before("containerd://c0"), (true, true));
    check(ContainerKind::Regular, plain(), Running, 0, started_before("containerd://other"), (false, false));
}

#[test]
fn a_restarted_agent_keeps_what_was_said() {
    let judged = |agent_started: u64, api_ready: &'static str, readiness: Option<bool>| {
        move |scene: &mut Scene| {
            report(None, readiness, (false, true))(scene);
            scene.agent_started = at(agent_started).wall;
            let pod = std::sync::Arc::make_mut(&mut scene.pod.pod);
            pod.status = Some(k8s::PodStatus {
                conditions: serde_json::from_value(json!([{"type": "Ready", "status": api_ready}])).unwrap(),
                ..Default::default()
            });
        }
    };
    let regular = |container: Value, set: &dyn Fn(&mut Scene), ready| {
        check(ContainerKind::Regular, container, Running, 0, set, (true, ready));
    };
    let probed = || json!({"name": "c", "readinessProbe": {}});
    regular(probed(), &judged(60, "True", None), true);
    regular(probed(), &judged(60, "False", None), false);
    regular(probed(), &judged(60, "True", Some(false)), false);
    regular(probed(), &judged(60, "False", Some(true)), true);
    regular(plain(), &judged(60, "False", None), true);
    // started too late for an earlier agent to have judged it
    regular(probed(), &judged(10, "True", None), false);
    regular(probed(), &judged(0, "True", None), false);
    // with the gate ChangeContainerStatusOnKubeletRestart the first probe decides
    let forgets = |scene: &mut Scene| {
        judged(60, "True", None)(scene);
        scene.keeps_readiness = false;
    };
    regular(probed(), &forgets, false);
    let started = |scene: &mut Scene| {
        started_before("containerd://c0")(scene);
        scene.keeps_readiness = false;
    };
    check(ContainerKind::Regular, plain(), Running, 0, started, (false, false));
}

#[test]
fn ephemeral_containers_are_neither() {
    let pod = view(json!({}), json!({"ephemeralContainers": [{"name": "c"}]}), Value::Null, Source::Api);
    let scene = Scene::new(pod, observed(vec![instance("c", 0, Running, 0)]));
    let status = &container_statuses(&scene.inputs(), ContainerKind::Ephemeral)[0];
    assert_eq!((status.started, status.ready), (None, false));
}
