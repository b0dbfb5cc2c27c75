//! Pods of a real API server: they run, are reported and go; their objects tell it all.

use std::path::Path;

use crate::support::cluster::Cluster;
use crate::support::cluster_node::{BUSYBOX, BUSYBOX_2, ClusterNode, STAYS, condition, has, ready};
use crate::support::harness::{self, Agent, Runtime, SLOW};
use crate::support::runtime_view::RuntimeView;
use serde_json::{Value, json};

fn join(name: &'static str) -> ClusterNode {
    ClusterNode::join(Cluster::shared_bare(), name)
}

#[test]
fn a_pod_runs_is_reported_and_goes() {
    let member = join("member-a");
    let cluster = member.cluster;
    let namespace = cluster.namespace("runs");
    let script = "trap 'exit 0' TERM; while true; do sleep 0.1; done";
    cluster.create_pod(&namespace, &member.pod("web", script, json!({})));
    let pod = cluster.wait_for("pod", &namespace, "web", SLOW, ready);
    assert_eq!(pod["status"]["phase"], "Running", "{}", member.agent().log_tail());
    assert!(pod["status"]["podIP"].as_str().is_some_and(|ip| ip.starts_with("10.")), "{pod}");
    assert_eq!(pod["status"]["observedGeneration"], pod["metadata"]["generation"]);
    cluster.kubectl(&["delete", "pod", "web", "--namespace", &namespace, "--wait=false"]);
    cluster.wait_gone("pod", &namespace, "web", SLOW);
    let requests = cluster.api_request_counts("system:node:member-a");
    let gets = requests.get("get pods").copied().unwrap_or_default();
    assert_eq!(gets, 0, "a status needs no reading: {requests:?}");
}

#[test]
fn the_node_registers_is_ready_and_renews_its_lease() {
    let member = join("member-c");
    let cluster = member.cluster;
    let node = cluster.wait_for("node", "", "member-c", SLOW, ready);
    assert_eq!(node["status"]["nodeInfo"]["kubeletVersion"], "v1.36.4");
    assert!(node["status"]["allocatable"]["cpu"].is_string(), "{node}");
    let lease = cluster.wait_for("lease", "kube-node-lease", "member-c", SLOW, |lease| {
        lease["spec"]["renewTime"].is_string() && lease["metadata"]["ownerReferences"].is_array()
    });
    assert_eq!(lease["spec"]["holderIdentity"], "member-c");
    cluster.kubectl(&["delete", "node", "member-c"]);
    let again = cluster.wait_for("node", "", "member-c", SLOW, ready);
    assert_ne!(again["metadata"]["uid"], node["metadata"]["uid"]);
}

fn told_of_node(cluster: &Cluster, name: &str, reason: &str) -> bool {
    let about = format!("involvedObject.kind=Node,involvedObject.name={name},reason={reason}");
    let args = ["get", "events", "--namespace", "default", "--field-selector", &about];
    cluster.kubectl_json(&args)["items"].as_array().is_some_and(|items| !items.is_empty())
}

#[test]
fn a_node_tells_what_is_true_of_it() {
    let member = join("member-j");
    let cluster = member.cluster;
    let node = cluster.wait_for("node", "", "member-j", SLOW, ready);
    let declared = node["status"]["declaredFeatures"].as_array().expect("features");
    assert!(declared.iter().any(|name| name == "RestartAllContainersOnContainerExits"), "{declared:?}");
    let resizes =
        declared.iter().any(|name| name.as_str().is_some_and(|name| name.starts_with("InPlacePod")));
    assert!(!resizes, "this agent resizes nothing: {declared:?}");
    let version_1 = !Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    harness::wait_until("the Events of the start", SLOW, || {
        let told = |reason: &str| told_of_node(cluster, "member-j", reason);
        told("Starting") && (told("CgroupV1") == version_1)
    });
    // One that can't set itself up says why before it gives up.
    let runtime = Runtime::start();
    let kubeconfig = cluster.node_kubeconfig("member-k").to_string_lossy().into_owned();
    let flags = ["--kubeconfig", &kubeconfig, "--hostname-override", "member-k"];
    let root = Agent::prepare(&runtime, &flags, |_| {}).root_dir();
    std::fs::create_dir_all(&root).expect("the agent's directory");
    std::fs::write(root.join("pods"), "no directory").expect("a file");
    let (_agent, status) = Agent::refused(&runtime, &flags);
    assert!(!status.success());
    harness::wait_until("the Event", SLOW, || told_of_node(cluster, "member-k", "KubeletSetupFailed"));
}

