//! What a pod is on this node: wanted, set aside, or ending and why.
//!
//! ```text
//!   undecided ──(admitted)──> wanted
//!       │                       │
//!       └───────────────────────┴─(removed, deleted, rejected, evicted, completed)──> ending: terminating
//!                                                                   ^                     ──> terminated ──> finished
//!   orphan (found in the runtime only) ─────────────────────────────┘
//!
//!   set aside: nothing happens to the pod until its entry is made anew
//! ```
//!
//! Of an undecided pod it is not known yet whether it may run here, so nothing is done for it. A pod that may run is
//! wanted, and nothing else is said of it. Removal, rejection, eviction and a definition to be
//! created again exist only for a pod that ends. [`Standing::end`] is the only way there, and no transition leads back.

use model::Mono;
use model::pod::PodView;

use crate::lifecycle::{Lifecycle, Termination};
use crate::set_aside::SetAside;

#[derive(Clone, Debug)]
pub struct Standing(Kind);

#[derive(Clone, Debug)]
enum Kind {
    /// A source wants the pod, and admission has not decided yet whether it may run.
    Undecided(AdmissionWait),
    /// A source wants the pod, and it may run.
    Wanted,
    /// Steps about the pod panicked, so nothing is done for it.
    SetAside {
        record: SetAside,
        orphan: bool,
    },
    Ending(Ending),
}

/// What the admission of a pod waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AdmissionWait {
    /// Its turn in this step, or the first full observation: that may show that an earlier agent admitted the pod.
    Turn,
    /// The Node object, which is read again before the pod is refused for node affinity.
    Node,
    /// The resources of pods that end. The pod's own requests are reserved meanwhile.
    Room,
}

#[derive(Clone, Debug)]
struct Ending {
    /// Never `Syncing`.
    lifecycle: Lifecycle,
    demand: Demand,
    /// The pod was added again under the same UID. It is created from this definition when it has finished.
    recreate_as: Option<PodView>,
}

/// Who still wants a pod that ends, and what its status says of the end.
#[derive(Clone, Debug)]
enum Demand {
    Wanted(Option<Verdict>),
    /// No source wants it any more.
    Removed(Option<Verdict>),
    /// Found in the runtime only: its spec is not known, and no status is shown.
    Orphan,
}

#[derive(Clone, Debug)]
enum Verdict {
    Rejected(FailureReason),
    Evicted(FailureReason),
}

/// Reason and message that the status of a failed pod shows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FailureReason {
    pub reason: String,
    pub message: String,
    /// The pod ends for the sake of others: the message of its condition `DisruptionTarget`.
    pub disruption: Option<String>,
}

impl FailureReason {
    pub fn new(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { reason: reason.into(), message: message.into(), disruption: None }
    }

    pub fn with_disruption(self, message: impl Into<String>) -> Self {
        Self { disruption: Some(message.into()), ..self }
    }
}

/// Why a pod has to end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EndReason {
    /// No source wants the pod any more.
    Removed,
    /// `deletionTimestamp` is set.
    Deleted,
    /// The node does not run it.
    Rejected(FailureReason),
    Evicted(FailureReason),
    /// All its containers have ended and none is to be restarted, or it failed for good.
    Completed,
}

/// What a request to end changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndRequest {
    /// Nothing is done for this pod: it is set aside, or a pod that has ended is to be evicted.
    Refused,
    /// The pod ends from now on.
    Began,
    /// It was ending, and has less time now.
    Shortened,
    /// It was ending, and ends no sooner.
    Unchanged,
}

impl Standing {
    pub(super) fn wanted() -> Self {
        Self(Kind::Wanted)
    }

    pub(super) fn undecided() -> Self {
        Self(Kind::Undecided(AdmissionWait::Turn))
    }

    /// `orphan`: no source wants the pod.
    pub(super) fn set_aside(record: SetAside, orphan: bool) -> Self {
        Self(Kind::SetAside { record, orphan })
    }

    /// An orphan ends from the beginning.
    pub(super) fn orphan(grace_secs: i64, now: Mono) -> Self {
        Self(Kind::Ending(Ending::begin(Demand::Orphan, grace_secs, now)))
    }

    pub fn lifecycle(&self) -> &Lifecycle {
        match &self.0 {
            Kind::Undecided(_) | Kind::Wanted | Kind::SetAside { .. } => &Lifecycle::Syncing,
            Kind::Ending(ending) => &ending.lifecycle,
        }
    }

