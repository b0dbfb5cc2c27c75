//! Volumes of a storage driver in trouble or in growth: calls that never end, pods that go meanwhile, volumes that become
//! larger, what their driver tells of them. On a real API server, with a driver process of ours. See `csi_driver`.

use crate::support::cluster::Cluster;
use crate::support::cluster_node::{ClusterNode, STAYS, has};
use crate::support::csi_driver;
use crate::support::csi_driver::scene::{claim, claimed, pod, running, start, wait_nothing_left, why};
use crate::support::harness::{SLOW, wait};
use serde_json::{Value, json};

const ROLE: &str = "csi_calls::containers_of_a_deleted_pod_stop_while_a_call_hangs";

/// One pod for each call of its driver that never ends: each says what it waits for, and a hundred others come and go.
/// The deadline of a call is two minutes.
#[test]
fn calls_that_hang_hurt_only_their_pods() {
    const CALLS: [&str; 4] = ["Stage", "Publish", "Unpublish", "Unstage"];
    let member = ClusterNode::join(Cluster::shared(), "csi-hangs");
    let (cluster, name) = (member.cluster, "hangs.test.example");
    let driver = start(ROLE, &member, name, json!({"attachRequired": false}), json!({}));
    let namespace = cluster.namespace("csi-hangs");
    let (claim_of, id_of) =
        (|call: &str| call.to_lowercase(), |call: &str| format!("{namespace}-{}", call.to_lowercase()));
    let create = |pod_name: &str, claim: &str| {
        cluster.create_pod(&namespace, &pod(&member, pod_name, STAYS, claimed(claim)));
    };
    let delete = |pod_name: &str| {
        cluster.kubectl(&["delete", "pod", pod_name, "--namespace", &namespace, "--wait=false"]);
    };
    CALLS.iter().for_each(|call| claim(cluster, &namespace, &claim_of(call), name, json!({})));
    claim(cluster, &namespace, "free", name, json!({}));
    for call in ["Unpublish", "Unstage"] {
        create(&claim_of(call), &claim_of(call));
        cluster.wait_for("pod", &namespace, &claim_of(call), 3 * SLOW, running);
    }
    CALLS.iter().for_each(|call| driver.fault(&format!("{call}.{}", id_of(call)), "before"));
    for call in ["Unpublish", "Unstage"] {
        delete(&claim_of(call));
    }
    for call in ["Stage", "Publish"] {
        create(&claim_of(call), &claim_of(call));
    }
    CALLS.iter().for_each(|call| driver.wait_hanging(call, &id_of(call)));
    // Unstaging is the node's: its pod is gone, and the next one with the volume waits.
    cluster.wait_gone("pod", &namespace, "unstage", 3 * SLOW);
    create("unstage", "unstage");
    let waits = "its volumes are being set up: data";
    for (pod_name, words) in [
        ("stage", waits),
        ("publish", waits),
        ("unpublish", "its volumes are being unmounted: data"),
        ("unstage", waits),
    ] {
        wait(&format!("{pod_name} to say what it waits for"), SLOW, || match why(&member, pod_name) {
            said if said.contains(words) => Ok(()),
            // On a slow machine its deadline is over by now, and the volume was staged again.
            _ if pod_name == "unstage" && running(&cluster.pod(&namespace, pod_name)) => Ok(()),
            said => Err(said),
        });
    }
    hundred_others(&member, &namespace);
    for (call, pod_name, reason, expect) in [
        ("Stage", "stage", "FailedMount", "MountVolume.MountDevice failed for volume"),
        ("Publish", "publish", "FailedMount", "MountVolume.SetUp failed for volume"),
        ("Unpublish", "unpublish", "FailedKillPod", "UnmountVolume.TearDown failed for volume"),
    ] {
        wait(&format!("the deadline of {call} to be told"), 3 * SLOW, || {
            let events = cluster.events(&namespace, pod_name);
            let told = events.iter().any(|event| {
                let text = event["message"].as_str().unwrap_or_default();
                event["reason"] == reason && text.contains(expect) && text.contains("code = DeadlineExceeded")
            });
            if told { Ok(()) } else { Err(format!("{events:#?}")) }
        });
    }
    CALLS.iter().for_each(|call| driver.heal(&format!("{call}.{}", id_of(call))));
    cluster.wait_gone("pod", &namespace, "unpublish", 5 * SLOW);
    for pod_name in ["stage", "publish", "unstage"] {
        cluster.wait_for("pod", &namespace, pod_name, 5 * SLOW, running);
        delete(pod_name);
    }
    for pod_name in ["stage", "publish", "unstage"] {
        cluster.wait_gone("pod", &namespace, pod_name, 5 * SLOW);
    }
    wait_nothing_left(&member);
}

