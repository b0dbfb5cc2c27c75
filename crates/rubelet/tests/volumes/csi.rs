//! Volumes of a storage driver, on a real API server, with a driver process of ours. See `csi_driver`.
//!
//! The attach-detach controller is Kubernetes' own; what an external attacher would do is done by the test.

use std::path::PathBuf;

use crate::support::cluster::Cluster;
use crate::support::cluster_node::{ClusterNode, STAYS};
use crate::support::csi_driver::scene::{
    claim, claimed, pod, running, wait_nothing_left, wait_registered, why,
};
use crate::support::csi_driver::{self, Driver};
use crate::support::harness::{SLOW, loop_devices_below, wait, wait_until};
use serde_json::{Value, json};

const ROLE: &str = "csi::a_driver_registers_and_goes";

fn start(member: &ClusterNode, name: &str, spec: Value) -> Driver {
    csi_driver::scene::start(ROLE, member, name, spec, json!({}))
}

#[test]
fn a_driver_registers_and_goes() {
    csi_driver::be_the_driver_if_asked();
    let member = ClusterNode::join(Cluster::shared(), "csi-registers");
    let name = "registers.test.example";
    let spec = json!({"attachRequired": false, "nodeAllocatableUpdatePeriodSeconds": 10});
    let mut driver = start(&member, name, spec);
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

    // It takes more by now, and is asked again.
    std::fs::write(driver.dir.join("most-volumes"), "9").unwrap();
    member.cluster.wait_for("csinode", "", member.name, SLOW, |object| {
        object["spec"]["drivers"][0]["allocatable"]["count"] == 9
    });
    driver.stop();
    member.cluster.wait_for("csinode", "", member.name, SLOW, |object| {
        object["spec"]["drivers"].as_array().is_none_or(Vec::is_empty)
    });
    driver.restart();
    wait_registered(&member, name);
    driver.wait_done("Registered", 2);
}

/// What the cluster's controller asks the driver's attacher for.
#[track_caller]
fn wait_attachment(cluster: &Cluster, driver: &str) -> String {
    wait("an attachment to be asked for", 2 * SLOW, || {
        let all = cluster.kubectl_json(&["get", "volumeattachments", "-o", "json"]);
        let all = all["items"].as_array().cloned().unwrap_or_default();
        let ours = all.into_iter().find(|one| one["spec"]["attacher"] == driver);
        ours.and_then(|one| Some(one["metadata"]["name"].as_str()?.to_owned())).ok_or("none")
    })
}

/// What the attacher says.
fn told(cluster: &Cluster, attachment: &str, status: Value) {
    let patch = json!({"status": status}).to_string();
    let of = ["patch", "volumeattachment", attachment, "--subresource=status", "--type=merge", "-p", &patch];
    cluster.kubectl(&of);
}

