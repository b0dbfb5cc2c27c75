//! Sums over the pods of the node, updated as each of them changes.
//!
//! ```text
//!   a pod changes ──> NodeRequests::set(uid, its new requests) ──> subtract its old requests, add its new ones
//! ```
//! [`Pods`](crate::state::Pods) keeps them: it is the only way to change what a pod adds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::PodUid;

use crate::admission::{HostPort, RequestedByOthers};
use crate::resources::Amounts;

#[derive(Clone, PartialEq, Debug, Default)]
pub struct NodeRequests {
    shares: BTreeMap<PodUid, PodRequests>,
    requested_by_others: RequestedByOthers,
    burstable_milli_cpu: i128,
    burstable_memory: i128,
    guaranteed_memory: i128,
}

/// What the pods of each class request together, for the cgroups above them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClassRequests {
    /// In thousandths of a CPU.
    pub burstable_milli_cpu: u64,
    pub burstable_memory: u64,
    pub guaranteed_memory: u64,
}

/// What one pod adds to the sums.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct PodRequests {
    /// Requests and host ports that admission of later pods must respect. `None` when the pod does not count.
    pub requested_by_others: Option<(Arc<Amounts>, BTreeSet<HostPort>)>,
    /// The CPU request of a burstable pod; zero for other pods.
    pub burstable_milli_cpu: i64,
    /// The memory request of a burstable pod; zero for other pods.
    pub burstable_memory: i64,
    /// The memory request of a guaranteed pod; zero for other pods.
    pub guaranteed_memory: i64,
}

impl FromIterator<(PodUid, PodRequests)> for NodeRequests {
    fn from_iter<T: IntoIterator<Item = (PodUid, PodRequests)>>(pods: T) -> Self {
        let mut sums = NodeRequests::default();
        for (uid, requests) in pods {
            sums.set(&uid, Some(requests));
        }
        sums
    }
}

impl NodeRequests {
    /// The sums that admission of another pod is checked against.
    pub fn requested_by_others(&self) -> &RequestedByOthers {
        &self.requested_by_others
    }

    /// The CPU requests of all burstable pods, in thousandths of a CPU.
    pub fn burstable_milli_cpu(&self) -> u64 {
        clamped(self.burstable_milli_cpu)
    }

    pub fn of_classes(&self) -> ClassRequests {
        ClassRequests {
            burstable_milli_cpu: self.burstable_milli_cpu(),
            burstable_memory: clamped(self.burstable_memory),
            guaranteed_memory: clamped(self.guaranteed_memory),
        }
    }

    /// Replaces what this pod adds to the sums. `None`: it is gone.
    pub(crate) fn set(&mut self, uid: &PodUid, share: Option<PodRequests>) {
        let old = match share.clone() {
            Some(share) => self.shares.insert(uid.clone(), share),
            None => self.shares.remove(uid),
        };
        if old == share {
            return;
        }
        if let Some(old) = old {
            self.burstable_milli_cpu -= i128::from(old.burstable_milli_cpu);
            self.burstable_memory -= i128::from(old.burstable_memory);
            self.guaranteed_memory -= i128::from(old.guaranteed_memory);
            if let Some((requests, ports)) = &old.requested_by_others {
                self.requested_by_others.subtract(requests, ports);
            }
        }
        if let Some(new) = share {
            self.burstable_milli_cpu += i128::from(new.burstable_milli_cpu);
            self.burstable_memory += i128::from(new.burstable_memory);
            self.guaranteed_memory += i128::from(new.guaranteed_memory);
            if let Some((requests, ports)) = &new.requested_by_others {
                self.requested_by_others.add(requests, ports);
            }
        }
    }
}

fn clamped(sum: i128) -> u64 {
    u64::try_from(sum).unwrap_or(if sum < 0 { 0 } else { u64::MAX })
}
