//! Room for critical pods, and who stays admitted.

use crate::support::cluster::Cluster;
use crate::support::cluster_node::{BUSYBOX, ClusterNode, STAYS, condition, ready};
use crate::support::harness::{SLOW, wait_until};
use serde_json::{Value, json};

/// Takes a while to end, so that whoever does not wait for it is seen.
const ENDS_LATE: &str = "trap 'sleep 2; exit 0' TERM; sleep 1000 & wait";

/// A share of the CPUs that the node offers to pods.
fn cpus(node: &Value, per_cent: u64) -> Value {
    let text = node["status"]["allocatable"]["cpu"].as_str().expect("CPUs");
    let millis: u64 = match text.strip_suffix('m') {
        Some(millis) => millis.parse().expect("a number"),
        None => text.parse::<u64>().expect("a number") * 1000,
    };
    json!({"requests": {"cpu": format!("{}m", millis * per_cent / 100)}})
}

fn pod(member: &ClusterNode, name: &str, script: &str, resources: &Value) -> String {
    let container = json!({
        "name": "main", "image": BUSYBOX, "command": ["sh", "-c", script], "imagePullPolicy": "Never",
        "resources": resources,
    });
    member.pod(name, script, json!({"containers": [container], "terminationGracePeriodSeconds": 20}))
}

fn container_ids(pods: &[&Value]) -> Vec<Value> {
    pods.iter().map(|pod| pod["status"]["containerStatuses"][0]["containerID"].clone()).collect()
}

#[test]
fn a_critical_pod_gets_the_room_of_a_lesser_one() {
    let mut member = ClusterNode::join(Cluster::shared_bare(), "preempts");
    let cluster = member.cluster;
    let namespace = cluster.namespace("preempts");
    let node = cluster.wait_for("node", "", member.name, SLOW, ready);
    for (name, per_cent) in [("large", 60), ("small", 20)] {
        cluster.create_pod(&namespace, &pod(&member, name, ENDS_LATE, &cpus(&node, per_cent)));
        cluster.wait_for("pod", &namespace, name, SLOW, ready);
    }
    let manifest = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "vip"},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [{
            "name": "main", "image": BUSYBOX, "command": ["sh", "-c", STAYS], "imagePullPolicy": "Never",
            "resources": cpus(&node, 50),
        }]},
    });
    member.agent().write_manifest("vip", &manifest.to_string());

    let vip = cluster.wait_for("pod", "default", "vip-preempts", SLOW, ready);
    let ended = |pod: &Value| !pod["status"]["containerStatuses"][0]["state"]["terminated"].is_null();
    let large = cluster.wait_for("pod", &namespace, "large", SLOW, ended);
    assert_eq!(large["status"]["phase"], "Failed", "{large}");
    assert_eq!(large["status"]["reason"], "Preempting", "{large}");
    assert_eq!(large["status"]["message"], "Preempted in order to admit critical pod");
    let disruption =
        condition(&large, "DisruptionTarget").unwrap_or_else(|| panic!("no disruption: {large}"));
    assert_eq!(disruption["reason"], "TerminationByKubelet");
    assert_eq!(disruption["message"], "Pod was preempted by Kubelet to accommodate a critical pod.");
    wait_until("the Event", SLOW, || {
        cluster.events(&namespace, "large").iter().any(|event| event["reason"] == "Preempting")
    });
    let time = |pod: &Value, state: &str, field: &str| {
        let state = &pod["status"]["containerStatuses"][0]["state"][state];
        state[field].as_str().unwrap_or_else(|| panic!("no {field}: {pod}")).to_owned()
    };
    let (left, came) = (time(&large, "terminated", "finishedAt"), time(&vip, "running", "startedAt"));
    assert!(left <= came, "the critical pod started at {came}, and its victim ended at {left}");
    let small = cluster.pod(&namespace, "small");
    assert!(ready(&small), "{small}");

    // One that does not fit now is refused. The next agent keeps what this one admitted, and nothing is started again.
    cluster.create_pod(&namespace, &pod(&member, "late", STAYS, &cpus(&node, 60)));
    let refused = cluster.wait_for("pod", &namespace, "late", SLOW, |pod| pod["status"]["phase"] == "Failed");
    assert_eq!(refused["status"]["reason"], "OutOfcpu", "{refused}");
    member.node.agent.restart();
    cluster.create_pod(&namespace, &pod(&member, "later", STAYS, &cpus(&node, 60)));
    cluster.wait_for("pod", &namespace, "later", SLOW, |pod| pod["status"]["reason"] == "OutOfcpu");
    let now = [cluster.pod("default", "vip-preempts"), cluster.pod(&namespace, "small")];
    assert_eq!(container_ids(&[&now[0], &now[1]]), container_ids(&[&vip, &small]));
    assert!(now.iter().all(ready), "{now:?}");
    cluster.kubectl(&["delete", "pod", "--all", "--namespace", &namespace, "--wait=false"]);
    member.agent().remove_manifest("vip");
    member.node.wait_clean(SLOW);
}

#[test]
fn the_node_is_read_again_before_a_pod_is_refused_for_its_labels() {
    let member = ClusterNode::join(Cluster::shared_bare(), "reads-again");
    let cluster = member.cluster;
    cluster.wait_for("node", "", member.name, SLOW, ready);
    let namespace = cluster.namespace("labels");
    let selecting =
        |name: &str| member.pod(name, STAYS, json!({"nodeSelector": {"test.rubelet/disk": "ssd"}}));
    let readings =
        || cluster.api_request_counts(&member.user()).get("get nodes").copied().unwrap_or_default();
    let before = readings();
    cluster.create_pod(&namespace, &selecting("early"));
    let refused =
        cluster.wait_for("pod", &namespace, "early", SLOW, |pod| pod["status"]["phase"] == "Failed");
    assert_eq!(refused["status"]["reason"], "NodeAffinity", "{refused}");
    assert!(readings() > before, "the Node was read for the refusal");
    // Whether the watch has shown the label by then or not, the pod is admitted.
    cluster.kubectl(&["label", "node", member.name, "test.rubelet/disk=ssd"]);
    cluster.create_pod(&namespace, &selecting("right"));
    cluster.wait_for("pod", &namespace, "right", SLOW, ready);
    cluster.kubectl(&["delete", "pod", "--all", "--namespace", &namespace, "--wait=false"]);
    member.node.wait_clean(SLOW);
}
