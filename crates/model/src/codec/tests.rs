use proptest::prelude::*;
use serde_json::json;

use super::*;

fn documents(text: &str) -> Vec<Value> {
    parse_documents(text.as_bytes()).unwrap_or_else(|error| panic!("{text}\n{error}"))
}

fn refusal(text: &str) -> String {
    parse_documents(text.as_bytes()).expect_err(text).to_string()
}

#[test]
fn reads_scalars_as_kubernetes_does() {
    let check = |text: &str, expect: Value| assert_eq!(documents(text), vec![expect], "{text}");
    check("mode: 0644", json!({"mode": 420}));
    check("mode: 0o644", json!({"mode": 420}));
    check("mode: \"0644\"", json!({"mode": "0644"}));
    check("a: 1\nb: 1.5\nc: -3", json!({"a": 1, "b": 1.5, "c": -3}));
    check("a: true\nb: yes\nc: off", json!({"a": true, "b": true, "c": false}));
    check("a: ~\nb: null\nc:", json!({"a": null, "b": null, "c": null}));
    check("a: 'yes'", json!({"a": "yes"}));
    check("a: 2024-01-01", json!({"a": "2024-01-01"}));
    check("a: 1.2.3", json!({"a": "1.2.3"}));
    check("a: 1.0\nb: 1e3\nc: 1.5\nd: [-2.0]", json!({"a": 1, "b": 1000, "c": 1.5, "d": [-2]}));
    check("1: one", json!({"1": "one"}));
    check("a: |\n  x\n  y\n", json!({"a": "x\ny\n"}));
    check("a: &x [1]\nb: *x", json!({"a": [1], "b": [1]}));
    check("a: &x {k: 1}\nb:\n  <<: *x\n  l: 2", json!({"a": {"k": 1}, "b": {"k": 1, "l": 2}}));
}

#[test]
fn splits_documents_and_skips_empty_ones() {
    let check = |text: &str, count: usize| assert_eq!(documents(text).len(), count, "{text:?}");
    check("", 0);
    check("\n\n", 0);
    check("# only a comment\n", 0);
    check("---\n", 0);
    check("---\na: 1\n---\n---\nb: 2\n---\n", 2);
    check("a: 1\n---\nb: 2\n---\nc: 3\n", 3);
    check("{\"a\": 1}", 1);
    check("\u{feff}{\"a\": 1}\n{\"b\": 2}\n", 2);
    check("{a: 1}\n---\n{b: 2}\n", 2);
}

#[test]
fn syntax_errors_have_a_place() {
    let check = |text: &str, start: &str| {
        let message = refusal(text);
        assert!(message.starts_with(start), "{text:?} gave {message:?}");
        assert!(!message.contains('\n'), "{message:?}");
    };
    check("a: 1\nb: [1, 2\n", "line 2");
    check("a: 1\nspec:\n  containers: [", "line 3");
    check("a: \"no end\n", "line ");
    check("a: 1\n  b: 2\n", "line 2");
    check("a: 1\na: 2\n", "line 2, column 1: ");
    check("x:\n- b: 1\n  b: 2\n", "line 3");
    check("{\"a\": 1,\n \"a\": 2}", "line 2");
    check("{\"a\": 1,\n \"b\": ", "line 2");
    check("a: 1\n---\nb: [\n", "line ");
    check("a: *nowhere\n", "line 1");
}

#[test]
fn invalid_text_is_placed() {
    assert_eq!(parse_documents(b"a: 1\nb: \xff\n"), Err(CodecError::NotText { line: 2 }));
}

#[test]
fn alias_bombs_and_deep_nesting_are_refused() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..10 {
        let before = level - 1;
        let references = vec![format!("*a{before}"); 10].join(", ");
        bomb.push_str(&format!("a{level}: &a{level} [{references}]\n"));
    }
    assert!(parse_documents(bomb.as_bytes()).is_err());
    assert!(parse_documents("[".repeat(50_000).as_bytes()).is_err());
    assert!(parse_documents("{\"a\":".repeat(50_000).as_bytes()).is_err());
    assert!(parse_documents("- ".repeat(50_000).as_bytes()).is_err());
}

#[test]
fn a_wrong_type_is_named_by_its_path() {
    let check = |pod: Value, path: &str| match pod_from_value(pod) {
        Err(CodecError::Field { path: found, .. }) => assert_eq!(found, path),
        other => panic!("{path}: {other:?}"),
    };
    let container =
        |field: &str, value: Value| json!({"spec": {"containers": [{"name": "c", field: value}]}});
    check(
        container("ports", json!([{"containerPort": "http"}])),
        "spec.containers[0].ports[0].containerPort",
    );
    check(container("command", json!("sleep 5")), "spec.containers[0].command");
    check(container("env", json!([{"name": "A", "value": 1}])), "spec.containers[0].env[0].value");
    check(
        container("resources", json!({"limits": {"cpu": "1x"}})),
        "spec.containers[0].resources.limits.cpu",
    );
    check(
        container("resources", json!({"limits": {"cpu": true}})),
        "spec.containers[0].resources.limits.cpu",
    );
    check(json!({"metadata": {"labels": {"a": true}}}), "metadata.labels.a");
    check(
        json!({"spec": {"volumes": [{"emptyDir": {"sizeLimit": ""}}]}}),
        "spec.volumes[0].emptyDir.sizeLimit",
    );
}

