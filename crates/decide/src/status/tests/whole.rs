use model::k8s;
use model::observed::ContainerState::{Exited, Running};
use model::pod::Source;
use serde_json::{Value, json};

use crate::status::sample::{Scene, at, deleting, instance, observed, pod, sandbox, view};
use crate::status::{IpFamily, PodResources, ResourceList, host_ips, pod_ips};

fn spec(policy: &str) -> Value {
    json!({"restartPolicy": policy, "containers": [{"name": "c"}]})
}

fn explained(status: &k8s::PodStatus) -> String {
    let part = |text: &Option<String>| text.clone().unwrap_or_default();
    format!("{} {} {}", part(&status.phase), part(&status.reason), part(&status.message))
        .trim_end()
        .to_owned()
}

#[test]
fn a_terminal_phase_is_final() {
    let check = |api: &str, old: &str, expect: &str| {
        let pod = view(
            json!({}),
            spec("Always"),
            json!({"phase": api, "reason": "A", "message": "a"}),
            Source::Api,
        );
        let mut scene = Scene::new(pod, observed(vec![instance("c", 0, Running, 0)]));
        scene.old = (!old.is_empty())
            .then(|| serde_json::from_value(json!({"phase": old, "reason": "O", "message": "o"})).unwrap());
        assert_eq!(explained(&scene.derive()), expect, "{api} {old}");
    };
    check("Pending", "", "Running");
    check("Pending", "Pending", "Running");
    check("Pending", "Failed", "Failed O o");
    check("Pending", "Succeeded", "Succeeded O o");
    check("Failed", "Running", "Failed A a");
    check("Failed", "", "Failed A a");
    check("Failed", "Failed", "Failed O o");
    // the API server can't be made to change its mind
    check("Failed", "Succeeded", "Failed A a");
    // an explanation lives as long as its phase
    check("Pending", "Running", "Running O o");
    check("Running", "", "Running A a");
    check("Running", "Pending", "Running A a");
}

#[test]
fn an_eviction_stays_one_although_containers_ended_well() {
    let mut scene = Scene::new(pod(spec("Never")), observed(vec![instance("c", 0, Exited, 0)]));
    scene.old =
        serde_json::from_value(json!({"phase": "Failed", "reason": "Evicted", "message": "m"})).unwrap();
    scene.terminal = true;
    assert_eq!(explained(&scene.derive()), "Failed Evicted m");
}

#[test]
fn a_pod_past_its_deadline_failed() {
    let mut spec = spec("Never");
    spec["activeDeadlineSeconds"] = json!(50);
    let mut scene = Scene::new(pod(spec), observed(vec![instance("c", 0, Running, 0)]));
    scene.now = at(0);
    scene.advance();
    scene.now = at(49);
    assert_eq!(explained(&scene.derive()), "Running");
    scene.now = at(50);
    let failed = "Failed DeadlineExceeded Pod was active on the node longer than the specified deadline";
    assert_eq!(explained(&scene.derive()), failed);
    scene.advance();
    scene.observed = observed(vec![instance("c", 0, Exited, 0)]);
    scene.terminal = true;
    assert_eq!(explained(&scene.derive()), failed);
}

#[test]
fn a_pod_that_was_over_before_its_deadline_did_not_exceed_it() {
    let mut spec = spec("Never");
    spec["activeDeadlineSeconds"] = json!(50);
    let mut scene = Scene::new(pod(spec), observed(vec![instance("c", 0, Exited, 0)]));
    scene.now = at(0);
    scene.advance();
    scene.now = at(500);
    assert_eq!(explained(&scene.derive()), "Succeeded");
}

#[test]
fn pod_addresses() {
    let check = |reported: &[&str], primary: IpFamily, expect: &[&str]| {
        let reported: Vec<String> = reported.iter().map(|ip| (*ip).to_owned()).collect();
        assert_eq!(pod_ips(&reported, primary), expect, "{reported:?}");
    };
    check(&[], IpFamily::V4, &[]);
    check(&["10.0.0.1"], IpFamily::V4, &["10.0.0.1"]);
    check(&["10.0.0.1"], IpFamily::V6, &["10.0.0.1"]);
    check(&["fd00:0::1", "10.0.0.1"], IpFamily::V4, &["10.0.0.1", "fd00::1"]);
    check(&["10.0.0.1", "FD00::1"], IpFamily::V6, &["fd00::1", "10.0.0.1"]);
    check(&["10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"], IpFamily::V4, &["10.0.0.1", "fd00::1"]);
    check(&["::ffff:10.0.0.1"], IpFamily::V4, &["10.0.0.1"]);
    check(&["10.0.0.1", "no"], IpFamily::V4, &[]);
    let check = |node: &[&str], expect: &[&str]| {
        let node: Vec<String> = node.iter().map(|ip| (*ip).to_owned()).collect();
        assert_eq!(host_ips(&node), expect, "{node:?}");
    };
    check(&[], &[]);
    check(&["10.0.0.1", "10.0.0.2"], &["10.0.0.1"]);
    check(&["fd00::1", "10.0.0.1", "10.0.0.2"], &["fd00::1", "10.0.0.1"]);
}

