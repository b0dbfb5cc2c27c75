//! What a container sees: its processes look around and print what they find, on a real runtime.
//!
//! Each test runs its pods on one node; a pod's containers each look at one thing.

mod ends;
mod environment;
mod media;
mod namespaces;
mod network;
mod order;
mod resources;
mod security;
mod volumes;

use std::collections::BTreeMap;

use crate::support::harness::{Node, SLOW, wait};
use crate::support::pods::{self, printed};
use serde_json::{Value, json};

/// Looks around and then stays until it is told to go.
fn looking(script: &str) -> String {
    format!("{script}\necho looked; trap 'exit 0' TERM; sleep 3600 & wait")
}

/// A container that looks around, with more fields.
fn looks(name: &str, script: &str, more: Value) -> Value {
    pods::shell_with(name, &looking(script), more)
}

/// A pod's spec with more fields.
fn spec(containers: Value, more: Value) -> Value {
    let mut spec = json!({ "terminationGracePeriodSeconds": 2, "containers": containers });
    for (key, value) in more.as_object().expect("an object") {
        spec[key] = value.clone();
    }
    spec
}

/// What a container that looks around printed, once it is done.
#[track_caller]
fn seen(node: &Node, pod: &Value, container: &str) -> Vec<String> {
    let mut lines = wait(&format!("{container} to have looked around"), SLOW, || {
        let lines = printed(&node.agent, pod, container, 0);
        if lines.last().is_some_and(|line| line == "looked") { Ok(lines) } else { Err(lines.join("\n")) }
    });
    lines.pop();
    lines
}

/// The same, of a container that printed `key=value` lines.
#[track_caller]
fn facts(node: &Node, pod: &Value, container: &str) -> BTreeMap<String, String> {
    let pair = |line: String| {
        let (key, value) = line.split_once('=').unwrap_or((line.as_str(), ""));
        (key.to_owned(), value.to_owned())
    };
    seen(node, pod, container).into_iter().map(pair).collect()
}

/// Removes every manifest and waits until all is gone.
#[track_caller]
fn clear(node: &Node, names: &[&str]) {
    for name in names {
        node.agent.remove_manifest(name);
    }
    node.wait_clean(SLOW);
}
