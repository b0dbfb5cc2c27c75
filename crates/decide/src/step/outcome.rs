//! Handles the results of actions: updates the ledger, records Events, and requests observations.

use std::collections::BTreeSet;

use model::pod::ContainerKind;
use model::volume::{DevicePaths, MountStage, VolumeKind, VolumeSetup};
use model::{ApiEvent, ContainerId, Mono, PodUid, Reason};

use super::observation_requests::{check_runtime, request_observation};
use super::retry::{pod_step_failed, retry_step};
use super::{Context, confirm, expansion, starts};
use crate::action::{Action, ActionResult, CallFailure, Epoch, StartContainer, StartFailurePoint};
use crate::back_off::volume_delay;
use crate::effect::{Effect, LogLevel};
use crate::ledger::{StartFailure, VolumeRetry};
use crate::lifecycle::Lifecycle;
use crate::observation_guard::{ObservationGuard, only_retries_removals};
use crate::plan::{self, RETRY};
use crate::state::NodeState;
use crate::volumes;

pub(super) fn action_done(
    state: &mut NodeState,
    cx: &mut Context,
    uid: &PodUid,
    epoch: Epoch,
    (stage, action): (usize, usize),
    result: ActionResult,
) {
    let Some(plan) = state.pods.get_mut(uid).and_then(|e| e.plan.as_mut()).filter(|p| p.epoch == epoch)
    else {
        return;
    };
    let Some(action) = plan.stages.get(stage).and_then(|s| s.actions.get(action)).cloned() else { return };
    match &result {
        ActionResult::Skipped | ActionResult::Interrupted => plan.skipped = true,
        ActionResult::Failed(_) | ActionResult::VolumeFailed { .. } | ActionResult::StartFailed { .. } => {
            plan.failed = true;
        }
        _ => {}
    }
    plan.mutated |= action.mutates_runtime() && result != ActionResult::Skipped;
    starts::start_ended(state, cx, uid, &action, &result);
    match result {
        ActionResult::Failed(failure) => failed(state, cx, uid, &action, failure),
        ActionResult::VolumeFailed { stage, failure } => {
            if let Action::SetUpVolume { volume } = &action {
                volume_failed(state, cx, uid, volume, (stage, &failure.message));
            }
        }
        ActionResult::StartFailed { at, id, failure } => {
            start_failed(state, cx, uid, &action, (at, id), failure)
        }
        ActionResult::Interrupted => interrupted(state, uid, &action),
        ActionResult::Skipped => {}
        result => succeeded(state, cx, uid, &action, result),
    }
}

/// A hook that has begun is not started again.
fn interrupted(state: &mut NodeState, uid: &PodUid, action: &Action) {
    let Some(entry) = state.pods.get_mut(uid) else { return };
    if let Action::StopContainer { id, pre_stop: Some(_), .. } | Action::PreStop { id, .. } = action {
        entry.ledger.pre_stop_begun.insert(id.clone());
    }
}

