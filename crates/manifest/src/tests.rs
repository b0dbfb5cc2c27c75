use proptest::prelude::*;

use super::*;

const POD: &str =
    "apiVersion: v1\nkind: Pod\nmetadata: {name: NAME}\nspec: {containers: [{name: c, image: 'i:1'}]}\n";

fn pod(name: &str) -> String {
    POD.replace("NAME", name)
}

fn file(text: &str) -> (Vec<String>, Vec<String>) {
    let FileContent { pods, errors, .. } =
        decode_file(text.as_bytes(), "/m/a.yaml", "node", ReferencePolicy::Deny);
    let names = pods.into_iter().filter_map(|pod| pod.metadata.name).collect();
    (names, errors.iter().map(ToString::to_string).collect())
}

fn check_file(text: &str, names: &[&str], errors: &[&str]) {
    let (found_names, found_errors) = file(text);
    assert_eq!(found_names, names, "{text}\n{found_errors:?}");
    assert_eq!(found_errors, errors, "{text}");
}

#[test]
fn one_file_one_pod() {
    check_file(&pod("a"), &["a-node"], &[]);
    let json = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}"#;
    check_file(json, &["a-node"], &[]);
}

/// What cluster installers write: empty and null leftovers, block style, everything on the host.
#[test]
fn a_control_plane_manifest() {
    let text = r#"
apiVersion: v1
kind: Pod
metadata:
  annotations:
    installer/advertise-address: 10.0.0.1:2379
  creationTimestamp: null
  labels:
    component: store
    tier: control-plane
  name: store
  namespace: kube-system
spec:
  containers:
  - command:
    - store
    - --data-dir=/var/lib/store
    image: registry.example/store:3.6.4-0
    imagePullPolicy: IfNotPresent
    livenessProbe:
      failureThreshold: 8
      httpGet: {host: 127.0.0.1, path: /livez, port: probe-port, scheme: HTTP}
      initialDelaySeconds: 10
      periodSeconds: 10
      timeoutSeconds: 15
    name: store
    ports:
    - {containerPort: 2381, name: probe-port, protocol: TCP}
    resources:
      requests: {cpu: 100m, memory: 100Mi}
    startupProbe:
      failureThreshold: 24
      httpGet: {host: 127.0.0.1, path: /readyz, port: probe-port, scheme: HTTP}
    volumeMounts:
    - {mountPath: /var/lib/store, name: data}
    - {mountPath: /etc/pki, name: certs, readOnly: true}
  hostNetwork: true
  priority: 2000001000
  priorityClassName: system-node-critical
  nodeSelector:
    some-label:
  securityContext:
    seccompProfile: {type: RuntimeDefault}
  volumes:
  - hostPath: {path: /etc/pki, type: DirectoryOrCreate}
    name: certs
  - hostPath: {path: /var/lib/store, type: DirectoryOrCreate}
    name: data
status: {}
"#;
    check_file(text, &["store-node"], &[]);
    let FileContent { pods, .. } = decode_file(text.as_bytes(), "/m/a.yaml", "node", ReferencePolicy::Deny);
    let container = &pods[0].spec.as_ref().unwrap().containers[0];
    assert_eq!(container.ports.as_ref().unwrap()[0].host_port, Some(2381));
}

#[test]
fn documents_stand_on_their_own() {
    check_file(&format!("{}---\n{}", pod("a"), pod("b")), &["a-node", "b-node"], &[]);
    check_file(
        &format!("{}---\n{}---\n{}", pod("a"), pod("''"), pod("b")),
        &["a-node", "b-node"],
        &["/m/a.yaml (document 2): invalid pod: name is needed for the pod"],
    );
    check_file(
        &format!("{}---\napiVersion: v1\nkind: Secret\n---\n{}", pod("a"), pod("b")),
        &["a-node", "b-node"],
        &[
            "/m/a.yaml (document 2): couldn't parse as pod(kind \"Secret\" is read from files only where there is no cluster), please check config file",
        ],
    );
    check_file(
        &format!("{}---\n{}", pod("a"), pod("b").replace("name: c", "name: 3")),
        &["a-node"],
        &[
            "/m/a.yaml (document 2): couldn't parse as pod(spec.containers[0].name: invalid type: integer `3`, expected a string), please check config file",
        ],
    );
}

#[test]
fn same_content_in_one_file_is_two_pods() {
    let twice = format!("{}---\n{}", pod("a"), pod("a"));
    let FileContent { pods, errors, .. } =
        decode_file(twice.as_bytes(), "/m/a.yaml", "node", ReferencePolicy::Deny);
    assert_eq!((pods.len(), errors.len()), (2, 0));
    assert_ne!(pods[0].metadata.uid, pods[1].metadata.uid);
}

#[test]
fn broken_text_gives_nothing() {
    let (names, errors) = file(&format!("{}---\n{}---\nspec: [\n", pod("a"), pod("b")));
    assert_eq!(names, Vec::<String>::new());
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].starts_with("/m/a.yaml: couldn't parse as pod(line 11, column "), "{errors:?}");
    let truncated = &pod("a")[..60];
    let (names, errors) = file(truncated);
    assert!(names.is_empty() && errors[0].contains("line "), "{errors:?}");
}

