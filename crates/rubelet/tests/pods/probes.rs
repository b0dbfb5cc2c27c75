//! Probes on real containers: what they make of readiness, of starts and of lives.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::support::harness::{Node, SLOW, wait, wait_until};
use serde_json::{Value, json};

const IMAGE: &str = "rubelet.test/busybox:1";
/// Runs until it is told to end, and then ends well.
const UNTIL_TERM: &str = "trap 'exit 0' TERM; sleep 3600 & wait";

fn manifest(name: &str, spec: Value) -> String {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec }).to_string()
}

/// A container that sees the switches below `/switches`.
fn container(name: &str, script: &str, more: Value) -> Value {
    let mut container = json!({
        "name": name, "image": IMAGE, "command": ["sh", "-c", script],
        "volumeMounts": [{ "name": "switches", "mountPath": "/switches" }],
    });
    for (key, value) in more.as_object().expect("an object") {
        container[key] = value.clone();
    }
    container
}

/// Files that the test makes and probes look for.
struct Switches {
    dir: PathBuf,
}

impl Switches {
    fn new(node: &Node) -> Switches {
        let dir = node.runtime.dir.join("switches");
        fs::create_dir_all(&dir).expect("make the switches' directory");
        Switches { dir }
    }
    fn on(&self, name: &str) {
        fs::write(self.dir.join(name), "").expect("turn a switch on");
    }
    fn off(&self, name: &str) {
        fs::remove_file(self.dir.join(name)).expect("turn a switch off");
    }
    fn pod(&self, name: &str, mut spec: Value) -> String {
        spec["volumes"] = json!([{ "name": "switches", "hostPath": { "path": self.dir } }]);
        spec["terminationGracePeriodSeconds"] = json!(2);
        manifest(name, spec)
    }
}

/// A probe that asks for a switch, every second and with the given thresholds.
fn switch(name: &str, more: Value) -> Value {
    let mut probe = json!({
        "exec": { "command": ["test", "-e", format!("/switches/{name}")] },
        "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 5,
    });
    for (key, value) in more.as_object().expect("an object") {
        probe[key] = value.clone();
    }
    probe
}

fn status<'a>(pod: &'a Value, name: &str) -> &'a Value {
    ["containerStatuses", "initContainerStatuses"]
        .iter()
        .filter_map(|list| pod["status"][list].as_array())
        .flatten()
        .find(|status| status["name"] == name)
        .unwrap_or(&Value::Null)
}

fn condition<'a>(pod: &'a Value, kind: &str) -> &'a Value {
    let conditions = pod["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().find(|condition| condition["type"] == kind).unwrap_or(&Value::Null)
}

fn is_ready(pod: &Value) -> bool {
    condition(pod, "Ready")["status"] == "True"
}

fn runs(pod: &Value, name: &str) -> bool {
    status(pod, name)["state"]["running"].is_object()
}

/// Waits until the agent told of such an Event.
#[track_caller]
fn wait_event(node: &Node, reason: &str, message: &str) {
    wait(&format!("{reason}: {message}"), SLOW, || {
        let log = node.agent.log();
        let told = log.lines().any(|line| line.contains(reason) && line.contains(message));
        if told { Ok(()) } else { Err("not among the agent's words") }
    });
}

#[test]
fn readiness_follows_what_its_probe_says() {
    let node = Node::start();
    let switches = Switches::new(&node);
    let spec = json!({ "containers": [container("c", UNTIL_TERM, json!({ "readinessProbe": switch("ready", json!({})) }))] });
    node.agent.write_manifest("p", &switches.pod("p", spec));

    let pod = node.wait_pod("p", SLOW, |pod| runs(pod, "c"));
    assert_eq!((&status(&pod, "c")["started"], is_ready(&pod)), (&json!(true), false));
    wait_event(&node, "Unhealthy", "Readiness probe failed: ");
    let pod = node.agent.pod("p").expect("the pod");
    assert_eq!(condition(&pod, "Ready")["reason"], "ContainersNotReady", "{pod}");
    assert_eq!(condition(&pod, "ContainersReady")["message"], "containers with unready status: [c]", "{pod}");

    switches.on("ready");
    let pod = node.wait_pod("p", SLOW, is_ready);
    assert_eq!(status(&pod, "c")["ready"], true);
    switches.off("ready");
    let pod = node.wait_pod("p", SLOW, |pod| !is_ready(pod));
    // It only takes the pod out of service.
    assert!(runs(&pod, "c") && status(&pod, "c")["restartCount"] == 0, "{pod}");
}

