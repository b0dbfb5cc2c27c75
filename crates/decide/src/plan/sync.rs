//! Keeping a pod running: its sandbox first, then its containers.
//!
//! ```text
//!   sandbox missing or broken:  stop what is left ──> prepare, create the sandbox   (images are fetched meanwhile)
//!   sandbox good:               kill what must not run ──> start what should ──> drop garbage
//! ```
//! Each arrow is a new plan on a new observation.

use std::time::Duration;

use model::k8s::Container;
use model::observed::{ContainerState, ObservedContainer, ObservedSandbox};
use model::pod::{ContainerKind, RestartPolicy};
use model::why::Cause;
use model::{ApiEvent, ContainerId, Reason};

use super::api_objects::Variables;
use super::container_kill::{ContainerKill, kill_action};
use super::crash_back_off::{note_crash_back_off, waits_for_crash_back_off};
use super::image::{self, ContainerImages};
use super::restart_all::RestartAll;
use super::{
    PlanInputs, PlanNote, PodPlan, api_objects, garbage, init, prerequisites, probe_kills, restart_all, stop,
    volumes,
};
use crate::action::{Action, Stage, StartContainer};
use crate::ledger::StartFailure;
use crate::lifecycle::MINIMUM_STOP_SECS;
use crate::pod_volumes::VolumePaths;
use crate::render::{self, ContainerInputs, ContainerRef, EnvSources, RenderError};
use crate::sandbox::{SandboxChange, sandbox_change};
use crate::{hooks, restart};

/// How long a failed start waits for a retry, unless it has its own back-off.
pub const RETRY: Duration = Duration::from_secs(10);

/// For so long the runtime may still start a container although nothing was heard of its start.
pub const UNHEARD_START: Duration = Duration::from_secs(10);

pub fn plan(inputs: &PlanInputs) -> PodPlan {
    if !inputs.runtime.ready {
        return PodPlan::wait(None, Cause::RuntimeNotReady { message: inputs.runtime.message.clone() });
    }
    if let Some(holder) = &inputs.name_holder {
        return PodPlan::wait(None, Cause::NameTaken { holder: holder.clone() });
    }
    let change = sandbox_change(inputs.entry.view(), inputs.observed);
    let reset = restart_all::plan(inputs);
    let later = if let RestartAll::Later(at) = reset { Some(at) } else { None };
    let mut plan = match (reset, inputs.observed.newest_sandbox()) {
        (RestartAll::Plan(plan), _) => plan,
        (_, Some(_)) if !change.needed && inputs.entry.ledger.cgroup_lost => replace_cgroup(inputs),
        (_, Some(sandbox)) if !change.needed => with_sandbox(inputs, sandbox),
        _ => without_sandbox(inputs, &change),
    };
    if let Some(at) = later {
        plan.wake(at);
    }
    // The time at which activeDeadlineSeconds is exceeded is known, so a timer is enough.
    if let Some(deadline) = crate::status::deadline(inputs.entry.view(), inputs.entry.status.as_deref()) {
        plan.wake(inputs.now.mono_at(deadline));
    }
    plan
}

/// Processes can't be put back under the limits of their pod: they start again in a new sandbox.
fn replace_cgroup(inputs: &PlanInputs) -> PodPlan {
    let mut plan = PodPlan::default();
    let text = "The cgroup of the pod was removed, the pod will be killed and re-created.";
    plan.announce("cgroup removed", ApiEvent::warning("PodCgroupRemoved", text));
    stop_pod(inputs, "somebody removed the pod's cgroup", plan)
}

/// Stops all containers and sandboxes. The next plan decides how to go on.
fn stop_pod(inputs: &PlanInputs, message: &str, mut plan: PodPlan) -> PodPlan {
    if stop::must_wait_to_stop(inputs, &mut plan) {
        return plan;
    }
    let grace = inputs.entry.view().spec_grace().max(MINIMUM_STOP_SECS);
    plan.because(None, Cause::Stopping { message: message.into(), grace_secs: grace }, None);
    stop::announce(inputs, &mut plan);
    plan.stages = stop::stop_everything(inputs, grace);
    plan
}

