use serde_json::{Value, json};

use super::*;

fn yaml(text: &str) -> Value {
    model::codec::parse_documents(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}")).remove(0)
}

fn defaulted(spec: Value) -> Value {
    let mut pod = model::codec::pod_from_value(json!({"spec": spec})).unwrap();
    defaults(&mut pod);
    let once = model::codec::pod_to_value(&pod);
    defaults(&mut pod);
    assert_eq!(model::codec::pod_to_value(&pod), once, "a second time changes nothing");
    once
}

/// What becomes of the field at `pointer` when the spec says `text`.
fn spec(text: &str, pointer: &str, expect: Value) {
    let found = defaulted(yaml(text));
    let pointer = format!("/spec{pointer}");
    assert_eq!(found.pointer(&pointer).unwrap_or(&Value::Null), &expect, "{text}: {found}");
}

/// The same for a container, an init container and the field in each of them.
fn container(text: &str, pointer: &str, expect: Value) {
    for kind in ["containers", "initContainers"] {
        let found = defaulted(json!({kind: [yaml(text)]}));
        let pointer = format!("/spec/{kind}/0{pointer}");
        assert_eq!(found.pointer(&pointer).unwrap_or(&Value::Null), &expect, "{text}: {found}");
    }
}

fn volume(text: &str, pointer: &str, expect: Value) {
    let found = defaulted(json!({"volumes": [yaml(text)]}));
    let pointer = format!("/spec/volumes/0{pointer}");
    assert_eq!(found.pointer(&pointer).unwrap_or(&Value::Null), &expect, "{text}: {found}");
}

#[test]
fn a_pod_without_a_spec_gets_one() {
    let mut pod = Pod::default();
    defaults(&mut pod);
    assert_eq!(pod.spec.unwrap().restart_policy.as_deref(), Some("Always"));
}

#[test]
fn pods() {
    spec("{}", "/dnsPolicy", json!("ClusterFirst"));
    spec("{}", "/restartPolicy", json!("Always"));
    spec("{restartPolicy: ''}", "/restartPolicy", json!("Always"));
    spec("{restartPolicy: Never}", "/restartPolicy", json!("Never"));
    spec("{}", "/securityContext", json!({}));
    spec("{}", "/terminationGracePeriodSeconds", json!(30));
    spec("{terminationGracePeriodSeconds: 0}", "/terminationGracePeriodSeconds", json!(0));
    spec("{terminationGracePeriodSeconds: -5}", "/terminationGracePeriodSeconds", json!(1));
    spec("{}", "/schedulerName", json!("default-scheduler"));
    spec("{}", "/enableServiceLinks", json!(true));
    spec("{enableServiceLinks: false}", "/enableServiceLinks", json!(false));
    spec("{serviceAccount: a}", "/serviceAccountName", json!("a"));
    spec("{serviceAccount: a, serviceAccountName: b}", "/serviceAccountName", json!("b"));
}

#[test]
fn containers() {
    container("{image: x}", "/imagePullPolicy", json!("Always"));
    container("{image: 'x:latest'}", "/imagePullPolicy", json!("Always"));
    container("{image: 'x:1'}", "/imagePullPolicy", json!("IfNotPresent"));
    container("{image: x, imagePullPolicy: Never}", "/imagePullPolicy", json!("Never"));
    container("{}", "/terminationMessagePath", json!("/dev/termination-log"));
    container("{terminationMessagePath: /x}", "/terminationMessagePath", json!("/x"));
    container("{}", "/terminationMessagePolicy", json!("File"));
    container("{ports: [{containerPort: 1}]}", "/ports/0/protocol", json!("TCP"));
    container("{ports: [{containerPort: 1, protocol: UDP}]}", "/ports/0/protocol", json!("UDP"));
    container("{ports: [{containerPort: 1}]}", "/ports/0/hostPort", Value::Null);
    let variable = "{env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]}";
    container(variable, "/env/0/valueFrom/fieldRef/apiVersion", json!("v1"));
}

