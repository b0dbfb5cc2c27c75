//! Ports of containers: for the sandbox's mappings, and as other programs read them from annotations.

use model::cri::{PortMapping, Protocol};
use model::k8s;
use model::pod::PodView;

/// All ports of regular containers. Ports that are not published on the host are included, because network plugins of
/// the runtime may use them.
pub fn mappings(pod: &PodView) -> Vec<PortMapping> {
    pod.containers().iter().flat_map(container_mappings).collect()
}

/// A name, or a port without one, counts once per container.
fn container_mappings(container: &k8s::Container) -> Vec<PortMapping> {
    let mut seen = Vec::new();
    let mut mappings = Vec::new();
    for port in container.ports.iter().flatten() {
        let identity = identity(port);
        if seen.contains(&identity) {
            continue;
        }
        seen.push(identity);
        mappings.push(PortMapping {
            protocol: protocol(port.protocol.as_deref()),
            container_port: port.container_port,
            host_port: port.host_port.unwrap_or(0),
            host_ip: port.host_ip.clone().unwrap_or_default(),
        });
    }
    mappings
}

/// The address family is in it so that one port may be published for IPv4 and for IPv6.
fn identity(port: &k8s::ContainerPort) -> String {
    if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
        return name.to_owned();
    }
    let host_ip = port.host_ip.as_deref().unwrap_or_default();
    let family = match host_ip {
        "" => "any",
        ip if ip.contains(':') => "v6",
        _ => "v4",
    };
    let protocol = port.protocol.as_deref().unwrap_or_default();
    format!("{family}-{protocol}-{host_ip}:{}:{}", port.container_port, port.host_port.unwrap_or(0))
}

fn protocol(name: Option<&str>) -> Protocol {
    match name {
        Some("UDP") => Protocol::Udp,
        Some("SCTP") => Protocol::Sctp,
        _ => Protocol::Tcp,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::render::sample;

    #[test]
    fn mappings_of_regular_containers() {
        let check = |containers: Value, expect: &[(Protocol, i32, i32, &str)]| {
            let pod = sample::pod(json!({
                "containers": containers,
                "initContainers": [{"name": "i", "ports": [{"containerPort": 1}]}],
            }));
            let seen = mappings(&pod);
            let seen: Vec<_> = seen
                .iter()
                .map(|m| (m.protocol, m.container_port, m.host_port, m.host_ip.as_str()))
                .collect();
            assert_eq!(seen, expect, "{containers}");
        };
        use Protocol::{Sctp, Tcp, Udp};
        check(json!([{"name": "c"}]), &[]);
        check(
            json!([
                {"name": "c", "ports": [
                    {"containerPort": 80, "protocol": "TCP"},
                    {"containerPort": 53, "hostPort": 53, "protocol": "UDP", "hostIP": "127.0.0.1"},
                    {"containerPort": 9, "protocol": "SCTP"},
                ]},
                {"name": "d", "ports": [{"containerPort": 80, "protocol": "TCP"}]},
            ]),
            &[(Tcp, 80, 0, ""), (Udp, 53, 53, "127.0.0.1"), (Sctp, 9, 0, ""), (Tcp, 80, 0, "")],
        );
        check(
            json!([{"name": "c", "ports": [
                {"name": "web", "containerPort": 80, "protocol": "TCP"},
                {"name": "web", "containerPort": 81, "protocol": "TCP"},
                {"containerPort": 80, "protocol": "TCP"},
                {"containerPort": 80, "protocol": "TCP"},
                {"containerPort": 80, "protocol": "TCP", "hostIP": "::1"},
                {"containerPort": 80, "protocol": "TCP", "hostPort": 8},
            ]}]),
            &[(Tcp, 80, 0, ""), (Tcp, 80, 0, ""), (Tcp, 80, 0, "::1"), (Tcp, 80, 8, "")],
        );
    }
}
