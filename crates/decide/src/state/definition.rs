//! The definition of a pod, and the amounts that are computed from it.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::pod::{PodView, QosClass};

use crate::admission::{HostPort, host_ports};
use crate::allocation::PendingResize;
use crate::resources::{self, Amounts, Overhead};
use crate::set_aside::unless_it_panics;
use crate::status::PodResources;

/// A definition replaces another one as a whole, so the amounts always belong to the view.
#[derive(Clone, Debug)]
pub(super) struct Definition {
    pub(super) view: PodView,
    pub(super) qos: QosClass,
    /// The pod's requests.
    pub(super) requests: Arc<Amounts>,
    pub(super) host_ports: BTreeSet<HostPort>,
    /// Requests and limits of the pod, as the status shows them.
    pub(super) resources: Arc<PodResources>,
    /// The spec requests other resources than were allocated.
    pub(super) pending_resize: Option<PendingResize>,
}

impl Definition {
    pub(super) fn new(view: PodView, pending_resize: Option<PendingResize>) -> Self {
        Self {
            qos: resources::qos_class(&view),
            requests: Arc::new(resources::pod_requests(&view, Overhead::Included)),
            host_ports: host_ports(&view),
            resources: Arc::new(pod_resources(&view)),
            pending_resize,
            view,
        }
    }

    /// The definition of a pod that is set aside. What runs of it still takes what it requests, so its amounts count,
    /// unless computing them is what panics.
    pub(super) fn of_set_aside(view: PodView) -> Self {
        let computed = unless_it_panics(|| Self::new(view.clone(), None));
        computed.unwrap_or_else(|| Self::without_amounts(view))
    }

    fn without_amounts(view: PodView) -> Self {
        Self {
            qos: QosClass::BestEffort,
            requests: Arc::default(),
            host_ports: BTreeSet::new(),
            resources: Arc::default(),
            pending_resize: None,
            view,
        }
    }
}

/// Totals over the pod's containers, for its status.
fn pod_resources(view: &PodView) -> PodResources {
    let list = |amounts: Amounts| amounts.iter().map(|(name, q)| (name.to_owned(), q.to_api())).collect();
    let declared = resources::limits_declared(view);
    PodResources {
        requests: list(resources::pod_requests(view, Overhead::Included)),
        limits: list(resources::pod_limits(view, Overhead::Included)),
        cpu_limited: declared.cpu,
        memory_limited: declared.memory,
        pod_level: view.spec().resources.clone().unwrap_or_default(),
    }
}
