//! What users do with a cluster, on a whole real one: deployments, jobs, daemon sets, drains, names that come again.
//! Each test has a node of its own, and its pods choose that node.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::cluster::{ApiRequest, Cluster, Record};
use crate::support::cluster_node::{BUSYBOX, BUSYBOX_2, ClusterNode, STAYS, condition, has, merge, ready};
use crate::support::harness::{SLOW, run, wait, wait_until};
use serde_json::{Value, json};

/// Many pods on a machine that has other things to do.
const MANY: Duration = Duration::from_secs(300);

fn join(name: &'static str) -> ClusterNode {
    let member = ClusterNode::join(Cluster::shared(), name);
    member.wait_ready();
    member
}

impl ClusterNode {
    fn selector(&self) -> Value {
        json!({"kubernetes.io/hostname": self.name})
    }

    /// What `kubectl create` makes of the arguments, with its pods bound for this node and quick to end.
    fn create(&self, namespace: &str, args: &[&str], spec: Value) -> Value {
        let (args, command) = match args.iter().position(|arg| *arg == "--") {
            Some(at) => args.split_at(at),
            None => (args, &[][..]),
        };
        let dry = [&["create"], args, &["--dry-run=client", "-o", "json"], command].concat();
        let mut object: Value = serde_json::from_str(&self.cluster.kubectl(&dry)).expect("kubectl's JSON");
        merge(&mut object["spec"], spec);
        let pods = json!({"nodeSelector": self.selector(), "terminationGracePeriodSeconds": 5});
        merge(&mut object["spec"]["template"]["spec"], pods);
        self.cluster.create(namespace, &object.to_string())
    }

    fn deployment(&self, namespace: &str, name: &str, replicas: u32) {
        let (image, replicas) = (format!("--image={BUSYBOX}"), format!("--replicas={replicas}"));
        let args = ["deployment", name, &image, &replicas, "--", "sh", "-c", STAYS];
        self.create(namespace, &args, json!({}));
    }

