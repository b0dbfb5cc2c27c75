//! Metrics of a node of a real cluster: Prometheus' own checker understands them, and their names, types and labels are
//! those that were recorded of the kubelet, but for what docs/metrics.md tells.

use std::collections::BTreeSet;
use std::path::Path;

use crate::support::cluster::Cluster;
use crate::support::cluster_node::{self, ClusterNode, STAYS};
use crate::support::harness::{Agent, SLOW, wait};
use crate::support::metrics_text::{Families, check_with_promtool, families, value};
use serde_json::{Value, json};

const ENDPOINTS: [&str; 5] =
    ["/metrics", "/metrics/cadvisor", "/metrics/resource", "/metrics/probes", "/metrics/slis"];

/// Endpoint, name, type, labels.
const RECORDED: &str = include_str!("../../../server/src/metrics/metrics.tsv");

/// What docs/metrics.md says: its tables are read, so that they can't be wrong.
struct Told {
    /// Names, or beginnings of names with a star, that are not served.
    absent: Vec<String>,
    /// Every name that the page mentions.
    mentioned: BTreeSet<String>,
}

impl Told {
    fn read() -> Told {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
        let text =
            std::fs::read_to_string(&page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
        let quoted =
            |text: &str| -> Vec<String> { text.split('`').skip(1).step_by(2).map(str::to_owned).collect() };
        let rows = text
            .lines()
            .skip_while(|line| *line != "## Not served")
            .take_while(|line| *line != "## Also served");
        let first_cell =
            |row: &str| row.strip_prefix("| ").and_then(|row| row.split(" | ").next()).map(quoted);
        let absent: Vec<String> = rows.filter_map(first_cell).flatten().collect();
        assert!(!absent.is_empty(), "{} has no table of what is not served", page.display());
        Told { absent, mentioned: quoted(&text).into_iter().collect() }
    }

    fn is_absent(&self, name: &str) -> bool {
        self.absent.iter().any(|told| match told.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => told == name,
        })
    }
}

fn read(agent: &Agent, endpoint: &str) -> String {
    let response = agent.get(endpoint).unwrap_or_else(|error| panic!("{endpoint}: {error}"));
    assert_eq!(response.status, 200, "{endpoint}: {}", response.text());
    response.text()
}

/// In what an endpoint differs from the recording, in words.
fn differences(endpoint: &str, served: &Families, told: &Told) -> Vec<String> {
    let mut found = Vec::new();
    let mut recorded = BTreeSet::new();
    for row in RECORDED.lines().skip(1) {
        let cells: Vec<&str> = row.split('\t').collect();
        let [at, name, kind, labels] = cells[..] else { panic!("{row:?}") };
        if at != endpoint {
            continue;
        }
        recorded.insert(name);
        match (served.get(name), told.is_absent(name)) {
            (None, true) => {}
            (None, false) => found.push(format!("{name} is missing")),
            (Some(_), true) => found.push(format!("{name} is served, though the page says it is not")),
            (Some(family), false) => {
                let labels: BTreeSet<String> =
                    labels.split(',').filter(|l| !l.is_empty()).map(str::to_owned).collect();
                if family.kind != kind || family.labels != labels {
                    found.push(format!("{name} is {family:?}, recorded as {kind} with {labels:?}"));
                }
            }
        }
    }
    let more = served.keys().filter(|name| !recorded.contains(name.as_str()));
    let unknown = more.filter(|name| !told.mentioned.contains(*name));
    found.extend(unknown.map(|name| format!("{name} is served, and the page does not mention it")));
    found
}

/// Pods that let everything happen that is counted: volumes, probes, limits, ends, failed starts, rejections.
fn make_pods(member: &ClusterNode, namespace: &str) {
    let cluster = member.cluster;
    cluster.kubectl(&["--namespace", namespace, "create", "configmap", "words", "--from-literal=one=1"]);
    let script = format!("dd if=/dev/zero of=/cache/file bs=1k count=64 2>/dev/null; {STAYS}");
    let rich = json!({
        "containers": [{
            "name": "main", "image": cluster_node::BUSYBOX, "imagePullPolicy": "Never", "command": ["sh", "-c", script],
            "resources": { "limits": { "cpu": "500m", "memory": "64Mi" } },
            "readinessProbe": { "exec": { "command": ["true"] }, "periodSeconds": 1 },
            "volumeMounts": [
                { "name": "cache", "mountPath": "/cache" }, { "name": "words", "mountPath": "/words" },
                { "name": "memory", "mountPath": "/memory" },
            ],
        }],
        "volumes": [
            { "name": "cache", "emptyDir": {} }, { "name": "words", "configMap": { "name": "words" } },
            { "name": "memory", "emptyDir": { "medium": "Memory" } },
        ],
    });
    cluster.create_pod(namespace, &member.pod("rich", STAYS, rich));
    cluster.create_pod(namespace, &member.pod("ends", "exit 3", json!({ "restartPolicy": "Never" })));
    let absent = json!({ "containers": [{ "name": "main", "image": "rubelet.test/absent:1", "imagePullPolicy": "Never" }] });
    cluster.create_pod(namespace, &member.pod("absent", STAYS, absent));
    let greedy = json!({
        "containers": [{
            "name": "main", "image": cluster_node::BUSYBOX, "resources": { "requests": { "cpu": "100000" } },
        }],
    });
    cluster.create_pod(namespace, &member.pod("greedy", STAYS, greedy));
}

