//! The agent is killed, at any moment: what runs goes on, what was begun is finished, nothing is done twice.

use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::support::harness::{Agent, Node, Runtime, SLOW, wait, wait_until};
use crate::support::runtime_view::{BURST, RuntimeView, assert_kept, names, sleeper};
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
    let seen = RuntimeView::new(&node.runtime);
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
    let seen = RuntimeView::new(&node.runtime);
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
    let seen = RuntimeView::new(&node.runtime);
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

/// A pod whose deadline and probes are further away than timers of most programs reach.
const FAR: &str = "apiVersion: v1
kind: Pod
metadata:
  name: far
spec:
  terminationGracePeriodSeconds: 5
  activeDeadlineSeconds: 70000000
  containers:
  - name: main
    image: rubelet.test/busybox:1
    command: [sh, -c, \"trap 'exit 0' TERM; sleep 1000000 & wait\"]
    livenessProbe: {exec: {command: ['false']}, initialDelaySeconds: 68719477}
    readinessProbe: {exec: {command: ['true']}, periodSeconds: 68719477}
";

#[test]
fn a_pod_that_asks_for_the_far_future_runs_and_so_do_the_others() {
    let mut node = Node::start();
    node.agent.write_manifest("far", FAR);
    node.wait_pod("far", SLOW, |pod| pod["status"]["containerStatuses"][0]["ready"] == true);
    // It is timers of the running pod that are far away: whoever comes after it shows that they did no harm.
    node.agent.write_manifest("after", &sleeper("after"));
    node.wait_pod("after", SLOW, |pod| pod["status"]["phase"] == "Running");
    assert!(node.agent.is_running(), "{}", node.agent.log_tail());
    for name in ["far", "after"] {
        node.agent.remove_manifest(name);
    }
    node.wait_clean(SLOW);
}

/// The agent makes a mistake on purpose whenever it plans a pod with a container of this name.
const MISTAKE: &str = "mistake";

const COSTLY: &str = "\
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: costly}
handler: runc
overhead:
  podFixed: {memory: 4Mi}
";

#[test]
fn a_pod_over_which_the_agent_panics_is_set_aside_and_the_others_run() {
    let runtime = Runtime::start();
    let agent = Agent::start_in(&runtime, &[("RUBELET_TEST_PANIC_ON", MISTAKE)], &[], |_| {});
    let mut node = Node { agent, runtime };
    let seen = RuntimeView::new(&node.runtime);
    node.agent.write_manifest("before", &sleeper("before"));
    let before = seen.wait_running(&["before".to_owned()], 1, SLOW);

    // Each panic is the end of the process, which says why; the third one is the last. The overhead of its class is no
    // part of what its file defines.
    node.agent.write_manifest("class", COSTLY);
    let poison = sleeper("poison").replace("name: main", &format!("name: {MISTAKE}"));
    let poison = poison.replace("spec:\n", "spec:\n  runtimeClassName: costly\n");
    assert!(poison.contains("runtimeClassName"), "{poison}");
    node.agent.write_manifest("poison", &poison);
    for count in 1..=3 {
        let status = node.agent.wait_ended();
        assert_eq!(status.code(), Some(1), "{}", node.agent.log_tail());
        let log = node.agent.log();
        let errors = log.lines().filter(|line| {
            line.starts_with("Error: the engine ended: panic while handling event")
                && line.contains("default/poison-node")
        });
        assert_eq!(errors.count(), count, "{}", node.agent.log_tail());
        node.agent.launch();
    }
    node.agent.wait_healthy();
    let pod = node.wait_pod("poison", SLOW, |pod| pod["status"]["reason"] == "SetAside");
    assert_eq!(pod["status"]["phase"], "Pending", "{pod}");
    let why = node.agent.command(&["why", "poison-node"]);
    let why = String::from_utf8_lossy(&why.stdout).into_owned();
    assert!(
        why.contains("is set aside") && why.contains("The agent panicked 3 times over this pod"),
        "{why}"
    );
    assert!(node.agent.log().contains("reason=\"SetAside\""), "{}", node.agent.log_tail());

    // Everybody else goes on, and another start changes nothing.
    node.agent.write_manifest("after", &sleeper("after"));
    let others = ["before".to_owned(), "after".to_owned()];
    let running = seen.wait_running(&others, 1, SLOW);
    node.agent.restart();
    node.wait_pod("poison", SLOW, |pod| pod["status"]["reason"] == "SetAside");
    let again = seen.wait_running(&others, 1, SLOW);
    assert_kept(&before, &again);
    assert_kept(&running, &again);

    // Another definition is another try.
    node.agent.write_manifest("poison", &sleeper("poison"));
    node.wait_pod("poison", SLOW, |pod| pod["status"]["phase"] == "Running");
    assert!(node.agent.is_running(), "{}", node.agent.log_tail());
}