fn succeeded(state: &mut NodeState, cx: &mut Context, uid: &PodUid, action: &Action, result: ActionResult) {
    let Some(entry) = state.pods.get_mut(uid) else { return };
    record_runtime_ack(&mut entry.observation_guard, action, &result, cx.now.mono);
    match (action, result) {
        (
            Action::StopContainer { id, name, pre_stop: Some(_), .. } | Action::PreStop { id, name, .. },
            result,
        ) => {
            entry.ledger.pre_stop_begun.insert(id.clone());
            hook_ended(state, cx, uid, name, result);
        }
        (_, ActionResult::Dirs { log_numbers }) => entry.ledger.log_numbers = log_numbers,
        (Action::StopSandbox { id }, _) => {
            entry.ledger.stopped_sandboxes.insert(id.clone());
        }
        (Action::RemoveSandbox { id }, _) => {
            entry.ledger.stopped_sandboxes.remove(id);
        }
        (Action::StopContainer { id, .. }, _) => {
            entry.ledger.stopped_containers.insert(id.clone());
        }
        (Action::RemoveContainer { id, .. }, _) => {
            entry.ledger.stopped_containers.remove(id);
        }
        (Action::SetUpVolume { volume }, _) => {
            entry.ledger.volume_retry.remove(&volume.name);
            let first = entry.ledger.volumes_set_up.insert(volume.name.clone());
            if let VolumeKind::Content(content) = &volume.kind {
                entry.ledger.written_file_versions.insert(volume.name.clone(), content.version);
            }
            if matches!(&volume.kind, VolumeKind::Csi(csi) if csi.requires_republish) {
                let at = cx.now.mono.plus(state.config.sync_frequency);
                entry.ledger.republish_at.insert(volume.name.clone(), at);
            }
            if let Some(paths) = volume.device_paths().filter(|_| first) {
                for event in mapped_device(paths, &volume.spec_name) {
                    cx.record(state, uid, event);
                }
            }
        }
        (Action::ExpandVolume { volume, expansion }, ActionResult::ExpandOutcome(how)) => {
            expansion::expansion_ended(state, cx, uid, (volume, expansion), how);
        }
        (Action::TearDownVolumes, _) => {
            entry.ledger.volume_sizes.clear();
            entry.ledger.expand_retry.clear();
            entry.ledger.written_file_versions.clear();
            entry.ledger.volumes_set_up.clear();
            entry.ledger.republish_at.clear();
        }
        (Action::ReadEnvFiles { container, .. }, ActionResult::EnvFiles(read)) => {
            entry.ledger.env_files.insert(container.clone(), read);
        }
        (Action::StartContainer(start), ActionResult::ContainerStarted { .. }) => {
            let (kind, name) = (start.kind, start.name.clone());
            entry.ledger.env_files.remove(&name);
            entry.ledger.start_failures.remove(&name);
            entry.ledger.retry_at.remove(&name);
            entry.ledger.failed_attempts.remove(&name);
            let (view, ledger) = entry.view_and_ledger();
            if let Some((_, container)) = view.container(&name) {
                ledger.forget_images_of(container);
            }
            // Its log has this number now: should the container vanish, the next one has the next.
            entry.ledger.log_numbers.insert(name.clone(), start.config.metadata.attempt);
            cx.record(
                state,
                uid,
                ApiEvent::normal("Created", "Container created").for_container(kind, &name),
            );
            cx.record(
                state,
                uid,
                ApiEvent::normal("Started", "Container started").for_container(kind, &name),
            );
        }
        _ => {}
    }
}

/// Records the runtime's acknowledgement, so that later observations are compared with it.
fn record_runtime_ack(witness: &mut ObservationGuard, action: &Action, result: &ActionResult, now: Mono) {
    match (action, result) {
        (_, ActionResult::SandboxRunning { id }) => witness.record_started(id.as_str(), now),
        (_, ActionResult::ContainerStarted { id }) => witness.record_started(id.as_str(), now),
        (Action::RemoveContainer { id, .. }, _) => witness.record_removed(id.as_str(), now),
        (Action::RemoveSandbox { id }, _) => witness.record_removed(id.as_str(), now),
        _ => {}
    }
}

fn mapped_device(paths: &DevicePaths, name: &str) -> [ApiEvent; 2] {
    let mapped = |what: &str, path: &str| {
        let text = format!("MapVolume.MapPodDevice succeeded for volume {name:?} {what} {path:?}");
        ApiEvent::normal("SuccessfulMountVolume", text)
    };
    [mapped("globalMapPath", paths.global_map_dir()), mapped("volumeMapPath", paths.pod_map_dir())]
}

pub(super) fn hook_fell_back(state: &NodeState, cx: &mut Context, uid: &PodUid, host: &str) {
    let text = format!("request to HTTPS lifecycle hook {host} got HTTP response, retry with HTTP succeeded");
    cx.record(state, uid, ApiEvent::warning("LifecycleHTTPFallback", text));
}

/// The details of a failed preStop hook are withheld on purpose: they may contain secrets of the container.
fn hook_ended(state: &NodeState, cx: &mut Context, uid: &PodUid, name: &str, result: ActionResult) {
    let ActionResult::HookFailed { message } = result else { return };
    let kind = state
        .pods
        .get(uid)
        .and_then(|e| e.view().container(name))
        .map_or(ContainerKind::Regular, |(kind, _)| kind);
    cx.record(
        state,
        uid,
        ApiEvent::warning("FailedPreStopHook", "PreStopHook failed").for_container(kind, name),
    );
    cx.log(LogLevel::Warn, Some(uid), message);
}

