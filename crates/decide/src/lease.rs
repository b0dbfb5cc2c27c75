//! The node's lease: the cheap sign of life that the cluster watches.

use std::time::Duration;

use model::Wall;
use model::k8s::{Lease, LeaseSpec, ObjectMeta, OwnerReference};
use model::node::NodeObjectConfig;

use crate::jitter::JitterSeed;

pub const NAMESPACE: &str = "kube-node-lease";
/// Tries to update a lease that somebody else changed.
pub const UPDATE_TRIES: u32 = 5;

const RENEW_FRACTION: f64 = 0.25;
const JITTER: f64 = 0.04;
const FIRST_BACK_OFF: Duration = Duration::from_millis(200);
const LAST_BACK_OFF: Duration = Duration::from_secs(7);

/// The lease as it is to be now: `last` with a new time, or a new one. `node_uid`: who owns it, if that is known.
pub fn renewed(setup: &NodeObjectConfig, last: Option<&Lease>, node_uid: Option<&str>, now: Wall) -> Lease {
    let mut lease = last.cloned().unwrap_or_else(|| Lease {
        metadata: ObjectMeta {
            name: Some(setup.name.clone()),
            namespace: Some(NAMESPACE.into()),
            ..ObjectMeta::default()
        },
        spec: None,
    });
    let seconds = i32::try_from(setup.lease_duration.as_secs()).unwrap_or(i32::MAX);
    let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
    if last.is_none() {
        spec.holder_identity = Some(setup.name.clone());
        spec.lease_duration_seconds = Some(seconds);
    }
    spec.renew_time = Some(now.api_micro_time());
    let owners = lease.metadata.owner_references.get_or_insert_default();
    if let (true, Some(uid)) = (owners.is_empty(), node_uid) {
        owners.push(OwnerReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: setup.name.clone(),
            uid: uid.to_owned(),
            ..OwnerReference::default()
        });
    }
    if owners.is_empty() {
        lease.metadata.owner_references = None;
    }
    lease
}

/// Whether the lease says who owns it.
pub fn is_owned(lease: &Lease) -> bool {
    lease.metadata.owner_references.as_ref().is_some_and(|owners| !owners.is_empty())
}

/// Until the next renewal.
pub fn renew_wait(setup: &NodeObjectConfig, seed: &mut JitterSeed) -> Duration {
    seed.add_jitter(setup.lease_duration.mul_f64(RENEW_FRACTION), JITTER)
}

/// How long one call may take: a late answer is worth as little as none.
pub fn renew_timeout(setup: &NodeObjectConfig) -> Duration {
    setup.status_period.min(setup.lease_duration)
}

/// After the `failures`-th failure in a row.
pub fn back_off(failures: u32) -> Duration {
    FIRST_BACK_OFF.saturating_mul(1 << failures.saturating_sub(1).min(8)).min(LAST_BACK_OFF)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_new_one_and_its_renewal() {
        let setup = NodeObjectConfig { name: "n".into(), ..NodeObjectConfig::default() };
        let first = renewed(&setup, None, Some("u"), Wall(1_500_000_123_456_789));
        let expect = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": "n", "namespace": "kube-node-lease",
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}],
            },
            "spec": {
                "holderIdentity": "n", "leaseDurationSeconds": 40, "renewTime": "1970-01-18T08:40:00.123456Z",
            },
        });
        assert_eq!(serde_json::to_value(&first).unwrap(), expect);
        let mut last = first.clone();
        last.metadata.resource_version = Some("7".into());
        let next = renewed(&setup, Some(&last), Some("other"), Wall(1_500_010_123_456_789));
        assert_eq!(next.metadata, last.metadata);
        assert_ne!(next.spec, last.spec);
        let orphan = renewed(&setup, None, None, Wall(0));
        assert!(!is_owned(&orphan) && is_owned(&first));
        assert!(is_owned(&renewed(&setup, Some(&orphan), Some("u"), Wall(0))));
    }

    #[test]
    fn paces() {
        let setup = NodeObjectConfig::default();
        let mut seed = JitterSeed(3);
        for _ in 0..100 {
            let wait = renew_wait(&setup, &mut seed);
            assert!(wait >= Duration::from_secs(10) && wait <= Duration::from_millis(10_400), "{wait:?}");
        }
        let waits: Vec<u64> = (1..=8).map(|failures| back_off(failures).as_millis() as u64).collect();
        assert_eq!(waits, [200, 400, 800, 1600, 3200, 6400, 7000, 7000]);
        assert_eq!(renew_timeout(&setup), Duration::from_secs(10));
    }
}
