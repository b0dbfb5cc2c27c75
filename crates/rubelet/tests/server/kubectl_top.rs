//! `kubectl top` through the real metrics-server: what it shows of pods with a known load agrees with their cgroups.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use crate::support::cluster::Cluster;
use crate::support::harness::{Agent, Runtime, SLOW, cgroups_below, hack, run, wait};
use serde_json::{Value, json};

const NODE: &str = "top";
const BUSYBOX: &str = "rubelet.test/busybox:1";
/// The metrics-server asks every twelve seconds, twice before it knows a rate, and shares the machine with all of this.
const VERY_SLOW: Duration = Duration::from_secs(240);
const HELD: u64 = 40 << 20;

/// Ends with the test.
struct MetricsServer(Child);

impl MetricsServer {
    fn start(cluster: &Cluster, port: u16) -> MetricsServer {
        let program = run(hack("parts").arg("metrics-server"));
        let dir = cluster.dir.join("metrics-server");
        fs::create_dir(&dir).expect("make its directory");
        let log = File::create(dir.join("log")).expect("its log");
        let kubeconfig = cluster.admin_kubeconfig();
        let kubeconfig = kubeconfig.display();
        let child = Command::new(program.trim())
            .arg(format!("--kubeconfig={kubeconfig}"))
            .arg(format!("--authentication-kubeconfig={kubeconfig}"))
            .arg(format!("--authorization-kubeconfig={kubeconfig}"))
            .arg(format!("--secure-port={port}"))
            .arg(format!("--cert-dir={}", dir.display()))
            .arg(format!("--kubelet-certificate-authority={}", cluster.ca().display()))
            .args(["--bind-address=127.0.0.1", "--kubelet-use-node-status-port"])
            // It insists on more time between two readings than one may take.
            .args(["--metric-resolution=12s", "--kubelet-request-timeout=10s"])
            .arg("--kubelet-preferred-address-types=InternalIP")
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("its log"))
            .stderr(log)
            .spawn()
            .expect("start the metrics-server");
        MetricsServer(child)
    }
}

impl MetricsServer {
    fn must_run(&mut self, log: &Path) {
        if let Ok(Some(status)) = self.0.try_wait() {
            panic!("the metrics-server ended with {status}{}", tail(log));
        }
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Requests for metrics go to the metrics-server on loopback.
fn register(cluster: &Cluster, port: u16) {
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "metrics-server", "namespace": "kube-system" },
        "spec": { "type": "ExternalName", "externalName": "localhost", "ports": [{ "port": port }] },
    });
    let api = json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": { "name": "v1beta1.metrics.k8s.io" },
        "spec": {
            "group": "metrics.k8s.io", "version": "v1beta1", "insecureSkipTLSVerify": true,
            "groupPriorityMinimum": 100, "versionPriority": 100,
            "service": { "name": "metrics-server", "namespace": "kube-system", "port": port },
        },
    });
    wait("the namespace kube-system", SLOW, || {
        cluster.get("namespace", "", "kube-system").ok_or("not there")
    });
    for object in [service, api] {
        cluster.create("kube-system", &object.to_string());
    }
}

fn start_agent(cluster: &Cluster, runtime: &Runtime) -> Agent {
    let kubeconfig = cluster.node_kubeconfig(NODE).to_string_lossy().into_owned();
    let serving = cluster.serving_certificate(NODE);
    Agent::start_with_flags(runtime, &["--kubeconfig", &kubeconfig, "--hostname-override", NODE], |config| {
        // Where the node says it is.
        config["address"] = json!("0.0.0.0");
        config["tlsCertFile"] = json!(serving.certificate);
        config["tlsPrivateKeyFile"] = json!(serving.key);
        config["authentication"] =
            json!({ "x509": { "clientCAFile": cluster.ca() }, "webhook": { "enabled": true } });
        config["authorization"] = json!({ "mode": "Webhook" });
    })
}

