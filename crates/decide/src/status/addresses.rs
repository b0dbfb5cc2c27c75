//! Addresses of a pod and of its host.

use std::net::IpAddr;

use model::k8s;

use super::StatusInputs;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IpFamily {
    #[default]
    V4,
    V6,
}

impl IpFamily {
    pub fn of(ip: &IpAddr) -> Self {
        match ip {
            IpAddr::V4(_) => IpFamily::V4,
            IpAddr::V6(_) => IpFamily::V6,
        }
    }
}

fn parse(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
}

/// The first address of the primary family, then the first of the other one, in canonical form. One address that
/// can't be read makes the whole report worthless.
pub fn pod_ips(reported: &[String], primary: IpFamily) -> Vec<String> {
    let Some(ips) = reported.iter().map(|text| parse(text)).collect::<Option<Vec<_>>>() else {
        return Vec::new();
    };
    let first = |wanted: bool| ips.iter().find(|ip| (IpFamily::of(ip) == primary) == wanted);
    first(true).into_iter().chain(first(false)).map(IpAddr::to_string).collect()
}

/// The first address of the node, and the first of the other family.
pub fn host_ips(node: &[String]) -> Vec<String> {
    let ips: Vec<IpAddr> = node.iter().filter_map(|text| parse(text)).collect();
    let Some(first) = ips.first() else { return Vec::new() };
    let other = ips.iter().find(|ip| IpFamily::of(ip) != IpFamily::of(first));
    std::iter::once(first).chain(other).map(IpAddr::to_string).collect()
}

pub struct Addresses {
    pub host: Vec<String>,
    pub pod: Vec<String>,
}

pub fn addresses(inputs: &StatusInputs<'_>) -> Addresses {
    let host = host_ips(inputs.host_ips);
    let mut pod = current_pod_ips(inputs);
    if inputs.pod.host_network() {
        join_host(&mut pod, &host);
    }
    Addresses { host, pod }
}

/// From the newest sandbox if it is ready. A pod whose sandboxes are all gone keeps what it had, and one on the
/// host's network too: the runtime does not know its addresses.
fn current_pod_ips(inputs: &StatusInputs<'_>) -> Vec<String> {
    let newest = inputs.observed.newest_sandbox().filter(|sandbox| sandbox.ready);
    let reported = newest.map(|sandbox| pod_ips(&sandbox.ips, inputs.primary_family)).unwrap_or_default();
    let any_ready = inputs.observed.sandboxes.iter().any(|sandbox| sandbox.ready);
    if !reported.is_empty() || (any_ready && !inputs.pod.host_network()) {
        return reported;
    }
    inputs.previous().map(shown_ips).unwrap_or_default()
}

fn shown_ips(status: &k8s::PodStatus) -> Vec<String> {
    status.pod_ips.iter().flatten().map(|shown| shown.ip.clone()).collect()
}

/// A pod on the host's network has the host's addresses. The first never changes; a second one is added when the
/// host gets an address of the other family.
fn join_host(pod: &mut Vec<String>, host: &[String]) {
    if pod.is_empty() {
        pod.extend(host.first().cloned());
    }
    if let ([only], Some(second)) = (pod.as_slice(), host.get(1)) {
        let family = |text: &str| parse(text).map(|ip| IpFamily::of(&ip));
        if family(only) != family(second) {
            pod.push(second.clone());
        }
    }
}
