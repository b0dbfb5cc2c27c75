//! Pods that are evicted because the node runs short: the one that grows goes, the others stay.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::support::cluster::Cluster;
use crate::support::cluster_node::{BUSYBOX, ClusterNode, STAYS, condition, has, ready};
use crate::support::harness::{Runtime, SLOW, run, wait};
use crate::support::metrics_text;

/// A filesystem of a known size.
struct Filesystem(PathBuf);

impl Filesystem {
    fn mount(at: &Path, size: &str) -> Filesystem {
        fs::create_dir_all(at).expect("make a directory");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={size}"), "small"]).arg(at));
        Filesystem(at.to_owned())
    }
}

impl Drop for Filesystem {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A pod with an emptyDir at `/v`.
fn writer(node: &str, name: &str, script: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": 5,
            "volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [{
                "name": "main", "image": BUSYBOX, "imagePullPolicy": "Never",
                "command": ["sh", "-c", script],
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            }],
        },
    })
    .to_string()
}

/// Its phase, reason and message, its condition, and the Event about it with its annotations.
fn assert_evicted(cluster: &Cluster, namespace: &str, name: &str, resource: &str, threshold: &str) {
    let pod = cluster.wait_for("pod", namespace, name, SLOW, |pod| pod["status"]["phase"] == "Failed");
    assert_eq!(pod["status"]["reason"], "Evicted", "{}", pod["status"]);
    let message = pod["status"]["message"].as_str().unwrap_or_default();
    let begins =
        format!("The node was low on resource: {resource}. Threshold quantity: {threshold}, available: ");
    assert!(message.starts_with(&begins), "{message}");
    let target = condition(&pod, "DisruptionTarget").unwrap_or_else(|| panic!("{}", pod["status"]));
    assert_eq!((&target["status"], &target["reason"]), (&json!("True"), &json!("TerminationByKubelet")));
    assert_eq!(target["message"], message);
    let event = wait("the Event", SLOW, || {
        let events = cluster.events(namespace, name);
        events.iter().find(|event| event["reason"] == "Evicted").cloned().ok_or(format!("{events:?}"))
    });
    assert_eq!((&event["type"], &event["message"]), (&json!("Warning"), &json!(message)));
    assert_eq!(event["metadata"]["annotations"]["starved_resource"], resource, "{event}");
}

fn assert_told_of_node(member: &ClusterNode, resource: &str, signal: &str) {
    let selector = format!("involvedObject.kind=Node,involvedObject.name={}", member.name);
    let wanted = format!("Attempting to reclaim {resource}");
    wait("the Event about the node", SLOW, || {
        let args = ["get", "events", "--namespace=default", "--field-selector", &selector];
        let events = member.cluster.kubectl_json(&args);
        let found = events["items"].as_array().into_iter().flatten();
        let mut found = found.filter(|event| event["reason"] == "EvictionThresholdMet");
        found.find(|event| event["message"] == wanted.as_str()).map(|_| ()).ok_or(events.to_string())
    });
    let metrics = member.agent().get("/metrics").expect("metrics");
    let text = String::from_utf8_lossy(&metrics.body).into_owned();
    let count = |name: &str| metrics_text::value(&text, &format!("{name}{{eviction_signal=\"{signal}\"}}"));
    assert_eq!(count("kubelet_evictions"), Some(1.0));
    assert!(count("kubelet_eviction_stats_age_seconds_count").is_some_and(|count| count >= 1.0));
}

