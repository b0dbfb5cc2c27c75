//! Images that are missing, badly named or refused: what the pod says, and how it recovers.

use std::collections::BTreeMap;

use crate::support::harness::{Node, SLOW, wait};
use crate::support::pods::{
    IMAGE, OTHER_IMAGE, UNTIL_TERM, condition, container, is_running, manifest, phase, restarts, said, shell,
    shell_with, standing, wait_printed, waiting,
};
use serde_json::{Value, json};

/// Nobody listens there: a pull fails at once.
const MISSING: &str = "127.0.0.1:1/none:1";
const PRESENT: &str = "127.0.0.1:1/present:1";
const BAD: &str = "Bad@@Image";
const NEVER: &str = "rubelet.test/never-there:1";

fn with_image(name: &str, image: &str, policy: &str) -> String {
    let more = json!({ "image": image, "imagePullPolicy": policy });
    let containers =
        json!([shell_with("c", "cat /etc/rubelet-image; trap 'exit 0' TERM; sleep 3600 & wait", more)]);
    manifest(name, json!({ "terminationGracePeriodSeconds": 2, "containers": containers }))
}

/// Looks at the pod until its container waits for `last`, and gives the message of every reason seen.
#[track_caller]
fn reasons_until(node: &Node, name: &str, last: &str) -> BTreeMap<String, String> {
    let mut seen = BTreeMap::new();
    wait(&format!("{last} of {name}"), SLOW, || {
        let pod = node.agent.pod(name)?;
        let text = |key: &str| waiting(&pod, "c")[key].as_str().unwrap_or_default().to_owned();
        seen.insert(text("reason"), text("message"));
        if seen.contains_key(last) { Ok(()) } else { Err(format!("{seen:?}")) }
    });
    seen
}

/// A pod whose image is not there has its sandbox and waits.
#[track_caller]
fn check_waits(pod: &Value, image: &str) {
    assert_eq!(phase(pod), "Pending");
    let status = container(pod, "c");
    assert_eq!((&status["image"], &status["imageID"]), (&json!(image), &json!("")), "{status}");
    assert!(status["containerID"].as_str().unwrap_or_default().is_empty(), "{status}");
    assert_eq!((&status["ready"], &status["started"]), (&json!(false), &json!(false)), "{status}");
    assert_eq!(condition(pod, "Initialized")["status"], "True");
    assert_eq!(condition(pod, "Ready")["message"], "containers with unready status: [c]");
    assert!(pod["status"]["podIP"].is_string(), "{}", pod["status"]);
}

