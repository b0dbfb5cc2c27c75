//! Observations of the runtime: when they are requested, what they change, and how hints are handled.

use std::sync::Arc;
use std::time::Duration;

use model::observed::{ContainerState, Observation, ObservedPod, Scope};
use model::{Mono, PodUid};

use super::observation_requests::{check_runtime, request_full_observation, request_observation};
use super::{
    Context, admission, confirm, eviction, image_garbage, log_rotation, missing_status, pods, starts, sweep,
};
use crate::effect::{LogLevel, TimerKey};
use crate::event::{Hint, RuntimeCheck};
use crate::observation_guard::PodObservation;
use crate::state::{NodeState, ObservationRequest};

/// Limit for hints about ids that no observation has shown yet. It is large enough for a burst.
const UNKNOWN_IDS_KEPT: usize = 4096;
const OBSERVE_RETRY: Duration = Duration::from_secs(1);
/// Interval of the status check while the runtime is ready. A failed observation triggers one earlier.
const RUNTIME_CHECK_QUIET: Duration = Duration::from_secs(30);
const RUNTIME_CHECK_RETRY_MAX: Duration = Duration::from_secs(5);

pub(super) fn observation_done(state: &mut NodeState, cx: &mut Context, observation: Observation) {
    let at = observation.at;
    let mut pods = observation.pods.into_iter().map(sort_by_restart_count);
    match observation.scope {
        Scope::Pod(uid) => {
            let Some(entry) = state.pods.get_mut(&uid) else { return };
            // Several may be under way: a pod that comes back while it is being observed is observed anew. If each answer led
            // to a request, they would never end.
            if at >= entry.observation_request.requested_at {
                entry.observation_request.in_flight = false;
            }
            let full_name = entry.view().full_name.clone();
            let empty = || Arc::new(ObservedPod::empty(uid.clone(), full_name));
            let pod = pods.find(|p| p.uid == uid).unwrap_or_else(empty);
            if !apply_pod_observation(state, cx, &uid, at, pod) {
                return confirm::schedule_confirmation(state, cx, &uid);
            }
            let request = state.pods.get(&uid).map(|entry| entry.observation_request);
            let again = |request: ObservationRequest| {
                !request.in_flight && request.wanted.is_some_and(|wanted| at < wanted)
            };
            if request.is_some_and(again) {
                request_observation(state, cx, &uid);
            }
        }
        Scope::All => apply_full_observation(state, cx, at, pods.collect()),
    }
}

/// `false`: the observation contradicts what the runtime reported before, and has to be confirmed.
fn apply_pod_observation(
    state: &mut NodeState,
    cx: &mut Context,
    uid: &PodUid,
    at: Mono,
    pod: Arc<ObservedPod>,
) -> bool {
    state.pod_in_step = Some(uid.clone());
    let Some(entry) = state.pods.get_mut(uid) else { return true };
    if entry.standing().is_set_aside() {
        // Nothing is planned for the pod. The observation is kept for when the pod is resumed.
        entry.observed = Some(PodObservation { at, pod: pod.clone() });
        entry.observation_request.wanted = None;
        log_rotation::pod_observed(state, cx, &pod);
        return true;
    }
    if entry.observation_request.wanted.is_some_and(|wanted| at >= wanted) {
        entry.observation_request.wanted = None;
    }
    // Observations of one pod and full relists may overtake each other. The one that began later counts.
    if entry.observed.as_ref().is_some_and(|known| known.at > at) {
        return true;
    }
    let same = entry.observed.as_ref().is_some_and(|old| Arc::ptr_eq(&old.pod, &pod) || old.pod == pod);
    if !(same && entry.observation_guard.expects_nothing()) {
        let against = entry.contradictions(at, &pod);
        let told = entry.observation_guard.has_same_contradiction(&against);
        if !against.is_empty() && entry.observation_guard.needs_confirmation(&against, at, cx.now.mono) {
            let what = against.join("; ");
            if !told {
                let message =
                    format!("the container runtime contradicts what it said before; asking it again: {what}");
                cx.log(LogLevel::Warn, Some(uid), message);
            }
            return false;
        }
    }
    let fresh = at >= entry.last_mutation;
    let still_listed = entry.observation_guard.accept_observation(at, cx.now.mono, fresh, &pod);
    if !still_listed.is_empty() {
        let ids = still_listed.join(", ");
        let message = format!(
            "the container runtime still lists what it confirmed as removed: {ids}; retrying with back-off"
        );
        cx.log(LogLevel::Warn, Some(uid), message);
    }
    let was_fresh = entry.fresh_observation().is_some();
    let old = entry.observed.replace(PodObservation { at, pod: pod.clone() });
    entry.unread_since_mutation &= at < entry.last_mutation;
    let unheard = old.as_ref().is_some_and(|old| starts::has_unheard_start(&entry.ledger, old.at));
    starts::pod_observed(state, cx, uid, at, &pod);
    if !same {
        log_rotation::pod_observed(state, cx, &pod);
    }
    if same && was_fresh && pod.missing_status.is_empty() && !unheard {
        return true;
    }
    cx.touch(uid);
    if !same {
        index_runtime_ids(state, cx, uid, at, old.map(|o| o.pod).as_deref(), &pod);
        super::outcome::mark_excess_dead_containers(state, cx);
    }
    true
}

