use model::k8s;
use model::observed::ContainerState::{Exited, Running};
use serde_json::{Value, json};

use crate::status::conditions::find;
use crate::status::sample::{Scene, deleting, instance, observed, pod, sandbox, status, view};
use crate::status::{containers_ready, initialized, ready};
use model::PodPhase;

/// `True`, or `False Reason: message`.
fn words(condition: &k8s::PodCondition) -> String {
    let mut words = condition.status.clone();
    if let Some(reason) = &condition.reason {
        words += &format!(" {reason}");
    }
    if let Some(message) = &condition.message {
        words += &format!(": {message}");
    }
    words
}

fn statuses(list: &str) -> Vec<k8s::ContainerStatus> {
    list.split_whitespace()
        .map(|word| {
            let (name, state) = word.split_once(':').unwrap();
            let mut status = status(name, state);
            // a normal init container is ready once it ended well
            if name.starts_with('i') {
                status.ready = state == "0";
            }
            status
        })
        .collect()
}

fn spec() -> Value {
    json!({
        "containers": [{"name": "c"}, {"name": "d"}],
        "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
    })
}

#[test]
fn containers_ready_table() {
    let pod = pod(spec());
    let check = |list: &str, phase: PodPhase, expect: &str| {
        let statuses = statuses(list);
        let statuses: Vec<_> = statuses.iter().collect();
        assert_eq!(words(&containers_ready(&pod, Some(&statuses), phase)), expect, "{list} {phase:?}");
    };
    check("i:0 s:run c:run d:run", PodPhase::Running, "True");
    check("i:1 s:run c:run d:run", PodPhase::Running, "True");
    check(
        "i:0 s:run c:run d:wait",
        PodPhase::Pending,
        "False ContainersNotReady: containers with unready status: [d]",
    );
    check(
        "i:0 s:run! c:1 d:wait",
        PodPhase::Running,
        "False ContainersNotReady: containers with unready status: [s c d]",
    );
    check(
        "c:wait",
        PodPhase::Pending,
        "False ContainersNotReady: containers with unknown status: [s d], containers with unready status: [c]",
    );
    check("i:0 s:0 c:0 d:0", PodPhase::Succeeded, "False PodCompleted");
    check("s:run c:run d:run", PodPhase::Failed, "False PodFailed");
    check("", PodPhase::Failed, "False PodFailed");
    check(
        "c:0 d:0",
        PodPhase::Succeeded,
        "False ContainersNotReady: containers with unknown status: [s], containers with unready status: [c d]",
    );
    assert_eq!(words(&containers_ready(&pod, None, PodPhase::Running)), "False UnknownContainerStatuses");
}

#[test]
fn ready_table() {
    let all_ready: k8s::PodCondition =
        serde_json::from_value(json!({"type": "ContainersReady", "status": "True"})).unwrap();
    let not_ready: k8s::PodCondition = serde_json::from_value(
        json!({"type": "ContainersReady", "status": "False", "reason": "R", "message": "m"}),
    )
    .unwrap();
    let pod = pod(json!({"readinessGates": [{"conditionType": "a/x"}, {"conditionType": "a/y"}]}));
    let check = |others: Value, containers: &k8s::PodCondition, expect: &str| {
        let others: Vec<k8s::PodCondition> = serde_json::from_value(others).unwrap();
        let condition = ready(&pod, &others, containers);
        assert_eq!((condition.type_.as_str(), words(&condition)), ("Ready", expect.to_owned()), "{others:?}");
    };
    let gate = |kind: &str, status: &str| json!({"type": kind, "status": status});
    check(json!([]), &not_ready, "False R: m");
    check(json!([gate("a/x", "True"), gate("a/y", "True")]), &all_ready, "True");
    check(
        json!([gate("a/x", "True")]),
        &all_ready,
        "False ReadinessGatesNotReady: corresponding condition of pod readiness gate \"a/y\" does not exist.",
    );
    check(
        json!([gate("a/x", "Unknown")]),
        &all_ready,
        "False ReadinessGatesNotReady: the status of pod readiness gate \"a/x\" is not \"True\", but Unknown, corresponding condition of pod readiness gate \"a/y\" does not exist.",
    );
}

#[test]
fn initialized_table() {
    let with_init = pod(spec());
    let check = |list: &str, phase: PodPhase, before: Option<&str>, expect: &str| {
        let old = before.map(|status| k8s::PodStatus {
            conditions: serde_json::from_value(json!([{"type": "Initialized", "status": status}])).unwrap(),
            ..Default::default()
        });
        let statuses = statuses(list);
        let statuses: Vec<_> = statuses.iter().collect();
        let condition = initialized(&with_init, old.as_ref(), Some(&statuses), phase);
        assert_eq!(words(&condition), expect, "{list} {phase:?} {before:?}");
    };
    let incomplete = "False ContainersNotInitialized: containers with incomplete status:";
    check("i:wait s:wait c:wait", PodPhase::Pending, None, &format!("{incomplete} [i s]"));
    check("i:run s:wait c:wait", PodPhase::Pending, None, &format!("{incomplete} [i s]"));
    check("i:0 s:run! c:wait", PodPhase::Pending, None, &format!("{incomplete} [s]"));
    check("i:0 s:run c:wait", PodPhase::Pending, None, "True");
    check("i:1 s:wait c:wait", PodPhase::Failed, None, &format!("{incomplete} [i s]"));
    check(
        "s:wait c:wait",
        PodPhase::Pending,
        None,
        "False ContainersNotInitialized: containers with unknown status: [i], containers with incomplete status: [s]",
    );
    check("i:0 s:0 c:0", PodPhase::Succeeded, None, "True PodCompleted");
    check("s:0 c:0", PodPhase::Succeeded, None, "True");
    check("i:wait s:wait c:run", PodPhase::Running, None, "True");
    check("i:wait s:wait c:1", PodPhase::Running, None, "True");
    check("i:wait s:wait c:wait", PodPhase::Pending, Some("True"), "True");
    check("i:wait s:wait c:wait", PodPhase::Pending, Some("False"), &format!("{incomplete} [i s]"));
    let unknown = |pod| words(&initialized(pod, None, None, PodPhase::Pending));
    assert_eq!(unknown(&with_init), "False UnknownContainerStatuses");
    assert_eq!(unknown(&pod(json!({}))), "True");
}

