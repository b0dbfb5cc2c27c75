//! Carries out one plan of one pod: awaits the actions that [`PlanCursor`] starts, tells it how they ended, and sends
//! every outcome when it arrives. The cursor decides the order, and what a failure or a cancellation ends.
//!
//! A cancellation also ends a wait for a container's exit early. A panic in an action is its failure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use decide::action::{CallFailure, StartFailurePoint};
use decide::csi::{VolumeRequest, VolumeRequestFrom, VolumeRequestId};
use decide::event::Event;
use decide::lifecycle::MINIMUM_STOP_SECS;
use decide::{Action, ActionIndex, ActionResult, Epoch, PlanCursor, Stage, StartContainer};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use model::csi::Expansion;
use model::files::{EnvFile, EnvFileRead};
use model::hook::HookCall;
use model::volume::{VolumeKind, VolumeSetup};
use model::{ContainerId, Mono, PodUid};
use ports::{CgroupError, Disposition, FilesError, RuntimeError, Span};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::context::EngineContext;
use crate::hooks;
use crate::tear_down;

pub(crate) struct PlanJob {
    pub uid: PodUid,
    pub epoch: Epoch,
    pub stages: Arc<Vec<Stage>>,
    pub cancel: CancellationToken,
}

/// One action of a plan.
#[derive(Clone, Copy)]
struct PlannedAction<'a> {
    job: &'a PlanJob,
    at: ActionIndex,
}

impl<'a> PlannedAction<'a> {
    fn action(&self) -> Option<&'a Action> {
        self.job.stages.get(self.at.stage)?.actions.get(self.at.action)
    }

    fn request(&self) -> VolumeRequestId {
        let PlannedAction { job, at: ActionIndex { stage, action } } = *self;
        let from = VolumeRequestFrom::Plan { epoch: job.epoch, stage, action };
        VolumeRequestId { uid: job.uid.clone(), from }
    }
}

/// `span`: the plan's span, if tracing is on.
pub(crate) fn spawn_plan(ctx: EngineContext, job: PlanJob, span: Option<Span>) {
    tokio::spawn(async move {
        let work = run_plan(&ctx, &job);
        match span {
            Some(span) => ctx.ports.tracing.in_span(|| span, work, |()| None).await,
            None => work.await,
        }
        ctx.outbox.send(Event::PlanEnded { uid: job.uid, epoch: job.epoch });
    });
}

async fn run_plan(ctx: &EngineContext, job: &PlanJob) {
    let report = |at: ActionIndex, result| {
        let (uid, epoch) = (job.uid.clone(), job.epoch);
        let ActionIndex { stage, action } = at;
        ctx.outbox.send(Event::ActionDone { uid, epoch, stage, action, result });
    };
    let mut running = FuturesUnordered::new();
    let mut cursor = PlanCursor::new(job.stages.clone());
    let mut progress = cursor.begin();
    loop {
        progress.skipped.into_iter().for_each(|at| report(at, ActionResult::Skipped));
        running.extend(progress.start.into_iter().map(|at| run_action(ctx, PlannedAction { job, at })));
        if progress.ended {
            return;
        }
        progress = tokio::select! {
            biased;
            () = job.cancel.cancelled(), if !cursor.is_cancelled() => cursor.cancel(),
            Some((at, result)) = running.next() => {
                let follows = cursor.action_ended(at, &result);
                report(at, result);
                follows
            }
            () = reached(&ctx.clock, cursor.wake_at()) => cursor.time_reached(ctx.clock.mono()),
        };
    }
}

/// Never returns without a time.
async fn reached(clock: &Clock, at: Option<Mono>) {
    match at {
        Some(at) => tokio::time::sleep_until(clock.instant(at)).await,
        None => std::future::pending().await,
    }
}

