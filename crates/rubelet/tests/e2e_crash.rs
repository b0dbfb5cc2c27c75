//! The agent is killed, at any moment: what runs goes on, what was begun is finished, nothing is done twice.

// These tests run real processes in real time.
#![allow(clippy::disallowed_methods)]

mod harness;
mod seen;

use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use harness::{Node, SLOW, wait, wait_until};
use seen::{BURST, Seen, assert_kept, names, sleeper};
use serde_json::json;

const PODS: usize = 50;

/// Draws moments. A run can be repeated with `RUBELET_E2E_SEED`, as far as real processes repeat themselves.
struct Chance(u64);

impl Chance {
    fn new() -> Chance {
        let given = std::env::var("RUBELET_E2E_SEED").ok().and_then(|seed| seed.parse().ok());
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| u64::from(d.subsec_nanos()));
        let seed = given.unwrap_or_else(now);
        println!("RUBELET_E2E_SEED={seed}");
        Chance(seed)
    }

    /// splitmix64
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    /// Kills the agent `times` times, each after a moment, and starts it again at once.
    fn strike(&mut self, node: &mut Node, times: usize) {
        for _ in 0..times {
            let moment = self.below(1500);
            println!("killing the agent after {moment} ms");
            sleep(Duration::from_millis(moment));
            node.agent.restart();
        }
    }
}

#[test]
fn an_agent_killed_in_a_burst_finishes_it_and_touches_nothing_that_runs() {
    let mut node = Node::start();
    let seen = Seen::new(&node.runtime);
    let names = names("crash", PODS);
    for name in &names {
        node.agent.write_manifest(name, &sleeper(name));
    }
    let some_run = || seen.running().values().filter(|ids| !ids.is_empty()).count() >= 5;
    wait_until("some pods to run", BURST, some_run);
    node.agent.kill9();
    let before = seen.running();
    println!("killed with {} pods running", before.values().filter(|ids| !ids.is_empty()).count());
    node.agent.restart();
    let after = seen.wait_running(&names, 1, BURST);
    assert_kept(&before, &after);

    node.agent.restart();
    let again = seen.wait_running(&names, 1, SLOW);
    assert_eq!(after, again, "a restart of the agent under running pods changed them");
}

#[test]
fn an_agent_killed_again_and_again_converges_in_both_directions() {
    let mut node = Node::start();
    let seen = Seen::new(&node.runtime);
    let names = names("again", 20);
    let mut chance = Chance::new();

    for name in &names {
        node.agent.write_manifest(name, &sleeper(name));
    }
    chance.strike(&mut node, 5);
    let before = seen.running();
    let after = seen.wait_running(&names, 1, BURST);
    assert_kept(&before, &after);

    for name in &names {
        node.agent.remove_manifest(name);
    }
    chance.strike(&mut node, 4);
    node.wait_clean(BURST);
    assert_eq!(node.runtime.network_namespaces(), [""; 0].map(std::path::PathBuf::from));
}

/// A container that ends by itself, again and again, with a short back-off.
const CRASHING: &str = "apiVersion: v1
kind: Pod
metadata:
  name: crashing
spec:
  containers:
  - name: main
    image: rubelet.test/busybox:1
    command: [sh, -c, 'sleep 0.2; exit 3']
";

fn short_back_off(config: &mut serde_json::Value) {
    config["featureGates"] = json!({ "KubeletCrashLoopBackOffMax": true });
    config["crashLoopBackOff"] = json!({ "maxContainerRestartPeriod": "1s" });
}

#[test]
fn restart_counts_go_on_over_a_crash_of_the_agent() {
    let mut node = Node::start_with(short_back_off);
    let seen = Seen::new(&node.runtime);
    node.agent.write_manifest("crashing", CRASHING);
    let mut count = 0;
    for _ in 0..3 {
        let pod = seen.wait_pod("crashing", SLOW, |pod| pod.restarts("main") > Some(count));
        count = pod.restarts("main").unwrap_or_default();
        node.agent.restart();
    }
    let pod = seen.wait_pod("crashing", SLOW, |pod| pod.restarts("main") > Some(count));
    assert_eq!(pod.ready_sandboxes().count(), 1);
    wait("the instances to be numbered one by one", SLOW, || {
        // No number is given twice, whoever counted.
        let pod = seen.pods()?.remove("crashing").unwrap_or_default();
        let mut attempts: Vec<_> = pod.containers.iter().map(|c| c.attempt).collect();
        attempts.sort_unstable();
        let before = attempts.len();
        attempts.dedup();
        if before == attempts.len() { Ok(()) } else { Err(format!("{:?}", pod.containers)) }
    });
}
