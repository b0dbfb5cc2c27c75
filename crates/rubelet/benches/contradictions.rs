//! What a runtime that contradicts itself costs: sandboxes and containers that were removed behind the CRI's back stay in
//! its lists for ever, whatever it is asked. `hack/bench contradictions` runs it; docs/performance.md holds what came out.
//!
//! Two nodes live beside each other, one with such leftovers and one without, and are looked at in turn: starts of other
//! pods, and the CPU that agent and runtime use at rest. It asserts nothing but that pods run.

// Real processes live in real time.
#![allow(clippy::disallowed_methods)]

mod figures;

#[path = "../tests/support/mod.rs"]
mod support;

use std::thread;
use std::time::{Duration, Instant};

use figures::{CpuClock, Samples, machine, number};
use serde_json::json;
use support::harness::{Node, wait};

/// Pods that are made at a time.
const BATCH: usize = 10;
const PATIENCE: Duration = Duration::from_secs(300);
/// Pods that run on either node all the time.
const STEADY: usize = 5;

fn main() {
    let ghosts = number("RUBELET_BENCH_GHOSTS", 100);
    let starts = number("RUBELET_BENCH_STARTS", 20);
    let settle = number("RUBELET_BENCH_SETTLE", 60) as u64;
    let seconds = number("RUBELET_BENCH_SECONDS", 120) as u64;
    println!("{}", machine());
    let room = |config: &mut serde_json::Value| config["maxPods"] = json!(ghosts + 100);
    let (clean, mut haunted) = (Node::start_with(room), Node::start_with(room));
    make_pods(&haunted, "ghost", ghosts);
    let begun = Instant::now();
    haunted.agent.kill9();
    for number in 0..ghosts {
        haunted.agent.remove_manifest(&format!("ghost-{number}"));
    }
    haunted.runtime.remove_behind_cri();
    haunted.agent.restart();
    println!("{ghosts} pods were removed behind the CRI's back in {:.0?}", begun.elapsed());
    for node in [&clean, &haunted] {
        make_pods(node, "steady", STEADY);
    }
    thread::sleep(Duration::from_secs(settle));

    let mut times = [Samples::default(), Samples::default()];
    for number in 0..starts {
        for (node, times) in [&clean, &haunted].into_iter().zip(&mut times) {
            times.add(start(node, &format!("start-{number}")));
        }
    }
    let [usual, beside] = times.map(|times| times.quantile(0.5) * 1000.0);
    println!(
        "start of a pod, median of {starts}: {usual:.0} ms, {beside:.0} ms beside leftovers ({:.2} times)",
        beside / usual
    );

    thread::sleep(Duration::from_secs(10));
    let nodes = [&clean, &haunted];
    let agents = nodes.map(|node| CpuClock::start(node.agent.pid().expect("the agent's pid")));
    let runtimes = nodes.map(|node| CpuClock::start(node.runtime.containerd_pid()));
    thread::sleep(Duration::from_secs(seconds));
    for (what, clocks) in [("agent", agents), ("runtime", runtimes)] {
        let [usual, beside] = clocks.map(|clock| clock.read().millicores());
        println!(
            "CPU of the {what} at rest over {seconds} s: {usual:.2} m, {beside:.2} m beside leftovers ({:.2} times)",
            beside / usual
        );
    }
}

/// A pod that costs as little as a pod can.
fn manifest(name: &str) -> String {
    let container = json!({
        "name": "c", "image": "rubelet.test/busybox:1",
        "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 1000000 & wait"],
    });
    let spec = json!({ "hostNetwork": true, "terminationGracePeriodSeconds": 1, "containers": [container] });
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec }).to_string()
}

fn make_pods(node: &Node, prefix: &str, count: usize) {
    for first in (0..count).step_by(BATCH) {
        let last = (first + BATCH).min(count);
        for number in first..last {
            let name = format!("{prefix}-{number}");
            node.agent.write_manifest(&name, &manifest(&name));
        }
        for number in first..last {
            wait_running(node, &format!("{prefix}-{number}"));
        }
    }
}

fn wait_running(node: &Node, name: &str) {
    wait("a pod to run", PATIENCE, || {
        let pod = node.agent.pod(name)?;
        let ready = pod["status"]["containerStatuses"][0]["ready"] == true;
        if ready { Ok(()) } else { Err(pod["status"].to_string()) }
    });
}

/// Seconds from the manifest to the pod that runs. The pod goes again.
fn start(node: &Node, name: &str) -> f64 {
    let begun = Instant::now();
    node.agent.write_manifest(name, &manifest(name));
    while !node.agent.pod(name).is_ok_and(|pod| pod["status"]["containerStatuses"][0]["ready"] == true) {
        assert!(begun.elapsed() < PATIENCE, "{name} does not run");
        thread::sleep(Duration::from_millis(5));
    }
    let took = begun.elapsed().as_secs_f64();
    node.agent.remove_manifest(name);
    wait("the pod to go", PATIENCE, || match node.agent.pod(name) {
        Ok(pod) => Err(pod["status"].to_string()),
        Err(_) => Ok::<_, String>(()),
    });
    took
}
