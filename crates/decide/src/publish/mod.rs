//! Reports of a pod's status to the API server, and the deletion of its object.
//!
//! ```text
//!   derived status ──merge──> what the object should show ──patch──> only what differs ──> one PATCH
//!                      ^                                                  │
//!                      └── what the object shows (watch, last answer) <───┘
//! ```
//!
//! There is one call per pod at a time. Changes during a call are sent with the next one. If a patch has no effect
//! (another writer reverts it, or the server drops the field), the same patch is sent again only after ten seconds.

mod merge;
mod patch;

use std::sync::Arc;
use std::time::Duration;

use model::k8s::{Pod, PodStatus};
use model::{Mono, PodUid};

pub use merge::merge;
pub use patch::{is_only_of, patch};

use model::PodPhase;

/// How long the same patch is not sent again.
pub(crate) const RECONCILE_PAUSE: Duration = Duration::from_secs(10);
const RETRY_FIRST: Duration = Duration::from_secs(1);
/// Longest wait while the server is unreachable. It is short, so that statuses are up to date soon after the server is
/// back.
const RETRY_AWAY_MAX: Duration = Duration::from_secs(10);
/// Longest wait after a refusal. The server will refuse again until something changes.
const RETRY_REFUSED_MAX: Duration = Duration::from_secs(300);

/// What is known of a pod's object in the API.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiPodObject {
    pub uid: PodUid,
    /// The resourceVersion as a number. Watch events and answers may overtake each other; the higher version is the
    /// newer one.
    pub version: Option<u64>,
    pub status: Arc<PodStatus>,
}

impl ApiPodObject {
    pub fn of(pod: &Pod) -> Self {
        let meta = &pod.metadata;
        Self {
            uid: PodUid::new(meta.uid.as_deref().unwrap_or_default()),
            version: meta.resource_version.as_deref().and_then(|v| v.parse().ok()),
            status: Arc::new(pod.status.clone().unwrap_or_default()),
        }
    }

    pub fn is_terminal(&self) -> bool {
        PodPhase::of(&self.status).is_some_and(PodPhase::is_terminal)
    }

    /// Whether this is of the same object and not newer than `other`.
    fn is_older_than(&self, other: &ApiPodObject) -> bool {
        self.uid == other.uid && matches!((self.version, other.version), (Some(a), Some(b)) if a < b)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ObjectDeletion {
    #[default]
    NotAsked,
    InFlight,
    /// The object is deleted. The watch will report it.
    Done,
}

/// The state of the status reports of one pod.
#[derive(Clone, Debug, Default)]
pub struct StatusPublication {
    pub api_object: Option<ApiPodObject>,
    /// The status or the object changed since the last comparison.
    pub dirty: bool,
    pub in_flight: bool,
    /// Hash of the last patch that was sent, and when.
    pub last_sent: Option<(u64, Mono)>,
    pub failures: u32,
    pub retry_at: Option<Mono>,
    pub deletion: ObjectDeletion,
}

impl StatusPublication {
    /// Whether this or a newer version of the object was seen already. Comparing versions is cheaper than copying a
    /// status.
    pub fn has_seen(&self, pod: &Pod) -> bool {
        let version = pod.metadata.resource_version.as_deref().and_then(|v| v.parse().ok());
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        self.api_object.as_ref().is_some_and(|s| {
            s.uid.as_str() == uid
                && version.is_some_and(|version| s.version.is_some_and(|known| known >= version))
        })
    }

    /// Records the object from a watch event or an answer.
    pub fn object_seen(&mut self, seen: ApiPodObject) {
        match &self.api_object {
            Some(known) if seen.is_older_than(known) || *known == seen => {}
            Some(known) => {
                if known.uid != seen.uid {
                    // another object under the same name: what was sent to the old one does not count
                    self.last_sent = None;
                    self.deletion = ObjectDeletion::NotAsked;
                }
                self.dirty |= known.uid != seen.uid || known.status != seen.status;
                self.api_object = Some(seen);
            }
            None => {
                self.dirty = true;
                self.api_object = Some(seen);
            }
        }
    }

    /// The object is deleted. What was sent to it does not count for a new object.
    pub fn object_gone(&mut self) {
        self.api_object = None;
        self.last_sent = None;
    }

    pub fn succeeded(&mut self) {
        self.failures = 0;
        self.retry_at = None;
    }

    /// When to try again after a failure.
    pub fn failed(&mut self, refused: bool, retry_after: Option<Duration>, now: Mono) {
        self.dirty = true;
        self.failures = self.failures.saturating_add(1);
        self.retry_at = Some(now.plus(retry_wait(self.failures, refused, retry_after)));
    }
}

/// Doubling waits, and never shorter than the Retry-After of the server.
pub(crate) fn retry_wait(failures: u32, refused: bool, retry_after: Option<Duration>) -> Duration {
    let limit = if refused { RETRY_REFUSED_MAX } else { RETRY_AWAY_MAX };
    let doubled = RETRY_FIRST.saturating_mul(1 << failures.saturating_sub(1).min(16));
    doubled.min(limit).max(retry_after.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(uid: &str, version: u64, phase: &str) -> ApiPodObject {
        let status = PodStatus { phase: Some(phase.into()), ..Default::default() };
        ApiPodObject { uid: uid.into(), version: Some(version), status: Arc::new(status) }
    }

    #[test]
    fn an_older_view_of_the_object_never_replaces_a_newer_one() {
        let mut publication = StatusPublication::default();
        publication.object_seen(shown("a", 5, "Pending"));
        assert!(std::mem::take(&mut publication.dirty));
        publication.object_seen(shown("a", 7, "Running"));
        assert!(std::mem::take(&mut publication.dirty));
        publication.object_seen(shown("a", 6, "Pending"));
        assert!(!publication.dirty);
        assert_eq!(publication.api_object.as_ref().unwrap().status.phase.as_deref(), Some("Running"));
        publication.object_seen(shown("b", 2, "Pending"));
        assert!(publication.dirty, "another object");
    }

    #[test]
    fn a_new_version_that_says_the_same_is_no_reason_to_compare() {
        let mut publication = StatusPublication::default();
        publication.object_seen(shown("a", 5, "Pending"));
        publication.dirty = false;
        publication.object_seen(shown("a", 6, "Pending"));
        assert!(!publication.dirty);
        assert_eq!(publication.api_object.as_ref().unwrap().version, Some(6));
    }

    #[test]
    fn waits_double_up_to_their_limit_and_obey_the_server() {
        let secs = Duration::from_secs;
        for (failures, refused, after, expect) in [
            (1, false, None, 1),
            (2, false, None, 2),
            (4, false, None, 8),
            (5, false, None, 10),
            (90, false, None, 10),
            (9, true, None, 256),
            (90, true, None, 300),
            (1, false, Some(30), 30),
            (5, false, Some(3), 10),
        ] {
            assert_eq!(retry_wait(failures, refused, after.map(secs)), secs(expect), "{failures} {refused}");
        }
    }
}