    fn pods(&self, namespace: &str) -> Vec<Value> {
        let list = self.cluster.kubectl_json(&["get", "pods", "--namespace", namespace]);
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// Waits until the namespace has that many pods, all ready and none going, and gives them.
    fn wait_pods(&self, namespace: &str, count: usize) -> Vec<Value> {
        wait(&format!("{count} pods"), MANY, || {
            let pods = self.pods(namespace);
            let fine =
                pods.iter().filter(|p| ready(p) && p["metadata"]["deletionTimestamp"].is_null()).count();
            if fine == count && pods.len() == count {
                Ok(pods)
            } else {
                Err(format!("{fine} of {}", pods.len()))
            }
        })
    }

    /// Whether it was ready in everything that the watch told.
    fn assert_ready_all_along(&self, record: &Record) {
        let news = record.news();
        assert!(!news.is_empty(), "the watch told nothing");
        for event in news {
            assert!(event["type"] != "DELETED" && ready(&event["object"]), "not ready meanwhile: {event}");
        }
    }

    fn tasks_of(&self, pod: &Value) -> Vec<u32> {
        let id = container_id(pod).unwrap_or_default();
        self.node.runtime.tasks().into_iter().filter(|task| task.id == id).map(|task| task.pid).collect()
    }

    /// Ends a pod's container from outside, so that nobody but the runtime can have told the agent.
    fn kill_container(&self, pod: &Value) {
        let pids = self.tasks_of(pod);
        assert_eq!(pids.len(), 1, "no task of {pod}");
        run(Command::new("kill").args(["-9", &pids[0].to_string()]));
    }
}

fn container_id(pod: &Value) -> Option<String> {
    let id = pod["status"]["containerStatuses"][0]["containerID"].as_str()?;
    Some(id.trim_start_matches("containerd://").to_owned())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn uid(object: &Value) -> String {
    text(&object["metadata"]["uid"])
}

/// `kubectl run` gives a pod whose status says all there is to say.
#[test]
fn a_plain_pod_says_everything() {
    let member = join("work-plain");
    let (cluster, namespace) = (member.cluster, member.cluster.namespace("plain"));
    let overrides = json!({"spec": {"nodeSelector": member.selector(), "terminationGracePeriodSeconds": 5}});
    let (image, overrides) = (format!("--image={BUSYBOX}"), format!("--overrides={overrides}"));
    let args =
        ["run", "web", "--namespace", &namespace, &image, &overrides, "--command", "--", "sh", "-c", STAYS];
    cluster.kubectl(&args);
    let pod = cluster.wait_for("pod", &namespace, "web", SLOW, ready);
    let status = &pod["status"];
    assert_eq!(status["phase"], "Running");
    assert_eq!(status["qosClass"], "BestEffort");
    assert_eq!(status["observedGeneration"], pod["metadata"]["generation"]);
    assert!(status["startTime"].is_string(), "{status}");
    assert_eq!(status["podIPs"][0]["ip"], status["podIP"]);
    assert_eq!(status["hostIPs"][0]["ip"], status["hostIP"]);
    let node = cluster.get("node", "", member.name).expect("the node");
    let addresses = node["status"]["addresses"].as_array().cloned().unwrap_or_default();
    let host = addresses.iter().find(|a| a["type"] == "InternalIP").expect("the node's address");
    assert_eq!(status["hostIP"], host["address"]);
    for kind in ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"] {
        let found = condition(&pod, kind).unwrap_or_else(|| panic!("no {kind}: {status}"));
        assert_eq!(found["status"], "True", "{found}");
        assert!(found["lastTransitionTime"].is_string(), "{found}");
        let scheduler = kind == "PodScheduled" && found["observedGeneration"].is_null();
        assert!(scheduler || found["observedGeneration"] == pod["metadata"]["generation"], "{found}");
    }
    let container = &status["containerStatuses"][0];
    assert_eq!((&container["ready"], &container["started"]), (&json!(true), &json!(true)));
    assert_eq!(container["restartCount"], 0);
    cluster.kubectl(&["delete", "pod", "web", "--namespace", &namespace, "--timeout=60s"]);
    member.node.wait_clean(SLOW);
}

#[test]
fn a_deployment_grows_rolls_and_goes() {
    let member = join("work-deploy");
    let (cluster, namespace) = (member.cluster, member.cluster.namespace("deploy"));
    let watched = cluster.record("node", "", member.name);
    let scale = |replicas: u32| {
        let replicas = format!("--replicas={replicas}");
        cluster.kubectl(&["scale", "deployment", "web", "--namespace", &namespace, &replicas]);
    };
    let start = Instant::now();
    member.deployment(&namespace, "web", 20);
    let pods = member.wait_pods(&namespace, 20);
    println!("20 replicas were ready after {:.1?}", start.elapsed());
    let addresses: BTreeSet<String> = pods.iter().map(|pod| text(&pod["status"]["podIP"])).collect();
    assert_eq!(addresses.len(), 20, "each has its own address: {addresses:?}");
    cluster.wait_for("deployment", &namespace, "web", SLOW, |d| d["status"]["availableReplicas"] == 20);

    scale(4);
    let before: BTreeSet<String> = member.wait_pods(&namespace, 4).iter().map(uid).collect();
    let image = format!("busybox={BUSYBOX_2}");
    cluster.kubectl(&["set", "image", "deployment/web", &image, "--namespace", &namespace]);
    cluster.kubectl(&["rollout", "status", "deployment/web", "--namespace", &namespace, "--timeout=90s"]);
    for pod in member.wait_pods(&namespace, 4) {
        assert!(!before.contains(&uid(&pod)), "an old one: {pod}");
        assert_eq!(pod["status"]["containerStatuses"][0]["image"], BUSYBOX_2, "{pod}");
    }

    let start = Instant::now();
    scale(0);
    member.wait_pods(&namespace, 0);
    println!("4 replicas were gone after {:.1?}", start.elapsed());
    member.node.wait_clean(SLOW);
    member.assert_ready_all_along(&watched);
}

#[test]
fn jobs_end_daemons_stay_and_a_drain_empties_the_node() {
    let member = join("work-drain");
    let (cluster, namespace) = (member.cluster, member.cluster.namespace("drain"));
    let watched = cluster.record("node", "", member.name);
    let image = format!("--image={BUSYBOX}");
    member.create(&namespace, &["job", "good", &image, "--", "true"], json!({}));
    member.create(&namespace, &["job", "bad", &image, "--", "false"], json!({"backoffLimit": 1}));
    member.deployment(&namespace, "web", 3);
    let container = json!({"name": "main", "image": BUSYBOX, "command": ["sh", "-c", STAYS]});
    let pods = json!({"nodeSelector": member.selector(), "containers": [container], "terminationGracePeriodSeconds": 5});
    let labels = json!({"app": "daemon"});
    let spec = json!({
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pods},
    });
    let daemons =
        json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "daemon"}, "spec": spec});
    cluster.create(&namespace, &daemons.to_string());

    let good = cluster.wait_for("job", &namespace, "good", SLOW, |job| has(job, "Complete"));
    assert_eq!(good["status"]["succeeded"], 1, "{good}");
    cluster.wait_for("daemonset", &namespace, "daemon", SLOW, |set| set["status"]["numberReady"] == 1);
    cluster.wait_for("deployment", &namespace, "web", SLOW, |d| d["status"]["readyReplicas"] == 3);
    let bad = cluster.wait_for("job", &namespace, "bad", MANY, |job| has(job, "Failed"));
    assert_eq!(condition(&bad, "Failed").unwrap()["reason"], "BackoffLimitExceeded", "{bad}");
    assert_eq!(bad["status"]["failed"], 2, "{bad}");

    cluster.kubectl(&["delete", "job", "good", "bad", "--namespace", &namespace]);
    let evicted = cluster.record("pod", &namespace, "");
    assert!(evicted.next(SLOW).is_some(), "the watch began");
    cluster.kubectl(&["drain", member.name, "--ignore-daemonsets", "--timeout=90s"]);
    let node = cluster.get("node", "", member.name).expect("the node");
    assert_eq!(node["spec"]["unschedulable"], true);
    let placed = |pod: &&Value| pod["spec"]["nodeName"] == member.name;
    wait("only the daemon to be left", SLOW, || {
        let pods = member.pods(&namespace);
        let left: Vec<String> = pods.iter().filter(placed).map(|p| text(&p["metadata"]["name"])).collect();
        if left.len() == 1 && left[0].starts_with("daemon-") { Ok(()) } else { Err(format!("{left:?}")) }
    });
    wait_until("the runtime to hold one container and its sandbox", SLOW, || {
        member.node.runtime.containers().len() == 2
    });
    wait_node_event(&member, "NodeNotSchedulable");
    assert_evictions_are_told(&evicted.news(), 3);

    cluster.kubectl(&["uncordon", member.name]);
    wait_node_event(&member, "NodeSchedulable");
    member.wait_pods(&namespace, 4);
    cluster.kubectl(&["delete", "daemonset,deployment", "--all", "--namespace", &namespace]);
    member.node.wait_clean(SLOW);
    member.assert_ready_all_along(&watched);
}

