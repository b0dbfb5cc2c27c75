//! When it is decided whether a pod may run here, and what follows.
//!
//! ```text
//!   new ──> every touched pod is settled ──> decided: admitted, refused
//!    │                                          │  ├──> only node affinity fails: the Node is read again ──> decided
//!    │                                          │  └──> critical, lacks room: victims end ──> room: admitted
//!    └──> no full observation yet: decided after the first one
//! ```
//! A pod that an earlier agent admitted stays admitted: its containers may run, and what it was promised then it has.
//! Whether that is so may be known from the first full observation only, and nothing is planned before that anyway.
//!
//! A critical pod that waits for room has its requests reserved, so that nobody takes what others release for it. Nothing
//! of the wait is kept over a restart: whether the pod fits is decided again from what is there, with every change.

use std::sync::Arc;
use std::time::Duration;

use model::k8s::Node;
use model::pod::PodView;
use model::why::{Cause, Why};
use model::{ApiEvent, Mono, PodReason, PodUid};

use super::retry::set_why;
use super::{Context, node, pods, settle};
use crate::admission::{
    self, AdmissionFailure, AdmissionInputs, AdmissionRejection, Candidate, RequestedByOthers, Shortage,
    amount_of, choose_victims, may_preempt,
};
use crate::effect::{Effect, LogLevel};
use crate::lifecycle::Lifecycle;
use crate::state::{AdmissionWait, FailureReason, NodeState, PodEntry};

const PREEMPTED: &str = "Preempted in order to admit critical pod";
/// The message of the condition `DisruptionTarget`.
const DISRUPTED: &str = "Pod was preempted by Kubelet to accommodate a critical pod.";
/// So much longer than its grace period a pod that ends is waited for, and half of that period if that is more.
const LEAST_MARGIN: Duration = Duration::from_secs(10);
/// So many of the pods that a critical pod waits for are named.
const NAMED: usize = 16;

/// Pods that were delivered before it was known what runs: those that run stay admitted, then the others are decided,
/// the oldest first.
pub(super) fn first_observation(state: &mut NodeState, cx: &mut Context) {
    let waits = |entry: &PodEntry| entry.standing().admission_wait() == Some(AdmissionWait::Turn);
    let mut left = Vec::new();
    let mut admitted = Vec::new();
    for (uid, entry) in state.pods.iter().filter(|(_, entry)| waits(entry)) {
        if entry.observed.as_ref().is_some_and(|reading| !reading.pod.is_empty()) {
            admitted.push(uid.clone());
        } else {
            let created = entry.view().pod.metadata.creation_timestamp.as_ref().map(|at| at.0);
            left.push((created, uid.clone()));
        }
    }
    for uid in admitted {
        state.pods.admit(&uid);
    }
    left.sort();
    cx.undecided.extend(left.into_iter().map(|(_, uid)| uid));
}

/// It is the turn of this pod. Every pod that the step touched is settled, so the sums are those that follow from it.
pub(super) fn decide(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    let wait = state.pods.get(uid).and_then(|entry| entry.standing().admission_wait());
    match wait {
        Some(AdmissionWait::Turn | AdmissionWait::Room) if state.full_observation.last.is_some() => {
            decide_with(state, cx, uid, false);
        }
        // The Node is being read, the pod is to be decided later, or it is decided.
        Some(_) | None => {}
    }
}

fn decide_with(state: &mut NodeState, cx: &mut Context, uid: &PodUid, node_is_fresh: bool) {
    let Some(entry) = state.pods.get(uid) else { return };
    match verdict(state, entry.view()) {
        Ok(()) => {
            state.admissions.remove(uid);
            state.pods.admit(uid);
            cx.touch(uid);
        }
        Err(AdmissionFailure::OnlyNodeAffinity(_)) if !node_is_fresh && state.has_cluster() => {
            read_node(state, cx, uid);
        }
        Err(AdmissionFailure::Refused(refusal) | AdmissionFailure::OnlyNodeAffinity(refusal)) => {
            pods::reject(state, cx, uid, refusal);
        }
        Err(AdmissionFailure::NeedsRoom(shortages)) => make_room(state, cx, uid, shortages),
    }
}

fn verdict(state: &NodeState, pod: &PodView) -> Result<(), AdmissionFailure> {
    let behind = state.admissions.from(&pod.uid);
    let mut without_reserved;
    let others: &RequestedByOthers = match behind {
        [] => state.pods.requests().requested_by_others(),
        behind => {
            without_reserved = state.pods.requests().requested_by_others().clone();
            for entry in behind.iter().filter_map(|uid| state.pods.get(uid)) {
                without_reserved.subtract(entry.requests(), entry.host_ports());
            }
            &without_reserved
        }
    };
    let place = AdmissionInputs {
        config: &state.config,
        facts: &state.facts,
        node: state.node.as_deref(),
        runtime: &state.runtime,
        others,
        pressure: state.eviction.pressure(),
    };
    admission::admit(pod, &place)
}

// ---- the Node ---------------------------------------------------------------------------------------------------