#[test]
fn the_list_has_an_order_and_keeps_what_is_foreign() {
    let api = json!({"phase": "Running", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "stale"},
        {"type": "example.com/gate", "status": "True", "message": "theirs"},
        {"type": "PodResizePending", "status": "True"},
        {"type": "DisruptionTarget", "status": "False"},
    ]});
    let pod =
        view(json!({"generation": 7}), json!({"containers": [{"name": "c"}]}), api, model::pod::Source::Api);
    let mut scene = Scene::new(pod, observed(vec![instance("c", 0, Running, 0)]));
    scene.old = serde_json::from_value(json!({"phase": "Running", "conditions": [
        {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"},
    ]}))
    .unwrap();
    let derived = scene.derive();
    let conditions = derived.conditions.unwrap();
    let order: Vec<_> =
        conditions.iter().map(|c| (c.type_.as_str(), words(c), c.observed_generation)).collect();
    let expect = [
        ("example.com/gate", "True: theirs", None),
        ("DisruptionTarget", "True TerminationByKubelet", None),
        ("PodReadyToStartContainers", "True", Some(7)),
        ("Initialized", "True", Some(7)),
        ("Ready", "True", Some(7)),
        ("ContainersReady", "True", Some(7)),
        ("PodScheduled", "True", Some(7)),
    ];
    let expect: Vec<_> = expect.into_iter().map(|(kind, words, g)| (kind, words.to_owned(), g)).collect();
    assert_eq!(order, expect);
    assert_eq!(derived.observed_generation, Some(7));
}

#[test]
fn readiness_to_start_is_that_of_the_sandbox() {
    let pod = pod(json!({"containers": [{"name": "c"}]}));
    let check = |sandboxes: Vec<_>, expect: &str| {
        let mut observed = observed(Vec::new());
        observed.sandboxes = sandboxes;
        observed.sort();
        let conditions = Scene::new(pod.clone(), observed).derive().conditions.unwrap();
        assert_eq!(words(find(&conditions, "PodReadyToStartContainers").unwrap()), expect);
    };
    check(Vec::new(), "False");
    check(vec![sandbox("a", 0, true)], "True");
    check(vec![sandbox("a", 0, false)], "False");
    check(vec![sandbox("a", 0, false), sandbox("b", 1, true)], "True");
    let mut off = Scene::new(pod.clone(), observed(Vec::new()));
    off.ready_to_start = false;
    assert_eq!(find(&off.derive().conditions.unwrap(), "PodReadyToStartContainers"), None);
}

#[test]
fn restart_of_all_containers() {
    let rule = json!({"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}});
    let spec = json!({"restartPolicy": "Never", "containers": [
        {"name": "c", "restartPolicy": "Never", "restartPolicyRules": [rule]}, {"name": "d"},
    ]});
    let pod_with_rule = pod(spec);
    let restarting = |scene: &Scene| {
        let conditions = scene.derive().conditions.unwrap();
        find(&conditions, "AllContainersRestarting").map(words)
    };
    let check = |containers: Vec<_>, expect: &str| {
        let scene = Scene::new(pod_with_rule.clone(), observed(containers));
        assert_eq!(restarting(&scene).as_deref(), Some(expect));
    };
    let started = "True RestartAllContainersStarted: container exited with restart policy rule";
    check(vec![], "False");
    check(vec![instance("c", 0, Running, 0), instance("d", 0, Running, 0)], "False");
    check(vec![instance("c", 0, Exited, 42), instance("d", 0, Running, 0)], started);
    check(vec![instance("c", 0, Exited, 1), instance("d", 0, Exited, 0)], "False PodFailed");
    check(vec![instance("c", 0, Exited, 0), instance("d", 0, Exited, 0)], "False PodCompleted");

    // it goes on until the runtime has none of them left, and only then the containers start again
    let mut scene = Scene::new(
        pod_with_rule.clone(),
        observed(vec![instance("c", 0, Exited, 42), instance("d", 0, Running, 0)]),
    );
    scene.advance();
    scene.observed = observed(vec![instance("c", 0, Exited, 42)]);
    scene.advance();
    assert_eq!(restarting(&scene).as_deref(), Some(started));
    scene.observed = observed(vec![]);
    scene.advance();
    assert_eq!(restarting(&scene).as_deref(), Some("False"));

    let without = Scene::new(pod(json!({"containers": [{"name": "c"}]})), observed(vec![]));
    assert_eq!(restarting(&without), None);
    assert_eq!(restarting(&Scene::new(deleting(&pod_with_rule), observed(vec![]))).as_deref(), Some("False"));
}

#[test]
fn a_resize_that_is_not_applied_is_told() {
    let told = |scene: &Scene| {
        let conditions = scene.derive().conditions.unwrap();
        find(&conditions, "PodResizePending").map(words)
    };
    let mut scene = Scene::new(pod(json!({"containers": [{"name": "c"}]})), observed(vec![]));
    assert_eq!(told(&scene), None);
    scene.resize_pending = true;
    let expect = "True Infeasible: In-place pod resize is not supported on this node";
    assert_eq!(told(&scene).as_deref(), Some(expect));
}