#[test]
fn a_container_that_fails_its_liveness_probe_is_restarted() {
    let node = Node::start();
    let switches = Switches::new(&node);
    switches.on("alive");
    let probed = || {
        container(
            "c",
            UNTIL_TERM,
            json!({ "livenessProbe": switch("alive", json!({ "failureThreshold": 2 })) }),
        )
    };
    // A container that ends well when it is told to is started again all the same, unless it never is.
    for (name, policy) in [("always", "Always"), ("onfailure", "OnFailure"), ("never", "Never")] {
        let spec = json!({ "restartPolicy": policy, "containers": [probed(), container("other", UNTIL_TERM, json!({}))] });
        node.agent.write_manifest(name, &switches.pod(name, spec));
    }
    let names = ["always", "onfailure", "never"];
    for name in names {
        node.wait_pod(name, SLOW, is_ready);
    }
    switches.off("alive");
    wait_event(&node, "Unhealthy", "Liveness probe failed: ");
    wait_event(&node, "Killing", "Container c failed liveness probe, will be restarted");
    for name in names {
        node.wait_pod(name, SLOW, |pod| !runs(pod, "c") || status(pod, "c")["restartCount"] != 0);
    }
    switches.on("alive");
    for name in ["always", "onfailure"] {
        let pod = node.wait_pod(name, SLOW, |pod| {
            runs(pod, "c") && status(pod, "c")["restartCount"].as_i64() > Some(0) && is_ready(pod)
        });
        assert_eq!(status(&pod, "c")["lastState"]["terminated"]["exitCode"], 0, "{pod}");
        assert_eq!(
            (&pod["status"]["phase"], &status(&pod, "other")["restartCount"]),
            (&json!("Running"), &json!(0))
        );
    }
    let told = |l: &str| {
        l.contains("never")
            && l.contains("Container c failed liveness probe")
            && !l.contains("will be restarted")
    };
    wait_until("the end that is not followed by a restart to be told", SLOW, || {
        node.agent.log().lines().any(told)
    });
    let pod = node.agent.pod("never").expect("the pod");
    assert_eq!(status(&pod, "c")["state"]["terminated"]["exitCode"], 0, "{pod}");
    assert_eq!(
        (&pod["status"]["phase"], &status(&pod, "c")["restartCount"]),
        (&json!("Running"), &json!(0)),
        "{pod}"
    );
}

#[test]
fn the_other_probes_wait_for_a_slow_start() {
    let node = Node::start();
    let switches = Switches::new(&node);
    let probes = json!({
        "startupProbe": switch("started", json!({ "failureThreshold": 1000 })),
        "livenessProbe": switch("started", json!({})),
        "readinessProbe": { "exec": { "command": ["touch", "/switches/asked"] }, "periodSeconds": 1000 },
    });
    let spec = json!({ "containers": [container("c", UNTIL_TERM, probes)] });
    node.agent.write_manifest("p", &switches.pod("p", spec));

    let pod = node.wait_pod("p", SLOW, |pod| runs(pod, "c"));
    let id = status(&pod, "c")["containerID"].clone();
    // Long enough for a liveness probe to have failed several times.
    wait_event(&node, "Unhealthy", "Startup probe failed: ");
    std::thread::sleep(Duration::from_secs(4));
    let pod = node.agent.pod("p").expect("the pod");
    assert_eq!((&status(&pod, "c")["started"], &status(&pod, "c")["ready"]), (&json!(false), &json!(false)));
    assert!(!switches.dir.join("asked").exists());

    switches.on("started");
    // Readiness is asked at once, not after its period.
    let pod = node.wait_pod("p", SLOW, is_ready);
    assert_eq!(
        (&status(&pod, "c")["started"], &status(&pod, "c")["containerID"]),
        (&json!(true), &id),
        "{pod}"
    );
    assert_eq!(status(&pod, "c")["restartCount"], 0);
}

#[test]
fn a_container_that_does_not_start_in_time_is_restarted_with_the_grace_of_the_probe() {
    let node = Node::start();
    let switches = Switches::new(&node);
    // It ignores the signal: only the end of its grace ends it, and the pod's is long.
    let stubborn = "trap '' TERM; while :; do sleep 1; done";
    let probes = json!({ "startupProbe": switch("never", json!({ "failureThreshold": 2, "terminationGracePeriodSeconds": 1 })) });
    let mut spec = json!({ "containers": [container("c", stubborn, probes)] });
    spec["volumes"] = json!([{ "name": "switches", "hostPath": { "path": switches.dir } }]);
    spec["terminationGracePeriodSeconds"] = json!(600);
    node.agent.write_manifest("p", &manifest("p", spec));

    wait_event(&node, "Killing", "Container c failed startup probe, will be restarted");
    let pod = node.wait_pod("p", SLOW, |pod| status(pod, "c")["restartCount"].as_i64() > Some(0));
    assert_eq!(status(&pod, "c")["started"], false, "{pod}");
}

