//! One row for each rule: a piece of a manifest and the errors it causes, as `path: kind of error`.

mod containers;
mod pods;
mod volumes;

use serde_json::{Value, json};

use super::*;

fn yaml(text: &str) -> Value {
    let mut documents =
        model::codec::parse_documents(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_eq!(documents.len(), 1, "{text}");
    documents.remove(0)
}

/// The smallest good pod.
fn base() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "ns"},
        "spec": {"containers": [{"name": "c", "image": "i:1"}]},
    })
}

/// Lays the fields of `over` on those of the object at `pointer`.
fn overlay(pod: &mut Value, pointer: &str, over: Value) {
    let target = pod.pointer_mut(pointer).and_then(Value::as_object_mut).expect(pointer);
    target.extend(over.as_object().expect("a mapping").clone());
}

fn validate(pod: &Pod) -> Result<(), Vec<FieldError>> {
    validate_with_gate(pod, false)
}

fn errors(pod: Value) -> Vec<FieldError> {
    let mut pod = model::codec::pod_from_value(pod.clone()).unwrap_or_else(|error| panic!("{pod}: {error}"));
    crate::defaults(&mut pod);
    validate(&pod).err().unwrap_or_default()
}

fn check(pod: Value, expect: &[&str]) {
    let found = errors(pod.clone());
    let short: Vec<String> = found
        .iter()
        .map(|error| format!("{}: {}", error.path, error.detail.split(':').next().unwrap_or_default()))
        .collect();
    assert_eq!(short, expect, "{pod}\n{found:#?}");
}

fn metadata(text: &str, expect: &[&str]) {
    let mut pod = base();
    overlay(&mut pod, "/metadata", yaml(text));
    check(pod, expect);
}

fn spec(text: &str, expect: &[&str]) {
    let mut pod = base();
    overlay(&mut pod, "/spec", yaml(text));
    check(pod, expect);
}

/// Paths are relative to the container.
fn container(text: &str, expect: &[&str]) {
    let mut pod = base();
    overlay(&mut pod, "/spec/containers/0", yaml(text));
    let expect: Vec<String> = expect.iter().map(|error| format!("spec.containers[0].{error}")).collect();
    check(pod, &expect.iter().map(String::as_str).collect::<Vec<_>>());
}

/// Paths are relative to the volume.
fn volume(text: &str, expect: &[&str]) {
    let mut pod = base();
    pod["spec"]["volumes"] = json!([{"name": "v"}]);
    overlay(&mut pod, "/spec/volumes/0", yaml(text));
    let expect: Vec<String> = expect
        .iter()
        .map(|error| match error.strip_prefix(": ") {
            Some(kind) => format!("spec.volumes[0]: {kind}"),
            None => format!("spec.volumes[0].{error}"),
        })
        .collect();
    check(pod, &expect.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn errors_read_like_those_of_kubernetes() {
    let shown = |text: &str| {
        let mut pod = base();
        overlay(&mut pod, "/spec/containers/0", yaml(text));
        errors(pod).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let check = |text: &str, expect: &str| assert_eq!(shown(text), [expect], "{text}");
    check("image: ''", "spec.containers[0].image: Required value");
    check(
        "imagePullPolicy: Sometimes",
        "spec.containers[0].imagePullPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \
         \"IfNotPresent\", \"Never\"",
    );
    check(
        "ports: [{containerPort: 1, name: a}, {containerPort: 2, name: a}]",
        "spec.containers[0].ports[1].name: Duplicate value: \"a\"",
    );
    check(
        "volumeMounts: [{name: v, mountPath: /v}]",
        "spec.containers[0].volumeMounts[0].name: Not found: \"v\"",
    );
    check(
        "ports: [{containerPort: 70000}]",
        "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
    );
    let mut pod = base();
    pod["metadata"]["name"] = json!("Foo");
    let message = errors(pod)[0].to_string();
    assert!(
        message.starts_with(
            "metadata.name: Invalid value: \"Foo\": a lowercase RFC 1123 subdomain must consist of "
        ),
        "{message}"
    );
}