    fn ending(&self) -> Option<&Ending> {
        match &self.0 {
            Kind::Ending(ending) => Some(ending),
            Kind::Undecided(_) | Kind::Wanted | Kind::SetAside { .. } => None,
        }
    }

    /// What the admission of the pod waits for. `None`: it is decided.
    pub fn admission_wait(&self) -> Option<AdmissionWait> {
        match &self.0 {
            Kind::Undecided(wait) => Some(*wait),
            Kind::Wanted | Kind::SetAside { .. } | Kind::Ending(_) => None,
        }
    }

    fn verdict(&self) -> Option<&Verdict> {
        match &self.ending()?.demand {
            Demand::Wanted(verdict) | Demand::Removed(verdict) => verdict.as_ref(),
            Demand::Orphan => None,
        }
    }

    /// Found in the runtime only: the spec is not known.
    pub fn is_orphan(&self) -> bool {
        match &self.0 {
            Kind::Undecided(_) | Kind::Wanted => false,
            Kind::SetAside { orphan, .. } => *orphan,
            Kind::Ending(ending) => matches!(ending.demand, Demand::Orphan),
        }
    }

    /// No source wants it any more, or none ever did.
    pub fn is_removed(&self) -> bool {
        match &self.0 {
            Kind::Undecided(_) | Kind::Wanted => false,
            Kind::SetAside { orphan, .. } => *orphan,
            Kind::Ending(ending) => !matches!(ending.demand, Demand::Wanted(_)),
        }
    }

    /// Nothing of the pod is to be left: no source wants it, and it is not created again.
    pub fn is_gone_for_good(&self) -> bool {
        self.is_removed() && self.recreate_as().is_none()
    }

    /// The node refused to run the pod.
    pub fn rejection(&self) -> Option<&FailureReason> {
        match self.verdict()? {
            Verdict::Rejected(reason) => Some(reason),
            Verdict::Evicted(_) => None,
        }
    }

    pub fn eviction(&self) -> Option<&FailureReason> {
        match self.verdict()? {
            Verdict::Evicted(reason) => Some(reason),
            Verdict::Rejected(_) => None,
        }
    }

    /// Why the pod is set aside, if it is.
    pub fn set_aside_record(&self) -> Option<&SetAside> {
        match &self.0 {
            Kind::SetAside { record, .. } => Some(record),
            Kind::Undecided(_) | Kind::Wanted | Kind::Ending(_) => None,
        }
    }

    pub fn is_set_aside(&self) -> bool {
        self.set_aside_record().is_some()
    }

    /// The definition that the pod is created from when it has finished.
    pub fn recreate_as(&self) -> Option<&PodView> {
        self.ending()?.recreate_as.as_ref()
    }

    /// The directories and logs of the pod may be deleted.
    pub fn may_remove_directories(&self) -> bool {
        self.lifecycle().may_remove_directories(self.is_removed())
    }

    /// Asks for the end of the pod. A later request only shortens the grace period; of several verdicts the first stays.
    pub(crate) fn end(&mut self, reason: EndReason, grace_secs: i64, now: Mono) -> EndRequest {
        match &mut self.0 {
            Kind::SetAside { .. } => EndRequest::Refused,
            Kind::Undecided(_) | Kind::Wanted => {
                let mut demand = Demand::Wanted(None);
                demand.note(reason);
                self.0 = Kind::Ending(Ending::begin(demand, grace_secs, now));
                EndRequest::Began
            }
            Kind::Ending(ending) => ending.end(reason, grace_secs, now),
        }
    }

    /// A source wants the pod again, or the definition that it wants changed. `Some`: the pod does not end, so the
    /// definition is for the pod itself.
    pub(crate) fn recreate_from(&mut self, view: PodView) -> Option<PodView> {
        match &mut self.0 {
            Kind::Undecided(_) | Kind::Wanted | Kind::SetAside { .. } => Some(view),
            Kind::Ending(ending) => {
                ending.recreate_as = Some(view);
                None
            }
        }
    }

    /// The pod may run here.
    pub(crate) fn admit(&mut self) {
        if matches!(self.0, Kind::Undecided(_)) {
            self.0 = Kind::Wanted;
        }
    }