/// In four times: what a node takes by default leaves room for no more. Every other one has a volume of the driver.
fn hundred_others(member: &ClusterNode, namespace: &str) {
    const TIMES: usize = 4;
    const AT_ONCE: usize = 25;
    let cluster = member.cluster;
    for round in 0..TIMES {
        let batch = format!("batch=b{round}");
        let pods = (0..AT_ONCE).map(|number| {
            let volume = if number % 2 == 0 { claimed("free") } else { json!({"emptyDir": {}}) };
            let mut one: Value =
                serde_json::from_str(&pod(member, &format!("p{round}-{number}"), STAYS, volume)).unwrap();
            one["metadata"]["labels"] = json!({"batch": format!("b{round}")});
            one["spec"]["hostNetwork"] = json!(true);
            one
        });
        let list = json!({"apiVersion": "v1", "kind": "List", "items": pods.collect::<Vec<_>>()});
        cluster.create(namespace, &list.to_string());
        let all = |verb: &[&str], wanted: &str| {
            let fixed = ["pods", "--namespace", namespace, "--selector", &batch, wanted, "--timeout=600s"];
            cluster.kubectl(&[verb, &fixed[..]].concat());
        };
        all(&["wait"], "--for=jsonpath={.status.phase}=Running");
        all(&["delete"], "--wait=true");
    }
}

/// A driver that wants to be asked again, and then does not answer: its pod can be deleted all the same.
#[test]
fn containers_of_a_deleted_pod_stop_while_a_call_hangs() {
    csi_driver::be_the_driver_if_asked();
    let member = ClusterNode::join_with(Cluster::shared(), "csi-leaves", |config| {
        config["syncFrequency"] = json!("1s");
    });
    let (cluster, name) = (member.cluster, "leaves.test.example");
    let spec = json!({"attachRequired": false, "requiresRepublish": true});
    let driver = start(ROLE, &member, name, spec, json!({}));
    let namespace = cluster.namespace("csi-leaves");
    for id in ["runs", "waits"] {
        claim(cluster, &namespace, id, name, json!({}));
    }
    cluster.create_pod(&namespace, &pod(&member, "runs", STAYS, claimed("runs")));
    cluster.wait_for("pod", &namespace, "runs", 3 * SLOW, running);
    let (runs, waits) = (format!("{namespace}-runs"), format!("{namespace}-waits"));
    driver.fault(&format!("Publish.{runs}"), "before");
    driver.wait_hanging("Publish", &runs);
    cluster.kubectl(&["delete", "pod", "runs", "--namespace", &namespace, "--wait=false"]);
    cluster.wait_for("pod", &namespace, "runs", 3 * SLOW, |pod| {
        !pod["status"]["containerStatuses"][0]["state"]["terminated"].is_null()
    });
    assert_eq!(driver.hanging("Publish", &runs), 1, "the containers stopped although the call is at work");
    assert_eq!(driver.begun("Unpublish"), 0, "nothing is taken away under a call");
    driver.heal(&format!("Publish.{runs}"));
    cluster.wait_gone("pod", &namespace, "runs", 3 * SLOW);

    // Staging is the node's: the pod has nothing of it yet, and need not wait.
    driver.fault(&format!("Stage.{waits}"), "before");
    cluster.create_pod(&namespace, &pod(&member, "waits", STAYS, claimed("waits")));
    driver.wait_hanging("Stage", &waits);
    cluster.delete("pod", &namespace, "waits");
    cluster.wait_gone("pod", &namespace, "waits", 3 * SLOW);
    assert_eq!(driver.hanging("Stage", &waits), 1, "gone although the call is at work");
    driver.heal(&format!("Stage.{waits}"));
    wait_nothing_left(&member);
}

