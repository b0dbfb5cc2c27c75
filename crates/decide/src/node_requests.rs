//! Sums over the pods of the node, updated as each of them changes.
//!
//! ```text
//!   a pod changes ──> NodeState::update_node_requests(uid) ──> subtract its old requests, add its new ones
//! ```
//! The sums equal those that [`NodeRequests::of`] computes from all pods: tests and the simulator compare them after
//! every step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::PodUid;
use model::pod::QosClass;

use crate::admission::{HostPort, RequestedByOthers, host_ports};
use crate::resources::Amounts;
use crate::state::{NodeState, PodEntry};

#[derive(Clone, PartialEq, Debug, Default)]
pub struct NodeRequests {
    shares: BTreeMap<PodUid, PodRequests>,
    requested_by_others: RequestedByOthers,
    burstable_milli_cpu: i128,
}

/// What one pod adds to the sums.
#[derive(Clone, PartialEq, Debug)]
struct PodRequests {
    /// Requests and host ports that admission of later pods must respect. `None` when the pod does not count.
    requested_by_others: Option<(Arc<Amounts>, BTreeSet<HostPort>)>,
    /// The CPU request of a burstable pod; zero for other pods.
    burstable_milli_cpu: i64,
}

impl PodRequests {
    fn of(entry: &PodEntry) -> Self {
        let over = entry.orphan || entry.lifecycle.is_terminated();
        // A pod that no source wants does not count, though it may still be stopping. A changed static pod is therefore
        // admitted while the old one still runs, and waits for its end afterwards.
        let counts = !(over || entry.rejection.is_some() || entry.removed);
        let burstable = !over && entry.qos == QosClass::Burstable;
        Self {
            requested_by_others: counts.then(|| (entry.requests.clone(), host_ports(&entry.view))),
            burstable_milli_cpu: if burstable { entry.requests.cpu_millis().max(0) } else { 0 },
        }
    }
}

impl NodeRequests {
    /// Computes the sums from all pods.
    pub fn of(pods: &BTreeMap<PodUid, PodEntry>) -> Self {
        let mut tally = NodeRequests::default();
        for (uid, entry) in pods {
            tally.put(uid, Some(PodRequests::of(entry)));
        }
        tally
    }

    /// The sums that admission of another pod is checked against.
    pub fn requested_by_others(&self) -> &RequestedByOthers {
        &self.requested_by_others
    }

    /// The CPU requests of all burstable pods, in thousandths of a CPU.
    pub fn burstable_milli_cpu(&self) -> u64 {
        u64::try_from(self.burstable_milli_cpu).unwrap_or(if self.burstable_milli_cpu < 0 {
            0
        } else {
            u64::MAX
        })
    }

    fn put(&mut self, uid: &PodUid, share: Option<PodRequests>) {
        let old = match share.clone() {
            Some(share) => self.shares.insert(uid.clone(), share),
            None => self.shares.remove(uid),
        };
        if old == share {
            return;
        }
        if let Some(old) = old {
            self.burstable_milli_cpu -= i128::from(old.burstable_milli_cpu);
            if let Some((requests, ports)) = &old.requested_by_others {
                self.requested_by_others.subtract(requests, ports);
            }
        }
        if let Some(new) = share {
            self.burstable_milli_cpu += i128::from(new.burstable_milli_cpu);
            if let Some((requests, ports)) = &new.requested_by_others {
                self.requested_by_others.add(requests, ports);
            }
        }
    }
}

impl NodeState {
    /// Call this after a pod is added, removed, redefined, terminated, rejected or removed from its source. It
    /// subtracts the pod's old requests from the sums and adds the new ones.
    pub(crate) fn update_node_requests(&mut self, uid: &PodUid) {
        let share = self.pods.get(uid).map(PodRequests::of);
        self.node_requests.put(uid, share);
    }
}

#[cfg(test)]
mod tests {
    use model::k8s::Pod;
    use model::pod::{PodView, Source};
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::lifecycle::Lifecycle;

    /// Amounts that are beyond what a sum could hold, absent, zero and alike.
    const CPUS: [Option<&str>; 5] = [None, Some("0"), Some("250m"), Some("3"), Some("9e28")];

    fn entry(uid: &str, cpu: Option<&str>, port: i32, address: &str) -> PodEntry {
        let requests = cpu.map(|cpu| json!({"cpu": cpu, "example.com/thing": "1"})).unwrap_or(json!({}));
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"uid": uid, "name": uid, "namespace": "ns"},
            "spec": {"containers": [{
                "name": "c", "resources": {"requests": requests},
                "ports": [{"containerPort": 1, "hostPort": port, "hostIP": address}],
            }]},
        }))
        .expect("a pod");
        PodEntry::new(PodView::new(Arc::new(pod), Source::File))
    }

    #[derive(Clone, Debug)]
    enum Deed {
        Comes { cpu: usize, port: i32, address: &'static str },
        Goes,
        IsRejected,
        IsUnwanted,
        Ends,
    }

    fn deed() -> impl Strategy<Value = Deed> {
        let address = prop::sample::select(vec!["", "0.0.0.0", "10.0.0.1"]);
        prop_oneof![
            4 => (0..CPUS.len(), 0..3, address).prop_map(|(cpu, port, address)| Deed::Comes { cpu, port, address }),
            2 => Just(Deed::Goes),
            1 => Just(Deed::IsRejected),
            1 => Just(Deed::IsUnwanted),
            1 => Just(Deed::Ends),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn kept_sums_are_those_made_anew(deeds in prop::collection::vec((0..6u8, deed()), 1..80)) {
            let mut pods = BTreeMap::new();
            let mut kept = NodeRequests::default();
            for (number, deed) in deeds {
                let uid = PodUid::from(format!("u{number}"));
                match (deed, pods.get_mut(&uid)) {
                    (Deed::Comes { cpu, port, address }, _) => {
                        pods.insert(uid.clone(), entry(uid.as_str(), CPUS[cpu], port, address));
                    }
                    (Deed::Goes, _) => drop(pods.remove(&uid)),
                    (Deed::IsRejected, Some(entry)) => entry.rejection = Some(("a".into(), "b".into())),
                    (Deed::IsUnwanted, Some(entry)) => entry.removed = true,
                    (Deed::Ends, Some(entry)) => entry.lifecycle = Lifecycle::Terminated,
                    (_, None) => {}
                }
                kept.put(&uid, pods.get(&uid).map(PodRequests::of));
                prop_assert_eq!(&kept, &NodeRequests::of(&pods));
            }
            for uid in pods.keys() {
                kept.put(uid, None);
            }
            prop_assert_eq!(kept, NodeRequests::default());
        }
    }

    #[test]
    fn amounts_beyond_all_measure_do_not_wrap() {
        let pods: BTreeMap<_, _> =
            (0..50).map(|n| (PodUid::from(format!("{n}")), entry("u", Some("9e28"), 0, ""))).collect();
        let tally = NodeRequests::of(&pods);
        assert_eq!(tally.requested_by_others().requested("cpu").milli_value(), i64::MAX);
        assert_eq!(tally.burstable_milli_cpu(), u64::try_from(50 * i128::from(i64::MAX)).unwrap_or(u64::MAX));
    }
}
