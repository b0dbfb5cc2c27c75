//! Lists of the runtime that are incomplete or outdated although the call succeeded: they contradict what the runtime
//! itself said before. A plan made from a false list would start a second instance or tear down volumes of a running
//! container. So no plan may follow from one (invariant `lies wait`). A list is falsified only if the agent can detect
//! it: never in the first reading, for a pod the runtime has said nothing about, or twice in a row for the same pod.

use std::sync::Arc;

use decide::Event;
use decide::state::PodEntry;
use model::observed::{Observation, ObservedPod, Scope};
use model::{Mono, PodUid};

use super::{Mutant, Simulation};
use crate::rng::Rng;

impl Simulation {
    /// Falsifies some of the pods in the observation, and returns their UIDs.
    pub(super) fn falsify_observation(&mut self, event: &mut Event) -> Vec<PodUid> {
        let mut about = Vec::new();
        let (Event::Observed(seen), Some(agent)) = (event, &self.agent) else { return about };
        if agent.state.full_observation.last.is_none() {
            return about;
        }
        for (uid, entry) in &agent.state.pods {
            let newest = entry.observed.as_ref().is_some_and(|known| known.at < seen.at);
            let doubts =
                entry.observation_guard.has_contradiction() && self.mutant != Mutant::AcceptsEveryReading;
            if !concerns(&seen.scope, uid) || !newest || doubts {
                continue;
            }
            if self.faults.falsifies_reading(&mut self.rng, self.world.now)
                && let Some(lie) = false_observation(&mut self.rng, entry, seen, uid)
            {
                seen.pods.retain(|pod| pod.uid != *uid);
                seen.pods.push(Arc::new(lie));
                about.push(uid.clone());
            }
        }
        if !about.is_empty() {
            self.log.note(self.world.now, || format!("a list is not true about {about:?}"));
        }
        about
    }
}

fn concerns(scope: &Scope, uid: &PodUid) -> bool {
    match scope {
        Scope::All => true,
        Scope::Pod(wanted) => wanted == uid,
    }
}

/// `None`: no false state of this pod could be detected by the agent.
fn false_observation(
    rng: &mut Rng,
    entry: &PodEntry,
    seen: &Observation,
    uid: &PodUid,
) -> Option<ObservedPod> {
    let old = &entry.observed.as_ref()?.pod;
    let told = match rng.coin() {
        true => ObservedPod::clone(old),
        false => {
            let truth = seen.pods.iter().find(|pod| pod.uid == *uid)?;
            less(rng, truth, &entry.expected_ids(seen.at).into_keys().collect::<Vec<_>>())
        }
    };
    let is_told = |at: Mono| !entry.contradictions(at, &told).is_empty();
    is_told(seen.at).then_some(told)
}

/// The pod without some of these sandboxes and containers.
fn less(rng: &mut Rng, truth: &ObservedPod, of: &[&str]) -> ObservedPod {
    let mut pod = truth.clone();
    let mut hidden = |id: &str| of.contains(&id) && rng.coin();
    pod.sandboxes.retain(|sandbox| !hidden(sandbox.id.as_str()));
    pod.containers.retain(|container| !hidden(container.id.as_str()));
    pod
}