fn addresses(status: &k8s::PodStatus) -> String {
    let pods: Vec<_> = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str()).collect();
    let hosts: Vec<_> = status.host_ips.iter().flatten().map(|ip| ip.ip.as_str()).collect();
    assert_eq!(status.pod_ip.as_deref(), pods.first().copied());
    assert_eq!(status.host_ip.as_deref(), hosts.first().copied());
    format!("pod {} host {}", pods.join(","), hosts.join(","))
}

#[test]
fn addresses_in_a_status() {
    let mut scene = Scene::new(pod(spec("Always")), observed(vec![]));
    assert_eq!(addresses(&scene.derive()), "pod 10.0.0.1 host ");
    scene.host_ips = vec!["192.168.0.1".to_owned(), "fd00::5".to_owned()];
    assert_eq!(addresses(&scene.derive()), "pod 10.0.0.1 host 192.168.0.1,fd00::5");
    // they outlive the sandbox, but not a new one
    scene.advance();
    scene.observed.sandboxes = vec![sandbox("s0", 0, false)];
    assert_eq!(addresses(&scene.derive()), "pod 10.0.0.1 host 192.168.0.1,fd00::5");
    scene.observed.sandboxes = vec![];
    assert_eq!(addresses(&scene.derive()), "pod 10.0.0.1 host 192.168.0.1,fd00::5");
    let mut newer = sandbox("s1", 1, true);
    newer.ips = vec!["10.0.0.2".to_owned()];
    scene.observed.sandboxes = vec![newer.clone(), sandbox("s0", 0, false)];
    assert_eq!(addresses(&scene.derive()), "pod 10.0.0.2 host 192.168.0.1,fd00::5");
    newer.ips.clear();
    scene.observed.sandboxes = vec![newer];
    assert_eq!(addresses(&scene.derive()), "pod  host 192.168.0.1,fd00::5");
}

#[test]
fn addresses_on_the_host_network() {
    let mut scene = Scene::new(pod(json!({"hostNetwork": true})), observed(vec![]));
    scene.observed.sandboxes[0].ips.clear();
    assert_eq!(addresses(&scene.derive()), "pod  host ");
    scene.host_ips = vec!["192.168.0.1".to_owned()];
    scene.advance();
    assert_eq!(addresses(&scene.derive()), "pod 192.168.0.1 host 192.168.0.1");
    // the first address stays, one of the other family is added
    scene.host_ips = vec!["192.168.0.9".to_owned(), "fd00::5".to_owned()];
    assert_eq!(addresses(&scene.derive()), "pod 192.168.0.1,fd00::5 host 192.168.0.9,fd00::5");
    scene.host_ips = vec!["fd00::5".to_owned(), "192.168.0.9".to_owned()];
    assert_eq!(addresses(&scene.derive()), "pod 192.168.0.1 host fd00::5,192.168.0.9");
}