/// Carries out one action. If it panics, that is its failure.
async fn run_action(ctx: &EngineContext, planned: PlannedAction<'_>) -> (ActionIndex, ActionResult) {
    let PlannedAction { job, at } = planned;
    let Some(action) = planned.action() else { return (at, ActionResult::Skipped) };
    // The cancellation may come between the decision to start the action and the first poll of this future.
    let result = if job.cancel.is_cancelled() {
        ActionResult::Skipped
    } else {
        let work = std::panic::AssertUnwindSafe(perform(ctx, planned, action)).catch_unwind();
        work.await.unwrap_or_else(|_| {
            let message = format!("internal error: {} panicked", action.name());
            ActionResult::Failed(CallFailure { unreachable: false, message })
        })
    };
    tracing::debug!(pod_uid = %job.uid, action = action.name(), ?result, "action ended");
    (at, result)
}

async fn perform(ctx: &EngineContext, at: PlannedAction<'_>, action: &Action) -> ActionResult {
    let (ports, job) = (&ctx.ports, at.job);
    let uid = &job.uid;
    match action {
        Action::MakePodDirs { log_dir, containers } => make_dirs(ctx, uid, log_dir, containers).await,
        Action::EnsureCgroup { spec } => cgroup_result(ports.cgroups.ensure(spec).await),
        Action::SetUpVolume { volume } => set_up_volume(ctx, at, volume).await,
        Action::ExpandVolume { volume, expansion } => expand_volume(ctx, at, volume, expansion).await,
        Action::ReadEnvFiles { files, .. } => read_env_files(ctx, uid, files).await,
        Action::StoreUserIds { ids } => files_result(ports.files.write_user_ids(uid, ids).await),
        Action::RunSandbox { config, handler } => {
            match ports.runtime.run_pod_sandbox(config, handler).await {
                Ok(id) => ActionResult::SandboxRunning { id },
                Err(error) => ActionResult::Failed(call_failure(&error)),
            }
        }
        Action::StartContainer(start) => start_container(ctx, job, start).await,
        Action::StopContainer { id, deadline, pre_stop, .. } => {
            let work = stop_container(ctx, uid, id, *deadline, pre_stop.as_ref());
            job.cancel.run_until_cancelled(work).await.unwrap_or(ActionResult::Interrupted)
        }
        Action::PreStop { id, deadline, hook, .. } => {
            let work = pre_stop(ctx, uid, id, *deadline, hook);
            match job.cancel.run_until_cancelled(work).await {
                Some(Ok(())) => ActionResult::Ok,
                Some(Err(message)) => ActionResult::HookFailed { message },
                None => ActionResult::Interrupted,
            }
        }
        Action::StopSandbox { id } => absent_is_ok(ports.runtime.stop_pod_sandbox(id).await),
        Action::RemoveContainer { id, log, .. } => {
            let result = absent_is_ok(ports.runtime.remove_container(id).await);
            match log {
                Some(log) if result.succeeded() => files_result(ports.files.remove_container_logs(log).await),
                _ => result,
            }
        }
        Action::RemoveSandbox { id } => absent_is_ok(ports.runtime.remove_pod_sandbox(id).await),
        Action::TearDownVolumes => {
            let own = ports.files.tear_down_volumes(uid);
            match tear_down::tear_down_pod_volumes(own, ctx.csi.as_ref(), at.request()).await {
                Ok(()) => ActionResult::Ok,
                Err(message) => ActionResult::Failed(CallFailure { unreachable: false, message }),
            }
        }
        Action::DestroyCgroup { name } => cgroup_result(ports.cgroups.destroy(name).await),
        Action::RemovePodDir => files_result(ports.files.remove_pod_dir(uid).await),
        Action::RemoveLogDir { name } => files_result(ports.files.remove_log_dir(name).await),
    }
}

/// Requests an operation on a CSI volume. It is interrupted when the plan is cancelled.
async fn ask_for_volume(
    ctx: &EngineContext,
    at: PlannedAction<'_>,
    driver: &str,
    what: VolumeRequest,
) -> ActionResult {
    match &ctx.csi {
        Some(csi) => csi.perform(at.request(), what).await,
        None => {
            let message = format!("CSI is not available on this node, so driver {driver} can't be used");
            ActionResult::Failed(CallFailure { unreachable: false, message })
        }
    }
}

