//! Chooses the node's address if none is configured.

use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs, UdpSocket};

use model::node::HostAddresses;

/// Reserved for documentation: no host has them, so the route to them is the default route.
const UNROUTED_TARGETS: [&str; 2] = ["203.0.113.1:9", "[2001:db8::1]:9"];

/// The addresses from which one is chosen.
pub struct AddressCandidates {
    /// The addresses that the host name resolves to, in order.
    pub named: Vec<IpAddr>,
    /// The addresses of the host's interfaces.
    pub local: Vec<IpAddr>,
    /// The source addresses of the default routes, IPv4 first.
    pub routed: Vec<IpAddr>,
}

impl AddressCandidates {
    /// The first usable IPv4 address of the host name, else its first IPv6 address, else the default route's source
    /// address.
    pub fn choose(&self) -> IpAddr {
        let usable = |address: &&IpAddr| usable(address) && self.local.contains(address);
        let named = || self.named.iter().filter(usable);
        let chosen = named().find(|address| address.is_ipv4()).or_else(|| named().next());
        let routed = self.routed.iter().find(|address| !address.is_unspecified());
        *chosen.or(routed).unwrap_or(&IpAddr::V4(Ipv4Addr::LOCALHOST))
    }

    /// Keeps the addresses at which a node can be reached.
    pub fn usable(mut self) -> HostAddresses {
        for list in [&mut self.local, &mut self.named, &mut self.routed] {
            list.retain(usable);
        }
        HostAddresses { local: self.local, named: self.named, routed: self.routed }
    }
}

fn usable(address: &IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(link_local || address.is_loopback() || address.is_multicast() || address.is_unspecified())
}

/// Resolves a name. Blocks for as long as the resolver does.
pub fn resolve(host: &str) -> Vec<IpAddr> {
    match (host, 0).to_socket_addrs() {
        Ok(addresses) => addresses.map(|address| address.ip()).collect(),
        Err(_) => Vec::new(),
    }
}

/// The source addresses of packets to remote hosts. Connecting a UDP socket selects one; no packet is sent.
pub fn routed() -> Vec<IpAddr> {
    let source = |target: &&str| {
        let local = if target.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
        let socket = UdpSocket::bind(local).ok()?;
        socket.connect(target).ok()?;
        let address = socket.local_addr().ok()?.ip();
        usable(&address).then_some(address)
    };
    UNROUTED_TARGETS.iter().filter_map(source).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn the_name_first_then_the_route() {
        let check = |named: &[&str], local: &[&str], routed: Option<&str>, expect: &str| {
            let candidates = AddressCandidates {
                named: addresses(named),
                local: addresses(local),
                routed: routed.map(|text| text.parse().unwrap()).into_iter().collect(),
            };
            assert_eq!(candidates.choose().to_string(), expect, "{named:?} {local:?} {routed:?}");
        };
        check(&["10.0.0.5"], &["10.0.0.5", "127.0.0.1"], Some("10.9.9.9"), "10.0.0.5");
        check(&["2001:db8::5", "10.0.0.5"], &["2001:db8::5", "10.0.0.5"], None, "10.0.0.5");
        check(&["2001:db8::5"], &["2001:db8::5"], Some("10.9.9.9"), "2001:db8::5");
        // Debian resolves the host name to 127.0.1.1.
        check(&["127.0.1.1"], &["127.0.1.1"], Some("10.9.9.9"), "10.9.9.9");
        check(&["10.0.0.5"], &["10.9.9.9"], Some("10.9.9.9"), "10.9.9.9");
        check(
            &["fe80::1", "169.254.1.1", "224.0.0.1", "0.0.0.0"],
            &["fe80::1", "169.254.1.1"],
            None,
            "127.0.0.1",
        );
        check(&[], &[], None, "127.0.0.1");
    }

    #[test]
    fn numbers_resolve_to_themselves_and_nonsense_to_nothing() {
        assert_eq!(resolve("192.0.2.9"), addresses(&["192.0.2.9"]));
        assert!(resolve("").iter().all(|address| address.is_loopback() || address.is_unspecified()));
        assert!(resolve("no spaces in names").is_empty());
    }

    #[test]
    fn the_route_leaves_from_an_address_of_ours() {
        if let Some(IpAddr::V4(address)) = routed().first() {
            let trie = std::fs::read_to_string("/proc/net/fib_trie").unwrap();
            assert!(super::super::parse::local_ipv4(&trie).contains(&IpAddr::V4(*address)));
        }
    }
}
