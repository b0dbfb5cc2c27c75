//! Pods and claims for volumes of the driver, and what is left of them.

use serde_json::{Value, json};

use super::Driver;
use crate::support::cluster::Cluster;
use crate::support::cluster_node::{ClusterNode, merge};
use crate::support::harness::{SLOW, mounts_below, wait};

/// With what its CSIDriver object says, and settings of the driver itself. `role`: see [`Driver::start`].
pub fn start(role: &'static str, member: &ClusterNode, name: &str, spec: Value, settings: Value) -> Driver {
    let object = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": name}, "spec": spec,
    });
    member.cluster.create("default", &object.to_string());
    let dir = member.node.runtime.dir.join("driver");
    let registry = member.agent().root_dir().join("plugins_registry");
    let driver = Driver::start(role, dir, &registry, name, settings);
    wait_registered(member, name);
    driver
}

pub fn wait_registered(member: &ClusterNode, name: &str) -> Value {
    let listed = |object: &Value| {
        object["spec"]["drivers"].as_array().is_some_and(|all| all.iter().any(|one| one["name"] == name))
    };
    member.cluster.wait_for("csinode", "", member.name, SLOW, listed)
}

/// A claim that is bound by hand to a volume of the driver.
pub fn claim(cluster: &Cluster, namespace: &str, name: &str, driver: &str, volume: Value) {
    let pv_name = format!("{namespace}-{name}");
    let mut spec = json!({
        "capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteMany"], "storageClassName": "",
        "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": {"namespace": namespace, "name": name},
        "csi": {"driver": driver, "volumeHandle": pv_name, "volumeAttributes": {"kind": "directory"}},
    });
    let (mode, class) = (volume["volumeMode"].clone(), volume["storageClassName"].clone());
    merge(&mut spec, volume);
    let volume =
        json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": pv_name}, "spec": spec});
    cluster.create(namespace, &volume.to_string());
    let mut spec = json!({
        "accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": pv_name,
        "resources": {"requests": {"storage": "1Mi"}},
    });
    if !mode.is_null() {
        spec["volumeMode"] = mode;
    }
    if !class.is_null() {
        spec["storageClassName"] = class;
    }
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec});
    cluster.create(namespace, &claim.to_string());
    cluster.wait_for("pvc", namespace, name, SLOW, |claim| claim["status"]["phase"] == "Bound");
}

pub fn pod(member: &ClusterNode, name: &str, script: &str, volume: Value) -> String {
    let mut volume = volume;
    volume["name"] = json!("data");
    let mut pod: Value = serde_json::from_str(&member.pod(
        name,
        script,
        json!({"volumes": [volume], "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 1}),
    ))
    .unwrap();
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    pod.to_string()
}

pub fn claimed(name: &str) -> Value {
    json!({"persistentVolumeClaim": {"claimName": name}})
}

pub fn running(pod: &Value) -> bool {
    pod["status"]["phase"] == "Running"
}

/// What of drivers is left on the node: mounts and records.
pub fn left(member: &ClusterNode) -> Vec<String> {
    let root = member.agent().root_dir();
    let csi = root.join("plugins/kubernetes.io/csi");
    let mut found: Vec<String> =
        mounts_below(&csi).iter().map(|mount| format!("mount {}", mount.display())).collect();
    let mut todo = vec![csi];
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => todo.push(entry.path()),
                _ => found.push(format!("file {}", entry.path().display())),
            }
        }
    }
    found
}

#[track_caller]
pub fn wait_nothing_left(member: &ClusterNode) {
    wait("nothing of the driver to be left", 3 * SLOW, || match left(member) {
        left if left.is_empty() => Ok(()),
        left => Err(left.join("\n")),
    });
    member.node.wait_clean(3 * SLOW);
}

pub fn why(member: &ClusterNode, pod: &str) -> String {
    String::from_utf8_lossy(&member.agent().command(&["why", pod]).stdout).into_owned()
}
