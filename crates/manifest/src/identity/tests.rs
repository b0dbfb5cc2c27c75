use serde_json::{Value, json};

use super::*;
use crate::ReferencePolicy;

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}})
}

fn file(path: &str, document: usize) -> Origin {
    Origin::File { path: path.to_owned(), document }
}

fn http(url: &str) -> Origin {
    Origin::Http { url: url.to_owned() }
}

fn made(pod: Value, origin: &Origin, node: &str) -> Pod {
    static_pod(codec::pod_from_value(pod).unwrap(), origin, node, ReferencePolicy::Deny).unwrap()
}

fn uid_of(pod: Value, origin: &Origin, node: &str) -> String {
    made(pod, origin, node).metadata.uid.unwrap()
}

#[test]
fn the_hash_is_fnv_1a() {
    let check = |text: &str, expect: u128| {
        let mut hash = Fnv128::new();
        hash.write(text.as_bytes());
        assert_eq!(hash.0, expect, "{text}");
    };
    check("", 0x6c62272e07bb014262b821756295c58d);
    check("a", 0xd228cb696f1a8caf78912b704e4a8964);
    check("foobar", 0x343e1662793c64bf6f0d3597ba446f18);
}

#[test]
fn a_file_becomes_a_pod_of_its_node() {
    let made = made(pod("web"), &file("/m/web.yaml", 0), "node-a.example");
    let uid = made.metadata.uid.clone().unwrap();
    assert_eq!(uid.len(), 32);
    assert!(uid.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')), "{uid}");
    assert_eq!(made.metadata.name.as_deref(), Some("web-node-a.example"));
    assert_eq!(made.metadata.namespace.as_deref(), Some("default"));
    assert_eq!(made.metadata.annotations.unwrap()[CONFIG_HASH_ANNOTATION], uid);
    let spec = made.spec.unwrap();
    assert_eq!(spec.node_name.as_deref(), Some("node-a.example"));
    assert_eq!(
        serde_json::to_value(&spec.tolerations).unwrap(),
        json!([{"operator": "Exists", "effect": "NoExecute"}])
    );
    assert_eq!(made.status.unwrap().phase.as_deref(), Some("Pending"));
}

#[test]
fn http_pods_can_be_evicted() {
    let made = made(pod("web"), &http("http://x/"), "a");
    assert_eq!(made.spec.unwrap().tolerations, None);
}

#[test]
fn a_toleration_is_not_given_twice() {
    let mut manifest = pod("web");
    manifest["spec"]["tolerations"] = json!([
        {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5},
        {"operator": "Exists", "effect": "NoSchedule"},
    ]);
    let made = made(manifest, &file("/m/a", 0), "a");
    assert_eq!(
        serde_json::to_value(made.spec.unwrap().tolerations).unwrap(),
        json!([{"operator": "Exists", "effect": "NoExecute"}, {"operator": "Exists", "effect": "NoSchedule"}])
    );
}

#[test]
fn the_uid_follows_content_and_place() {
    let origin = file("/m/a.yaml", 0);
    let same = uid_of(pod("web"), &origin, "node");
    assert_eq!(uid_of(pod("web"), &origin, "node"), same);
    // what the defaults would have said anyway is no change
    let mut explicit = pod("web");
    explicit["spec"]["restartPolicy"] = json!("Always");
    assert_eq!(uid_of(explicit, &origin, "node"), same);

    let changed = |pointer: &str, value: Value| {
        let mut manifest = pod("web");
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        manifest.pointer_mut(parent).unwrap()[field] = value;
        uid_of(manifest, &origin, "node")
    };
    let mut uids = vec![
        same,
        uid_of(pod("other"), &origin, "node"),
        uid_of(pod("web"), &origin, "node2"),
        uid_of(pod("web"), &file("/m/b.yaml", 0), "node"),
        uid_of(pod("web"), &file("/m/a.yaml", 1), "node"),
        uid_of(pod("web"), &file("/m/a.yaml", 2), "node"),
        uid_of(pod("web"), &http("/m/a.yaml"), "node"),
        changed("/metadata/namespace", json!("other")),
        changed("/metadata/labels", json!({"a": "b"})),
        changed("/metadata/annotations", json!({"a": "b"})),
        changed("/spec/containers/0/image", json!("i:2")),
        changed("/spec/containers/0/env", json!([{"name": "A", "value": "1"}])),
        changed("/spec/terminationGracePeriodSeconds", json!(5)),
    ];
    let count = uids.len();
    uids.sort();
    uids.dedup();
    assert_eq!(uids.len(), count);
    // the node does not matter to what an HTTP server sends
    assert_eq!(uid_of(pod("web"), &http("u"), "a"), uid_of(pod("web"), &http("u"), "b"));
}

#[test]
fn a_given_uid_is_kept() {
    let mut manifest = pod("web");
    manifest["metadata"]["uid"] = json!("my-uid");
    let made = made(manifest, &file("/m/a", 0), "a");
    assert_eq!(made.metadata.uid.as_deref(), Some("my-uid"));
    assert_eq!(made.metadata.annotations.unwrap()[CONFIG_HASH_ANNOTATION], "my-uid");
}

/// Only the pod's name is lowered. (Such a node name does not pass validation, here or in Kubernetes.)
#[test]
fn the_name_takes_the_node_in_lower_case() {
    let mut pod = codec::pod_from_value(pod("web")).unwrap();
    set_static_pod_fields(&mut pod, &file("/m/a", 0), "Node-A");
    assert_eq!(pod.metadata.name.as_deref(), Some("web-node-a"));
    assert_eq!(pod.spec.as_ref().unwrap().node_name.as_deref(), Some("Node-A"));
}

#[test]
fn refusals() {
    let check = |manifest: Value, expect: &str| {
        let pod = codec::pod_from_value(manifest).unwrap();
        let error = static_pod(pod, &file("/m/a.yaml", 0), "node", ReferencePolicy::Deny).unwrap_err();
        assert_eq!(error.to_string(), format!("/m/a.yaml: {expect}"));
    };
    check(json!({}), "invalid pod: name is needed for the pod");
    check(json!({"metadata": {"generateName": "x-"}}), "invalid pod: name is needed for the pod");
    check(json!({"metadata": {"name": "x"}}), "invalid pod: [spec.containers: Required value]");
    let mut account = pod("web");
    account["spec"]["serviceAccountName"] = json!("robot");
    check(account, "static pods may not reference serviceaccounts");
    let mut two = pod("web");
    two["spec"]["containers"][0] = json!({});
    check(
        two,
        "invalid pod: [spec.containers[0].name: Required value, spec.containers[0].image: Required value]",
    );
}
