//! Volumes of a storage driver, on a real API server, with a driver process of ours. See `csi_driver`.
//!
//! The attach-detach controller is Kubernetes' own; what an external attacher would do is done by the test.

// These tests run real processes in real time.
#![allow(clippy::disallowed_methods)]

mod cluster;
mod csi_driver;
mod harness;
mod member;

use std::path::PathBuf;
use std::time::Duration;

use cluster::Cluster;
use csi_driver::Driver;
use harness::{SLOW, mounts_below, wait, wait_until};
use member::{Member, STAYS, merge};
use serde_json::{Value, json};

const ROLE: &str = "a_driver_registers_and_goes";

fn start(member: &Member, name: &str, spec: Value) -> Driver {
    let object = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": name}, "spec": spec,
    });
    member.cluster.create("default", &object.to_string());
    let dir = member.node.runtime.dir.join("driver");
    let registry = member.agent().root_dir().join("plugins_registry");
    let driver = Driver::start(ROLE, dir, &registry, name, json!({}));
    wait_registered(member, name);
    driver
}

fn wait_registered(member: &Member, name: &str) -> Value {
    let listed = |object: &Value| {
        object["spec"]["drivers"].as_array().is_some_and(|all| all.iter().any(|one| one["name"] == name))
    };
    member.cluster.wait_for("csinode", "", member.name, SLOW, listed)
}

/// A claim that is bound by hand to a volume of the driver.
fn claim(cluster: &Cluster, namespace: &str, name: &str, driver: &str, volume: Value) {
    let pv_name = format!("{namespace}-{name}");
    let mut spec = json!({
        "capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteMany"], "storageClassName": "",
        "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": {"namespace": namespace, "name": name},
        "csi": {"driver": driver, "volumeHandle": pv_name, "volumeAttributes": {"kind": "directory"}},
    });
    let mode = volume["volumeMode"].clone();
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
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec});
    cluster.create(namespace, &claim.to_string());
    cluster.wait_for("pvc", namespace, name, SLOW, |claim| claim["status"]["phase"] == "Bound");
}