#[test]
fn a_static_pod_has_a_mirror() {
    let member = join("member-d");
    let cluster = member.cluster;
    let manifest = |word: &str| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "fixed", "labels": {"word": word}},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [
                {"name": "main", "image": BUSYBOX, "command": ["sleep", "1000"], "imagePullPolicy": "Never"}
            ]},
        })
        .to_string()
    };
    member.agent().write_manifest("fixed", &manifest("one"));
    let mirror = cluster.wait_for("pod", "default", "fixed-member-d", SLOW, ready);
    let hash = |pod: &Value| pod["metadata"]["annotations"]["kubernetes.io/config.mirror"].clone();
    assert_eq!(mirror["metadata"]["ownerReferences"][0]["kind"], "Node");
    cluster.kubectl(&["delete", "pod", "fixed-member-d", "--force", "--grace-period=0"]);
    let again = cluster.wait_for("pod", "default", "fixed-member-d", SLOW, |pod| {
        ready(pod) && pod["metadata"]["uid"] != mirror["metadata"]["uid"]
    });
    assert_eq!(hash(&again), hash(&mirror), "the pod itself is the same");
    member.agent().write_manifest("fixed", &manifest("two"));
    cluster.wait_for("pod", "default", "fixed-member-d", SLOW, |pod| {
        ready(pod) && hash(pod) != hash(&mirror) && pod["metadata"]["labels"]["word"] == "two"
    });
    member.agent().remove_manifest("fixed");
    cluster.wait_gone("pod", "default", "fixed-member-d", SLOW);
}

/// Whoever watches the mirror of a static pod that was changed sees the old pod for as long as that has not ended.
#[test]
fn the_mirror_of_a_changed_pod_is_the_old_one_until_that_has_ended() {
    let member = join("member-g");
    let cluster = member.cluster;
    let dir = member.node.runtime.dir.join("ended");
    std::fs::create_dir_all(&dir).expect("a directory");
    let manifest = |word: &str| {
        let script = "trap 'sleep 3; touch /d/ended; exit 0' TERM; while true; do sleep 0.1; done";
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "slow", "labels": {"word": word}},
            "spec": {
                "terminationGracePeriodSeconds": 120,
                "volumes": [{"name": "d", "hostPath": {"path": dir}}],
                "containers": [{
                    "name": "main", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sh", "-c", script],
                    "volumeMounts": [{"name": "d", "mountPath": "/d"}],
                }],
            },
        })
        .to_string()
    };
    member.agent().write_manifest("slow", &manifest("one"));
    let mirror = cluster.wait_for("pod", "default", "slow-member-g", SLOW, ready);
    member.agent().write_manifest("slow", &manifest("two"));
    harness::wait_until("another mirror", SLOW, || {
        let now = cluster.get("pod", "default", "slow-member-g");
        let another = now.is_none_or(|pod| pod["metadata"]["uid"] != mirror["metadata"]["uid"]);
        assert!(!another || dir.join("ended").exists(), "the old pod has not ended");
        another
    });
    cluster.wait_for("pod", "default", "slow-member-g", SLOW, |pod| {
        ready(pod) && pod["metadata"]["labels"]["word"] == "two"
    });
    member.agent().remove_manifest("slow");
    cluster.wait_gone("pod", "default", "slow-member-g", SLOW);
}

/// The API server refuses a status in which a container left the terminated state against its policy, and with it all
/// that follow.
#[test]
fn containers_that_are_killed_come_back_whatever_their_policy() {
    let member = join("member-h");
    let cluster = member.cluster;
    let namespace = cluster.namespace("back");
    let back = |pod: &Value| {
        let status = &pod["status"]["containerStatuses"][0];
        status["restartCount"].as_i64() >= Some(1) && status["state"]["running"].is_object() && ready(pod)
    };
    let policies = [("never", "Never"), ("on-failure", "OnFailure")];
    for (name, policy) in policies {
        let pod = member.pod(name, STAYS, json!({ "restartPolicy": policy }));
        cluster.create_pod(&namespace, &pod);
    }
    // It ends well when it is killed by its probe, which is content with the second one.
    let script = format!("[ ! -e /d/first ] || touch /d/second; touch /d/first; {STAYS}");
    let mut probed: Value = serde_json::from_str(&member.pod("probed", &script, json!({}))).expect("JSON");
    probed["spec"]["restartPolicy"] = json!("OnFailure");
    probed["spec"]["volumes"] = json!([{"name": "d", "emptyDir": {}}]);
    let main = &mut probed["spec"]["containers"][0];
    main["volumeMounts"] = json!([{"name": "d", "mountPath": "/d"}]);
    main["livenessProbe"] = json!({
        "exec": {"command": ["test", "-e", "/d/second"]}, "periodSeconds": 1, "failureThreshold": 1,
    });
    cluster.create_pod(&namespace, &probed.to_string());
    for (name, _) in policies {
        cluster.wait_for("pod", &namespace, name, SLOW, ready);
        let image = format!("main={BUSYBOX_2}");
        cluster.kubectl(&["set", "image", "--namespace", &namespace, &format!("pod/{name}"), &image]);
    }
    for (name, _) in policies {
        let pod = cluster.wait_for("pod", &namespace, name, SLOW, back);
        assert_eq!(pod["status"]["phase"], "Running");
        assert_eq!(pod["status"]["containerStatuses"][0]["image"], BUSYBOX_2, "{pod}");
    }
    cluster.wait_for("pod", &namespace, "probed", SLOW, back);
}

