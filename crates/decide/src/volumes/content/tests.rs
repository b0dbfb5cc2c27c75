use std::sync::Arc;

use model::Now;
use model::cluster::{ObjectState, Token};
use model::volume::VolumeKind;
use model::volume_source::VolumeSource;
use serde_json::{Value, json};

use super::super::content_source;
use super::*;
use crate::objects::referenced_objects;
use crate::render::sample;

const NOW: Wall = Wall(1_700_000_000_000_000_000);

fn pod_with(volume: Value, more: Value) -> PodView {
    let mut volume = volume;
    volume["name"] = json!("v");
    let mut spec = json!({
        "serviceAccountName": "sa",
        "containers": [{"name": "c", "resources": {"limits": {"cpu": "1500m"}}, "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
        "volumes": [volume],
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    let mut pod = sample::api_pod(spec);
    pod.metadata.labels = Some([("b".to_owned(), "2".to_owned()), ("a".to_owned(), "\"1".to_owned())].into());
    pod.metadata.annotations = Some([("note".to_owned(), "two\nlines".to_owned())].into());
    sample::view(pod)
}

fn is(data: &[(&str, &str)]) -> ObjectState {
    ObjectState::Present(Arc::new(ObjectContent {
        resource_version: format!("{data:?}"),
        data: data.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect(),
        ..Default::default()
    }))
}

/// A cluster with config map `m` and secret `s`; whatever else a pod names is not there. Tokens are `t<n>`.
fn cluster(pod: &PodView) -> ObjectCache {
    let mut desk = ObjectCache::default();
    desk.set_pod_references(pod);
    for key in referenced_objects(pod).objects {
        let state = match (key.kind, key.name.as_str()) {
            (ObjectKind::ConfigMap, "m") => is(&[("k", "v"), ("l", "w")]),
            (ObjectKind::Secret, "s") => is(&[("k", "hidden")]),
            (_, "unread") => continue,
            (_, "forbidden") => ObjectState::Denied { message: "not yours".into() },
            _ => ObjectState::Absent { message: "-".into() },
        };
        desk.record_state(&key, state);
    }
    for (number, wanted) in referenced_objects(pod).tokens.iter().enumerate() {
        let expires = NOW.plus(std::time::Duration::from_secs(600));
        let token = Token { token: format!("t{number}"), expires };
        desk.token_issued(wanted, Ok(token), Now { mono: model::Mono::ZERO, wall: NOW });
    }
    desk
}

fn setup_of(
    inputs: &VolumeInputs<'_>,
    volume: &k8s::Volume,
    known: Option<u64>,
) -> Result<Option<VolumeSetup>, VolumeNotReady> {
    let source = content_source(inputs, VolumeSource::of(volume)).unwrap();
    setup(inputs, volume, source, known)
}

fn content_of(pod: &PodView, desk: Option<&ObjectCache>) -> Result<ContentVolume, VolumeNotReady> {
    let (config, facts) = (sample::config(), sample::facts());
    let inputs = VolumeInputs { config: &config, facts: &facts, pod, cluster: desk, node: None, now: NOW };
    let volume = &pod.spec().volumes.as_deref().unwrap()[0];
    let made = setup_of(&inputs, volume, None)?.unwrap();
    let VolumeKind::Content(content) = made.kind else { panic!("{made:?}") };
    let again = setup_of(&inputs, volume, Some(content.version));
    assert_eq!(again, Ok(None), "the same version is not made again");
    Ok(*content)
}

/// Files as `path mode text`, or the message.
#[track_caller]
fn check(volume: Value, expect: Result<&[&str], &str>) {
    check_in(volume, json!({}), expect);
}

#[track_caller]
fn check_in(volume: Value, spec: Value, expect: Result<&[&str], &str>) {
    let pod = pod_with(volume, spec);
    let desk = cluster(&pod);
    let shown = match content_of(&pod, Some(&desk)) {
        Ok(content) => Ok(show(&content)),
        Err(VolumeNotReady::SetUpRefused { volume, message }) => {
            assert_eq!(volume, "v");
            Err(message)
        }
        Err(VolumeNotReady::Waiting { cause, .. }) => Err(format!("{cause:?}")),
        Err(held) => Err(format!("{held:?}")),
    };
    let expect = expect.map(|list| list.iter().map(|line| line.to_string()).collect::<Vec<_>>());
    assert_eq!(shown, expect.map_err(str::to_owned));
}

fn show(content: &ContentVolume) -> Vec<String> {
    let line = |(path, file): (&String, &ContentFile)| {
        let owner = file.owner.map(|owner| format!("@{owner}")).unwrap_or_default();
        format!("{path} {:o}{owner} {}", file.mode, String::from_utf8_lossy(&file.bytes))
    };
    content.files.iter().map(line).collect()
}

#[test]
fn config_maps() {
    check(json!({"configMap": {"name": "m"}}), Ok(&["k 644 v", "l 644 w"]));
    check(json!({"configMap": {"name": "m", "defaultMode": 0o400}}), Ok(&["k 400 v", "l 400 w"]));
    check(
        json!({"configMap": {"name": "m", "items": [
            {"key": "k", "path": "a/b", "mode": 0o600}, {"key": "k", "path": "./c"}
        ]}}),
        Ok(&["a/b 600 v", "c 644 v"]),
    );
    check(
        json!({"configMap": {"name": "m", "items": [{"key": "x", "path": "x"}]}}),
        Err("configmap references non-existent config key: x"),
    );
    let items = json!([{"key": "x", "path": "x"}, {"key": "k", "path": "k"}]);
    check(json!({"configMap": {"name": "m", "optional": true, "items": items}}), Ok(&["k 644 v"]));
    check(json!({"configMap": {"name": "x"}}), Err("configmap \"x\" not found"));
    check(json!({"configMap": {"name": "x", "optional": true}}), Ok(&[]));
    check(json!({"configMap": {"name": "forbidden", "optional": true}}), Err("not yours"));
    check(json!({"configMap": {"name": ""}}), Err("object \"ns\"/\"\" not registered"));
    check(
        json!({"configMap": {"name": "unread"}}),
        Err("WaitingForObject { kind: \"configmap\", name: \"unread\", message: \"\" }"),
    );
}

#[test]
fn secrets() {
    check(json!({"secret": {"secretName": "s"}}), Ok(&["k 644 hidden"]));
    check(json!({"secret": {"secretName": "s", "defaultMode": 0o440}}), Ok(&["k 440 hidden"]));
    check(json!({"secret": {"secretName": "x"}}), Err("secret \"x\" not found"));
    check(json!({"secret": {"secretName": "x", "optional": true}}), Ok(&[]));
    check(
        json!({"secret": {"secretName": "s", "items": [{"key": "x", "path": "x"}]}}),
        Err("references non-existent secret key: x"),
    );
}

#[test]
fn paths_that_lead_elsewhere() {
    let items = |path: &str| json!({"configMap": {"name": "m", "items": [{"key": "k", "path": path}]}});
    check(items("../x"), Err("invalid path: must not contain '..': ../x"));
    check(items("/x"), Err("invalid path: must be relative path: /x"));
    check(items("..data"), Err("invalid path: must not start with '..': ..data"));
    check(items(""), Err("invalid path: must not be empty: \"\""));
}

#[test]
fn fields_of_the_pod() {
    let field = |path: &str| json!({"path": "f", "fieldRef": {"fieldPath": path}});
    let of = |item: Value| json!({"downwardAPI": {"items": [item]}});
    check(of(field("metadata.name")), Ok(&["f 644 p"]));
    check(of(field("metadata.namespace")), Ok(&["f 644 ns"]));
    check(of(field("metadata.uid")), Ok(&["f 644 u-1"]));
    check(of(field("metadata.labels")), Ok(&["f 644 a=\"\\\"1\"\nb=\"2\""]));
    check(of(field("metadata.annotations")), Ok(&["f 644 note=\"two\\nlines\""]));
    check(of(field("metadata.labels['b']")), Ok(&["f 644 2"]));
    check(of(field("metadata.annotations['note']")), Ok(&["f 644 two\nlines"]));
    check(of(field("status.podIP")), Err("unsupported fieldPath: status.podIP"));
    check(of(field("spec.nodeName")), Err("unsupported fieldPath: spec.nodeName"));
    let resource = |name: &str, resource: &str| json!({"path": "r", "mode": 0o400, "resourceFieldRef": {"containerName": name, "resource": resource}});
    check(of(resource("c", "limits.cpu")), Ok(&["r 400 2"]));
    check(of(resource("c", "requests.memory")), Ok(&["r 400 0"]));
    check(of(resource("x", "limits.cpu")), Err("container x not found"));
    check(
        json!({"downwardAPI": {"items": [field("status.podIP"), resource("x", "limits.cpu")]}}),
        Err("[unsupported fieldPath: status.podIP, container x not found]"),
    );
}

fn projected(sources: Value) -> Value {
    json!({"projected": {"sources": sources, "defaultMode": 0o644}})
}

#[test]
fn what_every_pod_of_a_cluster_has() {
    let sources = json!([
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "m", "items": [{"key": "k", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
        {"secret": {"name": "s"}},
    ]);
    check(projected(sources), Ok(&["ca.crt 644 v", "k 644 hidden", "namespace 644 ns", "token 644 t0"]));
}

#[test]
fn sources_of_one_volume_together() {
    let same = json!([{"configMap": {"name": "m"}}, {"secret": {"name": "s"}}]);
    check(projected(same), Ok(&["k 644 hidden", "l 644 w"]));
    let bad = json!([
        {"configMap": {"name": "x"}}, {"secret": {"name": "y"}}, {"secret": {"name": "s", "items": [{"key": "z", "path": "z"}]}},
    ]);
    let expect = "[configmap \"x\" not found, secret \"y\" not found, references non-existent secret key: z]";
    check(projected(bad), Err(expect));
    check(projected(json!([{"configMap": {"name": "x"}}])), Err("configmap \"x\" not found"));
    check(projected(json!([{"configMap": {"name": "x", "optional": true}}])), Ok(&[]));
    let waits = json!([{"configMap": {"name": "x"}}, {"secret": {"name": "unread"}}]);
    let expect = "WaitingForObject { kind: \"secret\", name: \"unread\", message: \"\" }";
    check(projected(waits), Err(expect));
    check(
        projected(json!([{"clusterTrustBundle": {"path": "x", "name": "y"}}])),
        Err("ClusterTrustBundle projection is not supported in static kubelet mode"),
    );
    let certificate = json!({"keyType": "ED25519", "signerName": "x/y", "credentialBundlePath": "z"});
    check(projected(json!([{ "podCertificate": certificate }])), Err("unimplemented"));
}

#[test]
fn a_token_belongs_to_those_who_use_it() {
    let token = || projected(json!([{"serviceAccountToken": {"path": "t"}}]));
    let container = |user: Option<i64>| json!({"name": "c", "securityContext": {"runAsUser": user}, "volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    check_in(token(), json!({"securityContext": {"fsGroup": 7}}), Ok(&["t 600 t0"]));
    check_in(token(), json!({"securityContext": {"runAsUser": 9}}), Ok(&["t 600@9 t0"]));
    let both = json!({"containers": [container(Some(9))], "initContainers": [container(Some(9))]});
    check_in(token(), both, Ok(&["t 600@9 t0"]));
    let differ = json!({"containers": [container(Some(9))], "initContainers": [container(Some(8))]});
    check_in(token(), differ, Ok(&["t 644 t0"]));
    let silent = json!({"containers": [container(Some(9))], "initContainers": [container(None)]});
    check_in(token(), silent, Ok(&["t 644 t0"]));
}

#[test]
fn where_it_lies_and_what_else_it_needs() {
    let config_map = json!({"configMap": {"name": "m"}});
    let spec = json!({
        "securityContext": {"fsGroup": 7},
        "containers": [{"name": "c", "volumeMounts": [
            {"name": "v", "mountPath": "/v"}, {"name": "other", "mountPath": "/v/in/side"},
        ]}],
    });
    let pod = pod_with(config_map, spec);
    let content = content_of(&pod, Some(&cluster(&pod))).unwrap();
    assert_eq!(content.path, "/r/pods/u-1/volumes/kubernetes.io~configmap/v");
    assert_eq!((content.backing, content.fs_group), (ContentBacking::Disk, Some(7)));
    assert_eq!(content.mount_points, ["in/side"]);
    let memory = ContentBacking::Memory { size_bytes: Some(8 << 30) };
    for (volume, dir) in [
        (json!({"secret": {"secretName": "s"}}), "secret"),
        (json!({"downwardAPI": {}}), "downward-api"),
        (projected(json!([])), "projected"),
    ] {
        let pod = pod_with(volume, json!({}));
        let content = content_of(&pod, Some(&cluster(&pod))).unwrap();
        assert_eq!(content.path, format!("/r/pods/u-1/volumes/kubernetes.io~{dir}/v"));
        assert_eq!(content.backing, memory);
    }
}

#[test]
fn another_version_for_every_change() {
    let pod = pod_with(
        projected(json!([{"configMap": {"name": "m"}}, {"serviceAccountToken": {"path": "t"}}])),
        json!({}),
    );
    let mut desk = cluster(&pod);
    let mut versions = vec![content_of(&pod, Some(&desk)).unwrap().version];
    let (keys, tokens) = (referenced_objects(&pod).objects, referenced_objects(&pod).tokens);
    desk.record_state(keys.first().unwrap(), is(&[("k", "other")]));
    versions.push(content_of(&pod, Some(&desk)).unwrap().version);
    let token = Token { token: "next".into(), expires: NOW };
    desk.token_issued(tokens.first().unwrap(), Ok(token), Now { mono: model::Mono::ZERO, wall: NOW });
    versions.push(content_of(&pod, Some(&desk)).unwrap().version);
    versions.sort_unstable();
    versions.dedup();
    assert_eq!(versions.len(), 3);
}

#[test]
fn without_a_cluster() {
    let refused = |volume: Value| match content_of(&pod_with(volume, json!({})), None) {
        Err(VolumeNotReady::SetUpRefused { message, .. }) => message,
        other => panic!("{other:?}"),
    };
    let text = "cannot setup projected volume v because kube client is not configured";
    assert_eq!(refused(projected(json!([{"downwardAPI": {}}]))), text);
    let fields =
        json!({"downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}});
    assert_eq!(show(&content_of(&pod_with(fields, json!({})), None).unwrap()), ["n 644 p"]);
}

#[test]
fn certificates_that_the_cluster_vouches_for() {
    let source = json!({"clusterTrustBundle": {"name": "b", "path": "ca/all.pem"}});
    let volume =
        |more: Value| pod_with(json!({"projected": {"sources": [source], "defaultMode": 0o440}}), more);
    let (mut config, facts) = (sample::config(), sample::facts());
    config.features.insert(TRUST_GATE.into(), true);
    let made = |pod: &PodView, desk: &ObjectCache, config: &NodeConfig| {
        let inputs = VolumeInputs { config, facts: &facts, pod, cluster: Some(desk), node: None, now: NOW };
        setup_of(&inputs, &pod.spec().volumes.as_deref().unwrap()[0], None).map(|found| found.unwrap().kind)
    };
    let pod = volume(json!({}));
    let mut desk = ObjectCache::default();
    let waits = VolumeNotReady::Waiting { volume: "v".into(), cause: Cause::WaitingForTrustBundles };
    assert_eq!(made(&pod, &desk, &config), Err(waits));
    let off = VolumeNotReady::SetUpRefused { volume: "v".into(), message: NO_TRUST_BUNDLES.into() };
    assert_eq!(made(&pod, &desk, &sample::config()), Err(off.clone()), "the gate is off");
    assert_eq!(made(&pod, &ObjectCache::standalone(), &config), Err(off));

    let pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let bundle = |pem: &str| {
        let object = json!({"metadata": {"name": "b"}, "spec": {"trustBundle": pem}});
        vec![Arc::new(serde_json::from_value(object).unwrap())]
    };
    assert!(desk.trust.set(bundle(pem)));
    assert!(!desk.trust.set(bundle(pem)), "nothing is new");
    let file = |pod: &PodView, desk: &ObjectCache| {
        let VolumeKind::Content(content) = made(pod, desk, &config).unwrap() else { panic!("no content") };
        (content.version, content.files["ca/all.pem"].clone())
    };
    let (version, found) = file(&pod, &desk);
    assert_eq!(found, ContentFile { mode: 0o440, owner: None, bytes: pem.as_bytes().to_vec() });
    let owned = file(&volume(json!({"securityContext": {"runAsUser": 7}})), &desk).1;
    assert_eq!((owned.mode, owned.owner), (0o600, Some(7)));
    desk.trust.set(bundle(&pem.replace("AAAA", "BBBB")));
    assert_ne!(file(&pod, &desk).0, version);
}

#[test]
fn certificates_of_the_pod() {
    use model::pod_certificate::{CertificateRequested, PrivateKey};

    let paths = json!({"credentialBundlePath": "all", "keyPath": "d/key", "certificateChainPath": "d/chain"});
    let pod = |paths: Value, more: Value| {
        let mut certificate = paths;
        certificate["signerName"] = json!("a.b/c");
        certificate["keyType"] = json!("ED25519");
        let source = json!({ "podCertificate": certificate });
        pod_with(json!({"projected": {"sources": [source], "defaultMode": 0o440}}), more)
    };
    let (mut config, facts) = (sample::config(), sample::facts());
    config.features.insert(CERTIFICATES_GATE.into(), true);
    let made = |pod: &PodView, desk: &ObjectCache, config: &NodeConfig| {
        let inputs = VolumeInputs { config, facts: &facts, pod, cluster: Some(desk), node: None, now: NOW };
        setup_of(&inputs, &pod.spec().volumes.as_deref().unwrap()[0], None).map(|found| found.unwrap().kind)
    };
    let refused =
        |message: &str| Err(VolumeNotReady::SetUpRefused { volume: "v".into(), message: message.into() });
    let view = pod(paths.clone(), json!({}));
    let mut desk = ObjectCache::default();
    assert_eq!(made(&view, &desk, &sample::config()), refused("unimplemented"), "the gate is off");
    assert_eq!(made(&view, &ObjectCache::standalone(), &config), refused("unimplemented"));
    let cause = Cause::WaitingForCertificate { signer_name: "a.b/c".into() };
    assert_eq!(made(&view, &desk, &config), Err(VolumeNotReady::Waiting { volume: "v".into(), cause }));

    let now = Now { mono: model::Mono::ZERO, wall: NOW };
    let node = crate::objects::RequestingNode { name: "n", uid: Some("n-1") };
    desk.certificates.claim(&view, node, now);
    let source = CertificateSource { pod: view.uid.clone(), volume: "v".into(), index: 0 };
    let requested = CertificateRequested { name: "r".into(), key: PrivateKey("KEY\n".into()) };
    desk.certificates.requested(&source, 1, Ok(requested), now);
    assert_eq!(made(&view, &desk, &config), refused("credential bundle is not issued yet"));

    let pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let time = "2023-12-01T00:00:00Z";
    let condition =
        json!({"type": "Issued", "status": "True", "reason": "", "message": "", "lastTransitionTime": time});
    let object = json!({
        "metadata": {"namespace": view.namespace(), "name": "r"}, "spec": {},
        "status": {"conditions": [condition], "certificateChain": pem, "beginRefreshAt": time, "notAfter": time},
    });
    desk.certificates.read(&[Arc::new(serde_json::from_value(object).unwrap())], now);
    let shown = |pod: &PodView| match made(pod, &desk, &config).unwrap() {
        VolumeKind::Content(content) => (content.backing, show(&content)),
        other => panic!("{other:?}"),
    };
    let memory = ContentBacking::Memory { size_bytes: Some(8 << 30) };
    let files = |mode: &str| {
        let file = |path: &str, text: &str| format!("{path} {mode} {text}");
        vec![file("all", &format!("KEY\n{pem}")), file("d/chain", pem), file("d/key", "KEY\n")]
    };
    assert_eq!(shown(&view), (memory, files("440")));
    let owned = pod(paths, json!({"securityContext": {"runAsUser": 7}}));
    assert_eq!(shown(&owned), (memory, files("600@7")));
    let one = pod(json!({"keyPath": "k", "certificateChainPath": ""}), json!({}));
    assert_eq!(shown(&one).1, ["k 440 KEY\n"]);
}
