//! Init containers, sidecars and regular containers: who comes first, and who goes last.

use serde_json::{Value, json};

use super::{clear, spec};
use crate::support::harness::{Node, SLOW};
use crate::support::pods::{
    Journal, condition, container, is_running, manifest, phase, shell_with, terminated,
};

fn notes(name: &str, script: &str, more: Value) -> Value {
    let mut fields = json!({ "volumeMounts": [Journal::mount()] });
    for (key, value) in more.as_object().expect("an object") {
        fields[key] = value.clone();
    }
    let script = format!("note() {{ echo {name} $1 >>/journal/lines; }}; note up\n{script}");
    shell_with(name, &script, fields)
}

/// Takes its time to end, so that whoever does not wait for it stands before it in the journal.
const STAYS: &str = "trap 'sleep 0.5; note down; exit 0' TERM; sleep 3600 & wait";

#[test]
fn containers_come_and_go_in_order() {
    let node = Node::start();
    let journal = Journal::new(&node);
    let sidecar = json!({ "restartPolicy": "Always" });
    let init = json!([
        notes("first", "sleep 0.5; note down", json!({})),
        notes("near", STAYS, sidecar.clone()),
        notes("second", "sleep 0.5; note down", json!({})),
        notes("far", STAYS, sidecar),
    ]);
    let containers = json!([notes("main", STAYS, json!({})), notes("other", STAYS, json!({}))]);
    let mut of_pod = spec(containers, json!({ "initContainers": init, "volumes": [journal.volume()] }));
    of_pod["terminationGracePeriodSeconds"] = json!(60);
    node.agent.write_manifest("o", &manifest("o", of_pod));
    let pod = node.wait_pod("o", SLOW, is_running);
    for name in ["near", "far"] {
        let status = container(&pod, name);
        assert_eq!((&status["ready"], &status["started"]), (&json!(true), &json!(true)), "{status}");
        assert!(status["state"]["running"].is_object(), "{status}");
    }
    assert_eq!(terminated(&pod, "first")["reason"], "Completed");
    assert_eq!(condition(&pod, "Initialized")["status"], "True");
    super::wait("the last to be up", SLOW, || match journal.lines() {
        lines if lines.len() == 8 => Ok(()),
        lines => Err(lines.join("\n")),
    });
    let lines = journal.lines();
    assert_eq!(lines[..6], ["first up", "first down", "near up", "second up", "second down", "far up"]);

    clear(&node, &["o"]);
    let mut lines = journal.lines().split_off(8);
    lines[..2].sort();
    // Regular containers end together, then sidecars one by one, the last first.
    assert_eq!(lines, ["main down", "other down", "far down", "near down"]);
}

/// A sidecar does not keep a pod from being done.
#[test]
fn a_sidecar_ends_with_the_work() {
    let node = Node::start();
    let journal = Journal::new(&node);
    let more = json!({
        "restartPolicy": "Never",
        "initContainers": [notes("sidecar", STAYS, json!({ "restartPolicy": "Always" }))],
        "volumes": [journal.volume()],
    });
    node.agent.write_manifest(
        "job",
        &manifest("job", spec(json!([notes("work", "sleep 1; note down", json!({}))]), more)),
    );
    let pod = node.wait_pod("job", SLOW, |pod| phase(pod) == "Succeeded");
    assert_eq!(journal.lines(), ["sidecar up", "work up", "work down", "sidecar down"]);
    assert_eq!(terminated(&pod, "work")["exitCode"], 0);
    assert_eq!(terminated(&pod, "sidecar")["exitCode"], 0, "{}", pod["status"]);
    clear(&node, &["job"]);
}