// ---- no usable sandbox ------------------------------------------------------------------------------------------

fn without_sandbox(inputs: &PlanInputs, change: &SandboxChange) -> PodPlan {
    let view = inputs.entry.view();
    let observed = inputs.observed;
    let wanted: Vec<&Container> = view.containers().iter().filter(|c| !ended_well(inputs, c)).collect();
    let ran_once = view.restart_policy() == RestartPolicy::Never
        && change.attempt != 0
        && !observed.containers.is_empty();
    let all_ended = wanted.is_empty() && view.containers().iter().any(|c| observed.newest(&c.name).is_some());
    let create = !ran_once && !all_ended;

    let mut plan = PodPlan::default();
    if stop::anything_to_stop(inputs) {
        if create && change.old.is_some() {
            let event =
                ApiEvent::normal("SandboxChanged", "Pod sandbox changed, it will be killed and re-created.");
            plan.announce(format!("sandbox changed {}", change.attempt), event);
        }
        return stop_pod(inputs, "the pod sandbox is gone or broken", plan);
    }
    if !create {
        plan.because(None, Cause::Releasing, None);
        return plan;
    }
    create_sandbox(inputs, change.attempt, &mut plan);
    if inputs.placement.is_err() {
        // Without a placement the runtime handler of the images is not known either.
        return plan;
    }
    let first = view.init_containers().first();
    match first {
        Some(container) => prefetch_image(inputs, ContainerKind::Init, container, &mut plan),
        None => wanted.into_iter().for_each(|c| prefetch_image(inputs, ContainerKind::Regular, c, &mut plan)),
    }
    image::fetch_volumes(inputs, &mut plan);
    plan
}

/// The container's policy is OnFailure and it has succeeded, so a new sandbox does not run it again.
fn ended_well(inputs: &PlanInputs, container: &Container) -> bool {
    let newest = inputs.observed.newest(&container.name);
    restart::effective_policy(inputs.entry.view(), container) == RestartPolicy::OnFailure
        && newest.is_some_and(|c| c.state == ContainerState::Exited && c.exit_code == 0)
}

fn create_sandbox(inputs: &PlanInputs, attempt: u32, plan: &mut PodPlan) {
    let entry = inputs.entry;
    if stop::waits_for_retry(inputs, plan) {
        return;
    }
    if !inputs.runtime.network_ready && !entry.view().host_network() {
        let message = format!("network is not ready: {}", inputs.runtime.network_message);
        plan.announce("network", ApiEvent::warning("NetworkNotReady", message.clone()));
        return plan.because(None, Cause::NetworkNotReady { message }, None);
    }
    let groups = volumes::groups(inputs);
    let rendered = inputs.placement.as_ref().map_err(ToString::to_string).and_then(|place| {
        let config = render::sandbox_config(&inputs.render_context(&groups), entry.view(), attempt);
        config.map(|config| (place, config)).map_err(|error| error.to_string())
    });
    let (place, config) = match rendered {
        Ok((place, rendered)) => {
            for event in rendered.warnings {
                plan.announce(format!("sandbox {}: {}", event.reason, event.message), event);
            }
            (place, rendered.value)
        }
        Err(message) => {
            let event = ApiEvent::warning(
                "FailedCreatePodSandBox",
                format!("Failed to create pod sandbox: {message}"),
            );
            plan.notes.push(PlanNote::PodFailure {
                step: "create pod sandbox",
                message: message.clone(),
                event,
            });
            return plan.because(
                None,
                Cause::StepFailed { step: "create pod sandbox".into(), message },
                None,
            );
        }
    };
    let Some(ground) = prerequisites::prepare(inputs, plan) else { return };
    if !ground.complete {
        return plan.stages.extend(ground.stages);
    }
    // A new sandbox runs the init containers again. Exited ones of the old sandbox would be taken for the new runs.
    let is_init = |c: &&ObservedContainer| entry.view().init_containers().iter().any(|i| i.name == c.name);
    let purge = inputs.observed.containers.iter().filter(is_init).map(garbage::remove).collect();
    plan.because(None, Cause::CreatingSandbox { attempt }, None);
    plan.stages.push(Stage::stop_on_failure(purge));
    plan.stages.extend(ground.stages);
    let user_ids = place.user_ids.iter().map(|ids| Action::StoreUserIds { ids: ids.clone() });
    plan.stages.push(Stage::stop_on_failure(user_ids.collect()));
    let handler = place.handler.clone();
    plan.stages.push(Stage::stop_on_failure(vec![Action::RunSandbox { config: Box::new(config), handler }]));
}

