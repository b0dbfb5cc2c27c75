//! The flag values with a grammar of their own: comma-separated lists with quotes, taints, NUMA memory.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::config::{
    QuantityText, TAINT_EFFECTS, is_reservable_memory, label_value_error, qualified_name_error,
};

/// One line of CSV: a field in double quotes may hold commas, and `""` in it is one quote.
pub(super) fn comma_separated(text: &str) -> Result<Vec<Value>, String> {
    let mut fields = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (field, tail) = match rest.strip_prefix('"') {
            Some(quoted) => quoted_field(quoted)?,
            None => {
                let (field, tail) = rest.split_at(rest.find(',').unwrap_or(rest.len()));
                if field.contains('"') {
                    return Err(format!("a quote inside {field:?}"));
                }
                (field.to_owned(), tail)
            }
        };
        fields.push(json!(field));
        rest = match tail.strip_prefix(',') {
            Some("") => {
                fields.push(json!(""));
                ""
            }
            Some(more) => more,
            None => tail,
        };
    }
    Ok(fields)
}

/// The field after its opening quote, and what follows its closing one.
fn quoted_field(text: &str) -> Result<(String, &str), String> {
    let mut field = String::new();
    let mut rest = text;
    while let Some(end) = rest.find('"') {
        field.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix('"') {
            Some(after) => {
                field.push('"');
                rest = after;
            }
            None if rest.is_empty() || rest.starts_with(',') => return Ok((field, rest)),
            None => break,
        }
    }
    Err(format!("a quote that is not closed in {text:?}"))
}

/// `key=value:effect,...`. The whole list at once: a later flag replaces an earlier one.
pub(super) fn taints(text: &str) -> Result<Value, String> {
    let mut taints = Vec::new();
    let mut seen = BTreeSet::new();
    for spec in text.split(',').filter(|_| !text.is_empty()) {
        // A trailing dash asks for removal, which makes no sense for a new node and is ignored.
        if let Some(removal) = spec.strip_suffix('-') {
            taint(removal)?;
            continue;
        }
        let (key, value, effect) = taint(spec)?;
        if effect.is_empty() {
            return Err(format!("{spec:?} has no effect part (key=value:effect)"));
        }
        if !seen.insert((key, effect)) {
            return Err(format!("{key:?} with effect {effect} is given twice"));
        }
        let mut taint =
            Map::from_iter([("key".to_owned(), json!(key)), ("effect".to_owned(), json!(effect))]);
        if !value.is_empty() {
            taint.insert("value".to_owned(), json!(value));
        }
        taints.push(Value::Object(taint));
    }
    Ok(Value::Array(taints))
}

fn taint(spec: &str) -> Result<(&str, &str, &str), String> {
    let (label, effect) = spec.split_once(':').unwrap_or((spec, ""));
    if spec.contains(':') && !TAINT_EFFECTS.contains(&effect) {
        return Err(format!("{effect:?} in {spec:?} is not one of {}", TAINT_EFFECTS.join(", ")));
    }
    let (key, value) = label.split_once('=').unwrap_or((label, ""));
    match qualified_name_error(key).or_else(|| label_value_error(value)) {
        Some(fault) => Err(format!("{spec:?}: {fault}")),
        None => Ok((key, value, effect)),
    }
}

/// `node:type=quantity,...;node:...`
pub(super) fn reserved_memory(text: &str) -> Result<Vec<Value>, String> {
    let mut reservations = Vec::new();
    for reservation in text.split(';').filter(|_| !text.is_empty()) {
        let malformed =
            || format!("{reservation:?} is not of the form node:type=quantity[,type=quantity...]");
        let (node, limits) = reservation.split_once(':').ok_or_else(malformed)?;
        let node: i32 = node.parse().map_err(|_| malformed())?;
        let mut amounts = Map::new();
        for limit in limits.split(',') {
            let (resource, amount) = limit.split_once('=').ok_or_else(malformed)?;
            if !is_reservable_memory(resource) {
                return Err(format!("{resource:?} is neither memory nor hugepages-<size>"));
            }
            let amount =
                QuantityText::parse(amount).ok_or_else(|| format!("{amount:?} is not a quantity"))?;
            amounts.insert(resource.to_owned(), json!(amount));
        }
        reservations.push(json!({"numaNode": node, "limits": amounts}));
    }
    Ok(reservations)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_one_line_of_csv() {
        for (text, expect) in [
            ("", json!([])),
            ("a", json!(["a"])),
            ("a,b", json!(["a", "b"])),
            ("a,,b,", json!(["a", "", "b", ""])),
            (r#""a,b",c"#, json!(["a,b", "c"])),
            (r#""say ""hi""","#, json!([r#"say "hi""#, ""])),
        ] {
            assert_eq!(comma_separated(text).map(Value::Array), Ok(expect), "{text:?}");
        }
        for bad in [r#"a"b"#, r#""a"#, r#""a"b"#] {
            assert!(comma_separated(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn taints_are_checked_while_they_are_read() {
        assert_eq!(
            taints("a=b:NoSchedule,example.com/c:NoExecute,gone:NoSchedule-"),
            Ok(json!([
                {"key": "a", "value": "b", "effect": "NoSchedule"},
                {"key": "example.com/c", "effect": "NoExecute"},
            ]))
        );
        assert_eq!(taints(""), Ok(json!([])));
        for bad in [
            "a=b",
            "a=b:Never",
            "a=b=c:NoSchedule",
            ":NoSchedule",
            "a:NoSchedule:x",
            "a:NoSchedule,a=b:NoSchedule",
            "a:",
        ] {
            assert!(taints(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn numa_memory_is_read() {
        assert_eq!(
            reserved_memory("0:memory=1Gi,hugepages-1M=2Gi;1:memory=2Gi").map(Value::Array),
            Ok(json!([
                {"numaNode": 0, "limits": {"memory": "1Gi", "hugepages-1M": "2Gi"}},
                {"numaNode": 1, "limits": {"memory": "2Gi"}},
            ]))
        );
        for bad in ["0", "x:memory=1Gi", "0:memory", "0:cpu=1", "0:memory=lots", "0:memory=1Gi;"] {
            assert!(reserved_memory(bad).is_err(), "{bad:?}");
        }
    }
}
