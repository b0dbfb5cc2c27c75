//! Invariants about the agent's state and what it reports.

use decide::lifecycle::Lifecycle;
use decide::{Effect, NodeState};
use model::PodPhase;
use model::k8s::PodStatus;
use model::{Now, PodUid};

use super::{InvariantChecker, Violation};
use crate::world::World;

impl InvariantChecker {
    /// Called after every step.
    pub fn stepped(&mut self, state: &NodeState, _now: Now, effects: &[Effect]) {
        for (uid, entry) in &state.pods {
            if let Lifecycle::Terminating(termination) = entry.lifecycle() {
                let now = (termination.since, termination.grace_secs);
                let before = *self.terminations.entry(uid.clone()).or_insert(now);
                if before.0 == now.0 && now.1 > before.1 {
                    self.violate("K4", format!("the grace of {uid} grew from {} to {}", before.1, now.1));
                }
                self.terminations.insert(uid.clone(), now);
            }
        }
        self.admissions_are_right(state);
        self.unread_pods_are_being_read(state);
        if *state.pods.requests() != state.pods.sum_requests() {
            self.violate("sums", "what pods ask for in all is not what the kept sums say".into());
        }
        self.requests_fit(state);
        for effect in effects {
            if let Effect::RunPlan { uid, epoch, .. } = effect
                && state.pods.get(uid).and_then(|e| e.plan.as_ref()).is_none_or(|p| p.epoch != *epoch)
            {
                self.violate("one plan", format!("a plan of {uid} runs that the state does not know"));
            }
        }
    }

    /// The reading of these pods contradicts what the runtime said before.
    pub fn no_plan_from_false_list(&mut self, lied_about: &[PodUid], effects: &[Effect]) {
        for effect in effects {
            if let Effect::RunPlan { uid, .. } = effect
                && lied_about.contains(uid)
            {
                self.violate("lies wait", format!("a plan of {uid} follows from a list that is not true"));
            }
        }
    }

    /// A pod whose reading is too old for planning is being read, or a reading is due.
    fn unread_pods_are_being_read(&mut self, state: &NodeState) {
        let full = &state.full_observation;
        let everything = full.in_flight || full.wanted.is_some() || full.last.is_none();
        let unread = state.pods.iter().find(|(_, e)| {
            let coming = e.observation_request.in_flight || e.observation_request.wanted.is_some();
            !e.standing().is_set_aside()
                && e.plan.is_none()
                && e.fresh_observation().is_none()
                && !coming
                && !everything
        });
        if let Some((uid, _)) = unread {
            self.violate("K7", format!("pod {uid} waits for a reading that nobody makes"));
        }
    }

    /// When no pod is left, the state must hold nothing about any pod.
    pub fn forgot_everything(&mut self, state: &NodeState) {
        let left = [
            ("pods", state.pods.len()),
            ("names", state.name_queues.len()),
            ("ids", state.pod_by_runtime_id.len()),
            ("unclaimed", state.unclaimed.len()),
            ("witnesses of unclaimed pods", state.unclaimed_guards.len()),
            ("retries of unclaimed pods", state.unclaimed_status_retries.len()),
            ("confirmations", state.confirmations.len()),
            ("stuck images", state.images.pods_without_image.len()),
            ("sweeping", state.pods_being_swept.len()),
            ("undecided pods", state.admissions.len()),
            ("user ids", state.user_ids.len()),
            ("certificates", state.objects.as_ref().map_or(0, |desk| desk.certificates.len())),
            ("parts of volumes", state.csi_volumes.remembered()),
        ];
        if let Some((what, count)) = left.iter().find(|(_, count)| *count > 0) {
            self.violate("no leaks", format!("{count} {what} are left in the state without any pod"));
        }
    }

    pub fn status_published(
        &mut self,
        _world: &World,
        uid: &PodUid,
        status: &PodStatus,
    ) -> Option<Violation> {
        let phase = status.phase.clone().unwrap_or_default();
        let found = self.ended.get(uid).filter(|ended| **ended != phase).map(|ended| Violation {
            invariant: "K2",
            message: format!("pod {uid} was {ended} and is {phase} now"),
        });
        if PodPhase::of(status).is_some_and(PodPhase::is_terminal) {
            self.ended.entry(uid.clone()).or_insert(phase);
        }
        let mut fewer = None;
        for container in status.container_statuses.iter().flatten() {
            let key = (uid.clone(), container.name.clone());
            let before = self.published_restarts.insert(key, container.restart_count).unwrap_or(0);
            if container.restart_count < before {
                fewer = Some(Violation {
                    invariant: "restart counts",
                    message: format!(
                        "container {} of {uid} had {before} restarts and has {} now",
                        container.name, container.restart_count
                    ),
                });
            }
        }
        found.or(fewer)
    }
}