    /// Admission of an undecided pod waits for something else now.
    pub(crate) fn wait_for_admission(&mut self, wait: AdmissionWait) {
        if let Kind::Undecided(now) = &mut self.0 {
            *now = wait;
        }
    }

    /// Nothing of a terminating pod runs any more.
    pub(crate) fn containers_stopped(&mut self) {
        if let Kind::Ending(ending) = &mut self.0
            && matches!(ending.lifecycle, Lifecycle::Terminating(_))
        {
            ending.lifecycle = Lifecycle::Terminated;
        }
    }

    /// Volumes and cgroup of a terminated pod are released.
    pub(crate) fn released(&mut self) {
        if let Kind::Ending(ending) = &mut self.0
            && matches!(ending.lifecycle, Lifecycle::Terminated)
        {
            ending.lifecycle = Lifecycle::Finished;
        }
    }
}

impl Ending {
    fn begin(demand: Demand, grace_secs: i64, now: Mono) -> Self {
        let lifecycle = Lifecycle::Terminating(Termination { since: now, grace_secs });
        Self { lifecycle, demand, recreate_as: None }
    }

    fn end(&mut self, reason: EndReason, grace_secs: i64, now: Mono) -> EndRequest {
        if matches!(reason, EndReason::Evicted(_)) && self.lifecycle.is_terminated() {
            return EndRequest::Refused;
        }
        if reason == EndReason::Removed {
            self.recreate_as = None;
        }
        self.demand.note(reason);
        let shorter = match &mut self.lifecycle {
            Lifecycle::Terminating(termination) => termination.shorten(grace_secs, now),
            _ => false,
        };
        if shorter { EndRequest::Shortened } else { EndRequest::Unchanged }
    }
}