// ---- a good sandbox ---------------------------------------------------------------------------------------------

fn with_sandbox(inputs: &PlanInputs, sandbox: &ObservedSandbox) -> PodPlan {
    let mut plan = PodPlan::default();
    let init = init::decide(inputs);
    if init.failed {
        return stop_pod(inputs, "an init container failed for good", plan);
    }
    if !init.initialized && all_regular_containers_ended(inputs, sandbox) {
        return stop_pod(inputs, "all containers have ended", plan);
    }
    let mut kills = init.kills;
    let mut starts = ephemeral_containers(inputs);
    starts.extend(init.starts.iter().map(|c| (ContainerKind::Init, *c)));
    if !init.initialized {
        waiting_for_init(inputs, &mut plan);
    } else if !regular_containers(inputs, &mut plan, &mut kills, &mut starts) {
        // Sidecars serve the regular containers: they neither keep the pod alive nor are restarted without them.
        return stop_pod(inputs, "all containers have ended", plan);
    }
    if !kills.is_empty() {
        if !stop::must_wait_to_stop(inputs, &mut plan) {
            let kills = kills.into_iter().map(|kill| kill_action(inputs, kill, &mut plan)).collect();
            plan.stages = vec![Stage::stop_on_failure(kills)];
        }
        return plan;
    }
    let unstarted = remove_unstarted(inputs, &mut starts, &mut plan);
    plan.stages.push(Stage::continue_on_failure(unstarted));
    if !starts.is_empty() {
        image::fetch_volumes(inputs, &mut plan);
    }
    let ready: Vec<_> = starts
        .into_iter()
        .filter_map(|(kind, c)| may_start_now(inputs, kind, c, &mut plan).map(|images| (kind, c, images)))
        .collect();
    if ready.is_empty() {
        let garbage = garbage::garbage_stages(inputs, &mut plan);
        plan.stages.extend(garbage);
        let updates = volumes::content_updates(inputs, &mut plan);
        plan.stages.insert(0, Stage::continue_on_failure(updates));
        if plan.why.is_empty() {
            plan.because(None, Cause::Running, None);
        }
        return plan;
    }
    let ledger = &inputs.entry.ledger;
    if !ledger.prerequisites_ready || !crate::volumes::all_set_up(inputs.entry.view(), &ledger.volumes_set_up)
    {
        // After a restart of the agent the prerequisites of a running pod are checked only when a container has to
        // start.
        if stop::waits_for_retry(inputs, &mut plan) {
            return plan;
        }
        plan.because(None, Cause::PreparingDirectories, None);
        let ground = prerequisites::prepare(inputs, &mut plan);
        plan.stages.extend(ground.into_iter().flat_map(|ground| ground.stages));
        return plan;
    }
    let updates = volumes::content_updates(inputs, &mut plan);
    plan.stages.push(Stage::continue_on_failure(updates));
    for (kind, container, images) in ready {
        start(inputs, sandbox, kind, container, &images, &mut plan);
    }
    plan
}

