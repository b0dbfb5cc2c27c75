//! What the kernel holds pods and containers to.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{clear, facts, looks, spec};
use crate::support::harness::{Node, SLOW, cgroups_below, wait};
use crate::support::pods::{self, container_id, is_running, manifest, terminated, uid};

/// The pod's directory of a controller's hierarchy, as seen from the instance's cgroup root.
fn pod_cgroups(node: &Node, pod: &Value) -> BTreeMap<String, PathBuf> {
    let name = format!("pod{}", uid(pod));
    let found = cgroups_below(&node.runtime.cgroup_root).into_iter().filter(|path| path.ends_with(&name));
    found.filter_map(|path| Some((hierarchy(&path)?, path))).collect()
}

/// `/sys/fs/cgroup/<this>/...`
fn hierarchy(path: &Path) -> Option<String> {
    path.strip_prefix("/sys/fs/cgroup").ok()?.iter().next().map(|name| name.to_string_lossy().into_owned())
}

#[track_caller]
fn value(dir: &Path, file: &str) -> String {
    let path = dir.join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).trim().to_owned()
}

const UNLIMITED: u64 = 1 << 60;

/// (below the root, cpu.shares, cpu.cfs_quota_us, memory.limit_in_bytes) of the pod, then of its container.
type Held = (&'static str, [u64; 2], [i64; 2], [u64; 2]);

#[track_caller]
fn check(node: &Node, pod: &Value, held: Held) {
    let (parent, shares, quotas, limits) = held;
    let groups = pod_cgroups(node, pod);
    let (cpu, memory) = (&groups["cpu"], &groups["memory"]);
    let expected = format!("{}/kubepods{parent}/pod{}", node.runtime.cgroup_root, uid(pod));
    assert!(cpu.ends_with(expected.trim_start_matches('/')), "{} is not {expected}", cpu.display());
    let id = container_id(pod, "c");
    for (index, below) in ["", id.as_str()].into_iter().enumerate() {
        let (cpu, memory) = (cpu.join(below), memory.join(below));
        assert_eq!(value(&cpu, "cpu.shares"), shares[index].to_string(), "{}", cpu.display());
        assert_eq!(value(&cpu, "cpu.cfs_quota_us"), quotas[index].to_string(), "{}", cpu.display());
        let limit: u64 = value(&memory, "memory.limit_in_bytes").parse().expect("a number");
        assert_eq!(limit.min(UNLIMITED), limits[index], "{}", memory.display());
    }
}

const MEBIBYTE: u64 = 1 << 20;
const LOOK: &str = "echo oom=$(cat /proc/self/oom_score_adj)";

/// The numbers are those of cgroup v1, which this project's machines have; v2 has its own test beside the adapter.
#[test]
fn cgroups_follow_the_quality_of_service() {
    if !Path::new("/sys/fs/cgroup/memory").exists() {
        return;
    }
    let node = Node::start_with(|config| config["podPidsLimit"] = json!(321));
    let put = |name: &str, resources: Value| {
        let containers = json!([looks("c", LOOK, json!({ "resources": resources }))]);
        node.agent.write_manifest(name, &manifest(name, spec(containers, json!({}))));
    };
    put("guaranteed", json!({ "limits": { "cpu": "250m", "memory": "64Mi" } }));
    put(
        "burstable",
        json!({ "requests": { "cpu": "100m", "memory": "32Mi" }, "limits": { "memory": "128Mi" } }),
    );
    put("besteffort", json!({}));
    let mut pods = BTreeMap::new();
    for (name, class, held) in [
        ("guaranteed", "Guaranteed", ("", [256; 2], [25_000; 2], [64 * MEBIBYTE; 2])),
        ("burstable", "Burstable", ("/burstable", [102; 2], [-1; 2], [128 * MEBIBYTE; 2])),
        ("besteffort", "BestEffort", ("/besteffort", [2; 2], [-1; 2], [UNLIMITED; 2])),
    ] {
        let pod = node.wait_pod(name, SLOW, is_running);
        assert_eq!(pod["status"]["qosClass"], class);
        check(&node, &pod, held);
        assert_eq!(value(&pod_cgroups(&node, &pod)["pids"], "pids.max"), "321");
        pods.insert(name, pod);
    }
    let oom = |name: &str| facts(&node, &pods[name], "c")["oom"].parse::<i32>().expect("a number");
    assert_eq!(oom("besteffort"), 1000);
    assert!((3..=999).contains(&oom("burstable")), "{}", oom("burstable"));
    assert!(oom("guaranteed") < oom("burstable"));

    // Burstable pods share what they asked for; the others' level asks for nothing.
    let level = |name: &str| {
        let cpu = pod_cgroups(&node, &pods[name]).remove("cpu").expect("its cgroup");
        value(cpu.parent().expect("its parent"), "cpu.shares")
    };
    wait("the levels' shares", SLOW, || match (level("burstable"), level("besteffort")) {
        (burstable, besteffort) if burstable == "102" && besteffort == "2" => Ok(()),
        other => Err(format!("{other:?}")),
    });
    clear(&node, &["guaranteed", "burstable", "besteffort"]);
    for pod in pods.values() {
        assert_eq!(pod_cgroups(&node, pod), BTreeMap::new());
    }
}

#[test]
fn a_container_that_takes_too_much_memory_is_killed() {
    let node = Node::start();
    let containers = json!([
        looks("c", "true", json!({})),
        pods::shell_with(
            "greedy",
            "exec tail -c 200000000 /dev/zero",
            json!({ "resources": { "limits": { "memory": "16Mi" } } }),
        ),
    ]);
    node.agent.write_manifest("m", &manifest("m", spec(containers, json!({ "restartPolicy": "Never" }))));
    let pod = node.wait_pod("m", SLOW, |pod| !terminated(pod, "greedy").is_null());
    let ended = terminated(&pod, "greedy");
    assert_eq!((&ended["reason"], &ended["exitCode"]), (&json!("OOMKilled"), &json!(137)));
    assert!(terminated(&pod, "c").is_null(), "its neighbour lives on");
    let id = container_id(&pod, "greedy");
    wait("the kill to be told", SLOW, || {
        let log = node.agent.log();
        let line = log.lines().find(|line| line.contains("the kernel killed process") && line.contains(&id));
        let line = line.ok_or("no line in the agent's log")?;
        // Its name is told if the container was observed before it was killed.
        let told = ["of container", "tail", uid(&pod), "memory limit of cgroup"];
        match told.iter().find(|part| !line.contains(**part)) {
            None => Ok(()),
            Some(part) => Err(format!("{part:?} is not in {line}")),
        }
    });
    clear(&node, &["m"]);
}