/// The directories of a running container's cgroup.
fn cgroups_of(cluster: &Cluster, runtime: &Runtime, namespace: &str, name: &str) -> Vec<PathBuf> {
    let pod = cluster.wait_for("pod", namespace, name, VERY_SLOW, |pod| {
        pod["status"]["containerStatuses"][0]["state"]["running"].is_object()
    });
    let id = pod["status"]["containerStatuses"][0]["containerID"].as_str().expect("an id").to_owned();
    let id = id.rsplit('/').next().expect("an id");
    let is_its = |dir: &PathBuf| dir.file_name().is_some_and(|name| name.to_string_lossy().contains(id));
    let found: Vec<PathBuf> = cgroups_below(&runtime.cgroup_root).into_iter().filter(is_its).collect();
    assert!(!found.is_empty(), "no cgroup of {id} below {}", runtime.cgroup_root);
    found
}

fn number(dirs: &[PathBuf], file: &str) -> Option<u64> {
    let read = |dir: &PathBuf| fs::read_to_string(dir.join(file)).ok()?.trim().parse().ok();
    dirs.iter().find_map(read)
}

fn of_table(dirs: &[PathBuf], file: &str, word: &str) -> Option<u64> {
    let find = |dir: &PathBuf| {
        let text = fs::read_to_string(dir.join(file)).ok()?;
        text.lines().find_map(|line| line.strip_prefix(word)?.trim().parse().ok())
    };
    dirs.iter().find_map(find)
}

fn cpu_nanos(dirs: &[PathBuf]) -> u64 {
    let old = number(dirs, "cpuacct.usage");
    old.or_else(|| Some(of_table(dirs, "cpu.stat", "usage_usec ")? * 1000)).expect("CPU time in a cgroup")
}

fn working_set(dirs: &[PathBuf]) -> u64 {
    let used = number(dirs, "memory.usage_in_bytes").or_else(|| number(dirs, "memory.current"));
    let idle = of_table(dirs, "memory.stat", "total_inactive_file ");
    let idle = idle.or_else(|| of_table(dirs, "memory.stat", "inactive_file "));
    used.expect("memory in a cgroup").saturating_sub(idle.unwrap_or(0))
}

/// CPU time so far, by the seconds since the epoch.
type Samples = Vec<(f64, f64)>;

fn sample(samples: &mut Samples, dirs: &[PathBuf]) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a time").as_secs_f64();
    samples.push((now, cpu_nanos(dirs) as f64));
}

/// Cores in use between two times, as far as there are samples of both.
fn cores(samples: &Samples, from: f64, to: f64) -> Option<f64> {
    let at = |time: f64| {
        let after = samples.iter().position(|(at, _)| *at >= time)?;
        let ((t0, c0), (t1, c1)) = (samples[after.checked_sub(1)?], samples[after]);
        Some(c0 + (c1 - c0) * (time - t0) / (t1 - t0))
    };
    Some((at(to)? - at(from)?) / 1e9 / (to - from))
}

/// `299876543n`, `300m`, `41000Ki`.
fn quantity(value: &Value) -> f64 {
    let text = value.as_str().unwrap_or_else(|| panic!("an amount, not {value}"));
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let scale = match unit {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "Ki" => 1024.0,
        "Mi" => 1024.0 * 1024.0,
        other => panic!("{text} has the unit {other}"),
    };
    digits.parse::<f64>().unwrap_or_else(|_| panic!("{text}")) * scale
}

/// When a window began and ended.
fn window(metrics: &Value) -> (f64, f64) {
    let end = metrics["timestamp"].as_str().expect("a time");
    let end: jiff::Timestamp = end.parse().unwrap_or_else(|error| panic!("{end}: {error}"));
    let length = metrics["window"].as_str().expect("a window");
    let length: f64 = length.trim_end_matches('s').parse().unwrap_or_else(|_| panic!("{length}"));
    (end.as_second() as f64 - length, end.as_second() as f64)
}