/// A container left in state Created by an unfinished start is removed before a new one is created: the runtime may
/// still be about to start it, and then two would run. For the same reason it is not removed before an observation
/// shows it as created after [`UNHEARD_START`]: it might have run by then. It is left out of `starts` until it is
/// removed.
fn remove_unstarted(
    inputs: &PlanInputs,
    starts: &mut Vec<(ContainerKind, &Container)>,
    plan: &mut PodPlan,
) -> Vec<Action> {
    let unstarted =
        |c: &Container| inputs.observed.newest(&c.name).filter(|n| n.state == ContainerState::Created);
    let leftovers: Vec<_> = starts.iter().filter_map(|(_, c)| unstarted(c)).collect();
    starts.retain(|(_, c)| unstarted(c).is_none());
    if leftovers.is_empty() {
        return Vec::new();
    }
    if let Some(retry) = inputs.entry.ledger.pod_retry.as_ref().filter(|r| r.at > inputs.now.mono) {
        let cause = Cause::StepFailed { step: retry.step.into(), message: retry.message.clone() };
        plan.because(None, cause, Some(retry.at));
        return Vec::new();
    }
    for leftover in &leftovers {
        plan.because(Some(&leftover.name), Cause::Starting, None);
    }
    leftovers
        .into_iter()
        .filter(|leftover| !stop::may_still_start(inputs, &leftover.id))
        .map(garbage::remove)
        .collect()
}

/// Plans the regular containers. Returns whether any of them runs or is to run.
fn regular_containers<'a>(
    inputs: &'a PlanInputs,
    plan: &mut PodPlan,
    kills: &mut Vec<ContainerKill<'a>>,
    starts: &mut Vec<(ContainerKind, &'a Container)>,
) -> bool {
    let view = inputs.entry.view();
    let mut alive = false;
    for container in view.containers() {
        let newest = inputs.observed.newest(&container.name);
        let running = newest.filter(|c| c.state == ContainerState::Running);
        if let Some(running) = running {
            let hash =
                render::container_hash(&container.name, container.image.as_deref().unwrap_or_default());
            if running.hash.is_some_and(|old| old != hash) {
                let message = format!("Container {} definition changed, will be restarted", container.name);
                kills.push(ContainerKill::new(running, ContainerKind::Regular, message).and_restart());
            } else if let Some(kill) = probe_kills::kill(inputs, container, running) {
                kills.push(kill);
            } else if let Some(message) = inputs.entry.ledger.containers_to_stop.get(&running.id) {
                kills.push(ContainerKill::new(running, ContainerKind::Regular, message.clone()));
            }
            alive = true;
            continue;
        }
        let forced = inputs.entry.ledger.must_restart.contains_key(&container.name);
        if !forced && !restart::should_restart(view, container, newest) {
            let exit_code = newest.map_or(0, |c| c.exit_code);
            plan.because(Some(&container.name), Cause::Completed { exit_code }, None);
            continue;
        }
        alive = true;
        if let Some(unknown) = newest.filter(|c| c.state == ContainerState::Unknown) {
            let message = "Container is in \"unknown\" state, try killing it before restart".to_owned();
            kills.push(ContainerKill::new(unknown, ContainerKind::Regular, message));
        } else {
            starts.push((ContainerKind::Regular, container));
        }
    }
    alive
}

/// Every regular container ran in this sandbox and none is to run again. If a sidecar is in its back-off then, the pod
/// looks uninitialized, but there is nothing left to wait for.
fn all_regular_containers_ended(inputs: &PlanInputs, sandbox: &ObservedSandbox) -> bool {
    let view = inputs.entry.view();
    !view.containers().is_empty()
        && view.containers().iter().all(|container| {
            let here = inputs.observed.newest(&container.name).filter(|n| n.sandbox_id == sandbox.id);
            here.is_some_and(|newest| {
                newest.state == ContainerState::Exited
                    && !inputs.entry.ledger.must_restart.contains_key(&container.name)
                    && !restart::should_restart(view, container, Some(newest))
            })
        })
}