async fn expand_volume(
    ctx: &EngineContext,
    at: PlannedAction<'_>,
    volume: &VolumeSetup,
    expansion: &Expansion,
) -> ActionResult {
    let (Some(_), VolumeKind::Csi(csi)) = (&ctx.ports.cluster, &volume.kind) else {
        let message = format!("volume {} can't be expanded: it is not a CSI volume", volume.name);
        return ActionResult::Failed(CallFailure { unreachable: false, message });
    };
    let what = VolumeRequest::Expand { volume: csi.clone(), expansion: Box::new(expansion.clone()) };
    ask_for_volume(ctx, at, &csi.id.driver, what).await
}

async fn set_up_volume(ctx: &EngineContext, at: PlannedAction<'_>, volume: &VolumeSetup) -> ActionResult {
    let (ports, job, begun) = (&ctx.ports, at.job, Instant::now());
    let result = match &volume.kind {
        VolumeKind::Csi(csi) => {
            let what = VolumeRequest::SetUp { volume: csi.clone() };
            ask_for_volume(ctx, at, &csi.id.driver, what).await
        }
        _ => {
            // Mounting may hang, so cancelling the plan stops waiting for it. `PodFiles` keeps the volume locked until
            // the mount call ends, so a tear-down can't run at the same time.
            let work = ports.files.set_up_volume(&job.uid, volume);
            job.cancel.run_until_cancelled(work).await.map_or(ActionResult::Interrupted, volume_result)
        }
    };
    if !matches!(result, ActionResult::Interrupted) {
        ports.meter.volume_set_up(&volume.plugin(), result.succeeded(), begun.elapsed());
    }
    result
}

async fn stop_container(
    ctx: &EngineContext,
    uid: &PodUid,
    id: &ContainerId,
    deadline: Mono,
    hook: Option<&HookCall>,
) -> ActionResult {
    let hooked = match hook {
        Some(hook) => pre_stop(ctx, uid, id, deadline, hook).await,
        None => Ok(()),
    };
    // Round up, in the container's favour: CRI takes whole seconds.
    let left = deadline.since(ctx.clock.mono()).as_secs_f64().ceil() as u64;
    let grace = Duration::from_secs(left.max(MINIMUM_STOP_SECS as u64));
    match (absent_is_ok(ctx.ports.runtime.stop_container(id, grace).await), hooked) {
        (ActionResult::Ok, Err(message)) => ActionResult::HookFailed { message },
        (result, _) => result,
    }
}

/// Runs the preStop hook, at most until the grace period ends.
async fn pre_stop(
    ctx: &EngineContext,
    uid: &PodUid,
    id: &ContainerId,
    deadline: Mono,
    hook: &HookCall,
) -> Result<(), String> {
    let mut running = tokio::spawn(hooks::run(ctx.clone(), uid.clone(), id.clone(), hook.clone()));
    match tokio::time::timeout_at(ctx.clock.instant(deadline), &mut running).await {
        Ok(Ok(result)) => result,
        Ok(Err(error)) => Err(format!("{} failed - error: {error}", hook.describe)),
        Err(_) => {
            if decide::hooks::ends_with_grace(hook) {
                running.abort();
                return Ok(());
            }
            Err(format!("{} did not end within the grace period", hook.describe))
        }
    }
}

/// A file that can't be read is returned as an error per file; the plan decides by `optional` whether the container
/// needs it.
async fn read_env_files(ctx: &EngineContext, uid: &PodUid, files: &[EnvFile]) -> ActionResult {
    let mut read = Vec::new();
    for file in files {
        let text = ctx.ports.files.read_env_file(uid, file).await.map_err(|error| error.user_message());
        read.push(EnvFileRead { file: file.clone(), text });
    }
    ActionResult::EnvFiles(read)
}