/// What the API server noted of an eviction stays with the pod to its end, through every status of ours.
fn assert_evictions_are_told(events: &[Value], expect: usize) {
    let mut gone = 0;
    for event in events {
        let pod = &event["object"];
        let web = text(&pod["metadata"]["name"]).starts_with("web-");
        if !web || pod["metadata"]["deletionTimestamp"].is_null() {
            continue;
        }
        let note = condition(pod, "DisruptionTarget").unwrap_or_else(|| panic!("no disruption: {pod}"));
        assert_eq!(note["reason"], "EvictionByEvictionAPI", "{pod}");
        if event["type"] == "DELETED" {
            gone += 1;
            assert_eq!(pod["status"]["phase"], "Succeeded", "{pod}");
        }
    }
    assert_eq!(gone, expect, "each evicted pod was seen to its end");
}

fn wait_node_event(member: &ClusterNode, reason: &str) {
    let about = format!("involvedObject.kind=Node,involvedObject.name={}", member.name);
    wait(&format!("the event {reason}"), SLOW, || {
        let list =
            member.cluster.kubectl_json(&["get", "events", "--all-namespaces", "--field-selector", &about]);
        let reasons: Vec<String> =
            list["items"].as_array().into_iter().flatten().map(|e| text(&e["reason"])).collect();
        if reasons.iter().any(|r| r == reason) { Ok(()) } else { Err(format!("{reasons:?}")) }
    });
}

