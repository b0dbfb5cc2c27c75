//! The Pods API: pods are listed, got and watched on the node, through their life and over a crash of the agent.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::support::api_proxy::{Between, Proxy, altered};
use crate::support::cluster::Cluster;
use crate::support::harness::{Agent, Node, Runtime, SLOW, run, wait, wait_until};
use crate::support::pods::{
    UNTIL_TERM, container_id, is_running, manifest, phase, shell, shell_with, simple, uid,
};
use crate::support::pods_client::{EventType, PodsApi, Told, Watch};
use crate::support::serving_node::ServingNode;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use prost::Message;
use serde_json::{Value, json};
use tonic::Code;

fn switch_on(config: &mut Value) {
    config["featureGates"] = json!({ "PodsAPI": true });
}

const ENDS_WHEN_TOLD: &str = "until [ -e /end ]; do sleep 0.1; done; exit 3";

/// Tells a container that runs [`ENDS_WHEN_TOLD`] to end, by its id in a status.
fn end_container(runtime: &Runtime, id: &str) {
    let task = runtime.tasks().into_iter().find(|task| id.ends_with(&task.id)).expect("its process");
    fs::write(format!("/proc/{}/root/end", task.pid), "").expect("the word to end");
}

/// One addition, then changes, then the deletion and nothing more.
#[track_caller]
fn assert_whole_life(watch: &Watch, name: &str) {
    let kinds = watch.kinds_of(name);
    let (first, rest) = kinds.split_first().expect("events");
    let (last, between) = rest.split_last().expect("two events");
    assert_eq!((*first, *last), (EventType::Added, EventType::Deleted), "{:?}", watch.lines());
    assert!(between.iter().all(|kind| *kind == EventType::Modified), "{:?}", watch.lines());
}

#[test]
fn a_pod_is_listed_found_and_watched_through_its_life() {
    let node = Node::start_with(switch_on);
    let api = PodsApi::of(&node.agent);
    assert_eq!(api.list().expect("a list"), []);
    let mut watch = api.watch();
    watch.wait("the end of the first pods", SLOW, |told| told.kind == EventType::InitialSyncComplete);
    assert_eq!(watch.seen.len(), 1, "{:?}", watch.lines());

    // It starts, and ends by itself when it is told to.
    let spec = json!({ "restartPolicy": "Never", "containers": [shell("c", ENDS_WHEN_TOLD)] });
    node.agent.write_manifest("job", &manifest("job", spec));
    let added = watch.wait("the pod", SLOW, |told| told.is(EventType::Added, "job-node"));
    assert_eq!(added.pod.phase(), "Pending");
    let ready = watch.wait("its start", SLOW, |told| told.pod.is_ready()).pod;
    let pod = node.wait_pod("job", SLOW, is_running);
    assert_eq!((&*ready.uid(), &*ready.meta().namespace), (uid(&pod), "default"));
    assert_eq!(ready.meta().annotations["kubernetes.io/config.source"], "file");
    assert_eq!(ready.first_container().container_id.split("://").nth(1), Some(&*container_id(&pod, "c")));

    let found = api.get(uid(&pod)).expect("the pod");
    assert_eq!(found.status.clone().expect("a status").pod_ip, pod["status"]["podIP"]);
    let container = &found.spec.clone().expect("a spec").containers[0];
    assert_eq!(
        (&*container.name, &*container.image),
        ("c", pod["spec"]["containers"][0]["image"].as_str().unwrap())
    );
    assert_eq!(api.list().expect("a list"), [found]);
    for stranger in ["", "no-such-uid", "../../etc", &"x".repeat(3000)] {
        assert_eq!(api.get(stranger).expect_err("nothing").code(), Code::NotFound, "{stranger}");
    }
    assert_eq!(api.get(&"x".repeat(1 << 20)).expect_err("nothing").code(), Code::OutOfRange);

    // It has ended: watchers hear that it is gone, lists still have it.
    end_container(&node.runtime, &ready.first_container().container_id);
    watch.wait("its failure", SLOW, |told| told.pod.phase() == "Failed");
    let gone = watch.wait("its end", SLOW, |told| told.is(EventType::Deleted, "job-node")).pod;
    assert_eq!((gone.uid(), gone.spec.unwrap_or_default().containers.len()), (ready.uid(), 0));
    assert_eq!(api.get(uid(&pod)).expect("the pod").phase(), "Failed");

    // Whoever comes later sees it too, and its removal. The first watcher has heard the last of it.
    let mut late = api.watch();
    late.wait("the first pods", SLOW, |told| told.kind == EventType::InitialSyncComplete);
    assert_eq!(late.kinds_of("job-node"), [EventType::Added]);
    node.agent.remove_manifest("job");
    late.wait("its removal", SLOW, |told| told.is(EventType::Deleted, "job-node"));
    node.agent.write_manifest("next", &simple("next"));
    watch.wait("another pod", SLOW, |told| told.is(EventType::Added, "next-node"));
    assert_whole_life(&watch, "job-node");
    wait_until("the list to be up to date", SLOW, || {
        api.list().is_ok_and(|pods| pods.iter().map(|pod| pod.name()).collect::<Vec<_>>() == ["next-node"])
    });
    node.agent.remove_manifest("next");
    watch.wait("its end", SLOW, |told| told.is(EventType::Deleted, "next-node"));
    assert_whole_life(&watch, "next-node");
    node.wait_clean(SLOW);
}

