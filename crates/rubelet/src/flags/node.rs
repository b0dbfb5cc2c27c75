//! The flags about the node itself that need more than a type: its labels and its addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::config::{label_value_error, qualified_name_error};

/// Labels of the Kubernetes namespaces that a node may give itself.
const ALLOWED_LABELS: &[&str] = &[
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];

/// Namespaces, and those below them, in which a node may label itself freely.
const ALLOWED_NAMESPACES: &[&str] = &["kubelet.kubernetes.io", "node.kubernetes.io"];

/// What is wrong with `--node-labels`, if anything.
pub(super) fn labels_fault(labels: &BTreeMap<String, String>) -> Option<String> {
    let reserved: Vec<&str> = labels.keys().map(String::as_str).filter(|key| !may_set(key)).collect();
    if !reserved.is_empty() {
        return Some(format!(
            "a node may not give itself {}: in the kubernetes.io and k8s.io namespaces only {} and the labels {} are allowed",
            reserved.join(", "),
            ALLOWED_NAMESPACES.join(", "),
            ALLOWED_LABELS.join(", "),
        ));
    }
    labels.iter().find_map(|(key, value)| {
        let fault = qualified_name_error(key).or_else(|| label_value_error(value))?;
        Some(format!("label {key:?}: {fault}"))
    })
}

fn may_set(key: &str) -> bool {
    let namespace = key.split_once('/').map_or("", |(namespace, _)| namespace);
    let within = |parent: &str| {
        namespace.strip_suffix(parent).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    let reserved = within("kubernetes.io") || within("k8s.io");
    !reserved || ALLOWED_LABELS.contains(&key) || ALLOWED_NAMESPACES.iter().any(|allowed| within(allowed))
}

/// The addresses of `--node-ip`, and the parts of it that are none and are left out.
pub(super) fn addresses(text: &str, cloud_provider: &str) -> Result<(Vec<IpAddr>, Vec<String>), String> {
    let mut addresses: Vec<IpAddr> = Vec::new();
    let mut left_out = Vec::new();
    for part in text.split(',').map(str::trim).filter(|_| !text.is_empty()) {
        match part.parse() {
            Ok(address) => addresses.push(address),
            Err(_) => left_out.push(part.to_owned()),
        }
    }
    match addresses[..] {
        [] | [_] => {}
        [first, second] if first.is_ipv4() != second.is_ipv4() => {
            if !["", "external"].contains(&cloud_provider) {
                return Err("two addresses can't be used with this --cloud-provider".to_owned());
            }
            if first.is_unspecified() || second.is_unspecified() {
                return Err("of two addresses, none may be 0.0.0.0 or ::".to_owned());
            }
        }
        _ => return Err("must be one address, or one per IP family".to_owned()),
    }
    Ok((addresses, left_out))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(key: &str, value: &str) -> Option<String> {
        labels_fault(&BTreeMap::from([(key.to_owned(), value.to_owned())]))
    }

    #[test]
    fn a_node_labels_itself_only_where_it_may() {
        for good in [
            "zone",
            "example.com/a",
            "notkubernetes.io/a",
            "kubernetes.io/hostname",
            "topology.kubernetes.io/zone",
            "node.kubernetes.io/anything",
            "x.node.kubernetes.io/a",
            "kubelet.kubernetes.io/a",
        ] {
            assert_eq!(fault(good, "v"), None, "{good}");
        }
        for bad in [
            "node-role.kubernetes.io/worker",
            "kubernetes.io/role",
            "k8s.io/a",
            "x.k8s.io/a",
            "topology.kubernetes.io/rack",
        ] {
            assert!(fault(bad, "v").is_some_and(|text| text.contains(bad)), "{bad}");
        }
        assert!(fault("a b", "v").is_some());
        assert!(fault("a", "v w").is_some());
    }

    #[test]
    fn node_addresses_are_one_or_a_pair() {
        let count = |text: &str| addresses(text, "").map(|(good, bad)| (good.len(), bad.len()));
        assert_eq!(count(""), Ok((0, 0)));
        assert_eq!(count("10.0.0.1"), Ok((1, 0)));
        assert_eq!(count("::"), Ok((1, 0)));
        assert_eq!(count("10.0.0.1, fd00::1"), Ok((2, 0)));
        assert_eq!(count("10.0.0.1,nonsense"), Ok((1, 1)));
        assert!(count("10.0.0.1,10.0.0.2").is_err());
        assert!(count("10.0.0.1,::").is_err());
        assert!(count("10.0.0.1,fd00::1,fd00::2").is_err());
        assert!(addresses("10.0.0.1,fd00::1", "some").is_err());
        assert!(addresses("10.0.0.1,fd00::1", "external").is_ok());
    }
}
