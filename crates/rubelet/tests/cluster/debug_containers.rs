//! Ephemeral containers of a real API server: added to a pod that runs, run once, shown, and gone with the pod.

use crate::support::cluster::Cluster;
use crate::support::harness::{self, Agent, Runtime, SLOW};
use serde_json::{Value, json};

const BUSYBOX: &str = "rubelet.test/busybox:1";
const NODE: &str = "debugged";

/// Does nothing, under a name that can be found.
const MAIN: &str = "trap 'exit 0' TERM; : marker-of-main; while true; do sleep 0.1; done";

/// Ends with 7 where the first process is the main container's. Its own words do not match the pattern.
const LOOK: &str = "grep -q 'marker-of[-]main' /proc/1/cmdline && exit 7; exit 8";

fn pod() -> String {
    let container =
        json!({"name": "main", "image": BUSYBOX, "command": ["sh", "-c", MAIN], "imagePullPolicy": "Never"});
    let spec = json!({
        "nodeName": NODE, "containers": [container], "automountServiceAccountToken": false,
        "terminationGracePeriodSeconds": 5,
    });
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec}).to_string()
}

fn debug(cluster: &Cluster, namespace: &str, name: &str, target: Option<&str>, script: &str) {
    let (container, target) = (format!("--container={name}"), target.map(|t| format!("--target={t}")));
    let image = format!("--image={BUSYBOX}");
    let mut args = vec!["debug", "web", "--namespace", namespace, &image, &container];
    args.extend(target.as_deref());
    args.extend(["--image-pull-policy=Never", "--profile=general", "--", "sh", "-c", script]);
    cluster.kubectl(&args);
}

fn of<'a>(pod: &'a Value, name: &str) -> &'a Value {
    let list = pod["status"]["ephemeralContainerStatuses"].as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().find(|status| status["name"] == name).unwrap_or(&Value::Null)
}

fn main_id(pod: &Value) -> String {
    pod["status"]["containerStatuses"][0]["containerID"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn debug_containers_run_once_beside_their_target() {
    let cluster = Cluster::shared_bare();
    let runtime = Runtime::start();
    let kubeconfig = cluster.node_kubeconfig(NODE).to_string_lossy().into_owned();
    let flags = ["--kubeconfig", &kubeconfig, "--hostname-override", NODE];
    let agent = Agent::start_with_flags(&runtime, &flags, |_| {});
    let namespace = cluster.namespace("debug");
    cluster.create_pod(&namespace, &pod());
    let running = |pod: &Value| !pod["status"]["containerStatuses"][0]["state"]["running"].is_null();
    let before = cluster.wait_for("pod", &namespace, "web", SLOW, running);

    debug(cluster, &namespace, "look", Some("main"), LOOK);
    let ended = |pod: &Value| !of(pod, "look")["state"]["terminated"].is_null();
    let pod = cluster.wait_for("pod", &namespace, "web", SLOW, ended);
    assert_eq!(of(&pod, "look")["state"]["terminated"]["exitCode"], 7, "{}", of(&pod, "look"));

    // One more, which stays; the one that ended is not run again, and nobody else was touched.
    debug(cluster, &namespace, "stay", None, "sleep 3600");
    let stays = |pod: &Value| !of(pod, "stay")["state"]["running"].is_null();
    let pod = cluster.wait_for("pod", &namespace, "web", SLOW, stays);
    assert_eq!(of(&pod, "look")["restartCount"], 0);
    assert_eq!(of(&pod, "look")["state"]["terminated"]["exitCode"], 7);
    assert_eq!(main_id(&pod), main_id(&before));
    assert_eq!(pod["status"]["phase"], "Running");

    cluster.kubectl(&["delete", "pod", "web", "--namespace", &namespace, "--wait=false"]);
    cluster.wait_gone("pod", &namespace, "web", SLOW);
    harness::wait("the runtime to be empty", SLOW, || match runtime.containers() {
        left if left.is_empty() => Ok(()),
        left => Err(format!("{left:?}: {}", agent.log_tail())),
    });
}
