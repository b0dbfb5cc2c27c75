//! The end of a task that the agent can't do without is the end of the process: it says why, pods keep running, and the
//! next agent takes them over. The engine's own end is in [`super::crash`].

use crate::support::cluster::Cluster;
use crate::support::harness::{Agent, Node, Runtime, SLOW};
use crate::support::runtime_view::{RuntimeView, assert_kept, sleeper};

/// Ends the task of an agent with one running pod. `reason` is what the process says at its end.
fn check(task: &str, flags: &[&str], reason: &str) {
    let runtime = Runtime::start();
    let agent = Agent::start_in(&runtime, &[("RUBELET_TEST_PANIC_IN", task)], flags, |_| {});
    let mut node = Node { agent, runtime };
    let seen = RuntimeView::new(&node.runtime);
    node.agent.write_manifest("before", &sleeper("before"));
    let before = seen.wait_running(&["before".to_owned()], 1, SLOW);

    node.agent.panic_in_task();
    let status = node.agent.wait_ended();
    assert_eq!(status.code(), Some(1), "{}", node.agent.log_tail());
    let log = node.agent.log();
    assert!(
        log.contains(&format!("the agent stops, pods keep running: {reason}")),
        "{}",
        node.agent.log_tail()
    );
    assert!(log.lines().any(|line| line == format!("Error: {reason}")), "{}", node.agent.log_tail());
    assert_kept(&before, &seen.running());

    node.agent.launch();
    node.agent.wait_healthy();
    node.agent.write_manifest("after", &sleeper("after"));
    let after = seen.wait_running(&["before".to_owned(), "after".to_owned()], 1, SLOW);
    assert_kept(&before, &after);
    assert!(node.agent.is_running(), "{}", node.agent.log_tail());
}

#[test]
fn the_end_of_a_feed_of_pods_ends_the_process() {
    let task = "a feed of pods";
    check(task, &[], "the engine ended: a feed of pods panicked: a mistake on purpose");
}

#[test]
fn the_end_of_the_runtimes_events_ends_the_process() {
    let task = "runtime events";
    check(task, &[], "the engine ended: runtime events panicked: a mistake on purpose");
}

#[test]
fn the_end_of_what_keeps_the_lease_ends_the_process() {
    let cluster = Cluster::start_bare();
    let kubeconfig = cluster.node_kubeconfig("node").to_string_lossy().into_owned();
    let flags = ["--kubeconfig", &kubeconfig];
    check("Lease renewal", &flags, "the engine ended: Lease renewal panicked: a mistake on purpose");
}

/// It runs beside the engine, not in it.
#[test]
fn the_end_of_what_watches_credentials_ends_the_process() {
    let cluster = Cluster::start_bare();
    let kubeconfig = cluster.node_kubeconfig("node").to_string_lossy().into_owned();
    let flags = ["--kubeconfig", &kubeconfig];
    check("credential file watch", &flags, "credential file watch panicked: a mistake on purpose");
}
