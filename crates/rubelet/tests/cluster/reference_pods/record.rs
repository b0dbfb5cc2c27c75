//! What the upstream kubelet did with each pod, as recorded once. The statuses are the fixtures from which
//! `decide` derives the same statuses again; the Events are kept beside this test.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// The image that the recorded pods ran, and ours.
const IMAGES: [(&str, &str); 3] = [
    ("busybox:latest", "rubelet.test/busybox:1"),
    ("\"none:1\"", "\"rubelet.test/none:1\""),
    ("\\\"none:1\\\"", "\\\"rubelet.test/none:1\\\""),
];

/// The pod that came from a manifest: what is recorded is its mirror.
pub const STATIC: &str = "static-vm";
/// The pod that was given an ephemeral container once it ran.
pub const DEBUGGED: &str = "running";

/// What every container of the records does that has no other task.
const STAYS: &str = "trap \"exit 0\" TERM; sleep 3600 & wait";

#[derive(Debug)]
pub struct Record {
    pub name: String,
    pub spec: Value,
    pub settled: Value,
    /// Phase, conditions and container states, one after another; the last is the end.
    pub transitions: Vec<Value>,
    pub events: Vec<Value>,
}

pub fn all() -> Vec<Record> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut events: BTreeMap<String, Vec<Value>> = read(&tests.join("fixtures/reference-events.json"));
    let statuses = tests.join("../../decide/tests/fixtures/status");
    let entries = std::fs::read_dir(&statuses).expect("the recorded statuses");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    let record = |path: PathBuf| {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let mut record: Value = read(&path);
        let mut list = |key: &str| record[key].as_array_mut().map(std::mem::take).expect("a list");
        let transitions = list("transitions");
        Record {
            events: events.remove(&name).expect("its events"),
            spec: record["spec"].take(),
            settled: record["settled"].take(),
            transitions,
            name,
        }
    };
    let records: Vec<Record> = paths.into_iter().map(record).collect();
    assert!(events.is_empty(), "events of unknown pods: {:?}", events.keys());
    records
}

/// What a busy machine must not miss: a container runs before its pod's deadline, a probe ends before its own, and one
/// that is to fail at first is tried before it would succeed. No status shows these numbers.
fn leave_time(spec: &mut Value) {
    if spec["activeDeadlineSeconds"].is_number() {
        spec["activeDeadlineSeconds"] = json!(15);
    }
    for list in ["initContainers", "containers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(script) = container.pointer_mut("/command/2") {
                *script =
                    json!(script.as_str().unwrap_or_default().replace("sleep 4; touch", "sleep 10; touch"));
            }
            for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
                if let Some(probe) = container.get_mut(probe) {
                    probe["timeoutSeconds"] = json!(30);
                }
            }
        }
    }
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> T {
    let mut text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    for (theirs, ours) in IMAGES {
        text = text.replace(theirs, ours);
    }
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

impl Record {
    /// The object that makes the pod: for the API server or, of the static pod, for a manifest.
    pub fn object(&self) -> Value {
        let mut spec = self.spec.clone();
        if self.name == STATIC {
            // Its spec was recorded from the mirror, without what it ran.
            spec["containers"][0]["command"] = json!(["sh", "-c", STAYS]);
        }
        leave_time(&mut spec);
        let name = if self.name == STATIC { "static" } else { &self.name };
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "rec"}, "spec": spec})
    }

    /// Whether it goes around in circles, so that what it shows depends on the moment.
    pub fn loops(&self) -> bool {
        let restarts = |status: &Value| status["restartCount"].as_u64().is_some_and(|count| count > 1);
        ["initContainerStatuses", "containerStatuses"]
            .iter()
            .any(|list| self.settled[list].as_array().into_iter().flatten().any(restarts))
    }

    /// The statuses one of which is to be seen: the recorded one and, of a pod in a loop, the same with each
    /// state that its restarted containers went through.
    pub fn settled_alternatives(&self) -> Vec<Value> {
        let mut alternatives = vec![self.settled.clone()];
        if !self.loops() {
            return alternatives;
        }
        for transition in self.transitions.iter().filter(|transition| transition["deleting"] == false) {
            let mut other = self.settled.clone();
            for list in ["initContainerStatuses", "containerStatuses"] {
                for status in other[list].as_array_mut().into_iter().flatten() {
                    let seen = &transition["containers"][status["name"].as_str().expect("a name")];
                    let restarted = seen[3].as_u64().is_some_and(|count| count > 0);
                    if restarted && !seen[0]["running"].is_object() {
                        status["state"] = seen[0].clone();
                    }
                }
            }
            alternatives.push(other);
        }
        alternatives
    }

    pub fn end(&self) -> &Value {
        self.transitions.last().expect("an end")
    }
}
