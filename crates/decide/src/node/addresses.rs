//! Which addresses the Node object shows.

use std::net::IpAddr;

use model::k8s::{Node, NodeAddress};
use model::node::{HostAddresses, NodeObjectConfig};

const PROVIDED_NODE_IP: &str = "alpha.kubernetes.io/provided-node-ip";

#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum AddressError {
    #[error("failed to validate nodeIP: {0}")]
    Unusable(#[from] UnusableAddress),
    #[error("can't get ip address of node {node}. error: no default routes found")]
    None { node: String },
}

/// Why an address can't be this node's.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum UnusableAddress {
    #[error("nodeIP can't be loopback address")]
    Loopback,
    #[error("nodeIP can't be a multicast address")]
    Multicast,
    #[error("nodeIP can't be a link-local unicast address")]
    LinkLocal,
    #[error("nodeIP can't be an all zeros address")]
    Unspecified,
    #[error("node IP: {0:?} not found in the host's network interfaces")]
    NotHere(String),
}

pub(super) fn validate(ip: IpAddr, host: &HostAddresses) -> Result<(), UnusableAddress> {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    if ip.is_loopback() {
        Err(UnusableAddress::Loopback)
    } else if ip.is_multicast() {
        Err(UnusableAddress::Multicast)
    } else if link_local {
        Err(UnusableAddress::LinkLocal)
    } else if ip.is_unspecified() {
        Err(UnusableAddress::Unspecified)
    } else if !host.local.contains(&ip) {
        Err(UnusableAddress::NotHere(ip.to_string()))
    } else {
        Ok(())
    }
}

/// Sets the addresses, and what tells an external cloud provider which one was asked for.
pub(super) fn set(
    node: &mut Node,
    setup: &NodeObjectConfig,
    host: &HostAddresses,
) -> Result<(), AddressError> {
    let specified: Vec<IpAddr> = setup.node_ips.iter().copied().filter(|ip| !ip.is_unspecified()).collect();
    for ip in &specified {
        validate(*ip, host)?;
    }
    if setup.external_cloud {
        set_provided_ip_annotation(node, &specified);
        let present = node.status.as_ref().and_then(|status| status.addresses.as_deref());
        if present.is_some_and(|addresses| !addresses.is_empty()) {
            return Ok(());
        }
    }
    let internal = match specified[..] {
        [] if setup.external_cloud => Vec::new(),
        [] => vec![detect_node_ip(setup, host)?],
        _ => specified,
    };
    let address = |type_: &str, address: String| NodeAddress { type_: type_.into(), address };
    let mut addresses: Vec<_> = internal.iter().map(|ip| address("InternalIP", ip.to_string())).collect();
    addresses.push(address("Hostname", setup.hostname.clone()));
    node.status.get_or_insert_default().addresses = Some(addresses);
    Ok(())
}

fn set_provided_ip_annotation(node: &mut Node, specified: &[IpAddr]) {
    if specified.is_empty() {
        if let Some(annotations) = &mut node.metadata.annotations {
            annotations.remove(PROVIDED_NODE_IP);
        }
        return;
    }
    let texts: Vec<String> = specified.iter().map(ToString::to_string).collect();
    node.metadata.annotations.get_or_insert_default().insert(PROVIDED_NODE_IP.into(), texts.join(","));
}

