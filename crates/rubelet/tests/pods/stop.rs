//! How a pod's end is timed: a container that does not listen has all of its grace and little more; one that ends at
//! once is reported at once. Everything periodic is put off for longer than the test takes, so that only events can
//! have told the agent.

use crate::support::harness::{Node, SLOW, wait};
use crate::support::pods::{is_running, phase, terminated};
use crate::support::timestamps::{self, Timestamps, container, deaf, now, stays};
use serde_json::{Value, json};

/// Of every look at the runtime and at the manifests that nothing asked for.
const NEVER: &str = "10h";

fn start() -> Node {
    Node::start_with(|config| {
        config["syncFrequency"] = json!(NEVER);
        config["fileCheckFrequency"] = json!(NEVER);
    })
}

fn spec(grace: u32, containers: Value) -> Value {
    json!({ "terminationGracePeriodSeconds": grace, "containers": containers })
}

/// When the agent did not know the pod any more.
#[track_caller]
fn wait_gone(node: &Node, name: &str) -> f64 {
    wait(&format!("{name} to be gone"), SLOW, || {
        let pods = node.agent.pods()?;
        let there = pods.iter().any(|pod| pod["metadata"]["name"] == format!("{name}-node"));
        let listed = String::from_utf8_lossy(&node.agent.command(&["get", "pods"]).stdout).contains(name);
        if there || listed { Err("the agent tells of it".to_owned()) } else { Ok(()) }
    });
    now()
}

#[test]
fn one_that_does_not_listen_has_its_grace_and_little_more() {
    const GRACE: u32 = 6;
    let node = start();
    let stamps = Timestamps::new(&node, "deaf");
    let (short, listens) = (Timestamps::new(&node, "short"), Timestamps::new(&node, "listens"));
    node.agent.write_manifest(
        "deaf",
        &stamps.pod("deaf", spec(GRACE, json!([container("c", &deaf("c"), json!({}))]))),
    );
    node.agent.write_manifest(
        "short",
        &short.pod("short", spec(0, json!([container("c", &deaf("c"), json!({}))]))),
    );
    let both = json!([container("c", &deaf("c"), json!({})), container("d", &stays("d"), json!({}))]);
    node.agent.write_manifest("listens", &listens.pod("listens", spec(GRACE, both)));
    for (name, stamps) in [("deaf", &stamps), ("short", &short), ("listens", &listens)] {
        node.wait_pod(name, SLOW, is_running);
        stamps.wait_for("c-up");
    }
    listens.wait_for("d-up");

    let asked = now();
    for name in ["deaf", "short", "listens"] {
        node.agent.remove_manifest(name);
    }
    let short_gone = wait_gone(&node, "short") - asked;
    let gone = wait_gone(&node, "deaf") - asked;
    node.wait_clean(SLOW);
    let grace = f64::from(GRACE);
    println!("grace 0: gone after {short_gone:.2} s; grace {GRACE}: gone after {gone:.2} s");
    // Never earlier; and what comes on top is small beside the grace itself.
    let lived = stamps.last("c-alive") - stamps.first("c-term");
    assert!(lived >= grace - 0.5, "it was killed {lived} seconds after it had been told");
    assert!(gone >= grace && gone < 3.0 * grace, "gone after {gone} seconds");
    // Without a grace there is the runtime's minimum, and nobody waits for the others.
    let lived = short.last("c-alive") - short.first("c-term");
    assert!(lived >= 1.0, "it was killed {lived} seconds after it had been told");
    assert!(short_gone < gone, "{short_gone}, {gone}");
    // Two of one pod are told together, whoever listens.
    let apart = (listens.first("c-term") - listens.first("d-term")).abs();
    assert!(apart < grace / 2.0, "told {apart} seconds apart");
    listens.check_order(&["d-term", "d-down", "c-alive"]);
}

#[test]
fn one_that_ends_at_once_is_reported_at_once() {
    const GRACE: u32 = 600;
    let node = start();
    let (told, own) = (Timestamps::new(&node, "told"), Timestamps::new(&node, "own"));
    let ends = "trap 'stamp c-down; exit 0' TERM; stamp c-up; sleep 3600 & wait";
    node.agent
        .write_manifest("told", &told.pod("told", spec(GRACE, json!([container("c", ends, json!({}))]))));
    let mut alone = spec(
        GRACE,
        json!([container(
            "c",
            &format!("stamp c-up; {}; stamp c-down; exit 3", timestamps::until("go")),
            json!({})
        )]),
    );
    alone["restartPolicy"] = json!("Never");
    node.agent.write_manifest("own", &own.pod("own", alone));
    node.wait_pod("told", SLOW, is_running);
    node.wait_pod("own", SLOW, is_running);
    told.wait_for("c-up");
    own.wait_for("c-up");
    // Starts look twice at their pod: that is over when this begins.
    std::thread::sleep(std::time::Duration::from_secs(3));

    own.put("go");
    let pod = node.wait_pod("own", SLOW, |pod| phase(pod) == "Failed");
    let late = now() - own.first("c-down");
    assert_eq!(terminated(&pod, "c")["exitCode"], 3);
    println!("one that ended by itself was reported after {late:.2} s");

    node.agent.remove_manifest("told");
    let late = wait_gone(&node, "told") - told.first("c-down");
    println!("one that was told to end was gone after {late:.2} s");
    // The waits above end long before the grace and any period do: nothing but events can have told.
    node.agent.remove_manifest("own");
    node.wait_clean(SLOW);
}

/// A deletion with a shorter grace, while a longer one runs: the end comes sooner, and a longer one changes nothing.
#[test]
fn a_second_request_makes_the_end_come_sooner() {
    const SHORT: u32 = 4;
    let node = start();
    let stamps = Timestamps::new(&node, "hurried");
    let pod = |metadata: Value| {
        stamps.pod_with_uid("hurried", spec(900, json!([container("c", &deaf("c"), json!({}))])), metadata)
    };
    let deleted = |grace: u32| {
        pod(json!({ "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": grace }))
    };
    node.agent.write_manifest("hurried", &pod(json!({})));
    node.wait_pod("hurried", SLOW, is_running);
    stamps.wait_for("c-up");
    node.agent.write_manifest("hurried", &deleted(600));
    stamps.wait_for("c-term");
    let asked = now();
    node.agent.write_manifest("hurried", &deleted(SHORT));
    node.wait_pod("hurried", SLOW, |pod| pod["metadata"]["deletionGracePeriodSeconds"] == SHORT);
    node.agent.write_manifest("hurried", &deleted(800));
    let ended = wait("the container to end", SLOW, || match node.runtime.tasks().is_empty() {
        true => Ok(now()),
        false => Err("it runs"),
    });
    let lived = stamps.last("c-alive") - asked;
    println!(
        "asked to end within {SHORT} s instead of 600, it lived for {lived:.2} s; gone after {:.2} s",
        ended - asked
    );
    assert!(lived >= f64::from(SHORT) - 0.5, "{lived}");
    assert!(lived < 600.0 / 4.0, "{lived}");
    node.agent.remove_manifest("hurried");
    node.wait_clean(SLOW);
}
