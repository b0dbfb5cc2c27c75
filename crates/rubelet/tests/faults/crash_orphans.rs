//! Manifests that go or change while no agent runs: the next one finds pods that nobody wants any more, stops them
//! as their own spec said, and leaves the others alone.

use std::fs;
use std::path::PathBuf;

use crate::support::harness::{Node, SLOW, wait};
use crate::support::runtime_view::{RuntimeView, sleeper};

/// A directory of the host into which containers write what they live through.
fn diary(node: &Node) -> PathBuf {
    let dir = node.runtime.dir.join("diary");
    fs::create_dir_all(&dir).expect("make a directory for the containers to write to");
    dir
}

/// A pod that records its start and its end below `diary`. It takes its time to end: two seconds from SIGTERM.
fn slow_to_end(node: &Node, name: &str, version: &str, grace: u32) -> String {
    let dir = diary(node);
    format!(
        "apiVersion: v1
kind: Pod
metadata:
  name: {name}
spec:
  terminationGracePeriodSeconds: {grace}
  containers:
  - name: main
    image: rubelet.test/busybox:1
    command:
    - sh
    - -c
    - |
      note() {{ echo \"{version} $1\" >>/diary/{name}; }}
      trap 'note told; sleep 2; note ended; exit 0' TERM
      note up
      sleep 1000000 & wait
    volumeMounts:
    - {{name: diary, mountPath: /diary}}
  volumes:
  - name: diary
    hostPath: {{path: {}}}
",
        dir.display()
    )
}

#[track_caller]
fn wait_diary(node: &Node, name: &str, wanted: &str) {
    let path = diary(node).join(name);
    wait(&format!("the diary of {name}"), SLOW, || {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let text = text.lines().collect::<Vec<_>>().join(", ");
        if text == wanted { Ok(()) } else { Err(text) }
    });
}

#[test]
fn a_pod_whose_manifest_went_is_stopped_with_its_own_grace_and_its_neighbour_stays() {
    let mut node = Node::start();
    let seen = RuntimeView::new(&node.runtime);
    node.agent.write_manifest("stays", &sleeper("stays"));
    node.agent.write_manifest("goes", &slow_to_end(&node, "goes", "1", 30));
    let before = seen.wait_running(&["goes".to_owned(), "stays".to_owned()], 1, SLOW);
    wait_diary(&node, "goes", "1 up");

    node.agent.terminate();
    assert_eq!(seen.running(), before, "the end of the agent touched its pods");
    node.agent.remove_manifest("goes");
    node.agent.restart();

    let after = seen.wait_running(&["stays".to_owned()], 1, SLOW);
    assert_eq!(after["stays"], before["stays"]);
    // A shorter grace than its own would have cut it off before the last word.
    wait_diary(&node, "goes", "1 up, 1 told, 1 ended");

    node.agent.remove_manifest("stays");
    node.wait_clean(SLOW);
}

#[test]
fn a_pod_that_does_not_listen_is_killed_when_its_grace_is_over() {
    let mut node = Node::start();
    let seen = RuntimeView::new(&node.runtime);
    // It says that it was told, and goes on.
    let deaf = slow_to_end(&node, "deaf", "1", 3)
        .replace("sleep 2; note ended; exit 0", "")
        .replace("sleep 1000000 & wait", "while :; do sleep 1000000 & wait; done");
    node.agent.write_manifest("deaf", &deaf);
    seen.wait_running(&["deaf".to_owned()], 1, SLOW);
    wait_diary(&node, "deaf", "1 up");
    node.agent.kill9();
    node.agent.remove_manifest("deaf");
    node.agent.restart();
    wait_diary(&node, "deaf", "1 up, 1 told");
    node.wait_clean(SLOW);
    wait_diary(&node, "deaf", "1 up, 1 told");
}

#[test]
fn of_a_manifest_that_changed_the_old_pod_goes_before_the_new_one_comes() {
    let mut node = Node::start();
    let seen = RuntimeView::new(&node.runtime);
    node.agent.write_manifest("changes", &slow_to_end(&node, "changes", "1", 30));
    let before = seen.wait_running(&["changes".to_owned()], 1, SLOW);
    wait_diary(&node, "changes", "1 up");

    node.agent.kill9();
    node.agent.write_manifest("changes", &slow_to_end(&node, "changes", "2", 30));
    node.agent.restart();

    wait_diary(&node, "changes", "1 up, 1 told, 1 ended, 2 up");
    let after = seen.wait_running(&["changes".to_owned()], 1, SLOW);
    assert_ne!(after, before);
}