/// Sorts by restart count, newest first, and not by creation time: the wall clock may have been set back.
fn sort_by_restart_count(mut pod: Arc<ObservedPod>) -> Arc<ObservedPod> {
    if !pod.containers.is_sorted_by(|a, b| a.restart_count >= b.restart_count) {
        Arc::make_mut(&mut pod).containers.sort_by_key(|c| std::cmp::Reverse(c.restart_count));
    }
    pod
}

/// Updates the map from ids to pods. Observes the pod again if a hint named one of its ids before the id was known.
fn index_runtime_ids(
    state: &mut NodeState,
    cx: &mut Context,
    uid: &PodUid,
    at: Mono,
    old: Option<&ObservedPod>,
    new: &ObservedPod,
) {
    for id in old.into_iter().flat_map(ids_of) {
        state.pod_by_runtime_id.remove(id);
    }
    let mut look_again = false;
    for id in ids_of(new) {
        state.pod_by_runtime_id.insert(id.to_owned(), uid.clone());
        let hinted = state.unknown_hinted_ids.remove(id);
        let ended = new.containers.iter().any(|c| c.id.as_str() == id && c.state == ContainerState::Exited);
        look_again |= hinted.is_some_and(|when| at < when) && !ended;
    }
    if look_again {
        request_observation(state, cx, uid);
    }
}

fn ids_of(pod: &ObservedPod) -> impl Iterator<Item = &str> {
    let containers = pod.containers.iter().map(|c| c.id.as_str());
    containers.chain(pod.sandboxes.iter().map(|s| s.id.as_str()))
}

