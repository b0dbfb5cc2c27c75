//! K7: at random times, replan a copy of the state with unchanged facts and check that nothing is started.

use std::collections::BTreeSet;

use decide::image_pull::PullKey;
use decide::{Effect, Event};

use crate::drive::{SimEvent, Simulation};
use crate::time::{MILLI, Nanos, SECOND};

/// After the wall clock was set, waits that are counted on it end earlier or later than planned.
const CALM_AFTER_JUMP: Nanos = 320 * SECOND;

impl Simulation {
    pub(crate) fn check_replanning(&mut self) {
        let wait = self.rng.between(100 * MILLI, 10 * SECOND);
        self.plan_in(wait, SimEvent::CheckReplanning);
        let recently = self.jumped.is_some_and(|at| self.world.now < at + CALM_AFTER_JUMP);
        let Some(agent) = self.agent.as_ref().filter(|_| !recently) else { return };
        let (mut state, mut clock) = (agent.state.clone(), agent.clock.clone());
        let now = clock.now(self.world.now, self.world.wall());
        let due: BTreeSet<_> = state
            .pods
            .iter()
            .filter(|(_, e)| e.timer.is_some_and(|at| at <= now.mono))
            .map(|(uid, _)| uid.clone())
            .collect();
        let facts = state.facts.clone();
        for effect in self.mutant.step(&mut state, now, Event::FactsChanged(facts)) {
            match effect {
                Effect::RunPlan { uid, stages, .. } if !due.contains(&uid) => {
                    let actions: Vec<_> = stages.iter().flat_map(|s| &s.actions).map(|a| a.name()).collect();
                    self.check.violate(
                        "K7",
                        format!("pod {uid} had a plan to make that nobody woke it for: {actions:?}"),
                    );
                }
                Effect::PullImage { pull: PullKey { image, .. }, .. } | Effect::InspectImage { image }
                    if due.is_empty() =>
                {
                    self.check.violate("K7", format!("image {image} was needed and nobody asked for it"));
                }
                _ => {}
            }
        }
    }
}