fn pod(member: &Member, name: &str, script: &str, volume: Value) -> String {
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

fn claimed(name: &str) -> Value {
    json!({"persistentVolumeClaim": {"claimName": name}})
}

fn running(pod: &Value) -> bool {
    pod["status"]["phase"] == "Running"
}

/// What of drivers is left on the node: mounts and records.
fn left(member: &Member) -> Vec<String> {
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
fn wait_nothing_left(member: &Member) {
    wait("nothing of the driver to be left", 3 * SLOW, || match left(member) {
        left if left.is_empty() => Ok(()),
        left => Err(left.join("\n")),
    });
    member.node.wait_clean(3 * SLOW);
}

fn why(member: &Member, pod: &str) -> String {
    String::from_utf8_lossy(&member.agent().command(&["why", pod]).stdout).into_owned()
}

#[test]
fn a_driver_registers_and_goes() {
    csi_driver::be_the_driver_if_asked();
    let member = Member::join(Cluster::shared(), "csi-registers");
    let name = "registers.test.example";
    let mut driver = start(&member, name, json!({"attachRequired": false}));
    let object = wait_registered(&member, name);
    let entry = object["spec"]["drivers"].as_array().unwrap().iter().find(|one| one["name"] == name).unwrap();
    assert_eq!(entry["nodeID"], "node-of-the-driver");
    assert_eq!(entry["allocatable"]["count"], 7);
    assert_eq!(entry["topologyKeys"], json!([format!("topology.{name}/zone")]));
    assert_eq!(object["metadata"]["ownerReferences"][0]["name"], member.name);
    driver.wait_done("Registered", 1);
    assert_eq!(driver.last("Registered")["registered"], true);
    let node = member.cluster.get("node", "", member.name).unwrap();
    let ids = node["metadata"]["annotations"]["csi.volume.kubernetes.io/nodeid"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(ids).unwrap(), json!({name: "node-of-the-driver"}));
    assert_eq!(node["metadata"]["labels"][format!("topology.{name}/zone")], "z");
    member.wait_ready();

    driver.stop();
    member.cluster.wait_for("csinode", "", member.name, SLOW, |object| {
        object["spec"]["drivers"].as_array().is_none_or(Vec::is_empty)
    });
    driver.restart();
    wait_registered(&member, name);
    driver.wait_done("Registered", 2);
}

#[test]
fn a_shared_claim_is_attached_and_staged_once() {
    let member = Member::join(Cluster::shared(), "csi-shared");
    let (cluster, name) = (member.cluster, "shared.test.example");
    let driver = start(&member, name, json!({"attachRequired": true, "podInfoOnMount": true}));
    let namespace = cluster.namespace("csi-shared");
    let secret =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"k": "v"}});
    cluster.create(&namespace, &secret.to_string());
    let reference = json!({"name": "s", "namespace": namespace});
    let handle = format!("{namespace}-c");
    let source = json!({"driver": name, "volumeHandle": handle, "nodeStageSecretRef": reference});
    claim(cluster, &namespace, "c", name, json!({"csi": source}));
    let script = |own: &str, other: &str| {
        format!("echo {own} >/data/{own}; until test -e /data/{other}; do sleep 0.1; done; {STAYS}")
    };
    cluster.create_pod(&namespace, &pod(&member, "a", &script("a", "b"), claimed("c")));
    cluster.create_pod(&namespace, &pod(&member, "b", &script("b", "a"), claimed("c")));
    // It is told to be in use before anybody attaches it.
    let unique = json!(format!("kubernetes.io/csi/{name}^{handle}"));
    cluster.wait_for("node", "", member.name, SLOW, |node| {
        node["status"]["volumesInUse"].as_array().is_some_and(|all| all.contains(&unique))
    });
    let attachment = wait("an attachment to be asked for", 2 * SLOW, || {
        let all = cluster.kubectl_json(&["get", "volumeattachments", "-o", "json"]);
        let all = all["items"].as_array().cloned().unwrap_or_default();
        let ours = all.into_iter().find(|one| one["spec"]["attacher"] == name);
        ours.and_then(|one| Some(one["metadata"]["name"].as_str()?.to_owned())).ok_or("none")
    });
    wait_until("the pod to say what it waits for", SLOW, || why(&member, "a").contains("not attached"));
    assert_eq!(driver.begun("Stage"), 0, "nothing is staged before it is attached");
    let status = r#"{"status": {"attached": true, "attachmentMetadata": {"device": "d1"}}}"#;
    cluster.kubectl(&[
        "patch",
        "volumeattachment",
        &attachment,
        "--subresource=status",
        "--type=merge",
        "-p",
        status,
    ]);
    cluster.wait_for("pod", &namespace, "a", 3 * SLOW, running);
    cluster.wait_for("pod", &namespace, "b", 3 * SLOW, running);
    assert_eq!((driver.done("Stage"), driver.done("Publish")), (1, 2));
    assert_eq!(driver.last("Stage")["publishContext"], json!({"device": "d1"}));
    assert_eq!(driver.last("Stage")["secrets"], json!({"k": "v"}));
    let context = driver.last("Publish")["context"].clone();
    assert_eq!(context["csi.storage.k8s.io/pod.namespace"], json!(namespace));

    cluster.delete("pod", &namespace, "a");
    cluster.wait_gone("pod", &namespace, "a", 2 * SLOW);
    assert_eq!((driver.done("Unpublish"), driver.done("Unstage")), (1, 0), "the other one uses it");
    cluster.delete("pod", &namespace, "b");
    cluster.wait_gone("pod", &namespace, "b", 2 * SLOW);
    driver.wait_done("Unstage", 1);
    cluster.wait_for("node", "", member.name, 2 * SLOW, |node| {
        node["status"]["volumesInUse"].as_array().is_none_or(Vec::is_empty)
    });
    wait_nothing_left(&member);
    assert!(driver.dir.join("volumes").join(&handle).join("a").exists(), "the data stays");
}

