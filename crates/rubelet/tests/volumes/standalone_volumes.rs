//! A node without a cluster: config maps, secrets and claims in the manifest directory serve the pods beside them.

use crate::support::harness::{Node, SLOW, wait};
use crate::support::pods::{IMAGE, UNTIL_TERM, is_running, manifest, phase};
use serde_json::{Value, json};

const OBJECTS: &str = r#"
apiVersion: v1
kind: Secret
metadata: {name: login}
data: {user: cm9vdA==}
stringData: {password: not-root}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Gi}}
"#;

fn config_map(text: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings}}\ndata: {{mode: {text}}}\n")
}

fn spec(script: &str) -> Value {
    json!({
        "terminationGracePeriodSeconds": 2,
        "restartPolicy": "Never",
        "containers": [{
            "name": "c",
            "image": IMAGE,
            "command": ["sh", "-c", script],
            "env": [{"name": "MODE", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "mode"}}}],
            "envFrom": [{"secretRef": {"name": "login"}, "prefix": "LOGIN_"}],
            "volumeMounts": [
                {"name": "settings", "mountPath": "/settings"},
                {"name": "all", "mountPath": "/all"},
                {"name": "data", "mountPath": "/data"},
            ],
        }],
        "volumes": [
            {"name": "settings", "configMap": {"name": "settings"}},
            {"name": "all", "projected": {"sources": [
                {"configMap": {"name": "settings"}}, {"secret": {"name": "login"}},
                {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
            ]}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        ],
    })
}

fn wait_why(node: &Node, pod: &str, expect: &str) {
    wait(expect, SLOW, || {
        let output = node.agent.command(&["why", pod]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if text.contains(expect) { Ok(()) } else { Err(text) }
    });
}

fn wait_text(node: &Node, path: &str, expect: &str) {
    let path = node.agent.root_dir().join("local-volumes/default/data").join(path);
    wait(&format!("{} to be {expect:?}", path.display()), SLOW, || match std::fs::read_to_string(&path) {
        Ok(text) if text.trim() == expect => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

#[test]
fn objects_in_files_serve_the_pods_beside_them() {
    let node = Node::start();
    let script = format!(
        "echo \"$MODE $LOGIN_user $LOGIN_password $(cat /all/user) $(cat /all/name | cut -c1-3)\" >/data/first
         (while :; do cat /settings/mode >/data/tmp && mv /data/tmp /data/mode; sleep 0.2; done) &
         {UNTIL_TERM}"
    );
    // The pod comes first: it waits, and says for what.
    node.agent.write_manifest("pod.json", &manifest("web", spec(&script)));
    wait_why(&node, "web", "configmap \"settings\" not found");
    wait_why(&node, "web", "waits for volume data (claim data)");
    node.agent.write_manifest("settings.yaml", &config_map("one"));
    wait_why(&node, "web", "waits for volume data (claim data)");
    node.agent.write_manifest("objects.yaml", OBJECTS);
    node.wait_pod("web", SLOW, is_running);
    wait_text(&node, "first", "one root not-root root web");
    wait_text(&node, "mode", "one");

    // What the file says now is what the pod sees; nothing is started anew for it.
    node.agent.write_manifest("settings.yaml", &config_map("two"));
    wait_text(&node, "mode", "two");
    wait_text(&node, "first", "one root not-root root web");

    // The claim outlives its pod, and its own document.
    node.agent.remove_manifest("pod.json");
    node.wait_clean(SLOW);
    node.agent.remove_manifest("objects.yaml");
    wait_text(&node, "first", "one root not-root root web");

    // In one file with its objects, for the next pod of the claim.
    let next =
        manifest("next", spec("test \"$(cat /data/first | cut -d' ' -f1)\" = one && echo $MODE >/data/last"));
    node.agent.write_manifest("next.yaml", &format!("{OBJECTS}\n---\n{next}\n"));
    node.wait_pod("next", SLOW, |pod| phase(pod) == "Succeeded");
    wait_text(&node, "last", "two");
}

/// A hook that only ends when its files have changed: they do, although the pod's start is not over.
#[test]
fn files_follow_while_a_hook_runs() {
    let node = Node::start();
    node.agent.write_manifest("settings.yaml", &config_map("one"));
    let hook =
        "cat /settings/mode >/data/began; until test \"$(cat /settings/mode)\" = two; do sleep 0.1; done";
    let mut spec = spec(UNTIL_TERM);
    spec["containers"][0]["lifecycle"] = json!({"postStart": {"exec": {"command": ["sh", "-c", hook]}}});
    node.agent.write_manifest("objects.yaml", OBJECTS);
    node.agent.write_manifest("pod.json", &manifest("hooked", spec));
    wait_text(&node, "began", "one");
    node.agent.write_manifest("settings.yaml", &config_map("two"));
    let pod = node.wait_pod("hooked", SLOW, is_running);
    assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0);
    node.agent.remove_manifest("pod.json");
    node.wait_clean(SLOW);
}

#[test]
fn what_only_a_cluster_has_is_refused() {
    let node = Node::start();
    let token = json!({"sources": [{"serviceAccountToken": {"path": "token"}}]});
    let mut wants_token = spec("true");
    wants_token["serviceAccountName"] = json!("default");
    wants_token["volumes"][1] = json!({"name": "all", "projected": token});
    node.agent.write_manifest("token", &manifest("token", wants_token));
    node.agent.write_manifest("odd", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ../up}\n");
    let expect =
        ["static pods may not reference serviceaccounts", "odd.yaml: invalid ConfigMap: metadata.name"];
    wait("both to be told of", SLOW, || {
        let log = node.agent.log();
        let missing: Vec<_> = expect.iter().filter(|text| !log.contains(**text)).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?}")) }
    });
}
