//! Which handler of the runtime a pod asks for by the name of a class, and what that class costs.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::pod::{PodView, Source};
use model::runtime_class::{RuntimeClass, RuntimeClasses};

/// The words of the API server, which users know.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
#[error("runtimeclass.node.k8s.io {name:?} not found")]
pub struct RuntimeClassNotFound {
    pub name: String,
}

/// The name that the pod gives, if it gives one.
pub(crate) fn class_name(pod: &PodView) -> Option<&str> {
    pod.spec().runtime_class_name.as_deref().filter(|name| !name.is_empty())
}

/// The class that the pod names. The cluster's word counts more than that of files on the node.
pub(crate) fn class_of<'a>(
    pod: &PodView,
    tables: &'a BTreeMap<Source, RuntimeClasses>,
) -> Result<Option<&'a RuntimeClass>, RuntimeClassNotFound> {
    let Some(name) = class_name(pod) else { return Ok(None) };
    let found = tables.values().rev().find_map(|table| table.get(name));
    found.map(Some).ok_or_else(|| RuntimeClassNotFound { name: name.to_owned() })
}

/// The pod with its class's cost in the spec, where an API server would have put it: only pods that no API server
/// has seen lack it.
pub(crate) fn with_overhead(pod: PodView, tables: &BTreeMap<Source, RuntimeClasses>) -> PodView {
    if !pod.source.is_static() || pod.spec().overhead.is_some() {
        return pod;
    }
    let cost = class_of(&pod, tables).ok().flatten().map(|class| &class.overhead);
    let Some(cost) = cost.filter(|cost| !cost.is_empty()) else { return pod };
    let mut object = model::k8s::Pod::clone(&pod.pod);
    if let Some(spec) = &mut object.spec {
        spec.overhead = Some(cost.clone());
    }
    pod.with_pod(Arc::new(object))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::render::sample::{pod, static_pod};

    fn table(entries: &[(&str, &str)]) -> RuntimeClasses {
        let class = |handler: &str| RuntimeClass {
            handler: handler.into(),
            overhead: serde_json::from_value(json!({"memory": "8Mi"})).unwrap(),
        };
        entries.iter().map(|(name, handler)| ((*name).to_owned(), class(handler))).collect()
    }

    #[test]
    fn names_lead_to_handlers() {
        let file = || (Source::File, table(&[("fast", "crun"), ("both", "of-file")]));
        let api = || (Source::Api, table(&[("both", "of-api")]));
        let check = |tables: BTreeMap<Source, RuntimeClasses>, name: Value, expect: Result<&str, &str>| {
            let pod = pod(json!({"containers": [], "runtimeClassName": name}));
            let got = class_of(&pod, &tables).map(|class| class.map_or("", |c| c.handler.as_str()));
            assert_eq!(got.map_err(|e| e.to_string()), expect.map_err(str::to_owned), "{name}");
        };
        check([file()].into(), json!(null), Ok(""));
        check([file()].into(), json!(""), Ok(""));
        check([file()].into(), json!("fast"), Ok("crun"));
        check([file()].into(), json!("slow"), Err("runtimeclass.node.k8s.io \"slow\" not found"));
        check([].into(), json!("fast"), Err("runtimeclass.node.k8s.io \"fast\" not found"));
        check([file(), api()].into(), json!("both"), Ok("of-api"));
        check([file(), api()].into(), json!("fast"), Ok("crun"));
    }

    #[test]
    fn static_pods_bear_the_cost_of_their_class() {
        let tables = BTreeMap::from([(Source::File, table(&[("fast", "crun")]))]);
        let spec = || json!({"containers": [], "runtimeClassName": "fast"});
        let memory = |pod: PodView| {
            let overhead = with_overhead(pod, &tables).spec().overhead.clone().unwrap_or_default();
            overhead.get("memory").map(|q| q.0.clone()).unwrap_or_default()
        };
        assert_eq!(memory(static_pod(spec())), "8Mi");
        assert_eq!(memory(pod(spec())), "", "the API server has done so");
        assert_eq!(memory(static_pod(json!({"containers": []}))), "");
        let mut own = spec();
        own["overhead"] = json!({"memory": "1Mi"});
        assert_eq!(memory(static_pod(own)), "1Mi");
    }
}