#[test]
fn a_volume_of_the_pod_itself_is_published_again_and_again() {
    let member = Member::join_with(Cluster::shared(), "csi-inline", |config| {
        config["syncFrequency"] = json!("1s");
    });
    let (cluster, name) = (member.cluster, "inline.test.example");
    let spec = json!({
        "attachRequired": false, "podInfoOnMount": true, "requiresRepublish": true, "fsGroupPolicy": "File",
        "volumeLifecycleModes": ["Ephemeral"], "tokenRequests": [{"audience": "storage"}],
    });
    let driver = start(&member, name, spec);
    let namespace = cluster.namespace("csi-inline");
    let script = format!("stat -c '%g %a' /data >/data/seen; {STAYS}");
    let source = json!({"csi": {"driver": name, "volumeAttributes": {"a": "1"}}});
    let mut wanted: Value = serde_json::from_str(&pod(&member, "p", &script, source)).unwrap();
    wanted["spec"]["securityContext"] = json!({"fsGroup": 4321});
    cluster.create_pod(&namespace, &wanted.to_string());
    cluster.wait_for("pod", &namespace, "p", 3 * SLOW, running);
    let call = driver.last("Publish");
    assert_eq!(call["context"]["a"], "1");
    assert_eq!(call["context"]["csi.storage.k8s.io/ephemeral"], "true");
    let tokens = call["context"]["csi.storage.k8s.io/serviceAccount.tokens"].as_str().unwrap();
    let tokens: Value = serde_json::from_str(tokens).unwrap();
    assert!(tokens["storage"]["token"].as_str().is_some_and(|token| token.len() > 100));
    let seen = driver.dir.join("volumes").join(call["volume"].as_str().unwrap()).join("seen");
    wait_until("the container to look", SLOW, || {
        std::fs::read_to_string(&seen).is_ok_and(|text| text.starts_with("4321 2"))
    });
    driver.wait_done("Publish", 4);
    // A driver that fails meanwhile takes nothing away.
    driver.fault("Publish", "fail 13");
    let begun = driver.begun("Publish");
    driver.wait_begun("Publish", begun + 2);
    assert!(running(&cluster.pod(&namespace, "p")));
    driver.heal("Publish");
    let done = driver.done("Publish");
    driver.wait_done("Publish", done + 1);
    assert!(cluster.events(&namespace, "p").iter().any(|event| {
        event["reason"] == "FailedMount"
            && event["message"].as_str().is_some_and(|text| text.contains("rpc error: code = Internal"))
    }));
    assert_eq!(driver.begun("Stage"), 0);
    cluster.delete("pod", &namespace, "p");
    cluster.wait_gone("pod", &namespace, "p", 2 * SLOW);
    assert_eq!(driver.done("Unpublish"), 1);
    wait_nothing_left(&member);
}

/// Killed while the driver is at work, and after its work with the answer still out, for each of the four calls.
#[test]
fn a_killed_agent_finishes_what_it_began() {
    let mut member = Member::join(Cluster::shared(), "csi-killed");
    let (cluster, name) = (member.cluster, "killed.test.example");
    let driver = start(&member, name, json!({"attachRequired": false}));
    let namespace = cluster.namespace("csi-killed");
    for (round, (call, when)) in [
        ("Stage", "before"),
        ("Stage", "after"),
        ("Publish", "before"),
        ("Publish", "after"),
        ("Unpublish", "before"),
        ("Unpublish", "after"),
        ("Unstage", "before"),
        ("Unstage", "after"),
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("v{round}");
        claim(cluster, &namespace, &id, name, json!({}));
        let text = pod(&member, &id, &format!("echo {id} >/data/x; {STAYS}"), claimed(&id));
        let coming = matches!(call, "Stage" | "Publish");
        if !coming {
            cluster.create_pod(&namespace, &text);
            cluster.wait_for("pod", &namespace, &id, 3 * SLOW, running);
        }
        let (begun, done) = (driver.begun(call), driver.done(call));
        driver.fault(call, when);
        if coming {
            cluster.create_pod(&namespace, &text);
        } else {
            cluster.kubectl(&["delete", "pod", &id, "--namespace", &namespace, "--wait=false"]);
        }
        driver.wait_begun(call, begun + 1);
        if when == "after" {
            driver.wait_done(call, done + 1);
        }
        member.node.agent.kill9();
        driver.heal(call);
        member.node.agent.restart();
        if coming {
            cluster.wait_for("pod", &namespace, &id, 3 * SLOW, running);
            cluster.kubectl(&["delete", "pod", &id, "--namespace", &namespace, "--wait=false"]);
        }
        cluster.wait_gone("pod", &namespace, &id, 3 * SLOW);
        wait_nothing_left(&member);
        let data = driver.dir.join("volumes").join(format!("{namespace}-{id}/x"));
        assert_eq!(std::fs::read_to_string(data).unwrap(), format!("{id}\n"), "{call} {when}");
    }
}

