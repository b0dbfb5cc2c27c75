use k8s_openapi::api::core::v1::{ConfigMap, Node, PersistentVolumeClaim, Pod, Service};
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Value, json};

use super::*;

fn read<T: DeserializeOwned>(value: &Value) -> Result<T, CodecError> {
    decode(value.to_string().as_bytes(), FieldFilter::Whole)
}

/// A bit of everything: texts, numbers, booleans, lists, maps, times, quantities, bytes, ports by name and number.
fn pod() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "7", "generation": 3,
            "creationTimestamp": "2026-01-02T03:04:05Z", "deletionGracePeriodSeconds": 30,
            "labels": {"app": "web", "tier": "x"}, "annotations": {"k": "v"}, "finalizers": ["f"],
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "o", "controller": true}],
        },
        "spec": {
            "nodeName": "n", "hostNetwork": true, "priority": 5, "activeDeadlineSeconds": 9,
            "nodeSelector": {"zone": "z"}, "overhead": {"cpu": "1m"}, "imagePullSecrets": [{"name": "s"}],
            "securityContext": {"fsGroup": 1, "supplementalGroups": [1, 2], "sysctls": [{"name": "a", "value": "1"}]},
            "tolerations": [{"key": "k", "operator": "Exists", "tolerationSeconds": 3}],
            "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["h"]}], "readinessGates": [{"conditionType": "c"}],
            "initContainers": [{"name": "i", "image": "x", "restartPolicy": "Always"}],
            "containers": [{
                "name": "c", "image": "i", "command": ["a", "b"], "args": ["c"], "tty": true,
                "ports": [{"containerPort": 80, "protocol": "TCP", "name": "http"}],
                "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                "envFrom": [{"prefix": "p", "configMapRef": {"name": "m", "optional": true}}],
                "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}},
                "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": true}],
                "livenessProbe": {"httpGet": {"path": "/", "port": 80, "httpHeaders": [{"name": "h", "value": "v"}]}, "periodSeconds": 5},
                "lifecycle": {"preStop": {"exec": {"command": ["x"]}}},
                "securityContext": {"capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]}, "runAsUser": 5},
            }],
            "volumes": [
                {"name": "v", "emptyDir": {"sizeLimit": "1Gi", "medium": "Memory"}},
                {"name": "p", "projected": {"sources": [{"secret": {"name": "s", "items": [{"key": "k", "path": "p", "mode": 256}]}}, {"serviceAccountToken": {"path": "t", "expirationSeconds": 600}}]}},
                {"name": "c", "csi": {"driver": "d", "volumeAttributes": {"a": "b"}}},
            ],
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]}}],
        },
        "status": {
            "phase": "Running", "startTime": "2026-01-02T03:04:05Z", "podIPs": [{"ip": "10.0.0.2"}],
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"}],
            "containerStatuses": [{"name": "c", "image": "i", "imageID": "d", "ready": true, "restartCount": 2, "started": true,
                "state": {"running": {"startedAt": "2026-01-02T03:04:05Z"}}, "allocatedResources": {"cpu": "1"}}],
        },
    })
}

fn node() -> Value {
    json!({
        "metadata": {"name": "n", "labels": {"a": "b"}},
        "spec": {"podCIDRs": ["10.0.0.0/24"], "taints": [{"key": "k", "effect": "NoSchedule", "timeAdded": "2026-01-02T03:04:05Z"}]},
        "status": {
            "capacity": {"cpu": "4"}, "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-02T03:04:05Z"}],
            "images": [{"names": ["a", "b"], "sizeBytes": 5}], "nodeInfo": {"machineID": "m", "kernelVersion": "k"},
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}}, "volumesAttached": [{"name": "v", "devicePath": "d"}],
        },
    })
}

fn claim() -> Value {
    json!({
        "metadata": {"name": "c", "namespace": "ns"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "volumeName": "pv"},
        "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}, "allocatedResourceStatuses": {"storage": "x"},
            "conditions": [{"type": "Resizing", "status": "True", "lastProbeTime": "2026-01-02T03:04:05Z"}]},
    })
}

fn config_map() -> Value {
    json!({"metadata": {"name": "m"}, "data": {"k": "v"}, "binaryData": {"b": "AAE="}, "immutable": true})
}