fn start_pods(cluster: &Cluster, namespace: &str) {
    let pod = |name: &str, script: &str, limits: Value| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": {
                "nodeName": NODE, "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
                "containers": [{
                    "name": "main", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sh", "-c", script],
                    "resources": { "limits": limits },
                }],
            },
        })
        .to_string()
    };
    let busy = pod("busy", "while :; do :; done", json!({ "cpu": "200m", "memory": "32Mi" }));
    let hold = format!("dd if=/dev/zero of=/dev/shm/held bs=1024 count={} && sleep 3600", HELD / 1024);
    let holder = pod("holder", &hold, json!({ "cpu": "1", "memory": "128Mi" }));
    for pod in [busy, holder] {
        cluster.create_pod(namespace, &pod);
    }
}

#[test]
fn top_agrees_with_the_cgroups() {
    let cluster = Cluster::start_with(&["--bare", "--aggregation"]);
    let runtime = Runtime::start();
    let port = runtime.free_port();
    let mut server = MetricsServer::start(&cluster, port);
    register(&cluster, port);
    let _agent = start_agent(&cluster, &runtime);
    cluster.wait_for("node", "", NODE, VERY_SLOW, |node| {
        node["status"]["conditions"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|c| c["type"] == "Ready" && c["status"] == "True")
    });
    let namespace = cluster.namespace("top");
    start_pods(&cluster, &namespace);
    let busy = cgroups_of(&cluster, &runtime, &namespace, "busy");
    let holder = cgroups_of(&cluster, &runtime, &namespace, "holder");
    wait("the memory to be held", SLOW, || match working_set(&holder) {
        held if held >= HELD => Ok(()),
        held => Err(format!("{held}")),
    });

    // Windows that lie wholly within the time that was sampled here can be compared.
    let mut samples = Samples::new();
    let log = cluster.dir.join("metrics-server/log");
    let pods = format!("/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods");
    let (shown, expected, memory) = wait("figures of both pods", VERY_SLOW, || {
        sample(&mut samples, &busy);
        server.must_run(&log);
        let list = cluster.try_kubectl(&["get", "--raw", &pods]).map_err(|said| said + &tail(&log))?;
        let list: Value = serde_json::from_str(&list).map_err(|error| error.to_string())?;
        let of = |name: &str| {
            let items = list["items"].as_array()?;
            items.iter().find(|item| item["metadata"]["name"] == name).cloned()
        };
        let (Some(busy), Some(holder)) = (of("busy"), of("holder")) else {
            return Err(format!("only {list}"));
        };
        let (from, to) = window(&busy);
        let Some(expected) = cores(&samples, from, to) else {
            return Err(format!("a window without samples: {busy}"));
        };
        let memory = quantity(&holder["containers"][0]["usage"]["memory"]);
        if memory < HELD as f64 {
            return Err(format!("a reading from before the memory was held: {holder}"));
        }
        Ok((quantity(&busy["containers"][0]["usage"]["cpu"]), expected, memory))
    });
    // The window's end is told in whole seconds, and the load is only as even as the machine lets it be.
    assert!(
        shown > expected / 1.5 && shown < expected * 1.5,
        "top says {shown} cores, the cgroup {expected}"
    );
    let held = working_set(&holder) as f64;
    assert!(memory > held / 1.2 && memory < held * 1.2, "top says {memory} bytes, the cgroup {held}");

    let top = cluster.kubectl(&["top", "pods", "--namespace", &namespace]);
    assert!(top.contains("busy") && top.contains("holder"), "{top}");
    let top = cluster.kubectl(&["top", "node", NODE]);
    assert!(top.lines().any(|line| line.starts_with(NODE) && !line.contains("<unknown>")), "{top}");
}

fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    format!("\nmetrics-server:\n{}", lines[lines.len().saturating_sub(15)..].join("\n"))
}
