//! The pods of the node together with the sums of what they request.
//!
//! ```text
//!   insert, remove, redefine, admit, end, hold, containers_stopped, released ──> the pod's share of the sums is replaced
//!   everything else of an entry ──> get_mut
//! ```
//! What a pod adds to the sums follows from its definition and its standing. Both are private to this module and its
//! parent, so they change only through [`Pods`], which replaces the share of that one pod at once: admission of the
//! next pod of the same step needs the new sums.

use std::collections::{BTreeMap, btree_map};
use std::ops::Index;
use std::sync::Arc;

use model::pod::{PodView, QosClass};
use model::{Mono, PodUid};

use super::definition::Definition;
use super::standing::{AdmissionWait, EndReason, EndRequest};
use super::{Held, PodEntry};
use crate::allocation::PendingResize;
use crate::node_requests::{NodeRequests, PodRequests};

#[derive(Clone, Debug, Default)]
pub struct Pods {
    entries: BTreeMap<PodUid, PodEntry>,
    requests: NodeRequests,
}

impl Pods {
    /// The sums of the pods' requests.
    pub fn requests(&self) -> &NodeRequests {
        &self.requests
    }

    /// The sums computed from all pods. They equal [`Pods::requests`]: tests and the simulator compare them after every
    /// step.
    pub fn sum_requests(&self) -> NodeRequests {
        self.entries.iter().map(|(uid, entry)| (uid.clone(), requests_of(entry))).collect()
    }

    pub fn get(&self, uid: &PodUid) -> Option<&PodEntry> {
        self.entries.get(uid)
    }

    /// Everything of the pod but its definition and standing may be changed.
    pub fn get_mut(&mut self, uid: &PodUid) -> Option<&mut PodEntry> {
        self.entries.get_mut(uid)
    }

    pub fn contains_key(&self, uid: &PodUid) -> bool {
        self.entries.contains_key(uid)
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn iter(&self) -> btree_map::Iter<'_, PodUid, PodEntry> {
        self.entries.iter()
    }

    pub fn iter_mut(&mut self) -> btree_map::IterMut<'_, PodUid, PodEntry> {
        self.entries.iter_mut()
    }

    pub fn keys(&self) -> btree_map::Keys<'_, PodUid, PodEntry> {
        self.entries.keys()
    }

    pub fn values(&self) -> btree_map::Values<'_, PodUid, PodEntry> {
        self.entries.values()
    }

    pub fn values_mut(&mut self) -> btree_map::ValuesMut<'_, PodUid, PodEntry> {
        self.entries.values_mut()
    }

    pub(crate) fn insert(&mut self, entry: PodEntry) {
        let uid = entry.view().uid.clone();
        self.requests.set(&uid, Some(requests_of(&entry)));
        self.entries.insert(uid, entry);
    }

    pub(crate) fn remove(&mut self, uid: &PodUid) -> Option<PodEntry> {
        self.requests.set(uid, None);
        self.entries.remove(uid)
    }

    /// Replaces the pod's definition and what is computed from it.
    pub(crate) fn redefine(&mut self, uid: &PodUid, view: PodView, pending_resize: Option<PendingResize>) {
        self.change(uid, |entry| {
            entry.definition = match entry.standing.is_set_aside() {
                true => Definition::of_set_aside(view),
                false => Definition::new(view, pending_resize),
            };
        });
    }

    /// The pod may run here.
    pub(crate) fn admit(&mut self, uid: &PodUid) {
        self.change(uid, |entry| entry.standing.admit());
    }

    /// Admission of an undecided pod waits for something else now.
    pub(crate) fn wait_for_admission(&mut self, uid: &PodUid, wait: AdmissionWait) {
        self.change(uid, |entry| entry.standing.wait_for_admission(wait));
    }

    /// Asks for the end of a pod, see [`super::Standing::end`].
    pub(crate) fn end(&mut self, uid: &PodUid, reason: EndReason, grace_secs: i64, now: Mono) -> EndRequest {
        self.change(uid, |entry| entry.standing.end(reason, grace_secs, now)).unwrap_or(EndRequest::Refused)
    }

    /// A source wants a pod that ends again, see [`super::Standing::recreate_from`].
    pub(crate) fn recreate_from(&mut self, uid: &PodUid, view: PodView) -> Option<PodView> {
        match self.entries.get_mut(uid) {
            Some(entry) => entry.standing.recreate_from(view),
            None => Some(view),
        }
    }

    /// What the pod takes from others changed. Returns whether it did.
    pub(crate) fn hold(&mut self, uid: &PodUid, held: Held) -> bool {
        let changed = self.entries.get(uid).is_some_and(|entry| entry.held != held);
        if changed {
            self.change(uid, |entry| entry.held = held);
        }
        changed
    }

    /// Nothing of a terminating pod runs any more.
    pub(crate) fn containers_stopped(&mut self, uid: &PodUid) {
        self.change(uid, |entry| entry.standing.containers_stopped());
    }

    /// Volumes and cgroup of a terminated pod are released.
    pub(crate) fn released(&mut self, uid: &PodUid) {
        self.change(uid, |entry| entry.standing.released());
    }

    /// Changes what a pod's share of the sums follows from, and replaces the share.
    fn change<T>(&mut self, uid: &PodUid, change: impl FnOnce(&mut PodEntry) -> T) -> Option<T> {
        let entry = self.entries.get_mut(uid)?;
        let changed = change(entry);
        self.requests.set(uid, Some(requests_of(entry)));
        Some(changed)
    }
}