#[test]
fn ephemeral_containers_get_nothing() {
    spec(
        "{ephemeralContainers: [{name: e, image: x}]}",
        "/ephemeralContainers/0",
        json!({"name": "e", "image": "x"}),
    );
}

#[test]
fn host_network_ports() {
    for kind in ["containers", "initContainers"] {
        let text = format!(
            "{{hostNetwork: true, {kind}: [{{ports: [{{containerPort: 80}}, {{containerPort: 1, hostPort: 2}}]}}]}}"
        );
        spec(&text, &format!("/{kind}/0/ports/0/hostPort"), json!(80));
        spec(&text, &format!("/{kind}/0/ports/1/hostPort"), json!(2));
    }
}

#[test]
fn probes_and_hooks() {
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        let text = format!("{{{probe}: {{timeoutSeconds: 0, httpGet: {{port: 80}}}}}}");
        container(&text, &format!("/{probe}/timeoutSeconds"), json!(1));
        container(&text, &format!("/{probe}/periodSeconds"), json!(10));
        container(&text, &format!("/{probe}/successThreshold"), json!(1));
        container(&text, &format!("/{probe}/failureThreshold"), json!(3));
        container(&text, &format!("/{probe}/initialDelaySeconds"), Value::Null);
        container(&text, &format!("/{probe}/terminationGracePeriodSeconds"), Value::Null);
        container(&text, &format!("/{probe}/httpGet/path"), json!("/"));
        container(&text, &format!("/{probe}/httpGet/scheme"), json!("HTTP"));
        container(
            &format!("{{{probe}: {{periodSeconds: 3}}}}"),
            &format!("/{probe}/periodSeconds"),
            json!(3),
        );
        container(
            &format!("{{{probe}: {{grpc: {{port: 1}}}}}}"),
            &format!("/{probe}/grpc/service"),
            json!(""),
        );
    }
    for hook in ["postStart", "preStop"] {
        let text = format!("{{lifecycle: {{{hook}: {{httpGet: {{port: 80, scheme: HTTPS}}}}}}}}");
        container(&text, &format!("/lifecycle/{hook}/httpGet/path"), json!("/"));
        container(&text, &format!("/lifecycle/{hook}/httpGet/scheme"), json!("HTTPS"));
    }
}

#[test]
fn container_resources() {
    container("{resources: {limits: {cpu: 1}}}", "/resources/requests", json!({"cpu": "1"}));
    container(
        "{resources: {limits: {cpu: 1, memory: 1.5Gi}, requests: {cpu: 0.5}}}",
        "/resources/requests",
        json!({"cpu": "500m", "memory": "1536Mi"}),
    );
    container("{resources: {limits: {memory: 1.5Gi}}}", "/resources/limits", json!({"memory": "1536Mi"}));
    container("{resources: {requests: {cpu: 100100u}}}", "/resources/requests", json!({"cpu": "101m"}));
    container("{resources: {requests: {cpu: 1}}}", "/resources/limits", Value::Null);
    spec("{overhead: {memory: 1024Ki}}", "/overhead", json!({"memory": "1Mi"}));
}