/// Ephemeral containers that were never started. They are not restarted, whatever their exit code and the pod's policy.
fn ephemeral_containers<'a>(inputs: &'a PlanInputs) -> Vec<(ContainerKind, &'a Container)> {
    let failed = &inputs.entry.ledger.failed_attempts;
    let wanted = |c: &&Container| match inputs.observed.newest(&c.name) {
        None => true,
        // Created by an unfinished start, unless the start is known to have failed.
        Some(newest) => newest.state == ContainerState::Created && !failed.contains_key(&c.name),
    };
    let list = inputs.entry.view().ephemeral_containers().iter().filter(wanted);
    list.map(|c| (ContainerKind::Ephemeral, c)).collect()
}

fn waiting_for_init(inputs: &PlanInputs, plan: &mut PodPlan) {
    let view = inputs.entry.view();
    let done = |c: &&Container| {
        let newest = inputs.observed.newest(&c.name);
        let ended = newest.is_some_and(|n| n.state == ContainerState::Exited && n.exit_code == 0);
        let up = newest.is_some_and(|n| {
            n.state == ContainerState::Running && inputs.entry.probes.has_started(&n.name, &n.id)
        }) && model::pod::is_sidecar(c);
        ended || up
    };
    if let Some(current) = view.init_containers().iter().find(|c| !done(c)) {
        for container in view.containers() {
            plan.because(Some(&container.name), Cause::WaitingForInit { init: current.name.clone() }, None);
        }
    }
}

// ---- one container ----------------------------------------------------------------------------------------------

/// The images of the container, or `None` with the reason noted.
fn may_start_now(
    inputs: &PlanInputs,
    kind: ContainerKind,
    container: &Container,
    plan: &mut PodPlan,
) -> Option<ContainerImages> {
    let ledger = &inputs.entry.ledger;
    if waits_for_crash_back_off(inputs, kind, container, plan) {
        return None;
    }
    if let (Some(at), Some(failure)) =
        (ledger.retry_at.get(&container.name), ledger.start_failures.get(&container.name))
        && *at > inputs.now.mono
        && !ledger.recheck_images.contains(&container.name)
        && !(failure.reason == Reason::RunContainerError && has_ended(inputs, &container.name))
    {
        let cause = match failure.reason {
            Reason::ErrImageNeverPull | Reason::InvalidImageName | Reason::ImageInspectError => {
                Cause::ImageUnavailable { reason: failure.reason, message: failure.message.clone() }
            }
            reason => Cause::StartFailed { reason, message: failure.message.clone() },
        };
        plan.because(Some(&container.name), cause, Some(*at));
        return None;
    }
    // Both are requested, so that they are fetched at the same time.
    let own = image::of_container(inputs, kind, container, plan);
    let volumes = image::of_volumes(inputs, kind, container, plan);
    Some(ContainerImages { own: own?, volumes: volumes? })
}

/// Whether the instance whose start failed is listed as exited. Then only the crash back-off applies to it. The exit of
/// an earlier instance does not count: its back-off may be over long ago, and failing starts would follow each other at
/// once.
fn has_ended(inputs: &PlanInputs, name: &str) -> bool {
    let failed = inputs.entry.ledger.failed_attempts.get(name);
    let newest = inputs.observed.newest(name).filter(|c| c.state == ContainerState::Exited);
    newest.zip(failed).is_some_and(|(newest, failed)| newest.restart_count >= *failed)
}

/// Requests the image of a container that will be started once the sandbox exists.
fn prefetch_image(inputs: &PlanInputs, kind: ContainerKind, container: &Container, plan: &mut PodPlan) {
    let _ = may_start_now(inputs, kind, container, plan);
}

