//! Stopping a pod: all containers at the same time, sidecars after the others and in reverse order, then the sandbox.

use std::time::Duration;

use model::hook::HookCall;
use model::observed::{ContainerState, ObservedContainer};
use model::pod::{ContainerKind, is_sidecar};
use model::why::Cause;
use model::{ContainerId, Mono};

use super::{PlanInputs, PlanNote, PodPlan};
use crate::action::{Action, Stage};
use crate::hooks;
use crate::lifecycle::{MINIMUM_STOP_SECS, Termination};

pub fn plan(inputs: &PlanInputs, termination: &Termination) -> PodPlan {
    let grace = termination.left_secs(inputs.now.mono);
    let mut plan = PodPlan { stages: stop_everything(inputs, grace), ..Default::default() };
    if plan.stages.iter().all(|s| s.actions.is_empty()) {
        return plan;
    }
    if !inputs.runtime.ready {
        return PodPlan::wait(None, Cause::RuntimeNotReady { message: inputs.runtime.message.clone() });
    }
    let mut waiting = PodPlan::default();
    if must_wait_to_stop(inputs, &mut waiting) {
        return waiting;
    }
    for container in running(inputs) {
        let cause = Cause::Stopping { message: stopping(container), grace_secs: grace };
        plan.because(Some(&container.name), cause, None);
    }
    announce(inputs, &mut plan);
    if plan.why.is_empty() {
        plan.because(None, Cause::Releasing, None);
    }
    plan
}

/// Whether a step of the whole pod is in its back-off.
pub(super) fn waits_for_retry(inputs: &PlanInputs, plan: &mut PodPlan) -> bool {
    let retry = inputs.entry.ledger.pod_retry.as_ref().filter(|r| r.at > inputs.now.mono);
    if let Some(retry) = retry {
        let cause = Cause::StepFailed { step: retry.step.into(), message: retry.message.clone() };
        plan.because(None, cause, Some(retry.at));
    }
    retry.is_some()
}

/// Whether stopping has to wait: a step of the pod is in its back-off, or a stop had no effect, which is noted as a
/// failure.
pub(super) fn must_wait_to_stop(inputs: &PlanInputs, plan: &mut PodPlan) -> bool {
    if waits_for_retry(inputs, plan) {
        return true;
    }
    let Some((step, message)) = ineffective_stop(inputs).filter(|_| inputs.entry.ledger.pod_retry.is_none())
    else {
        return false;
    };
    let event = model::ApiEvent::warning("FailedKillPod", format!("error killing pod: {message}"));
    plan.because(None, Cause::StepFailed { step: step.into(), message: message.clone() }, None);
    plan.notes.push(PlanNote::PodFailure { step, message, event });
    true
}

/// A container that still runs, or a sandbox that is still ready, although its stop succeeded.
fn ineffective_stop(inputs: &PlanInputs) -> Option<(&'static str, String)> {
    let ledger = &inputs.entry.ledger;
    let container = running(inputs).into_iter().find(|c| ledger.stopped_containers.contains(&c.id));
    let sandbox =
        inputs.observed.sandboxes.iter().find(|s| s.ready && ledger.stopped_sandboxes.contains(&s.id));
    let of_container = container.map(|c| {
        ("stop container", format!("container {} is still running after a successful StopContainer", c.id))
    });
    of_container
        .or(sandbox
            .map(|s| ("stop pod sandbox", format!("sandbox {} was stopped, and is still ready", s.id))))
}

fn stopping(container: &ObservedContainer) -> String {
    format!("Stopping container {}", container.name)
}

/// The Events about containers that are stopped with their pod.
pub(super) fn announce(inputs: &PlanInputs, plan: &mut PodPlan) {
    for container in running(inputs) {
        announce_one(inputs, container, plan);
    }
}

pub(super) fn announce_one(inputs: &PlanInputs, container: &ObservedContainer, plan: &mut PodPlan) {
    let kind =
        inputs.entry.view().container(&container.name).map_or(ContainerKind::Regular, |(kind, _)| kind);
    let event = model::ApiEvent::normal("Killing", stopping(container)).for_container(kind, &container.name);
    plan.announce(format!("killing {}", container.id), event);
}

/// Whether [`stop_everything`] would do anything.
pub(super) fn anything_to_stop(inputs: &PlanInputs) -> bool {
    !running(inputs).is_empty() || !stop_sandboxes(inputs).is_empty()
}

