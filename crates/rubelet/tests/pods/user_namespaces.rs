//! Pods with users of their own, on a runtime that can give them: containerd 2.1 with a runc of 2025.

use std::path::PathBuf;

use crate::support::harness::{self, Agent, Node, Runtime, SLOW, wait};
use crate::support::pods::{UNTIL_TERM, is_running, manifest, printed, shell, uid};
use crate::support::runtime_view::RuntimeView;
use serde_json::{Value, json};

const CLASS: &str =
    "{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: younger}, handler: younger}\n";

fn pod(name: &str) -> String {
    let script = format!("cat /proc/self/uid_map; echo mine > /data/file; ls -ln /data/file; {UNTIL_TERM}");
    let mut container = shell("c", &script);
    container["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    let spec = json!({
        "hostUsers": false,
        "runtimeClassName": "younger",
        "terminationGracePeriodSeconds": 2,
        "volumes": [{"name": "data", "emptyDir": {}}],
        "containers": [container],
    });
    manifest(name, spec)
}

/// First id on the host and how many, as the container sees them.
fn ids(node: &Node, pod: &Value) -> (u64, u64) {
    let lines = wait("the container's words", SLOW, || match printed(&node.agent, pod, "c", 0) {
        lines if lines.len() >= 2 => Ok(lines),
        lines => Err(format!("{lines:?}")),
    });
    let words: Vec<u64> = lines[0].split_whitespace().map(|word| word.parse().expect("a number")).collect();
    assert_eq!(words[0], 0, "{lines:?}");
    // Inside, root's own file is root's.
    let owner: Vec<&str> = lines[1].split_whitespace().skip(2).take(2).collect();
    assert_eq!(owner, ["0", "0"], "{lines:?}");
    (words[1], words[2])
}

fn record_path(node: &Node, pod: &Value) -> PathBuf {
    node.agent.root_dir().join("pods").join(uid(pod)).join("userns")
}

fn record(node: &Node, pod: &Value) -> String {
    let path = record_path(node, pod);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn each_pod_has_ids_of_its_own_also_after_a_crash() {
    let runc = harness::run(harness::hack("parts").arg("runc")).trim().to_owned();
    let runtime = Runtime::start_with_runc("2.1", &runc);
    let mut node = Node { agent: Agent::start(&runtime, |_| {}), runtime };
    let seen = RuntimeView::new(&node.runtime);
    node.agent.write_manifest("class.yaml", CLASS);
    for name in ["one", "two"] {
        node.agent.write_manifest(&format!("{name}.json"), &pod(name));
    }
    let one = node.wait_pod("one", SLOW, is_running);
    let two = node.wait_pod("two", SLOW, is_running);
    let (ids_one, ids_two) = (ids(&node, &one), ids(&node, &two));
    for (first, count) in [ids_one, ids_two] {
        assert_eq!(count, 65536);
        assert!(first >= 65536 && first.is_multiple_of(65536), "{first}");
    }
    assert_ne!(ids_one.0, ids_two.0);
    assert!(record(&node, &one).contains(&format!("\"hostId\":{}", ids_one.0)));

    // The next agent knows them: who runs goes on, and a third pod gets ids that nobody has.
    let before = seen.running();
    node.agent.restart();
    node.agent.write_manifest("three.json", &pod("three"));
    let three = node.wait_pod("three", SLOW, is_running);
    let ids_three = ids(&node, &three);
    assert!(ids_three.0 != ids_one.0 && ids_three.0 != ids_two.0, "{ids_three:?}");
    let after = seen.running();
    assert_eq!((&before["one"], &before["two"]), (&after["one"], &after["two"]));

    // Ids of a pod that is gone are given again.
    node.agent.remove_manifest("one.json");
    wait("the pod to be gone", SLOW, || match node.agent.command(&["why", "one"]) {
        said if said.status.success() => Err(String::from_utf8_lossy(&said.stdout).into_owned()),
        _ => Ok(()),
    });
    node.agent.write_manifest("four.json", &pod("four"));
    let four = node.wait_pod("four", SLOW, is_running);
    assert_eq!(ids(&node, &four).0, ids_one.0, "the first that is free");
    for name in ["two", "three", "four"] {
        node.agent.remove_manifest(&format!("{name}.json"));
    }
    node.wait_clean(SLOW);
}

/// Ids that are in use but not known must not be given again: their pods could read each other's files.
#[test]
fn nobody_gets_ids_while_a_record_can_not_be_read() {
    let runc = harness::run(harness::hack("parts").arg("runc")).trim().to_owned();
    let runtime = Runtime::start_with_runc("2.1", &runc);
    let mut node = Node { agent: Agent::start(&runtime, |_| {}), runtime };
    let seen = RuntimeView::new(&node.runtime);
    node.agent.write_manifest("class.yaml", CLASS);
    node.agent.write_manifest("one.json", &pod("one"));
    let one = node.wait_pod("one", SLOW, is_running);
    let ids_one = ids(&node, &one);
    let before = seen.running();
    let (path, text) = (record_path(&node, &one), record(&node, &one));

    std::fs::write(&path, "{").expect("a damaged record");
    node.agent.restart();
    node.agent.write_manifest("two.json", &pod("two"));
    wait_for_ids(&node, "two");
    // It may have been the disk: the record is read again.
    std::fs::write(&path, &text).expect("a good record");
    let two = node.wait_pod("two", SLOW, is_running);
    assert_ne!(ids(&node, &two).0, ids_one.0);

    // A record that stays damaged counts until its pod is gone.
    std::fs::write(&path, "{").expect("a damaged record");
    node.agent.restart();
    node.agent.write_manifest("three.json", &pod("three"));
    wait_for_ids(&node, "three");
    assert_eq!(before["one"], seen.running()["one"], "it goes on");
    node.agent.remove_manifest("one.json");
    let three = node.wait_pod("three", SLOW, is_running);
    assert_ne!(ids(&node, &three).0, ids(&node, &two).0);
    for name in ["two", "three"] {
        node.agent.remove_manifest(&format!("{name}.json"));
    }
    node.wait_clean(SLOW);
}

/// The pod waits because of a record that can't be read.
fn wait_for_ids(node: &Node, name: &str) {
    wait("the pod to say what it waits for", SLOW, || {
        let said = node.agent.command(&["why", name]);
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        if said.contains("can't be read, so any id may be in use") { Ok(()) } else { Err(said) }
    });
}