/// The hostname if it is an address; what the name resolves to; where the default route leaves from.
fn detect_node_ip(setup: &NodeObjectConfig, host: &HostAddresses) -> Result<IpAddr, AddressError> {
    if let Ok(ip) = setup.hostname.parse() {
        return Ok(ip);
    }
    let prefers_v6 = setup.node_ips.first().is_some_and(IpAddr::is_ipv6);
    let best = |ips: Vec<IpAddr>| {
        let preferred = ips.iter().find(|ip| ip.is_ipv6() == prefers_v6);
        preferred.or(ips.first()).copied()
    };
    let named = host.named.iter().copied().filter(|ip| validate(*ip, host).is_ok()).collect();
    best(named)
        .or_else(|| best(host.routed.clone()))
        .ok_or_else(|| AddressError::None { node: setup.name.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Case {
        node_ips: &'static [&'static str],
        hostname: &'static str,
        external: bool,
        present: &'static [(&'static str, &'static str)],
    }

    const PLAIN: Case = Case { node_ips: &[], hostname: "n", external: false, present: &[] };

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn check(case: Case, named: &[&str], routed: &[&str], expect: Result<&str, &str>) {
        let setup = NodeObjectConfig {
            hostname: case.hostname.into(),
            node_ips: ips(case.node_ips),
            external_cloud: case.external,
            ..NodeObjectConfig::default()
        };
        let host = HostAddresses {
            local: ips(&["192.0.2.1", "192.0.2.2", "2001:db8::1"]),
            named: ips(named),
            routed: ips(routed),
        };
        let mut node = Node::default();
        if !case.present.is_empty() {
            let present = case.present.iter();
            let present = present.map(|(t, a)| NodeAddress { type_: (*t).into(), address: (*a).into() });
            node.status.get_or_insert_default().addresses = Some(present.collect());
        }
        let got = set(&mut node, &setup, &host).map_err(|error| error.to_string()).map(|()| {
            let addresses = node.status.unwrap_or_default().addresses.unwrap_or_default();
            let shown: Vec<String> =
                addresses.into_iter().map(|a| format!("{}={}", a.type_, a.address)).collect();
            let provided = node.metadata.annotations.unwrap_or_default().remove(PROVIDED_NODE_IP);
            shown.into_iter().chain(provided).collect::<Vec<_>>().join(" ")
        });
        assert_eq!(got.as_deref().map_err(String::as_str), expect);
    }

    #[test]
    fn the_given_one_the_named_one_or_the_routed_one() {
        check(PLAIN, &["192.0.2.2"], &["192.0.2.1"], Ok("InternalIP=192.0.2.2 Hostname=n"));
        check(PLAIN, &["198.51.100.9"], &["192.0.2.1"], Ok("InternalIP=192.0.2.1 Hostname=n"));
        check(PLAIN, &["2001:db8::1", "192.0.2.2"], &[], Ok("InternalIP=192.0.2.2 Hostname=n"));
        check(PLAIN, &["2001:db8::1"], &[], Ok("InternalIP=2001:db8::1 Hostname=n"));
        let six = || Case { node_ips: &["::"], ..PLAIN };
        check(six(), &["192.0.2.2", "2001:db8::1"], &[], Ok("InternalIP=2001:db8::1 Hostname=n"));
        check(six(), &[], &["192.0.2.1", "2001:db8::1"], Ok("InternalIP=2001:db8::1 Hostname=n"));
        check(
            Case { hostname: "198.51.100.7", ..PLAIN },
            &[],
            &[],
            Ok("InternalIP=198.51.100.7 Hostname=198.51.100.7"),
        );
        check(PLAIN, &[], &[], Err("can't get ip address of node node. error: no default routes found"));
    }

    #[test]
    fn given_addresses_must_be_ours() {
        let given = |node_ips| Case { node_ips, ..PLAIN };
        check(given(&["192.0.2.2"]), &[], &[], Ok("InternalIP=192.0.2.2 Hostname=n"));
        check(
            given(&["192.0.2.2", "2001:db8::1"]),
            &[],
            &[],
            Ok("InternalIP=192.0.2.2 InternalIP=2001:db8::1 Hostname=n"),
        );
        check(
            given(&["198.51.100.9"]),
            &[],
            &[],
            Err(
                "failed to validate nodeIP: node IP: \"198.51.100.9\" not found in the host's network interfaces",
            ),
        );
        check(
            given(&["127.0.0.1"]),
            &[],
            &[],
            Err("failed to validate nodeIP: nodeIP can't be loopback address"),
        );
    }

    #[test]
    fn a_cloud_provider_says_the_rest() {
        let cloud = Case { external: true, ..PLAIN };
        check(cloud, &["192.0.2.2"], &["192.0.2.1"], Ok("Hostname=n"));
        let given = Case { external: true, node_ips: &["192.0.2.2"], ..PLAIN };
        check(given, &[], &[], Ok("InternalIP=192.0.2.2 Hostname=n 192.0.2.2"));
        let set = Case { external: true, present: &[("ExternalIP", "203.0.113.5")], ..PLAIN };
        check(set, &[], &[], Ok("ExternalIP=203.0.113.5"));
    }
}
