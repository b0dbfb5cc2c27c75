//! Timestamps that containers write themselves: what happened, in which order, and when by the machine's clock. Tests
//! check these and not what the agent reports.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::harness::{Node, SLOW, wait};
use crate::support::pods::{manifest, shell_with};

/// A directory of the host that the containers of one pod see as `/stamps`.
pub struct Timestamps {
    dir: PathBuf,
}

/// Seconds since the machine came up, in hundredths: the same clock for everybody on it.
#[derive(Clone, Debug, PartialEq)]
pub struct Timestamp {
    pub at: f64,
    pub word: String,
}

/// Appending one line is one write: lines never mix, and their order is that of the writes.
const STAMP: &str = "stamp() { read at rest </proc/uptime; echo $at $1 >>/stamps/log; }\n";

/// Waits for [`Timestamps::put`].
pub fn until(name: &str) -> String {
    format!("until test -e /stamps/{name}; do sleep 0.05; done")
}

/// A script that can set stamps.
pub fn stamping(script: &str) -> String {
    format!("{STAMP}{script}")
}

/// `<name>-up`, then nothing until it is told to end; then `<name>-term`, and half a second later `<name>-down`.
pub fn stays(name: &str) -> String {
    format!(
        "trap 'stamp {name}-term; sleep 0.5; stamp {name}-down; exit 0' TERM; stamp {name}-up; sleep 3600 & wait"
    )
}

/// It does not listen: it says that it was told to end (`<name>-term`), and stamps `<name>-alive` until it is killed.
pub fn deaf(name: &str) -> String {
    format!("trap 'stamp {name}-term' TERM; stamp {name}-up; while :; do stamp {name}-alive; sleep 0.1; done")
}

pub fn container(name: &str, script: &str, more: Value) -> Value {
    let mut fields = json!({ "volumeMounts": [{ "name": "stamps", "mountPath": "/stamps" }] });
    for (key, value) in more.as_object().expect("an object") {
        fields[key] = value.clone();
    }
    shell_with(name, &stamping(script), fields)
}

pub fn sidecar(name: &str, script: &str, more: Value) -> Value {
    let mut container = container(name, script, more);
    container["restartPolicy"] = json!("Always");
    container
}

/// A hook or the handler of a probe, that can set stamps.
pub fn exec(script: &str) -> Value {
    json!({ "exec": { "command": ["sh", "-c", stamping(script)] } })
}

/// Now, by the clock of the stamps.
pub fn now() -> f64 {
    let text = fs::read_to_string("/proc/uptime").expect("the machine's clock");
    text.split(' ').next().and_then(|word| word.parse().ok()).expect("seconds")
}

impl Timestamps {
    pub fn new(node: &Node, name: &str) -> Timestamps {
        let dir = node.runtime.dir.join(format!("stamps-{name}"));
        fs::create_dir_all(&dir).expect("make a directory for stamps");
        Timestamps { dir }
    }

    /// The manifest of a pod whose containers stamp here.
    pub fn pod(&self, name: &str, mut spec: Value) -> String {
        spec["volumes"] =
            json!([{ "name": "stamps", "hostPath": { "path": self.dir, "type": "Directory" } }]);
        manifest(name, spec)
    }

    /// The same with a UID of its own, so that a change of the manifest is a change of this pod.
    pub fn pod_with_uid(&self, name: &str, spec: Value, metadata: Value) -> String {
        let mut pod: Value = serde_json::from_str(&self.pod(name, spec)).expect("a manifest");
        pod["metadata"]["uid"] = json!(format!("0f8f5e0e-0000-4000-8000-{:0>12}", name_number(name)));
        for (key, value) in metadata.as_object().expect("an object") {
            pod["metadata"][key] = value.clone();
        }
        pod.to_string()
    }

    /// Something that containers can wait for.
    pub fn put(&self, name: &str) {
        fs::write(self.dir.join(name), "").expect("write for the containers");
    }

    pub fn all(&self) -> Vec<Timestamp> {
        let text = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        let stamp = |line: &str| {
            let (at, word) = line.split_once(' ').expect("a time and a word");
            Timestamp { at: at.parse().expect("a time"), word: word.to_owned() }
        };
        text.lines().map(stamp).collect()
    }

    pub fn words(&self) -> Vec<String> {
        self.all().into_iter().map(|stamp| stamp.word).collect()
    }

    pub fn count(&self, word: &str) -> usize {
        self.words().iter().filter(|found| *found == word).count()
    }

    /// When that was stamped first.
    #[track_caller]
    pub fn first(&self, word: &str) -> f64 {
        self.times(word)[0]
    }

    #[track_caller]
    pub fn last(&self, word: &str) -> f64 {
        *self.times(word).last().expect("a time")
    }

    /// When that was stamped; at least once.
    #[track_caller]
    pub fn times(&self, word: &str) -> Vec<f64> {
        let all = self.all();
        let times: Vec<f64> = all.iter().filter(|stamp| stamp.word == word).map(|stamp| stamp.at).collect();
        assert!(!times.is_empty(), "no {word} in {all:?}");
        times
    }

    #[track_caller]
    pub fn wait_for(&self, word: &str) {
        self.wait_count(word, 1);
    }

    #[track_caller]
    pub fn wait_count(&self, word: &str, count: usize) {
        wait(&format!("{count} times {word:?}"), SLOW, || match self.count(word) {
            found if found >= count => Ok(()),
            _ => Err(format!("{:?}", self.words())),
        });
    }

    /// Each was stamped, in this order, with anything in between.
    #[track_caller]
    pub fn check_order(&self, expect: &[&str]) {
        let words = self.words();
        let mut rest = words.iter();
        for word in expect {
            assert!(rest.any(|found| found == word), "{word:?} is missing or out of order in {words:?}");
        }
    }
}

/// Twelve digits that are the name's own.
fn name_number(name: &str) -> u64 {
    name.bytes().fold(7, |sum: u64, byte| (sum * 131 + u64::from(byte)) % 1_000_000_000_000)
}
