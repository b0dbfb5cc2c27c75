//! A runtime whose texts about itself are megabytes long: the Node still goes through, and so does the log.

use std::collections::BTreeMap;

use crate::support::cluster::Cluster;
use crate::support::cluster_node::{ClusterNode, condition, ready};
use crate::support::cri_proxy::{Fault, Proxy, Rule, Script, When};
use crate::support::harness::{Runtime, SLOW};
use serde_json::Value;

const LONG: usize = 3 << 20;
/// A line of the log has a message and a few values.
const LINE: usize = 100 << 10;

/// A field of a message, with its length.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    let mut length = content.len();
    while length >= 0x80 {
        bytes.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
    bytes.extend_from_slice(content);
    bytes
}

fn answered(methods: &'static [&'static str], message: Vec<u8>) -> Rule {
    Rule::new(methods, When::Always, Fault::Answered(message.leak()))
}

/// `StatusResponse`: the network is ready, the runtime is not, and says why at length.
fn status(reason: &str) -> Vec<u8> {
    let condition = |kind: &str, is_true: bool, reason: &str| {
        let status = if is_true { vec![2 << 3, 1] } else { Vec::new() };
        let parts =
            [field(1, kind.as_bytes()), status, field(3, reason.as_bytes()), field(4, reason.as_bytes())];
        field(1, &parts.concat())
    };
    let conditions = [condition("RuntimeReady", false, reason), condition("NetworkReady", true, "")];
    field(1, &conditions.concat())
}

/// `VersionResponse`
fn version(text: &str) -> Vec<u8> {
    [field(1, b"0.1.0"), field(2, b"containerd"), field(3, text.as_bytes()), field(4, b"v1")].concat()
}

#[test]
fn megabytes_about_the_runtime_do_not_hold_up_the_node() {
    let long = "x".repeat(LONG);
    let runtime = Runtime::start();
    let proxy = Proxy::start(&runtime);
    let rules = vec![answered(&["Status"], status(&long)), answered(&["Version"], version(&long))];
    proxy.play(Script { seed: 1, rules });
    let endpoint = proxy.endpoint();
    let adjust = |config: &mut Value| config["containerRuntimeEndpoint"] = endpoint.into();
    let member = ClusterNode::join_on(runtime, Cluster::shared_bare(), "long-texts", &[], adjust);

    let says = |node: &Value| {
        let message =
            condition(node, "Ready").and_then(|ready| ready["message"].as_str()).unwrap_or_default();
        message.contains("reason:xxx") && message.contains("message:xxx")
    };
    let node = member.cluster.wait_for("node", "", member.name, SLOW, |node| !ready(node) && says(node));
    let version = node["status"]["nodeInfo"]["containerRuntimeVersion"].as_str().unwrap_or_default();
    assert!(version.starts_with("containerd://xxx") && version.ends_with("bytes left out)"), "{version}");

    // What comes after it goes through as well.
    proxy.quiet();
    member.cluster.wait_for("node", "", member.name, SLOW, ready);
    let log = member.agent().log();
    let longest: BTreeMap<usize, &str> = log.lines().map(|line| (line.len(), line)).collect();
    let (length, line) = longest.last_key_value().expect("a line");
    assert!(*length < LINE, "{length}: {}", &line[..line.floor_char_boundary(400)]);
    assert!(log.contains("xxx"), "the log tells of the runtime's trouble");
}
