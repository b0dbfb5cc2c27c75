//! What is kept from pods: the files of `kubepods` and of a reserved cgroup, what becomes of a pod whose cgroup somebody
//! removes, and configurations that can't be kept. The agents of these tests are below a cgroup of their own.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::support::harness::{Agent, Node, Runtime, SLOW, cgroups_below, wait};
use crate::support::pods::{UNTIL_TERM, container_id, is_running, manifest, shell_with, uid};

const MIB: u64 = 1 << 20;

/// A file of the cgroup `below` the instance's own, in the hierarchy that has it. The names of both versions are given.
fn value(runtime: &Runtime, below: &str, names: [&str; 2]) -> Result<u64, String> {
    let files = directories(runtime, below).into_iter().flat_map(|dir| names.map(|name| dir.join(name)));
    let file =
        files.into_iter().find(|file| file.exists()).ok_or_else(|| format!("no {names:?} of {below}"))?;
    let text = fs::read_to_string(&file).map_err(|error| error.to_string())?;
    text.trim().parse().map_err(|_| format!("{}: {text:?}", file.display()))
}

fn directories(runtime: &Runtime, below: &str) -> Vec<PathBuf> {
    let end = format!("{}/{below}", runtime.cgroup_root);
    cgroups_below(&runtime.cgroup_root)
        .into_iter()
        .filter(|dir| dir.to_str().is_some_and(|dir| dir.ends_with(&end)))
        .collect()
}

const MEMORY: [&str; 2] = ["memory.limit_in_bytes", "memory.max"];
const PIDS: [&str; 2] = ["pids.max", "pids.max"];

/// Of the kernel's version 2, in the shares of version 1.
fn shares(runtime: &Runtime, below: &str) -> Result<u64, String> {
    value(runtime, below, ["cpu.shares", "cpu.shares"]).or_else(|_| {
        value(runtime, below, ["cpu.weight", "cpu.weight"]).map(|weight| (weight - 1) * 262_142 / 9_999 + 2)
    })
}

fn number(path: &str) -> u64 {
    fs::read_to_string(path).expect(path).trim().parse().expect(path)
}

fn memory_of_machine() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").expect("meminfo");
    let line = text.lines().find(|line| line.starts_with("MemTotal:")).expect("MemTotal");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") * 1024
}

fn shows(what: &str, expect: u64, read: impl Fn() -> Result<u64, String>) {
    wait(what, SLOW, || match read() {
        Ok(seen) if seen == expect => Ok(()),
        other => Err(format!("{other:?}, and not {expect}")),
    });
}

/// A cgroup in each hierarchy, which nobody is in. Removed at the end, before the instance's own.
struct Guarded(Vec<PathBuf>);

impl Guarded {
    fn make(runtime: &Runtime) -> Guarded {
        let name = runtime.cgroup_root.trim_start_matches('/');
        let tops = cgroups_below(name).into_iter().filter(|dir| dir.ends_with(name));
        let dirs: Vec<PathBuf> = tops.map(|top| top.join("guarded")).collect();
        dirs.iter().for_each(|dir| fs::create_dir_all(dir).expect("make a cgroup"));
        Guarded(dirs)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // A failure is reported by the instance, which finds what is left.
        self.0.iter().for_each(|dir| drop(fs::remove_dir(dir)));
    }
}

#[test]
fn what_is_reserved_is_kept_from_pods() {
    let runtime = Runtime::start();
    let guarded = Guarded::make(&runtime);
    let place = format!("{}/guarded", runtime.cgroup_root);
    let agent = Agent::start(&runtime, |config| {
        config["systemReserved"] = json!({ "memory": "512Mi", "cpu": "100m", "pid": "100" });
        config["kubeReserved"] = json!({ "memory": "256Mi", "pid": "50" });
        config["systemReservedCgroup"] = json!(place);
        config["enforceNodeAllocatable"] = json!(["pods", "system-reserved"]);
    });
    let node = Node { agent, runtime };
    let spec = json!({
        "terminationGracePeriodSeconds": 2,
        "containers": [shell_with("c", UNTIL_TERM, json!({ "resources": { "requests": { "cpu": "250m", "memory": "32Mi" } } }))],
    });
    node.agent.write_manifest("web", &manifest("web", spec));
    let pod = node.wait_pod("web", SLOW, is_running);

    let memory = (memory_of_machine() - 768 * MIB) / 4096 * 4096;
    shows("the memory of all pods", memory, || value(&node.runtime, "kubepods", MEMORY));
    let pids = number("/proc/sys/kernel/pid_max").min(number("/proc/sys/kernel/threads-max"));
    shows("the processes of all pods", pids - 150, || value(&node.runtime, "kubepods", PIDS));
    let cpus = std::thread::available_parallelism().expect("CPUs").get() as u64;
    shows("the weight of all pods", (cpus * 1000 - 100) * 1024 / 1000, || shares(&node.runtime, "kubepods"));
    shows("the weight of burstable pods", 256, || shares(&node.runtime, "kubepods/burstable"));
    shows("the reserved memory", 512 * MIB, || value(&node.runtime, "guarded", MEMORY));
    shows("the reserved processes", 100, || value(&node.runtime, "guarded", PIDS));
    shows("the reserved weight", 102, || shares(&node.runtime, "guarded"));
    let log = node.agent.log();
    for text in [
        "Updated Node Allocatable limit across pods".to_owned(),
        format!("Updated limits on system reserved cgroup {place}"),
    ] {
        assert!(log.contains(&text), "{text}: {}", node.agent.log_tail());
    }

    lose_cgroup(&node.runtime, uid(&pod));
    let first = container_id(&pod, "c");
    node.wait_pod("web", SLOW, |pod| is_running(pod) && container_id(pod, "c") != first);
    assert!(node.agent.log().contains("The cgroup of the pod was removed"), "{}", node.agent.log_tail());
    shows("the weight of the pod", 256, || {
        shares(&node.runtime, &format!("kubepods/burstable/pod{}", uid(&pod)))
    });

    node.agent.remove_manifest("web");
    node.wait_clean(SLOW);
    shows("the weight without burstable pods", 2, || shares(&node.runtime, "kubepods/burstable"));
    drop(node);
    drop(guarded);
}

