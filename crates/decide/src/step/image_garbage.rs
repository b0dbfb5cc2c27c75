//! Removes images that nothing uses ([`crate::image_garbage`]).

use model::ApiEvent;
use model::image_garbage::ImageListing;
use model::observed::ObservedPod;
use model::pod::PodView;

use super::Context;
use super::observation_requests::check_runtime;
use crate::action::CallFailure;
use crate::effect::{Effect, LogLevel, TimerKey};
use crate::image_garbage::{ImageReferences, NextStep, PERIOD, RunEnd, RunPurpose, SOON};
use crate::images::ImageState;
use crate::state::NodeState;

/// The upstream kubelet's gate: each runtime handler may have an image storage of its own.
const HANDLER_GATE: &str = "RuntimeClassInImageCriAPI";

/// Removes all unused, unpinned images that have the minimum age: something else needs their space. While that is going
/// on, `state.image_garbage.reclaim_running()` is true; [`run_ended`] is called when it has ended.
pub(super) fn reclaim_all(state: &mut NodeState, cx: &mut Context) {
    state.image_garbage.request_reclaim();
    if !begin(state, cx) && !state.image_garbage.is_running() {
        state.image_garbage.give_up_reclaim();
    }
}

/// All of the runtime was read. The first run waits for this, and so does one whose time came while the runtime was away.
pub(super) fn runtime_observed(state: &mut NodeState, cx: &mut Context) {
    if state.image_garbage.next_run.is_none() {
        begin(state, cx);
    }
}

pub(super) fn timer_fired(state: &mut NodeState, cx: &mut Context) {
    state.image_garbage.next_run = None;
    begin(state, cx);
}

/// The filesystem is fuller by the image that was pulled.
pub(super) fn pull_ended(state: &mut NodeState, cx: &mut Context) {
    if !state.config.image_garbage.as_ref().is_some_and(|config| config.removes_by_itself()) {
        return;
    }
    if state.image_garbage.is_running() {
        state.image_garbage.pull_ended = true;
        return;
    }
    let soon = cx.now.mono.plus(SOON);
    if state.image_garbage.next_run.is_some_and(|at| at > soon) {
        schedule(state, cx, soon);
    }
}

fn schedule(state: &mut NodeState, cx: &mut Context, at: model::Mono) {
    state.image_garbage.next_run = Some(at);
    cx.timer(TimerKey::ImageGarbage, Some(at));
}

/// Nothing is known to be unused before the runtime was read.
fn begin(state: &mut NodeState, cx: &mut Context) -> bool {
    let can_begin = state.config.image_garbage.is_some()
        && state.runtime.ready
        && state.full_observation.last.is_some()
        && state.image_garbage.begin(cx.now.mono).is_some();
    if can_begin {
        cx.emit(Effect::ListImages);
    }
    can_begin
}

pub(super) fn listed(state: &mut NodeState, cx: &mut Context, listing: Result<ImageListing, CallFailure>) {
    let config = state.config.clone();
    let Some(garbage) = &config.image_garbage else { return };
    if listing.as_ref().is_err_and(|failure| failure.unreachable) {
        check_runtime(state, cx);
    }
    let in_use = references_in_use(state);
    let by_handler = config.feature(HANDLER_GATE);
    if state.image_garbage.listed(garbage, listing, in_use, (by_handler, cx.now.mono)) {
        go_on(state, cx);
    }
}

pub(super) fn removed(state: &mut NodeState, cx: &mut Context, image: &str, result: Result<(), CallFailure>) {
    let failure = result.as_ref().err().cloned();
    let Some(because) = state.image_garbage.removed(image, result) else { return };
    match failure {
        None => *state.counters.images_collected.entry(because.as_str().to_owned()).or_default() += 1,
        Some(failure) => {
            cx.log(LogLevel::Warn, None, format!("removing the image {image}: {}", failure.message));
            if failure.unreachable {
                check_runtime(state, cx);
            }
        }
    }
    let (images, outdated) = (&state.images, &mut state.image_garbage.outdated);
    for image in outdated.removal_ended(images.inspecting(), images.pulling()) {
        cx.emit(Effect::InspectImage { image });
    }
    go_on(state, cx);
}

