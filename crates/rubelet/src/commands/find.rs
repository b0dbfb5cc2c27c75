//! Which pod is meant.

use model::report::PodReport;

/// How many names an error lists.
const MAX_NAMES_SHOWN: usize = 8;

#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
pub enum FindError {
    #[error("there is no pod {wanted}{}{}", within(namespace.as_deref()), hint(near, *all))]
    NotFound { wanted: String, namespace: Option<String>, near: Vec<String>, all: bool },
    #[error("{wanted} could be any of {}: name one with its namespace", names.join(", "))]
    Ambiguous { wanted: String, names: Vec<String> },
    #[error("two namespaces are given: {given} (option) and {wanted} (argument)")]
    TwoNamespaces { given: String, wanted: String },
}

fn within(namespace: Option<&str>) -> String {
    namespace.map(|namespace| format!(" in namespace {namespace}")).unwrap_or_default()
}

fn hint(near: &[String], all: bool) -> String {
    match (near, all) {
        ([], _) => ": the agent has no pods".into(),
        (near, true) => format!(": the agent has {}", near.join(", ")),
        (near, false) => format!(": did you mean {}?", near.join(", ")),
    }
}

/// The pods that `wanted` means: `name`, `namespace/name` or a UID, where a static pod may be named without the
/// node's name at its end. More than one only when they have the same name: then one of them is going.
pub fn find_pods<'a>(
    pods: &'a [PodReport],
    node: &str,
    wanted: &str,
    namespace: Option<&str>,
) -> Result<Vec<&'a PodReport>, FindError> {
    let (namespace, name) = match (wanted.split_once('/'), namespace) {
        (Some((own, _)), Some(given)) if own != given => {
            return Err(FindError::TwoNamespaces { given: given.into(), wanted: own.into() });
        }
        (Some((own, name)), _) => (Some(own), name),
        (None, given) => (given, wanted),
    };
    let here: Vec<&PodReport> =
        pods.iter().filter(|pod| namespace.is_none_or(|namespace| pod.namespace == namespace)).collect();
    let full = format!("{name}-{node}");
    let ways: [&dyn Fn(&PodReport) -> bool; 3] =
        [&|pod| pod.name == name, &|pod| pod.uid == name, &|pod| pod.name == full && pod.source != "api"];
    let found = ways.iter().map(|way| here.iter().copied().filter(|pod| way(pod)).collect::<Vec<_>>());
    let Some(found) = found.into_iter().find(|found| !found.is_empty()) else {
        let (near, all) = similar_names(&here, name);
        return Err(FindError::NotFound {
            wanted: name.into(),
            namespace: namespace.map(Into::into),
            near,
            all,
        });
    };
    let mut names: Vec<String> = found.iter().map(|pod| full_name(pod)).collect();
    names.sort();
    names.dedup();
    if names.len() > 1 {
        return Err(FindError::Ambiguous { wanted: wanted.into(), names });
    }
    Ok(found)
}

fn full_name(pod: &PodReport) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

/// Names that look alike, or else (and then `true`) just names.
fn similar_names(pods: &[&PodReport], name: &str) -> (Vec<String>, bool) {
    let alike = |pod: &&&PodReport| {
        let start = |text: &str| text.chars().take(3).collect::<String>();
        pod.name.contains(name) || name.contains(&pod.name) || start(&pod.name) == start(name)
    };
    let names = |pods: &mut dyn Iterator<Item = &&PodReport>| -> Vec<String> {
        let mut names: Vec<String> = pods.map(|pod| full_name(pod)).collect();
        names.sort();
        names.dedup();
        names.truncate(MAX_NAMES_SHOWN);
        names
    };
    let near = names(&mut pods.iter().filter(alike));
    if near.is_empty() { (names(&mut pods.iter()), true) } else { (near, false) }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn pod(namespace: &str, name: &str, uid: &str) -> PodReport {
        PodReport {
            namespace: namespace.into(),
            name: name.into(),
            uid: uid.into(),
            source: "file".into(),
            lifecycle: "sync".into(),
            status: "Running".into(),
            ready: 0,
            containers: Vec::new(),
            restarts: 0,
            ip: String::new(),
            since: None,
            log_dir: format!("/var/log/pods/{namespace}_{name}_{uid}"),
        }
    }

    fn pods() -> Vec<PodReport> {
        let mut from_api = pod("default", "api-vm", "u7");
        from_api.source = "api".into();
        vec![
            pod("default", "web-vm", "u1"),
            pod("kube-system", "web-vm", "u2"),
            pod("kube-system", "etcd-vm", "u3"),
            pod("default", "db-vm", "u4"),
            pod("default", "db-vm", "u5"),
            pod("default", "etcd-vm-vm", "u6"),
            from_api,
        ]
    }

    #[test]
    fn pods_are_found_by_every_name() {
        let check = |wanted: &str, namespace: Option<&str>, expect: &[&str]| {
            let pods = pods();
            let found = find_pods(&pods, "vm", wanted, namespace).unwrap();
            assert_eq!(found.iter().map(|pod| pod.uid.as_str()).collect::<Vec<_>>(), expect, "{wanted}");
        };
        check("etcd-vm", None, &["u3"]);
        check("etcd", None, &["u3"]);
        check("etcd", Some("kube-system"), &["u3"]);
        check("etcd-vm", Some("default"), &["u6"]);
        check("web", Some("default"), &["u1"]);
        check("default/web", None, &["u1"]);
        check("default/web-vm", Some("default"), &["u1"]);
        check("u2", None, &["u2"]);
        check("db", None, &["u4", "u5"]);
        check("api-vm", None, &["u7"]);
    }

    #[test]
    fn what_is_not_found_is_told_with_what_there_is() {
        let check = |pods: &[PodReport], wanted: &str, namespace: Option<&str>, expect: &str| {
            assert_eq!(find_pods(pods, "vm", wanted, namespace).unwrap_err().to_string(), expect);
        };
        let pods = pods();
        check(
            &pods,
            "web",
            None,
            "web could be any of default/web-vm, kube-system/web-vm: name one with its namespace",
        );
        check(
            &pods,
            "etc",
            None,
            "there is no pod etc: did you mean default/etcd-vm-vm, kube-system/etcd-vm?",
        );
        check(
            &pods,
            "x",
            Some("kube-system"),
            "there is no pod x in namespace kube-system: the agent has kube-system/etcd-vm, kube-system/web-vm",
        );
        check(&pods, "api", None, "there is no pod api: did you mean default/api-vm?");
        check(&[], "x", None, "there is no pod x: the agent has no pods");
        check(&pods, "a/b", Some("c"), "two namespaces are given: c (option) and a (argument)");
    }
}