async fn make_dirs(ctx: &EngineContext, uid: &PodUid, log_dir: &str, containers: &[String]) -> ActionResult {
    let files = &ctx.ports.files;
    if let Err(error) = files.make_pod_dirs(uid, log_dir).await {
        return files_result(Err(error));
    }
    let mut log_numbers = BTreeMap::new();
    for container in containers {
        match files.highest_log_number(&format!("{log_dir}/{container}")).await {
            Ok(Some(number)) => {
                log_numbers.insert(container.clone(), number);
            }
            Ok(None) => {}
            Err(error) => return files_result(Err(error)),
        }
    }
    ActionResult::Dirs { log_numbers }
}

async fn start_container(ctx: &EngineContext, job: &PlanJob, start: &StartContainer) -> ActionResult {
    let ports = &ctx.ports;
    if let Err(error) = ports.files.prepare_container(&job.uid, &start.files).await {
        let failure = CallFailure { unreachable: false, message: error.user_message() };
        return ActionResult::StartFailed { at: StartFailurePoint::Files, id: None, failure };
    }
    if job.cancel.is_cancelled() {
        return ActionResult::Interrupted;
    }
    let created =
        ports.runtime.create_container(&start.sandbox_id, &start.config, &start.sandbox_config).await;
    let id = match created {
        Ok(id) => id,
        Err(error) => {
            let failure = call_failure(&error);
            return ActionResult::StartFailed { at: StartFailurePoint::Create, id: None, failure };
        }
    };
    if job.cancel.is_cancelled() {
        return ActionResult::Interrupted;
    }
    if let Err(error) = ports.runtime.start_container(&id).await {
        return ActionResult::StartFailed {
            at: StartFailurePoint::Start,
            id: Some(id),
            failure: call_failure(&error),
        };
    }
    // Without the link a log collector does not find the log, but the container runs: the start did not fail.
    if let Err(error) = ports.files.link_log(&start.pod, &start.name, id.as_str(), &start.log_path).await {
        tracing::warn!(pod = %start.pod, container = start.name, "linking the log: {}", error.user_message());
    }
    tracing::info!(pod = %start.pod, container = start.name, container_id = %id, attempt = start.config.metadata.attempt, "container started");
    let Some(hook) = &start.post_start else { return ActionResult::ContainerStarted { id } };
    let work = hooks::run(ctx.clone(), job.uid.clone(), id.clone(), hook.clone());
    match job.cancel.run_until_cancelled(work).await {
        Some(Ok(())) => ActionResult::ContainerStarted { id },
        Some(Err(message)) => {
            let failure = CallFailure { unreachable: false, message };
            ActionResult::StartFailed { at: StartFailurePoint::PostStart, id: Some(id), failure }
        }
        None => ActionResult::Interrupted,
    }
}

pub(crate) fn call_failure(error: &RuntimeError) -> CallFailure {
    CallFailure { unreachable: error.disposition() == Disposition::Retry, message: error.user_message() }
}

fn absent_is_ok(result: Result<(), RuntimeError>) -> ActionResult {
    match result {
        Ok(()) => ActionResult::Ok,
        Err(error) if error.disposition() == Disposition::Absent => ActionResult::Ok,
        Err(error) => ActionResult::Failed(call_failure(&error)),
    }
}

fn files_result(result: Result<(), FilesError>) -> ActionResult {
    match result {
        Ok(()) => ActionResult::Ok,
        Err(error) => ActionResult::Failed(CallFailure { unreachable: false, message: error.user_message() }),
    }
}

fn volume_result(result: Result<(), FilesError>) -> ActionResult {
    match result {
        Ok(()) => ActionResult::Ok,
        Err(error) => {
            let failure = CallFailure { unreachable: false, message: error.user_message() };
            ActionResult::VolumeFailed { stage: error.stage(), failure }
        }
    }
}

fn cgroup_result(result: Result<(), CgroupError>) -> ActionResult {
    match result {
        Ok(()) => ActionResult::Ok,
        Err(error) => {
            let cause = std::error::Error::source(&error).map(|c| format!(": {c}")).unwrap_or_default();
            ActionResult::Failed(CallFailure { unreachable: false, message: format!("{error}{cause}") })
        }
    }
}
