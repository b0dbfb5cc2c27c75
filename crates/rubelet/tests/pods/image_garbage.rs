//! Images that nothing uses are removed when their filesystem is too full, and no others.

use std::fs;

use serde_json::{Value, json};

use crate::support::harness::{Agent, Node, Registry, Runtime, SLOW, wait};
use crate::support::pods::{IMAGE, OTHER_IMAGE, UNTIL_TERM, is_running, manifest, shell_with};

const UNUSED: &str = "rubelet.test/nobody:1";

/// Names of the images that the runtime has.
fn images(node: &Node) -> Vec<String> {
    node.runtime.ctr(&["images", "ls", "-q"]).lines().map(str::to_owned).collect()
}

fn pod(name: &str, image: &str) -> String {
    let container = shell_with("c", UNTIL_TERM, json!({ "image": image, "imagePullPolicy": "IfNotPresent" }));
    manifest(name, json!({ "terminationGracePeriodSeconds": 1, "containers": [container] }))
}

#[track_caller]
fn wait_gone(node: &Node, image: &str) {
    wait(&format!("{image} to be removed"), SLOW, || {
        let left = images(node);
        if left.iter().any(|name| name == image) {
            Err(format!("{left:?}\n{}", node.agent.log_tail()))
        } else {
            Ok(())
        }
    });
}

fn collected(node: &Node) -> u64 {
    let text = node.agent.get("/metrics").map(|answer| answer.text()).unwrap_or_default();
    let start = "kubelet_image_garbage_collected_total{reason=\"space\"} ";
    let count = text.lines().find_map(|line| line.strip_prefix(start));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// Any filesystem is fuller than its thresholds.
fn set_thresholds(config: &mut Value, min_age: &str) {
    config["imageGCHighThresholdPercent"] = json!(1);
    config["imageGCLowThresholdPercent"] = json!(0);
    config["imageMinimumGCAge"] = json!(min_age);
}

#[track_caller]
fn wait_told(node: &Node, text: &str) {
    wait(&format!("{text:?} in the log"), SLOW, || match node.agent.log().contains(text) {
        true => Ok(()),
        false => Err(node.agent.log_tail()),
    });
}

#[test]
fn images_that_nothing_uses_are_removed_and_no_others() {
    let runtime = Runtime::start();
    let registry = Registry::start(&runtime);
    let pulled = registry.push(&runtime, OTHER_IMAGE, "team/app:1");
    let other = registry.push(&runtime, "rubelet.test/user1000:1", "team/other:1");
    let mut agent = Agent::prepare(&runtime, &[], |config| set_thresholds(config, "1ms"));
    agent.write_manifest("stays", &pod("stays", IMAGE));
    // What it pulls is on the node already, under a name that no pod has: it may be removed while it is pulled.
    agent.write_manifest("goes", &pod("goes", &pulled));
    agent.launch();
    let node = Node { agent, runtime };
    let has = |image: &str| images(&node).iter().any(|name| name == image);
    node.wait_pod("goes", SLOW, is_running);
    node.wait_pod("stays", SLOW, is_running);
    wait_gone(&node, UNUSED);
    assert!(has(IMAGE) && has(&pulled), "they are used: {:?}", images(&node));
    assert!(
        images(&node).iter().any(|name| name.contains("pause")),
        "sandboxes need it: {:?}",
        images(&node)
    );
    assert!(collected(&node) >= 1);
    wait_told(&node, "unused images of ");
    // Nothing else can be removed, and the disk is as full as before.
    wait_told(&node, "Insufficient free disk space on the node's image filesystem (");

    // An image goes when its last container has gone, and so does the record of how it was pulled.
    let dir = node.agent.root_dir().join("image_manager/pulled");
    let records = || fs::read_dir(&dir).into_iter().flatten().flatten().count();
    assert_eq!(records(), 1);
    node.agent.remove_manifest("goes");
    wait("the pod to go", SLOW, || node.agent.pod("goes").map_or(Ok(()), |pod| Err(pod.to_string())));
    // A pull makes the agent look at the disk soon; without one it would take five minutes.
    node.agent.write_manifest("other", &pod("other", &other));
    node.wait_pod("other", SLOW, is_running);
    wait_gone(&node, &pulled);
    wait("the record of its pull to go", SLOW, || match records() {
        1 => Ok(()),
        count => Err(format!("{count} records")),
    });
    // It is pulled again for the next pod, whose sandbox is made as ever.
    node.agent.write_manifest("again", &pod("again", &pulled));
    node.wait_pod("again", SLOW, is_running);
    assert!(has(&pulled) && has(IMAGE) && has(&other), "{:?}", images(&node));
}

#[test]
fn young_images_stay_however_full_the_disk_is() {
    let node = Node::start_with(|config| set_thresholds(config, "24h"));
    let before = images(&node);
    wait_told(&node, "Failed to free sufficient space by deleting unused images (freed 0 bytes)");
    assert_eq!(images(&node), before);
    assert!(before.iter().any(|name| name == UNUSED), "{before:?}");
    assert_eq!(collected(&node), 0);
}