#[test]
fn names_types_and_labels_are_the_kubelets_and_promtool_agrees() {
    let cluster = Cluster::shared_bare();
    let member = ClusterNode::join_with(cluster, "metrics-names", |config| {
        // The whole runtime is read twice soon.
        config["syncFrequency"] = json!("2s");
    });
    // Nobody takes the taint of a new node away here, and nobody looks at it.
    cluster.wait_for("node", "", member.name, SLOW, cluster_node::ready);
    let namespace = cluster.namespace("metrics-names");
    make_pods(&member, &namespace);
    cluster.wait_for("pod", &namespace, "rich", SLOW, cluster_node::ready);
    cluster.wait_for("pod", &namespace, "ends", SLOW, |pod| pod["status"]["phase"] == "Failed");
    cluster.wait_for("pod", &namespace, "greedy", SLOW, |pod| pod["status"]["reason"] == "OutOfcpu");
    let agent = member.agent();
    assert_eq!(agent.get("/stats/summary").expect("a summary").status, 200);

    let told = Told::read();
    for endpoint in ENDPOINTS {
        // Some things are counted a moment after they are seen.
        wait(endpoint, SLOW, || {
            let found = differences(endpoint, &families(&read(agent, endpoint)), &told);
            if found.is_empty() { Ok(()) } else { Err(found.join("\n")) }
        });
        check_with_promtool(endpoint, &read(agent, endpoint));
    }
    values_are_true(agent, &namespace);
    sizes_are_true(&member, &namespace);
}

/// What happened above, and nothing else of its kind.
fn values_are_true(agent: &Agent, namespace: &str) {
    let text = read(agent, "/metrics");
    let expect = [
        (
            r#"kubelet_terminated_containers_total{container_type="container",exit_code="3",reason="Error"}"#,
            1.0,
        ),
        (r#"kubelet_admission_rejections_total{reason="OutOfcpu"}"#, 1.0),
        ("kubelet_pod_start_duration_seconds_count", 1.0),
        ("kubelet_node_startup_duration_seconds", f64::NAN),
        (
            r#"storage_operation_duration_seconds_count{migrated="false",operation_name="volume_mount",status="success",volume_plugin="kubernetes.io/configmap"}"#,
            1.0,
        ),
    ];
    for (series, least) in expect {
        let found = value(&text, series).unwrap_or_else(|| panic!("no {series} in\n{text}"));
        assert!(least.is_nan() || found >= least, "{series} is {found}");
    }
    let errors =
        r#"kubelet_started_containers_errors_total{code="ErrImageNeverPull",container_type="container"}"#;
    assert!(value(&text, errors).is_some_and(|count| count >= 1.0), "{errors} in\n{text}");
    let cadvisor = read(agent, "/metrics/cadvisor");
    let of_main = format!(r#"namespace="{namespace}",pod="rich"}}"#);
    let limit = cadvisor.lines().find(|line| {
        line.starts_with(r#"container_spec_memory_limit_bytes{container="main""#) && line.contains(&of_main)
    });
    assert!(limit.is_some_and(|line| line.contains("} 67108864 ")), "{limit:?}");
}

/// The summary tells what the volumes hold.
fn sizes_are_true(member: &ClusterNode, namespace: &str) {
    let summary = wait("the sizes of the volumes", SLOW, || {
        let summary: Value = serde_json::from_str(&read(member.agent(), "/stats/summary")).expect("JSON");
        let pods = summary["pods"].as_array().cloned().unwrap_or_default();
        let rich = pods
            .into_iter()
            .find(|pod| pod["podRef"]["name"] == "rich" && pod["podRef"]["namespace"] == namespace);
        match rich {
            Some(pod) if pod["volume"].as_array().is_some_and(|volumes| volumes.len() >= 3) => Ok(pod),
            other => Err(format!("{other:?}")),
        }
    });
    let volume = |name: &str| {
        let volumes = summary["volume"].as_array().expect("volumes");
        volumes
            .iter()
            .find(|one| one["name"] == name)
            .unwrap_or_else(|| panic!("{name} in {volumes:?}"))
            .clone()
    };
    let bytes = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("a number, not {value}"));
    // 64 KiB of file, and directories.
    assert!((65_536..200_000).contains(&bytes(&volume("cache")["usedBytes"])), "{summary}");
    // A directory, and nothing in it.
    assert!(bytes(&volume("memory")["inodesUsed"]) >= 1, "{summary}");
    assert!(bytes(&summary["ephemeral-storage"]["usedBytes"]) >= bytes(&volume("cache")["usedBytes"]));
    assert!(summary["network"]["interfaces"].as_array().is_some_and(|all| !all.is_empty()), "{summary}");
    assert!(bytes(&summary["process_stats"]["process_count"]) >= 2);
}