#[test]
fn pod_level_resources() {
    spec("{resources: {limits: {cpu: 1}}}", "/resources/requests", json!({"cpu": "1"}));
    spec("{resources: {requests: {cpu: 1}}}", "/resources", json!({"requests": {"cpu": "1"}}));
    let two =
        "containers: [{resources: {requests: {cpu: 1, memory: 1Gi}}}, {resources: {requests: {cpu: 500m}}}]";
    spec(
        &format!("{{resources: {{limits: {{cpu: 4, memory: 4Gi}}, requests: {{memory: 2Gi}}}}, {two}}}"),
        "/resources/requests",
        json!({"cpu": "1500m", "memory": "2Gi"}),
    );
    // an init container runs beside the sidecar that precedes it, and is larger than what runs later
    spec(
        "{resources: {limits: {cpu: 9}}, containers: [{resources: {requests: {cpu: 1}}}], initContainers: \
         [{restartPolicy: Always, resources: {requests: {cpu: 2}}}, {resources: {requests: {cpu: 4}}}]}",
        "/resources/requests",
        json!({"cpu": "6"}),
    );
    let pages = "containers: [{resources: {limits: {cpu: 1, hugepages-2Mi: 4Mi}}}]";
    spec(
        &format!("{{resources: {{limits: {{cpu: 2}}}}, {pages}}}"),
        "/resources",
        json!({"limits": {"cpu": "2", "hugepages-2Mi": "4Mi"}, "requests": {"cpu": "1", "hugepages-2Mi": "4Mi"}}),
    );
    spec(
        &format!("{{resources: {{limits: {{cpu: 2}}, requests: {{hugepages-2Mi: 8Mi}}}}, {pages}}}"),
        "/resources/limits",
        json!({"cpu": "2"}),
    );
    spec("{resources: {}}", "/resources", json!({}));
}

#[test]
fn volumes() {
    volume("{name: v}", "/emptyDir", json!({}));
    volume("{hostPath: {path: /x}}", "", json!({"name": "", "hostPath": {"path": "/x", "type": ""}}));
    volume("{hostPath: {path: /x, type: File}}", "/hostPath/type", json!("File"));
    volume("{secret: {secretName: s}}", "/secret/defaultMode", json!(0o644));
    volume("{secret: {secretName: s, defaultMode: 0400}}", "/secret/defaultMode", json!(0o400));
    volume("{configMap: {name: m}}", "/configMap/defaultMode", json!(0o644));
    volume(
        "{downwardAPI: {items: [{path: a, fieldRef: {fieldPath: metadata.name}}]}}",
        "/downwardAPI/defaultMode",
        json!(0o644),
    );
    volume(
        "{downwardAPI: {items: [{path: a, fieldRef: {fieldPath: metadata.name}}]}}",
        "/downwardAPI/items/0/fieldRef/apiVersion",
        json!("v1"),
    );
    volume("{projected: {}}", "/projected/defaultMode", json!(0o644));
    let token = "{projected: {sources: [{serviceAccountToken: {path: t}}]}}";
    volume(token, "/projected/sources/0/serviceAccountToken/expirationSeconds", json!(3600));
    volume(
        "{projected: {sources: [{downwardAPI: {items: [{path: a, fieldRef: {fieldPath: metadata.name}}]}}]}}",
        "/projected/sources/0/downwardAPI/items/0/fieldRef/apiVersion",
        json!("v1"),
    );
    volume("{image: {reference: x}}", "/image/pullPolicy", json!("Always"));
    volume("{image: {reference: 'x:1'}}", "/image/pullPolicy", json!("IfNotPresent"));
    volume("{iscsi: {}}", "/iscsi/iscsiInterface", json!("default"));
    volume("{rbd: {}}", "/rbd/pool", json!("rbd"));
    volume("{rbd: {}}", "/rbd/user", json!("admin"));
    volume("{rbd: {}}", "/rbd/keyring", json!("/etc/ceph/keyring"));
    volume("{scaleIO: {}}", "/scaleIO/storageMode", json!("ThinProvisioned"));
    volume("{scaleIO: {}}", "/scaleIO/fsType", json!("xfs"));
    volume("{azureDisk: {}}", "/azureDisk/cachingMode", json!("ReadWrite"));
    volume("{azureDisk: {}}", "/azureDisk/kind", json!("Shared"));
    volume("{azureDisk: {}}", "/azureDisk/fsType", json!("ext4"));
    volume("{azureDisk: {}}", "/azureDisk/readOnly", json!(false));
    let claim = "{ephemeral: {volumeClaimTemplate: {spec: {}}}}";
    volume(claim, "/ephemeral/volumeClaimTemplate/spec/volumeMode", json!("Filesystem"));
}
