//! `serverTLSBootstrap`: the secure port shows a certificate that the cluster signed for the node's addresses.

use std::fs;
use std::path::Path;
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

    let first = wait("the node's request", SLOW, || requests(cluster).pop().ok_or("there is none"));
    cluster.approve(&first);
    wait("a handshake that the cluster vouches for", SLOW, || handshake(cluster, &address));

    // The next agent has it from the disk.
    member.node.agent.kill9();
    member.node.agent.restart();
    wait("the same after a restart", SLOW, || handshake(cluster, &address));
    assert_eq!(requests(cluster), [first.as_str()]);
    assert_eq!(replaced(&member), Some(0.0), "the first one has replaced none");

    // One without the node's names is replaced, and its age is counted.
    member.node.agent.kill9();
    another_certificate(&member.node.runtime.dir.join("pki/kubelet-server-current.pem"));
    member.node.agent.restart();
    let second = wait("another request", SLOW, || {
        requests(cluster).into_iter().find(|name| *name != first).ok_or("there is none")
    });
    cluster.approve(&second);
    wait("a handshake with the new one", SLOW, || handshake(cluster, &address));
    assert_eq!(replaced(&member), Some(1.0));
}

/// The node's requests for a serving certificate.
fn requests(cluster: &Cluster) -> Vec<String> {
    let all = cluster.kubectl_json(&["get", "certificatesigningrequests"]);
    let mine = |request: &&Value| {
        request["spec"]["signerName"] == "kubernetes.io/kubelet-serving"
            && request["spec"]["username"] == "system:node:served"
    };
    let found = all["items"].as_array().into_iter().flatten().filter(mine);
    found.map(|request| request["metadata"]["name"].as_str().expect("a name").to_owned()).collect()
}

/// How many certificates the agent has replaced, by its metrics.
fn replaced(member: &ClusterNode) -> Option<f64> {
    let text = member.agent().get("/metrics").expect("metrics").text();
    let name = "kubelet_certificate_manager_server_rotation_seconds_count ";
    text.lines().find_map(|line| line.strip_prefix(name)?.parse().ok())
}

/// Puts a certificate that names somebody else in the place of the node's.
fn another_certificate(pair: &Path) {
    let (key, certificate) = (pair.with_extension("key"), pair.with_extension("crt"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
        .args(["-subj", "/CN=somebody", "-days", "2", "-keyout"])
        .args([&key, Path::new("-out"), &certificate])
        .output()
        .expect("run openssl");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let text = |path: &Path| fs::read_to_string(path).expect("what openssl made");
    fs::write(pair, text(&certificate) + &text(&key)).expect("replace the certificate");
}