fn go_on(state: &mut NodeState, cx: &mut Context) {
    let config = state.config.clone();
    let Some(garbage) = &config.image_garbage else { return };
    // Pods and pulls may have come since the last removal.
    let in_use = references_in_use(state);
    match state.image_garbage.next_step(garbage, &in_use, cx.now.mono) {
        Some(NextStep::Remove(image)) => cx.emit(Effect::RemoveImage { image }),
        Some(NextStep::Ended(end)) => run_ended(state, cx, &end),
        None => {}
    }
}

/// A run ended. After one that was requested by [`reclaim_all`] the space that it gave can be measured.
fn run_ended(state: &mut NodeState, cx: &mut Context, end: &RunEnd) {
    if end.removed > 0 {
        let (images, bytes) = (end.removed, end.freed_bytes);
        cx.log(LogLevel::Info, None, format!("removed {images} unused images of {bytes} bytes"));
        if state.config.pull_verification.is_some() {
            cx.emit(Effect::PrunePullRecords);
        }
    }
    report_failure(state, cx, end);
    let pull_ended = std::mem::take(&mut state.image_garbage.pull_ended);
    if state.image_garbage.reclaim_running() && begin(state, cx) {
        return;
    }
    state.image_garbage.give_up_reclaim();
    let now = cx.now.mono;
    // What removals gave is measured again; a run that only waits for images to become old enough goes on then.
    let soon = end.removed > 0 || pull_ended;
    let wait = if soon { SOON } else { PERIOD };
    let next = now.plus(wait);
    let at = end.old_enough_at.map_or(next, |at| at.max(now.plus(SOON)).min(next));
    // A reclaim does not put off the next run.
    let at = state.image_garbage.next_run.filter(|known| *known > now).map_or(at, |known| known.min(at));
    schedule(state, cx, at);
}

fn report_failure(state: &mut NodeState, cx: &mut Context, end: &RunEnd) {
    let now = cx.now.mono;
    if let Some((reason, message)) = &end.warning
        && state.image_garbage.may_warn(reason, now)
    {
        cx.emit(Effect::RecordNodeEvent { event: ApiEvent::warning(reason, message.clone()) });
    }
    let Some(message) = &end.failure else { return };
    cx.log(LogLevel::Warn, None, format!("removing unused images: {message}"));
    let again = end.purpose == RunPurpose::Periodic && state.image_garbage.keeps_failing(now);
    if again && state.image_garbage.may_warn("ImageGCFailed", now) {
        cx.emit(Effect::RecordNodeEvent { event: ApiEvent::warning("ImageGCFailed", message.clone()) });
    }
}

/// Images of all containers in any state, and those that a pod on its way has or names.
fn references_in_use(state: &NodeState) -> ImageReferences {
    let mut in_use = ImageReferences::default();
    for pod in state.unclaimed.values() {
        add_observed(&mut in_use, pod);
    }
    for entry in state.pods.values() {
        if let Some(reading) = &entry.observed {
            add_observed(&mut in_use, &reading.pod);
        }
        for image in entry.ledger.image_states.values() {
            if let ImageState::Ready(image) = image {
                in_use.add(&image.reference);
            }
        }
        let may_start = entry.lifecycle().may_start();
        // A container that was just started is in no observation yet.
        if may_start || entry.plan.is_some() || entry.fresh_observation().is_none() {
            in_use.extend(entry.ledger.resolved_images.values());
        }
        if may_start {
            add_named(&mut in_use, entry.view());
        }
        if let Some(view) = entry.standing().recreate_as() {
            add_named(&mut in_use, view);
        }
    }
    state.images.awaited_images().for_each(|image| in_use.add(image));
    in_use
}

fn add_observed(in_use: &mut ImageReferences, pod: &ObservedPod) {
    for container in &pod.containers {
        in_use.extend([&container.image, &container.image_ref, &container.image_id]);
        in_use.extend(container.image_mounts.values());
    }
}

fn add_named(in_use: &mut ImageReferences, view: &PodView) {
    let containers = view.all_containers().filter_map(|(_, container)| container.image.as_ref());
    let volumes = view.spec().volumes.iter().flatten();
    let volumes = volumes.filter_map(|volume| volume.image.as_ref()?.reference.as_ref());
    in_use.extend(containers.chain(volumes));
}
