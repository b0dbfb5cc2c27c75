use serde_json::{Value, json};

use super::*;
use crate::render::sample;

fn key(kind: ObjectKind, name: &str) -> ObjectKey {
    ObjectKey { kind, namespace: "ns".into(), name: name.into() }
}

fn watch(kind: ObjectKind, name: &str) -> Effect {
    Effect::WatchObject { key: key(kind, name) }
}

fn unwatch(kind: ObjectKind, name: &str) -> Effect {
    Effect::UnwatchObject { key: key(kind, name) }
}

fn pod(uid: &str, spec: Value) -> PodView {
    let pod = json!({"metadata": {"name": uid, "namespace": "ns", "uid": uid}, "spec": spec});
    sample::view(serde_json::from_value(pod).unwrap())
}

fn uses(uid: &str, maps: &[&str]) -> PodView {
    let sources: Vec<_> = maps.iter().map(|name| json!({"configMapRef": {"name": name}})).collect();
    pod(uid, json!({"containers": [{"name": "c", "envFrom": sources}]}))
}

fn is(version: &str, immutable: bool) -> ObjectState {
    let content = ObjectContent { resource_version: version.into(), immutable, ..Default::default() };
    ObjectState::Present(Arc::new(content))
}

use ObjectKind::{ConfigMap, Secret};

#[test]
fn everything_that_a_definition_names() {
    let pod = pod(
        "u",
        json!({
            "serviceAccountName": "sa",
            "imagePullSecrets": [{"name": "pull"}, {"name": ""}, {}],
            "containers": [{
                "name": "c",
                "envFrom": [{"configMapRef": {"name": "from-map"}}, {"secretRef": {"name": "from-secret"}}],
                "env": [
                    {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "key-map", "key": "k"}}},
                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": "key-secret", "key": "k"}}},
                    {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                ],
                "volumeMounts": [
                    {"name": "map", "mountPath": "/1"},
                    {"name": "secret", "mountPath": "/2"},
                    {"name": "all", "mountPath": "/3"},
                ],
            }],
            "initContainers": [{"name": "i", "envFrom": [{"configMapRef": {"name": "of-init"}}]}],
            "ephemeralContainers": [{"name": "e", "envFrom": [{"secretRef": {"name": "of-ephemeral"}}]}],
            "volumes": [
                {"name": "map", "configMap": {"name": "volume-map"}},
                {"name": "secret", "secret": {"secretName": "volume-secret"}},
                {"name": "unused", "secret": {"secretName": "not-mounted"}},
                {"name": "all", "projected": {"sources": [
                    {"configMap": {"name": "projected-map"}},
                    {"secret": {"name": "projected-secret"}},
                    {"serviceAccountToken": {"path": "t", "expirationSeconds": 3607}},
                    {"serviceAccountToken": {"path": "u", "audience": "vault"}},
                ]}},
            ],
        }),
    );
    let found = referenced_objects(&pod);
    let maps = ["from-map", "key-map", "of-init", "projected-map", "volume-map"];
    let secrets = ["from-secret", "key-secret", "of-ephemeral", "projected-secret", "pull", "volume-secret"];
    let expect =
        maps.map(|name| key(ConfigMap, name)).into_iter().chain(secrets.map(|name| key(Secret, name)));
    assert_eq!(found.objects, expect.collect());
    let tokens: Vec<_> = found.tokens.iter().map(|t| (t.audiences.join(","), t.expiration_secs)).collect();
    assert_eq!(tokens, [("".to_owned(), 3607), ("vault".to_owned(), 3600)]);
    let first = found.tokens.first().unwrap();
    assert_eq!((first.service_account.as_str(), first.pod_name.as_str()), ("sa", "u"));
}

#[test]
fn an_object_is_watched_once_for_all_who_use_it() {
    let mut desk = ObjectCache::default();
    let (a, b) = (uses("a", &["x", "y"]), uses("b", &["x"]));
    assert_eq!(desk.set_pod_references(&a), [watch(ConfigMap, "x"), watch(ConfigMap, "y")]);
    assert_eq!(desk.set_pod_references(&b), []);
    assert_eq!(desk.set_pod_references(&b), [], "the same again");
    assert_eq!(desk.release(&a.uid), [unwatch(ConfigMap, "y")]);
    assert_eq!(desk.release(&a.uid), []);
    assert_eq!(desk.set_pod_references(&uses("b", &["z"])), [watch(ConfigMap, "z"), unwatch(ConfigMap, "x")]);
    assert_eq!(desk.release(&b.uid), [unwatch(ConfigMap, "z")]);
    assert!(desk.watched().next().is_none());
    assert_eq!(desk.lookup(&key(ConfigMap, "x")), ObjectLookup::NotReferenced);
}

#[test]
fn news_concern_those_who_use_it() {
    let mut desk = ObjectCache::default();
    let (a, b) = (uses("a", &["x", "y"]), uses("b", &["x"]));
    desk.set_pod_references(&a);
    desk.set_pod_references(&b);
    let (x, y) = (key(ConfigMap, "x"), key(ConfigMap, "y"));
    let mut woken = |key: &ObjectKey, state| -> Vec<String> {
        desk.record_state(key, state).0.iter().map(ToString::to_string).collect()
    };
    assert_eq!(woken(&x, is("1", false)), ["a", "b"]);
    assert_eq!(woken(&x, is("1", false)), [""; 0], "no news");
    let away = || ObjectState::Unreachable { message: "away".into() };
    assert_eq!(woken(&x, away()), [""; 0], "what was known holds");
    assert_eq!(woken(&y, away()), ["a"]);
    assert_eq!(woken(&y, away()), [""; 0]);
    assert_eq!(woken(&y, ObjectState::Absent { message: "gone".into() }), ["a"]);
    assert_eq!(woken(&key(Secret, "x"), is("1", false)), [""; 0], "nobody asked");
    assert!(matches!(desk.lookup(&x), ObjectLookup::Found(_)));
    assert_eq!(desk.lookup(&y), ObjectLookup::Absent);
}

#[test]
fn what_never_changes_is_read_once() {
    let mut desk = ObjectCache::default();
    let (a, b) = (uses("a", &["x"]), uses("b", &["x"]));
    desk.set_pod_references(&a);
    let x = key(ConfigMap, "x");
    assert_eq!(desk.record_state(&x, is("1", true)).1, Some(unwatch(ConfigMap, "x")));
    assert_eq!(desk.set_pod_references(&b), [], "it is known");
    assert!(matches!(desk.lookup(&x), ObjectLookup::Found(_)));
    desk.release(&a.uid);
    assert_eq!(desk.release(&b.uid), []);
    assert_eq!(desk.set_pod_references(&a), [watch(ConfigMap, "x")], "forgotten with its last user");
}

#[test]
fn only_text_of_a_config_map_gives_variables() {
    let mut desk = ObjectCache::default();
    let a = uses("a", &["x"]);
    desk.set_pod_references(&a);
    let content = ObjectContent {
        data: [("t".to_owned(), b"1".to_vec()), ("b".to_owned(), vec![0xff])].into(),
        binary_keys: ["b".to_owned()].into(),
        ..Default::default()
    };
    assert!(desk.env_objects("ns", &a.containers()[0]).is_err());
    desk.record_state(&key(ConfigMap, "x"), ObjectState::Present(Arc::new(content)));
    let objects = desk.env_objects("ns", &a.containers()[0]).unwrap();
    assert_eq!(objects.config_maps["x"], Ok([("t".to_owned(), "1".to_owned())].into()));
}
