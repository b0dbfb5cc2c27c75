//! Requests and host ports of the pods on the node. Admission of one pod costs the same however many pods the node has,
//! because the sums are kept up to date.

use std::collections::{BTreeMap, BTreeSet};

use model::pod::{PodView, is_sidecar};
use model::quantity::{Format, Quantity};

use crate::resources::Amounts;

/// The requests and host ports of all pods that count for admission.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct RequestedByOthers {
    pods: usize,
    requests: BTreeMap<String, Sum>,
    /// For each protocol and port: the addresses in use, and the number of pods that use each address.
    ports: BTreeMap<(String, i32), BTreeMap<String, usize>>,
}

#[derive(Clone, PartialEq, Debug)]
struct Sum {
    amount: Quantity,
    /// How many pods request this resource. At zero the entry is removed.
    pods: usize,
}

/// A port of the host that a pod listens on.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct HostPort {
    pub protocol: String,
    pub port: i32,
    pub address: String,
}

const ANY: &str = "0.0.0.0";

pub fn host_ports(pod: &PodView) -> BTreeSet<HostPort> {
    let sidecars = pod.init_containers().iter().filter(|container| is_sidecar(container));
    let ports = pod.containers().iter().chain(sidecars).flat_map(|c| c.ports.iter().flatten());
    ports
        .filter_map(|port| {
            let given = |text: &Option<String>, otherwise: &str| {
                text.as_deref().filter(|text| !text.is_empty()).unwrap_or(otherwise).to_owned()
            };
            let number = port.host_port.filter(|port| *port > 0)?;
            Some(HostPort {
                protocol: given(&port.protocol, "TCP"),
                port: number,
                address: given(&port.host_ip, ANY),
            })
        })
        .collect()
}

/// Amounts are compared as 64-bit numbers. With amounts clamped to that range no number of pods can make a sum
/// overflow, and an amount that was added can always be subtracted again.
fn countable(amount: Quantity) -> Quantity {
    let (least, most) = (
        Quantity::from_units(i64::MIN, Format::default()),
        Quantity::from_units(i64::MAX, Format::default()),
    );
    amount.clamp(least, most)
}

impl RequestedByOthers {
    pub fn add(&mut self, requests: &Amounts, ports: &BTreeSet<HostPort>) {
        self.pods += 1;
        for (name, amount) in requests.iter() {
            let amount = countable(amount);
            match self.requests.get_mut(name) {
                Some(sum) => {
                    sum.amount += amount;
                    sum.pods += 1;
                }
                None => drop(self.requests.insert(name.to_owned(), Sum { amount, pods: 1 })),
            }
        }
        for HostPort { protocol, port, address } in ports {
            let taken = self.ports.entry((protocol.clone(), *port)).or_default();
            *taken.entry(address.clone()).or_default() += 1;
        }
    }

    /// Undoes `add` with the same arguments.
    pub fn subtract(&mut self, requests: &Amounts, ports: &BTreeSet<HostPort>) {
        self.pods = self.pods.saturating_sub(1);
        for (name, amount) in requests.iter() {
            let Some(sum) = self.requests.get_mut(name) else { continue };
            sum.amount -= countable(amount);
            sum.pods = sum.pods.saturating_sub(1);
            if sum.pods == 0 {
                self.requests.remove(name);
            }
        }
        for HostPort { protocol, port, address } in ports {
            let key = (protocol.clone(), *port);
            let Some(taken) = self.ports.get_mut(&key) else { continue };
            if let Some(count) = taken.get_mut(address) {
                *count = count.saturating_sub(1);
            }
            taken.retain(|_, count| *count > 0);
            if taken.is_empty() {
                self.ports.remove(&key);
            }
        }
    }

    pub fn pods(&self) -> usize {
        self.pods
    }

    /// The sum of the requests for this resource; zero if no pod requests it.
    pub fn requested(&self, name: &str) -> Quantity {
        self.requests.get(name).map_or(Quantity::ZERO, |sum| sum.amount)
    }

    /// Whether a pod uses one of these ports already.
    pub fn conflicts_with(&self, wanted: &BTreeSet<HostPort>) -> bool {
        wanted.iter().any(|HostPort { protocol, port, address }| {
            let taken = self.ports.get(&(protocol.clone(), *port));
            taken.is_some_and(|taken| {
                address == ANY || taken.contains_key(ANY) || taken.contains_key(address.as_str())
            })
        })
    }
}
