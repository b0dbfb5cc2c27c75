//! `serverTLSBootstrap`: the secure port shows a certificate that the cluster signed for the node's addresses.

use std::process::{Command, Stdio};

use crate::support::cluster::Cluster;
use crate::support::cluster_node::ClusterNode;
use crate::support::harness::{SLOW, wait};
use serde_json::{Value, json};

/// What somebody who trusts only the cluster's authority sees at that address.
fn handshake(cluster: &Cluster, address: &str) -> Result<String, String> {
    let output = Command::new("openssl")
        .args(["s_client", "-connect", address, "-verify_return_error", "-verify_ip"])
        .arg(address.rsplit_once(':').expect("a port").0)
        .arg("-CAfile")
        .arg(cluster.ca())
        .stdin(Stdio::null())
        .output()
        .expect("run openssl");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    // Where nothing was shown, nothing was wrong with it either.
    match said.contains("BEGIN CERTIFICATE") && said.contains("Verify return code: 0 (ok)") {
        true => Ok(said),
        false => Err(format!("{said}{}", String::from_utf8_lossy(&output.stderr))),
    }
}

#[test]
fn the_secure_port_shows_what_the_cluster_signed() {
    let cluster = Cluster::shared();
    let mut member = ClusterNode::join_with(cluster, "served", |config| {
        config["serverTLSBootstrap"] = json!(true);
        config["address"] = json!("0.0.0.0");
    });
    let node = cluster.wait_for("node", "", "served", SLOW, |node| {
        node["status"]["addresses"].as_array().is_some_and(|a| a.iter().any(|a| a["type"] == "InternalIP"))
    });
    let addresses = node["status"]["addresses"].as_array().cloned().unwrap_or_default();
    let ip = addresses.iter().find(|a| a["type"] == "InternalIP").and_then(|a| a["address"].as_str());
    let address = format!("{}:{}", ip.expect("an address"), member.agent().port);
    assert!(handshake(cluster, &address).is_err(), "nobody has signed anything yet");

    let request = wait("the node's request", SLOW, || {
        let all = cluster.kubectl_json(&["get", "certificatesigningrequests"]);
        let wanted = |request: &&Value| {
            request["spec"]["signerName"] == "kubernetes.io/kubelet-serving"
                && request["spec"]["username"] == "system:node:served"
        };
        let found = all["items"].as_array().into_iter().flatten().find(wanted).cloned();
        found.ok_or("there is none")
    });
    cluster.approve(request["metadata"]["name"].as_str().expect("a name"));
    wait("a handshake that the cluster vouches for", SLOW, || handshake(cluster, &address));

    // The next agent has it from the disk.
    member.node.agent.kill9();
    member.node.agent.restart();
    wait("the same after a restart", SLOW, || handshake(cluster, &address));
    let requests = cluster.kubectl_json(&["get", "certificatesigningrequests"]);
    let mine = |request: &&Value| {
        request["spec"]["username"] == "system:node:served"
            && request["spec"]["signerName"] == "kubernetes.io/kubelet-serving"
    };
    assert_eq!(requests["items"].as_array().into_iter().flatten().filter(mine).count(), 1);
}