/// Nothing periodic is left in this agent: what the API server hears, events told.
#[test]
fn an_exit_is_told_without_any_tick() {
    let member = ClusterNode::join_with(Cluster::shared(), "work-exit", |config| {
        let never =
            ["syncFrequency", "fileCheckFrequency", "nodeStatusUpdateFrequency", "nodeStatusReportFrequency"];
        for field in never {
            config[field] = json!("10h");
        }
    });
    member.wait_ready();
    let (cluster, namespace) = (member.cluster, member.cluster.namespace("exit"));
    for (name, policy) in [("once", "Never"), ("again", "Always")] {
        cluster.create_pod(&namespace, &member.pod(name, STAYS, json!({"restartPolicy": policy})));
    }
    for name in ["once", "again"] {
        let pod = cluster.wait_for("pod", &namespace, name, SLOW, ready);
        let told = cluster.record("pod", &namespace, name);
        assert!(told.next(SLOW).is_some(), "the watch began");
        let start = Instant::now();
        member.kill_container(&pod);
        let new = loop {
            let event = told.next(SLOW).unwrap_or_else(|| panic!("{name}: no news after its end"));
            let state = &event["object"]["status"]["containerStatuses"][0];
            if !state["state"]["terminated"].is_null() || !state["lastState"]["terminated"].is_null() {
                break event["object"].clone();
            }
        };
        println!("{name}: its end was in the API after {:.1?}", start.elapsed());
        let state = &new["status"]["containerStatuses"][0];
        let ended = if name == "once" { &state["state"] } else { &state["lastState"] };
        let ended = if ended["terminated"].is_null() { &state["state"] } else { ended };
        assert_eq!(ended["terminated"]["exitCode"], 137, "{new}");
        assert_eq!(ended["terminated"]["containerID"], pod["status"]["containerStatuses"][0]["containerID"]);
    }
    cluster.wait_for("pod", &namespace, "once", SLOW, |pod| pod["status"]["phase"] == "Failed");
    cluster.wait_for("pod", &namespace, "again", SLOW, |pod| {
        ready(pod) && pod["status"]["containerStatuses"][0]["restartCount"] == 1
    });
}

#[test]
fn a_readiness_gate_is_for_others_to_open() {
    let member = join("work-gate");
    let (cluster, namespace) = (member.cluster, member.cluster.namespace("gate"));
    let gate = "example.com/open";
    cluster.create_pod(
        &namespace,
        &member.pod("gated", STAYS, json!({"readinessGates": [{"conditionType": gate}]})),
    );
    let set = |condition: Value| {
        let patch = json!({"status": {"conditions": [condition]}}).to_string();
        let args =
            ["patch", "pod", "gated", "--namespace", &namespace, "--subresource=status", "--patch", &patch];
        cluster.kubectl(&args);
    };
    let wait_pod =
        |wanted: &dyn Fn(&Value) -> bool| cluster.wait_for("pod", &namespace, "gated", SLOW, wanted);
    let pod = wait_pod(&|pod| has(pod, "ContainersReady"));
    let shut = condition(&pod, "Ready").expect("a condition");
    assert_eq!(
        (&shut["status"], &shut["reason"]),
        (&json!("False"), &json!("ReadinessGatesNotReady")),
        "{pod}"
    );

    let foreign = json!({"type": "example.com/note", "status": "True", "message": "keep me"});
    set(foreign.clone());
    assert!(!ready(&cluster.pod(&namespace, "gated")));
    set(json!({"type": gate, "status": "True", "reason": "Opened"}));
    let pod = wait_pod(&ready);

    // A restart changes much of the status, and nothing of theirs.
    member.kill_container(&pod);
    let pod = wait_pod(&|pod| ready(pod) && pod["status"]["containerStatuses"][0]["restartCount"] == 1);
    assert_eq!(condition(&pod, gate).unwrap()["reason"], "Opened");
    assert_eq!(condition(&pod, "example.com/note").unwrap()["message"], "keep me");

    set(json!({"type": gate, "status": "False", "reason": "Shut"}));
    let pod = wait_pod(&|pod| !ready(pod));
    assert!(has(&pod, "ContainersReady"), "{pod}");
    assert_eq!(condition(&pod, gate).unwrap()["reason"], "Shut");
    assert_eq!(condition(&pod, "example.com/note").unwrap()["message"], "keep me");
}