impl Demand {
    fn note(&mut self, reason: EndReason) {
        let verdict = match reason {
            EndReason::Rejected(why) => Verdict::Rejected(why),
            EndReason::Evicted(why) => Verdict::Evicted(why),
            EndReason::Removed => {
                if let Demand::Wanted(verdict) = self {
                    *self = Demand::Removed(verdict.take());
                }
                return;
            }
            EndReason::Deleted | EndReason::Completed => return,
        };
        if let Demand::Wanted(known) | Demand::Removed(known) = self {
            known.get_or_insert(verdict);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::k8s::Pod;
    use model::pod::Source;
    use proptest::prelude::*;

    use super::*;

    const NOW: Mono = Mono::ZERO;

    fn why(reason: &str) -> FailureReason {
        FailureReason::new(reason, "")
    }

    fn record() -> SetAside {
        SetAside { definition: 0, unreported: false, unmergeable: false, message: "it panicked".into() }
    }

    fn definition(name: &str) -> PodView {
        let mut pod = Pod::default();
        pod.metadata.name = Some(name.into());
        PodView::new(Arc::new(pod), Source::File)
    }

    fn after(reasons: &[EndReason]) -> Standing {
        let mut standing = Standing::wanted();
        for reason in reasons {
            standing.end(reason.clone(), 30, NOW);
        }
        standing
    }

    #[test]
    fn what_is_said_of_a_pod_that_ends() {
        use EndReason::{Completed, Deleted, Evicted, Rejected, Removed};
        // reasons in their order, removed, rejected, evicted
        for (reasons, removed, rejected, evicted) in [
            (vec![Deleted], false, None, None),
            (vec![Completed, Removed], true, None, None),
            (vec![Rejected(why("r")), Removed], true, Some("r"), None),
            (vec![Evicted(why("e")), Evicted(why("later"))], false, None, Some("e")),
            (vec![Removed, Evicted(why("e"))], true, None, Some("e")),
            (vec![Rejected(why("r")), Evicted(why("e"))], false, Some("r"), None),
        ] {
            let standing = after(&reasons);
            let name = |why: Option<&FailureReason>| why.map(|why| why.reason.clone());
            assert_eq!(standing.is_removed(), removed, "{reasons:?}");
            assert_eq!(name(standing.rejection()).as_deref(), rejected, "{reasons:?}");
            assert_eq!(name(standing.eviction()).as_deref(), evicted, "{reasons:?}");
        }
    }

    #[test]
    fn a_pod_that_has_ended_is_not_evicted() {
        let mut standing = after(&[EndReason::Completed]);
        standing.containers_stopped();
        assert_eq!(standing.end(EndReason::Evicted(why("e")), 30, NOW), EndRequest::Refused);
        assert_eq!(standing.eviction(), None);
        assert_eq!(standing.end(EndReason::Removed, 30, NOW), EndRequest::Unchanged);
        assert!(standing.is_removed() && standing.is_gone_for_good());
    }

    #[test]
    fn only_a_pod_that_ends_is_created_again() {
        let mut standing = Standing::wanted();
        assert!(standing.recreate_from(definition("one")).is_some(), "the definition is for the pod itself");
        standing.end(EndReason::Removed, 30, NOW);
        assert!(standing.recreate_from(definition("one")).is_none());
        assert!(standing.recreate_from(definition("two")).is_none());
        assert_eq!(standing.recreate_as().map(PodView::name), Some("two"));
        assert!(standing.is_removed() && !standing.is_gone_for_good());
        standing.end(EndReason::Removed, 30, NOW);
        assert!(standing.is_gone_for_good(), "no source wants the new one either");
    }

    #[test]
    fn nothing_happens_to_a_pod_that_is_set_aside() {
        for orphan in [false, true] {
            let mut standing = Standing::set_aside(record(), orphan);
            for reason in [EndReason::Removed, EndReason::Evicted(why("e")), EndReason::Rejected(why("r"))] {
                assert_eq!(standing.end(reason, 1, NOW), EndRequest::Refused);
            }
            standing.containers_stopped();
            standing.released();
            assert!(standing.recreate_from(definition("one")).is_some());
            assert_eq!(standing.lifecycle(), &Lifecycle::Syncing);
            assert_eq!((standing.is_orphan(), standing.is_removed()), (orphan, orphan));
            assert_eq!(standing.set_aside_record(), Some(&record()));
        }
    }

    #[derive(Clone, Debug)]
    enum Change {
        End(EndReason, i64),
        Recreate,
        Stopped,
        Released,
    }

    fn change() -> impl Strategy<Value = Change> {
        let reason = prop::sample::select(vec![
            EndReason::Removed,
            EndReason::Deleted,
            EndReason::Rejected(why("r")),
            EndReason::Evicted(why("e")),
            EndReason::Completed,
        ]);
        prop_oneof![
            4 => (reason, 1..100i64).prop_map(|(reason, grace)| Change::End(reason, grace)),
            1 => Just(Change::Recreate),
            1 => Just(Change::Stopped),
            1 => Just(Change::Released),
        ]
    }

    /// How far the lifecycle is, and the grace period while it terminates.
    fn progress(standing: &Standing) -> (u8, i64) {
        match standing.lifecycle() {
            Lifecycle::Syncing => (0, i64::MAX),
            Lifecycle::Terminating(termination) => (1, termination.grace_secs),
            Lifecycle::Terminated => (2, 0),
            Lifecycle::Finished => (3, 0),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn no_transition_leads_back(
            start in 0..3u8,
            changes in prop::collection::vec(change(), 1..20),
        ) {
            let mut standing = match start {
                0 => Standing::wanted(),
                1 => Standing::set_aside(record(), false),
                _ => Standing::orphan(30, NOW),
            };
            for change in changes {
                let before = standing.clone();
                match change {
                    Change::End(reason, grace) => {
                        standing.end(reason, grace, NOW);
                    }
                    Change::Recreate => drop(standing.recreate_from(definition("again"))),
                    Change::Stopped => standing.containers_stopped(),
                    Change::Released => standing.released(),
                }
                let ((stage, grace), (stage_before, grace_before)) = (progress(&standing), progress(&before));
                prop_assert!(stage >= stage_before && stage <= stage_before + 1);
                prop_assert!(grace <= grace_before);
                prop_assert!(before.is_removed() <= standing.is_removed());
                prop_assert!(before.rejection().is_none() || before.rejection() == standing.rejection());
                prop_assert!(before.eviction().is_none() || before.eviction() == standing.eviction());
                prop_assert_eq!(before.is_orphan(), standing.is_orphan());
                prop_assert_eq!(before.set_aside_record(), standing.set_aside_record());
                if standing.lifecycle().may_start() {
                    let ends = standing.is_removed() && !standing.is_set_aside();
                    prop_assert!(!ends && standing.recreate_as().is_none());
                    prop_assert!(standing.rejection().is_none() && standing.eviction().is_none());
                }
            }
        }
    }
}