/// Takes the pod's processes out of its cgroup, in the hierarchy that counts them, and removes the cgroup there.
fn lose_cgroup(runtime: &Runtime, uid: &str) {
    let below = format!("kubepods/burstable/pod{uid}");
    let dir = directories(runtime, &below)
        .into_iter()
        .find(|dir| dir.join("pids.max").exists())
        .expect("the pod's");
    let end = format!("{}/{below}", runtime.cgroup_root);
    let hierarchy =
        PathBuf::from(dir.to_str().and_then(|dir| dir.strip_suffix(&end)).expect("below its root"));
    let own = hierarchy.join(runtime.cgroup_root.trim_start_matches('/'));
    wait("the pod's cgroup to be removed", SLOW, || {
        empty(&dir, &own).and_then(|()| fs::remove_dir(&dir)).map_err(|error| error.to_string())
    });
}

fn empty(dir: &Path, into: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)?.flatten().filter(|entry| entry.path().is_dir()) {
        empty(&entry.path(), into)?;
        fs::remove_dir(entry.path())?;
    }
    for pid in fs::read_to_string(dir.join("cgroup.procs"))?.lines() {
        fs::write(into.join("cgroup.procs"), pid)?;
    }
    Ok(())
}

#[test]
fn what_can_not_be_kept_ends_the_agent() {
    let runtime = Runtime::start();
    let refused = |flags: &[&str], expect: &str| {
        let (agent, status) = Agent::refused(&runtime, flags);
        assert!(!status.success(), "{flags:?}");
        let log = agent.log();
        assert!(log.contains(expect), "{flags:?}: {log}");
    };
    // A name of this run: an agent that made the cgroup would be found out by the next run.
    let missing = format!("{}/no-such-{}", runtime.cgroup_root, std::process::id());
    let place = format!("--kube-reserved-cgroup={missing}");
    refused(
        &[&place, "--enforce-node-allocatable=pods,kube-reserved", "--kube-reserved=cpu=100m"],
        &format!("Failed to enforce Kube Reserved Cgroup Limits on \"{missing}\": cgroup ["),
    );
    refused(
        &[&place, "--enforce-node-allocatable=kube-reserved-compressible"],
        "cgroup is not configured properly",
    );
    refused(
        &["--system-reserved=memory=100Ti"],
        "invalid Node Allocatable configuration. Resource \"memory\" has a reservation of ",
    );
    refused(
        &["--qos-reserved=cpu=10%"],
        "--qos-reserved value failed to parse: cannot reserve \"cpu\" resource",
    );
    refused(&["--exit-on-lock-contention"], "cannot exit on lock file contention: no lock file specified");
}

/// An agent with a lock, a cgroup of its own and a score, until somebody else wants the lock.
#[test]
fn an_agent_keeps_its_place_and_makes_room_for_the_next_one() {
    let runtime = Runtime::start();
    let place = format!("{}/agent", runtime.cgroup_root);
    let file = runtime.dir.join("agent.lock");
    let flag = format!("--lock-file={}", file.display());
    let mut agent = Agent::start_with_flags(&runtime, &[&flag, "--exit-on-lock-contention"], |config| {
        config["kubeletCgroups"] = json!(place);
        // Not every machine of tests lets a score be lowered.
        config["oomScoreAdj"] = json!(500);
    });
    let own = |name: &str| fs::read_to_string(format!("/proc/{}/{name}", agent.pid().expect("a process")));
    wait("the agent to be in its cgroup", SLOW, || {
        let cgroups = own("cgroup").map_err(|error| error.to_string())?;
        let inside = cgroups.lines().filter(|line| line.ends_with(&format!(":{place}"))).count();
        if inside > 0 { Ok(()) } else { Err(cgroups) }
    });
    assert_eq!(own("oom_score_adj").expect("a score").trim(), "500");
    fs::File::open(&file).expect("open the lock file");
    assert!(agent.wait_ended().success(), "{}", agent.log_tail());
    assert!(agent.log().contains("another process wants the lock file"));
    cgroups_below(&place).iter().for_each(|dir| fs::remove_dir(dir).expect("nobody is in the cgroup"));
}
