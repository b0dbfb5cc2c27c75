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
    let replace = |old: Option<SandboxId>| SandboxChange {
        needed: true,
        attempt: newest.attempt.saturating_add(1),
        old,
    };
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

#[cfg(test)]
mod tests {
    use model::observed::ObservedSandbox;
    use serde_json::json;

    use super::*;
    use crate::status::sample::{observed, pod, sandbox};

    fn check(host_network: bool, sandboxes: Vec<ObservedSandbox>, expect: (bool, u32, Option<&str>)) {
        let pod = pod(json!({"hostNetwork": host_network}));
        let mut observed = observed(Vec::new());
        observed.sandboxes = sandboxes;
        observed.sort();
        let (needed, attempt, old) = expect;
        let expect = SandboxChange { needed, attempt, old: old.map(SandboxId::from) };
        assert_eq!(sandbox_change(&pod, &observed), expect, "{:?}", observed.sandboxes);
    }

    #[test]
    fn changes() {
        let with = |change: fn(&mut ObservedSandbox)| {
            let mut sandbox = sandbox("a", 3, true);
            change(&mut sandbox);
            vec![sandbox]
        };
        check(false, vec![], (true, 0, None));
        check(false, with(|_| {}), (false, 3, Some("a")));
        check(false, with(|s| s.ready = false), (true, 4, Some("a")));
        check(false, vec![sandbox("a", 0, true), sandbox("b", 1, true)], (true, 2, Some("b")));
        check(false, vec![sandbox("a", 0, false), sandbox("b", 1, true)], (false, 1, Some("b")));
        check(false, vec![sandbox("a", 0, true), sandbox("b", 1, false)], (true, 2, Some("b")));
        // the network is another one
        check(true, with(|_| {}), (true, 4, None));
        check(false, with(|s| s.network = NamespaceMode::Node), (true, 4, None));
        check(true, with(|s| s.network = NamespaceMode::Node), (false, 3, Some("a")));
        // an address is missing, and the runtime would have said it
        check(false, with(|s| s.ips.clear()), (true, 4, Some("a")));
        let silent = |s: &mut ObservedSandbox| {
            s.ips.clear();
            s.has_network_status = false;
        };
        check(false, with(silent), (false, 3, Some("a")));
        let on_host = |s: &mut ObservedSandbox| {
            s.ips.clear();
            s.network = NamespaceMode::Node;
        };
        check(true, with(on_host), (false, 3, Some("a")));
    }
}