/// A server dies behind one pod's mount of a volume, whose files are being given to a group: that pod says so, others have
/// the volume meanwhile, and the agent ends when it is told to.
#[test]
fn a_dead_server_behind_a_volume_holds_up_its_own_pod_only() {
    let mut member = ClusterNode::join(Cluster::shared(), "csi-dead");
    let (cluster, name) = (member.cluster, "dead.test.example");
    let spec = json!({"attachRequired": false, "fsGroupPolicy": "File"});
    let mut driver = start(ROLE, &member, name, spec, json!({}));
    let namespace = cluster.namespace("csi-dead");
    claim(cluster, &namespace, "c", name, json!({}));
    let create = |member: &ClusterNode, pod_name: &str| {
        let mut one: Value = serde_json::from_str(&pod(member, pod_name, STAYS, claimed("c"))).unwrap();
        one["spec"]["securityContext"] = json!({"fsGroup": 4711});
        cluster.create_pod(&namespace, &one.to_string());
    };
    let fault = format!("Publish.{namespace}-c");
    driver.fault(&fault, "dead");
    create(&member, "hung");
    driver.wait_done("Publish", 1);
    driver.heal(&fault);

    // Another pod has the volume, and lets go of it.
    create(&member, "other");
    cluster.wait_for("pod", &namespace, "other", 3 * SLOW, running);
    cluster.delete("pod", &namespace, "other");
    cluster.wait_gone("pod", &namespace, "other", 3 * SLOW);
    assert!(!running(&cluster.pod(&namespace, "hung")));

    // Its thread is in the kernel, and no reason to stay.
    let ended = member.node.agent.terminate();
    assert!(ended.success(), "{ended}");
    member.node.agent.restart();
    wait("the pod to say that its volume hangs", 3 * SLOW, || {
        let events = cluster.events(&namespace, "hung");
        let told = events.iter().any(|event| {
            let text = event["message"].as_str().unwrap_or_default();
            event["reason"] == "FailedMount" && text.contains("made no progress for")
        });
        if told { Ok(()) } else { Err(format!("{events:#?}")) }
    });
    create(&member, "other");
    cluster.wait_for("pod", &namespace, "other", 3 * SLOW, running);

    // Nothing is taken away under the walk. When the server is given up it ends, and the pod can go.
    let unpublished = driver.begun("Unpublish");
    cluster.kubectl(&["delete", "pod", "hung", "--namespace", &namespace, "--wait=false"]);
    wait("the pod to be torn down", 3 * SLOW, || match why(&member, "hung") {
        said if said.contains("its volumes are being unmounted: data") => Ok(()),
        said => Err(said),
    });
    assert_eq!(driver.begun("Unpublish"), unpublished);
    driver.restart();
    cluster.wait_gone("pod", &namespace, "hung", 3 * SLOW);
    assert!(running(&cluster.pod(&namespace, "other")), "it has not noticed");
    cluster.delete("pod", &namespace, "other");
    cluster.wait_gone("pod", &namespace, "other", 3 * SLOW);
    wait_nothing_left(&member);
}

/// What somebody wants, and what a resizer of the cluster does then, in its order: it says that it is at it before what
/// stands behind the claim is larger, and then that it is its node's turn. A node that looked in between and knew nothing
/// of a resizer would take it for an older one, and do everything itself.
fn grow(cluster: &Cluster, namespace: &str, name: &str, size: &str) {
    let patch = |kind: &[&str], patch: Value| {
        let patch = patch.to_string();
        cluster
            .kubectl(&[&["patch"], kind, &["--namespace", namespace, "--type=merge", "-p", &patch]].concat());
    };
    let stage = |stage: &str, conditions: Value| {
        json!({"status": {
            "allocatedResources": {"storage": size}, "allocatedResourceStatuses": {"storage": stage},
            "conditions": conditions,
        }})
    };
    patch(&["pvc", name], json!({"spec": {"resources": {"requests": {"storage": size}}}}));
    let status = ["pvc", name, "--subresource=status"];
    patch(&status, stage("ControllerResizeInProgress", json!([{"type": "Resizing", "status": "True"}])));
    patch(&["pv", &format!("{namespace}-{name}")], json!({"spec": {"capacity": {"storage": size}}}));
    let pending = json!([{"type": "FileSystemResizePending", "status": "True"}]);
    patch(&status, stage("NodeResizePending", pending));
}

#[track_caller]
fn wait_grown(cluster: &Cluster, namespace: &str, name: &str, size: &str) {
    let claim = cluster
        .wait_for("pvc", namespace, name, 3 * SLOW, |claim| claim["status"]["capacity"]["storage"] == size);
    assert!(claim["status"]["allocatedResourceStatuses"].is_null(), "{claim:#}");
    let conditions = claim["status"]["conditions"].as_array().cloned().unwrap_or_default();
    assert!(conditions.is_empty(), "{claim:#}");
}