#[test]
fn bare_numbers_are_quantities() {
    let pod = pod_from_value(json!({"spec": {
        "containers": [{"name": "c", "resources": {"limits": {"cpu": 0.5, "memory": 1000}}}],
        "volumes": [{"name": "v", "emptyDir": {"sizeLimit": 5}}],
    }}))
    .unwrap();
    let value = pod_to_value(&pod);
    assert_eq!(
        value.pointer("/spec/containers/0/resources/limits"),
        Some(&json!({"cpu": "0.5", "memory": "1000"}))
    );
    assert_eq!(value.pointer("/spec/volumes/0/emptyDir/sizeLimit"), Some(&json!("5")));
}

#[test]
fn absent_texts_are_empty() {
    let pod = pod_from_value(json!({
        "metadata": {"labels": {"a": null}, "annotations": {"b": null}},
        "spec": {"nodeSelector": {"c": null}, "containers": [{"command": [null], "args": ["x", null]}]},
    }))
    .unwrap();
    let value = pod_to_value(&pod);
    let check = |pointer: &str, expect: Value| assert_eq!(value.pointer(pointer), Some(&expect), "{pointer}");
    check("/metadata/labels", json!({"a": ""}));
    check("/metadata/annotations", json!({"b": ""}));
    check("/spec/nodeSelector", json!({"c": ""}));
    check("/spec/containers/0/command", json!([""]));
    check("/spec/containers/0/args", json!(["x", ""]));
}

/// As Go reads a manifest: what is null is not there.
#[test]
fn nulls_of_a_manifest_are_zero_values() {
    let pod = pod_from_value(json!({
        "metadata": {"name": "a", "labels": null, "creationTimestamp": null, "finalizers": [null]},
        "spec": {
            "hostNetwork": null, "terminationGracePeriodSeconds": null, "volumes": null, "initContainers": [],
            "containers": [null, {
                "name": null, "ports": [null, {"containerPort": null}], "env": [{"name": "A", "value": null}],
                "resources": {"limits": {"cpu": null}, "requests": null},
                "livenessProbe": {"httpGet": {"port": null}, "periodSeconds": null},
            }],
        },
        "status": null,
    }))
    .unwrap();
    let spec = pod.spec.as_ref().unwrap();
    assert_eq!(spec.containers[0], Default::default());
    assert_eq!(spec.containers[1].ports.as_ref().unwrap().len(), 2);
    let limits = spec.containers[1].resources.as_ref().unwrap().limits.as_ref().unwrap();
    assert_eq!(limits["cpu"].0, "0");
}

#[test]
fn unknown_fields_are_ignored_and_lists_decoded() {
    let pods = pod_list_from_value(json!({
        "kind": "PodList",
        "items": [{"metadata": {"name": "a"}, "newField": 1}, {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "b"}}],
    }))
    .unwrap();
    assert_eq!(
        pods.iter().map(|pod| pod.metadata.name.as_deref()).collect::<Vec<_>>(),
        [Some("a"), Some("b")]
    );
    assert_eq!(pod_list_from_value(json!({})), Ok(Vec::new()));
    let wrong = pod_list_from_value(json!({"items": [{}, {"spec": {"hostNetwork": "maybe"}}]})).unwrap_err();
    assert!(wrong.to_string().starts_with("items[1].spec.hostNetwork: "), "{wrong}");
    assert!(pod_list_from_value(json!({"items": 3})).is_err());
    assert!(pod_list_from_value(json!({"items": [{"kind": "Secret"}]})).is_err());
}

#[test]
fn canonical_json_is_stable() {
    let value = json!({"kind": "Pod", "metadata": {"labels": {"b": "2", "a": "1"}, "name": "x"}, "spec": {"containers": []}});
    let pod = pod_from_value(value).unwrap();
    assert_eq!(
        String::from_utf8(pod_to_canonical_json(&pod)).unwrap(),
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{"a":"1","b":"2"},"name":"x"},"spec":{"containers":[]}}"#
    );
    assert_eq!(
        pod_status_to_value(&PodStatus { phase: Some("Pending".into()), ..Default::default() }),
        json!({"phase": "Pending"})
    );
}

proptest! {
    #[test]
    fn never_panics_on_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse_documents(&bytes);
    }

    #[test]
    fn never_panics_on_yaml_like_text(text in "[-{}\\[\\]:,&*!|>%@`\"'#a0 \n\t]{0,80}") {
        let _ = parse_documents(text.as_bytes());
    }
}
