//! Work on configuration documents before they get a type: paths into them, null fields, merging.

use serde_json::{Map, Value};

/// The place of the dotted `path`, made if it is not there (as null). `None` if something on the way is
/// not an object; the typed reading will say so with the field's name.
pub(super) fn entry_at<'a>(document: &'a mut Map<String, Value>, path: &str) -> Option<&'a mut Value> {
    match path.split_once('.') {
        None => Some(document.entry(path).or_insert(Value::Null)),
        Some((parent, rest)) => {
            let child = document.entry(parent).or_insert_with(|| Value::Object(Map::new()));
            entry_at(child.as_object_mut()?, rest)
        }
    }
}

/// The value at the dotted `path`, if there is one.
pub(super) fn get<'a>(document: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    match path.split_once('.') {
        None => document.get(path),
        Some((parent, rest)) => get(document.get(parent)?.as_object()?, rest),
    }
}

/// An explicit null means the same as an absent field.
pub(super) fn drop_nulls(document: &mut Map<String, Value>) {
    document.retain(|_, value| !value.is_null());
    for value in document.values_mut() {
        if let Value::Object(inner) = value {
            drop_nulls(inner);
        }
    }
}

/// JSON merge patch (RFC 7396): objects merge, everything else replaces, null removes.
pub(super) fn merge_patch(target: &mut Map<String, Value>, patch: Map<String, Value>) {
    for (key, value) in patch {
        match value {
            Value::Null => {
                target.remove(&key);
            }
            Value::Object(inner) => {
                let slot = target.entry(key).or_insert(Value::Null);
                if !slot.is_object() {
                    *slot = Value::Object(Map::new());
                }
                if let Value::Object(existing) = slot {
                    merge_patch(existing, inner);
                }
            }
            other => {
                target.insert(key, other);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().expect("an object").clone()
    }

    #[test]
    fn merge_patch_follows_the_rfc() {
        // The cases of RFC 7396, appendix A, whose target and patch are objects.
        for (target, patch, expect) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        ] {
            let mut merged = object(target);
            merge_patch(&mut merged, object(patch));
            assert_eq!(Value::Object(merged), expect);
        }
    }

    #[test]
    fn paths_reach_in_and_nulls_go() {
        let mut document = object(json!({"a": {"b": 1, "n": null}, "s": "text", "gone": null}));
        *entry_at(&mut document, "a.c").unwrap() = json!(2);
        *entry_at(&mut document, "x.y.z").unwrap() = json!(3);
        assert!(entry_at(&mut document, "s.t").is_none());
        drop_nulls(&mut document);
        assert_eq!(get(&document, "a.b"), Some(&json!(1)));
        assert_eq!(get(&document, "a.b.c"), None);
        assert_eq!(
            Value::Object(document),
            json!({"a": {"b": 1, "c": 2}, "s": "text", "x": {"y": {"z": 3}}})
        );
    }
}