/// The pod may have been bound to this node because of a label that the watch has not shown yet.
fn read_node(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    state.admissions.remove(uid);
    let admissions = &mut state.admissions;
    match admissions.node_reading {
        true => admissions.node_next.push(uid.clone()),
        false => {
            admissions.node_reading = true;
            admissions.node_requested.push(uid.clone());
            cx.emit(Effect::ReadNode);
        }
    }
    state.pods.wait_for_admission(uid, AdmissionWait::Node);
    set_why(state, cx, uid, vec![Why { container: None, cause: Cause::WaitingForNode, next_attempt: None }]);
}

/// The Node was read again, or could not be. Without it the last known one decides.
pub(super) fn node_read(state: &mut NodeState, cx: &mut Context, result: Result<Arc<Node>, String>) {
    let next = std::mem::take(&mut state.admissions.node_next);
    let again = !next.is_empty();
    let waiting = std::mem::replace(&mut state.admissions.node_requested, next);
    state.admissions.node_reading = again;
    if again {
        cx.emit(Effect::ReadNode);
    }
    match result {
        // The watch may have shown a newer one meanwhile.
        Ok(read) if node::is_older(&read, state.node.as_deref()) => {}
        Ok(read) => node::observed(state, cx, Some(read)),
        Err(message) => {
            let text = format!("the Node could not be read again before pods are refused: {message}");
            cx.log(LogLevel::Warn, None, text);
        }
    }
    for uid in waiting {
        state.pod_in_step = Some(uid.clone());
        let wait = state.pods.get(&uid).and_then(|entry| entry.standing().admission_wait());
        if wait == Some(AdmissionWait::Node) {
            decide_with(state, cx, &uid, true);
        }
    }
    state.pod_in_step = None;
}

// ---- room for critical pods -------------------------------------------------------------------------------------

/// The pod lacks these resources. It waits for pods that end anyway. If they don't release enough, others have to end.
fn make_room(state: &mut NodeState, cx: &mut Context, uid: &PodUid, shortages: Vec<Shortage>) {
    let Some(entry) = state.pods.get(uid) else { return };
    let now = cx.now.mono;
    let leaving: Vec<&PodEntry> = leaving(state, now).collect();
    let released = |name: &str| {
        let held = leaving.iter().filter(|entry| entry.holds_resources() || name == "pods");
        held.fold(0i64, |sum, entry| sum.saturating_add(amount_of(name, entry.requests()).max(0)))
    };
    let first = shortages.first().map(|shortage| shortage.name.clone()).unwrap_or_default();
    let shortages: Vec<Shortage> = shortages
        .into_iter()
        .map(|shortage| {
            let released = released(&shortage.name);
            shortage.after(released)
        })
        .collect();
    let behind = state.admissions.from(uid);
    let candidates: Vec<Candidate<'_>> = state
        .pods
        .iter()
        .filter(|(other, victim)| {
            victim.holds_resources()
                && !victim.lifecycle().termination_requested()
                && !victim.standing().is_set_aside()
                && *other != uid
                && !behind.contains(other)
                && may_preempt(entry.view(), victim.view())
        })
        .map(|(uid, victim)| Candidate { uid, qos: victim.qos(), requests: victim.requests() })
        .collect();
    let victims = match choose_victims(&shortages, &candidates) {
        Ok(victims) => victims,
        Err(why) => return pods::reject(state, cx, uid, AdmissionRejection::preemption_failed(&why)),
    };
    for victim in victims {
        *state.counters.preemptions.entry(first.clone()).or_default() += 1;
        let reason = PodReason::Preempting.as_str();
        cx.record(state, &victim, ApiEvent::warning(reason, PREEMPTED));
        let why = FailureReason::new(reason, PREEMPTED).with_disruption(DISRUPTED);
        pods::evict(state, cx, &victim, why, None);
    }
    if !state.admissions.room.contains(uid) {
        state.admissions.room.push(uid.clone());
    }
    state.pods.wait_for_admission(uid, AdmissionWait::Room);
    let resources = shortages.into_iter().map(|shortage| shortage.name).collect();
    let mut pods: Vec<String> = self::leaving(state, now).map(|entry| entry.view().display_name()).collect();
    pods.truncate(NAMED);
    let overdue_at = self::leaving(state, now).filter_map(waited_for_until).min();
    let cause = Cause::WaitingForRoom { resources, pods };
    set_why(state, cx, uid, vec![Why { container: None, cause, next_attempt: None }]);
    settle::set_timer(state, cx, uid, overdue_at);
}

/// Pods that end in time, and whose requests still count.
fn leaving(state: &NodeState, now: Mono) -> impl Iterator<Item = &PodEntry> {
    let ends = move |entry: &&PodEntry| {
        entry.counts_for_admission() && waited_for_until(entry).is_some_and(|until| until > now)
    };
    state.pods.values().filter(ends)
}

/// A pod that should have ended long ago may never end: the others that need its room don't wait for it any longer.
fn waited_for_until(entry: &PodEntry) -> Option<Mono> {
    match entry.lifecycle() {
        Lifecycle::Terminating(termination) => {
            let grace = u64::try_from(termination.grace_secs).unwrap_or(0);
            let margin = Duration::from_secs(grace / 2).max(LEAST_MARGIN);
            Some(termination.since.plus(Duration::from_secs(grace).saturating_add(margin)))
        }
        Lifecycle::Syncing | Lifecycle::Terminated | Lifecycle::Finished => None,
    }
}