fn service() -> Value {
    json!({
        "metadata": {"name": "s", "namespace": "ns"},
        "spec": {"clusterIP": "10.0.0.3", "clusterIPs": ["10.0.0.3"], "selector": {"a": "b"},
            "ports": [{"name": "p", "port": 80, "targetPort": "http", "protocol": "TCP"}]},
        "status": {"conditions": [{"type": "T", "status": "True", "reason": "R", "message": "m", "lastTransitionTime": "2026-01-02T03:04:05Z"}],
            "loadBalancer": {"ingress": [{"ip": "1.2.3.4", "ports": [{"port": 1, "protocol": "TCP"}]}]}},
    })
}

/// JSON pointers of everything below the top.
fn pointers(value: &Value, at: &str, found: &mut Vec<String>) {
    let below: Vec<(String, &Value)> = match value {
        Value::Object(fields) => fields.iter().map(|(name, field)| (name.clone(), field)).collect(),
        Value::Array(elements) => elements.iter().enumerate().map(|(n, e)| (n.to_string(), e)).collect(),
        _ => return,
    };
    for (name, part) in below {
        let pointer = format!("{at}/{name}");
        pointers(part, &pointer, found);
        found.push(pointer);
    }
}

fn all_pointers(value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    pointers(value, "", &mut found);
    // These two say which type it is. They are no part of it.
    found.retain(|pointer| pointer != "/kind" && pointer != "/apiVersion");
    found
}

/// Maps from names to values, whose keys stay though their values are null.
const MAPS: &[&str] = &[
    "labels",
    "annotations",
    "nodeSelector",
    "overhead",
    "limits",
    "requests",
    "volumeAttributes",
    "matchLabels",
    "allocatedResources",
    "allocatedResourceStatuses",
    "capacity",
    "data",
    "binaryData",
    "selector",
];
const QUANTITIES: &[&str] = &["overhead", "limits", "requests", "allocatedResources", "capacity"];

/// The same object as somebody would write it who knows no null: the field is left out, or has its zero value where its
/// place counts.
fn without_null(whole: &Value, pointer: &str) -> Value {
    let mut other = whole.clone();
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    let map = parent.rsplit('/').next().unwrap_or_default();
    let zero = match whole.pointer(pointer).unwrap() {
        Value::String(_) if QUANTITIES.contains(&map) => json!("0"),
        Value::String(_) => json!(""),
        Value::Number(_) => json!(0),
        Value::Bool(_) => json!(false),
        Value::Array(_) => json!([]),
        Value::Object(_) => json!({}),
        Value::Null => Value::Null,
    };
    match other.pointer_mut(parent).unwrap() {
        Value::Array(elements) => elements[name.parse::<usize>().unwrap()] = zero,
        Value::Object(fields) if MAPS.contains(&map) => drop(fields.insert(name.to_owned(), zero)),
        Value::Object(fields) => drop(fields.remove(name)),
        _ => unreachable!("only lists and objects have parts"),
    }
    other
}

fn check_nulls<T: DeserializeOwned + PartialEq + fmt::Debug>(whole: &Value) {
    read::<T>(whole).unwrap();
    for pointer in all_pointers(whole) {
        let mut odd = whole.clone();
        *odd.pointer_mut(&pointer).unwrap() = Value::Null;
        let expect = read::<T>(&without_null(whole, &pointer));
        assert_eq!(read::<T>(&odd), expect, "null at {pointer}");
        assert!(expect.is_ok(), "{pointer}: {expect:?}");
    }
}

#[test]
fn null_is_the_zero_value_anywhere() {
    check_nulls::<Pod>(&pod());
    check_nulls::<Node>(&node());
    check_nulls::<PersistentVolumeClaim>(&claim());
    check_nulls::<ConfigMap>(&config_map());
    check_nulls::<Service>(&service());
}

proptest! {
    #[test]
    fn many_nulls_at_once_are_read_too(places in prop::collection::vec(any::<Index>(), 0..12)) {
        let mut odd = pod();
        for place in places {
            let left = all_pointers(&odd);
            if !left.is_empty() {
                *odd.pointer_mut(place.get::<String>(&left)).unwrap() = Value::Null;
            }
        }
        prop_assert!(read::<Pod>(&odd).is_ok(), "{odd}: {:?}", read::<Pod>(&odd));
    }

    /// Whatever stands in a field: the object is read or refused with its path, and nothing panics.
    #[test]
    fn wrong_types_are_named(place in any::<Index>(), kind in 0..5usize) {
        let whole = pod();
        let pointers = all_pointers(&whole);
        let pointer = place.get::<String>(&pointers);
        let mut odd = whole.clone();
        *odd.pointer_mut(pointer).unwrap() =
            [json!(true), json!(-7), json!("\u{1F600}"), json!([[]]), json!({"a": {"b": 1}})][kind].clone();
        if let Err(error) = read::<Pod>(&odd) {
            let path = pointer.trim_start_matches('/').replace('/', ".");
            let told = error.to_string().replace('[', ".").replace(']', "");
            prop_assert!(told.starts_with(&path), "{path}: {told}");
        }
    }
}

