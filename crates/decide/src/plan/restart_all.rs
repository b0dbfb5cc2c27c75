//! Restarts all containers of a pod, because a restart rule of one of them asked for it when that container exited.
//!
//! ```text
//!   back-off of the trigger ──> stop running containers ──> remove the other containers ──> remove the trigger
//! ```
//! Logs, sandbox and volumes stay. The container whose exit triggered the restart is removed last. As long as it is
//! listed, a restarted agent can still see from its exit code that the others must be removed. When no container is
//! left, the pod looks like one that was never started, and is started.

use model::Mono;
use model::observed::{ContainerState, ObservedContainer};
use model::pod::{ContainerKind, is_sidecar};
use model::why::Cause;

use super::crash_back_off::{note_crash_back_off, waits_for_crash_back_off};
use super::{PlanInputs, PlanNote, PodPlan, stop};
use crate::action::{Action, Stage};
use crate::restart;

/// Whether a restart of all is due.
pub(super) enum RestartAll {
    No,
    /// Not before this time. Until then the pod is planned as usual.
    Later(Mono),
    Plan(PodPlan),
}

pub(super) fn plan(inputs: &PlanInputs) -> RestartAll {
    let entry = inputs.entry;
    let said = restart::status_says_restarting_all(entry.view(), entry.status.as_deref());
    if !entry.ledger.restarting_all_containers && !said && asking(inputs).next().is_none() {
        return RestartAll::No;
    }
    let groups = in_order(inputs);
    if groups.iter().all(Vec::is_empty) {
        return RestartAll::No;
    }
    // A container may only be removed when the runtime no longer starts it. The pod is observed until that is known.
    let starting =
        |c: &&ObservedContainer| c.state == ContainerState::Created && stop::may_still_start(inputs, &c.id);
    let mut plan = PodPlan::default();
    if groups.iter().flatten().any(starting) {
        plan.because(None, Cause::RestartingAll, None);
        return RestartAll::Plan(plan);
    }
    if !entry.ledger.restarting_all_containers {
        match restart_all_back_off(inputs, &mut plan) {
            RestartAllBackOff::No => {}
            RestartAllBackOff::OthersGoOn => return plan.wake_at.map_or(RestartAll::No, RestartAll::Later),
            RestartAllBackOff::AllWait => return RestartAll::Plan(plan),
        }
    }
    if stop::must_wait_to_stop(inputs, &mut plan) {
        return RestartAll::Plan(plan);
    }
    plan.because(None, Cause::RestartingAll, None);
    let alive = groups.iter().flatten().filter(|c| is_alive(c));
    let stops = alive.map(|c| {
        stop::announce_one(inputs, c, &mut plan);
        stop::stop_at_once(inputs, c)
    });
    plan.stages = vec![Stage::stop_on_failure(stops.collect())];
    plan.stages
        .extend(groups.iter().map(|group| Stage::stop_on_failure(group.iter().map(|c| remove(c)).collect())));
    plan.notes.push(PlanNote::RestartAllBegins);
    RestartAll::Plan(plan)
}

/// The newest instances whose exit triggers a restart of all. A container that the agent killed for a restart did not
/// exit by itself, so its restart rules do not apply.
fn asking<'a>(inputs: &'a PlanInputs) -> impl Iterator<Item = &'a ObservedContainer> {
    let entry = inputs.entry;
    let newest = |c: &&ObservedContainer| inputs.observed.newest(&c.name).is_some_and(|n| n.id == c.id);
    let forced = |c: &&ObservedContainer| entry.ledger.must_restart.contains_key(&c.name);
    let asks = |c: &&ObservedContainer| restart::triggers_restart_of_all(entry.view(), c);
    let counts = move |c: &&ObservedContainer| !is_removed(inputs, c) && newest(c) && !forced(c) && asks(c);
    inputs.observed.containers.iter().filter(counts)
}

/// The container has exited and the runtime confirmed its removal. If it is still listed, it must not block the others.
fn is_removed(inputs: &PlanInputs, container: &ObservedContainer) -> bool {
    !is_alive(container) && inputs.entry.observation_guard.retry_removal(container.id.as_str()).is_some()
}

fn is_alive(container: &ObservedContainer) -> bool {
    matches!(container.state, ContainerState::Running | ContainerState::Unknown)
}

/// The log file stays: the next instance writes to a file with the next number.
fn remove(container: &ObservedContainer) -> Action {
    Action::RemoveContainer { id: container.id.clone(), name: container.name.clone(), log: None }
}

/// Regular containers, init containers, then the triggering containers of both kinds.
fn in_order<'a>(inputs: &'a PlanInputs) -> [Vec<&'a ObservedContainer>; 4] {
    let view = inputs.entry.view();
    let mut groups: [Vec<&ObservedContainer>; 4] = Default::default();
    for container in inputs.observed.containers.iter().filter(|c| !is_removed(inputs, c)) {
        let place = match view.container(&container.name) {
            Some((ContainerKind::Regular, _)) => 0,
            Some((ContainerKind::Init, _)) => 1,
            Some((ContainerKind::Ephemeral, _)) | None => continue,
        };
        let last = if restart::triggers_restart_of_all(view, container) { 2 } else { 0 };
        groups[place + last].push(container);
    }
    groups
}

enum RestartAllBackOff {
    No,
    /// The other containers run meanwhile.
    OthersGoOn,
    /// The container is a regular init container, so no later container may start before it succeeds.
    AllWait,
}

/// A container that triggers the restart again shortly after is subject to its crash back-off.
fn restart_all_back_off(inputs: &PlanInputs, plan: &mut PodPlan) -> RestartAllBackOff {
    let mut verdict = RestartAllBackOff::No;
    let mut advances = Vec::new();
    for container in asking(inputs) {
        let Some((kind, spec)) = inputs.entry.view().container(&container.name) else { continue };
        advances.extend(note_crash_back_off(inputs, spec));
        if waits_for_crash_back_off(inputs, kind, spec, plan) {
            let before_others = kind == ContainerKind::Init && !is_sidecar(spec);
            verdict = if before_others { RestartAllBackOff::AllWait } else { RestartAllBackOff::OthersGoOn };
        }
    }
    if matches!(verdict, RestartAllBackOff::No) {
        plan.notes.extend(advances);
    }
    verdict
}
