//! Events about the node itself.

use std::fs;

use crate::support::cluster::Cluster;
use crate::support::cluster_node::ClusterNode;
use crate::support::harness::{Runtime, SLOW, wait};
use serde_json::Value;

#[test]
fn a_resolver_file_beyond_the_limits_is_told_at_the_start() {
    let cluster = Cluster::shared_bare();
    let runtime = Runtime::start();
    let path = runtime.dir.join("resolv.conf");
    let domains: Vec<String> = (0..40).map(|n| format!("d{n}.example")).collect();
    fs::write(&path, format!("nameserver 127.0.0.1\nsearch {}\n", domains.join(" "))).expect("write");
    let adjust = |config: &mut Value| config["resolvConf"] = path.to_string_lossy().into();
    let member = ClusterNode::join_on(runtime, cluster, "resolver-limits", &[], adjust);

    let selector = format!("involvedObject.kind=Node,involvedObject.name={}", member.name);
    let event = wait("the Event", SLOW, || {
        let events =
            cluster.kubectl_json(&["get", "events", "--namespace=default", "--field-selector", &selector]);
        let found = events["items"].as_array().into_iter().flatten();
        let reasons: Vec<_> = found.clone().map(|event| event["reason"].clone()).collect();
        found
            .clone()
            .find(|event| event["reason"] == "CheckLimitsForResolvConf")
            .cloned()
            .ok_or(format!("{reasons:?}"))
    });
    assert_eq!(event["type"], "Warning", "{event}");
    let message = event["message"].as_str().unwrap_or_default();
    let shown = path.to_string_lossy();
    assert!(message.contains(&*shown) && message.contains("more than 29 domains"), "{message}");
}
