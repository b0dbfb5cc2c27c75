//! What a scrape of each endpoint costs the agent in CPU time, with many pods. `hack/bench scrape` runs it, once for this
//! agent and once for the upstream kubelet; docs/performance.md holds what came out.
//!
//! It measures and asserts nothing but that all pods run and every scrape is answered.

// Real processes live in real time.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

#[path = "figures/mod.rs"]
mod figures;
#[path = "../tests/support/mod.rs"]
mod support;

use std::thread;
use std::time::{Duration, Instant};

use figures::{number, whole_cpu_seconds};
use serde_json::{Value, json};
use support::harness::{Node, wait};

const ENDPOINTS: [&str; 5] =
    ["/stats/summary", "/metrics/resource", "/metrics/cadvisor", "/metrics/probes", "/metrics"];
/// Longer than any agent answers from what it read before.
const BETWEEN: Duration = Duration::from_millis(1500);
/// Pods that are made at a time: containerd is not what is measured.
const BATCH: usize = 10;
const PATIENCE: Duration = Duration::from_secs(600);

fn main() {
    let (pods, scrapes) = (number("RUBELET_BENCH_PODS", 200), number("RUBELET_BENCH_SCRAPES", 20));
    let name = std::env::var("RUBELET_BENCH_NAME").unwrap_or_else(|_| "rubelet".to_owned());
    let node = Node::start_with(|config| config["maxPods"] = json!(pods + 10));
    let pid = node.agent.pid().expect("the agent's pid");
    for first in (0..pods).step_by(BATCH) {
        let last = (first + BATCH).min(pods);
        for pod in first..last {
            let name = format!("scraped-{pod}");
            node.agent.write_manifest(&name, &manifest(&name));
        }
        wait_running(&node, last);
    }
    // What their start left to do is over then.
    thread::sleep(Duration::from_secs(10));
    let idle = idle_rate(pid, Duration::from_secs(30));
    println!("machine: {}", figures::machine());
    println!("{name}: {pods} pods, {:.2} % of a core without scrapes", idle * 100.0);
    println!("{name}: endpoint, CPU time per scrape, time to answer, bytes");
    for endpoint in ENDPOINTS {
        let (begun, used) = (Instant::now(), whole_cpu_seconds(pid));
        let (mut waited, mut bytes) = (Duration::ZERO, 0);
        for _ in 0..scrapes {
            let asked = Instant::now();
            let answer = node.agent.get(endpoint).expect("an answer");
            waited += asked.elapsed();
            assert_eq!(answer.status, 200, "{endpoint}: {}", answer.text());
            bytes = answer.text().len();
            thread::sleep(BETWEEN);
        }
        let used = whole_cpu_seconds(pid) - used - idle * begun.elapsed().as_secs_f64();
        let (each, waited) = (used.max(0.0) / scrapes as f64, waited.as_secs_f64() / scrapes as f64);
        println!("{name}: {endpoint:18} {:8.2} ms {:8.2} ms {bytes:9}", each * 1e3, waited * 1e3);
    }
}

/// Cores in use while nobody asks.
fn idle_rate(pid: u32, over: Duration) -> f64 {
    let (begun, used) = (Instant::now(), whole_cpu_seconds(pid));
    thread::sleep(over);
    (whole_cpu_seconds(pid) - used) / begun.elapsed().as_secs_f64()
}

/// A pod that costs as little as a pod can, with a volume to be measured.
fn manifest(name: &str) -> String {
    let container = json!({
        "name": "c", "image": "rubelet.test/busybox:1", "imagePullPolicy": "Never",
        "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 1000000 & wait"],
        "volumeMounts": [{ "name": "cache", "mountPath": "/cache" }],
    });
    let spec = json!({
        "hostNetwork": true, "terminationGracePeriodSeconds": 5, "containers": [container],
        "volumes": [{ "name": "cache", "emptyDir": {} }],
    });
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec }).to_string()
}

fn wait_running(node: &Node, count: usize) {
    let runs = |pod: &&Value| pod["status"]["containerStatuses"][0]["state"]["running"].is_object();
    wait(&format!("{count} pods to run"), PATIENCE, || {
        match node.agent.pods()?.iter().filter(runs).count() {
            running if running == count => Ok(()),
            running => Err(format!("{running} of {count}")),
        }
    });
}
