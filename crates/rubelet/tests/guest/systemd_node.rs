//! Rubelet as a unit of a booted systemd, with the systemd driver on a kernel whose cgroups are all version 2, and
//! with a real journal.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::guest::{Form, Guest, GuestNode};
use crate::support::harness::wait;
use crate::support::pods::{
    UNTIL_TERM, container, container_id, is_running, manifest, restarts, shell_with, uid,
};

/// One boot for everything: it is slow.
#[test]
fn a_pod_lives_in_its_slice_and_outlives_the_unit() {
    let node = GuestNode::start_with(Guest::start(Form::Uml), |config| {
        config["enableSystemLogQuery"] = json!(true);
        // The port listens on the guest's loopback only. The agent warns about it, and that is a line to find.
        config["authentication"] = json!({ "anonymous": { "enabled": true } });
    });
    a_pod_of_a_unit(&node, 1);
    lines_of_the_journal_have_priorities(&node);
    a_log_query_is_answered_from_the_journal(&node);
    a_killed_agent_is_started_again_and_its_pod_keeps_running(&node);
}

#[test]
fn a_pod_lives_in_its_slice_on_an_emulated_machine() {
    let node = GuestNode::start(Guest::start(Form::Qemu));
    a_pod_of_a_unit(&node, 4);
}

fn a_pod_of_a_unit(node: &GuestNode, cpus: u64) {
    let resources = json!({
        "resources": { "requests": { "cpu": "500m", "memory": "32Mi" }, "limits": { "cpu": "700m", "memory": "64Mi" } }
    });
    let spec = json!({
        "terminationGracePeriodSeconds": 2,
        "containers": [shell_with("c", UNTIL_TERM, resources)],
    });
    // `systemctl start` has come back, so the agent has said READY=1.
    let state = "ActiveState,SubState,Type,NRestarts";
    assert_eq!(
        node.unit("kubelet", state),
        ["ActiveState=active", "NRestarts=0", "SubState=running", "Type=notify"]
    );

    node.write_manifest("web", &manifest("web", spec));
    let pod = node.wait_pod("web", is_running);
    let slice = format!("kubepods-burstable-pod{}.slice", uid(&pod).replace('-', "_"));
    let dir = format!("/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/{slice}");
    assert_eq!(cgroup_files(node, &dir), ["70000 100000", &weight(512), "67108864"]);
    let container_dir = format!("{dir}/cri-containerd-{}.scope", container_id(&pod, "c"));
    assert_eq!(cgroup_files(node, &container_dir), ["70000 100000", &weight(512), "67108864"]);
    let memory = allocatable_memory(node);
    assert_eq!(
        cgroup_files(node, "/sys/fs/cgroup/kubepods.slice"),
        ["max 100000", &weight(1024 * (cpus * 1000 - RESERVED_MILLI_CPU) / 1000), &memory]
    );
    let pids = "expr $(sort -n /proc/sys/kernel/pid_max /proc/sys/kernel/threads-max | head -n 1) - 40";
    let allowed = node.guest.run("cat /sys/fs/cgroup/kubepods.slice/pids.max");
    assert_eq!(allowed.trim(), node.guest.run(pids).trim());
    let reserved = node.guest.run("cat /sys/fs/cgroup/system.slice/cpu.weight");
    assert_eq!(reserved.trim(), weight(1024 * RESERVED_MILLI_CPU / 1000));
    let kernel = node.guest.run("cd /proc/sys && cat vm/overcommit_memory kernel/panic kernel/panic_on_oops");
    assert_eq!(kernel.split_whitespace().collect::<Vec<_>>(), ["1", "10", "1"]);
    // systemd knows of these values, so it does not take them back at its next `daemon-reload`.
    node.guest.run("systemctl daemon-reload");
    assert_eq!(cgroup_files(node, &dir), ["70000 100000", &weight(512), "67108864"]);
    let of_pods = cgroup_files(node, "/sys/fs/cgroup/kubepods.slice");
    assert_eq!(of_pods.last(), Some(&memory));

    node.guest.run("systemctl stop kubelet");
    let ended = "ActiveState,ExecMainStatus,Result";
    assert_eq!(node.unit("kubelet", ended), ["ActiveState=inactive", "ExecMainStatus=0", "Result=success"]);
    let processes = node.guest.run(&format!("cat {container_dir}/cgroup.procs"));
    assert!(!processes.is_empty(), "the container ended with the unit");
    node.guest.run("systemctl start kubelet");
    let found = node.wait_pod("web", is_running);
    assert_eq!(container_id(&found, "c"), container_id(&pod, "c"));
    assert_eq!(container(&found, "c")["state"], container(&pod, "c")["state"]);
    assert_eq!(restarts(&found, "c"), 0);

    node.remove_manifest("web");
    wait("the pod's slice and directory to go", node.patience(), || {
        let left = node.guest.run(&format!(
            "ls -d {dir} /var/lib/kubelet/pods/* /var/log/pods/* 2>/dev/null
            systemctl list-units --no-legend '{slice}' 'cri-containerd-*.scope' | cat"
        ));
        if left.trim().is_empty() { Ok(()) } else { Err(left) }
    });
    let failed = node.guest.run("systemctl --failed --no-legend --plain");
    assert_eq!(failed, "", "units failed");
}

/// What the agent warns about at its start.
const WARNING: &str = "EVERYBODY who can reach";