#[test]
fn what_was_not_applied_does_not_look_done() {
    let member = join("member-i");
    let cluster = member.cluster;
    let namespace = cluster.namespace("truth");
    let mut sized: Value = serde_json::from_str(&member.pod("sized", STAYS, json!({}))).expect("JSON");
    sized["spec"]["containers"][0]["resources"] =
        json!({"requests": {"cpu": "20m"}, "limits": {"cpu": "500m"}});
    // Its hook outlasts the grace.
    let hook = json!({"preStop": {"exec": {"command": ["sleep", "600"]}}});
    sized["spec"]["containers"][0]["lifecycle"] = hook;
    cluster.create_pod(&namespace, &sized.to_string());
    let claims = json!({"resourceClaims": [{"name": "gpu", "resourceClaimName": "none"}]});
    cluster.create_pod(&namespace, &member.pod("claims", STAYS, claims));
    let refused =
        cluster.wait_for("pod", &namespace, "claims", SLOW, |pod| pod["status"]["phase"] == "Failed");
    assert_eq!(refused["status"]["reason"], "PodFeatureUnsupported", "{refused}");

    cluster.wait_for("pod", &namespace, "sized", SLOW, ready);
    let patch =
        json!({"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "40m"}}}]}});
    let patch = patch.to_string();
    let resize =
        ["patch", "pod", "sized", "--namespace", &namespace, "--subresource", "resize", "-p", &patch];
    cluster.kubectl(&resize);
    let pod = cluster.wait_for("pod", &namespace, "sized", SLOW, |pod| has(pod, "PodResizePending"));
    assert_eq!(condition(&pod, "PodResizePending").expect("it is there")["reason"], "Infeasible");
    assert_eq!(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"], "40m");
    assert_eq!(pod["status"]["containerStatuses"][0]["allocatedResources"]["cpu"], "20m", "{pod}");
    assert_eq!(pod["status"]["allocatedResources"]["cpu"], "20m", "{pod}");

    cluster.kubectl(&[
        "delete",
        "pod",
        "sized",
        "--namespace",
        &namespace,
        "--grace-period=2",
        "--wait=false",
    ]);
    cluster.wait_gone("pod", &namespace, "sized", SLOW);
    let told = |reason: &str| cluster.events(&namespace, "sized").iter().any(|e| e["reason"] == reason);
    harness::wait_until("the Events", SLOW, || told("ResizeInfeasible") && told("FailedPreStopHook"));
}

#[test]
fn events_reach_the_api() {
    let member = join("member-e");
    let cluster = member.cluster;
    let namespace = cluster.namespace("events");
    cluster.create_pod(&namespace, &member.pod("told", "sleep 1000", json!({})));
    cluster.wait_for("pod", &namespace, "told", SLOW, ready);
    let reasons = || -> Vec<String> {
        let events = cluster.events(&namespace, "told");
        events.iter().filter_map(|e| e["reason"].as_str().map(str::to_owned)).collect()
    };
    harness::wait_until("the Events of the pod", SLOW, || {
        let seen = reasons();
        ["Pulled", "Created", "Started"].iter().all(|reason| seen.iter().any(|r| r == reason))
    });
}

#[test]
fn a_pod_that_ends_is_over_in_the_api() {
    let member = join("member-b");
    let cluster = member.cluster;
    let namespace = cluster.namespace("ends");
    for (name, code, phase) in [("good", 0, "Succeeded"), ("bad", 3, "Failed")] {
        let text = member.pod(name, &format!("exit {code}"), json!({"restartPolicy": "Never"}));
        cluster.create_pod(&namespace, &text);
        let pod = cluster.wait_for("pod", &namespace, name, SLOW, |p| p["status"]["phase"] == phase);
        assert_eq!(pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], code);
        assert!(!ready(&pod), "{pod}");
    }
}

#[test]
fn a_runtime_class_of_the_cluster_chooses_the_handler() {
    let member = join("member-f");
    let cluster = member.cluster;
    let namespace = cluster.namespace("classes");
    let seen = RuntimeView::new(&member.node.runtime);
    // The private containerd knows runc a second time, as `second`.
    let class = json!({
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "other"}, "handler": "second",
        "overhead": {"podFixed": {"memory": "4Mi"}},
    });
    cluster.create("", &class.to_string());
    let spec = json!({"runtimeClassName": "other", "automountServiceAccountToken": false});
    cluster.create_pod(&namespace, &member.pod("classy", "sleep 1000", spec));
    let pod = cluster.wait_for("pod", &namespace, "classy", SLOW, ready);
    assert_eq!(pod["spec"]["overhead"]["memory"], "4Mi");
    let pods = seen.pods().expect("the runtime's pods");
    assert_eq!(pods["classy"].sandboxes[0].runtime_handler, "second");
}