#[test]
fn resources_of_the_pod() {
    let list = |amounts: Value| -> ResourceList { serde_json::from_value(amounts).unwrap() };
    let mut scene = Scene::new(pod(spec("Always")), observed(vec![]));
    let shown = |scene: &Scene| {
        let status = serde_json::to_value(scene.derive()).unwrap();
        json!([status["allocatedResources"], status["resources"]])
    };
    assert_eq!(shown(&scene), json!([null, {}]));
    scene.resources = PodResources {
        requests: list(json!({"cpu": "1"})),
        limits: list(json!({"cpu": "2", "memory": "1Gi", "hugepages-2Mi": "2Mi"})),
        cpu_limited: true,
        memory_limited: false,
        ..PodResources::default()
    };
    let all =
        json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2", "memory": "1Gi", "hugepages-2Mi": "2Mi"}});
    assert_eq!(shown(&scene), json!([{"cpu": "1"}, all]));
    scene.pod = view(json!({}), spec("Always"), json!({"phase": "Running"}), Source::Api);
    let enforced = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}});
    assert_eq!(shown(&scene), json!([{"cpu": "1"}, enforced]));
    // Of requests, those that a cgroup knows; the kernel's least CPU stands for nothing.
    scene.resources = PodResources {
        requests: list(json!({"cpu": "2m", "memory": "16Mi", "ephemeral-storage": "1Gi"})),
        ..PodResources::default()
    };
    assert_eq!(shown(&scene)[1], json!({"requests": {"memory": "16Mi"}}));
    // What the spec says of the pod as a whole stays, whatever it is of.
    scene.resources.pod_level = serde_json::from_value(json!({
        "requests": {"cpu": "1m", "hugepages-2Mi": "4Mi"}, "limits": {"hugepages-2Mi": "4Mi"},
    }))
    .unwrap();
    let whole = json!({
        "requests": {"cpu": "1m", "memory": "16Mi", "hugepages-2Mi": "4Mi"},
        "limits": {"hugepages-2Mi": "4Mi"},
    });
    assert_eq!(shown(&scene)[1], whole);
}

#[test]
fn generations_are_those_of_the_api_server() {
    let check = |generation: Value, expect: Option<i64>| {
        let pod = view(json!({"generation": generation}), spec("Always"), Value::Null, Source::File);
        let status = Scene::new(pod, observed(vec![])).derive();
        assert_eq!(status.observed_generation, expect);
        assert!(status.conditions.unwrap().iter().all(|c| c.observed_generation == expect));
    };
    check(json!(null), None);
    check(json!(0), None);
    check(json!(4), Some(4));
}

#[test]
fn what_others_own_is_passed_on() {
    let api = json!({
        "phase": "Running", "qosClass": "Guaranteed", "nominatedNodeName": "n",
        "resourceClaimStatuses": [{"name": "claim"}],
    });
    let pod = view(json!({}), spec("Always"), api, Source::Api);
    let status = Scene::new(pod, observed(vec![])).derive();
    assert_eq!(status.qos_class.as_deref(), Some("Guaranteed"));
    assert_eq!(status.nominated_node_name.as_deref(), Some("n"));
    assert_eq!(status.resource_claim_statuses.unwrap()[0].name, "claim");
}

#[test]
fn a_crash_loop_from_start_to_deletion() {
    let mut scene = Scene::new(pod(spec("Always")), observed(vec![]));
    scene.observed.sandboxes.clear();
    let mut trail = Vec::new();
    let mut step = |scene: &mut Scene| {
        let Some(status) = scene.advance() else { return };
        let container = serde_json::to_value(&status.container_statuses.as_ref().unwrap()[0]).unwrap();
        let (kind, inner) = container["state"].as_object().unwrap().iter().next().unwrap();
        let reason = inner["reason"].as_str().unwrap_or("-");
        let last = container["lastState"].as_object().unwrap().keys().next().map_or("-", String::as_str);
        let phase = status.phase.as_deref().unwrap();
        trail.push(format!("{phase} {kind} {reason} last={last} restarts={}", container["restartCount"]));
    };
    step(&mut scene);
    scene.observed = observed(vec![instance("c", 0, Running, 0)]);
    step(&mut scene);
    step(&mut scene);
    scene.observed = observed(vec![instance("c", 0, Exited, 1)]);
    step(&mut scene);
    scene.observed = observed(vec![instance("c", 1, Running, 0), instance("c", 0, Exited, 1)]);
    step(&mut scene);
    scene.observed = observed(vec![instance("c", 1, Exited, 1), instance("c", 0, Exited, 1)]);
    scene.fail("c", model::Reason::CrashLoopBackOff, "back-off 10s");
    step(&mut scene);
    scene.pod = deleting(&scene.pod);
    step(&mut scene);
    scene.observed.sandboxes = vec![sandbox("s0", 0, false)];
    scene.terminal = true;
    step(&mut scene);
    assert_eq!(
        trail,
        [
            "Pending waiting ContainerCreating last=- restarts=0",
            "Running running - last=- restarts=0",
            "Running terminated Error last=- restarts=0",
            "Running running - last=terminated restarts=1",
            "Running waiting CrashLoopBackOff last=terminated restarts=1",
            "Running terminated Error last=terminated restarts=1",
            "Failed terminated Error last=terminated restarts=1",
        ]
    );
}