#[test]
fn a_shared_claim_is_attached_and_staged_once() {
    let member = ClusterNode::join(Cluster::shared(), "csi-shared");
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
    let attachment = wait_attachment(cluster, name);
    wait_until("the pod to say what it waits for", SLOW, || why(&member, "a").contains("not attached"));
    assert_eq!(driver.begun("Stage"), 0, "nothing is staged before it is attached");
    told(cluster, &attachment, json!({"attached": true, "attachmentMetadata": {"device": "d1"}}));
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
    let member = ClusterNode::join_with(Cluster::shared(), "csi-inline", |config| {
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

/// The cluster's controller attaches it as the driver's: both must speak of the same attachment.
#[test]
fn a_volume_that_a_driver_took_over_is_the_drivers() {
    const MIGRATED: &str = "storage.alpha.kubernetes.io/migrated-plugins";
    let mut member = ClusterNode::join(Cluster::shared(), "csi-migrated");
    let (cluster, name) = (member.cluster, "cinder.csi.openstack.org");
    let driver = start(&member, name, json!({"attachRequired": true}));
    wait_registered(&member, name);
    let namespace = cluster.namespace("csi-migrated");
    let runs = |pod_name: &str, source: Value, handle: &str| {
        cluster.create_pod(&namespace, &pod(&member, pod_name, STAYS, source));
        let attachment = wait_attachment(cluster, name);
        told(cluster, &attachment, json!({"attached": true}));
        cluster.wait_for("pod", &namespace, pod_name, 3 * SLOW, running);
        assert_eq!(driver.last("Publish")["volume"], handle);
        cluster.delete("pod", &namespace, pod_name);
        cluster.wait_gone("pod", &namespace, pod_name, 2 * SLOW);
        cluster.wait_gone("volumeattachment", "", &attachment, 3 * SLOW);
    };
    runs("own", json!({"cinder": {"volumeID": "disk-1"}}), "disk-1");
    claim(cluster, &namespace, "c", name, json!({"csi": null, "cinder": {"volumeID": "disk-2"}}));
    runs("claimed", claimed("c"), "disk-2");
    wait_nothing_left(&member);

    // What an agent of another version has said is set right.
    cluster.kubectl(&[
        "annotate",
        "csinode",
        member.name,
        &format!("{MIGRATED}=kubernetes.io/other"),
        "--overwrite",
    ]);
    member.node.agent.restart();
    cluster.wait_for("csinode", "", member.name, SLOW, |object| {
        let said = object["metadata"]["annotations"][MIGRATED].as_str().unwrap_or_default();
        said.contains("kubernetes.io/cinder") && !said.contains("other")
    });
}

/// Killed while the driver is at work, and after its work with the answer still out, for each of the four calls.
#[test]
fn a_killed_agent_finishes_what_it_began() {
    let mut member = ClusterNode::join(Cluster::shared(), "csi-killed");
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
    let member = ClusterNode::join(Cluster::shared(), "csi-away");
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
    let mut member = ClusterNode::join(Cluster::shared(), "csi-record");
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

/// Two pods share the device of a driver. Each has it mapped and pinned, also while the agent is dead, and the driver is
/// asked to let go of it only after that.
#[test]
fn a_device_is_given_to_the_container() {
    let mut member = ClusterNode::join(Cluster::shared(), "csi-block");
    let (cluster, name) = (member.cluster, "block.test.example");
    let driver = start(&member, name, json!({"attachRequired": false}));
    let namespace = cluster.namespace("csi-block");
    claim(cluster, &namespace, "c", name, json!({"volumeMode": "Block"}));
    let devices = member.agent().root_dir().join("plugins/kubernetes.io/csi/volumeDevices");
    let volume = format!("{namespace}-c");
    let mut maps = Vec::new();
    for (id, word) in [("p", "written"), ("q", "read")] {
        let write =
            if id == "p" { "echo written >/dev/disk && sync" } else { "head -c 7 /dev/disk | grep written" };
        let script = format!("test -b /dev/disk && {write} && echo {word} && {STAYS}");
        let mut wanted: Value = serde_json::from_str(&pod(&member, id, &script, claimed("c"))).unwrap();
        let container = &mut wanted["spec"]["containers"][0];
        container["volumeMounts"] = json!([]);
        container["volumeDevices"] = json!([{"name": "data", "devicePath": "/dev/disk"}]);
        let made = cluster.create_pod(&namespace, &wanted.to_string());
        maps.push(devices.join(&volume).join("dev").join(made["metadata"]["uid"].as_str().unwrap()));
        cluster.wait_for("pod", &namespace, id, 3 * SLOW, running);
        let image = driver.dir.join(format!("volumes/{volume}.img"));
        wait_until("the container's words to be on the device", SLOW, || {
            std::fs::read(&image).is_ok_and(|bytes| bytes.starts_with(b"written"))
        });
    }
    let pinned = |member: &ClusterNode| -> Vec<PathBuf> {
        let found = loop_devices_below(&member.agent().root_dir().join("plugins"));
        found.into_iter().map(|(_, map)| map).collect()
    };
    let mut found = pinned(&member);
    found.sort();
    let mut expect = maps.clone();
    expect.sort();
    assert_eq!(found, expect);

    member.node.agent.kill9();
    cluster.kubectl(&["delete", "pod", "p", "--namespace", &namespace, "--wait=false"]);
    assert_eq!(pinned(&member).len(), 2, "the kernel holds it");
    member.node.agent.restart();
    cluster.wait_gone("pod", &namespace, "p", 3 * SLOW);
    assert_eq!(pinned(&member), maps[1..]);
    assert_eq!(driver.done("Unstage"), 0, "the other pod has it");
    cluster.delete("pod", &namespace, "q");
    cluster.wait_gone("pod", &namespace, "q", 3 * SLOW);
    driver.wait_done("Unstage", 1);
    wait_nothing_left(&member);
    assert_eq!(pinned(&member), Vec::<PathBuf>::new());
}

/// The node is full, and whoever placed the pod did not know. It has waited for two minutes then.
#[test]
fn a_pod_is_rejected_when_the_node_takes_no_more_volumes() {
    let member = ClusterNode::join(Cluster::shared(), "csi-full");
    let (cluster, name) = (member.cluster, "full.test.example");
    let spec = json!({"attachRequired": true, "nodeAllocatableUpdatePeriodSeconds": 36000});
    let driver = start(&member, name, spec);
    let namespace = cluster.namespace("csi-full");
    claim(cluster, &namespace, "c", name, json!({}));
    cluster.create_pod(&namespace, &pod(&member, "p", STAYS, claimed("c")));
    let attachment = wait_attachment(cluster, name);
    std::fs::write(driver.dir.join("most-volumes"), "3").unwrap();
    let error = json!({"message": "no more", "errorCode": 8});
    told(cluster, &attachment, json!({"attached": false, "attachError": error}));
    let pod = cluster.wait_for("pod", &namespace, "p", 4 * SLOW, |pod| pod["status"]["phase"] == "Failed");
    assert_eq!(pod["status"]["reason"], "VolumeAttachmentLimitExceeded", "{pod:#}");
    assert_eq!(
        pod["status"]["message"],
        "Pod was rejected: Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[data], \
         unattached volumes=[data], failed to process volumes=[]: context deadline exceeded"
    );
    // Its own time for that is hours away: whoever places the next pod knows at once.
    cluster.wait_for("csinode", "", member.name, 2 * SLOW, |object| {
        object["spec"]["drivers"][0]["allocatable"]["count"] == 3
    });
    assert_eq!((driver.begun("Stage"), driver.begun("Publish")), (0, 0));
    cluster.delete("pod", &namespace, "p");
    cluster.wait_gone("pod", &namespace, "p", 3 * SLOW);
    cluster.wait_for("node", "", member.name, 2 * SLOW, |node| {
        node["status"]["volumesInUse"].as_array().is_none_or(Vec::is_empty)
    });
    wait_nothing_left(&member);
}

/// The label is a mount option only where the kernel has SELinux on.
#[test]
fn labels_are_mount_options_where_there_are_labels() {
    let member = ClusterNode::join_with(Cluster::shared(), "csi-labels", |config| {
        config["featureGates"]["SELinuxMount"] = json!(true);
    });
    let (cluster, name) = (member.cluster, "labels.test.example");
    let driver = start(&member, name, json!({"attachRequired": false, "seLinuxMount": true}));
    let namespace = cluster.namespace("csi-labels");
    claim(cluster, &namespace, "c", name, json!({"mountOptions": ["noatime"]}));
    let mut wanted: Value = serde_json::from_str(&pod(&member, "p", STAYS, claimed("c"))).unwrap();
    wanted["spec"]["securityContext"] = json!({"seLinuxOptions": {"level": "s0:c1,c2"}});
    cluster.create_pod(&namespace, &wanted.to_string());
    driver.wait_done("Stage", 1);
    let flags = driver.last("Stage")["mountFlags"].clone();
    let labelled =
        flags.as_array().unwrap().iter().any(|flag| flag.as_str().unwrap().starts_with("context="));
    assert_eq!(labelled, std::path::Path::new("/sys/fs/selinux/enforce").exists(), "{flags}");
    assert_eq!(flags[0], "noatime");
    cluster.wait_for("pod", &namespace, "p", 3 * SLOW, running);
    cluster.delete("pod", &namespace, "p");
    cluster.wait_gone("pod", &namespace, "p", 3 * SLOW);
    wait_nothing_left(&member);
}

/// How a volume is to be mounted is the driver's to do; what of it a container sees, and whose its files are, is ours.
#[test]
fn options_reach_the_driver_and_sub_paths_the_container() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    let member = ClusterNode::join(Cluster::shared(), "csi-options");
    let (cluster, name) = (member.cluster, "options.test.example");
    let driver = start(&member, name, json!({"attachRequired": false, "fsGroupPolicy": "File"}));
    let namespace = cluster.namespace("csi-options");
    let handle = format!("{namespace}-c");
    let source = json!({"driver": name, "volumeHandle": handle, "fsType": "xfs"});
    claim(cluster, &namespace, "c", name, json!({"mountOptions": ["noatime", "nodiratime"], "csi": source}));
    // As a pod of this group has left it, but for one file.
    let data = driver.dir.join("volumes").join(&handle);
    std::fs::create_dir_all(&data).unwrap();
    std::fs::write(data.join("below"), "of somebody").unwrap();
    chown(data.join("below"), None, Some(99)).unwrap();
    chown(&data, None, Some(4321)).unwrap();
    std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o2770)).unwrap();
    let group_of = || std::fs::metadata(data.join("below")).unwrap().gid();

    let pod_with = |id: &str, script: &str, policy: &str| {
        let mut wanted: Value = serde_json::from_str(&pod(&member, id, script, claimed("c"))).unwrap();
        wanted["spec"]["securityContext"] = json!({"fsGroup": 4321, "fsGroupChangePolicy": policy});
        let container = &mut wanted["spec"]["containers"][0];
        container["env"] = json!([{"name": "WHO", "value": "me"}]);
        container["volumeMounts"] = json!([
            {"name": "data", "mountPath": "/one", "subPath": "a/one"},
            {"name": "data", "mountPath": "/two", "subPathExpr": "$(WHO)/two"},
        ]);
        cluster.create_pod(&namespace, &wanted.to_string());
        cluster.wait_for("pod", &namespace, id, 3 * SLOW, running);
    };
    pod_with("first", &format!("echo 1 >/one/text; echo 2 >/two/text; {STAYS}"), "OnRootMismatch");
    for call in ["Stage", "Publish"] {
        let seen = driver.last(call);
        assert_eq!(
            (&seen["mountFlags"], &seen["fsType"]),
            (&json!(["noatime", "nodiratime"]), &json!("xfs")),
            "{call}"
        );
    }
    let is =
        |name: &str, text: &str| std::fs::read_to_string(data.join(name)).is_ok_and(|found| found == text);
    wait_until("the container's words", SLOW, || is("a/one/text", "1\n") && is("me/two/text", "2\n"));
    assert_eq!(group_of(), 99, "the root was the group's: nothing below it is looked at");
    cluster.delete("pod", &namespace, "first");
    cluster.wait_gone("pod", &namespace, "first", 3 * SLOW);
    driver.wait_done("Unstage", 1);
    pod_with("second", STAYS, "Always");
    assert_eq!(group_of(), 4321);
    cluster.delete("pod", &namespace, "second");
    cluster.wait_gone("pod", &namespace, "second", 3 * SLOW);
    wait_nothing_left(&member);
    assert!(is("below", "of somebody"));
}