fn apply_full_observation(state: &mut NodeState, cx: &mut Context, at: Mono, seen: Vec<Arc<ObservedPod>>) {
    let full = &mut state.full_observation;
    full.in_flight = false;
    if full.failure.take().is_some() {
        cx.log(LogLevel::Info, None, "the container runtime can be read again");
    }
    let first = full.last.replace(at).is_none();
    let again = full.wanted.is_some_and(|wanted| at < wanted);
    if !again {
        full.wanted = None;
    }
    let unclaimed_before = std::mem::take(&mut state.unclaimed);
    for held in unclaimed_before.values() {
        cx.touched.extend(state.name_queues.get(&held.full_name).into_iter().flatten().cloned());
    }
    let mut unseen = unclaimed_before.clone();
    let mut missing: std::collections::BTreeSet<PodUid> = state.pods.keys().cloned().collect();
    for pod in seen {
        let uid = pod.uid.clone();
        state.pod_in_step = Some(uid.clone());
        missing.remove(&uid);
        if state.pods.contains_key(&uid) {
            if !apply_pod_observation(state, cx, &uid, at, pod) {
                confirm::schedule_confirmation(state, cx, &uid);
            }
        } else if state.forgotten_at.get(&uid).is_none_or(|when| *when <= at) {
            let kept = match unseen.remove(&uid) {
                Some(known) => confirm::confirm_unclaimed(state, cx, at, known, Some(pod)),
                None => Some(pod),
            };
            if let Some(pod) = &kept {
                log_rotation::pod_observed(state, cx, pod);
            }
            state.unclaimed.extend(kept.map(|pod| (uid, pod)));
        }
    }
    for (uid, known) in unseen.into_iter().filter(|(uid, _)| !missing.contains(uid)) {
        state.pod_in_step = Some(uid.clone());
        let kept = confirm::confirm_unclaimed(state, cx, at, known, None);
        state.unclaimed.extend(kept.map(|pod| (uid, pod)));
    }
    state.forgotten_at.retain(|_, when| *when > at);
    log_rotation::forget_unseen(state, cx);
    for uid in missing {
        let Some(entry) = state.pods.get(&uid) else { continue };
        let empty = match &entry.observed {
            Some(known) if known.pod.is_empty() => known.pod.clone(),
            _ => Arc::new(ObservedPod::empty(uid.clone(), entry.view().full_name.clone())),
        };
        if !apply_pod_observation(state, cx, &uid, at, empty) {
            confirm::schedule_confirmation(state, cx, &uid);
        }
    }
    state.pod_in_step = None;
    for pod in unclaimed_before.values().filter(|pod| !state.unclaimed.contains_key(&pod.uid)) {
        pods::wake_name_waiters(state, cx, &pod.full_name);
    }
    missing_status::update_unclaimed_retries(state, cx, at);
    if first {
        // No pod is planned before the first full relist.
        cx.touched.extend(state.pods.keys().cloned());
        pods::put_running_pods_first(state);
        admission::first_observation(state, cx);
    }
    pods::terminate_orphans(state, cx, at);
    sweep::list_pod_artifacts_once(state, cx);
    image_garbage::runtime_observed(state, cx);
    eviction::runtime_observed(state, cx);
    let unknown_before = at;
    state.unknown_hinted_ids.retain(|_, when| *when >= unknown_before);
    if again {
        request_full_observation(state, cx);
    } else {
        let next = cx.now.mono.plus(state.config.full_relist_period);
        cx.timer(TimerKey::FullRelist, Some(next));
    }
}

pub(super) fn observation_failed(state: &mut NodeState, cx: &mut Context, scope: Scope, message: String) {
    let retry = cx.now.mono.plus(OBSERVE_RETRY);
    match scope {
        Scope::All => {
            let full = &mut state.full_observation;
            full.in_flight = false;
            cx.timer(TimerKey::FullRelist, Some(retry));
            // The same failure is logged once, because the relist is retried each second.
            if full.failure.as_ref() != Some(&message) {
                cx.log(
                    LogLevel::Warn,
                    None,
                    format!("listing pods in the container runtime failed: {message}"),
                );
                full.failure = Some(message);
            }
        }
        Scope::Pod(uid) => {
            let Some(entry) = state.pods.get_mut(&uid) else { return };
            entry.observation_request.in_flight = false;
            entry.observation_request.wanted = Some(cx.now.mono);
            cx.timer(TimerKey::RetryObservation(uid.clone()), Some(retry));
            cx.log(LogLevel::Warn, Some(&uid), format!("reading the pod from the runtime failed: {message}"));
        }
    }
    check_runtime(state, cx);
}

pub(super) fn handle_hint(state: &mut NodeState, cx: &mut Context, hint: Hint) {
    match hint {
        // A pod that no source has claimed has no entry, so only a full relist can observe it.
        Hint::Pod(uid) if state.unclaimed.contains_key(&uid) => request_full_observation(state, cx),
        Hint::Pod(uid) => request_observation(state, cx, &uid),
        Hint::ContainerOrSandbox(id) => match state.pod_by_runtime_id.get(&id).cloned() {
            Some(uid) => request_observation(state, cx, &uid),
            None if state.unclaimed.values().any(|pod| ids_of(pod).any(|known| known == id)) => {
                request_full_observation(state, cx);
            }
            None => {
                if state.unknown_hinted_ids.len() >= UNKNOWN_IDS_KEPT {
                    state.unknown_hinted_ids.clear();
                    request_full_observation(state, cx);
                }
                state.unknown_hinted_ids.insert(id, cx.now.mono);
            }
        },
        Hint::Images => super::images::recheck_missing_images(state, cx),
        Hint::Everything => {
            check_runtime(state, cx);
            request_full_observation(state, cx);
        }
    }
}

