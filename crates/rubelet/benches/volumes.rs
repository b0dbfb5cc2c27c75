//! What volumes add to the start of pods, and what they cost the API server: the same pods without volumes and with ten
//! configMaps each, under rubelet and under the upstream kubelet. `hack/bench volumes` runs it; docs/performance.md holds
//! what came out.
//!
//! ```text
//!   parent ─┬─ child "rubelet"  ─┬─ a cluster (etcd, API server) and a containerd of its own
//!           └─ child "upstream" ─┘  pods at once, plain ──> gone ──> the same with volumes
//! ```
//! It measures and asserts nothing but that all pods run.

// Real processes live in real time.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

#[path = "figures/mod.rs"]
mod figures;
#[path = "../tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use figures::{Figures, OUT, SIDE, run_side};
use serde_json::{Value, json};
use support::cluster::{Cluster, Record};
use support::harness::{Agent, Node, Runtime};

const NODE: &str = "bench-node";
const NAMESPACE: &str = "bench";
const PATIENCE: Duration = Duration::from_secs(600);
const VOLUMES: usize = 10;

fn main() {
    let pods = figures::number("RUBELET_BENCH_PODS", 100);
    if std::env::var_os(SIDE).is_some() {
        return measure(pods);
    }
    let upstream =
        std::env::var_os("RUBELET_BENCH_UPSTREAM").expect("RUBELET_BENCH_UPSTREAM: the kubelet's path");
    let sides = [("rubelet", figures::rubelet()), ("upstream", upstream.into())];
    // Times in seconds, requests in numbers.
    let found: BTreeMap<&str, Figures> =
        sides.iter().map(|(side, binary)| (*side, measured(side, binary))).collect();
    println!("machine: {}", figures::machine());
    println!("{pods} pods at once, {VOLUMES} configMap volumes each (of {} maps)", pods * VOLUMES);
    println!("| | rubelet | upstream |");
    println!("| --- | --- | --- |");
    for name in
        found["rubelet"].keys().chain(found["upstream"].keys()).collect::<std::collections::BTreeSet<_>>()
    {
        let show = |side: &str| found[side].get(name).map_or("-".into(), |value| format!("{value:.2}"));
        println!("| {name} | {} | {} |", show("rubelet"), show("upstream"));
    }
}

fn measured(side: &str, binary: &Path) -> Figures {
    let (figures, complete) = run_side(side, binary);
    assert!(complete, "{side} did not come to its end");
    figures
}

fn measure(pods: usize) {
    let cluster = Cluster::start_bare();
    let runtime = Runtime::start();
    let kubeconfig = cluster.node_kubeconfig(NODE).to_string_lossy().into_owned();
    let flags = ["--kubeconfig", &kubeconfig, "--hostname-override", NODE];
    let agent = Agent::start_with_flags(&runtime, &flags, |config| config["maxPods"] = json!(pods + 10));
    let _node = Node { agent, runtime };
    cluster.kubectl(&["create", "namespace", NAMESPACE]);
    cluster.wait_for("node", "", NODE, PATIENCE, is_ready);
    let maps = (0..pods * VOLUMES).map(|number| {
        let data = json!({"number": number.to_string(), "text": "x".repeat(1000)});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("map-{number}")}, "data": data})
    });
    create(&cluster, maps.collect());

    let mut figures = Figures::new();
    let mut medians = Vec::new();
    for (what, volumes) in [("without volumes", 0), ("with volumes", VOLUMES)] {
        let before = requests(&cluster);
        let times = run(&cluster, pods, volumes);
        let median = times[times.len() / 2];
        medians.push(median);
        figures.insert(format!("start {what}, median (s)"), median);
        figures.insert(format!("start {what}, last (s)"), times[times.len() - 1]);
        for (request, after) in requests(&cluster) {
            let made = after - before.get(&request).copied().unwrap_or(0);
            let about_maps = request.ends_with(" configmaps");
            if about_maps && made > 0 {
                figures.insert(format!("requests {what}: {request}"), made as f64);
            }
        }
    }
    figures.insert("added to the median by volumes (s)".into(), medians[1] - medians[0]);
    let path = std::env::var_os(OUT).expect("where to write figures");
    std::fs::write(path, serde_json::to_string(&figures).expect("figures")).expect("write the figures");
}

fn is_ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

/// Makes the pods at once and takes them away again. Seconds from a pod's coming to its running, in order.
fn run(cluster: &Cluster, pods: usize, volumes: usize) -> Vec<f64> {
    let watch = cluster.record("pod", NAMESPACE, "");
    let name = |number: usize| format!("pod-{volumes}-{number}");
    create(cluster, (0..pods).map(|number| pod(&name(number), number, volumes)).collect());
    let mut came: BTreeMap<String, SystemTime> = BTreeMap::new();
    let mut took: BTreeMap<String, f64> = BTreeMap::new();
    follow(&watch, "pods to run", |event, at| {
        let name = event["object"]["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let since = *came.entry(name.clone()).or_insert(at);
        if event["object"]["status"]["phase"] == "Running" {
            took.entry(name).or_insert(at.duration_since(since).unwrap_or_default().as_secs_f64());
        }
        took.len() == pods
    });
    cluster.kubectl(&["delete", "pods", "--all", "--namespace", NAMESPACE, "--wait=false"]);
    let mut gone = 0;
    follow(&watch, "pods to go", |event, _| {
        gone += usize::from(event["type"] == "DELETED");
        gone == pods
    });
    let mut times: Vec<f64> = took.into_values().collect();
    times.sort_by(f64::total_cmp);
    times
}

/// Hands over what the watch tells until `over` says so.
fn follow(watch: &Record, what: &str, mut over: impl FnMut(&Value, SystemTime) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let Some(event) = watch.next(Duration::from_secs(1)) else { continue };
        if over(&event, SystemTime::now()) {
            return;
        }
    }
    panic!("waited in vain for {what}");
}

/// Light ones: they sleep in the host's network.
fn pod(name: &str, number: usize, volumes: usize) -> Value {
    let numbers = || (0..volumes).map(move |volume| (volume, number * VOLUMES + volume));
    let mounts = numbers()
        .map(|(volume, _)| json!({"name": format!("v{volume}"), "mountPath": format!("/v{volume}")}));
    let sources = numbers().map(
        |(volume, map)| json!({"name": format!("v{volume}"), "configMap": {"name": format!("map-{map}")}}),
    );
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "nodeName": NODE, "hostNetwork": true, "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "c", "image": "rubelet.test/busybox:1", "imagePullPolicy": "Never",
                "command": ["sleep", "3600"], "volumeMounts": mounts.collect::<Vec<_>>(),
            }],
            "volumes": sources.collect::<Vec<_>>(),
        },
    })
}

fn create(cluster: &Cluster, items: Vec<Value>) {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    let args = ["create", "--namespace", NAMESPACE, "-f", "-"];
    let mut kubectl = cluster
        .kubectl_command(&cluster.admin_kubeconfig(), &args)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("start kubectl");
    let mut input = kubectl.stdin.take().expect("its input");
    input.write_all(list.to_string().as_bytes()).expect("hand over the objects");
    drop(input);
    assert!(kubectl.wait().expect("wait for kubectl").success(), "kubectl create");
}

fn requests(cluster: &Cluster) -> BTreeMap<String, usize> {
    cluster.api_request_counts(&format!("system:node:{NODE}"))
}
