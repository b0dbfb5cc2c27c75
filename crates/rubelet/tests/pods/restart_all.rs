//! RestartAllContainers: one container ends as its rule names, and the whole pod starts over in its sandbox.

use crate::support::harness::{Node, SLOW, wait};
use crate::support::pods::{
    Journal, condition, container_id, is_running, manifest, restarts, shell_with, wait_printed,
};
use crate::support::runtime_view::RuntimeView;
use serde_json::{Value, json};

const RULES: &str = "restartPolicyRules";

/// Writes a line; how often it has run is how many lines of its name there are.
fn diarist(name: &str, then: &str, more: Value) -> Value {
    let mut container = shell_with(
        name,
        &format!("echo {name} | tee -a /journal/lines; {then}"),
        json!({"volumeMounts": [Journal::mount()]}),
    );
    for (key, value) in more.as_object().expect("an object") {
        container[key] = value.clone();
    }
    container
}

const STAY: &str = "trap 'exit 0' TERM; while true; do sleep 0.1; done";

/// Ends with 42 once `/journal/go` is there, the first time only.
const ASK_ONCE: &str = "trap 'exit 0' TERM; while true; do \
    if [ -e /journal/go ] && [ ! -e /journal/asked ]; then touch /journal/asked; exit 42; fi; sleep 0.05; done";

fn pod(journal: &Journal, name: &str) -> String {
    let rule = json!({"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}});
    let spec = json!({
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 2,
        "volumes": [journal.volume()],
        "initContainers": [
            diarist("first", "true", json!({})),
            diarist("side", STAY, json!({"restartPolicy": "Always"})),
        ],
        "containers": [
            diarist("asks", ASK_ONCE, json!({"restartPolicy": "Never", RULES: [rule]})),
            diarist("other", STAY, json!({})),
        ],
    });
    manifest(name, spec)
}

fn wait_counted(journal: &Journal, times: usize) {
    journal.wait_counts(&["first", "side", "asks", "other"].map(|name| (name, times)));
}

#[test]
fn all_containers_run_a_second_time_in_the_same_sandbox_and_logs_stay() {
    let node = Node::start();
    let journal = Journal::new(&node);
    let seen = RuntimeView::new(&node.runtime);
    node.agent.write_manifest("over.json", &pod(&journal, "over"));
    let before = node.wait_pod("over", SLOW, is_running);
    assert_eq!(condition(&before, "AllContainersRestarting")["status"], "False");
    let sandbox = seen.pods().expect("pods")["over"].sandboxes[0].id.clone();
    wait_counted(&journal, 1);

    journal.put("go");
    let all = ["first", "side", "asks", "other"];
    let after =
        node.wait_pod("over", SLOW, |pod| is_running(pod) && all.iter().all(|name| restarts(pod, name) == 1));
    wait_counted(&journal, 2);
    assert_eq!(condition(&after, "AllContainersRestarting")["status"], "False");
    for name in all {
        assert_ne!(container_id(&before, name), container_id(&after, name), "{name}");
        // Both logs are there, also that of the instance that was removed.
        for attempt in [0, 1] {
            wait_printed(&node.agent, &after, name, attempt, &[name]);
        }
    }
    let now = seen.pods().expect("pods").remove("over").expect("the pod");
    assert_eq!(now.sandboxes.iter().map(|s| &s.id).collect::<Vec<_>>(), [&sandbox]);
    assert_eq!(now.containers.len(), 4, "{:?}", now.containers);

    node.agent.remove_manifest("over.json");
    node.wait_clean(SLOW);
}

#[test]
fn an_agent_that_is_killed_while_all_start_over_finishes_it() {
    let mut node = Node::start();
    let journal = Journal::new(&node);
    let seen = RuntimeView::new(&node.runtime);
    node.agent.write_manifest("cut.json", &pod(&journal, "cut"));
    node.wait_pod("cut", SLOW, is_running);

    // Killed as soon as the others begin to go: who asked is still to be removed, or was just removed.
    journal.put("go");
    wait("the reset to begin", SLOW, || {
        let pod = seen.pods()?.remove("cut").unwrap_or_default();
        if pod.running().count() < 3 { Ok(()) } else { Err(format!("{} run", pod.running().count())) }
    });
    node.agent.restart();
    node.wait_pod("cut", SLOW, |pod| is_running(pod) && restarts(pod, "asks") == 1);
    let pod = seen.pods().expect("pods").remove("cut").expect("the pod");
    assert_eq!(pod.running().count(), 3);
    assert_eq!(pod.ready_sandboxes().count(), 1);
    for name in ["first", "side", "asks", "other"] {
        assert_eq!(pod.restarts(name), Some(1), "{name}");
    }
    wait_counted(&journal, 2);
}
