//! Dead containers and sandboxes beyond what is to be kept, for one pod. Part of its plan, so that garbage goes when
//! it comes into being and not at a tick.

use std::collections::BTreeMap;

use model::observed::{ContainerState, ObservedContainer, ObservedPod};
use model::{ContainerId, Now, SandboxId};

use super::{PlanInputs, PodPlan};
use crate::action::{Action, Stage};

/// The removals for this pod, and a wake-up for containers that are too young.
pub(super) fn garbage_stages(inputs: &PlanInputs, plan: &mut PodPlan) -> Vec<Stage> {
    if let Some(retry) = inputs.entry.ledger.pod_retry.as_ref().filter(|r| r.at > inputs.now.mono) {
        plan.wake(retry.at);
        return Vec::new();
    }
    if nothing_is_kept(inputs) {
        let observed = inputs.observed;
        let containers = observed.containers.iter().map(remove).collect();
        let sandboxes =
            observed.sandboxes.iter().map(|s| Action::RemoveSandbox { id: s.id.clone() }).collect();
        return vec![Stage::stop_on_failure(containers), Stage::stop_on_failure(sandboxes)];
    }
    let beyond = dead_beyond_limits(
        inputs.observed,
        kept_per_container(inputs.config.max_dead_containers_per_container),
    );
    let excess = &inputs.entry.ledger.excess_dead_containers;
    let over = inputs.entry.lifecycle().is_terminated();
    // While the pod is active, the newest instance decides whether its container is started again.
    let told = |c: &ObservedContainer| !over && inputs.observed.newest(&c.name).is_some_and(|n| n.id == c.id);
    let more = inputs.observed.containers.iter().filter(|c| {
        excess.contains(&c.id)
            && c.state == ContainerState::Exited
            && !told(c)
            && !beyond.iter().any(|b| b.id == c.id)
    });
    let mut removals = Vec::new();
    for container in beyond.iter().copied().chain(more) {
        let old_enough = container.created_at.plus(inputs.config.min_container_ttl);
        // A creation time in the future means that the clock was set back.
        if old_enough <= inputs.now.wall || container.created_at > inputs.now.wall {
            removals.push(remove(container));
        } else {
            plan.wake(inputs.now.mono_at(old_enough));
        }
    }
    let gone: Vec<&ContainerId> = removals.iter().filter_map(removed_id).collect();
    let sandboxes = dead_sandboxes(inputs, &gone);
    vec![Stage::continue_on_failure(removals), Stage::continue_on_failure(sandboxes)]
}

/// The node needs the room, and the pod has ended: what it said of its end is in its status. Of a static pod only its
/// containers tell the next agent that it has ended.
fn nothing_is_kept(inputs: &PlanInputs) -> bool {
    let entry = inputs.entry;
    if entry.view().source.is_static() {
        return false;
    }
    let wanted = entry.ledger.reclaim_containers || entry.standing().eviction().is_some();
    wanted && entry.lifecycle().is_terminated() && !inputs.observed.anything_running()
}

/// A negative limit keeps all. Zero keeps one, because only the newest dead instance shows that the container ran.
fn kept_per_container(limit: i32) -> usize {
    if limit < 0 { usize::MAX } else { limit.max(1) as usize }
}

/// Instances that are not running, beyond the newest `keep` of each container.
pub fn dead_beyond_limits(observed: &ObservedPod, keep: usize) -> Vec<&ObservedContainer> {
    let mut kept: BTreeMap<&str, usize> = BTreeMap::new();
    let dead = |c: &&ObservedContainer| matches!(c.state, ContainerState::Exited | ContainerState::Created);
    let mut beyond = Vec::new();
    for (at, container) in observed.containers.iter().enumerate().filter(|(_, c)| dead(c)) {
        // A container that is only created may be about to start: its newest instance is never garbage.
        let newest = !observed.containers[..at].iter().any(|c| c.name == container.name);
        if newest && container.state == ContainerState::Created {
            continue;
        }
        let count = kept.entry(&container.name).or_default();
        *count += 1;
        if *count > keep {
            beyond.push(container);
        }
    }
    beyond
}

/// Not ready, not the newest, and without containers.
fn dead_sandboxes(inputs: &PlanInputs, gone: &[&ContainerId]) -> Vec<Action> {
    let observed = inputs.observed;
    let has_container =
        |id: &SandboxId| observed.containers.iter().any(|c| c.sandbox_id == *id && !gone.contains(&&c.id));
    let dead = observed.sandboxes.iter().skip(1).filter(|s| !s.ready && !has_container(&s.id));
    dead.map(|s| Action::RemoveSandbox { id: s.id.clone() }).collect()
}

pub(super) fn remove(container: &ObservedContainer) -> Action {
    let log = Some(container.log_path.clone()).filter(|path| !path.is_empty());
    Action::RemoveContainer { id: container.id.clone(), name: container.name.clone(), log }
}

fn removed_id(action: &Action) -> Option<&ContainerId> {
    match action {
        Action::RemoveContainer { id, .. } => Some(id),
        _ => None,
    }
}

/// Over all pods: which dead containers are the oldest beyond `limit`. Only used when a limit is set.
pub fn dead_overall<'a>(
    pods: impl Iterator<Item = &'a ObservedPod>,
    limit: usize,
    now: Now,
) -> Vec<&'a ObservedContainer> {
    // The newest instance of each stays, as above: without it a container that ended would be taken for one that never ran.
    let older = |pod: &'a ObservedPod| {
        pod.containers.iter().filter(|c| pod.newest(&c.name).is_some_and(|newest| newest.id != c.id))
    };
    let mut dead: Vec<&ObservedContainer> = pods
        .flat_map(older)
        .filter(|c| c.state == ContainerState::Exited && c.created_at <= now.wall)
        .collect();
    dead.sort_by(|a, b| (b.created_at, &b.id).cmp(&(a.created_at, &a.id)));
    dead.split_off(limit.min(dead.len()))
}
