//! Bringing one touched pod up to date: lifecycle as far as it goes, status, then a plan.

use model::{PodPhase, PodReason};
use std::collections::BTreeMap;
use std::sync::Arc;

use model::k8s::PodStatus;
use model::observed::{ContainerState, ObservedContainer, ObservedPod};
use model::pod::{ContainerKind, PodView};
use model::why::{Cause, Why};
use model::{ApiEvent, PodUid};

use super::observation_requests::request_observation;
use super::plan_inputs::plan_inputs;
use super::pods::PriorObservation;
use super::retry::{pod_step_failed, set_why};
use super::sandbox_placement::choose_placement;
use super::{Context, api, disk_limits, images, missing_status, objects, pods, probing, set_aside, volumes};
use crate::action::Epoch;
use crate::admission::AdmissionRejection;
use crate::effect::{Effect, TimerKey};
use crate::ledger::VolumeSize;
use crate::lifecycle::Lifecycle;
use crate::plan::{PlanNote, PodPlan, plan_pod};
use crate::sandbox::sandbox_change;
use crate::sandbox_placement::{self, SandboxPlacement};
use crate::state::{
    AdmissionWait, EndReason, FailureReason, Held, NodeState, PodEntry, RunningPlan, WhySince,
};
use crate::status::{self, StatusCheck};

/// Keys of Events that hold now are few; older ones are of no use.
const ANNOUNCEMENTS_KEPT: usize = 64;

pub(super) fn settle(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    if state.pods.get(uid).is_some_and(|entry| entry.standing().is_set_aside()) {
        return set_aside::report_set_aside(state, cx, uid);
    }
    if let Some(wait) = state.pods.get(uid).and_then(|entry| entry.standing().admission_wait()) {
        return undecided(state, cx, uid, wait);
    }
    let before = state.pods.get(uid).and_then(|e| e.status.clone());
    missing_status::update_missing_status_retry(state, cx, uid);
    loop {
        probing::update_probe_workers(state, cx, uid);
        if let Some(entry) = state.pods.get_mut(uid) {
            abandon_lost_restarts(entry);
        }
        refresh_status(state, cx, uid);
        note_held(state, cx, uid);
        if !advance_lifecycle(state, cx, uid) {
            break;
        }
    }
    if let Some(entry) = state.pods.get_mut(uid) {
        clear_completed_restarts(entry);
    }
    objects::request_needed_objects(state, cx, uid);
    plan(state, cx, uid);
    probing::settled(state, cx, uid, before.as_ref());
    disk_limits::start_measuring(state, cx, uid);
    api::publish_status(state, cx, uid);
}

/// Nothing is done for an undecided pod. One that waits for room is decided again.
fn undecided(state: &mut NodeState, cx: &mut Context, uid: &PodUid, wait: AdmissionWait) {
    if state.full_observation.last.is_none() {
        wait_for_first_observation(state, cx, uid);
        return objects::request_needed_objects(state, cx, uid);
    }
    let unread = state.pods.get(uid).is_some_and(|entry| entry.fresh_observation().is_none());
    if unread && !state.full_observation.in_flight {
        ensure_observation(state, cx, uid);
    }
    match wait {
        AdmissionWait::Room if !cx.undecided.contains(uid) => cx.undecided.push_back(uid.clone()),
        AdmissionWait::Room | AdmissionWait::Turn | AdmissionWait::Node => {}
    }
}

/// A pod that ends takes nothing from others once nothing of it runs, although its sandboxes may have to be stopped
/// again: an agent that starts does not know which of them were.
fn note_held(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    let Some(held) = state.pods.get(uid).and_then(held_now) else { return };
    if state.pods.hold(uid, held) {
        cx.room_changed(state);
    }
}

/// `None`: that cannot be told from what is known.
fn held_now(entry: &PodEntry) -> Option<Held> {
    let phase = |status: &PodStatus| PodPhase::of(status).is_some_and(PodPhase::is_terminal);
    let may_start_nothing = match entry.lifecycle().may_start() {
        true => entry.plan.is_none() && entry.view().pod.status.as_ref().is_some_and(phase),
        // A plan from before the end may be about to start something.
        false => entry.plan.as_ref().is_none_or(|plan| !plan.cancelled),
    };
    let observed = entry.fresh_observation().filter(|_| may_start_nothing)?;
    let runs = |c: &ObservedContainer| matches!(c.state, ContainerState::Running | ContainerState::Unknown);
    Some(match observed.anything_running() {
        false => Held::Nothing,
        true if observed.containers.iter().any(runs) => Held::Everything,
        true => Held::Ports,
    })
}