#[test]
fn a_driver_that_is_away_holds_up_its_own_pod_only() {
    let member = Member::join(Cluster::shared(), "csi-away");
    let (cluster, name) = (member.cluster, "away.test.example");
    let mut driver = start(&member, name, json!({"attachRequired": false}));
    let namespace = cluster.namespace("csi-away");
    claim(cluster, &namespace, "c", name, json!({}));
    cluster.create_pod(&namespace, &pod(&member, "stays", STAYS, claimed("c")));
    cluster.wait_for("pod", &namespace, "stays", 3 * SLOW, running);
    cluster.create_pod(&namespace, &pod(&member, "plain", STAYS, json!({"emptyDir": {}})));
    cluster.wait_for("pod", &namespace, "plain", 3 * SLOW, running);
    driver.stop();
    member.cluster.wait_for("csinode", "", member.name, SLOW, |object| {
        object["spec"]["drivers"].as_array().is_none_or(Vec::is_empty)
    });
    cluster.kubectl(&["delete", "pod", "stays", "--namespace", &namespace, "--wait=false"]);
    let missing = format!("driver name {name} not found in the list of registered CSI drivers");
    wait_until("the pod to say why it stays", 2 * SLOW, || why(&member, "stays").contains(&missing));
    // One that comes waits too, and says so; everybody else is not concerned.
    cluster.create_pod(&namespace, &pod(&member, "late", STAYS, claimed("c")));
    wait_until("the other pod to say what it waits for", 2 * SLOW, || {
        why(&member, "late").contains(&missing)
    });
    cluster.delete("pod", &namespace, "plain");
    cluster.wait_gone("pod", &namespace, "plain", 2 * SLOW);
    assert!(cluster.get("pod", &namespace, "stays").is_some());
    driver.restart();
    cluster.wait_gone("pod", &namespace, "stays", 3 * SLOW);
    cluster.wait_for("pod", &namespace, "late", 3 * SLOW, running);
    cluster.delete("pod", &namespace, "late");
    cluster.wait_gone("pod", &namespace, "late", 3 * SLOW);
    wait_nothing_left(&member);
}

/// A record that can't be read keeps its pod, and a volume that it might name; nothing else.
#[test]
fn a_broken_record_is_told_and_unstages_nothing() {
    let mut member = Member::join(Cluster::shared(), "csi-record");
    let (cluster, name) = (member.cluster, "record.test.example");
    let driver = start(&member, name, json!({"attachRequired": false}));
    let namespace = cluster.namespace("csi-record");
    claim(cluster, &namespace, "c", name, json!({}));
    let mut uids = Vec::new();
    for id in ["a", "b"] {
        let made = cluster.create_pod(&namespace, &pod(&member, id, STAYS, claimed("c")));
        uids.push(made["metadata"]["uid"].as_str().unwrap().to_owned());
        cluster.wait_for("pod", &namespace, id, 3 * SLOW, running);
    }
    let volume = format!("pods/{}/volumes/kubernetes.io~csi/{namespace}-c/vol_data.json", uids[0]);
    let record: PathBuf = member.agent().root_dir().join(volume);
    let good = std::fs::read_to_string(&record).unwrap();
    member.node.agent.kill9();
    std::fs::write(&record, "{").unwrap();
    member.node.agent.restart();
    for id in ["a", "b"] {
        cluster.kubectl(&["delete", "pod", id, "--namespace", &namespace, "--wait=false"]);
    }
    cluster.wait_gone("pod", &namespace, "b", 3 * SLOW);
    wait_until("the pod to say what is wrong", 2 * SLOW, || {
        why(&member, "a").contains("vol_data.json can't be read")
    });
    assert_eq!(driver.done("Unstage"), 0, "the broken record may be of a pod that uses it");
    std::fs::write(&record, good).unwrap();
    cluster.wait_gone("pod", &namespace, "a", 3 * SLOW);
    driver.wait_done("Unstage", 1);
    wait_nothing_left(&member);
}

