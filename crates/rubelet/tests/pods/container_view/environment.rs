//! Variables, arguments and the working directory.

use serde_json::{Value, json};

use super::{clear, facts, looks, seen, spec};
use crate::support::harness::{Node, SLOW};
use crate::support::pods::{self, is_running, uid};

fn variable(name: &str, value: &str) -> Value {
    json!({ "name": name, "value": value })
}

fn field(name: &str, path: &str) -> Value {
    json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } })
}

fn resource(name: &str, container: &str, resource: &str, divisor: &str) -> Value {
    let mut reference = json!({ "containerName": container, "resource": resource });
    if !divisor.is_empty() {
        reference["divisor"] = json!(divisor);
    }
    json!({ "name": name, "valueFrom": { "resourceFieldRef": reference } })
}

const RESOURCES: &str =
    r#"{"requests": {"cpu": "30m", "memory": "20Mi"}, "limits": {"cpu": "1100m", "memory": "32Mi"}}"#;

fn pod() -> Value {
    let limited: Value = serde_json::from_str(RESOURCES).expect("JSON");
    let variables = json!([
        variable("A", "1"),
        variable("EXPANDED", "$(A)-$(LATER)-$(A)"),
        variable("LATER", "2"),
        variable("ESCAPED", "$$(A) $A"),
        variable("EMPTY", ""),
        variable("A_TWICE", "first"),
        variable("A_TWICE", "second"),
        field("POD", "metadata.name"),
        field("NAMESPACE", "metadata.namespace"),
        field("POD_UID", "metadata.uid"),
        field("LABEL", "metadata.labels['tier']"),
        field("ANNOTATION", "metadata.annotations['example/note']"),
        field("NODE", "spec.nodeName"),
        field("POD_IP", "status.podIP"),
        field("POD_IPS", "status.podIPs"),
        field("HOST_IP", "status.hostIP"),
        variable("FROM_FIELD", "at $(POD_IP)"),
        resource("CPU_LIMIT", "limited", "limits.cpu", ""),
        resource("CPU_REQUEST", "limited", "requests.cpu", "1m"),
        resource("MEMORY_LIMIT", "limited", "limits.memory", "1Mi"),
        resource("MEMORY_REQUEST", "limited", "requests.memory", ""),
        resource("NODE_CPU", "env", "limits.cpu", ""),
    ]);
    let arguments = looks(
        "args",
        "for word; do echo \"$word\"; done",
        json!({
            "env": [variable("A", "1")],
            "args": ["the shell", "$(A)", "$(NOWHERE)", "$$(A)", "two words", ""],
            "workingDir": "/home/user",
        }),
    );
    spec(
        json!([
            looks("env", "env", json!({ "env": variables })),
            arguments,
            looks("dir", "pwd", json!({ "workingDir": "/made/for/it" })),
            looks("limited", "true", json!({ "resources": limited })),
        ]),
        json!({}),
    )
}

#[test]
fn variables_arguments_and_directories() {
    let node = Node::start();
    let manifest = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "env",
            "namespace": "apart",
            "labels": { "tier": "back" },
            "annotations": { "example/note": "two words" },
        },
        "spec": pod(),
    });
    node.agent.write_manifest("env", &manifest.to_string());
    let pod = node.wait_pod("env", SLOW, is_running);
    let ip = pod["status"]["podIP"].as_str().expect("an address").to_owned();

    let variables = facts(&node, &pod, "env");
    for (name, expected) in [
        ("A", "1"),
        ("EXPANDED", "1-$(LATER)-1"),
        ("ESCAPED", "$(A) $A"),
        ("EMPTY", ""),
        ("A_TWICE", "second"),
        ("POD", "env-node"),
        ("NAMESPACE", "apart"),
        ("POD_UID", uid(&pod)),
        ("LABEL", "back"),
        ("ANNOTATION", "two words"),
        ("NODE", "node"),
        ("POD_IP", ip.as_str()),
        ("POD_IPS", ip.as_str()),
        ("FROM_FIELD", &format!("at {ip}")),
        ("CPU_LIMIT", "2"),
        ("CPU_REQUEST", "30"),
        ("MEMORY_LIMIT", "32"),
        ("MEMORY_REQUEST", "20971520"),
        ("HOSTNAME", "env-node"),
        ("PATH", "/usr/bin:/bin"),
    ] {
        assert_eq!(variables.get(name).map(String::as_str), Some(expected), "{name} in {variables:?}");
    }
    // Without a limit of its own a container may use what the node has.
    let cpus: u32 = variables["NODE_CPU"].parse().expect("a number");
    assert!(cpus >= 1);
    assert!(variables["HOST_IP"].parse::<std::net::IpAddr>().is_ok(), "{variables:?}");
    // There is no API server, so there are no services to tell of.
    assert!(!variables.keys().any(|name| name.starts_with("KUBERNETES_")), "{variables:?}");

    assert_eq!(seen(&node, &pod, "args"), ["1", "$(NOWHERE)", "$(A)", "two words", ""]);
    assert_eq!(seen(&node, &pod, "dir"), ["/made/for/it"]);
    clear(&node, &["env"]);
}

#[test]
fn variables_from_a_file_that_another_container_wrote() {
    let node = Node::start();
    let in_file = |name: &str, key: &str, optional: bool| {
        let reference = json!({ "volumeName": "v", "path": "sub/vars", "key": key, "optional": optional });
        json!({ "name": name, "valueFrom": { "fileKeyRef": reference } })
    };
    let mounts = json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v" }] });
    let write = "mkdir /v/sub; printf \"# a note\\nA='one'\\nB='two\\n lines' # the rest\\n\" > /v/sub/vars";
    let reads = looks(
        "reads",
        "echo \"a=$FROM_A\"; echo \"b=$(echo $FROM_B)\"; echo \"c=${FROM_C-unset}\"; echo \"word=$1\"",
        json!({
            "env": [in_file("FROM_A", "A", false), in_file("FROM_B", "B", false), in_file("FROM_C", "C", true)],
            "args": ["the shell", "$(FROM_A)"],
        }),
    );
    let lacks = looks("lacks", "true", json!({ "env": [in_file("X", "MISSING", false)] }));
    let more = json!({
        "volumes": [{ "name": "v", "emptyDir": {} }],
        "initContainers": [pods::shell_with("writes", write, mounts)],
    });
    node.agent.write_manifest("files", &pods::manifest("files", spec(json!([reads, lacks]), more)));
    let pod = node.wait_pod("files", SLOW, |pod| {
        let waiting = &pods::container(pod, "lacks")["state"]["waiting"];
        waiting["reason"] == "CreateContainerConfigError"
            && pods::container(pod, "reads")["state"]["running"].is_object()
    });
    let told = pods::container(&pod, "lacks")["state"]["waiting"]["message"].to_string();
    assert!(told.contains("environment variable key") && told.contains("not found in file"), "{told}");
    let seen = facts(&node, &pod, "reads");
    let expect = [("a", "one"), ("b", "two lines"), ("c", "unset"), ("word", "one")];
    assert_eq!(seen, expect.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    clear(&node, &["files"]);
}