/// Makes one transition of the lifecycle, if one is due. `false`: the lifecycle is unchanged, or the pod is forgotten.
fn advance_lifecycle(state: &mut NodeState, cx: &mut Context, uid: &PodUid) -> bool {
    let Some(entry) = state.pods.get_mut(uid) else { return false };
    match entry.lifecycle() {
        Lifecycle::Syncing => {
            let phase = entry.status.as_deref().and_then(PodPhase::of);
            let ended = phase.is_some_and(PodPhase::is_terminal);
            if ended {
                let grace = entry.view().spec_grace().max(1);
                announce_deadline(state, cx, uid);
                pods::terminate(state, cx, uid, EndReason::Completed, grace);
            }
            ended
        }
        Lifecycle::Terminating(_) => {
            let stopped = &entry.ledger.stopped_sandboxes;
            let quiet = entry.plan.is_none()
                && entry.fresh_observation().is_some_and(|o| {
                    !o.anything_running() && o.sandboxes.iter().all(|s| stopped.contains(&s.id))
                });
            if quiet {
                entry.publication.dirty = true;
                entry.ledger.pod_retry = None;
                state.pods.containers_stopped(uid);
                cx.room_changed(state);
            }
            quiet
        }
        Lifecycle::Terminated => {
            let released = entry.ledger.volumes_and_cgroup_released && entry.plan.is_none();
            if released {
                let view = entry.view().clone();
                state.pods.released(uid);
                pods::release_name(state, cx, &view, false);
            }
            released
        }
        Lifecycle::Finished => finished(state, cx, uid),
    }
}

/// Records the DeadlineExceeded Event, unless the pod's API status shows that an earlier agent has done so.
fn announce_deadline(state: &NodeState, cx: &mut Context, uid: &PodUid) {
    let Some(entry) = state.pods.get(uid) else { return };
    let over = |status: &PodStatus| PodReason::of(status) == Some(PodReason::DeadlineExceeded);
    if entry.status.as_deref().is_some_and(over) && !entry.view().pod.status.as_ref().is_some_and(over) {
        let event = ApiEvent::normal(PodReason::DeadlineExceeded.as_str(), status::DEADLINE_EXCEEDED_MESSAGE);
        cx.record(state, uid, event);
    }
}

/// A finished pod is created again if a source wants it again, forgotten if no source wants it and nothing of it is
/// left, and otherwise kept for its status.
fn finished(state: &mut NodeState, cx: &mut Context, uid: &PodUid) -> bool {
    let Some(entry) = state.pods.get_mut(uid) else { return false };
    if entry.plan.is_some() {
        return false;
    }
    if entry.standing().recreate_as().is_some() && entry.fresh_observation().is_none() {
        // The last observation may still show containers that were removed since. The new pod would take them for its
        // own.
        return false;
    }
    if let Some(view) = entry.standing().recreate_as().cloned() {
        let known = PriorObservation {
            reading: entry.observed.clone(),
            last_mutation: entry.last_mutation,
            unread_since_mutation: entry.unread_since_mutation,
            observation_request: entry.observation_request,
        };
        pods::forget(state, cx, uid);
        match view.source.is_static() {
            true => state.counters.static_pods_recreated += 1,
            false => state.counters.api_pods_recreated += 1,
        }
        pods::create(state, cx, view, Some(known));
        return true;
    }
    let nothing_left =
        entry.fresh_observation().is_some_and(|o| o.is_empty()) && entry.ledger.directories_removed;
    if entry.standing().is_removed() && nothing_left {
        state.user_ids.remove(uid);
        pods::forget(state, cx, uid);
    }
    false
}