#[track_caller]
fn wait_event(cluster: &Cluster, namespace: &str, object: &str, reason: &str, words: &str) {
    let about = format!("involvedObject.name={object}");
    wait(&format!("the event {reason} of {object}"), 2 * SLOW, || {
        let list =
            cluster.kubectl_json(&["get", "events", "--namespace", namespace, "--field-selector", &about]);
        let events = list["items"].as_array().cloned().unwrap_or_default();
        let told = events.iter().any(|event| {
            event["reason"] == reason && event["message"].as_str().is_some_and(|text| text.contains(words))
        });
        if told { Ok(()) } else { Err(format!("{events:#?}")) }
    });
}

#[test]
fn volumes_grow_under_pods_and_before_them() {
    let mut member = ClusterNode::join_with(Cluster::shared(), "csi-grows", |config| {
        config["syncFrequency"] = json!("1s");
    });
    let (cluster, name) = (member.cluster, "grows.test.example");
    let driver = start(ROLE, &member, name, json!({"attachRequired": false}), json!({"expand": true}));
    let namespace = cluster.namespace("csi-grows");
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "csi-grows"},
        "provisioner": name, "allowVolumeExpansion": true,
    });
    cluster.create("default", &class.to_string());
    claim(cluster, &namespace, "c", name, json!({"storageClassName": "csi-grows"}));
    cluster.create_pod(&namespace, &pod(&member, "p", STAYS, claimed("c")));
    cluster.wait_for("pod", &namespace, "p", 3 * SLOW, running);
    assert_eq!(driver.begun("Expand"), 0);

    // Under the pod.
    grow(cluster, &namespace, "c", "2Mi");
    wait_grown(cluster, &namespace, "c", "2Mi");
    let call = driver.last("Expand");
    assert_eq!(call["bytes"], 2 << 20);
    assert!(call["target"].as_str().is_some_and(|path| path.ends_with("/mount")), "{call}");
    assert!(call["staging"].as_str().is_some_and(|path| path.ends_with("/globalmount")), "{call}");
    let told = format!("MountVolume.NodeExpandVolume succeeded for volume \"{namespace}-c\" csi-grows");
    for object in ["p", "c"] {
        wait_event(cluster, &namespace, object, "FileSystemResizeSuccessful", &told);
    }

    // A driver that fails is asked again.
    driver.fault("Expand", "fail 13");
    grow(cluster, &namespace, "c", "3Mi");
    let failed = format!(
        "NodeExpandVolume.NodeExpandVolume failed for volume \"{namespace}-c\" : Expander.NodeExpand failed to expand the \
         volume : rpc error: code = Internal"
    );
    wait_event(cluster, &namespace, "p", "VolumeResizeFailed", &failed);
    cluster.wait_for("pvc", &namespace, "c", 2 * SLOW, |claim| has(claim, "NodeResizeError"));
    assert!(running(&cluster.pod(&namespace, "p")));
    driver.heal("Expand");
    wait_grown(cluster, &namespace, "c", "3Mi");

    // One that can't do it at all is not, until somebody asks anew.
    driver.fault("Expand", "fail 11");
    grow(cluster, &namespace, "c", "4Mi");
    cluster.wait_for("pvc", &namespace, "c", 3 * SLOW, |claim| {
        claim["status"]["allocatedResourceStatuses"]["storage"] == "NodeResizeInfeasible"
    });
    driver.heal("Expand");
    grow(cluster, &namespace, "c", "4Mi");
    wait_grown(cluster, &namespace, "c", "4Mi");

    // Killed while the driver is at work, and after its work with the answer still out.
    for (when, size) in [("before", "5Mi"), ("after", "6Mi")] {
        let (begun, done) = (driver.begun("Expand"), driver.done("Expand"));
        driver.fault("Expand", when);
        grow(cluster, &namespace, "c", size);
        driver.wait_begun("Expand", begun + 1);
        if when == "after" {
            driver.wait_done("Expand", done + 1);
        }
        member.node.agent.kill9();
        driver.heal("Expand");
        member.node.agent.restart();
        wait_grown(cluster, &namespace, "c", size);
    }

    // Before the next pod.
    cluster.delete("pod", &namespace, "p");
    cluster.wait_gone("pod", &namespace, "p", 3 * SLOW);
    driver.fault("Expand", "fail 14");
    grow(cluster, &namespace, "c", "7Mi");
    cluster.create_pod(&namespace, &pod(&member, "q", STAYS, claimed("c")));
    let failed = format!("MountVolume.Setup failed while expanding volume for volume \"{namespace}-c\"");
    wait_event(cluster, &namespace, "q", "FailedMount", &failed);
    assert!(
        !running(&cluster.pod(&namespace, "q")),
        "it waits for its volume to be as large as it should be"
    );
    driver.heal("Expand");
    cluster.wait_for("pod", &namespace, "q", 3 * SLOW, running);
    assert_eq!(driver.last("Expand")["bytes"], 7 << 20);
    wait_grown(cluster, &namespace, "c", "7Mi");
    cluster.delete("pod", &namespace, "q");
    cluster.wait_gone("pod", &namespace, "q", 3 * SLOW);
    wait_nothing_left(&member);
}

