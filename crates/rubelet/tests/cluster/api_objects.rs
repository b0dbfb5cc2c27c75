//! Objects that pods of a real API server name: waited for, seen by their containers, followed.

use crate::support::cluster::Cluster;
use crate::support::cluster_node::{BUSYBOX, ClusterNode, merge};
use crate::support::harness::{SLOW, wait_until};
use serde_json::{Value, json};

/// A pod whose container says at its end what it has seen.
fn pod(member: &ClusterNode, name: &str, script: &str, container: Value, spec: Value) -> String {
    let script = format!("set -e; {script}");
    let mut main = json!({"name": "main", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sh", "-c", script]});
    merge(&mut main, container);
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"stage": "one"}},
        "spec": {
            "nodeName": member.name, "containers": [main], "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
        },
    });
    merge(&mut pod["spec"], spec);
    pod.to_string()
}

/// What the container of a pod that succeeded has said.
fn said(member: &ClusterNode, namespace: &str, name: &str) -> String {
    let over = |pod: &Value| matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    let pod = member.cluster.wait_for("pod", namespace, name, SLOW, over);
    assert_eq!(pod["status"]["phase"], "Succeeded", "{pod}\n{}", member.agent().log_tail());
    let ended = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
    ended["message"].as_str().unwrap_or_default().to_owned()
}

/// What admission gives every pod: a token, the cluster's authority, its namespace, and where the API is.
#[test]
fn a_default_pod_knows_its_cluster() {
    let member = ClusterNode::join(Cluster::shared(), "objects-a");
    let cluster = member.cluster;
    let namespace = cluster.namespace("default-pod");
    let script = "cd /var/run/secrets/kubernetes.io/serviceaccount
        test $(tr -cd . <token | wc -c) = 2
        grep -q BEGIN.CERTIFICATE ca.crt
        test -n \"$KUBERNETES_SERVICE_HOST\"
        (cat namespace; echo \" $(stat -L -c %a token) $(readlink token)\") >/dev/termination-log";
    cluster.create_pod(&namespace, &pod(&member, "plain", script, json!({}), json!({})));
    assert_eq!(said(&member, &namespace, "plain"), format!("{namespace} 644 ..data/token\n"));
    let owned = json!({"securityContext": {"runAsUser": 1000, "fsGroup": 2000}});
    let script = "cd /var/run/secrets/kubernetes.io/serviceaccount; test -s token
        stat -L -c '%a %u %g' token >/dev/termination-log";
    let writable = json!({"terminationMessagePath": "/dev/termination-log"});
    cluster.create_pod(&namespace, &pod(&member, "owned", script, writable, owned));
    assert_eq!(said(&member, &namespace, "owned"), "640 1000 2000\n");
}

#[test]
fn a_pod_waits_for_its_objects_and_follows_them() {
    let member = ClusterNode::join(Cluster::shared(), "objects-b");
    let cluster = member.cluster;
    let namespace = cluster.namespace("late");
    let script = "trap 'exit 0' TERM
        until test \"$(cat /map/k)\" = new && grep -q two /labels/all; do sleep 0.1; done
        echo \"$K $(cat /map/k) $(cat /once) $S\" >/dev/termination-log";
    let container = json!({
        "env": [
            {"name": "K", "valueFrom": {"configMapKeyRef": {"name": "map", "key": "k"}}},
            {"name": "S", "valueFrom": {"secretKeyRef": {"name": "none", "key": "k", "optional": true}}},
        ],
        "volumeMounts": [
            {"name": "map", "mountPath": "/map"}, {"name": "map", "mountPath": "/once", "subPath": "k"},
            {"name": "labels", "mountPath": "/labels"},
        ],
    });
    let labels = json!([{"path": "all", "fieldRef": {"fieldPath": "metadata.labels"}}]);
    let volumes = json!([
        {"name": "map", "configMap": {"name": "map"}}, {"name": "labels", "downwardAPI": {"items": labels}},
    ]);
    cluster.create_pod(&namespace, &pod(&member, "late", script, container, json!({"volumes": volumes})));
    let expect = "MountVolume.SetUp failed for volume \"map\" : configmap \"map\" not found";
    wait_until("the missing map to be told of", SLOW, || {
        let answer = member.agent().command(&["why", "late"]);
        String::from_utf8_lossy(&answer.stdout).contains(expect)
    });
    let map = |text: &str| {
        let metadata = json!({"name": "map"});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"k": text}})
            .to_string()
    };
    cluster.create(&namespace, &map("old"));
    let running = |pod: &Value| pod["status"]["phase"] == "Running";
    cluster.wait_for("pod", &namespace, "late", SLOW, running);
    let patch = r#"{"data": {"k": "new"}}"#;
    cluster.kubectl(&["patch", "configmap", "map", "--namespace", &namespace, "--patch", patch]);
    cluster.kubectl(&["label", "pod", "late", "--namespace", &namespace, "--overwrite", "stage=two"]);
    assert_eq!(said(&member, &namespace, "late"), "old new old \n");
}

/// Fields that a Service may have, each of which once stopped every node's watch of all Services: a condition without a
/// time, who wrote what in the year 10000, and a tree of fields that is deeper than decoders like.
#[test]
fn an_odd_service_holds_up_no_other() {
    let member = ClusterNode::join(Cluster::shared(), "objects-c");
    let cluster = member.cluster;
    let namespace = cluster.namespace("odd");
    let service = |name: &str| {
        let spec = json!({"selector": {"app": name}, "ports": [{"port": 80}]});
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}).to_string()
    };
    // A service may reach the node after the pod does, so the container asks again at its next start.
    let knows = |service: &str| {
        let script = format!("test -n \"${service}_SERVICE_HOST\"");
        let name = format!("knows-{}", service.to_lowercase());
        cluster.create_pod(
            &namespace,
            &pod(&member, &name, &script, json!({}), json!({"restartPolicy": "OnFailure"})),
        );
        said(&member, &namespace, &name);
    };
    cluster.create(&namespace, &service("odd"));
    knows("ODD");
    let condition =
        json!({"type": "Odd", "status": "True", "reason": "Odd", "message": "", "lastTransitionTime": null});
    let status = json!({"status": {"conditions": [condition]}}).to_string();
    let patch = |what: &str, more: &[&str]| {
        let of = ["patch", "service", "odd", "--namespace", &namespace, "--type=merge", "--patch", what];
        cluster.kubectl(&[&of[..], more].concat())
    };
    patch(&status, &["--subresource=status"]);
    let deep = format!("{}{{}}{}", r#"{"f:a":"#.repeat(200), "}".repeat(200));
    let written = format!(
        r#"{{"metadata":{{"managedFields":[{{"manager":"odd","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","time":"9999-12-31T23:59:59-01:00","fieldsV1":{{"f:metadata":{deep}}}}}]}}}}"#
    );
    patch(&written, &[]);
    let odd = cluster.kubectl(&[
        "get",
        "service",
        "odd",
        "--namespace",
        &namespace,
        "-o",
        "json",
        "--show-managed-fields",
    ]);
    for part in ["\"lastTransitionTime\": null", "\"10000-01-01T00:59:59Z\"", "\"f:a\":"] {
        assert!(odd.contains(part), "the API server did not keep {part}: {odd}");
    }
    cluster.create(&namespace, &service("later"));
    knows("LATER");
}
