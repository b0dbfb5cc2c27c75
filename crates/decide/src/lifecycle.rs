//! The lifecycle of a pod, as permissions and not as a script.
//!
//! ```text
//!   Syncing ──(removed, deleted, rejected, phase terminal)──> Terminating ──(nothing runs)──> Terminated
//!                                                                                               │
//!                                                             (volumes and cgroup released)     v
//!                                                                                            Finished
//! ```
//!
//! The state decides what may be done. No transition leads back.

use model::Mono;
use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Lifecycle {
    Syncing,
    Terminating(Termination),
    /// All containers are stopped.
    Terminated,
    /// Volumes and cgroup are released too.
    Finished,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Termination {
    pub since: Mono,
    /// The whole grace period in seconds. It only ever shrinks.
    pub grace_secs: i64,
}

/// The shortest timeout of `StopContainer`.
pub const MINIMUM_STOP_SECS: i64 = 2;
/// The shortest grace period of a pod.
pub(crate) const MINIMUM_GRACE_SECS: i64 = 1;

impl Lifecycle {
    pub fn may_start(&self) -> bool {
        matches!(self, Lifecycle::Syncing)
    }
    pub fn may_mount(&self) -> bool {
        matches!(self, Lifecycle::Syncing)
    }
    pub fn termination_requested(&self) -> bool {
        !matches!(self, Lifecycle::Syncing)
    }
    pub fn is_terminated(&self) -> bool {
        matches!(self, Lifecycle::Terminated | Lifecycle::Finished)
    }
    /// Containers and sandboxes may be deleted from the runtime.
    pub fn may_remove_runtime_objects(&self) -> bool {
        self.is_terminated()
    }
    /// The pod's directory and logs may be deleted.
    pub fn may_remove_directories(&self, removed: bool) -> bool {
        removed && self.is_terminated()
    }
}

impl Termination {
    /// Shortens the grace period to this many seconds from now. Returns whether that changed anything. The deadline
    /// never moves later (K4).
    pub fn shorten(&mut self, grace_secs: i64, now: Mono) -> bool {
        let in_all = self.spent_secs(now).saturating_add(grace_secs.max(MINIMUM_GRACE_SECS));
        if in_all < self.grace_secs {
            self.grace_secs = in_all;
            return true;
        }
        false
    }

    fn spent_secs(&self, now: Mono) -> i64 {
        i64::try_from(now.since(self.since).as_secs()).unwrap_or(i64::MAX)
    }

    /// What is left of the grace, for a container that has to be stopped now.
    pub fn left_secs(&self, now: Mono) -> i64 {
        self.grace_secs.saturating_sub(self.spent_secs(now)).max(MINIMUM_STOP_SECS)
    }
}

/// The pod's grace: the API's deletion grace (or an override), else the spec's, at least one second.
pub fn grace_secs(deletion_grace: Option<i64>, spec_grace: i64) -> i64 {
    deletion_grace.unwrap_or(spec_grace).max(MINIMUM_GRACE_SECS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn permissions_follow_from_the_place() {
        let term = Lifecycle::Terminating(Termination { since: Mono::ZERO, grace_secs: 30 });
        // place, start, mount, requested, drop runtime, drop content when removed
        let table = [
            (Lifecycle::Syncing, true, true, false, false, false),
            (term, false, false, true, false, false),
            (Lifecycle::Terminated, false, false, true, true, true),
            (Lifecycle::Finished, false, false, true, true, true),
        ];
        for (place, start, mount, requested, runtime, content) in table {
            assert_eq!(place.may_start(), start, "{place:?}");
            assert_eq!(place.may_mount(), mount, "{place:?}");
            assert_eq!(place.termination_requested(), requested, "{place:?}");
            assert_eq!(place.may_remove_runtime_objects(), runtime, "{place:?}");
            assert_eq!(place.may_remove_directories(true), content, "{place:?}");
            assert!(!place.may_remove_directories(false), "{place:?}");
        }
    }

    #[test]
    fn grace_only_shrinks_and_has_a_floor() {
        let mut t = Termination { since: Mono::ZERO, grace_secs: 30 };
        let at = |secs| Mono::from_duration(Duration::from_secs(secs));
        assert!(!t.shorten(40, at(0)));
        assert!(!t.shorten(30, at(0)));
        assert!(t.shorten(10, at(0)));
        assert!(t.shorten(0, at(0)));
        assert_eq!(t.grace_secs, 1);
        assert!(!t.shorten(5, at(0)));
    }

    #[test]
    fn a_shorter_grace_counts_from_when_it_was_asked() {
        let at = |secs| Mono::from_duration(Duration::from_secs(secs));
        let mut t = Termination { since: at(100), grace_secs: 60 };
        assert!(!t.shorten(50, at(110)), "that is when it ends anyway");
        assert!(t.shorten(20, at(110)));
        assert_eq!((t.grace_secs, t.left_secs(at(110)), t.left_secs(at(125))), (30, 20, 5));
        assert!(!t.shorten(20, at(111)), "asked again");
        assert!(t.shorten(0, at(120)));
        assert_eq!(t.left_secs(at(120)), MINIMUM_STOP_SECS);
    }

    #[test]
    fn no_grace_is_too_long() {
        let at = |secs| Mono::from_duration(Duration::from_secs(secs));
        let mut t = Termination { since: at(1), grace_secs: i64::MAX };
        assert!(!t.shorten(i64::MAX, at(9)), "as long as before, and later");
        assert_eq!(t.left_secs(at(9)), i64::MAX - 8);
        assert!(t.left_secs(Mono(u64::MAX)) < i64::MAX);
        assert!(t.shorten(30, at(9)));
        assert_eq!(t.left_secs(at(9)), 30);
        let negative = Termination { grace_secs: i64::MIN, ..t };
        assert_eq!(negative.left_secs(at(9)), MINIMUM_STOP_SECS);
    }

    #[test]
    fn left_over_grace_counts_from_the_request() {
        let t = Termination { since: Mono::ZERO, grace_secs: 30 };
        let at = |secs| Mono::from_duration(Duration::from_secs(secs));
        assert_eq!(t.left_secs(at(0)), 30);
        assert_eq!(t.left_secs(at(12)), 18);
        assert_eq!(t.left_secs(at(29)), 2);
        assert_eq!(t.left_secs(at(300)), 2);
    }

    #[test]
    fn grace_comes_from_the_deletion_then_the_spec() {
        for (deletion, spec, expect) in
            [(None, 30, 30), (Some(5), 30, 5), (Some(0), 30, 1), (None, 0, 1), (None, -3, 1)]
        {
            assert_eq!(grace_secs(deletion, spec), expect, "{deletion:?} {spec}");
        }
    }
}
