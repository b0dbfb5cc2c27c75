//! Rubelet as a unit of a booted systemd, with the systemd driver on a kernel whose cgroups are all version 2.

use serde_json::json;

use crate::support::guest::{Form, Guest, GuestNode};
use crate::support::harness::wait;
use crate::support::pods::{
    UNTIL_TERM, container, container_id, is_running, manifest, restarts, shell_with, uid,
};

#[test]
fn a_pod_lives_in_its_slice_and_outlives_the_unit() {
    let node = GuestNode::start(Guest::start(Form::Uml));
    a_pod_of_a_unit(&node, 1);
}

/// One boot for everything: it is slow.
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
