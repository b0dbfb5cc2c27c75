//! Making what was recorded and what is seen comparable, and comparing it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::allowed::{Allowed, When};
use super::record::Record;

/// The recorder's cgroup v1 word for "no limit", which showed by chance.
const NO_LIMIT: &str = "9007199254740988Ki";

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    pub pod: String,
    pub path: String,
    pub ours: String,
    pub theirs: String,
}

/// What is particular to one run: replaced by the record's placeholders.
#[derive(Debug, Default, Clone)]
pub struct Particulars {
    pub uids: Vec<String>,
    pub addresses: Vec<String>,
    /// How often the containers of a pod in a loop restarted by now is a matter of time.
    pub loops: bool,
}

impl Particulars {
    pub fn of(record: &Record, pod: &Value) -> Particulars {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let annotations = &pod["metadata"]["annotations"];
        let uids = [&pod["metadata"]["uid"], &annotations["kubernetes.io/config.hash"]];
        let addresses = pod["status"]["podIPs"].as_array().into_iter().flatten();
        Particulars {
            uids: uids.into_iter().filter_map(text).collect(),
            addresses: addresses.filter_map(|address| text(&address["ip"])).collect(),
            loops: record.loops(),
        }
    }

    /// The value without its particulars, without nulls, and without chance.
    pub fn strip(&self, value: &Value) -> Value {
        match value {
            Value::Object(map) => {
                let stripped = map.iter().filter(|(_, value)| !value.is_null());
                let mut stripped: Map<String, Value> =
                    stripped.map(|(key, value)| (key.clone(), self.strip_field(key, value))).collect();
                drop_chance(&mut stripped);
                Value::Object(stripped)
            }
            Value::Array(list) => list.iter().map(|value| self.strip(value)).collect(),
            Value::String(text) => json!(self.strip_text(text)),
            other => other.clone(),
        }
    }

    fn strip_field(&self, key: &str, value: &Value) -> Value {
        match value {
            Value::String(_) if key.ends_with("Time") || key.ends_with("edAt") => json!("<time>"),
            Value::String(text) if key == "imageID" && !text.is_empty() => json!("<image>"),
            Value::Number(count) if key == "restartCount" => self.strip_count(count.as_u64()),
            _ => self.strip(value),
        }
    }

    pub fn strip_count(&self, count: Option<u64>) -> Value {
        if self.loops && count.is_some_and(|count| count > 0) { json!("<some>") } else { json!(count) }
    }

    pub fn strip_text(&self, text: &str) -> String {
        if text.starts_with("containerd://") {
            return "containerd://<id>".to_owned();
        }
        let mut text = text.to_owned();
        for uid in &self.uids {
            text = text.replace(uid.as_str(), "<uid>");
        }
        for address in &self.addresses {
            text = text.replace(address.as_str(), "<pod-ip>");
        }
        for (before, after) in [("back-off ", "s restarting"), ("used: ", ","), ("capacity: ", "")] {
            text = without_number(&text, before, after);
        }
        text
    }
}

/// Replaces the number between two texts.
fn without_number(text: &str, before: &str, after: &str) -> String {
    let Some((head, rest)) = text.split_once(before) else { return text.to_owned() };
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != 'm').unwrap_or(rest.len());
    if end == 0 || !rest[end..].starts_with(after) {
        return text.to_owned();
    }
    format!("{head}{before}<n>{}", &rest[end..])
}

/// "No limit" is no limit, and a list without entries is no list.
fn drop_chance(map: &mut Map<String, Value>) {
    let Some(limits) = map.get_mut("limits").and_then(Value::as_object_mut) else { return };
    limits.retain(|_, amount| amount != NO_LIMIT);
    if limits.is_empty() {
        map.remove("limits");
    }
}

/// What the records keep of each change: phase, conditions and containers.
pub fn transition(pod: &Value) -> Value {
    let status = &pod["status"];
    let conditions: BTreeMap<&str, Value> = status["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|c| (c["type"].as_str().unwrap_or_default(), json!([c["status"], c["reason"]])))
        .collect();
    let containers: BTreeMap<&str, Value> =
        ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"]
            .iter()
            .flat_map(|list| status[list].as_array().into_iter().flatten())
            .map(|c| {
                let seen = json!([c["state"], c["ready"], c["started"], c["restartCount"]]);
                (c["name"].as_str().unwrap_or_default(), seen)
            })
            .collect();
    json!({
        "phase": status["phase"], "reason": status["reason"], "message": status["message"],
        "deleting": pod["metadata"]["deletionTimestamp"].is_string(),
        "conditions": conditions, "containers": containers,
    })
}

/// A recorded or seen end, comparable.
pub fn end(transition: &Value, particulars: &Particulars) -> Value {
    let mut end = particulars.strip(transition);
    if let Some(end) = end.as_object_mut() {
        end.remove("event");
    }
    for container in end["containers"].as_object_mut().into_iter().flat_map(Map::values_mut) {
        container[3] = particulars.strip_count(container[3].as_u64());
    }
    end
}

/// The reasons for which containers waited or ended, whenever.
pub fn reasons<'a>(transitions: impl IntoIterator<Item = &'a Value>) -> BTreeSet<String> {
    let mut reasons = BTreeSet::new();
    for transition in transitions {
        for (name, container) in transition["containers"].as_object().into_iter().flatten() {
            for (kind, state) in container[0].as_object().into_iter().flatten() {
                if let Some(reason) = state["reason"].as_str() {
                    reasons.insert(format!("{name} {kind} {reason}"));
                }
            }
        }
    }
    reasons
}