/// A pod that this node can't run, large enough that few of them fill a connection.
fn refused_pod(number: usize) -> String {
    let mut container = shell("c", UNTIL_TERM);
    container["resources"] = json!({ "requests": { "cpu": "100000" } });
    let mut pod: Value =
        serde_json::from_str(&manifest(&format!("big-{number:03}"), json!({ "containers": [container] })))
            .expect("JSON");
    pod["metadata"]["annotations"] = json!({ "example.com/large": "x".repeat(20_000) });
    pod.to_string()
}

#[test]
fn a_slow_watcher_is_cut_and_harms_nobody() {
    const PODS: usize = 160;
    let node = Node::start_with(switch_on);
    let api = PodsApi::of(&node.agent);
    let mut slow = api.watch_idle();
    let mut quick = api.watch();
    for number in 0..PODS {
        node.agent.write_manifest(&format!("big-{number:03}"), &refused_pod(number));
    }
    for _ in 0..PODS {
        quick.wait("every pod", SLOW, |told| told.kind == EventType::Added);
    }
    node.agent.write_manifest("web", &simple("web"));
    quick.wait("a pod beside them", SLOW, |told| told.pod.name() == "web-node" && told.pod.is_ready());
    let dropped = || {
        let text = node.agent.get("/metrics").map(|answer| answer.text()).unwrap_or_default();
        text.lines().any(|line| line == "kubelet_pod_watch_events_dropped_total 1")
    };
    wait_until("the slow watcher to be counted", SLOW, dropped);

    let (told, status) = api.drain(&mut slow);
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert_eq!(told.first().map(|told| told.kind), Some(EventType::InitialSyncComplete));
    assert!(told.len() > 100 && told.len() < quick.seen.len(), "{} {}", told.len(), quick.seen.len());
    // What it was told until then is what everybody was told.
    let same = told.iter().zip(&quick.seen).all(|(a, b)| a.kind == b.kind && a.pod.uid() == b.pod.uid());
    assert!(same, "{:?}", quick.lines());

    let mut again = api.watch();
    again.wait("the first pods", SLOW, |told| told.kind == EventType::InitialSyncComplete);
    assert_eq!(again.seen.len(), PODS + 2, "{:?}", again.lines());
}

