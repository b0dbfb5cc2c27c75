//! What the simulated node has left of its memory, and the check of evictions for its sake.

use std::collections::BTreeMap;

use decide::Event;
use model::eviction::{FigureGroup, MemoryFigures, NodeFigures, PodFigures, PodToMeasure};
use model::{ApiEvent, Mono, PodUid};

use super::background_calls::BackgroundCall;
use super::{Mutant, SimEvent, Simulation};
use crate::check::Violation;
use crate::time::{Nanos, SECOND};
use crate::world::NODE_MEMORY;

/// An agent may go on after this although the pod that it evicted has not ended.
const EVICTION_BOUND: Nanos = 40 * SECOND;

/// The pod that the present agent evicted last, and whether the figures that it got last were read while it still ran.
#[derive(Default)]
pub struct LastEviction {
    victim: Option<(PodUid, Nanos)>,
    figures_are_old: bool,
}

/// One reading, as it was taken.
pub struct TakenFigures {
    group: FigureGroup,
    at: Mono,
    result: Result<NodeFigures, String>,
    victim_ran: bool,
}

impl Simulation {
    /// The figures are those of now; they arrive later.
    pub(super) fn read_node_figures(&mut self, group: FigureGroup) {
        let now = self.world.now;
        let Some(agent) = &mut self.agent else { return };
        let at = agent.clock.mono(now);
        let working_set_bytes = self.world.memory_used();
        let node =
            MemoryFigures { limit_bytes: NODE_MEMORY, usage_bytes: working_set_bytes, working_set_bytes };
        let result = match self.rng.per_mille(20) && self.faults.until > now {
            true => Err("the kernel does not answer".to_owned()),
            false => Ok(NodeFigures::Memory { node, pods: None }),
        };
        let victim_ran = self.last_eviction.victim.as_ref().is_some_and(|(uid, since)| {
            now < since.saturating_add(EVICTION_BOUND)
                && self.world.containers.values().any(|one| one.uid == *uid && one.is_live())
        });
        let figures = TakenFigures { group, at, result, victim_ran };
        // Some come late: what they show may be over by then.
        let wait = match self.rng.per_mille(300) {
            true => self.rng.between(SECOND, 8 * SECOND),
            false => self.faults.latency(&mut self.rng, now),
        };
        let background_call = BackgroundCall::NodeFigures(figures);
        self.plan_in(wait, SimEvent::BackgroundCall { generation: self.generation, background_call });
    }

    pub(super) fn node_figures_arrive(&mut self, figures: TakenFigures) -> Event {
        let TakenFigures { group, mut at, result, victim_ran } = figures;
        if self.mutant == Mutant::StampsFiguresLate
            && let Some(agent) = &mut self.agent
        {
            at = agent.clock.mono(self.world.now);
        }
        self.last_eviction.figures_are_old = victim_ran;
        Event::NodeFiguresRead { group, at, result }
    }

    pub(super) fn pod_figures(&self, call: u64, pods: Vec<PodToMeasure>) -> Event {
        let figures = |pod: PodToMeasure| {
            let bytes = self.world.memory_of(&pod.uid);
            (pod.uid, PodFigures { memory_bytes: Some(bytes), ..PodFigures::default() })
        };
        let pods: BTreeMap<PodUid, PodFigures> = pods.into_iter().map(figures).collect();
        Event::PodFiguresRead { call, pods }
    }

    /// The agent evicts a pod for the sake of the node.
    pub(super) fn event_recorded(&mut self, uid: &PodUid, event: &ApiEvent) {
        if event.reason != "Evicted" || !event.message.starts_with("The node was low on resource") {
            return;
        }
        let critical = self.agent.as_ref().and_then(|agent| agent.state.pods.get(uid));
        let critical = critical.is_some_and(|entry| decide::resources::is_critical(entry.view()));
        let problem = match (critical, self.last_eviction.figures_are_old) {
            (true, _) => Some("is critical"),
            (_, true) => Some("is evicted on figures that are older than the end of the one before"),
            _ => None,
        };
        self.check.add_violation(
            problem
                .map(|problem| Violation { invariant: "evictions", message: format!("pod {uid} {problem}") }),
        );
        self.last_eviction =
            LastEviction { victim: Some((uid.clone(), self.world.now)), figures_are_old: false };
    }
}
