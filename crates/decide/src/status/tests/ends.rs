use model::k8s;
use model::pod::{PodView, QosClass, Source};
use model::{Now, Wall};
use serde_json::{Value, json};

use crate::status::sample::{at, pod, status, view};
use crate::status::{deadline, deadline_exceeded, finish_status, keep_terminal_conditions, rejected};

/// Statuses in the short form of the samples; `lost` is a container whose end nobody saw.
fn shorts(list: &Option<Vec<k8s::ContainerStatus>>) -> String {
    let words = list.iter().flatten().map(|status| {
        let state = status.state.as_ref().unwrap();
        let word = match (&state.terminated, &state.waiting) {
            (Some(end), _) if end.reason.as_deref() == Some("ContainerStatusUnknown") => {
                assert_eq!(end.exit_code, 137);
                let message = "The container could not be located when the pod was terminated";
                assert_eq!(end.message.as_deref(), Some(message));
                "lost".to_owned()
            }
            (Some(end), _) => end.exit_code.to_string(),
            (None, Some(_)) => "wait".to_owned(),
            (None, None) => "run".to_owned(),
        };
        format!("{}:{word}", status.name)
    });
    words.collect::<Vec<_>>().join(" ")
}

fn pod_of(containers: &str, source: Source) -> PodView {
    let mut spec = json!({"containers": [], "initContainers": []});
    for word in containers.split_whitespace() {
        let name = word.split_once(':').unwrap().0;
        let list = if name.starts_with('c') { "containers" } else { "initContainers" };
        let mut container = json!({"name": name});
        if name.starts_with('s') {
            container["restartPolicy"] = json!("Always");
        }
        spec[list].as_array_mut().unwrap().push(container);
    }
    view(json!({}), spec, Value::Null, source)
}

fn status_of(containers: &str, phase: &str) -> k8s::PodStatus {
    let mut part = k8s::PodStatus { phase: Some(phase.to_owned()), ..Default::default() };
    for word in containers.split_whitespace() {
        let (name, state) = word.split_once(':').unwrap();
        let list = if name.starts_with('c') {
            &mut part.container_statuses
        } else {
            &mut part.init_container_statuses
        };
        list.get_or_insert_default().push(status(name, state));
    }
    part
}

#[test]
fn finishing_closes_what_is_open() {
    let check = |phase: &str, before: &str, after: &str, expect_phase: &str| {
        let finished = finish_status(&pod_of(before, Source::Api), status_of(before, phase));
        let shown = [shorts(&finished.init_container_statuses), shorts(&finished.container_statuses)];
        let shown = shown.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
        assert_eq!((shown.as_str(), finished.phase.as_deref()), (after, Some(expect_phase)), "{before}");
    };
    check("Running", "c:0 c2:1", "c:0 c2:1", "Failed");
    check("Succeeded", "c:0", "c:0", "Succeeded");
    check("Failed", "c:1", "c:1", "Failed");
    check("Running", "c:run c2:0", "c:lost c2:0", "Failed");
    check("Pending", "c:wait", "c:lost", "Failed");
    check("Pending", "c:wait/1", "c:lost", "Failed");
    // not initialised: regular containers can't have run, and of the init containers only those before the last
    // that was reached
    check("Pending", "i:wait c:wait", "i:lost c:wait", "Failed");
    check("Pending", "i:wait i2:wait c:wait", "i:lost i2:wait c:wait", "Failed");
    check("Pending", "i:0 i2:wait i3:wait c:wait", "i:0 i2:wait i3:wait c:wait", "Failed");
    check("Pending", "i:wait i2:run i3:wait c:wait", "i:lost i2:lost i3:wait c:wait", "Failed");
    check("Pending", "i:wait/1 i2:wait c:wait", "i:lost i2:wait c:wait", "Failed");
    // initialised: the last init container is done, or a regular one was seen
    check("Pending", "i:0 c:wait", "i:0 c:lost", "Failed");
    check("Pending", "i:wait/0 c:wait", "i:lost c:lost", "Failed");
    check("Running", "i:wait c:run", "i:lost c:lost", "Failed");
    check("Running", "i:wait c:wait/1 c2:wait", "i:lost c:lost c2:lost", "Failed");
    check("Pending", "s:run c:wait", "s:lost c:lost", "Failed");
    check("Pending", "s:run! c:wait", "s:lost c:wait", "Failed");
}

