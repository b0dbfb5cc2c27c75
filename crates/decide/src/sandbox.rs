//! Whether a pod's sandbox can be kept.

use model::SandboxId;
use model::cri::NamespaceMode;
use model::observed::ObservedPod;
use model::pod::PodView;

/// The verdict over the sandboxes that the runtime has of a pod.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SandboxChange {
    /// A new sandbox is to be made, and whatever ran in the old one is to be stopped.
    pub needed: bool,
    /// Attempt number of the sandbox to make, or of the one to keep.
    pub attempt: u32,
    /// The newest sandbox, where what follows is about it: the one to keep, or the one that is replaced.
    pub old: Option<SandboxId>,
}

pub fn sandbox_change(pod: &PodView, observed: &ObservedPod) -> SandboxChange {
    let Some(newest) = observed.newest_sandbox() else {
        return SandboxChange { needed: true, attempt: 0, old: None };
    };
    let replace = |old: Option<SandboxId>| SandboxChange { needed: true, attempt: newest.attempt + 1, old };
    let ready = observed.sandboxes.iter().filter(|sandbox| sandbox.ready).count();
    if ready > 1 || !newest.ready {
        return replace(Some(newest.id.clone()));
    }
    let network = if pod.host_network() { NamespaceMode::Node } else { NamespaceMode::Pod };
    if newest.network != network {
        return replace(None);
    }
    if !pod.host_network() && newest.has_network_status && newest.ips.is_empty() {
        return replace(Some(newest.id.clone()));
    }
    SandboxChange { needed: false, attempt: newest.attempt, old: Some(newest.id.clone()) }
}