fn start_failed(
    state: &mut NodeState,
    cx: &mut Context,
    uid: &PodUid,
    action: &Action,
    (at, id): (StartFailurePoint, Option<ContainerId>),
    failure: CallFailure,
) {
    let Action::StartContainer(start) = action else { return };
    if let Some(entry) = state.pods.get_mut(uid) {
        entry.ledger.env_files.remove(&start.name);
    }
    let message = explain_image_mount_error(start, at, failure.message);
    let (kind, name): (ContainerKind, &str) = (start.kind, &start.name);
    let reason = match at {
        StartFailurePoint::Files => Reason::CreateContainerConfigError,
        StartFailurePoint::Create => Reason::CreateContainerError,
        StartFailurePoint::Start => Reason::RunContainerError,
        StartFailurePoint::PostStart => Reason::PostStartHookError,
    };
    if matches!(at, StartFailurePoint::Start | StartFailurePoint::PostStart) {
        cx.record(state, uid, ApiEvent::normal("Created", "Container created").for_container(kind, name));
    }
    if at == StartFailurePoint::PostStart {
        cx.record(state, uid, ApiEvent::normal("Started", "Container started").for_container(kind, name));
        let event = ApiEvent::warning("FailedPostStartHook", "PostStartHook failed");
        cx.record(state, uid, event.for_container(kind, name));
    } else {
        cx.record(
            state,
            uid,
            ApiEvent::warning("Failed", format!("Error: {message}")).for_container(kind, name),
        );
    }
    cx.log(LogLevel::Warn, Some(uid), format!("container {name} could not be started: {reason}: {message}"));
    if let Some(entry) = state.pods.get_mut(uid) {
        entry.ledger.start_failures.insert(name.to_owned(), StartFailure { reason, message });
        entry.ledger.failed_attempts.insert(name.to_owned(), start.config.metadata.attempt);
        let (view, ledger) = entry.view_and_ledger();
        if let Some((_, container)) = view.container(name) {
            ledger.forget_images_of(container);
        }
        if matches!(at, StartFailurePoint::Start | StartFailurePoint::PostStart) {
            // The container may have run all the same.
            entry.ledger.log_numbers.insert(name.to_owned(), start.config.metadata.attempt);
        }
        if let (StartFailurePoint::PostStart, Some(id)) = (at, id) {
            entry.ledger.containers_to_stop.insert(id, "FailedPostStartHook".into());
        }
        entry.ledger.retry_at.insert(name.to_owned(), cx.now.mono.plus(RETRY));
    }
    if failure.unreachable {
        check_runtime(state, cx);
    }
}

/// A runtime that is older than image volumes overlooks the image and complains of the path that isn't there.
fn explain_image_mount_error(start: &StartContainer, at: StartFailurePoint, message: String) -> String {
    let mounts_image = start.config.mounts.iter().any(|mount| mount.image.is_some());
    match at {
        StartFailurePoint::Create if mounts_image && message.contains("\"\"") => {
            format!("the container runtime can't mount images as volumes: {message}")
        }
        _ => message,
    }
}

fn failed(state: &mut NodeState, cx: &mut Context, uid: &PodUid, action: &Action, failure: CallFailure) {
    let message = failure.message;
    if let Action::SetUpVolume { volume } = action {
        return volume_failed(state, cx, uid, volume, (MountStage::SetUp, &message));
    }
    if let Action::ExpandVolume { volume, expansion } = action {
        return expansion::expansion_failed(state, cx, uid, (volume, expansion), &message);
    }
    let event = match action {
        Action::MakePodDirs { .. } => {
            ApiEvent::warning("Failed", format!("error making pod data directories: {message}"))
        }
        Action::EnsureCgroup { .. } => ApiEvent::warning(
            "FailedCreatePodContainer",
            format!("unable to ensure pod container exists: {message}"),
        ),
        Action::RunSandbox { .. } => {
            ApiEvent::warning("FailedCreatePodSandBox", format!("Failed to create pod sandbox: {message}"))
        }
        _ => ApiEvent::warning("FailedKillPod", format!("error killing pod: {message}")),
    };
    cx.log(LogLevel::Warn, Some(uid), format!("{} failed: {message}", action.name()));
    if matches!(action, Action::RemoveContainer { .. } | Action::RemoveSandbox { .. }) {
        // A dead container that can't be removed is a problem of the node, not of the pod.
        cx.emit(Effect::RecordNodeEvent { event: ApiEvent::warning("ContainerGCFailed", message.clone()) });
        retry_step(state, cx, uid, action.name(), message);
    } else {
        pod_step_failed(state, cx, uid, action.name(), message, event);
    }
    if failure.unreachable {
        check_runtime(state, cx);
    }
}

