//! Variables that tell a container where the services of its namespace are.

use std::collections::BTreeMap;

use model::k8s::{self, Service};

/// A service as far as variables are made of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceView {
    pub name: String,
    pub namespace: String,
    /// Empty or `None` for a headless one.
    pub cluster_ip: String,
    pub ports: Vec<ServicePort>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServicePort {
    /// May be empty.
    pub name: String,
    /// Empty means TCP.
    pub protocol: String,
    pub port: i32,
}

impl ServiceView {
    pub fn of(service: &Service) -> Self {
        let spec = service.spec.as_ref();
        let port = |port: &k8s::ServicePort| ServicePort {
            name: port.name.clone().unwrap_or_default(),
            protocol: port.protocol.clone().unwrap_or_default(),
            port: port.port,
        };
        Self {
            name: service.metadata.name.clone().unwrap_or_default(),
            namespace: service.metadata.namespace.clone().unwrap_or_default(),
            cluster_ip: spec.and_then(|spec| spec.cluster_ip.clone()).unwrap_or_default(),
            ports: spec.iter().flat_map(|spec| spec.ports.iter().flatten()).map(port).collect(),
        }
    }
}

/// The variables for a pod of a namespace. The API's own service is always there; the others of the namespace when
/// the pod links them, and in a namespace with a service of that name it is theirs that counts.
pub fn variables(services: &[ServiceView], namespace: &str, link_all: bool) -> BTreeMap<String, String> {
    let has_address = |service: &&ServiceView| !service.cluster_ip.is_empty() && service.cluster_ip != "None";
    let is_api = |service: &&ServiceView| service.namespace == "default" && service.name == "kubernetes";
    let is_linked = |service: &&ServiceView| service.namespace == namespace && link_all && !is_api(service);
    let mut chosen: BTreeMap<&str, &ServiceView> = BTreeMap::new();
    for service in services.iter().filter(has_address).filter(is_api) {
        chosen.insert(&service.name, service);
    }
    for service in services.iter().filter(has_address).filter(is_linked) {
        chosen.insert(&service.name, service);
    }
    chosen.values().flat_map(|service| service_variables(service)).collect()
}

fn service_variables(service: &ServiceView) -> Vec<(String, String)> {
    let prefix = variable_name(&service.name);
    let ip = &service.cluster_ip;
    let mut variables = vec![(format!("{prefix}_SERVICE_HOST"), ip.clone())];
    if let Some(first) = service.ports.first() {
        variables.push((format!("{prefix}_SERVICE_PORT"), first.port.to_string()));
        variables.push((format!("{prefix}_PORT"), url(first, ip)));
    }
    for port in &service.ports {
        if !port.name.is_empty() {
            let name = format!("{prefix}_SERVICE_PORT_{}", variable_name(&port.name));
            variables.push((name, port.port.to_string()));
        }
        let link = format!("{prefix}_PORT_{}_{}", port.port, protocol(port).to_uppercase());
        variables.push((link.clone(), url(port, ip)));
        variables.push((format!("{link}_PROTO"), protocol(port)));
        variables.push((format!("{link}_PORT"), port.port.to_string()));
        variables.push((format!("{link}_ADDR"), ip.clone()));
    }
    variables
}

fn variable_name(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

fn protocol(port: &ServicePort) -> String {
    if port.protocol.is_empty() { "tcp".into() } else { port.protocol.to_lowercase() }
}

fn url(port: &ServicePort, ip: &str) -> String {
    let host = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
    format!("{}://{host}:{}", protocol(port), port.port)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(namespace: &str, name: &str, ip: &str, ports: &[(&str, &str, i32)]) -> ServiceView {
        let port = |(name, protocol, port): &(&str, &str, i32)| ServicePort {
            name: name.to_string(),
            protocol: protocol.to_string(),
            port: *port,
        };
        ServiceView {
            name: name.into(),
            namespace: namespace.into(),
            cluster_ip: ip.into(),
            ports: ports.iter().map(port).collect(),
        }
    }

    fn lines(services: &[ServiceView], namespace: &str, link_all: bool) -> Vec<String> {
        variables(services, namespace, link_all)
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect()
    }

    #[test]
    fn the_api_service() {
        let services = [service("default", "kubernetes", "10.0.0.1", &[("https", "TCP", 443)])];
        let expect = [
            "KUBERNETES_PORT=tcp://10.0.0.1:443",
            "KUBERNETES_PORT_443_TCP=tcp://10.0.0.1:443",
            "KUBERNETES_PORT_443_TCP_ADDR=10.0.0.1",
            "KUBERNETES_PORT_443_TCP_PORT=443",
            "KUBERNETES_PORT_443_TCP_PROTO=tcp",
            "KUBERNETES_SERVICE_HOST=10.0.0.1",
            "KUBERNETES_SERVICE_PORT=443",
            "KUBERNETES_SERVICE_PORT_HTTPS=443",
        ];
        assert_eq!(lines(&services, "x", false), expect);
        assert_eq!(lines(&services, "default", false), expect);
    }

    #[test]
    fn many_ports_and_families() {
        let services = [service("x", "my-dns", "fd00::a", &[("", "UDP", 53), ("dns-tcp", "", 5353)])];
        assert_eq!(
            lines(&services, "x", true),
            [
                "MY_DNS_PORT=udp://[fd00::a]:53",
                "MY_DNS_PORT_5353_TCP=tcp://[fd00::a]:5353",
                "MY_DNS_PORT_5353_TCP_ADDR=fd00::a",
                "MY_DNS_PORT_5353_TCP_PORT=5353",
                "MY_DNS_PORT_5353_TCP_PROTO=tcp",
                "MY_DNS_PORT_53_UDP=udp://[fd00::a]:53",
                "MY_DNS_PORT_53_UDP_ADDR=fd00::a",
                "MY_DNS_PORT_53_UDP_PORT=53",
                "MY_DNS_PORT_53_UDP_PROTO=udp",
                "MY_DNS_SERVICE_HOST=fd00::a",
                "MY_DNS_SERVICE_PORT=53",
                "MY_DNS_SERVICE_PORT_DNS_TCP=5353",
            ]
        );
    }

    #[test]
    fn which_services_are_told() {
        let port = [("", "TCP", 1)];
        let services = [
            service("x", "a", "10.0.0.2", &port),
            service("y", "b", "10.0.0.3", &port),
            service("x", "headless", "None", &port),
            service("x", "pending", "", &port),
            service("x", "kubernetes", "10.0.0.9", &port),
            service("default", "kubernetes", "10.0.0.1", &port),
        ];
        let hosts = |namespace, link_all| {
            let variables = variables(&services, namespace, link_all);
            let hosts = variables.into_iter().filter(|(name, _)| name.ends_with("_SERVICE_HOST"));
            hosts.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
        };
        assert_eq!(hosts("x", true), ["A_SERVICE_HOST=10.0.0.2", "KUBERNETES_SERVICE_HOST=10.0.0.9"]);
        assert_eq!(hosts("x", false), ["KUBERNETES_SERVICE_HOST=10.0.0.1"]);
        assert_eq!(hosts("y", true), ["B_SERVICE_HOST=10.0.0.3", "KUBERNETES_SERVICE_HOST=10.0.0.1"]);
        assert_eq!(hosts("default", true), ["KUBERNETES_SERVICE_HOST=10.0.0.1"]);
    }
}