/// The stages that stop all containers and sandboxes of the pod.
pub(super) fn stop_everything(inputs: &PlanInputs, grace: i64) -> Vec<Stage> {
    let view = inputs.entry.view();
    let sidecar_rank = |c: &&ObservedContainer| {
        view.init_containers().iter().position(|spec| spec.name == c.name && is_sidecar(spec))
    };
    let (sidecars, others): (Vec<_>, Vec<_>) =
        running(inputs).into_iter().partition(|c| sidecar_rank(c).is_some());
    let mut first: Vec<Action> = others.iter().map(|c| stop(inputs, c, grace)).collect();
    // All hooks begin together. A sidecar itself runs until the containers that may use it have ended.
    first.extend(sidecars.iter().filter_map(|c| pre_stop_action(inputs, c, grace)));
    let mut stages = vec![Stage::stop_on_failure(first)];
    let mut sidecars: Vec<_> = sidecars.into_iter().map(|c| (sidecar_rank(&c), c)).collect();
    sidecars.sort_by_key(|(rank, _)| std::cmp::Reverse(*rank));
    // Sidecars end one after the other for as long as there is grace. Then all of those that are left end together.
    let in_turn = |c| {
        Stage::stop_on_failure(vec![stop_without_hook(inputs, c, grace)]).not_after(deadline(inputs, grace))
    };
    stages.extend(sidecars.into_iter().map(|(_, c)| in_turn(c)));
    stages.push(Stage::stop_on_failure(stop_sandboxes(inputs)));
    stages
}

/// Every sandbox whose stop has not succeeded yet: also those that are not ready, since their network may still be up.
fn stop_sandboxes(inputs: &PlanInputs) -> Vec<Action> {
    let stopped = &inputs.entry.ledger.stopped_sandboxes;
    let open = inputs.observed.sandboxes.iter().filter(|s| s.ready || !stopped.contains(&s.id));
    open.map(|s| Action::StopSandbox { id: s.id.clone() }).collect()
}

pub(super) fn running<'a>(inputs: &'a PlanInputs) -> Vec<&'a ObservedContainer> {
    let alive = |c: &&ObservedContainer| matches!(c.state, ContainerState::Running | ContainerState::Unknown);
    inputs.observed.containers.iter().filter(alive).collect()
}

pub(super) fn stop(inputs: &PlanInputs, container: &ObservedContainer, grace_secs: i64) -> Action {
    let (id, name) = (container.id.clone(), container.name.clone());
    let pre_stop = pre_stop(inputs, container);
    Action::StopContainer { id, name, grace_secs, deadline: deadline(inputs, grace_secs), pre_stop }
}

/// Stops a container with the shortest grace period and without its hook.
/// Whether the last observation is too early to tell that the runtime does not start this container any more.
pub(super) fn may_still_start(inputs: &PlanInputs, id: &ContainerId) -> bool {
    let until = inputs.entry.ledger.may_start_until.get(id);
    let observed = inputs.entry.observed.as_ref();
    until.zip(observed).is_some_and(|(until, observed)| observed.at < *until)
}

pub(super) fn stop_at_once(inputs: &PlanInputs, container: &ObservedContainer) -> Action {
    stop_without_hook(inputs, container, MINIMUM_STOP_SECS)
}

fn stop_without_hook(inputs: &PlanInputs, container: &ObservedContainer, grace_secs: i64) -> Action {
    let (id, name) = (container.id.clone(), container.name.clone());
    Action::StopContainer { id, name, grace_secs, deadline: deadline(inputs, grace_secs), pre_stop: None }
}

fn pre_stop_action(inputs: &PlanInputs, container: &ObservedContainer, grace_secs: i64) -> Option<Action> {
    let (id, name) = (container.id.clone(), container.name.clone());
    let hook = pre_stop(inputs, container)?;
    Some(Action::PreStop { id, name, deadline: deadline(inputs, grace_secs), hook })
}

fn deadline(inputs: &PlanInputs, grace_secs: i64) -> Mono {
    inputs.now.mono.plus(Duration::from_secs(grace_secs.max(0) as u64))
}

fn pre_stop(inputs: &PlanInputs, container: &ObservedContainer) -> Option<HookCall> {
    // A hook that was interrupted is not run again.
    if inputs.entry.ledger.pre_stop_begun.contains(&container.id) {
        return None;
    }
    let view = inputs.entry.view();
    let ips = inputs.observed.newest_sandbox().map(|s| s.ips.as_slice()).unwrap_or_default();
    match view.container(&container.name) {
        Some((_, spec)) => hooks::pre_stop(view, spec, ips),
        None => hooks::pre_stop_of_orphan(view, &container.name, container.pre_stop.as_deref()?, ips),
    }
}