/// Phases in their order, each once as long as it lasts.
pub fn phases<'a>(transitions: impl IntoIterator<Item = &'a Value>) -> Vec<String> {
    let mut phases: Vec<String> =
        transitions.into_iter().filter_map(|t| t["phase"].as_str().map(str::to_owned)).collect();
    phases.dedup();
    phases
}

/// Type, reason, object and message of each Event.
pub fn events<'a>(events: impl IntoIterator<Item = &'a Value>, of: &Particulars) -> BTreeSet<String> {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let line = |event: &Value| {
        let field = event.get("field").unwrap_or(&event["involvedObject"]["fieldPath"]);
        let message = of.strip_text(&word(&event["message"]));
        format!("{} {} {}: {message}", word(&event["type"]), word(&event["reason"]), word(field))
    };
    events.into_iter().map(line).collect()
}

/// The leaves that differ.
pub fn between(path: &str, ours: &Value, theirs: &Value) -> Vec<(String, Value, Value)> {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            let side = |map: &Map<String, Value>, key: &str| map.get(key).cloned().unwrap_or(Value::Null);
            keys.into_iter()
                .flat_map(|key| between(&format!("{path}.{key}"), &side(a, key), &side(b, key)))
                .collect()
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let pairs = a.iter().zip(b).enumerate();
            pairs.flat_map(|(index, (a, b))| between(&format!("{path}.{index}"), a, b)).collect()
        }
        _ if ours == theirs => Vec::new(),
        _ => vec![(path.to_owned(), ours.clone(), theirs.clone())],
    }
}

/// The same as differences of a pod.
pub fn differences(pod: &str, path: &str, ours: &Value, theirs: &Value) -> Vec<Difference> {
    let named = |(path, ours, theirs): (String, Value, Value)| Difference {
        pod: pod.to_owned(),
        path,
        ours: ours.to_string(),
        theirs: theirs.to_string(),
    };
    between(path, ours, theirs).into_iter().map(named).collect()
}

/// Fails on each difference that the table does not name, and on each entry that names none.
pub fn judge(found: &[Difference], table: &[Allowed]) {
    let unwanted: Vec<String> = found
        .iter()
        .filter(|difference| !table.iter().any(|entry| entry.covers(difference)))
        .map(|d| format!("{} {}\n      ours: {}\n  recorded: {}", d.pod, d.path, d.ours, d.theirs))
        .collect();
    let unused: Vec<String> = table
        .iter()
        .filter(|entry| {
            entry.when == When::Always && !found.iter().any(|difference| entry.covers(difference))
        })
        .map(|entry| format!("{} {} ({})", entry.pod, entry.path, entry.reason))
        .collect();
    let (count, unwanted) = (unwanted.len(), unwanted.join("\n"));
    assert!(count == 0, "{count} differences from the record that nobody wants:\n{unwanted}");
    assert!(unused.is_empty(), "entries of the table that name no difference: {unused:#?}");
}

#[test]
fn what_belongs_to_a_run_is_stripped_and_the_rest_is_not() {
    let of = Particulars { uids: vec!["u-1".into()], addresses: vec!["10.1.2.3".into()], loops: true };
    let seen = json!({
        "startTime": "2026-01-01T00:00:00Z", "podIP": "10.1.2.3", "lastProbeTime": null, "restartCount": 3,
        "resources": {"limits": {"memory": NO_LIMIT}}, "containerID": "containerd://abc", "imageID": "sha256:1",
        "message": "back-off 20s restarting failed container=c pod=p_rec(u-1)",
    });
    let expect = json!({
        "startTime": "<time>", "podIP": "<pod-ip>", "restartCount": "<some>", "resources": {},
        "containerID": "containerd://<id>", "imageID": "<image>",
        "message": "back-off <n>s restarting failed container=c pod=p_rec(<uid>)",
    });
    assert_eq!(of.strip(&seen), expect);
    let found = between("s", &json!({"a": [1, {"b": 2}], "c": 3}), &json!({"a": [1, {"b": 4}], "d": 5}));
    let paths: Vec<&str> = found.iter().map(|(path, _, _)| path.as_str()).collect();
    assert_eq!(paths, ["s.a.1.b", "s.c", "s.d"]);
}