/// A stateful set makes the next pod of a name as soon as the last one's object is gone.
#[test]
fn a_name_that_comes_again_is_another_pod() {
    let member = join("work-again");
    let (cluster, namespace) = (member.cluster, member.cluster.namespace("again"));
    let told = cluster.record("pod", &namespace, "");
    let container = json!({"name": "main", "image": BUSYBOX, "command": ["sh", "-c", STAYS]});
    let pods = json!({"nodeSelector": member.selector(), "containers": [container], "terminationGracePeriodSeconds": 5});
    let labels = json!({"app": "db"});
    let spec = json!({
        "replicas": 1, "serviceName": "db", "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pods},
    });
    let set =
        json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"}, "spec": spec});
    cluster.create(&namespace, &set.to_string());
    let mut seen: Vec<Value> = vec![cluster.wait_for("pod", &namespace, "db-0", SLOW, ready)];
    for how in [
        &["--wait=false"][..],
        &["--force", "--grace-period=0"],
        &["--wait=false"],
        &["--force", "--grace-period=0"],
    ] {
        cluster.kubectl(&[&["delete", "pod", "db-0", "--namespace", &namespace], how].concat());
        let known: Vec<String> = seen.iter().map(uid).collect();
        let next =
            cluster.wait_for("pod", &namespace, "db-0", SLOW, |p| ready(p) && !known.contains(&uid(p)));
        let old = container_id(seen.last().unwrap()).expect("a container");
        wait_until("the container of the old one to end", SLOW, || {
            !member.node.runtime.containers().contains(&old)
        });
        assert!(!member.tasks_of(&next).is_empty(), "the new one was taken for the old one");
        seen.push(next);
    }
    cluster.kubectl(&["delete", "statefulset", "db", "--namespace", &namespace]);
    member.node.wait_clean(SLOW);

    let mut owner: BTreeMap<String, String> = BTreeMap::new();
    for event in told.news() {
        let pod = &event["object"];
        assert!(
            pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or_default() == 0,
            "{pod}"
        );
        if let Some(id) = container_id(pod) {
            let first = owner.entry(id).or_insert_with(|| uid(pod)).clone();
            assert_eq!(first, uid(pod), "the status of another pod: {pod}");
        }
    }
    assert_eq!(owner.len(), seen.len(), "one container for each: {owner:?}");
}

/// The object goes at once; what does not listen is ended after its grace all the same, and a namesake does not wait.
#[test]
fn a_forced_deletion_ends_what_does_not_listen() {
    let member = join("work-force");
    let (cluster, namespace) = (member.cluster, member.cluster.namespace("force"));
    let stubborn = "trap '' TERM; while true; do sleep 1; done";
    let pod = member.pod("stubborn", stubborn, json!({"terminationGracePeriodSeconds": 4}));
    cluster.create_pod(&namespace, &pod);
    let old = cluster.wait_for("pod", &namespace, "stubborn", SLOW, ready);
    let args = ["delete", "pod", "stubborn", "--namespace", &namespace, "--force", "--grace-period=0"];
    cluster.kubectl(&args);
    cluster.create_pod(&namespace, &member.pod("stubborn", STAYS, json!({})));
    let new = cluster.wait_for("pod", &namespace, "stubborn", SLOW, |p| ready(p) && uid(p) != uid(&old));
    assert_ne!(container_id(&new), container_id(&old));
    wait_until("the old container to end", SLOW, || member.tasks_of(&old).is_empty());
    assert!(!member.tasks_of(&new).is_empty(), "the new one was taken for the old one");
    let now = cluster.pod(&namespace, "stubborn");
    assert_eq!(now["status"], new["status"], "the end of the old one is not the new one's");
    cluster.delete("pod", &namespace, "stubborn");
    cluster.wait_gone("pod", &namespace, "stubborn", SLOW);
    member.node.wait_clean(SLOW);
}

