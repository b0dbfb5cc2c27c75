//! Lists of the runtime that are incomplete or old, although the call succeeded: what they show contradicts what the
//! runtime itself said before. Whoever acts on one starts a second instance, or gives up volumes under a container that
//! runs; so nothing may follow from it (`lies wait`). Where nobody could know better, the runtime does not lie: what it was
//! never heard of, a first reading, and the same pod twice in a row.

use std::sync::Arc;

use decide::Event;
use decide::observation_guard::{contradictions, expected};
use decide::state::PodEntry;
use model::observed::{Observation, ObservedPod, Scope};
use model::{Mono, PodUid};

use super::{Mutant, Simulation};
use crate::rng::Rng;

impl Simulation {
    /// Makes some of what is about to be told untrue, and says of whom.
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

/// `None`: nothing untrue can be said that the agent could tell from the truth.
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
            less(rng, truth, &expected(entry, seen.at).into_keys().collect::<Vec<_>>())
        }
    };
    let is_told = |at: Mono| !contradictions(entry, at, &told).is_empty();
    is_told(seen.at).then_some(told)
}

/// Without some of those.
fn less(rng: &mut Rng, truth: &ObservedPod, of: &[&str]) -> ObservedPod {
    let mut pod = truth.clone();
    let mut hidden = |id: &str| of.contains(&id) && rng.coin();
    pod.sandboxes.retain(|sandbox| !hidden(sandbox.id.as_str()));
    pod.containers.retain(|container| !hidden(container.id.as_str()));
    pod
}