#[test]
fn images_that_cannot_be_had() {
    let node = Node::start();
    node.agent.write_manifest("missing", &with_image("missing", MISSING, "IfNotPresent"));
    node.agent.write_manifest("bad", &with_image("bad", BAD, "IfNotPresent"));
    node.agent.write_manifest("never", &with_image("never", NEVER, "Never"));
    // A present image does not count where the policy wants it pulled.
    node.runtime.ctr(&["images", "tag", IMAGE, PRESENT]);
    node.agent.write_manifest("always", &with_image("always", PRESENT, "Always"));

    let seen = reasons_until(&node, "missing", "ImagePullBackOff");
    let refused = seen["ImagePullBackOff"]
        .strip_prefix(&format!("Back-off pulling image \"{MISSING}\": ErrImagePull: "))
        .unwrap_or_else(|| panic!("{seen:?}"));
    assert!(refused.contains("failed to pull and unpack image \"127.0.0.1:1/none:1\""), "{refused}");
    assert!(refused.contains("connection refused"), "{refused}");
    assert_eq!(seen.get("ErrImagePull").map(String::as_str), Some(refused), "{seen:?}");

    let seen = reasons_until(&node, "bad", "InvalidImageName");
    let expected = "Failed to apply default image tag \"Bad@@Image\": couldn't parse image name \"Bad@@Image\": \
                    invalid reference format: repository name (library/Bad@@Image) must be lowercase";
    assert_eq!(seen["InvalidImageName"], expected);

    let seen = reasons_until(&node, "never", "ErrImageNeverPull");
    let expected = format!("Container image \"{NEVER}\" is not present with pull policy of Never");
    assert_eq!(seen["ErrImageNeverPull"], expected);

    for (name, image) in [("missing", MISSING), ("bad", BAD), ("never", NEVER)] {
        // The image is looked for while the sandbox is being made.
        let has_sandbox = |pod: &Value| condition(pod, "PodReadyToStartContainers")["status"] == "True";
        check_waits(&node.wait_pod(name, SLOW, has_sandbox), image);
    }
    let seen = reasons_until(&node, "always", "ImagePullBackOff");
    assert!(seen["ImagePullBackOff"].contains("connection refused"), "{seen:?}");

    for (name, reason, answer) in [
        (
            "missing",
            "ImagePullBackOff",
            "image 127.0.0.1:1/none:1 could not be pulled, and is tried again after",
        ),
        ("bad", "InvalidImageName", "its image cannot be used: Failed to apply default image tag"),
        ("never", "ErrImageNeverPull", "is not present with pull policy of Never"),
    ] {
        assert_eq!(standing(&node.agent, name), reason);
        let why = said(&node.agent, &["why", name]);
        assert!(why.contains(answer) && why.contains("next attempt"), "{why}");
    }

    // Once the image is there, nothing else is needed.
    node.runtime.ctr(&["images", "tag", IMAGE, MISSING]);
    node.runtime.ctr(&["images", "tag", OTHER_IMAGE, NEVER]);
    for (name, image, content) in [("missing", MISSING, "busybox:1"), ("never", NEVER, "busybox:2")] {
        let pod = node.wait_pod(name, SLOW, is_running);
        assert_eq!(restarts(&pod, "c"), 0);
        wait_printed(&node.agent, &pod, "c", 0, &[content]);
        let status = container(&pod, "c");
        assert!(status["imageID"].as_str().is_some_and(|id| id.contains("sha256:")), "{image}: {status}");
    }
    // A name that can't be an image's is only cured by another manifest.
    node.agent.write_manifest("bad", &with_image("bad", IMAGE, "IfNotPresent"));
    node.wait_pod("bad", SLOW, is_running);

    for name in ["missing", "bad", "never", "always"] {
        node.agent.remove_manifest(name);
    }
    node.wait_clean(SLOW);
}

/// A container that waits for its image does not keep its neighbours from running, nor init containers from order.
#[test]
fn only_what_needs_the_image_waits() {
    let node = Node::start();
    let missing = |name: &str| shell_with(name, UNTIL_TERM, json!({ "image": MISSING }));
    let spec =
        json!({ "terminationGracePeriodSeconds": 2, "containers": [missing("a"), shell("b", UNTIL_TERM)] });
    node.agent.write_manifest("half", &manifest("half", spec));
    let spec = json!({
        "terminationGracePeriodSeconds": 2,
        "initContainers": [missing("i")],
        "containers": [shell("c", UNTIL_TERM)],
    });
    node.agent.write_manifest("init", &manifest("init", spec));

    let half = node.wait_pod("half", SLOW, |pod| {
        container(pod, "b")["state"]["running"].is_object()
            && waiting(pod, "a")["reason"] == "ImagePullBackOff"
    });
    // One of them was never started, so the pod as a whole is not running yet.
    assert_eq!(phase(&half), "Pending");
    let init = node.wait_pod("init", SLOW, |pod| waiting(pod, "i")["reason"] == "ImagePullBackOff");
    assert_eq!(waiting(&init, "c")["reason"], "PodInitializing");
    assert_eq!(phase(&init), "Pending");
    assert_eq!(condition(&init, "Initialized")["message"], "containers with incomplete status: [i]");

    // A pod that waits for an image goes as readily as any other.
    node.agent.remove_manifest("half");
    node.agent.remove_manifest("init");
    node.wait_clean(SLOW);
}