#[test]
fn http_and_tcp_probes_reach_the_pod() {
    let node = Node::start();
    let switches = Switches::new(&node);
    let serve = "mkdir -p /www; echo yes >/www/yes; exec httpd -f -p 8080 -h /www";
    let http = |path: &str, port: Value| json!({ "httpGet": { "path": path, "port": port }, "periodSeconds": 1, "timeoutSeconds": 5 });
    let tcp = |port: Value| json!({ "tcpSocket": { "port": port }, "periodSeconds": 1, "timeoutSeconds": 5 });
    let ports = json!([{ "name": "web", "containerPort": 8080 }]);
    let probed =
        |readiness: Value| container("c", serve, json!({ "ports": ports, "readinessProbe": readiness }));
    let cases = [
        ("by-number", http("/yes", json!(8080)), Ok(())),
        ("by-name", http("/yes", json!("web")), Ok(())),
        ("tcp", tcp(json!("web")), Ok(())),
        (
            "not-found",
            http("/no", json!("web")),
            Err("Readiness probe failed: HTTP probe failed with statuscode: 404"),
        ),
        ("refused", tcp(json!(9)), Err(":9: connect: connection refused")),
        (
            "unknown",
            http("/yes", json!("wob")),
            Err("Readiness probe errored and resulted in unknown state: port wob not found"),
        ),
    ];
    for (name, probe, _) in &cases {
        node.agent
            .write_manifest(name, &switches.pod(name, json!({ "containers": [probed(probe.clone())] })));
    }
    for (name, _, expect) in cases {
        match expect {
            Ok(()) => drop(node.wait_pod(name, SLOW, is_ready)),
            Err(message) => {
                wait_event(&node, "Unhealthy", message);
                assert!(!is_ready(&node.agent.pod(name).expect("the pod")), "{name}");
            }
        }
    }
}

