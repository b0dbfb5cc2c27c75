//! Which init container (or sidecar) is next, whether the regular containers may run, and which containers have to be
//! killed first.
//!
//! The init containers are walked backwards; the last one that was ever started shows how far initialization got.

use model::k8s::Container;
use model::observed::{ContainerState, ObservedContainer};
use model::pod::{ContainerKind, is_sidecar};

use super::container_kill::ContainerKill;
use super::{PlanInputs, probe_kills};
use crate::{render, restart};

#[derive(Default)]
pub(super) struct InitDecision<'a> {
    /// In spec order.
    pub starts: Vec<&'a Container>,
    pub kills: Vec<ContainerKill<'a>>,
    /// The regular containers may run.
    pub initialized: bool,
    /// An init container failed and is not to run again, so the pod fails.
    pub failed: bool,
}

pub(super) fn decide<'a>(inputs: &'a PlanInputs) -> InitDecision<'a> {
    let view = inputs.entry.view();
    let inits = view.init_containers();
    let mut decision = InitDecision::default();
    if inits.is_empty() {
        decision.initialized = true;
        return decision;
    }
    let came_up =
        |c: &ObservedContainer| matches!(c.state, ContainerState::Created | ContainerState::Running);
    let in_sandbox = inputs.observed.newest_sandbox().map(|s| &s.id);
    let mut passed = view.containers().iter().any(|c| {
        inputs.observed.newest(&c.name).is_some_and(|n| came_up(n) && Some(&n.sandbox_id) == in_sandbox)
    });
    decision.initialized = passed;
    let mut found = passed;
    for (index, container) in inits.iter().enumerate().rev() {
        let Some(newest) = inputs.observed.newest(&container.name) else {
            if passed && is_sidecar(container) {
                decision.starts.push(container);
            }
            continue;
        };
        found = true;
        if passed && !is_sidecar(container) {
            continue;
        }
        let place = InitPosition { index, last: index + 1 == inits.len(), later_one_started: passed, inits };
        if !decide_one_container(inputs, container, newest, &place, &mut decision) {
            return InitDecision { failed: true, ..Default::default() };
        }
        passed = true;
    }
    if !found {
        decision.starts.push(&inits[0]);
    }
    decision.starts.reverse();
    decision.starts.dedup_by(|a, b| a.name == b.name);
    decision
}

struct InitPosition<'a> {
    index: usize,
    last: bool,
    later_one_started: bool,
    inits: &'a [Container],
}

/// `false`: the pod has failed; nothing is to be started.
fn decide_one_container<'a>(
    inputs: &'a PlanInputs,
    container: &'a Container,
    newest: &'a ObservedContainer,
    place: &InitPosition<'a>,
    decision: &mut InitDecision<'a>,
) -> bool {
    let sidecar = is_sidecar(container);
    match newest.state {
        ContainerState::Created => decision.starts.push(container),
        // Later containers rely on the sidecar, so it has to have started.
        ContainerState::Running if sidecar && !inputs.entry.probes.has_started(&newest.name, &newest.id) => {
            decision.kills.extend(probe_kills::kill_sidecar(inputs, container, newest));
        }
        ContainerState::Running if sidecar => {
            mark_initialized_or_start_next(place, decision);
            let hash =
                render::container_hash(&container.name, container.image.as_deref().unwrap_or_default());
            if newest.hash.is_some_and(|old| old != hash) {
                let message = format!("Init container {} definition changed", container.name);
                decision.kills.push(ContainerKill::new(newest, ContainerKind::Init, message));
            } else if let Some(kill) = probe_kills::kill_sidecar(inputs, container, newest) {
                decision.kills.push(kill);
            } else if let Some(message) = inputs.entry.ledger.containers_to_stop.get(&newest.id) {
                decision.kills.push(ContainerKill::new(newest, ContainerKind::Init, message.clone()));
            }
        }
        ContainerState::Running => {
            if let Some(message) = inputs.entry.ledger.containers_to_stop.get(&newest.id) {
                decision.kills.push(ContainerKill::new(newest, ContainerKind::Init, message.clone()));
            }
        }
        ContainerState::Exited if sidecar => decision.starts.push(container),
        ContainerState::Exited if newest.exit_code == 0 && newest.reason != "OOMKilled" => {
            mark_initialized_or_start_next(place, decision)
        }
        ContainerState::Exited => {
            if !restart::should_restart(inputs.entry.view(), container, Some(newest)) {
                return false;
            }
            decision.starts.push(container);
        }
        ContainerState::Unknown => {
            if !sidecar && !restart::should_restart(inputs.entry.view(), container, Some(newest)) {
                return false;
            }
            let message = "Init container is in \"unknown\" state, try killing it before restart".to_owned();
            decision.kills.push(ContainerKill::new(newest, ContainerKind::Init, message));
        }
    }
    true
}

fn mark_initialized_or_start_next<'a>(place: &InitPosition<'a>, decision: &mut InitDecision<'a>) {
    if place.last {
        decision.initialized = true;
    } else if !place.later_one_started {
        decision.starts.push(&place.inits[place.index + 1]);
    }
}
