//! A strategic merge patch from one status to another: only what differs.
//!
//! Conditions and addresses are merged by their key on the server, so others' entries are safe; every other list is
//! replaced as a whole.

use std::collections::BTreeSet;

use model::k8s::PodStatus;
use serde_json::{Map, Value, json};

/// Lists that the server merges, with the key that tells their entries apart.
const MERGED: [(&str, &str); 3] = [("conditions", "type"), ("podIPs", "ip"), ("hostIPs", "ip")];

/// `None`: nothing differs. The value is what belongs below `status`.
pub fn patch(from: &PodStatus, to: &PodStatus) -> Option<Value> {
    let (from, to) = (object(from), object(to));
    let mut patch = Map::new();
    for key in from.keys().chain(to.keys()).collect::<BTreeSet<_>>() {
        let (old, new) = (from.get(key), to.get(key));
        if same(old, new) {
            continue;
        }
        match MERGED.iter().find(|(list, _)| list == key) {
            Some((_, by)) => merged_list(&mut patch, key, by, entries(old), entries(new)),
            None => {
                patch.insert(key.clone(), difference(old, new));
            }
        }
    }
    if patch.is_empty() {
        return None;
    }
    // No reason to write, but when something is written, readers get what upstream's kubelet gives them.
    let there = |key: &String| from.get(key).is_some_and(|old| !old.is_null());
    for (key, new) in to.iter().filter(|(key, new)| **new == json!({}) && !there(key)) {
        patch.insert(key.clone(), new.clone());
    }
    Some(Value::Object(patch))
}

/// Whether the patch says nothing but how one condition is now.
pub fn is_only_of(patch: &Value, condition: &str) -> bool {
    let fields = patch.as_object().into_iter().flat_map(Map::keys);
    let mut fields = fields.filter(|key| !key.starts_with('$'));
    fields.all(|key| key == "conditions")
        && entries(patch.get("conditions")).iter().all(|c| c["type"] == condition)
}

fn object(status: &PodStatus) -> Map<String, Value> {
    match serde_json::to_value(status) {
        Ok(Value::Object(map)) => map,
        // a status is an object whose keys are strings: there is nothing that could fail
        _ => Map::new(),
    }
}