#[test]
fn static_pods_have_no_last_phase() {
    let finished = finish_status(&pod_of("c:0", Source::File), status_of("c:0", "Running"));
    assert_eq!(finished.phase.as_deref(), Some("Running"));
}

#[test]
fn what_the_api_server_saw_counts_too() {
    let mut pod = pod_of("i:wait c:wait", Source::Api);
    std::sync::Arc::make_mut(&mut pod.pod).status = Some(status_of("i:0 c:wait", "Pending"));
    let finished = finish_status(&pod, status_of("i:wait c:wait", "Pending"));
    assert_eq!(shorts(&finished.container_statuses), "c:lost");
}

#[test]
fn the_last_word_on_readiness_stays() {
    let with = |phase: &str, conditions: Value| -> k8s::PodStatus {
        serde_json::from_value(json!({"phase": phase, "conditions": conditions})).unwrap()
    };
    let ready = |reason: &str| json!({"type": "Ready", "status": "False", "reason": reason});
    let sandbox = |status: &str| json!({"type": "PodReadyToStartContainers", "status": status});
    let check = |old: Option<k8s::PodStatus>, expect: &str| {
        let derived = with("Failed", json!([sandbox("False"), ready("PodFailed")]));
        let kept = keep_terminal_conditions(old.as_ref(), derived);
        assert_eq!(kept, with("Failed", json!([sandbox("False"), ready(expect)])), "{old:?}");
    };
    let said = || json!([sandbox("True"), ready("ContainersNotReady")]);
    check(Some(with("Failed", said())), "ContainersNotReady");
    check(Some(with("Pending", said())), "PodFailed");
    check(Some(with("Failed", json!([]))), "PodFailed");
    check(None, "PodFailed");
}

#[test]
fn deadlines() {
    let started =
        |seconds: u64| k8s::PodStatus { start_time: Some(at(seconds).wall.api_time()), ..Default::default() };
    let with_deadline = pod(json!({"activeDeadlineSeconds": 5}));
    let check = |pod: &PodView, old: Option<k8s::PodStatus>, expect: Option<u64>| {
        let expect: Option<Wall> = expect.map(|seconds| at(seconds).wall);
        assert_eq!(deadline(pod, old.as_ref()), expect);
        if let Some(instant) = expect {
            let exceeded = |wall| deadline_exceeded(pod, old.as_ref(), Now { wall, ..at(0) });
            assert!(exceeded(instant) && !exceeded(Wall(instant.0 - 1)));
        } else {
            assert!(!deadline_exceeded(pod, old.as_ref(), at(1_000_000)));
        }
    };
    check(&with_deadline, None, None);
    check(&with_deadline, Some(k8s::PodStatus::default()), None);
    check(&with_deadline, Some(started(10)), Some(15));
    check(&pod(json!({})), Some(started(10)), None);
    let shown = json!({"startTime": serde_json::to_value(at(20).wall.api_time()).unwrap()});
    let known_to_api = view(json!({}), json!({"activeDeadlineSeconds": 5}), shown, Source::Api);
    check(&known_to_api, None, Some(25));
    check(&known_to_api, Some(started(10)), Some(15));
}

#[test]
fn rejections() {
    let check = |generation: Value, shown_class: Value, expect: Value| {
        let pod = view(
            json!({"generation": generation}),
            json!({"containers": [{"name": "c"}]}),
            json!({"phase": "Pending", "qosClass": shown_class}),
            Source::Api,
        );
        let status = rejected(&pod, QosClass::Burstable, "OutOfcpu", "not enough");
        assert_eq!(serde_json::to_value(status).unwrap(), expect);
    };
    check(
        json!(1),
        json!(null),
        json!({"phase": "Failed", "reason": "OutOfcpu", "message": "Pod was rejected: not enough", "qosClass": "Burstable", "observedGeneration": 1}),
    );
    check(
        json!(0),
        json!("BestEffort"),
        json!({"phase": "Failed", "reason": "OutOfcpu", "message": "Pod was rejected: not enough", "qosClass": "BestEffort"}),
    );
}
