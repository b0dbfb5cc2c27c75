//! Compares a derived status with the last one, and sets the times of what changed.

use std::fmt;

use model::pod::{PodView, RestartPolicy, is_sidecar};
use model::text_limits::{TextLimit, truncate_text};
use model::{Now, k8s};

use super::conditions::{DISRUPTION_TARGET, RESIZE_IN_PROGRESS, RESIZE_PENDING, find, is_owned};
use super::state;
use crate::restart::{container_should_restart, may_restart_all_containers};

/// The result of checking a new status.
#[derive(Clone, PartialEq, Debug)]
pub enum StatusCheck {
    Accepted(Box<k8s::PodStatus>),
    /// The status equals the last one.
    Unchanged,
    Illegal(IllegalTransition),
}

/// A container that terminated for good must not be shown in another state again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IllegalTransition {
    pub container: String,
}

impl fmt::Display for IllegalTransition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "terminated container {} attempted illegal transition to non-terminated state",
            self.container
        )
    }
}

/// The status to keep and to send. `None` if it is unchanged or illegal.
pub fn accept(
    pod: &PodView,
    old: Option<&k8s::PodStatus>,
    new: k8s::PodStatus,
    now: Now,
) -> Option<k8s::PodStatus> {
    match check_status(pod, old, new, now) {
        StatusCheck::Accepted(status) => Some(*status),
        StatusCheck::Unchanged | StatusCheck::Illegal(_) => None,
    }
}

pub fn check_status(
    pod: &PodView,
    old: Option<&k8s::PodStatus>,
    mut new: k8s::PodStatus,
    now: Now,
) -> StatusCheck {
    if let Some(illegal) = old.and_then(|old| illegal_transition(pod, old, &new)) {
        return StatusCheck::Illegal(illegal);
    }
    stamp_conditions(&mut new, old, now);
    let started = old.and_then(|old| old.start_time.clone());
    new.start_time = started.or(new.start_time).or_else(|| Some(now.wall.api_time()));
    new.observed_generation = new.observed_generation.max(old.and_then(|old| old.observed_generation));
    normalize(pod, &mut new);
    match old {
        Some(old) if says_the_same(pod, old, &new) => StatusCheck::Unchanged,
        _ => StatusCheck::Accepted(Box::new(new)),
    }
}

/// The container that ended for good in `old` and is shown in another state in `new`, if there is one.
pub fn illegal_transition(
    pod: &PodView,
    old: &k8s::PodStatus,
    new: &k8s::PodStatus,
) -> Option<IllegalTransition> {
    if pod.restart_policy() == RestartPolicy::Always || may_restart_all_containers(pod) {
        return None;
    }
    let revived = |old: &Option<Vec<k8s::ContainerStatus>>, new: &Option<Vec<k8s::ContainerStatus>>| {
        old.iter().flatten().find_map(|old| {
            let end = state::terminated(old)?;
            let back =
                new.iter().flatten().any(|new| new.name == old.name && state::terminated(new).is_none());
            (back && !may_revive(pod, &old.name, end.exit_code)).then(|| old.name.clone())
        })
    };
    revived(&old.container_statuses, &new.container_statuses)
        .or_else(|| revived(&old.init_container_statuses, &new.init_container_statuses))
        .map(|container| IllegalTransition { container })
}

fn may_revive(pod: &PodView, name: &str, exit_code: i32) -> bool {
    if pod.restart_policy() == RestartPolicy::OnFailure && exit_code != 0 {
        return true;
    }
    pod.container(name).is_some_and(|(_, container)| {
        is_sidecar(container) || container_should_restart(pod.restart_policy(), container, exit_code)
    })
}

/// Sets `lastTransitionTime`. It changes with a condition's status, for resize conditions also with the reason.
fn stamp_conditions(new: &mut k8s::PodStatus, old: Option<&k8s::PodStatus>, now: Now) {
    let old = old.and_then(|old| old.conditions.as_deref()).unwrap_or_default();
    for condition in new.conditions.iter_mut().flatten().filter(|c| is_ours(&c.type_)) {
        let by_reason = matches!(condition.type_.as_str(), RESIZE_PENDING | RESIZE_IN_PROGRESS);
        let same = |before: &&k8s::PodCondition| {
            before.status == condition.status && (!by_reason || before.reason == condition.reason)
        };
        let since = find(old, &condition.type_).filter(same).and_then(|c| c.last_transition_time.clone());
        condition.last_transition_time = since.or_else(|| Some(now.wall.api_time()));
    }
}

