//! The specs of pods that a real cluster accepted and ran: all of them are good, and those that need objects of
//! an API server are good but cannot be static.

use std::collections::BTreeMap;

use manifest::{FileContent, ManifestErrorKind, decode_file};
use serde_json::{Value, json};

const SPECS: &str = include_str!("fixtures/reference-pod-specs.json");

/// Pods that refer to config maps or secrets, and what the refusal names.
const REFERRING: [(&str, &str); 5] = [
    ("config-map-key-missing", "configmaps"),
    ("config-map-missing-env", "configmaps"),
    ("env", "secrets"),
    ("secret-missing-volume", "secrets"),
    ("volumes", "secrets"),
];

fn specs() -> BTreeMap<String, Value> {
    serde_json::from_str(SPECS).expect("the fixture is JSON")
}

fn manifest(name: &str, spec: &Value) -> Vec<u8> {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
        .to_string()
        .into_bytes()
}

#[test]
fn every_recorded_pod_is_valid() {
    let specs = specs();
    assert!(specs.len() > 50, "the fixture holds all recorded pods");
    for (name, spec) in specs {
        let FileContent { pods, errors, .. } = decode_file(
            &manifest(&name, &spec),
            "/manifests/pod.json",
            "vm",
            manifest::ReferencePolicy::Allow,
        );
        assert_eq!(errors, [], "{name}");
        let pod = &pods[0];
        assert_eq!(pod.metadata.name, Some(format!("{name}-vm")));
        let spec = pod.spec.as_ref().expect("a defaulted pod has a spec");
        assert!(spec.containers.iter().all(|container| container.image_pull_policy.is_some()), "{name}");
    }
}

#[test]
fn only_pods_with_references_cannot_be_static() {
    let referring = BTreeMap::from(REFERRING);
    for (name, spec) in specs() {
        let FileContent { pods, errors, .. } = decode_file(
            &manifest(&name, &spec),
            "/manifests/pod.json",
            "vm",
            manifest::ReferencePolicy::Deny,
        );
        match referring.get(name.as_str()) {
            None => assert_eq!((pods.len(), errors.as_slice()), (1, [].as_slice()), "{name}"),
            Some(object) => {
                let expect = ManifestErrorKind::References(format!("static pods may not reference {object}"));
                assert_eq!(errors[0].kind, expect, "{name}");
                assert!(pods.is_empty(), "{name}");
            }
        }
    }
}

#[test]
fn decoding_twice_gives_the_same_pod() {
    for (name, spec) in specs() {
        let decode = || {
            decode_file(
                &manifest(&name, &spec),
                "/manifests/pod.json",
                "vm",
                manifest::ReferencePolicy::Allow,
            )
        };
        assert_eq!(decode(), decode(), "{name}");
    }
}