/// What a pod's life costs the API server.
#[test]
fn a_burst_is_told_in_few_requests() {
    const PODS: usize = 16;
    let member = join("work-burst");
    let (cluster, namespace) = (member.cluster, member.cluster.namespace("burst"));
    let before = cluster.api_request_counts(&member.user());
    let pods: Vec<Value> = (0..PODS)
        .map(|i| serde_json::from_str(&member.pod(&format!("pod-{i}"), STAYS, json!({}))).expect("a pod"))
        .collect();
    let start = Instant::now();
    cluster.create(&namespace, &json!({"apiVersion": "v1", "kind": "List", "items": pods}).to_string());
    member.wait_pods(&namespace, PODS);
    println!("{PODS} pods were ready after {:.1?}", start.elapsed());
    let start = Instant::now();
    cluster.kubectl(&["delete", "pods", "--all", "--namespace", &namespace, "--wait=false"]);
    member.wait_pods(&namespace, 0);
    println!("{PODS} pods were gone after {:.1?}", start.elapsed());

    let mut counts = cluster.api_request_counts(&member.user());
    for (request, count) in &mut counts {
        *count -= before.get(request).copied().unwrap_or_default();
    }
    counts.retain(|_, count| *count > 0);
    for (request, count) in &counts {
        println!("{count:5}  {:5.1} a pod  {request}", *count as f64 / PODS as f64);
    }
    let count = |request: &str| counts.get(request).copied().unwrap_or_default();
    assert_eq!(count("get pods"), 0, "a status needs no reading");
    assert_eq!(count("list pods"), 0, "the one watch tells");
    // The audit may note the one that was there from the beginning only now.
    assert!(count("watch pods") <= 1, "the one watch tells: {counts:?}");
    assert_eq!(count("delete pods"), PODS, "each object is removed once");
    // It waits, has its sandbox, runs, is going, has ended, is over. One more each where a token is late, or where a slow
    // machine shows what otherwise falls together.
    assert!(count("patch pods/status") <= 8 * PODS, "too many patches: {counts:?}");
    let requests = cluster.api_requests(&member.user());
    let tokens = requests.iter().filter(|r| r.resource == "serviceaccounts/token" && r.code == 201).count();
    assert_eq!(tokens, PODS, "one token for each");
    // The node authorizer (403) and the node's admission (404) may hear of a pod after its node did: the first request
    // for a token or for an object of the pod is then too early.
    let early = |r: &&ApiRequest| match r.resource.as_str() {
        "serviceaccounts/token" => [403, 404].contains(&r.code),
        "configmaps" => r.code == 403,
        _ => false,
    };
    let first_look = |r: &&ApiRequest| r.verb == "get" && r.code == 404;
    let refused: Vec<_> = requests.iter().filter(|r| r.code >= 400 && !early(r) && !first_look(r)).collect();
    assert!(refused.is_empty(), "{refused:?}");
    member.node.wait_clean(SLOW);
}

/// A server answers a hundred requests at once on one connection, and each object that pods name is watched.
#[test]
fn more_objects_than_fit_on_a_connection_are_followed() {
    const MAPS: usize = 150;
    let member = join("work-maps");
    let (cluster, namespace) = (member.cluster, member.cluster.namespace("maps"));
    let map = |number: usize, text: &str| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("map-{number}")},
            "data": {format!("key-{number}"): text},
        })
    };
    let maps: Vec<Value> = (0..MAPS).map(|number| map(number, "old")).collect();
    cluster.create(&namespace, &json!({"apiVersion": "v1", "kind": "List", "items": maps}).to_string());
    let sources: Vec<Value> =
        (0..MAPS).map(|number| json!({"configMap": {"name": format!("map-{number}")}})).collect();
    let script =
        "test $(ls /maps | wc -l) = 150 && until grep -q new /maps/key-149; do sleep 0.2; done; exit 7";
    let mut pod: Value = serde_json::from_str(&member.pod("p", script, json!({}))).expect("a pod");
    pod["spec"]["restartPolicy"] = json!("Never");
    pod["spec"]["volumes"] = json!([{"name": "maps", "projected": {"sources": sources}}]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "maps", "mountPath": "/maps"}]);
    cluster.create_pod(&namespace, &pod.to_string());
    cluster.wait_for("pod", &namespace, "p", 3 * SLOW, |p| p["status"]["phase"] == "Running");
    cluster.kubectl(&[
        "patch",
        "configmap",
        "map-149",
        "--namespace",
        &namespace,
        "-p",
        &map(149, "new").to_string(),
    ]);
    let ended = cluster.wait_for("pod", &namespace, "p", 3 * SLOW, |p| p["status"]["phase"] == "Failed");
    assert_eq!(ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], 7, "{ended}");
    cluster.delete("pod", &namespace, "p");
    cluster.wait_gone("pod", &namespace, "p", SLOW);
    member.node.wait_clean(SLOW);
}
