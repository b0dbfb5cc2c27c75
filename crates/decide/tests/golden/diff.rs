//! Comparing JSON leaf by leaf, and holding the differences against a table.

use serde_json::{Value, json};

/// A difference that we want, and why. `*` stands for any pod or any target (`sandbox`, or a container).
pub struct Allowed {
    pub pod: &'static str,
    pub target: &'static str,
    pub path: &'static str,
    pub reason: &'static str,
}

#[derive(Debug)]
pub struct Difference {
    pub pod: String,
    pub target: String,
    pub path: String,
    pub ours: Value,
    pub theirs: Value,
}

impl Allowed {
    fn covers(&self, difference: &Difference) -> bool {
        let matches = |pattern: &str, text: &str| pattern == "*" || pattern == text;
        matches(self.pod, &difference.pod)
            && matches(self.target, &difference.target)
            && self.path == difference.path
    }
}

/// Makes a message comparable: variables by name (the reference sends them in no order), and without the name of the
/// termination message file, which is random there.
pub fn comparable(mut message: Value) -> Value {
    if let Some(envs) = message.get("envs").and_then(Value::as_array) {
        let mut by_name = serde_json::Map::new();
        for variable in envs {
            let name = variable["key"].as_str().expect("a name").to_owned();
            let twice = by_name.insert(name, variable.get("value").cloned().unwrap_or(json!("")));
            assert!(twice.is_none(), "a variable is there twice: {variable}");
        }
        message["envs"] = Value::Object(by_name);
    }
    for mount in message.get_mut("mounts").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(path) = mount["host_path"].as_str() else { continue };
        let Some((dir, name)) = path.rsplit_once('/').filter(|_| path.contains("/containers/")) else {
            continue;
        };
        let is_hex = name.len() == 8 && name.chars().all(|c| c.is_ascii_digit() || ('a'..='f').contains(&c));
        assert!(is_hex, "not eight hexadecimal digits: {path}");
        mount["host_path"] = json!(format!("{dir}/<hex>"));
    }
    message
}

/// The leaves that differ: path, ours, theirs. An absent one is null.
pub fn between(ours: &Value, theirs: &Value) -> Vec<(String, Value, Value)> {
    let mut found = Vec::new();
    collect("", ours, theirs, &mut found);
    found
}

fn collect(path: &str, ours: &Value, theirs: &Value, found: &mut Vec<(String, Value, Value)>) {
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            let mut keys: Vec<&String> = a.keys().chain(b.keys()).collect();
            keys.sort();
            keys.dedup();
            for key in keys {
                let side =
                    |map: &serde_json::Map<String, Value>| map.get(key).cloned().unwrap_or(Value::Null);
                collect(&below(key), &side(a), &side(b), found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                collect(&below(&index.to_string()), a, b, found);
            }
        }
        _ if ours == theirs => {}
        _ => found.push((path.to_owned(), ours.clone(), theirs.clone())),
    }
}

/// Fails on each difference that the table does not name, and on each entry that names none.
pub fn judge(differences: &[Difference], allowed: &[Allowed]) {
    let unwanted: Vec<String> = differences
        .iter()
        .filter(|difference| !allowed.iter().any(|entry| entry.covers(difference)))
        .map(|d| format!("{} {} {}: {} instead of {}", d.pod, d.target, d.path, d.ours, d.theirs))
        .collect();
    let unused: Vec<&str> = allowed
        .iter()
        .filter(|entry| !differences.iter().any(|difference| entry.covers(difference)))
        .map(|entry| entry.reason)
        .collect();
    assert!(unwanted.is_empty(), "differences that nobody wants:\n{}", unwanted.join("\n"));
    assert!(unused.is_empty(), "entries that name no difference: {unused:?}");
}

#[test]
fn differences_are_found_and_judged() {
    let found = between(&json!({"a": 1, "b": [1, 2], "c": {}}), &json!({"a": 1, "b": [1, 3], "d": 4}));
    let paths: Vec<&str> = found.iter().map(|(path, _, _)| path.as_str()).collect();
    assert_eq!(paths, ["b.1", "c", "d"]);
    let one = |path: &str| Difference {
        pod: "p".into(),
        target: "c".into(),
        path: path.into(),
        ours: json!(1),
        theirs: json!(2),
    };
    let allowed = || [Allowed { pod: "p", target: "*", path: "a", reason: "why" }];
    judge(&[one("a")], &allowed());
    let fails = |differences: Vec<Difference>| {
        std::panic::catch_unwind(move || judge(&differences, &allowed())).is_err()
    };
    assert!(fails(vec![one("a"), one("b")]), "an unwanted difference");
    assert!(fails(vec![]), "an unused entry");
}