/// What the agent tells of the volume behind this claim.
fn told_of(member: &ClusterNode, claim: &Value) -> Result<Value, String> {
    let answer = member.agent().get("/stats/summary").map_err(|error| error.to_string())?;
    let summary: Value = serde_json::from_slice(&answer.body).map_err(|error| error.to_string())?;
    let pods = summary["pods"].as_array().into_iter().flatten();
    let mut volumes = pods.flat_map(|pod| pod["volume"].as_array().into_iter().flatten());
    volumes.find(|volume| volume["pvcRef"] == *claim).cloned().ok_or_else(|| summary.to_string())
}

#[test]
fn a_driver_tells_how_full_and_how_well_its_volumes_are() {
    let member = ClusterNode::join_with(Cluster::shared(), "csi-tells", |config| {
        config["volumeStatsAggPeriod"] = json!("1s");
        config["featureGates"]["CSIVolumeHealth"] = json!(true);
    });
    let (cluster, name) = (member.cluster, "tells.test.example");
    let settings = json!({"stats": true, "condition": true});
    let driver = start(ROLE, &member, name, json!({"attachRequired": false}), settings);
    let namespace = cluster.namespace("csi-tells");
    claim(cluster, &namespace, "c", name, json!({}));
    cluster.create_pod(&namespace, &pod(&member, "p", STAYS, claimed("c")));
    cluster.wait_for("pod", &namespace, "p", 3 * SLOW, running);

    let reference = json!({"name": "c", "namespace": namespace});
    let [[total, used, free], [inodes, inodes_used, inodes_free]] = csi_driver::FIGURES;
    let expect = json!({
        "name": "data", "pvcRef": reference, "volumeHealthStats": {"abnormal": false},
        "capacityBytes": total, "usedBytes": used, "availableBytes": free,
        "inodes": inodes, "inodesUsed": inodes_used, "inodesFree": inodes_free,
    });
    wait("the figures of the driver", 3 * SLOW, || {
        let mut told = told_of(&member, &reference)?;
        if let Some(fields) = told.as_object_mut() {
            fields.remove("time");
        }
        if told == expect { Ok(()) } else { Err(told.to_string()) }
    });
    let target = driver.last("Stats")["target"].clone();
    assert!(target.as_str().is_some_and(|path| path.ends_with(&format!("/{namespace}-c/mount"))), "{target}");
    let wait_metric = |name: &str, value: i64| {
        let labels = format!("namespace={namespace:?},persistentvolumeclaim=\"c\"");
        let line = format!("kubelet_volume_stats_{name}{{{labels}}} {value}");
        wait(&line, 3 * SLOW, || {
            let text = member.agent().get("/metrics").map_err(|error| error.to_string())?.text();
            if text.lines().any(|found| found == line) { Ok(()) } else { Err(text) }
        });
    };
    wait_metric("capacity_bytes", total);
    wait_metric("inodes_free", inodes_free);
    wait_metric("health_status_abnormal", 0);

    std::fs::write(driver.dir.join("trouble"), "a cable is torn").unwrap();
    wait_metric("health_status_abnormal", 1);
    wait_event(cluster, &namespace, "p", "VolumeConditionAbnormal", "Volume data: a cable is torn");

    // While it does not answer, the last figures are told, and its pod can go.
    driver.fault("Stats", "before");
    let id = format!("{namespace}-c");
    wait("the driver to be asked", 3 * SLOW, || {
        let told = told_of(&member, &reference)?;
        if driver.hanging("Stats", &id) > 0 { Ok(()) } else { Err(told.to_string()) }
    });
    let told = told_of(&member, &reference).expect("figures");
    assert_eq!(told["capacityBytes"], total, "{told}");
    assert_eq!(told["volumeHealthStats"]["abnormal"], true, "{told}");
    cluster.delete("pod", &namespace, "p");
    cluster.wait_gone("pod", &namespace, "p", 3 * SLOW);
    wait_nothing_left(&member);
}
