//! The difference of two Node objects as a strategic merge patch.
//!
//! Lists are replaced as a whole, but for conditions, which are merged by their type. Addresses are said by the API to
//! be merged too; since two of one type may exist, a changed list of them is sent complete and marked as a replacement.

use model::k8s::Node;
use serde_json::{Map, Value, json};

/// `None`: nothing to send. The spec is never part of it.
pub fn patch(before: &Node, after: &Node) -> Option<Value> {
    let mut after = after.clone();
    after.spec = before.spec.clone();
    let addresses = |node: &Node| node.status.as_ref().and_then(|s| s.addresses.clone()).unwrap_or_default();
    let (old, new) = (addresses(before), addresses(&after));
    let replace_addresses = !old.is_empty() && old != new;
    if replace_addresses {
        after.status.get_or_insert_default().addresses = Some(old);
    }
    let mut patch = difference(&to_map(before), &to_map(&after));
    if replace_addresses {
        let mut list: Vec<Value> =
            new.iter().map(|a| json!({"type": a.type_, "address": a.address})).collect();
        list.push(json!({"$patch": "replace"}));
        let status = patch.entry("status").or_insert_with(|| json!({}));
        status["addresses"] = Value::Array(list);
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

fn to_map(node: &Node) -> Map<String, Value> {
    match serde_json::to_value(node) {
        Ok(Value::Object(map)) => map,
        // A struct of the API is a map, always.
        _ => Map::new(),
    }
}

fn difference(before: &Map<String, Value>, after: &Map<String, Value>) -> Map<String, Value> {
    let mut patch = Map::new();
    for key in before.keys().filter(|key| !after.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, new) in after {
        match (before.get(key), new) {
            (Some(old), new) if old == new => {}
            (Some(Value::Object(old)), Value::Object(new)) => {
                patch.insert(key.clone(), Value::Object(difference(old, new)));
            }
            (Some(Value::Array(old)), Value::Array(new)) if key == "conditions" => {
                merge_by_type(&mut patch, key, old, new);
            }
            (_, new) => {
                patch.insert(key.clone(), new.clone());
            }
        }
    }
    patch
}

fn merge_by_type(patch: &mut Map<String, Value>, key: &str, old: &[Value], new: &[Value]) {
    let find = |list: &'_ [Value], kind: &Value| list.iter().find(|item| item["type"] == *kind).cloned();
    let mut changes = Vec::new();
    for item in new {
        match find(old, &item["type"]) {
            Some(before) if before == *item => {}
            Some(Value::Object(before)) if item.is_object() => {
                let mut change = difference(&before, item.as_object().unwrap_or(&Map::new()));
                change.insert("type".into(), item["type"].clone());
                changes.push(Value::Object(change));
            }
            _ => changes.push(item.clone()),
        }
    }
    for item in old.iter().filter(|item| find(new, &item["type"]).is_none()) {
        changes.push(json!({"$patch": "delete", "type": item["type"]}));
    }
    let order = new.iter().map(|item| json!({"type": item["type"]})).collect();
    patch.insert(format!("$setElementOrder/{key}"), Value::Array(order));
    patch.insert(key.to_owned(), Value::Array(changes));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(before: Value, after: Value, expect: Option<Value>) {
        let node = |value: &Value| serde_json::from_value::<Node>(value.clone()).expect("a node");
        assert_eq!(patch(&node(&before), &node(&after)), expect, "{before} {after}");
    }

    #[test]
    fn only_what_differs() {
        let plain = json!({"metadata": {"name": "n", "labels": {"a": "1", "b": "2"}}});
        check(plain.clone(), plain.clone(), None);
        check(
            plain.clone(),
            json!({"metadata": {"name": "n", "labels": {"a": "1", "c": "3"}}, "spec": {"unschedulable": true}}),
            Some(json!({"metadata": {"labels": {"b": null, "c": "3"}}})),
        );
        check(
            json!({"metadata": {}, "status": {"capacity": {"cpu": "2"}, "images": [{"names": ["a"]}]}}),
            json!({"metadata": {}, "status": {"capacity": {"cpu": "4"}, "images": [{"names": ["b"]}]}}),
            Some(json!({"status": {"capacity": {"cpu": "4"}, "images": [{"names": ["b"]}]}})),
        );
    }

    #[test]
    fn conditions_are_merged() {
        let condition =
            |kind: &str, beat: &str| json!({"type": kind, "status": "True", "lastHeartbeatTime": beat});
        let status = |conditions: Value| json!({"metadata": {}, "status": {"conditions": conditions}});
        let (one, two) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:10Z");
        check(
            status(json!([condition("Other", one), condition("Ready", one)])),
            status(json!([condition("Other", one), condition("Ready", two)])),
            Some(json!({"status": {
                "$setElementOrder/conditions": [{"type": "Other"}, {"type": "Ready"}],
                "conditions": [{"type": "Ready", "lastHeartbeatTime": two}],
            }})),
        );
        check(
            status(json!([condition("Old", one)])),
            status(json!([condition("New", one)])),
            Some(json!({"status": {
                "$setElementOrder/conditions": [{"type": "New"}],
                "conditions": [condition("New", one), {"$patch": "delete", "type": "Old"}],
            }})),
        );
    }

    #[test]
    fn addresses_are_replaced() {
        let status = |addresses: Value| json!({"metadata": {}, "status": {"addresses": addresses}});
        let ip = |address: &str| json!({"type": "InternalIP", "address": address});
        check(
            status(json!([ip("192.0.2.1")])),
            status(json!([ip("192.0.2.2"), ip("2001:db8::1")])),
            Some(
                json!({"status": {"addresses": [ip("192.0.2.2"), ip("2001:db8::1"), {"$patch": "replace"}]}}),
            ),
        );
        check(
            json!({"metadata": {}}),
            status(json!([ip("192.0.2.2")])),
            Some(json!({"status": {"addresses": [ip("192.0.2.2")]}})),
        );
    }
}
