use model::k8s;
use serde_json::{Value, json};

use crate::status::sample::{at, pod, status};
use crate::status::{IllegalTransition, StatusCheck, accept, check_status};

fn parse(value: Value) -> k8s::PodStatus {
    serde_json::from_value(value).unwrap()
}

fn condition(kind: &str, status: &str) -> Value {
    json!({"type": kind, "status": status})
}

fn times(status: &k8s::PodStatus) -> Vec<(&str, Option<k8s::Time>)> {
    let conditions = status.conditions.as_deref().unwrap_or_default();
    conditions.iter().map(|c| (c.type_.as_str(), c.last_transition_time.clone())).collect()
}

#[test]
fn transition_times() {
    let pod = pod(json!({}));
    let time = |seconds| Some(at(seconds).wall.api_time());
    let first = parse(
        json!({"conditions": [condition("Ready", "False"), condition("Initialized", "True"), condition("x/y", "True")]}),
    );
    let first = accept(&pod, None, first, at(10)).unwrap();
    assert_eq!(times(&first), [("Ready", time(10)), ("Initialized", time(10)), ("x/y", None)]);
    assert_eq!(first.start_time, time(10));

    let mut second = parse(
        json!({"conditions": [condition("Ready", "True"), condition("Initialized", "True"), condition("x/y", "False")]}),
    );
    second.conditions.as_mut().unwrap()[1].reason = Some("PodCompleted".to_owned());
    let second = accept(&pod, Some(&first), second, at(20)).unwrap();
    assert_eq!(times(&second), [("Ready", time(20)), ("Initialized", time(10)), ("x/y", None)]);
    assert_eq!(second.start_time, time(10), "a start time is set once");

    // a resize changes with its reason
    let resize = |reason: &str| {
        parse(json!({"conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}]}))
    };
    let deferred = accept(&pod, None, resize("Deferred"), at(30)).unwrap();
    assert_eq!(accept(&pod, Some(&deferred), resize("Deferred"), at(40)), None);
    let infeasible = accept(&pod, Some(&deferred), resize("Infeasible"), at(40)).unwrap();
    assert_eq!(times(&infeasible), [("PodResizePending", time(40))]);
}

#[test]
fn start_time_comes_from_the_oldest_source() {
    let pod = pod(json!({}));
    let with_start =
        |seconds: u64| k8s::PodStatus { start_time: Some(at(seconds).wall.api_time()), ..Default::default() };
    let check = |old: Option<k8s::PodStatus>, new: k8s::PodStatus, expect: u64| {
        let mut new = new;
        new.reason = Some("changed".to_owned());
        let accepted = accept(&pod, old.as_ref(), new, at(9)).unwrap();
        assert_eq!(accepted.start_time, Some(at(expect).wall.api_time()));
    };
    check(None, k8s::PodStatus::default(), 9);
    check(None, with_start(3), 3);
    check(Some(with_start(2)), with_start(3), 2);
    check(Some(k8s::PodStatus::default()), with_start(3), 3);
}

#[test]
fn generations_only_grow() {
    let pod = pod(json!({}));
    let check = |old: Option<i64>, new: Option<i64>, expect: Option<i64>| {
        let old = k8s::PodStatus { observed_generation: old, ..Default::default() };
        let new =
            k8s::PodStatus { observed_generation: new, phase: Some("Running".into()), ..Default::default() };
        assert_eq!(accept(&pod, Some(&old), new, at(0)).unwrap().observed_generation, expect);
    };
    check(None, None, None);
    check(None, Some(1), Some(1));
    check(Some(2), Some(1), Some(2));
    check(Some(2), Some(3), Some(3));
    check(Some(2), None, Some(2));
}

#[test]
fn equal_statuses_are_dropped() {
    let pod = pod(
        json!({"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "z"}, {"name": "i"}]}),
    );
    let base = || {
        parse(json!({
            "phase": "Running", "startTime": "2024-01-01T00:00:00Z",
            "conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": "2024-01-01T00:00:00Z", "observedGeneration": 1},
                {"type": "x/y", "status": "True"},
            ],
            "containerStatuses": [status("a", "run"), status("b", "run")],
            "initContainerStatuses": [status("z", "0"), status("i", "0")],
        }))
    };
    let check = |expect_drop: bool, change: &dyn Fn(&mut k8s::PodStatus)| {
        let mut new = base();
        change(&mut new);
        let verdict = check_status(&pod, Some(&base()), new, at(5));
        assert_eq!(verdict == StatusCheck::Unchanged, expect_drop, "{verdict:?}");
    };
    let condition = |index: usize, change: fn(&mut k8s::PodCondition)| {
        move |status: &mut k8s::PodStatus| change(&mut status.conditions.as_mut().unwrap()[index])
    };
    check(true, &|_| {});
    check(true, &condition(0, |c| c.last_transition_time = None));
    check(true, &condition(0, |c| c.observed_generation = Some(2)));
    check(true, &condition(1, |c| c.status = "False".to_owned()));
    check(true, &|status| status.conditions.as_mut().unwrap().truncate(1));
    check(true, &|status| status.conditions.as_mut().unwrap().reverse());
    check(true, &|status| status.container_statuses.as_mut().unwrap().reverse());
    check(true, &|status| status.init_container_statuses.as_mut().unwrap().reverse());
    check(true, &|status| status.resource_claim_statuses = Some(vec![Default::default()]));
    check(true, &|status| status.start_time = None);
    check(true, &|status| status.container_statuses.as_mut().unwrap()[0].last_state = None);

    check(false, &condition(0, |c| c.status = "False".to_owned()));
    check(false, &condition(0, |c| c.reason = Some("r".to_owned())));
    check(false, &condition(0, |c| c.message = Some("m".to_owned())));
    check(false, &condition(1, |c| c.type_ = "DisruptionTarget".to_owned()));
    check(false, &|status| status.conditions.as_mut().unwrap().clear());
    check(false, &|status| status.phase = Some("Failed".to_owned()));
    check(false, &|status| status.pod_ip = Some("10.0.0.1".to_owned()));
    check(false, &|status| status.observed_generation = Some(3));
    check(false, &|status| status.container_statuses.as_mut().unwrap()[0].restart_count = 1);
    assert!(accept(&pod, None, base(), at(5)).is_some(), "the first is never dropped");
}

#[test]
fn times_are_cut_to_seconds() {
    let pod = pod(json!({"containers": [{"name": "a"}]}));
    let mut container = status("a", "0");
    let precise = k8s::Time(at(1).wall.plus(std::time::Duration::from_millis(700)).timestamp());
    let whole = Some(at(1).wall.api_time());
    container.state.as_mut().unwrap().terminated.as_mut().unwrap().finished_at = Some(precise.clone());
    let new = k8s::PodStatus {
        start_time: Some(precise),
        container_statuses: Some(vec![container]),
        ..Default::default()
    };
    let accepted = accept(&pod, None, new, at(9)).unwrap();
    assert_eq!(accepted.start_time, whole);
    let state = accepted.container_statuses.unwrap().remove(0).state.unwrap();
    assert_eq!(state.terminated.unwrap().finished_at, whole);
}

#[test]
fn messages_share_the_room() {
    let check = |containers: usize, init: usize, ephemeral: usize, letter: char, expect: usize| {
        let list = |prefix: &str, count: usize| -> Value {
            (0..count).map(|n| json!({"name": format!("{prefix}{n}")})).collect()
        };
        let pod = pod(json!({
            "containers": list("c", containers), "initContainers": list("i", init), "ephemeralContainers": list("e", ephemeral),
        }));
        let long = |name: &str| {
            let mut status = status(name, "1");
            let message = Some(letter.to_string().repeat(20_000));
            status.state.as_mut().unwrap().terminated.as_mut().unwrap().message = message;
            status.last_state = status.state.clone();
            status
        };
        let new = k8s::PodStatus {
            container_statuses: Some(vec![long("c0")]),
            init_container_statuses: (init > 0).then(|| vec![long("i0")]),
            ephemeral_container_statuses: (ephemeral > 0).then(|| vec![long("e0")]),
            ..Default::default()
        };
        let accepted = accept(&pod, None, new, at(0)).unwrap();
        let lists = [
            accepted.container_statuses,
            accepted.init_container_statuses,
            accepted.ephemeral_container_statuses,
        ];
        for container in lists.into_iter().flatten().flatten() {
            for state in [container.state, container.last_state] {
                assert_eq!(
                    state.unwrap().terminated.unwrap().message.unwrap().len(),
                    expect,
                    "{}",
                    container.name
                );
            }
        }
    };
    check(1, 0, 0, 'x', 12_288);
    check(3, 0, 0, 'x', 4_096);
    check(1, 1, 1, 'x', 4_096);
    check(5, 0, 0, 'x', 2_457);
    // a letter is not cut in two
    check(5, 0, 0, '\u{e4}', 2_456);
    check(1, 0, 0, '\u{20ac}', 12_288);
}

#[test]
fn containers_that_are_over_stay_over() {
    let check = |spec: Value, old: &str, new: &str, illegal: Option<&str>| {
        let pod = pod(spec.clone());
        let part = |short: &str| {
            let mut part = k8s::PodStatus::default();
            for word in short.split_whitespace() {
                let (name, state) = word.split_once(':').unwrap();
                let list = if name.starts_with('c') {
                    &mut part.container_statuses
                } else {
                    &mut part.init_container_statuses
                };
                list.get_or_insert_default().push(status(name, state));
            }
            part
        };
        let verdict = check_status(&pod, Some(&part(old)), part(new), at(0));
        let expect = illegal.map(|name| IllegalTransition { container: name.to_owned() });
        match (verdict, expect) {
            (StatusCheck::Illegal(got), Some(expect)) => assert_eq!(got, expect),
            (StatusCheck::Illegal(got), None) => panic!("{spec} {old} -> {new}: {got}"),
            (_, Some(_)) => panic!("{spec} {old} -> {new} was let through"),
            (_, None) => {}
        }
    };
    let spec = |policy: &str| {
        json!({
            "restartPolicy": policy, "containers": [{"name": "c"}, {"name": "c2"}],
            "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
        })
    };
    check(spec("Never"), "c:0", "c:run", Some("c"));
    check(spec("Never"), "c:1", "c:wait", Some("c"));
    check(spec("Never"), "c:run c2:1", "c:run c2:run", Some("c2"));
    check(spec("Never"), "c:run", "c:wait", None);
    check(spec("Never"), "c:1", "c:2", None);
    check(spec("Never"), "c:1", "", None);
    check(spec("Never"), "i:0", "i:run", Some("i"));
    check(spec("Never"), "i:1", "i:run", Some("i"));
    check(spec("Never"), "s:1", "s:run", None);
    check(spec("OnFailure"), "c:0", "c:run", Some("c"));
    check(spec("OnFailure"), "c:1", "c:run", None);
    check(spec("OnFailure"), "i:0", "i:run", Some("i"));
    check(spec("OnFailure"), "i:1", "i:run", None);
    check(spec("Always"), "c:0 i:0", "c:run i:run", None);

    let with_rule = |action: &str| {
        let rule = json!({"action": action, "exitCodes": {"operator": "In", "values": [42]}});
        json!({"restartPolicy": "Never", "containers": [
            {"name": "c", "restartPolicy": "Never", "restartPolicyRules": [rule]}, {"name": "c2"},
        ]})
    };
    check(with_rule("Restart"), "c:42", "c:run", None);
    check(with_rule("Restart"), "c:1", "c:run", Some("c"));
    check(with_rule("Restart"), "c2:42", "c2:run", Some("c2"));
    check(with_rule("RestartAllContainers"), "c2:1", "c2:run", None);
    let own = json!({"restartPolicy": "Never", "containers": [{"name": "c", "restartPolicy": "OnFailure"}]});
    check(own.clone(), "c:1", "c:run", None);
    check(own, "c:0", "c:run", Some("c"));
    let text = IllegalTransition { container: "c".to_owned() }.to_string();
    assert_eq!(text, "terminated container c attempted illegal transition to non-terminated state");
}