fn refresh_status(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    let Some(entry) = state.pods.get(uid) else { return };
    let Some(reading) = entry.observed.as_ref().filter(|_| !entry.standing().is_orphan()) else { return };
    if state.runtime.runtime_name_is_unknown() && !reading.pod.containers.is_empty() {
        // Container IDs in the status begin with the runtime name. Reported without it, each would look like another
        // container.
        return;
    }
    if missing_status::missing_status_is_needed(entry)
        && deadline(state, cx, uid).is_none_or(|at| at > cx.now.mono)
    {
        // The last status stays until the statuses of all containers can be read.
        return;
    }
    if entry.standing().is_removed() && entry.status.is_none() && reading.pod.is_empty() {
        // Removed before this agent said anything of it, and nothing of it is left: what an earlier agent said stays.
        return;
    }
    let qos = entry.qos();
    let view = view_for_status(entry);
    let none = BTreeMap::new();
    let must_restart = if entry.lifecycle().may_start() { &entry.ledger.must_restart } else { &none };
    let old = entry.status.clone().or_else(|| api::shown_status(state, entry));
    let derived = match entry.standing().rejection() {
        Some(FailureReason { reason, message, .. }) => status::rejected(entry.view(), qos, reason, message),
        None => {
            let inputs = status::StatusInputs {
                pod: &view,
                observed: &reading.pod,
                old: old.as_deref(),
                failures: &entry.ledger.start_failures,
                must_restart,
                eviction: entry.standing().eviction().map(|why| (&*why.reason, &*why.message)),
                disruption: entry.standing().eviction().and_then(|why| why.disruption.as_deref()),
                terminal: entry.lifecycle().is_terminated(),
                probes: &entry.probes.reports(entry.view()),
                runtime_name: &state.runtime.name,
                recursive_read_only: recursive_read_only(state, &reading.pod),
                stop_signals: state.config.feature(crate::stop_signals::GATE),
                image_volume_digests: state.config.feature(status::IMAGE_VOLUME_DIGEST_GATE),
                ready_to_start: state.config.features.get(status::READY_TO_START_GATE) != Some(&false),
                keeps_readiness: !state.config.feature(status::FORGET_READINESS_GATE),
                host_ips: &state.host_ips(),
                primary_family: state.primary_family(),
                qos,
                resources: entry.resources(),
                resize_pending: entry.pending_resize().is_some(),
                now: cx.now,
                agent_started: state.started,
            };
            let derived = status::derive(&inputs);
            if matches!(entry.lifecycle(), Lifecycle::Finished) {
                status::keep_terminal_conditions(old.as_deref(), status::finish_status(entry.view(), derived))
            } else {
                derived
            }
        }
    };
    let accepted = match status::check_status(&view, old.as_deref(), derived, cx.now) {
        StatusCheck::Accepted(status) => Arc::from(status),
        // The API server has this status already.
        StatusCheck::Unchanged if entry.status.is_none() => old.unwrap_or_default(),
        StatusCheck::Unchanged | StatusCheck::Illegal(_) => return,
    };
    if let Some(entry) = state.pods.get_mut(uid) {
        entry.status = Some(accepted.clone());
        entry.publication.dirty = true;
    }
    cx.emit(Effect::StatusChanged { uid: uid.clone(), status: accepted });
}

/// Whether the runtime handler of the pod supports recursive read-only mounts.
fn recursive_read_only(state: &NodeState, observed: &ObservedPod) -> bool {
    let handler = observed.newest_sandbox().map_or("", |s| &s.runtime_handler);
    sandbox_placement::handler_features(&state.runtime.handlers, handler)
        .is_some_and(|f| f.recursive_read_only_mounts)
}

/// The pod with the restart policies that its status is derived with. A container that was killed for a restart counts
/// as `Always` until it runs again. Otherwise the phase could become Succeeded or Failed in between.
fn view_for_status(entry: &PodEntry) -> PodView {
    let forced = &entry.ledger.must_restart;
    if forced.is_empty() {
        return entry.view().clone();
    }
    let mut pod = model::k8s::Pod::clone(&entry.view().pod);
    let containers = pod.spec.iter_mut().flat_map(|s| &mut s.containers);
    for container in containers.filter(|c| forced.contains_key(&c.name)) {
        container.restart_policy = Some("Always".into());
        container.restart_policy_rules = None;
    }
    entry.view().with_pod(Arc::new(pod))
}

/// A container killed for a restart is restarted in the same sandbox. If the sandbox is gone, the entry is dropped and
/// restart policies decide. Otherwise a pod that gets no new sandbox would stay Running for ever.
fn abandon_lost_restarts(entry: &mut PodEntry) {
    let lost = |e: &PodEntry| {
        e.fresh_observation()
            .is_some_and(|o| o.newest_sandbox().is_some() && sandbox_change(e.view(), o).needed)
    };
    if !entry.ledger.must_restart.is_empty() && entry.plan.is_none() && lost(entry) {
        entry.ledger.must_restart.clear();
    }
}