/// Each volume is retried with its own back-off.
pub(super) fn volume_failed(
    state: &mut NodeState,
    cx: &mut Context,
    uid: &PodUid,
    volume: &VolumeSetup,
    (stage, cause): (MountStage, &str),
) {
    let block = volume.is_block();
    let message = format!("{} for volume {:?} : {cause}", stage.failed(block), volume.spec_name);
    cx.log(LogLevel::Warn, Some(uid), message.clone());
    cx.record(state, uid, ApiEvent::warning(stage.reason(block), message.clone()));
    let Some(entry) = state.pods.get_mut(uid) else { return };
    let attempts = entry.ledger.volume_retry.get(&volume.name).map_or(0, |retry| retry.attempts) + 1;
    let at = cx.now.mono.plus(volume_delay(attempts));
    entry.ledger.volume_retry.insert(volume.name.clone(), VolumeRetry { message, at, attempts });
}

pub(super) fn plan_ended(state: &mut NodeState, cx: &mut Context, uid: &PodUid, epoch: Epoch) {
    let Some(entry) = state.pods.get_mut(uid) else { return };
    let Some(plan) = entry.plan.take_if(|p| p.epoch == epoch) else { return };
    if !plan.failed && !plan.skipped {
        entry.ledger.pod_retry = None;
        let has = |wanted: fn(&Action) -> bool| plan.stages.iter().flat_map(|s| &s.actions).any(wanted);
        if has(|a| matches!(a, Action::MakePodDirs { .. }))
            && volumes::all_set_up(entry.view(), &entry.ledger.volumes_set_up)
        {
            entry.ledger.prerequisites_ready = true;
            entry.ledger.waiting_for_volumes_since = None;
        }
        if has(|a| matches!(a, Action::TearDownVolumes)) {
            entry.ledger.volumes_and_cgroup_released = true;
        }
        if has(|a| matches!(a, Action::RemovePodDir)) {
            entry.ledger.directories_removed = true;
        }
    }
    let made_cgroup = |action: &Action| matches!(action, Action::EnsureCgroup { .. });
    if !plan.failed && !plan.skipped && plan.stages.iter().flat_map(|s| &s.actions).any(made_cgroup) {
        entry.ledger.cgroup_lost = false;
    }
    entry.observation_guard.record_plan_ended(&plan.stages);
    if plan.mutated {
        entry.last_mutation = cx.now.mono;
        entry.unread_since_mutation = true;
        match only_retries_removals(&entry.observation_guard, &plan.stages) {
            true => confirm::request_batched_observation(state, cx, uid),
            false => request_observation(state, cx, uid),
        }
    }
    cx.touch(uid);
}

/// With a limit on dead containers over all pods: marks the oldest beyond it, for their pods to remove.
pub(super) fn mark_excess_dead_containers(state: &mut NodeState, cx: &mut Context) {
    let Ok(limit) = usize::try_from(state.config.max_dead_containers) else { return };
    let pods = state.pods.values().filter(|e| !matches!(e.lifecycle(), Lifecycle::Terminating(_)));
    let readings: Vec<_> = pods.filter_map(|e| e.observed.as_ref()).map(|r| r.pod.clone()).collect();
    let victims: BTreeSet<_> = plan::dead_overall(readings.iter().map(|p| &**p), limit, cx.now)
        .iter()
        .map(|c| c.id.clone())
        .collect();
    for (uid, entry) in &mut state.pods {
        let own = entry.observed.iter().flat_map(|r| &r.pod.containers);
        let excess: BTreeSet<_> = own.map(|c| c.id.clone()).filter(|id| victims.contains(id)).collect();
        if entry.ledger.excess_dead_containers != excess {
            entry.ledger.excess_dead_containers = excess;
            cx.touched.insert(uid.clone());
        }
    }
}