/// Looks at the pod without a break while `go_on`, and gives whether it was ready each time that it was told.
fn watch_ready(node: &Node, name: &str, go_on: impl Fn(&[bool]) -> bool) -> Vec<bool> {
    let start = Instant::now();
    let mut seen = Vec::new();
    while go_on(&seen) && start.elapsed() < SLOW {
        if let Ok(pod) = node.agent.pod(name)
            && condition(&pod, "Ready").is_object()
        {
            seen.push(is_ready(&pod) && status(&pod, "c")["started"] == true);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    seen
}

#[test]
fn a_restarted_agent_does_not_forget_who_was_ready() {
    let mut node = Node::start();
    let switches = Switches::new(&node);
    switches.on("ready");
    let probes = json!({
        "startupProbe": switch("ready", json!({ "failureThreshold": 1000 })),
        "readinessProbe": switch("ready", json!({ "periodSeconds": 4, "failureThreshold": 3 })),
    });
    let spec = json!({ "containers": [container("c", UNTIL_TERM, probes)] });
    node.agent.write_manifest("p", &switches.pod("p", spec));
    let pod = node.wait_pod("p", SLOW, is_ready);
    let id = status(&pod, "c")["containerID"].clone();
    let uid = pod["metadata"]["uid"].as_str().expect("a uid").to_owned();
    let record = node.agent.root_dir().join("pods").join(uid).join("probe-results");
    // The first result, of the startup probe, comes to disk by itself.
    wait_until("the record of both results", SLOW, || {
        let text = std::fs::read_to_string(&record).unwrap_or_default();
        text.contains(r#""Startup":true"#) && text.contains(r#""Readiness":true"#)
    });

    for _ in 0..2 {
        node.agent.restart();
        let start = Instant::now();
        let seen =
            watch_ready(&node, "p", |seen| seen.len() <= 5 || start.elapsed() < Duration::from_secs(4));
        assert!(seen.len() > 5 && seen.iter().all(|ready| *ready), "{seen:?}");
    }
    // A container that stopped being ready meanwhile is found out by the probe, not by the restart.
    node.agent.kill9();
    switches.off("ready");
    node.agent.restart();
    let seen = watch_ready(&node, "p", |seen| seen.last() != Some(&false));
    assert_eq!((seen.first(), seen.last()), (Some(&true), Some(&false)));
    let pod = node.agent.pod("p").expect("the pod");
    assert_eq!(
        (&status(&pod, "c")["containerID"], &status(&pod, "c")["started"]),
        (&id, &json!(true)),
        "{pod}"
    );
}

#[test]
fn a_probe_that_hangs_holds_up_nobody_else() {
    let node = Node::start();
    let switches = Switches::new(&node);
    let hanging =
        json!({ "exec": { "command": ["sleep", "1000"] }, "periodSeconds": 1, "timeoutSeconds": 2 });
    for number in 0..3 {
        let name = format!("hangs-{number}");
        let probes =
            json!({ "readinessProbe": hanging, "livenessProbe": { "exec": { "command": ["true"] } } });
        node.agent.write_manifest(
            &name,
            &switches.pod(&name, json!({ "containers": [container("c", UNTIL_TERM, probes)] })),
        );
    }
    wait_event(&node, "Unhealthy", "Readiness probe failed: command timed out: ");
    switches.on("ready");
    let good = json!({ "readinessProbe": switch("ready", json!({})) });
    node.agent.write_manifest(
        "good",
        &switches.pod("good", json!({ "containers": [container("c", UNTIL_TERM, good)] })),
    );
    node.wait_pod("good", SLOW, is_ready);
    for number in 0..3 {
        let pod = node.agent.pod(&format!("hangs-{number}")).expect("the pod");
        assert!(!is_ready(&pod) && status(&pod, "c")["restartCount"] == 0, "{pod}");
    }
    wait_until("the command to be named", SLOW, || node.agent.log().contains("sleep 1000"));
}

#[test]
fn a_command_that_leaves_something_behind_is_a_failure_in_time() {
    let node = Node::start();
    let switches = Switches::new(&node);
    // What it leaves holds on to its output, and so the runtime never sees its end.
    let leaving = json!({ "exec": { "command": ["sh", "-c", "sleep 1000 & sleep 1000"] }, "timeoutSeconds": 1, "periodSeconds": 1, "failureThreshold": 2 });
    let spec = json!({ "containers": [container("c", UNTIL_TERM, json!({ "livenessProbe": leaving }))] });
    node.agent.write_manifest("p", &switches.pod("p", spec));
    wait_event(&node, "Unhealthy", "Liveness probe failed: command timed out: ");
    wait_event(&node, "Killing", "Container c failed liveness probe, will be restarted");
}

#[test]
fn nobody_dies_of_a_runtime_that_hangs() {
    let node = Node::start();
    let switches = Switches::new(&node);
    switches.on("alive");
    // Long enough for a busy machine to run it: one true failure kills.
    let probes = json!({ "livenessProbe": switch("alive", json!({ "timeoutSeconds": 10 })) });
    node.agent.write_manifest(
        "p",
        &switches.pod("p", json!({ "containers": [container("c", UNTIL_TERM, probes)] })),
    );
    let before = node.wait_pod("p", SLOW, is_ready);
    // Until some attempt has been made meanwhile, to no avail.
    node.runtime.hang();
    wait_event(&node, "Unhealthy", "Liveness probe errored and resulted in unknown state: ");
    node.runtime.resume();
    std::thread::sleep(Duration::from_secs(3));
    let after = node.agent.pod("p").expect("the pod");
    assert_eq!(status(&before, "c")["containerID"], status(&after, "c")["containerID"], "{after}");
    assert!(!node.agent.log().contains("failed liveness probe"));
}

/// A gRPC health server on this machine's loopback: SERVING while the file is there.
fn health_server(switch: PathBuf) -> u16 {
    use http_body_util::{BodyExt, Full};
    let (tell, port) = std::sync::mpsc::channel();
    let serve = async move {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        tell.send(listener.local_addr().expect("an address").port()).expect("somebody waits");
        while let Ok((stream, _)) = listener.accept().await {
            let switch = switch.clone();
            let service = hyper::service::service_fn(move |_| {
                let status = if switch.exists() { 1 } else { 2 };
                let body = Full::new(hyper::body::Bytes::from(vec![0, 0, 0, 0, 2, 8, status]));
                let mut end = http::HeaderMap::new();
                end.insert("grpc-status", 0.into());
                let body = body.with_trailers(async move { Some(Ok(end)) });
                async move { http::Response::builder().header("content-type", "application/grpc").body(body) }
            });
            let builder = hyper::server::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new());
            tokio::spawn(builder.serve_connection(hyper_util::rt::TokioIo::new(stream), service));
        }
    };
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(serve);
    });
    port.recv().expect("the server's port")
}