/// The deadline of a call is two minutes. Meanwhile and after it others come and go.
#[test]
fn a_call_that_hangs_hurts_only_its_pod() {
    let member = Member::join(Cluster::shared(), "csi-hangs");
    let (cluster, name) = (member.cluster, "hangs.test.example");
    let driver = start(&member, name, json!({"attachRequired": false}));
    let namespace = cluster.namespace("csi-hangs");
    for id in ["hung", "free"] {
        claim(cluster, &namespace, id, name, json!({}));
    }
    driver.fault(&format!("Stage.{namespace}-hung"), "before");
    cluster.create_pod(&namespace, &pod(&member, "hung", STAYS, claimed("hung")));
    driver.wait_begun("Stage", 1);
    wait_until("the pod to say what it waits for", SLOW, || why(&member, "hung").contains("data"));
    const OTHERS: usize = 20;
    for number in 0..OTHERS {
        let volume = if number % 2 == 0 { claimed("free") } else { json!({"emptyDir": {}}) };
        cluster.create_pod(&namespace, &pod(&member, &format!("p{number}"), STAYS, volume));
    }
    for number in 0..OTHERS {
        cluster.wait_for("pod", &namespace, &format!("p{number}"), 5 * SLOW, running);
    }
    cluster.kubectl(&[
        "delete",
        "pods",
        "--namespace",
        &namespace,
        "--wait=false",
        "--field-selector=status.phase=Running",
    ]);
    for number in 0..OTHERS {
        cluster.wait_gone("pod", &namespace, &format!("p{number}"), 5 * SLOW);
    }
    let expect = "MountVolume.MountDevice failed for volume";
    wait("the deadline to be told", Duration::from_secs(240), || {
        let events = cluster.events(&namespace, "hung");
        let told = events.iter().any(|event| {
            let text = event["message"].as_str().unwrap_or_default();
            event["reason"] == "FailedMount"
                && text.contains(expect)
                && text.contains("code = DeadlineExceeded")
        });
        if told { Ok(()) } else { Err(format!("{events:#?}")) }
    });
    driver.heal(&format!("Stage.{namespace}-hung"));
    cluster.wait_for("pod", &namespace, "hung", 5 * SLOW, running);
    cluster.delete("pod", &namespace, "hung");
    cluster.wait_gone("pod", &namespace, "hung", 3 * SLOW);
    wait_nothing_left(&member);
}

#[test]
fn a_device_is_given_to_the_container() {
    let member = Member::join(Cluster::shared(), "csi-block");
    let (cluster, name) = (member.cluster, "block.test.example");
    let driver = start(&member, name, json!({"attachRequired": false}));
    let namespace = cluster.namespace("csi-block");
    claim(cluster, &namespace, "c", name, json!({"volumeMode": "Block"}));
    let script = format!("test -b /dev/disk && echo written >/dev/disk && sync && {STAYS}");
    let mut wanted: Value = serde_json::from_str(&pod(&member, "p", &script, claimed("c"))).unwrap();
    let container = &mut wanted["spec"]["containers"][0];
    container["volumeMounts"] = json!([]);
    container["volumeDevices"] = json!([{"name": "data", "devicePath": "/dev/disk"}]);
    cluster.create_pod(&namespace, &wanted.to_string());
    cluster.wait_for("pod", &namespace, "p", 3 * SLOW, running);
    let image = driver.dir.join(format!("volumes/{namespace}-c.img"));
    wait_until("the container's words to be on the device", SLOW, || {
        std::fs::read(&image).is_ok_and(|bytes| bytes.starts_with(b"written"))
    });
    cluster.delete("pod", &namespace, "p");
    cluster.wait_gone("pod", &namespace, "p", 3 * SLOW);
    driver.wait_done("Unstage", 1);
    wait_nothing_left(&member);
}
