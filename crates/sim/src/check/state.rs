//! Promises about what the agent knows and says.

use decide::lifecycle::Lifecycle;
use decide::{Effect, NodeState};
use model::k8s::PodStatus;
use model::{Now, PodUid};

use super::{Checker, Violation};
use crate::world::World;

impl Checker {
    /// After every step.
    pub fn stepped(&mut self, state: &NodeState, _now: Now, effects: &[Effect]) {
        for (uid, entry) in &state.pods {
            if let Lifecycle::Terminating(termination) = &entry.lifecycle {
                let now = (termination.since, termination.grace_secs);
                let before = *self.terminations.entry(uid.clone()).or_insert(now);
                if before.0 == now.0 && now.1 > before.1 {
                    self.violate("K4", format!("the grace of {uid} grew from {} to {}", before.1, now.1));
                }
                self.terminations.insert(uid.clone(), now);
            }
        }
        for effect in effects {
            if let Effect::Run { uid, epoch, .. } = effect
                && state.pods.get(uid).and_then(|e| e.plan.as_ref()).is_none_or(|p| p.epoch != *epoch)
            {
                self.violate("one plan", format!("a plan of {uid} runs that the state does not know"));
            }
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
        if matches!(phase.as_str(), "Succeeded" | "Failed") {
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