fn lines_of_the_journal_have_priorities(node: &GuestNode) {
    let text = node.guest.run("journalctl _SYSTEMD_UNIT=kubelet.service --output json --no-pager");
    let lines: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    let message = |line: &Value| line["MESSAGE"].as_str().expect("a text").to_owned();
    assert!(lines.len() > 10, "{text}");
    for line in &lines {
        // Each begins with its severity, as klog's do.
        let priority = match message(line).chars().next() {
            Some('E') => "3",
            Some('W') => "4",
            Some('I') => "6",
            other => panic!("{other:?} begins {line}"),
        };
        assert_eq!(line["PRIORITY"], priority, "{line}");
    }
    for (priority, words) in [("4", WARNING), ("6", "] ")] {
        let found = lines.iter().find(|line| line["PRIORITY"] == priority && message(line).contains(words));
        assert!(found.is_some(), "no line of priority {priority} with {words:?}: {text}");
    }
}

/// The answer of the secure port of the node to a GET: head and body.
fn get(node: &GuestNode, path: &str) -> (String, String) {
    let request = format!("GET {path} HTTP/1.1\\r\\nHost: guest\\r\\nConnection: close\\r\\n\\r\\n");
    let answer = node.guest.run(&format!(
        "printf '{request}' | /share/openssl s_client -quiet -connect 127.0.0.1:10250 2>/dev/null"
    ));
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{path}: {answer:?}"));
    (head.to_owned(), body.to_owned())
}

fn a_log_query_is_answered_from_the_journal(node: &GuestNode) {
    node.guest.share(Path::new("/usr/bin/openssl"), "openssl");
    let said = "journalctl --utc --no-pager --output=short-precise --unit=";
    for (query, command) in [
        ("query=containerd".to_owned(), format!("{said}containerd")),
        (
            "query=kubelet&tailLines=1&pattern=EVERYBODY".to_owned(),
            format!("{said}kubelet | grep {WARNING:?} | tail -n 1"),
        ),
        (
            "query=kubelet&boot=0&tailLines=1&pattern=Started".to_owned(),
            format!("{said}kubelet | grep Started | tail -n 1"),
        ),
    ] {
        let told = node.guest.run(&command);
        let first = told.lines().next().unwrap_or_else(|| panic!("{command}: nothing")).to_owned();
        let (head, body) = get(node, &format!("/logs/?{query}"));
        assert!(head.starts_with("HTTP/1.1 200"), "{query}: {head}");
        assert!(body.lines().any(|line| line == first), "{query}: no {first:?} in {body:?}");
        if query.contains("tailLines=1") {
            assert_eq!(body.matches(" guest ").count(), 1, "{query}: {body:?}");
        }
    }
    let (head, body) = get(node, "/logs/?query=kubelet&sinceTime=2100-01-01T00:00:00Z");
    assert!(head.starts_with("HTTP/1.1 200") && !body.contains(WARNING), "{head} {body:?}");
}

fn a_killed_agent_is_started_again_and_its_pod_keeps_running(node: &GuestNode) {
    let spec =
        json!({ "terminationGracePeriodSeconds": 2, "containers": [shell_with("c", UNTIL_TERM, json!({}))] });
    node.write_manifest("kept", &manifest("kept", spec));
    let pod = node.wait_pod("kept", is_running);
    let scope = format!("cri-containerd-{}.scope", container_id(&pod, "c"));
    let processes = || {
        node.guest.run(&format!(
            "cat /sys/fs/cgroup$(systemctl show --property ControlGroup --value {scope})/cgroup.procs"
        ))
    };
    let before = processes();
    assert!(!before.trim().is_empty(), "no process in {scope}");
    let main = || node.guest.run("systemctl show --property MainPID --value kubelet").trim().to_owned();
    let killed = main();
    node.guest.run(&format!("kill -KILL {killed}"));
    wait("systemd to start the agent again", node.patience(), || {
        let state = node.unit("kubelet", "ActiveState,NRestarts,SubState");
        match state[..] == ["ActiveState=active", "NRestarts=1", "SubState=running"] && main() != killed {
            true => Ok(()),
            false => Err(state.join(" ")),
        }
    });
    let found = node.wait_pod("kept", is_running);
    assert_eq!(container_id(&found, "c"), container_id(&pod, "c"));
    assert_eq!(container(&found, "c")["state"], container(&pod, "c")["state"]);
    assert_eq!((restarts(&found, "c"), processes()), (0, before));
    node.remove_manifest("kept");
    wait("the pod to go", node.patience(), || {
        let left = node.guest.run("ls -d /var/lib/kubelet/pods/* /var/log/pods/* 2>/dev/null | cat");
        if left.trim().is_empty() { Ok(()) } else { Err(left) }
    });
}

/// What the configuration of the guest's node reserves.
const RESERVED_MILLI_CPU: u64 = 200;
const RESERVED_KIB: u64 = 16 << 10;

/// What is left of the machine's memory, in whole pages.
fn allocatable_memory(node: &GuestNode) -> String {
    let total = node.guest.run("sed -n 's/^MemTotal: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo");
    let total: u64 = total.trim().parse().expect("the machine's memory");
    ((total - RESERVED_KIB) / 4 * 4096).to_string()
}

/// How the kernel's version 2 counts what Kubernetes calls shares.
fn weight(shares: u64) -> String {
    (1 + (shares - 2) * 9999 / 262_142).to_string()
}

fn cgroup_files(node: &GuestNode, dir: &str) -> Vec<String> {
    let text = node.guest.run(&format!("cd {dir} && cat cpu.max cpu.weight memory.max"));
    text.lines().map(str::to_owned).collect()
}