/// Clears `must_restart` for containers that run again, so that their own restart policy counts. Forgets stop requests
/// of containers that are no longer listed.
fn clear_completed_restarts(entry: &mut PodEntry) {
    // An older observation does not show what a plan has just created.
    let Some(reading) =
        entry.observed.as_ref().filter(|_| entry.plan.is_none() && entry.fresh_observation().is_some())
    else {
        return;
    };
    let counts = |c: &&model::observed::ObservedContainer| {
        entry.view().container(&c.name).is_some_and(|(kind, _)| kind != ContainerKind::Ephemeral)
    };
    entry.ledger.restarting_all_containers &= reading.pod.containers.iter().any(|c| counts(&c));
    entry.ledger.must_restart.retain(|name, killed| {
        !reading.pod.newest(name).is_some_and(|c| c.id != *killed && c.state == ContainerState::Running)
    });
    entry.ledger.containers_to_stop.retain(|id, _| reading.pod.containers.iter().any(|c| c.id == *id));
    entry.ledger.pre_stop_begun.retain(|id| reading.pod.containers.iter().any(|c| c.id == *id));
}

fn plan(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    let Some(entry) = state.pods.get(uid) else { return };
    if entry.plan.is_some() {
        return volumes::update_files_during_plan(state, cx, uid);
    }
    if state.full_observation.last.is_none() {
        // Another pod of the same name may be running. That is not known before the first full relist.
        return wait_for_first_observation(state, cx, uid);
    }
    let Some(observed) = entry.fresh_observation().cloned() else {
        // This lasts a moment after each plan. The previous reasons are more useful than `Observing`, so they stay.
        let of_runtime = |w: &WhySince| matches!(w.why.cause, Cause::RuntimeNotReady { .. });
        if entry.why.is_empty() || !state.runtime.ready || entry.why.iter().any(of_runtime) {
            set_why(state, cx, uid, vec![why_not_observed(state)]);
        }
        if !state.full_observation.in_flight {
            ensure_observation(state, cx, uid);
        }
        return;
    };
    if state.pods_being_swept.contains(uid) {
        // Leftovers of an earlier pod of this UID are being removed.
        return set_why(
            state,
            cx,
            uid,
            vec![Why { container: None, cause: Cause::Releasing, next_attempt: None }],
        );
    }
    missing_status::ask_when_due(state, cx, uid);
    let Some(entry) = state.pods.get(uid) else { return };
    if missing_status::missing_status_is_needed(entry) {
        let mut waits = PodPlan::default();
        missing_status::add_to_plan(&mut waits, entry, &observed, cx.now.mono);
        return apply_plan(state, cx, uid, waits);
    }
    let view = entry.view().clone();
    let place = match entry.lifecycle().may_start() {
        true => choose_placement(state, &view, &observed),
        false => Ok(SandboxPlacement::default()),
    };
    let Some(inputs) = plan_inputs(state, uid, &observed, place, cx.now) else { return };
    let mut made = plan_pod(&inputs);
    let Some(entry) = state.pods.get(uid) else { return };
    missing_status::add_to_plan(&mut made, entry, &observed, cx.now.mono);
    apply_plan(state, cx, uid, made);
}

fn wait_for_first_observation(state: &mut NodeState, cx: &Context, uid: &PodUid) {
    set_why(state, cx, uid, vec![why_not_observed(state)]);
}

/// Why a pod without a fresh observation waits: for the observation, or for the runtime if that is not ready.
fn why_not_observed(state: &NodeState) -> Why {
    let cause = match &state.runtime {
        runtime if runtime.ready => Cause::Observing,
        runtime => Cause::RuntimeNotReady { message: runtime.message.clone() },
    };
    Why { container: None, cause, next_attempt: None }
}

/// Requests an observation of the pod unless one is under way or scheduled. Without one nothing would wake the pod.
fn ensure_observation(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    if state
        .pods
        .get(uid)
        .is_some_and(|e| !e.observation_request.in_flight && e.observation_request.wanted.is_none())
    {
        request_observation(state, cx, uid);
    }
}

