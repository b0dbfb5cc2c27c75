//! Manifests that end-to-end tests write, and how they read what became of the pods.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::harness::{Agent, Node, SLOW, wait};

pub const IMAGE: &str = "rubelet.test/busybox:1";
pub const OTHER_IMAGE: &str = "rubelet.test/busybox:2";

/// Runs until it is told to end, and then ends at once.
pub const UNTIL_TERM: &str = "trap 'exit 0' TERM; sleep 3600 & wait";

/// The manifest of a pod. JSON is YAML too.
pub fn manifest(name: &str, spec: Value) -> String {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec }).to_string()
}

/// A container that runs a script in the shell.
pub fn shell(name: &str, script: &str) -> Value {
    json!({ "name": name, "image": IMAGE, "command": ["sh", "-c", script] })
}

/// A container with more fields; those given win.
pub fn shell_with(name: &str, script: &str, more: Value) -> Value {
    let mut container = shell(name, script);
    for (key, value) in more.as_object().expect("an object") {
        container[key] = value.clone();
    }
    container
}

/// A pod of one container that runs until it is told to end.
pub fn simple(name: &str) -> String {
    manifest(name, json!({ "terminationGracePeriodSeconds": 2, "containers": [shell("c", UNTIL_TERM)] }))
}

pub fn uid(pod: &Value) -> &str {
    pod["metadata"]["uid"].as_str().expect("a pod's uid")
}

pub fn phase(pod: &Value) -> &str {
    pod["status"]["phase"].as_str().unwrap_or_default()
}

pub fn is_running(pod: &Value) -> bool {
    phase(pod) == "Running" && is_ready(pod)
}

pub fn is_ready(pod: &Value) -> bool {
    condition(pod, "Ready")["status"] == "True"
}

pub fn condition<'a>(pod: &'a Value, kind: &str) -> &'a Value {
    let conditions = pod["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().find(|condition| condition["type"] == kind).unwrap_or(&Value::Null)
}

/// The status of a container of any kind; null while there is none.
pub fn container<'a>(pod: &'a Value, name: &str) -> &'a Value {
    ["containerStatuses", "initContainerStatuses"]
        .iter()
        .filter_map(|list| pod["status"][list].as_array())
        .flatten()
        .find(|status| status["name"] == name)
        .unwrap_or(&Value::Null)
}

pub fn restarts(pod: &Value, name: &str) -> i64 {
    container(pod, name)["restartCount"].as_i64().unwrap_or_default()
}

/// The reason why a container waits; null when it doesn't.
pub fn waiting<'a>(pod: &'a Value, name: &str) -> &'a Value {
    &container(pod, name)["state"]["waiting"]
}

/// How a container ended; null when it didn't.
pub fn terminated<'a>(pod: &'a Value, name: &str) -> &'a Value {
    &container(pod, name)["state"]["terminated"]
}

/// The id of a container in the runtime, without the runtime's name.
pub fn container_id(pod: &Value, name: &str) -> String {
    let id = container(pod, name)["containerID"].as_str().unwrap_or_default();
    id.split_once("://").map(|(_, id)| id.to_owned()).unwrap_or_default()
}

/// What a container's attempt printed to its standard output, without the runtime's stamps.
pub fn printed(agent: &Agent, pod: &Value, container: &str, attempt: u32) -> Vec<String> {
    let text = |line: &str| {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        (words.get(1) == Some(&"stdout")).then(|| words.get(3).copied().unwrap_or_default().to_owned())
    };
    agent.container_log(pod, container, attempt).lines().filter_map(text).collect()
}

/// Waits until a container's attempt has printed exactly this: that it runs does not mean that it has spoken.
#[track_caller]
pub fn wait_printed(agent: &Agent, pod: &Value, container: &str, attempt: u32, expect: &[&str]) {
    wait(&format!("{container} to print {expect:?}"), SLOW, || {
        match printed(agent, pod, container, attempt) {
            lines if lines == expect => Ok(()),
            lines => Err(format!("{lines:?}")),
        }
    });
}

/// What a human command says about this agent.
///
/// # Panics
/// When the command fails, with what it said.
#[track_caller]
pub fn said(agent: &Agent, args: &[&str]) -> String {
    let output = agent.command(args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "rubelet {args:?} ended with {}: {error}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The word of `get pods` for where a pod stands.
#[track_caller]
pub fn standing(agent: &Agent, pod: &str) -> String {
    let table = said(agent, &["get", "pods", pod]);
    let row: Vec<&str> = table.lines().nth(1).unwrap_or_default().split_whitespace().collect();
    row.get(3).copied().unwrap_or_default().to_owned()
}

/// A directory of the host that containers append lines to: the order of the lines is the order of what happened,
/// whatever the clocks and the load.
pub struct Journal {
    dir: PathBuf,
}

impl Journal {
    pub fn new(node: &Node) -> Journal {
        let dir = node.runtime.dir.join("journal");
        fs::create_dir_all(&dir).expect("make the journal's directory");
        Journal { dir }
    }

    /// To be mounted as `/journal`.
    pub fn volume(&self) -> Value {
        json!({ "name": "journal", "hostPath": { "path": self.dir, "type": "Directory" } })
    }

    pub fn mount() -> Value {
        json!({ "name": "journal", "mountPath": "/journal" })
    }

    /// Something that containers can wait for.
    pub fn put(&self, name: &str) {
        fs::write(self.dir.join(name), "").expect("write into the journal");
    }

    /// Waits until each word was written so often: that a container runs does not mean that it has written.
    #[track_caller]
    pub fn wait_counts(&self, expect: &[(&str, usize)]) {
        wait(&format!("{expect:?} in the journal"), SLOW, || {
            let lines = self.lines();
            let count = |word: &str| lines.iter().filter(|line| *line == word).count();
            match expect.iter().all(|(word, wanted)| count(word) == *wanted) {
                true => Ok(()),
                false => Err(format!("{lines:?}")),
            }
        });
    }

    pub fn lines(&self) -> Vec<String> {
        let text = fs::read_to_string(self.dir.join("lines")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}