fn start(
    inputs: &PlanInputs,
    sandbox: &ObservedSandbox,
    kind: ContainerKind,
    container: &Container,
    images: &ContainerImages,
    plan: &mut PodPlan,
) {
    let entry = inputs.entry;
    let view = entry.view();
    let name = &container.name;
    let Some(variables) = api_objects::variables(inputs, container, plan) else { return };
    let Some(variables) = api_objects::with_files(inputs, container, variables, plan) else { return };
    let Some(places) = volumes::volume_paths(inputs, plan) else { return };
    match rendered_start(inputs, sandbox, (kind, container), images, &variables, &places) {
        Ok(action) => {
            plan.notes.extend(note_crash_back_off(inputs, container));
            plan.because(Some(name), Cause::Starting, None);
            let actions = vec![Action::StartContainer(Box::new(action))];
            // If an init container fails, the next one must not start. Regular containers and sidecars are independent.
            let alone = kind != ContainerKind::Init || model::pod::is_sidecar(container);
            plan.stages.push(if alone {
                Stage::continue_on_failure(actions)
            } else {
                Stage::stop_on_failure(actions)
            });
        }
        Err(error) => {
            let message = error.to_string();
            // An error about an object is not retried: a change of the object wakes the pod.
            let retry_at = (!error.is_about_objects()).then(|| inputs.now.mono.plus(RETRY));
            let event = ApiEvent::warning("Failed", format!("Error: {message}")).for_container(kind, name);
            plan.announce(format!("config {name} {message}"), event);
            let reason = Reason::CreateContainerConfigError;
            let cause = Cause::StartFailed { reason, message: message.clone() };
            plan.because(Some(name), cause, retry_at);
            let failure = StartFailure { reason, message };
            plan.notes.push(PlanNote::Failure { container: name.clone(), failure, retry_at });
        }
    }
    debug_assert!(view.container(name).is_some());
}

fn rendered_start(
    inputs: &PlanInputs,
    sandbox: &ObservedSandbox,
    (kind, container): (ContainerKind, &Container),
    images: &ContainerImages,
    variables: &Variables,
    places: &VolumePaths,
) -> Result<StartContainer, RenderError> {
    let entry = inputs.entry;
    let view = entry.view();
    let place = inputs.placement.as_ref().map_err(Clone::clone)?;
    let context = inputs.render_context(&places.groups);
    let sandbox_config = render::sandbox_config(&context, view, sandbox.attempt)?.value;
    let ips = crate::status::pod_ips(&sandbox.ips, inputs.primary_family);
    let target = target_of(inputs, container)?;
    let made_with = ContainerInputs {
        image_volumes: Some(&images.volumes),
        volume_paths: Some(places),
        recursive_read_only: place.recursive_read_only,
        target,
        env: EnvSources {
            objects: variables.objects.as_ref(),
            services: variables.services,
            files: variables.files,
        },
        ..ContainerInputs::new(&ips, &images.own, restart_count(inputs, &container.name))
    };
    let rendered = render::container_config(&context, view, &ContainerRef::new(kind, container), &made_with)?;
    let log_dir = inputs.config.pod_log_dir(&view.full_name, &view.uid);
    Ok(StartContainer {
        kind,
        name: container.name.clone(),
        pod: view.full_name.clone(),
        sandbox_id: sandbox.id.clone(),
        sandbox_config,
        log_path: format!("{log_dir}/{}", rendered.config.log_path),
        config: rendered.config,
        files: rendered.files,
        post_start: hooks::post_start(view, container, &ips),
    })
}

/// The container whose processes an ephemeral container shares, if it names one.
fn target_of<'a>(
    inputs: &'a PlanInputs,
    container: &Container,
) -> Result<Option<&'a ContainerId>, RenderError> {
    let Some(target) = inputs.entry.view().target_of(&container.name) else { return Ok(None) };
    let found = inputs.observed.newest(target).map(|c| Some(&c.id));
    found.ok_or_else(|| RenderError::TargetMissing { target: target.to_owned() })
}

/// One more than the count of the newest instance and the newest log number on disk. The log counts because the newest
/// instance may be removed.
fn restart_count(inputs: &PlanInputs, name: &str) -> u32 {
    let newest = inputs.observed.newest(name).map(|c| c.restart_count);
    let log = inputs.entry.ledger.log_numbers.get(name).copied();
    newest.max(log).map_or(0, |n| n.saturating_add(1))
}
