//! One kubelet as a node of a cluster (etcd and API server, both real): what a user of the API sees, and what it costs
//! the API server.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use crate::alone::configure;
use crate::figures::{Samples, between, soon};
use crate::marks::{Marks, PATIENCE};
use crate::support::cluster::{Cluster, Record};
use crate::support::harness::{Agent, Node, Runtime};
use crate::{Out, Sizes};

const NODE: &str = "bench-node";
const NAMESPACE: &str = "bench";

struct Api {
    // Dropped before the cluster that it is a node of.
    _node: Node,
    cluster: Cluster,
    marks: Marks,
}

pub fn measure(sizes: Sizes, out: &mut Out<'_>) {
    let cluster = Cluster::start_bare();
    let runtime = Runtime::start();
    let kubeconfig = cluster.node_kubeconfig(NODE).to_string_lossy().into_owned();
    let flags = ["--kubeconfig", &kubeconfig, "--hostname-override", NODE];
    let marks = Marks::new(&runtime.dir);
    let agent = Agent::start_with_flags(&runtime, &flags, |config| configure(config, sizes));
    let api = Api { _node: Node { agent, runtime }, cluster, marks };
    api.cluster.kubectl(&["create", "namespace", NAMESPACE]);
    api.cluster.wait_for("node", "", NODE, PATIENCE, is_ready);
    api.singles(sizes.single, out);
}

fn is_ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

impl Api {
    fn singles(&self, count: usize, out: &mut Out<'_>) {
        let watch = self.cluster.record("pod", NAMESPACE, "");
        let [mut running, mut exit, mut gone] = [(); 3].map(|()| Samples::default());
        let user = format!("system:node:{NODE}");
        let before = self.counted(&user);
        for number in 0..count {
            let name = format!("api-{number}");
            self.create(&name);
            let added = next(&watch, &name, |event| event["type"] == "ADDED");
            let shown = next(&watch, &name, |event| event["object"]["status"]["phase"] == "Running");
            running.add(between(added, shown));

            self.marks.ask_to_exit(&name);
            let exited = self.marks.wait(&name, "exit");
            let told = next(&watch, &name, |event| {
                let status = &event["object"]["status"]["containerStatuses"][0];
                !status["state"]["terminated"].is_null() || status["restartCount"].as_u64() > Some(0)
            });
            exit.add(between(exited, told));
            self.marks.wait(&name, "again");
            self.wait_back(&name);

            self.cluster.kubectl(&["delete", "pod", &name, "--namespace", NAMESPACE, "--wait=false"]);
            let asked = next(&watch, &name, |event| {
                event["type"] == "DELETED" || !event["object"]["metadata"]["deletionTimestamp"].is_null()
            });
            gone.add(between(asked, next(&watch, &name, |event| event["type"] == "DELETED")));
        }
        out.put_samples("api running", &running);
        out.put_samples("api exit", &exit);
        out.put_samples("api gone", &gone);
        for (what, after) in self.counted(&user) {
            let made = after - before.get(&what).copied().unwrap_or(0);
            out.put(&format!("api requests: {what}"), made as f64 / count as f64);
        }
    }

    fn create(&self, name: &str) {
        let mut pod = self.marks.pod(name);
        pod["spec"]["nodeName"] = NODE.into();
        pod["metadata"]["namespace"] = NAMESPACE.into();
        let mut kubectl = self
            .cluster
            .kubectl_command(&self.cluster.admin_kubeconfig(), &["create", "-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("start kubectl");
        let mut input = kubectl.stdin.take().expect("its input");
        input.write_all(pod.to_string().as_bytes()).expect("hand over the pod");
        drop(input);
        assert!(kubectl.wait().expect("wait for kubectl").success(), "kubectl create {name}");
    }

    /// Deleting a pod that is not back yet would measure something else.
    fn wait_back(&self, name: &str) {
        let back = |pod: &Value| {
            let status = &pod["status"]["containerStatuses"][0];
            !status["state"]["running"].is_null() && status["restartCount"].as_u64() > Some(0)
        };
        self.cluster.wait_for("pod", NAMESPACE, name, PATIENCE, back);
    }

    /// Requests of the node about pods, and in all but those about the node itself.
    fn counted(&self, user: &str) -> BTreeMap<String, usize> {
        let mut counts: BTreeMap<String, usize> = BTreeMap::from([("all".to_owned(), 0)]);
        for (what, count) in self.cluster.api_request_counts(user) {
            let about = what.split(' ').nth(1).unwrap_or_default();
            if about.starts_with("nodes")
                || about == "leases"
                || what.starts_with("watch")
                || about.is_empty()
            {
                continue;
            }
            *counts.entry("all".to_owned()).or_default() += count;
            *counts.entry(what).or_default() += count;
        }
        counts
    }
}

/// When the watch told of the pod being so.
fn next(watch: &Record, name: &str, wanted: impl Fn(&Value) -> bool) -> SystemTime {
    let deadline = Instant::now() + PATIENCE;
    soon(&format!("the API to tell of {name}"), PATIENCE, || {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let event = watch.next(left)?;
        let at = SystemTime::now();
        (event["object"]["metadata"]["name"] == name && wanted(&event)).then_some(at)
    })
}
