//! The gates `CRIListStreaming` and `PodAndContainerStatsFromCRI` on a runtime that has the calls they need, and on one that
//! has none of them.

use crate::support::cri_proxy::{Fault, Proxy, Rule, Script, When};
use crate::support::harness::{Agent, Node, Runtime, SLOW, wait};
use crate::support::metrics_text::{check_with_promtool, families};
use crate::support::pods::{UNTIL_TERM, is_running, manifest, shell};
use serde_json::{Value, json};

/// An agent with both gates, whose calls to this runtime are counted, and a pod on it.
fn start(version: &str) -> (Proxy, Node) {
    let runtime = Runtime::start_version(version);
    let proxy = Proxy::start(&runtime);
    let agent = Agent::start(&runtime, |config| {
        config["containerRuntimeEndpoint"] = json!(proxy.endpoint());
        // The whole runtime is read often.
        config["syncFrequency"] = json!("1s");
        config["featureGates"]["CRIListStreaming"] = json!(true);
        config["featureGates"]["PodAndContainerStatsFromCRI"] = json!(true);
    });
    let node = Node { agent, runtime };
    let spec = json!({ "terminationGracePeriodSeconds": 2, "containers": [shell("c", UNTIL_TERM)] });
    node.agent.write_manifest("web", &manifest("web", spec));
    node.wait_pod("web", SLOW, is_running);
    (proxy, node)
}

fn read(node: &Node, path: &str) -> String {
    let answer = node.agent.get(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    answer.text()
}

/// The pod's figures in the summary, once they are all there, and the node's.
fn summary(node: &Node) -> Value {
    let summary = wait("figures of the pod", SLOW, || {
        let summary: Value = serde_json::from_str(&read(node, "/stats/summary")).expect("JSON");
        let container = &summary["pods"][0]["containers"][0];
        let is_whole = container["cpu"]["usageCoreNanoSeconds"].as_u64() > Some(0)
            && container["memory"]["workingSetBytes"].as_u64() > Some(0);
        if is_whole { Ok(summary) } else { Err(summary.to_string()) }
    });
    for field in ["cpu", "memory", "network", "fs", "runtime", "rlimit", "swap", "startTime"] {
        assert!(!summary["node"][field].is_null(), "{field} of {}", summary["node"]);
    }
    let pod = &summary["pods"][0];
    assert_eq!((&pod["podRef"]["name"], &pod["containers"][0]["name"]), (&json!("web-node"), &json!("c")));
    assert!(pod["memory"]["workingSetBytes"].as_u64() > Some(0), "{pod}");
    assert!(pod["containers"][0]["rootfs"]["usedBytes"].is_u64(), "{pod}");
    assert_eq!(pod["network"]["name"], "eth0", "{pod}");
    assert!(pod["process_stats"]["process_count"].as_u64() > Some(0), "{pod}");
    let resource = read(node, "/metrics/resource");
    for start in [
        r#"container_memory_working_set_bytes{container="c",namespace="default",pod="web-node"} "#,
        r#"pod_cpu_usage_seconds_total{namespace="default",pod="web-node"} "#,
        "node_memory_working_set_bytes ",
        "resource_scrape_error 0",
    ] {
        assert!(resource.lines().any(|line| line.starts_with(start)), "{start} in {resource}");
    }
    summary
}

const UNIMPLEMENTED: u16 = 12;

const PLAIN: [&str; 6] = [
    "ListPodSandbox",
    "ListContainers",
    "ListContainerStats",
    "ListPodSandboxStats",
    "ListPodSandboxMetrics",
    "ListImages",
];

#[test]
fn a_runtime_that_has_them_streams_lists_and_tells_figures() {
    let (proxy, node) = start("2.4");
    summary(&node);
    let text = read(&node, "/metrics/cadvisor");
    let families = families(&text);
    // In the order that this runtime describes, and no cgroup of ours.
    let of_c = |line: &&str| {
        line.starts_with("container_memory_working_set_bytes{")
            && [r#"="c""#, r#"="web-node""#, r#"="default""#].iter().all(|label| line.contains(label))
    };
    assert_eq!(text.lines().filter(of_c).count(), 1, "{text}");
    for name in ["container_network_receive_bytes_total", "container_start_time_seconds", "machine_cpu_cores"]
    {
        assert!(families.contains_key(name), "{name} in {text}");
    }
    for line in ["container_scrape_error 0", "machine_scrape_error 0"] {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
    assert!(!text.contains(r#"id="/""#), "{text}");
    check_with_promtool("/metrics/cadvisor", &text);
    assert!(read(&node, "/metrics").contains("\nkubelet_metrics_provider{provider=\"cri\"} 1\n"));

    let streams =
        ["StreamPodSandboxes", "StreamContainers", "StreamPodSandboxStats", "StreamPodSandboxMetrics"];
    for call in streams.into_iter().chain(["ListMetricDescriptors"]) {
        assert!(proxy.calls(call) > 0, "{call} was never asked");
    }
    assert_eq!(PLAIN.map(|call| proxy.calls(call)), [0; 6], "{PLAIN:?}");
}

#[test]
fn a_runtime_without_them_is_asked_for_plain_lists_and_cgroups_tell_figures() {
    let (proxy, node) = start("1.6");
    // This version has them, unlike those before it.
    let refused = Rule::new(&["ListPodSandboxStats"], When::Always, Fault::Refused(UNIMPLEMENTED));
    proxy.play(Script { seed: 1, rules: vec![refused] });
    summary(&node);
    let text = read(&node, "/metrics/cadvisor");
    assert!(text.lines().any(|line| line == "container_scrape_error 1"), "{text}");
    assert!(families(&text).contains_key("machine_cpu_cores"), "{text}");
    let log = node.agent.log();
    for words in
        ["figures of pods and containers come from cgroups", "ListMetricDescriptors: not supported by"]
    {
        assert!(log.contains(words), "{words} in {log}");
    }
    // Lists that are asked for at the same moment may each be refused; none is asked for again.
    let streams = || proxy.calls("StreamPodSandboxes") + proxy.calls("StreamContainers");
    let (refused, lists) = (streams(), proxy.calls("ListContainers"));
    assert!((1..=2).contains(&refused), "{refused}");
    wait("more readings of the runtime", SLOW, || match proxy.calls("ListContainers") {
        now if now > lists + 2 => Ok(()),
        now => Err(format!("{now} lists, {lists} before")),
    });
    assert_eq!(streams(), refused);
}