fn apply_plan(state: &mut NodeState, cx: &mut Context, uid: &PodUid, made: PodPlan) {
    let PodPlan { stages, mut wake_at, why, notes } = made;
    let mut status_changed = false;
    let mut needs = Vec::new();
    for note in notes {
        match note {
            PlanNote::NeedImage(need) => needs.push(need),
            PlanNote::PodFailure { step, message, event } => {
                let at = pod_step_failed(state, cx, uid, step, message, event);
                wake_at = Some(wake_at.map_or(at, |w| w.min(at)));
            }
            PlanNote::NoRoomForVolumes { driver, message } => {
                cx.emit(Effect::RefreshDriverNodeInfo { driver });
                pods::reject(state, cx, uid, AdmissionRejection::no_room_for_volumes(message));
            }
            note => status_changed |= apply_note(state, cx, uid, note),
        }
    }
    if let Some(at) = deadline(state, cx, uid) {
        wake_at = Some(wake_at.map_or(at, |w| w.min(at)));
    }
    set_why(state, cx, uid, why);
    objects::hold_claims(state, uid, &stages);
    let Some(entry) = state.pods.get_mut(uid) else { return };
    if !stages.is_empty() {
        let epoch = Epoch(state.next_epoch);
        state.next_epoch += 1;
        let stages = Arc::new(stages);
        entry.plan = Some(RunningPlan::new(epoch, stages.clone()));
        cx.emit(Effect::RunPlan { uid: uid.clone(), epoch, stages });
    }
    set_timer(state, cx, uid, wake_at);
    for need in needs {
        images::request_image(state, cx, uid, &need);
    }
    if status_changed {
        refresh_status(state, cx, uid);
    }
}

/// When the pod exceeds activeDeadlineSeconds. No observation shows this, so it needs a timer.
fn deadline(state: &NodeState, cx: &Context, uid: &PodUid) -> Option<model::Mono> {
    let entry = state.pods.get(uid).filter(|e| e.lifecycle().may_start())?;
    status::deadline(entry.view(), entry.status.as_deref()).map(|at| cx.now.mono_at(at))
}

/// Records a note of a plan. Returns whether the pod's status may differ now.
fn apply_note(state: &mut NodeState, cx: &mut Context, uid: &PodUid, note: PlanNote) -> bool {
    let Some(entry) = state.pods.get_mut(uid) else { return false };
    match note {
        PlanNote::Failure { container, failure, retry_at } => {
            if let Some(at) = retry_at {
                entry.ledger.retry_at.insert(container.clone(), at);
            }
            // The next attempt reads the files again.
            entry.ledger.env_files.remove(&container);
            entry.ledger.start_failures.insert(container, failure.clone()) != Some(failure)
        }
        PlanNote::CrashAdvance { container, entry: advanced } => {
            entry.ledger.crash_back_offs.insert(container, advanced);
            false
        }
        PlanNote::Announce { key, event } => {
            if entry.ledger.recorded_event_keys.len() >= ANNOUNCEMENTS_KEPT {
                // Bounds the memory for a pod that crashes again and again with different messages.
                entry.ledger.recorded_event_keys.clear();
            }
            if entry.ledger.recorded_event_keys.insert(key) {
                cx.record(state, uid, event);
            }
            false
        }
        PlanNote::MustRestart { container, killed } => {
            entry.ledger.must_restart.insert(container, killed);
            false
        }
        PlanNote::WaitingForVolumes => {
            entry.ledger.waiting_for_volumes_since.get_or_insert(cx.now.mono);
            false
        }
        PlanNote::VolumeSize { volume, size } => {
            entry.ledger.volume_sizes.entry(volume).or_insert(VolumeSize { size, ..VolumeSize::default() });
            false
        }
        PlanNote::RestartAllBegins => {
            entry.ledger.restarting_all_containers = true;
            false
        }
        PlanNote::NeedImage(_) | PlanNote::PodFailure { .. } | PlanNote::NoRoomForVolumes { .. } => false,
    }
}

pub(super) fn set_timer(state: &mut NodeState, cx: &mut Context, uid: &PodUid, at: Option<model::Mono>) {
    let Some(entry) = state.pods.get_mut(uid) else { return };
    if entry.timer != at {
        entry.timer = at;
        cx.timer(TimerKey::PodWakeUp(uid.clone()), at);
    }
}