#[test]
fn who_fills_the_disk_goes_and_the_node_says_that_it_is_short() {
    let cluster = Cluster::shared_bare();
    let runtime = Runtime::start();
    let _small = Filesystem::mount(&runtime.dir.join("root"), "96m");
    let adjust = |config: &mut Value| {
        config["evictionHard"] = json!({"nodefs.available": "40Mi"});
        config["evictionPressureTransitionPeriod"] = "20s".into();
    };
    let member = ClusterNode::join_on(runtime, cluster, "short-of-disk", &[], adjust);
    let namespace = cluster.namespace("short-of-disk");
    let quiet = format!("dd if=/dev/zero of=/v/file bs=1M count=2; {STAYS}");
    cluster.create_pod(&namespace, &writer(member.name, "quiet", &quiet));
    cluster.wait_for("pod", &namespace, "quiet", SLOW, ready);
    let grows = format!("dd if=/dev/zero of=/v/file bs=1M count=70; {STAYS}");
    cluster.create_pod(&namespace, &writer(member.name, "grows", &grows));

    assert_evicted(cluster, &namespace, "grows", "ephemeral-storage", "40Mi");
    let node = cluster.wait_for("node", "", member.name, SLOW, |node| has(node, "DiskPressure"));
    let pressure = condition(&node, "DiskPressure").expect("the condition");
    assert_eq!(pressure["reason"], "KubeletHasDiskPressure", "{pressure}");
    assert!(!has(&node, "MemoryPressure") && !has(&node, "PIDPressure"));

    // No new pod while the node is short, not even a small one.
    cluster.create_pod(&namespace, &writer(member.name, "late", STAYS));
    let late = cluster.wait_for("pod", &namespace, "late", SLOW, |pod| pod["status"]["phase"] == "Failed");
    let message = "Pod was rejected: The node had condition: [DiskPressure]. ";
    assert_eq!((&late["status"]["reason"], &late["status"]["message"]), (&json!("Evicted"), &json!(message)));

    cluster.wait_for("node", "", member.name, SLOW, |node| !has(node, "DiskPressure"));
    assert!(ready(&cluster.pod(&namespace, "quiet")), "it has not noticed");
    assert_eq!(cluster.pod(&namespace, "quiet")["status"]["containerStatuses"][0]["restartCount"], 0);
    assert_told_of_node(&member, "ephemeral-storage", "nodefs.available");
    for name in ["quiet", "grows", "late"] {
        cluster.delete("pod", &namespace, name);
        cluster.wait_gone("pod", &namespace, name, SLOW);
    }
    member.node.wait_clean(SLOW);
}

/// A reservation that leaves 512 MiB for all pods together, so that nothing else on the machine counts.
fn reservation() -> String {
    let meminfo = fs::read_to_string("/proc/meminfo").expect("the machine's memory");
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")).expect("MemTotal");
    let total: u64 = total.trim().trim_end_matches(" kB").parse().expect("a number of KiB");
    format!("{}Ki", total - (512 << 10))
}

#[test]
fn who_takes_the_memory_goes_before_the_kernel_kills_anybody() {
    let cluster = Cluster::shared_bare();
    let adjust = |config: &mut Value| {
        config["evictionHard"] = json!({"memory.available": "96Mi"});
        config["systemReserved"] = json!({"memory": reservation()});
        config["evictionPressureTransitionPeriod"] = "20s".into();
    };
    let member = ClusterNode::join_on(Runtime::start(), cluster, "short-of-memory", &[], adjust);
    let namespace = cluster.namespace("short-of-memory");
    cluster.create_pod(&namespace, &writer(member.name, "quiet", STAYS));
    cluster.wait_for("pod", &namespace, "quiet", SLOW, ready);
    // Holds what it has read until its input ends, which it does not. More than this would be killed by the kernel.
    let grows = "(head -c 450m /dev/zero; sleep 1000) | tail -c 450m";
    cluster.create_pod(&namespace, &writer(member.name, "grows", grows));

    assert_evicted(cluster, &namespace, "grows", "memory", "96Mi");
    cluster.wait_for("node", "", member.name, SLOW, |node| has(node, "MemoryPressure"));
    cluster.wait_for("node", "", member.name, SLOW, |node| !has(node, "MemoryPressure"));
    let quiet = cluster.pod(&namespace, "quiet");
    assert!(ready(&quiet), "it has not noticed: {}", quiet["status"]);
    assert_eq!(quiet["status"]["containerStatuses"][0]["restartCount"], 0);
    assert_told_of_node(&member, "memory", "allocatableMemory.available");
    for name in ["quiet", "grows"] {
        cluster.delete("pod", &namespace, name);
        cluster.wait_gone("pod", &namespace, name, SLOW);
    }
    member.node.wait_clean(SLOW);
}
