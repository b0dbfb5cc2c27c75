//! A whole node: a private containerd with an agent on it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::agent::Agent;
use super::machine::{cgroups_below, loop_devices_below, mounts_below, port_maps_of};
use super::runtime::Runtime;
use super::waiting::wait;

/// The agent is dropped first, and then the runtime below it.
#[derive(Debug)]
pub struct Node {
    pub agent: Agent,
    pub runtime: Runtime,
}

impl Node {
    #[track_caller]
    pub fn start() -> Node {
        Node::start_with(|_| {})
    }

    /// With changes to the agent's KubeletConfiguration.
    #[track_caller]
    pub fn start_with(adjust: impl FnOnce(&mut Value)) -> Node {
        let runtime = Runtime::start();
        Node { agent: Agent::start(&runtime, adjust), runtime }
    }

    /// Waits until the static pod of that manifest name is as wanted, and gives it.
    #[track_caller]
    pub fn wait_pod(&self, name: &str, deadline: Duration, wanted: impl Fn(&Value) -> bool) -> Value {
        wait(&format!("the pod {name}"), deadline, || {
            let pod = self.agent.pod(name)?;
            if wanted(&pod) { Ok(pod) } else { Err(format!("its status: {}", pod["status"])) }
        })
    }

    /// Waits until nothing of any pod is left.
    #[track_caller]
    pub fn wait_clean(&self, deadline: Duration) {
        wait("every trace of the pods to go", deadline, || match self.leftovers() {
            left if left.is_empty() => Ok(()),
            left => Err(left.join("\n  ")),
        });
    }

    /// Whatever pods left behind: in the runtime, on disk, as mounts, cgroups, addresses or port maps. What
    /// belongs to the node itself doesn't count.
    pub fn leftovers(&self) -> Vec<String> {
        let mut left = Vec::new();
        left.extend(self.runtime.containers().into_iter().map(|id| format!("container {id}")));
        left.extend(
            self.runtime.tasks().into_iter().map(|task| format!("task {} ({})", task.id, task.status)),
        );
        let root = self.agent.root_dir();
        let own = |mount: &Path| mount == root || mount == self.runtime.dir;
        let mounts = mounts_below(&self.runtime.dir).into_iter().filter(|mount| !own(mount));
        left.extend(mounts.map(|mount| format!("mount {}", mount.display())));
        let pinned = loop_devices_below(&root.join("plugins")).into_iter();
        left.extend(
            pinned.map(|(device, of)| format!("loop device {} over {}", device.display(), of.display())),
        );
        left.extend(entries(&root.join("pods")).map(|name| format!("pod directory {name}")));
        left.extend(entries(&self.agent.logs_dir()).map(|name| format!("logs {name}")));
        left.extend(linked_logs(&self.agent.logs_dir()));
        let pods = cgroups_below(&self.runtime.cgroup_root).into_iter().filter(|path| is_pod_cgroup(path));
        left.extend(pods.map(|path| format!("cgroup {}", path.display())));
        let addresses = self.runtime.dir.join("cni/ipam").join(self.runtime.network());
        let addresses = entries(&addresses).filter(|name| name.starts_with("10."));
        left.extend(addresses.map(|address| format!("pod address {address}")));
        let ports = port_maps_of(self.runtime.network());
        left.extend(ports.into_iter().map(|rule| format!("port map {rule}")));
        left
    }
}

fn entries(dir: &Path) -> impl Iterator<Item = String> + use<> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
}

/// Links for log shippers, in a directory that all agents of the machine share.
fn linked_logs(logs: &Path) -> Vec<String> {
    let links = fs::read_dir("/var/log/containers").into_iter().flatten().flatten();
    let ours = links.filter(|link| fs::read_link(link.path()).is_ok_and(|target| target.starts_with(logs)));
    ours.map(|link| format!("log link {}", link.path().display())).collect()
}

/// A pod's own cgroup: the levels above belong to the node, and none below lives without it.
fn is_pod_cgroup(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("pod") || name.contains("-pod")
}