/// What a pod adds to the sums.
fn requests_of(entry: &PodEntry) -> PodRequests {
    let standing = &entry.standing;
    let over = standing.is_orphan() || standing.lifecycle().is_terminated();
    // An undecided or rejected pod has nothing in the cgroup of its class.
    let admitted = standing.admission_wait().is_none() && standing.rejection().is_none();
    let is = |class| admitted && !over && entry.qos() == class;
    let (burstable, guaranteed) = (is(QosClass::Burstable), is(QosClass::Guaranteed));
    let memory = entry.requests().memory_bytes().max(0);
    PodRequests {
        requested_by_others: entry.counts_for_admission().then(|| match entry.held {
            Held::Everything => (entry.requests().clone(), entry.definition.host_ports.clone()),
            Held::Ports | Held::Nothing => (Arc::default(), entry.definition.host_ports.clone()),
        }),
        burstable_milli_cpu: if burstable { entry.requests().cpu_millis().max(0) } else { 0 },
        burstable_memory: if burstable { memory } else { 0 },
        guaranteed_memory: if guaranteed { memory } else { 0 },
    }
}

impl PodEntry {
    /// Whether the admission of other pods must leave this pod what it requests.
    pub(crate) fn counts_for_admission(&self) -> bool {
        let standing = &self.standing;
        match standing.admission_wait() {
            Some(AdmissionWait::Turn | AdmissionWait::Node) => return false,
            Some(AdmissionWait::Room) | None => {}
        }
        // A pod that no source wants does not count, though it may still be stopping. A changed static pod is therefore
        // admitted while the old one still runs, and waits for its end afterwards.
        let over = standing.is_orphan() || standing.lifecycle().is_terminated();
        !(over || self.held == Held::Nothing || standing.rejection().is_some() || standing.is_removed())
    }

    /// Whether it takes CPU and memory from others.
    pub(crate) fn holds_resources(&self) -> bool {
        self.counts_for_admission() && self.held == Held::Everything
    }
}

impl Index<&PodUid> for Pods {
    type Output = PodEntry;

    fn index(&self, uid: &PodUid) -> &PodEntry {
        &self.entries[uid]
    }
}

impl<'a> IntoIterator for &'a Pods {
    type Item = (&'a PodUid, &'a PodEntry);
    type IntoIter = btree_map::Iter<'a, PodUid, PodEntry>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.iter()
    }
}

impl<'a> IntoIterator for &'a mut Pods {
    type Item = (&'a PodUid, &'a mut PodEntry);
    type IntoIter = btree_map::IterMut<'a, PodUid, PodEntry>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use model::k8s::Pod;
    use model::pod::Source;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::state::FailureReason;

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

    fn why() -> FailureReason {
        FailureReason::new("a", "b")
    }

    #[derive(Clone, Debug)]
    enum Change {
        Insert { cpu: usize, port: i32, address: &'static str },
        Redefine { cpu: usize },
        Remove,
        Reject,
        Unwant,
        Admit,
        Hold(Held),
        Stop,
    }

    fn change() -> impl Strategy<Value = Change> {
        let address = prop::sample::select(vec!["", "0.0.0.0", "10.0.0.1"]);
        prop_oneof![
            4 => (0..CPUS.len(), 0..3, address).prop_map(|(cpu, port, address)| Change::Insert { cpu, port, address }),
            2 => (0..CPUS.len()).prop_map(|cpu| Change::Redefine { cpu }),
            2 => Just(Change::Remove),
            1 => Just(Change::Reject),
            1 => Just(Change::Unwant),
            1 => Just(Change::Admit),
            1 => prop::sample::select(vec![Held::Everything, Held::Ports, Held::Nothing]).prop_map(Change::Hold),
            1 => Just(Change::Stop),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn kept_sums_are_those_of_all_pods(changes in prop::collection::vec((0..6u8, change()), 1..80)) {
            let mut pods = Pods::default();
            for (number, change) in changes {
                let uid = PodUid::from(format!("u{number}"));
                let end = |pods: &mut Pods, reason| {
                    pods.end(&uid, reason, 30, Mono::ZERO);
                };
                match change {
                    Change::Insert { cpu, port, address } => {
                        pods.insert(entry(uid.as_str(), CPUS[cpu], port, address));
                    }
                    Change::Redefine { cpu } => {
                        let view = entry(uid.as_str(), CPUS[cpu], 7, "").view().clone();
                        pods.redefine(&uid, view, None);
                    }
                    Change::Remove => drop(pods.remove(&uid)),
                    Change::Reject => end(&mut pods, EndReason::Rejected(why())),
                    Change::Unwant => end(&mut pods, EndReason::Removed),
                    Change::Admit => pods.admit(&uid),
                    Change::Hold(held) => drop(pods.hold(&uid, held)),
                    Change::Stop => {
                        end(&mut pods, EndReason::Completed);
                        pods.containers_stopped(&uid);
                    }
                }
                prop_assert_eq!(pods.requests(), &pods.sum_requests());
            }
            for uid in pods.keys().cloned().collect::<Vec<_>>() {
                pods.remove(&uid);
            }
            prop_assert_eq!(pods.requests(), &NodeRequests::default());
        }
    }

    #[test]
    fn amounts_beyond_all_measure_do_not_wrap() {
        let mut pods = Pods::default();
        for number in 0..50 {
            pods.insert(entry(&format!("{number}"), Some("9e28"), 0, ""));
        }
        let sums = pods.requests();
        assert_eq!(sums.requested_by_others().requested("cpu").milli_value(), i64::MAX);
        assert_eq!(sums.burstable_milli_cpu(), u64::try_from(50 * i128::from(i64::MAX)).unwrap_or(u64::MAX));
    }
}