#[test]
fn other_kinds_are_named() {
    let check = |text: &str, what: &str| {
        let expect = format!("/m/a.yaml: couldn't parse as pod({what}), please check config file");
        check_file(text, &[], &[&expect]);
    };
    check("", "the file is empty");
    check("# nothing\n---\n", "the file is empty");
    check("hello", "kind is missing");
    check("[1, 2]", "kind is missing");
    check("kind: Pod", "apiVersion is missing for kind \"Pod\"");
    check("apiVersion: v2\nkind: Pod", "kind \"Pod\" of \"v2\" is not a Pod of \"v1\"");
    check(
        "apiVersion: apps/v1\nkind: Deployment",
        "kind \"Deployment\" of \"apps/v1\" is not a Pod of \"v1\"",
    );
    check("apiVersion: v1\nkind: PodList\nitems: []", "a list of pods is not allowed in a file");
    check("apiVersion: v1\nkind: List\nitems: []", "a list of pods is not allowed in a file");
}

#[test]
fn references_are_refused_where_asked() {
    let manifest = pod("a").replace("spec: {", "spec: {imagePullSecrets: [{name: s}], ");
    check_file(&manifest, &[], &["/m/a.yaml: static pods may not reference secrets"]);
    assert_eq!(decode_file(manifest.as_bytes(), "/m/a.yaml", "node", ReferencePolicy::Allow).pods.len(), 1);
    let claims = pod("a").replace("spec: {", "spec: {resourceClaims: [{name: r, resourceClaimName: x}], ");
    let FileContent { errors, .. } =
        decode_file(claims.as_bytes(), "/m/a.yaml", "node", ReferencePolicy::Allow);
    assert_eq!(errors[0].to_string(), "/m/a.yaml: static pods may not use ResourceClaims");
}

fn http(text: &str) -> Result<Vec<String>, String> {
    let pods = decode_http(text.as_bytes(), "http://u/", "node", ReferencePolicy::Deny)
        .map_err(|error| error.to_string())?;
    Ok(pods.into_iter().filter_map(|pod| pod.metadata.name).collect())
}

#[test]
fn http_takes_a_pod_or_a_list() {
    let item = |name: &str| {
        format!("  - metadata: {{name: {name}}}\n    spec: {{containers: [{{name: c, image: i}}]}}\n")
    };
    let list = |kind: &str, items: &str| format!("apiVersion: v1\nkind: {kind}\nitems:\n{items}");
    assert_eq!(http(&pod("a")), Ok(vec!["a-node".to_owned()]));
    let two = list("PodList", &(item("a") + &item("b")));
    assert_eq!(http(&two), Ok(vec!["a-node".to_owned(), "b-node".to_owned()]));
    assert_eq!(http(&list("List", &item("a"))), Ok(vec!["a-node".to_owned()]));
    assert_eq!(http("apiVersion: v1\nkind: PodList"), Ok(vec![]));
    let one_bad = list("PodList", &(item("a") + &item("B")));
    assert!(
        http(&one_bad)
            .unwrap_err()
            .starts_with("http://u/: invalid pod: [metadata.name: Invalid value: \"B-node\": ")
    );
    assert_eq!(
        http("kind: Pod"),
        Err("http://u/: couldn't parse as pod(apiVersion is missing for kind \"Pod\")".to_owned())
    );
    assert_eq!(http(""), Err("http://u/: couldn't parse as pod(the answer is empty)".to_owned()));
    let two_documents = format!("{}---\n{}", pod("a"), pod("b"));
    assert_eq!(
        http(&two_documents),
        Err("http://u/: couldn't parse as pod(more than one document)".to_owned())
    );
    assert!(
        http(&two.replace("image: i", "image: ["))
            .unwrap_err()
            .starts_with("http://u/: couldn't parse as pod(line ")
    );
}

#[test]
fn errors_are_one_line() {
    let bad = pod("A").replace("image: 'i:1'", "image: \"a\\nb \"");
    let (_, errors) = file(&bad);
    assert_eq!(errors.len(), 1);
    assert!(!errors[0].contains('\n'), "{errors:?}");
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let FileContent { pods, errors, .. } = decode_file(&bytes, "/m/a", "node", ReferencePolicy::Deny);
        prop_assert!(pods.is_empty() && !errors.is_empty());
        prop_assert!(decode_http(&bytes, "u", "node", ReferencePolicy::Deny).is_err());
    }

    #[test]
    fn damaged_manifests_never_panic(position in 0usize..100, junk in "\\PC{0,6}") {
        let mut text: Vec<char> = pod("a").chars().collect();
        let position = position.min(text.len());
        text.splice(position..(position + 1).min(text.len()), junk.chars());
        let text: String = text.into_iter().collect();
        let FileContent { pods, errors, .. } = decode_file(text.as_bytes(), "/m/a", "node", ReferencePolicy::Deny);
        prop_assert!(pods.len() + errors.len() > 0);
    }
}
