//! A node of a cluster: an agent with a kubeconfig, on a containerd of its own.

use serde_json::{Value, json};

use crate::support::cluster::Cluster;
use crate::support::harness::{Agent, Node, Runtime, SLOW};

pub const BUSYBOX: &str = "rubelet.test/busybox:1";
pub const BUSYBOX_2: &str = "rubelet.test/busybox:2";

/// Waits for its end without using a core, and listens.
pub const STAYS: &str = "trap 'exit 0' TERM; sleep 1000 & wait";

pub struct ClusterNode {
    pub node: Node,
    pub cluster: &'static Cluster,
    pub name: &'static str,
}

impl ClusterNode {
    #[track_caller]
    pub fn join(cluster: &'static Cluster, name: &'static str) -> ClusterNode {
        ClusterNode::join_with(cluster, name, |_| {})
    }

    /// With changes to the agent's KubeletConfiguration.
    #[track_caller]
    pub fn join_with(
        cluster: &'static Cluster,
        name: &'static str,
        adjust: impl FnOnce(&mut Value),
    ) -> ClusterNode {
        ClusterNode::join_on(Runtime::start(), cluster, name, &[], adjust)
    }

    /// With a runtime that is there already, and flags on top of a member's own.
    #[track_caller]
    pub fn join_on(
        runtime: Runtime,
        cluster: &'static Cluster,
        name: &'static str,
        more_flags: &[&str],
        adjust: impl FnOnce(&mut Value),
    ) -> ClusterNode {
        let kubeconfig = cluster.node_kubeconfig(name);
        let kubeconfig = kubeconfig.to_string_lossy().into_owned();
        let mut flags = vec!["--kubeconfig", &kubeconfig, "--hostname-override", name];
        flags.extend(more_flags);
        let agent = Agent::start_with_flags(&runtime, &flags, adjust);
        ClusterNode { node: Node { agent, runtime }, cluster, name }
    }

    pub fn agent(&self) -> &Agent {
        &self.node.agent
    }

    pub fn user(&self) -> String {
        format!("system:node:{}", self.name)
    }

    /// Waits until the node is ready and, in a whole cluster, open to the scheduler.
    #[track_caller]
    pub fn wait_ready(&self) {
        self.cluster
            .wait_for("node", "", self.name, SLOW, |node| ready(node) && node["spec"]["taints"].is_null());
    }

    /// A pod of one container that is for this node, with `spec` on top.
    pub fn pod(&self, name: &str, script: &str, spec: Value) -> String {
        let container = json!({"name": "main", "image": BUSYBOX, "command": ["sh", "-c", script], "imagePullPolicy": "Never"});
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"nodeName": self.name, "containers": [container], "terminationGracePeriodSeconds": 5},
        });
        merge(&mut pod["spec"], spec);
        pod.to_string()
    }
}

/// Puts the fields of one object into another.
pub fn merge(into: &mut Value, fields: Value) {
    let (Value::Object(into), Value::Object(fields)) = (into, fields) else { panic!("two objects") };
    into.extend(fields);
}

/// The condition of a pod, node or job.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|c| c["type"] == kind)
}

pub fn has(object: &Value, kind: &str) -> bool {
    condition(object, kind).is_some_and(|c| c["status"] == "True")
}

pub fn ready(object: &Value) -> bool {
    has(object, "Ready")
}
