//! Invariants about who is admitted beside whom, computed from what the sources delivered.

use decide::NodeState;
use decide::observation_guard::PodObservation;
use decide::resources::{Amounts, Overhead, is_critical, node_allocatable, pod_requests};
use decide::state::{AdmissionWait, PodEntry};
use model::observed::ContainerState;
use model::pod::{PodView, Source};
use model::{PodPhase, PodReason, PodUid};

use super::InvariantChecker;

impl InvariantChecker {
    /// What pods may request. Admission goes by what the Node object shows. `None`: somebody else has written that, and
    /// changes it while pods run.
    pub(super) fn offered(&mut self, state: &NodeState) -> Option<Amounts> {
        let own = node_allocatable(&state.config, &state.facts);
        let shown = state.node.as_ref().and_then(|node| node.status.as_ref()?.allocatable.as_ref());
        self.allocatable_is_foreign |= shown.is_some_and(|shown| {
            !shown.is_empty() && Amounts::from_api(Some(shown)).cpu_millis() != own.cpu_millis()
        });
        (!self.allocatable_is_foreign).then_some(own)
    }

    /// Admitted pods never request more than there is, and whoever was preempted was less important than a pod that waits
    /// for its room.
    pub(super) fn admissions_are_right(&mut self, state: &NodeState) {
        let (mut requested, mut new_victims) = (0i64, Vec::new());
        for (uid, entry) in &state.pods {
            if self.holds_room(uid, entry)
                && let Some(view) = self.definition(uid)
            {
                requested = requested.saturating_add(pod_requests(&view, Overhead::Included).cpu_millis());
            }
            let preempted =
                entry.standing().eviction().is_some_and(|why| why.reason == PodReason::Preempting.as_str());
            if preempted && !self.preempted.contains(uid) {
                new_victims.push(uid.clone());
            }
        }
        let allocatable = self.offered(state).map_or(i64::MAX, |offered| offered.cpu_millis());
        if requested > allocatable {
            let message = format!("admitted pods request {requested}m of {allocatable}m CPU");
            self.violate("room", message);
        }
        for victim in new_victims {
            if let Some(view) = self.definition(&victim)
                && !self.somebody_may_preempt(state, &view)
            {
                self.violate(
                    "victims",
                    format!("pod {victim} is preempted, and nobody more important waits"),
                );
            }
            self.preempted.insert(victim);
        }
        let decided = state.pods.iter().filter(|(_, entry)| entry.standing().admission_wait().is_none());
        self.admitted = decided.map(|(uid, _)| uid.clone()).collect();
    }

    /// It may run, or something of it may still run. Not counted are pods that were removed by force, as with upstream,
    /// pods of which an earlier agent reported the end, and those that end and whose containers were seen to have ended.
    pub(super) fn holds_room(&self, uid: &PodUid, entry: &PodEntry) -> bool {
        let standing = entry.standing();
        let shown = entry.view().pod.status.as_ref();
        if shown.and_then(PodPhase::of).is_some_and(PodPhase::is_terminal) {
            return false;
        }
        standing.admission_wait().is_none()
            && !containers_ended(entry)
            && standing.rejection().is_none()
            && !standing.is_removed()
            && !entry.lifecycle().is_terminated()
            && !self.forgotten_victims.contains(uid)
    }

    fn definition(&self, uid: &PodUid) -> Option<PodView> {
        self.specs.get(uid).map(|pod| PodView::new(pod.clone(), Source::Api))
    }

    /// A pod that waits for room, or that was admitted in this step because its victims had nothing left to stop.
    fn somebody_may_preempt(&self, state: &NodeState, victim: &PodView) -> bool {
        let came = |(uid, entry): &(&PodUid, &PodEntry)| match entry.standing().admission_wait() {
            Some(wait) => wait == AdmissionWait::Room,
            None => !self.admitted.contains(*uid),
        };
        state.pods.iter().filter(came).filter_map(|(uid, _)| self.definition(uid)).any(|pod| {
            let priority = |pod: &PodView| pod.spec().priority;
            let higher = priority(&pod).zip(priority(victim)).is_some_and(|(own, other)| own > other);
            is_critical(&pod) && (!is_critical(victim) || higher)
        })
    }
}

/// The pod ends, and none of its containers was seen to run any more.
fn containers_ended(entry: &PodEntry) -> bool {
    let shown = entry.view().pod.status.as_ref();
    let ends =
        !entry.lifecycle().may_start() || shown.and_then(PodPhase::of).is_some_and(PodPhase::is_terminal);
    let ended = |seen: &PodObservation| {
        let runs = |state| matches!(state, ContainerState::Running | ContainerState::Unknown);
        !seen.pod.containers.iter().any(|container| runs(container.state))
    };
    ends && entry.observed.as_ref().is_some_and(ended)
}