fn is_ours(kind: &str) -> bool {
    is_owned(kind) || kind == DISRUPTION_TARGET
}

/// The form in which statuses are compared and sent: whole seconds, fixed order, messages cut to their share of the
/// limit.
fn normalize(pod: &PodView, status: &mut k8s::PodStatus) {
    let ephemeral = pod.spec().ephemeral_containers.as_ref().map_or(0, Vec::len);
    let containers = pod.containers().len() + pod.init_containers().len() + ephemeral;
    let share = TextLimit::TerminationMessagesOfPod.bytes() / containers.max(1);

    status.start_time = status.start_time.take().map(whole_seconds);
    cut_message(&mut status.message);
    for condition in status.conditions.iter_mut().flatten() {
        if is_ours(&condition.type_) {
            cut_message(&mut condition.message);
        }
        condition.last_probe_time = condition.last_probe_time.take().map(whole_seconds);
        condition.last_transition_time = condition.last_transition_time.take().map(whole_seconds);
    }
    let lists = [
        &mut status.container_statuses,
        &mut status.init_container_statuses,
        &mut status.ephemeral_container_statuses,
    ];
    for list in lists {
        for container in list.iter_mut().flatten() {
            normalize_state(container.state.get_or_insert_default(), share);
            normalize_state(container.last_state.get_or_insert_default(), share);
        }
    }
    let by_name = |a: &k8s::ContainerStatus, b: &k8s::ContainerStatus| a.name.cmp(&b.name);
    status.container_statuses.iter_mut().for_each(|list| list.sort_by(by_name));
    status.ephemeral_container_statuses.iter_mut().for_each(|list| list.sort_by(by_name));
    let position = |name: &str| pod.init_containers().iter().position(|c| c.name == name);
    let in_order = |c: &k8s::ContainerStatus| position(&c.name).unwrap_or(usize::MAX);
    status.init_container_statuses.iter_mut().for_each(|list| list.sort_by_key(in_order));
}

fn cut_message(message: &mut Option<String>) {
    if let Some(text) = message.take() {
        *message = Some(truncate_text(text, TextLimit::StatusMessage));
    }
}

fn normalize_state(state: &mut k8s::ContainerState, share: usize) {
    if let Some(waiting) = &mut state.waiting {
        cut_message(&mut waiting.message);
    }
    if let Some(running) = &mut state.running {
        running.started_at = running.started_at.take().map(whole_seconds);
    }
    if let Some(terminated) = &mut state.terminated {
        terminated.started_at = terminated.started_at.take().map(whole_seconds);
        terminated.finished_at = terminated.finished_at.take().map(whole_seconds);
        if let Some(message) = &mut terminated.message {
            message.truncate(message.floor_char_boundary(share));
        }
    }
}

fn whole_seconds(time: k8s::Time) -> k8s::Time {
    model::Wall::from_timestamp(time.0).api_time()
}

/// Compares only the fields and conditions that this agent writes.
fn says_the_same(pod: &PodView, old: &k8s::PodStatus, new: &k8s::PodStatus) -> bool {
    let mut old = old.clone();
    normalize(pod, &mut old);
    if !same_conditions(old.conditions.as_deref(), new.conditions.as_deref()) {
        return false;
    }
    old.conditions = new.conditions.clone();
    old.nominated_node_name = new.nominated_node_name.clone();
    old.resource_claim_statuses = new.resource_claim_statuses.clone();
    old.extended_resource_claim_status = new.extended_resource_claim_status.clone();
    old.node_allocatable_resource_claim_statuses = new.node_allocatable_resource_claim_statuses.clone();
    old == *new
}

fn same_conditions(old: Option<&[k8s::PodCondition]>, new: Option<&[k8s::PodCondition]>) -> bool {
    type Said<'a> = (&'a str, &'a str, Option<&'a str>, Option<&'a str>);
    fn said(list: Option<&[k8s::PodCondition]>) -> Vec<Said<'_>> {
        let ours = list.unwrap_or_default().iter().filter(|c| is_ours(&c.type_));
        let mut said: Vec<_> = ours
            .map(|c| (c.type_.as_str(), c.status.as_str(), c.reason.as_deref(), c.message.as_deref()))
            .collect();
        said.sort_unstable();
        said
    }
    said(old) == said(new)
}
