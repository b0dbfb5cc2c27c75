//! A RuntimeClass in a file: the table entry that an API server would otherwise tell of.

use k8s_openapi::api::node::v1 as api;
use model::runtime_class::RuntimeClass;
use serde_json::Value;

use super::ManifestErrorKind;
use super::validate::syntax;

/// Name and class. What concerns schedulers is not looked at.
pub fn decode(document: Value) -> Result<(String, RuntimeClass), ManifestErrorKind> {
    let invalid = |what: String| ManifestErrorKind::RuntimeClass(what);
    let class: api::RuntimeClass =
        model::codec::from_value(&document).map_err(|error| invalid(error.to_string()))?;
    let name = class.metadata.name.unwrap_or_default();
    if let Some(fault) = syntax::dns_subdomain(&name).first() {
        return Err(invalid(format!("metadata.name: {name:?}: {fault}")));
    }
    if let Some(fault) = syntax::dns_label(&class.handler).first() {
        return Err(invalid(format!("handler: {:?}: {fault}", class.handler)));
    }
    let overhead = class.overhead.and_then(|overhead| overhead.pod_fixed).unwrap_or_default();
    for (resource, amount) in &overhead {
        let fault = match amount.0.parse::<model::quantity::Quantity>() {
            Ok(amount) if !amount.is_negative() => continue,
            Ok(_) => "must not be negative".to_owned(),
            Err(error) => error.to_string(),
        };
        return Err(invalid(format!("overhead.podFixed[{resource}]: {fault}")));
    }
    Ok((name, RuntimeClass { handler: class.handler, overhead }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn classes_are_checked() {
        let check = |name: &str, fields: Value, expect: Result<&str, &str>| {
            let mut document = json!({
                "apiVersion": "node.k8s.io/v1",
                "kind": "RuntimeClass",
                "metadata": {"name": "fast"},
                "handler": "crun",
            });
            for (key, value) in fields.as_object().unwrap() {
                document[key] = value.clone();
            }
            let got = decode(document).map(|(name, class)| format!("{name} {}", class.handler));
            match (got, expect) {
                (Ok(got), Ok(expect)) => assert_eq!(got, expect, "{name}"),
                (Err(got), Err(expect)) => {
                    assert!(got.to_string().contains(expect), "{name}: {got}");
                }
                (got, _) => panic!("{name}: {got:?}"),
            }
        };
        check("plain", json!({}), Ok("fast crun"));
        check("scheduling is not ours", json!({"scheduling": {"nodeSelector": {"a": "b"}}}), Ok("fast crun"));
        check("overhead", json!({"overhead": {"podFixed": {"memory": "8Mi"}}}), Ok("fast crun"));
        check("no name", json!({"metadata": {}}), Err("metadata.name"));
        check("a bad name", json!({"metadata": {"name": "A_"}}), Err("metadata.name"));
        check("no handler", json!({"handler": ""}), Err("handler"));
        check("a bad handler", json!({"handler": "Crun x"}), Err("handler"));
        check("bad overhead", json!({"overhead": {"podFixed": {"memory": "lots"}}}), Err("overhead"));
        check("negative overhead", json!({"overhead": {"podFixed": {"memory": "-1"}}}), Err("overhead"));
        check("another shape", json!({"handler": 3}), Err("invalid runtime class"));
    }
}