#[test]
fn a_watcher_comes_back_after_the_agent_was_killed() {
    let mut node = Node::start_with(switch_on);
    let api = PodsApi::of(&node.agent);
    node.agent.write_manifest("web", &simple("web"));
    let pod = node.wait_pod("web", SLOW, is_running);
    let mut watch = api.watch();
    watch.wait("the pod", SLOW, |told| told.pod.is_ready());

    node.agent.kill9();
    assert!(watch.wait_ended(SLOW).is_some(), "it hears of the end");
    assert_eq!(api.list().expect_err("nobody").code(), Code::Unavailable);
    let socket = node.agent.root_dir().join("pods-api/pods-api.sock");
    assert!(socket.exists(), "it was left behind");
    node.agent.restart();

    let mut watch = api.watch();
    let same = |told: &Told| told.pod.uid() == uid(&pod) && told.pod.is_ready();
    let back = watch.wait("the pod", SLOW, same).pod;
    assert_eq!(watch.kinds_of("web-node")[0], EventType::Added);
    let container = back.first_container();
    assert_eq!(container.restart_count, 0);
    assert_eq!(container.container_id.split("://").nth(1), Some(&*container_id(&pod, "c")), "it went on");
    let mode = |path: &std::path::Path| fs::metadata(path).expect("a mode").permissions().mode() & 0o777;
    assert_eq!((mode(&socket), mode(socket.parent().expect("a directory"))), (0o600, 0o750));

    node.agent.remove_manifest("web");
    watch.wait("its end", SLOW, |told| told.is(EventType::Deleted, "web-node"));
    assert_whole_life(&watch, "web-node");
    assert!(node.agent.terminate().success());
    assert_eq!(watch.wait_ended(SLOW).map(|status| status.code()), Some(Code::Unavailable));
    assert!(!socket.exists());
}

#[test]
fn there_is_no_socket_unless_the_gate_is_on() {
    let node = Node::start();
    assert!(!node.agent.root_dir().join("pods-api").exists());
}

/// An object in the API's binary form: what it is, and its bytes.
fn envelope(pod: Vec<u8>) -> Vec<u8> {
    #[derive(Clone, PartialEq, Message)]
    struct TypeMeta {
        #[prost(string, tag = "1")]
        api_version: String,
        #[prost(string, tag = "2")]
        kind: String,
    }
    #[derive(Clone, PartialEq, Message)]
    struct Unknown {
        #[prost(message, optional, tag = "1")]
        type_meta: Option<TypeMeta>,
        #[prost(bytes = "vec", tag = "2")]
        raw: Vec<u8>,
    }
    let type_meta = Some(TypeMeta { api_version: "v1".into(), kind: "Pod".into() });
    [b"k8s\0".to_vec(), Unknown { type_meta, raw: pod }.encode_to_vec()].concat()
}

/// Sends an object to the API server as the administrator, in its binary form. Nothing is stored.
fn put(member: &ServingNode, path: &str, pod: Vec<u8>) -> Value {
    let config = member.cluster.kubectl(&["config", "view", "--raw", "-o", "json"]);
    let config: Value = serde_json::from_str(&config).expect("a kubeconfig");
    let file = |name: &str, bytes: Vec<u8>| {
        let path = member.runtime.dir.join(name);
        fs::write(&path, bytes).expect("write a file");
        path
    };
    let data = |key: &str| {
        let text = config["users"][0]["user"][key].as_str().unwrap_or_else(|| panic!("no {key}"));
        STANDARD.decode(text).expect("base64")
    };
    let certificate = file("admin.crt", data("client-certificate-data"));
    let key = file("admin.key", data("client-key-data"));
    let body = file("pod.bin", envelope(pod));
    let mut curl = Command::new("curl");
    curl.args(["-sS", "-X", "PUT", "-H", "Content-Type: application/vnd.kubernetes.protobuf"]);
    curl.args(["-H", "Accept: application/json", "--cacert"]).arg(member.cluster.ca());
    curl.arg("--cert").arg(certificate).arg("--key").arg(key);
    curl.arg("--data-binary").arg(format!("@{}", body.display()));
    let text = run(curl.arg(format!("{}{path}?dryRun=All", member.cluster.server())));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in: {text}"))
}