#[test]
fn times_that_go_writes_are_read() {
    let read = |time: Value| {
        let condition = json!({"type": "T", "status": "True", "lastTransitionTime": time});
        let service = json!({"status": {"conditions": [condition]}});
        let service: Service = super::tests::read(&service).map_err(|error| error.to_string())?;
        Ok::<_, String>(service.status.unwrap().conditions.unwrap()[0].last_transition_time.0.to_string())
    };
    let check = |time: Value, expect: &str| assert_eq!(read(time.clone()), Ok(expect.to_owned()), "{time}");
    check(json!("2026-01-02T03:04:05Z"), "2026-01-02T03:04:05Z");
    check(json!("2026-01-02T03:04:05.5+02:00"), "2026-01-02T01:04:05.5Z");
    check(Value::Null, "0001-01-01T00:00:00Z");
    check(json!("9999-12-31T23:59:59Z"), "9999-12-30T22:00:00Z");
    check(json!("10000-01-01T00:59:59Z"), "9999-12-30T22:00:00Z");
    check(json!("0000-01-01T00:00:00Z"), "0000-01-01T00:00:00Z");
    let path = "status.conditions[0].lastTransitionTime: ";
    for wrong in [json!(""), json!("soon"), json!("10000-13-01T00:00:00Z"), json!("9999"), json!(5)] {
        let told = read(wrong.clone()).unwrap_err();
        assert!(told.starts_with(path), "{wrong}: {told}");
    }
    let none: Service = super::tests::read(&json!({"status": {"conditions": [{"type": "T"}]}})).unwrap();
    let time = &none.status.unwrap().conditions.unwrap()[0].last_transition_time;
    assert_eq!(time.0.to_string(), "0001-01-01T00:00:00Z", "an API that leaves zero times out");
}

#[test]
fn what_is_skipped_cannot_be_wrong() {
    let deep = format!("{}1{}", r#"{"f:a":"#.repeat(5_000), "}".repeat(5_000));
    let managed = format!(r#"[{{"time":"10000-01-01T00:00:00Z","fieldsV1":{deep}}},5]"#);
    let object = format!(r#"{{"metadata":{{"managedFields":{managed},"name":"a"}},"later":{deep}}}"#);
    let pod: Pod = decode(object.as_bytes(), FieldFilter::Whole).unwrap();
    assert_eq!((pod.metadata.name.as_deref(), pod.metadata.managed_fields), (Some("a"), None));
    const NAME: FieldFilter =
        FieldFilter::Only(&[("metadata", FieldFilter::Only(&[("name", FieldFilter::Whole)]))]);
    let object = r#"{"metadata":{"name":"a","labels":7,"uid":"u"},"spec":[],"status":9}"#;
    let pod: Pod = decode(object.as_bytes(), NAME).unwrap();
    assert_eq!((pod.metadata.name.as_deref(), pod.metadata.uid), (Some("a"), None));
    let error = decode::<Pod>(object.as_bytes(), FieldFilter::Whole).unwrap_err();
    assert!(error.to_string().starts_with("metadata.labels: "), "{error}");
}

/// The text that is wrong is part of the message. It may be as long as an object.
#[test]
fn what_is_said_of_a_mistake_is_bounded() {
    let pod = json!({"spec": {"hostNetwork": "x".repeat(1 << 20)}});
    let error = read::<Pod>(&pod).unwrap_err().to_string();
    assert!(error.starts_with("spec.hostNetwork: invalid type: string \"xxx"), "{}", &error[..100]);
    assert!(error.len() < 5_000, "{} bytes", error.len());
    let error = read::<ConfigMap>(&json!({"data": {"k".repeat(1 << 20): 5}})).unwrap_err().to_string();
    assert!(error.len() < 9_000, "{} bytes", error.len());
}

#[test]
fn fields_of_a_newer_api_are_passed_over() {
    let mut newer = pod();
    newer["spec"]["containers"][0]["later"] = json!({"a": [1, {"b": null}]});
    newer["spec"]["restartPolicy"] = json!("SometimesLater");
    newer["spec"]["volumes"][0]["laterKind"] = json!({"x": 1});
    newer["laterPart"] = json!([[[]]]);
    let read = read::<Pod>(&newer).unwrap();
    assert_eq!(read.spec.unwrap().restart_policy.as_deref(), Some("SometimesLater"));
}