#[test]
fn grpc_probes_ask_for_health() {
    let node = Node::start();
    let switches = Switches::new(&node);
    let port = health_server(switches.dir.join("serving"));
    let probe =
        json!({ "grpc": { "port": port }, "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 1 });
    // A pod in the host's network without an API server has no address of its own: the probe goes to this machine.
    let spec = json!({ "hostNetwork": true, "containers": [container("c", UNTIL_TERM, json!({ "readinessProbe": probe }))] });
    node.agent.write_manifest("p", &switches.pod("p", spec));
    wait_event(&node, "Unhealthy", "service unhealthy (responded with");
    switches.on("serving");
    node.wait_pod("p", SLOW, is_ready);
    switches.off("serving");
    node.wait_pod("p", SLOW, |pod| !is_ready(pod));
}

#[test]
fn whoever_comes_after_a_sidecar_waits_for_its_start() {
    let node = Node::start();
    let switches = Switches::new(&node);
    let sidecar = json!({ "restartPolicy": "Always", "startupProbe": switch("started", json!({ "failureThreshold": 1000 })) });
    let spec = json!({
        "initContainers": [container("side", UNTIL_TERM, sidecar), container("init", "touch /switches/init", json!({}))],
        "containers": [container("c", UNTIL_TERM, json!({}))],
    });
    node.agent.write_manifest("p", &switches.pod("p", spec));
    let pod = node.wait_pod("p", SLOW, |pod| runs(pod, "side"));
    wait_event(&node, "Unhealthy", "Startup probe failed: ");
    assert!(!switches.dir.join("init").exists());
    assert_eq!(
        (&status(&pod, "side")["started"], &pod["status"]["phase"]),
        (&json!(false), &json!("Pending")),
        "{pod}"
    );
    switches.on("started");
    let pod = node.wait_pod("p", SLOW, is_ready);
    assert!(switches.dir.join("init").exists());
    assert_eq!(
        (&status(&pod, "side")["started"], &status(&pod, "side")["ready"]),
        (&json!(true), &json!(true))
    );
}

/// What the agent counts of a pod's probes.
fn probe_series(node: &Node, uid: &str) -> Vec<String> {
    let text = node.agent.get("/metrics/probes").expect("GET /metrics/probes").text();
    let of_pod =
        |line: &&str| line.contains("pod=\"p-node\"") && (line.contains(uid) || !line.contains("pod_uid"));
    text.lines().filter(of_pod).map(str::to_owned).collect()
}

#[test]
fn probes_are_counted_as_long_as_their_pod_is_there() {
    let node = Node::start();
    let switches = Switches::new(&node);
    switches.on("alive");
    let probes = json!({
        "livenessProbe": switch("alive", json!({})),
        "readinessProbe": switch("ready", json!({})),
    });
    let spec = json!({ "containers": [container("c", UNTIL_TERM, probes)] });
    node.agent.write_manifest("p", &switches.pod("p", spec));
    wait_event(&node, "Unhealthy", "Readiness probe failed: ");
    switches.on("ready");
    let pod = node.wait_pod("p", SLOW, is_ready);
    let uid = pod["metadata"]["uid"].as_str().expect("a uid").to_owned();
    let total = |kind: &str, result: &str| {
        let labels = format!(
            "container=\"c\",namespace=\"default\",pod=\"p-node\",pod_uid=\"{uid}\",probe_type=\"{kind}\",result=\"{result}\""
        );
        format!("prober_probe_total{{{labels}}} ")
    };
    let took = |kind: &str| {
        format!(
            "prober_probe_duration_seconds_count{{container=\"c\",namespace=\"default\",pod=\"p-node\",probe_type=\"{kind}\"}} "
        )
    };
    let expect = [
        total("Readiness", "failed"),
        total("Readiness", "successful"),
        total("Liveness", "successful"),
        took("Readiness"),
        took("Liveness"),
    ];
    wait("each probe to be counted", SLOW, || {
        let series = probe_series(&node, &uid);
        let missing: Vec<_> =
            expect.iter().filter(|start| !series.iter().any(|line| line.starts_with(*start))).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("no {missing:?} in {series:?}")) }
    });
    let failed_alive = total("Liveness", "failed");
    assert!(!probe_series(&node, &uid).iter().any(|line| line.starts_with(&failed_alive)));

    node.agent.remove_manifest("p");
    wait("what was counted to go with the pod", SLOW, || match probe_series(&node, &uid) {
        left if left.is_empty() => Ok(()),
        left => Err(left.join("\n")),
    });
    node.wait_clean(SLOW);
    assert_eq!(probe_series(&node, &uid), [""; 0]);
}