fn entries(list: Option<&Value>) -> &[Value] {
    list.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// What the server leaves out and what it writes as empty mean the same.
fn same(a: Option<&Value>, b: Option<&Value>) -> bool {
    match (a.filter(|v| !is_empty(v)), b.filter(|v| !is_empty(v))) {
        (None, None) => true,
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            a.keys().chain(b.keys()).all(|key| same(a.get(key), b.get(key)))
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(Some(a), Some(b)))
        }
        (a, b) => a == b,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.values().all(is_empty),
        Value::Array(list) => list.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

fn difference(old: Option<&Value>, new: Option<&Value>) -> Value {
    match (old, new) {
        (Some(Value::Object(old)), Some(Value::Object(new))) => {
            let keys: BTreeSet<_> = old.keys().chain(new.keys()).collect();
            let changed = keys.into_iter().filter(|key| !same(old.get(*key), new.get(*key)));
            changed.map(|key| (key.clone(), difference(old.get(key), new.get(key)))).collect()
        }
        (_, Some(new)) => new.clone(),
        (_, None) => Value::Null,
    }
}

fn merged_list(patch: &mut Map<String, Value>, key: &str, by: &str, old: &[Value], new: &[Value]) {
    let find = |list: &'_ [Value], id: &Value| list.iter().find(|e| e.get(by) == Some(id)).cloned();
    let mut changes = Vec::new();
    for entry in new {
        let Some(id) = entry.get(by) else { continue };
        let before = find(old, id);
        if same(before.as_ref(), Some(entry)) {
            continue;
        }
        let mut change = difference(before.as_ref(), Some(entry));
        if let Value::Object(change) = &mut change {
            change.insert(by.to_owned(), id.clone());
        }
        changes.push(change);
    }
    for entry in old {
        if let Some(id) = entry.get(by).filter(|id| find(new, id).is_none()) {
            changes.push(json!({"$patch": "delete", by: id}));
        }
    }
    let order: Vec<Value> = new.iter().filter_map(|e| e.get(by)).map(|id| json!({by: id})).collect();
    patch.insert(format!("$setElementOrder/{key}"), Value::Array(order));
    if !changes.is_empty() {
        patch.insert(key.to_owned(), Value::Array(changes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, from: Value, to: Value, expect: Option<Value>) {
        let status = |v: Value| serde_json::from_value::<PodStatus>(v).expect("a status");
        assert_eq!(patch(&status(from), &status(to)), expect, "{name}");
    }

    #[test]
    fn only_what_differs_is_sent() {
        check("nothing", json!({"phase": "Running"}), json!({"phase": "Running"}), None);
        check(
            "a word",
            json!({"phase": "Pending", "podIP": "1"}),
            json!({"phase": "Running", "podIP": "1"}),
            Some(json!({"phase": "Running"})),
        );
        check("gone", json!({"reason": "x"}), json!({}), Some(json!({"reason": null})));
        check(
            "inside an object",
            json!({"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}}),
            json!({"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}}),
            Some(json!({"resources": {"requests": {"cpu": "2"}}})),
        );
    }

    #[test]
    fn empty_and_missing_are_the_same() {
        let container = |extra: Value| {
            let mut value =
                json!({"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0});
            value.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            json!({"containerStatuses": [value]})
        };
        check("a last state of nothing", container(json!({"lastState": {}})), container(json!({})), None);
        check("no text", json!({"message": ""}), json!({}), None);
        check("no list", json!({"conditions": []}), json!({}), None);
        check("no resources", json!({}), json!({"resources": {}}), None);
        check(
            "no resources, with something else",
            json!({}),
            json!({"phase": "Running", "resources": {}}),
            Some(json!({"phase": "Running", "resources": {}})),
        );
        check(
            "no resources, as before",
            json!({"resources": {}}),
            json!({"phase": "Running", "resources": {}}),
            Some(json!({"phase": "Running"})),
        );
    }

    #[test]
    fn lists_of_containers_are_replaced_as_a_whole() {
        let one = |ready: bool| json!({"name": "c", "image": "i", "imageID": "x", "ready": ready, "restartCount": 0});
        check(
            "readiness",
            json!({"containerStatuses": [one(false)]}),
            json!({"containerStatuses": [one(true)]}),
            Some(json!({"containerStatuses": [one(true)]})),
        );
    }

    #[test]
    fn conditions_are_merged_by_their_type() {
        check(
            "one changes, its reason goes; another comes; one of ours is no more",
            json!({"conditions": [
                {"type": "gate", "status": "True"},
                {"type": "Ready", "status": "False", "reason": "ContainersNotReady"},
                {"type": "PodResizePending", "status": "True"},
            ]}),
            json!({"conditions": [
                {"type": "gate", "status": "True"},
                {"type": "Ready", "status": "True"},
                {"type": "PodScheduled", "status": "True"},
            ]}),
            Some(json!({
                "$setElementOrder/conditions": [{"type": "gate"}, {"type": "Ready"}, {"type": "PodScheduled"}],
                "conditions": [
                    {"type": "Ready", "status": "True", "reason": null},
                    {"type": "PodScheduled", "status": "True"},
                    {"$patch": "delete", "type": "PodResizePending"},
                ],
            })),
        );
    }

    #[test]
    fn a_patch_of_one_condition_is_known_as_such() {
        let order = "$setElementOrder/conditions";
        for (patch, expect) in [
            (json!({order: [], "conditions": [{"type": "A", "status": "True"}]}), true),
            (json!({"conditions": [{"type": "A", "status": "True"}, {"type": "B", "reason": "x"}]}), false),
            (json!({"conditions": [{"type": "A", "status": "True"}], "phase": "Failed"}), false),
        ] {
            assert_eq!(is_only_of(&patch, "A"), expect, "{patch}");
        }
    }

    #[test]
    fn addresses_are_merged_by_themselves() {
        check(
            "a new sandbox, a new address",
            json!({"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}),
            json!({"podIP": "10.0.0.2", "podIPs": [{"ip": "10.0.0.2"}]}),
            Some(json!({
                "podIP": "10.0.0.2",
                "$setElementOrder/podIPs": [{"ip": "10.0.0.2"}],
                "podIPs": [{"ip": "10.0.0.2"}, {"$patch": "delete", "ip": "10.0.0.1"}],
            })),
        );
    }
}
