//! What a pod shares with the host, and its containers with each other.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value, json};

use super::{clear, facts, looks, seen, spec};
use crate::support::harness::{Node, SLOW};
use crate::support::pods::{is_running, manifest, phase};

const KINDS: [&str; 4] = ["net", "pid", "ipc", "uts"];
const LOOK: &str = "for kind in net pid ipc uts; do echo $kind=$(readlink /proc/self/ns/$kind); done";

fn of_host() -> BTreeMap<String, String> {
    let link = |kind: &str| fs::read_link(format!("/proc/self/ns/{kind}")).expect("a namespace");
    KINDS.iter().map(|kind| ((*kind).to_owned(), link(kind).to_string_lossy().into_owned())).collect()
}

fn same(left: &BTreeMap<String, String>, right: &BTreeMap<String, String>) -> Vec<&'static str> {
    KINDS.into_iter().filter(|kind| left[*kind] == right[*kind]).collect()
}

#[test]
fn namespaces_are_shared_as_asked() {
    let node = Node::start();
    let put = |name: &str, more: Value| {
        let processes = looks("processes", "sleep 1; ps -o args", json!({}));
        let containers = json!([looks("a", LOOK, json!({})), looks("b", LOOK, json!({})), processes]);
        node.agent.write_manifest(name, &manifest(name, spec(containers, more)));
    };
    put("own", json!({}));
    put("shared", json!({ "shareProcessNamespace": true }));
    put("host", json!({ "hostNetwork": true, "hostPID": true, "hostIPC": true }));
    let host = of_host();
    let check = |name: &str, with_each_other: &[&str], with_host: &[&str]| {
        let pod = node.wait_pod(name, SLOW, is_running);
        let (a, b) = (facts(&node, &pod, "a"), facts(&node, &pod, "b"));
        assert_eq!(same(&a, &b), with_each_other, "{name}");
        assert_eq!(same(&a, &host), with_host, "{name}");
        seen(&node, &pod, "processes").join("\n")
    };
    let processes = check("own", &["net", "ipc", "uts"], &[]);
    assert!(!processes.contains("/pause"), "{processes}");
    assert!(!processes.contains("ns/$kind"), "{processes}");
    // The sandbox is the parent of all, and containers see each other.
    let processes = check("shared", &["net", "pid", "ipc", "uts"], &[]);
    assert!(processes.contains("/pause"), "{processes}");
    assert!(processes.contains("ns/$kind"), "{processes}");
    let processes = check("host", &["net", "pid", "ipc", "uts"], &["net", "pid", "ipc", "uts"]);
    assert!(processes.contains("containerd"), "{processes}");
    clear(&node, &["own", "shared", "host"]);
}

#[test]
fn kernel_parameters() {
    let node = Node::start_with(|config| {
        config["allowedUnsafeSysctls"] = json!(["net.ipv4.route.min_*", "kernel.msg*"])
    });
    let put = |name: &str, sysctls: Value| {
        let script =
            "cd /proc/sys; for file in net/ipv4/ip_local_port_range kernel/shm_rmid_forced kernel/msgmax; do
                          echo $file=$(cat $file); done";
        let containers = json!([looks("c", script, json!({}))]);
        let more = json!({ "securityContext": { "sysctls": sysctls } });
        node.agent.write_manifest(name, &manifest(name, spec(containers, more)));
    };
    put(
        "set",
        json!([
            { "name": "net.ipv4.ip_local_port_range", "value": "20100 20200" },
            { "name": "kernel/shm_rmid_forced", "value": "1" },
            { "name": "kernel.msgmax", "value": "9000" },
        ]),
    );
    put("refused", json!([{ "name": "net.core.somaxconn", "value": "1000" }]));
    let pod = node.wait_pod("set", SLOW, is_running);
    let found = facts(&node, &pod, "c");
    assert_eq!(found["net/ipv4/ip_local_port_range"], "20100 20200");
    assert_eq!((found["kernel/shm_rmid_forced"].as_str(), found["kernel/msgmax"].as_str()), ("1", "9000"));

    let pod = node.wait_pod("refused", SLOW, |pod| phase(pod) == "Failed");
    assert_eq!(pod["status"]["reason"], "SysctlForbidden");
    let message = pod["status"]["message"].as_str().unwrap_or_default();
    assert!(message.starts_with("Pod was rejected: ") && message.contains("net.core.somaxconn"), "{message}");
    clear(&node, &["set", "refused"]);
}
