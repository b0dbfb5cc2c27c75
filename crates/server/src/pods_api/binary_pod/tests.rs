//! Every field that a Pod can have is written, with every kind of value.

mod decode;
mod full_pod;

use std::collections::BTreeSet;

use model::k8s::Container;
use serde_json::json;

use self::decode::decode_pod;
use self::full_pod::full_pod;
use super::*;

#[track_caller]
fn check(pod: serde_json::Value) {
    let object: Pod = serde_json::from_value(pod.clone()).expect("a pod");
    assert_eq!(decode_pod(&encode(&object, None).expect("its binary form")), pod);
}

#[test]
fn every_field_arrives() {
    let pod = full_pod();
    let mut json = serde_json::to_value(&pod).expect("JSON");
    for type_meta in ["apiVersion", "kind"] {
        json.as_object_mut().expect("an object").remove(type_meta);
    }
    assert_eq!(decode_pod(&encode(&pod, None).expect("its binary form")), json);
}

/// The full pod is what its name says: it comes by every message of the table.
#[test]
fn the_table_has_nothing_that_no_pod_has() {
    let mut reached = BTreeSet::from(["Pod"]);
    let mut left = vec![pod_message()];
    while let Some(message) = left.pop() {
        for field in message.fields {
            if let Kind::Message(at) = field.kind
                && reached.insert(MESSAGES[at].name)
            {
                left.push(&MESSAGES[at]);
            }
        }
    }
    let all: BTreeSet<_> = MESSAGES.iter().map(|message| message.name).collect();
    assert_eq!(reached, all);
    let inlined = MESSAGES.iter().flat_map(|m| m.fields.iter().filter(|field| is_inlined(m, field)));
    assert_eq!(inlined.count(), INLINED.len(), "a structure that is not there");
}

#[test]
fn values_of_every_kind_arrive() {
    let with = |container: serde_json::Value| json!({"metadata": {}, "spec": {"containers": [container]}, "status": {}});
    for (number, port) in [(0, json!(0)), (1, json!(8080)), (2, json!("http"))] {
        check(with(json!({
            "name": number.to_string(),
            "livenessProbe": {"initialDelaySeconds": 0, "httpGet": {"port": port, "path": ""}},
        })));
    }
    check(with(json!({"name": "c", "resources": {"limits": {"cpu": "250m", "memory": "1Gi"}}})));
    check(with(json!({"name": "ü\u{1f600}\0", "securityContext": {"runAsUser": -1, "privileged": false}})));
    check(json!({
        "metadata": {
            "creationTimestamp": "1969-12-31T23:59:59Z", "deletionTimestamp": "2026-11-19T03:00:00Z",
            "labels": {"": "", "a": "b"}, "generation": i64::MAX,
        },
        "spec": {"containers": [], "priority": i32::MIN},
        "status": {"phase": "Running"},
    }));
}

/// `v1.Pod#Marshal` of Kubernetes v1.36.4 gives these bytes but for the fields that have no value.
#[test]
fn the_bytes_are_the_published_ones() {
    let containers = vec![Container { name: "c".into(), image: Some("i".into()), ..Default::default() }];
    let mut pod = Pod::default();
    pod.metadata.name = Some("n".into());
    pod.spec = Some(model::k8s::PodSpec { containers, ..Default::default() });
    let status = PodStatus { phase: Some("Running".into()), ..Default::default() };
    let expect = [
        &[0x0a, 3, 0x0a, 1, b'n'][..],
        &[0x12, 8, 0x12, 6, 0x0a, 1, b'c', 0x12, 1, b'i'],
        &[0x1a, 9, 0x0a, 7],
        b"Running",
    ];
    assert_eq!(encode(&pod, Some(&status)).expect("bytes"), expect.concat());
}

#[test]
fn a_pod_that_is_gone_has_its_name_only() {
    let bytes = encode_identity(&"u-1".into(), &FullName::new("web", "ns")).expect("bytes");
    let expect = json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "u-1"}, "spec": {}, "status": {},
    });
    let mut decoded = decode_pod(&bytes);
    decoded["spec"].as_object_mut().expect("an object").retain(|_, value| *value != json!([]));
    assert_eq!(decoded, expect);
}

#[test]
fn a_value_of_another_type_is_named() {
    let wrong = json!({"spec": {"containers": [{"resources": {"limits": {"cpu": 7}}}]}});
    let error = encode_message(pod_message(), wrong.as_object().expect("an object")).expect_err("an error");
    assert_eq!(error.to_string(), "spec.containers.resources.limits: the value is of another type");
}