pub(super) fn runtime_checked(state: &mut NodeState, cx: &mut Context, check: RuntimeCheck) {
    let before = state.runtime.clone();
    let health = &mut state.runtime;
    health.checking = false;
    match check {
        RuntimeCheck::Answered { runtime_name, status, cgroup_driver } => {
            if let Some(driver) = cgroup_driver.filter(|d| *d != state.config.cgroup_driver) {
                Arc::make_mut(&mut state.config).cgroup_driver = driver;
            }
            let condition = |kind: &str, label: &str| match status.condition(kind) {
                Some(c) if c.status => None,
                Some(c) => Some(format!("{label}: {kind}=false reason:{} message:{}", c.reason, c.message)),
                None => Some(format!("{label}: the runtime does not report {kind}")),
            };
            let runtime_problem = condition("RuntimeReady", "container runtime not ready");
            let network_problem = condition("NetworkReady", "container runtime network not ready");
            health.name = runtime_name;
            health.ready = runtime_problem.is_none();
            health.network_ready = network_problem.is_none();
            health.message = runtime_problem.unwrap_or_default();
            health.network_message = network_problem.unwrap_or_default();
            health.failures = 0;
            health.last_ok = Some(cx.now.mono);
            health.supplemental_groups_policy = status.supplemental_groups_policy;
            health.user_namespaces_host_network = status.user_namespaces_host_network;
            health.handlers = status.handlers.into_iter().map(|h| (h.name.clone(), h)).collect();
            health.ever_ready |= health.ready;
        }
        RuntimeCheck::Failed { message } => {
            health.ready = false;
            health.message = format!("container runtime is down: {message}");
            health.failures += 1;
        }
    }
    let quiet = health.ready && health.network_ready;
    let retry = OBSERVE_RETRY
        .saturating_mul(1 << health.failures.saturating_sub(1).min(3))
        .min(RUNTIME_CHECK_RETRY_MAX);
    let wait = if quiet { RUNTIME_CHECK_QUIET } else { retry };
    cx.timer(TimerKey::RuntimeCheck, Some(cx.now.mono.plus(wait)));
    runtime_changed(state, cx, &before);
}

fn runtime_changed(state: &mut NodeState, cx: &mut Context, before: &crate::runtime_health::RuntimeHealth) {
    let after = state.runtime.clone();
    if before.handlers != after.handlers {
        // Pods with a user namespace that failed because the handler did not support it are retried now.
        for (uid, entry) in state.pods.iter_mut().filter(|(_, e)| e.view().spec().host_users == Some(false)) {
            entry.ledger.pod_retry = None;
            cx.touched.insert(uid.clone());
        }
    }
    if (before.ready, before.network_ready) == (after.ready, after.network_ready)
        && before.message == after.message
        && before.runtime_name_is_unknown() == after.runtime_name_is_unknown()
    {
        return;
    }
    match (after.ready, after.network_ready) {
        (true, true) => cx.log(LogLevel::Info, None, format!("container runtime {} is ready", after.name)),
        (true, false) => cx.log(LogLevel::Warn, None, after.network_message),
        (false, _) if before.ready || before.message != after.message => {
            cx.log(LogLevel::Error, None, after.message)
        }
        (false, _) => {}
    }
    let back = after.ready && !before.ready;
    for (uid, entry) in &mut state.pods {
        if back {
            // Steps that failed while the runtime was down are retried at once.
            entry.ledger.pod_retry = None;
            entry.ledger.retry_at.clear();
        }
        cx.touched.insert(uid.clone());
    }
    if back {
        request_full_observation(state, cx);
    }
}
