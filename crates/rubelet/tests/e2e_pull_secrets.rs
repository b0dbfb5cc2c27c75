//! Pods that bring the password of a registry themselves, as secrets of a real API server.

// These tests run real processes in real time.
#![allow(clippy::disallowed_methods)]

mod cluster;
mod harness;
mod member;

use cluster::Cluster;
use harness::{PASSWORD, Registry, SLOW};
use member::{BUSYBOX, Member, STAYS, ready};
use serde_json::{Value, json};

fn waits_with(reason: &'static str) -> impl Fn(&Value) -> bool {
    move |pod| pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == reason
}

/// A pod of that image which shows the secrets.
fn pod(member: &Member, name: &str, image: &str, secrets: &[&str]) -> String {
    let secrets: Vec<Value> = secrets.iter().map(|name| json!({ "name": name })).collect();
    let container = json!({
        "name": "main", "image": image, "command": ["sh", "-c", STAYS], "imagePullPolicy": "IfNotPresent",
    });
    let spec = json!({
        "containers": [container], "imagePullSecrets": secrets, "automountServiceAccountToken": false,
    });
    member.pod(name, STAYS, spec)
}

#[test]
fn the_secret_of_one_pod_is_no_door_for_another() {
    let cluster = Cluster::shared_bare();
    let member = Member::join(cluster, "puller");
    let registry = Registry::start_with_password(&member.node.runtime);
    let image = registry.push(&member.node.runtime, BUSYBOX, "secret/app:1");
    let namespace = cluster.namespace("pulls");
    let secret = |name: &str, password: &str| {
        let data = json!({ ".dockerconfigjson": registry.docker_config(password) });
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name },
            "type": "kubernetes.io/dockerconfigjson", "stringData": data,
        })
        .to_string()
    };
    cluster.create(&namespace, &secret("wrong", "not it"));

    cluster.create_pod(&namespace, &pod(&member, "none", &image, &[]));
    cluster.wait_for("pod", &namespace, "none", SLOW, waits_with("ImagePullBackOff"));
    // One secret is missing and another is wrong: the one that is right is found all the same, when it comes.
    cluster.create_pod(&namespace, &pod(&member, "shows", &image, &["missing", "wrong", "right"]));
    cluster.wait_for("pod", &namespace, "shows", SLOW, waits_with("ImagePullBackOff"));
    cluster.create(&namespace, &secret("right", PASSWORD));
    cluster.wait_for("pod", &namespace, "shows", SLOW, ready);
    harness::wait_until("the Event about the missing secret", SLOW, || {
        let events = cluster.events(&namespace, "shows");
        events.iter().any(|event| event["reason"] == "FailedToRetrieveImagePullSecret")
    });

    // The image is on the node now, but who shows nothing may not use it.
    cluster.create_pod(&namespace, &pod(&member, "sneaks", &image, &[]));
    cluster.wait_for("pod", &namespace, "sneaks", SLOW, waits_with("ImagePullBackOff"));
    let served = registry.served("secret/app", "1");
    cluster.create_pod(&namespace, &pod(&member, "also", &image, &["right"]));
    cluster.wait_for("pod", &namespace, "also", SLOW, ready);
    assert_eq!(registry.served("secret/app", "1"), served, "the same secret is believed without a pull");
    assert!(!member.agent().log().contains(PASSWORD), "the password is in the log");
}