/// The API server decodes what the socket tells, to the same pod; and a pod of the API is told of through its life.
#[test]
fn a_pod_of_the_api_is_told_of_as_the_api_server_knows_it() {
    let member = ServingNode::join_with("pods-api", switch_on);
    let api = PodsApi::of(&member.agent);
    let mut watch = api.watch();
    let probe = json!({ "exec": { "command": ["true"] }, "periodSeconds": 30 });
    let container = json!({
        "command": ["sh", "-c", UNTIL_TERM], "readinessProbe": probe, "ports": [{ "containerPort": 80 }],
        "resources": { "limits": { "memory": "64Mi" }, "requests": { "cpu": "10m" } },
        "env": [{ "name": "IP", "valueFrom": { "fieldRef": { "fieldPath": "status.podIP" } } }],
        "lifecycle": { "preStop": { "httpGet": { "port": 80, "path": "/x" } } },
        "securityContext": { "runAsUser": 0, "capabilities": { "drop": ["NET_RAW"] } },
    });
    let pod = member.start("web", container);
    let ready =
        watch.wait("the pod to be ready", SLOW, |told| told.pod.name() == "web" && told.pod.is_ready());
    assert_eq!(ready.pod.uid(), uid(&pod));

    let known = member.cluster.wait_for("pod", &member.namespace, "web", SLOW, |pod| {
        is_running(pod) && pod["metadata"]["uid"] == ready.pod.uid()
    });
    let bytes = || api.get_bytes(uid(&known)).expect("the pod");
    let path = format!("/api/v1/namespaces/{}/pods/web", member.namespace);
    // The agent may know an older version for a moment, which the server refuses.
    let sent = wait("the API server to take it", SLOW, || match put(&member, &path, bytes()) {
        answer if answer["kind"] == "Pod" => Ok(answer),
        answer => Err(answer.to_string()),
    });
    // A field that is not what the server has would be forbidden.
    assert_eq!((&sent["spec"], &sent["metadata"]["uid"]), (&known["spec"], &known["metadata"]["uid"]));
    let sent = put(&member, &format!("{path}/status"), bytes());
    for part in ["phase", "podIPs", "containerStatuses", "qosClass", "startTime"] {
        assert_eq!(sent["status"][part], known["status"][part], "{part}");
    }
    assert_eq!(phase(&sent), "Running");

    member.said(&["label", "pod", "web", "state=changed"]);
    let changed = |told: &Told| {
        told.kind == EventType::Modified
            && told.pod.meta().labels.get("state").is_some_and(|v| v == "changed")
    };
    watch.wait("its label", SLOW, changed);
    member.said(&["delete", "pod", "web", "--wait=false"]);
    watch.wait("its deletion to begin", SLOW, |told| told.pod.meta().deletion_timestamp.is_some());
    watch.wait("its end", SLOW, |told| told.is(EventType::Deleted, "web"));
    member.cluster.wait_gone("pod", &member.namespace, "web", SLOW);
    assert_whole_life(&watch, "web");
    let deleting = watch.seen.iter().filter(|told| told.is(EventType::Modified, "web"));
    let deleting: Vec<bool> = deleting.map(|told| told.pod.meta().deletion_timestamp.is_some()).collect();
    assert!(deleting.is_sorted(), "a deletion is never taken back: {deleting:?}");
    assert_eq!(api.list().expect("a list"), []);
}

#[test]
fn what_happens_while_the_api_server_is_away_is_told() {
    const NODE: &str = "pods-api-alone";
    let cluster = Cluster::shared_bare();
    let runtime = Runtime::start();
    let proxy = Proxy::start(cluster.server(), Between::Nothing);
    let kubeconfig = altered(&cluster.node_kubeconfig(NODE), NODE, cluster.server(), &proxy.server());
    let flags = ["--kubeconfig", &kubeconfig.to_string_lossy(), "--hostname-override", NODE];
    let agent = Agent::start_with_flags(&runtime, &flags, switch_on);
    let api = PodsApi::of(&agent);
    let mut watch = api.watch();
    let namespace = cluster.namespace("pods-api-alone");
    let spec = json!({
        "nodeName": NODE, "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 1,
        "containers": [shell_with("c", ENDS_WHEN_TOLD, json!({ "imagePullPolicy": "Never" }))],
    });
    cluster.create_pod(&namespace, &manifest("web", spec));
    let ready = watch.wait("the pod to be ready", SLOW, |told| told.pod.is_ready()).pod;
    cluster.wait_for("pod", &namespace, "web", SLOW, is_running);

    proxy.go_away();
    end_container(&runtime, &ready.first_container().container_id);
    let again = |told: &Told| told.pod.is_ready() && told.pod.first_container().restart_count == 1;
    watch.wait("its restart", SLOW, again);
    let listed = api.list().expect("a list");
    assert_eq!(listed.iter().map(|pod| pod.first_container().restart_count).collect::<Vec<_>>(), [1]);
    let known = cluster.pod(&namespace, "web");
    assert_eq!(
        known["status"]["containerStatuses"][0]["restartCount"], 0,
        "the API server has not heard of it"
    );
}
