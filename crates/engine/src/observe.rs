//! Reading the runtime: lists first, and a status only for what the lists show to have changed.
//!
//! The time of an observation is taken before its first call. Both lists must succeed for a complete reading: if one
//! fails, the reading fails. A container or sandbox that is removed between list and status is left out. If the runtime
//! refuses a status, answers too late or describes another object, this is noted in the pod (`missing_status`), and the
//! pod is described by its list entry. All other pods are read as usual.

use model::GrpcCode;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use decide::event::{Event, RuntimeCheck};
use decide::state::PreviousObservation;
use decide::termination_message::{self, EndedContainer};
use futures::future::join_all;
use model::cgroup::CgroupDriver;
use model::cri::{Mount, NamespaceMode, RuntimeStatus, RuntimeVersion};
use model::observed::{
    ContainerState, EXIT_CODE_UNKNOWN, Observation, ObservedContainer, ObservedPod, ObservedSandbox, Scope,
};
use model::pod::{
    ANNOTATION_CONTAINER_HASH, ANNOTATION_POD_DELETION_GRACE, ANNOTATION_POD_GRACE, ANNOTATION_PRE_STOP,
    ANNOTATION_RESTART_COUNT, ANNOTATION_TERMINATION_PATH, ANNOTATION_TERMINATION_POLICY,
    LABEL_CONTAINER_NAME, LABEL_POD_NAME, LABEL_POD_NAMESPACE, LABEL_POD_UID,
};
use model::{FullName, PodUid, Wall};
use ports::{
    ContainerFilter, ContainerInfo, ContainerStatus, Disposition, RuntimeError, SandboxFilter, SandboxInfo,
    SandboxStatus,
};
use tokio::time::timeout;

use crate::context::EngineContext;

type PreviousObservations = BTreeMap<PodUid, PreviousObservation>;

/// How long a complete reading waits for one status. It is short because every other pod waits too.
const STATUS_TIMEOUT_FULL_READING: Duration = Duration::from_secs(5);
/// How long the reading of a single pod waits for one status.
const STATUS_TIMEOUT_POD_READING: Duration = Duration::from_secs(20);

pub(crate) async fn check_runtime(ctx: EngineContext, ask_cgroup_driver: bool) {
    let answer = async {
        let runtime = &ctx.ports.runtime;
        let version = runtime.version().await?;
        let status = runtime.status().await?;
        update_runtime_view(&ctx, &version, &status);
        let cgroup_driver = if ask_cgroup_driver { cgroup_driver(&ctx).await? } else { None };
        Ok::<_, RuntimeError>(RuntimeCheck::Answered {
            runtime_name: version.runtime_name,
            status,
            cgroup_driver,
        })
    };
    let check = answer.await.unwrap_or_else(|e| {
        ctx.runtime_view.send_modify(|view| view.last_check_failed = true);
        RuntimeCheck::Failed { message: e.user_message() }
    });
    ctx.outbox.send(Event::RuntimeChecked(check));
}

fn update_runtime_view(ctx: &EngineContext, version: &RuntimeVersion, status: &RuntimeStatus) {
    let at = ctx.clock.mono();
    ctx.runtime_view.send_modify(|view| {
        view.name.clone_from(&version.runtime_name);
        view.version.clone_from(&version.runtime_version);
        view.status = Some(status.clone());
        view.answered_at = Some(at);
        view.last_check_failed = false;
    });
}

/// `None` if this runtime does not report its driver: then the configured driver is used.
async fn cgroup_driver(ctx: &EngineContext) -> Result<Option<CgroupDriver>, RuntimeError> {
    match ctx.ports.runtime.cgroup_driver().await {
        Ok(driver) => {
            ctx.ports.cgroups.use_driver(driver);
            Ok(Some(driver))
        }
        Err(error) if error.disposition() == Disposition::Unsupported => Ok(None),
        Err(error) => Err(error),
    }
}

pub(crate) async fn observe(ctx: EngineContext, scope: Scope, known: PreviousObservations) {
    let at = ctx.clock.mono();
    let event = match read_runtime(&ctx, &scope, &known).await {
        Ok(pods) => {
            let took = ctx.clock.mono().since(at);
            if scope == Scope::All {
                ctx.ports.meter.relist(took);
                ctx.runtime_view.send_modify(|view| view.relisted_at = Some(at));
            } else {
                ctx.ports.meter.pod_relist(took);
            }
            Event::Observed(Observation { at, scope, pods })
        }
        Err(error) => Event::ObserveFailed { scope, message: error.to_string() },
    };
    ctx.outbox.send(event);
}

/// The list entries of one pod.
#[derive(Default)]
struct Listed {
    name: Option<FullName>,
    sandboxes: Vec<SandboxInfo>,
    containers: Vec<ContainerInfo>,
}

async fn read_runtime(
    ctx: &EngineContext,
    scope: &Scope,
    known: &PreviousObservations,
) -> Result<Vec<Arc<ObservedPod>>, RuntimeError> {
    let pod_uid = match scope {
        Scope::All => None,
        Scope::Pod(uid) => Some(uid.clone()),
    };
    let sandbox_filter = SandboxFilter { pod_uid: pod_uid.clone(), id: None };
    let container_filter = ContainerFilter { pod_uid, id: None };
    let (sandboxes, containers) = tokio::try_join!(
        ctx.ports.runtime.list_pod_sandboxes(&sandbox_filter),
        ctx.ports.runtime.list_containers(&container_filter),
    )?;
    let mut pods: BTreeMap<PodUid, Listed> = BTreeMap::new();
    for sandbox in sandboxes.into_iter().filter(|s| !s.uid.as_str().is_empty()) {
        let listed = pods.entry(sandbox.uid.clone()).or_default();
        listed.name = Some(FullName::new(&sandbox.name, &sandbox.namespace));
        listed.sandboxes.push(sandbox);
    }
    for container in containers {
        let label = |key: &str| container.labels.get(key).map(String::as_str).unwrap_or_default();
        let uid = label(LABEL_POD_UID);
        if uid.is_empty() {
            continue;
        }
        let name = FullName::new(label(LABEL_POD_NAME), label(LABEL_POD_NAMESPACE));
        let listed = pods.entry(uid.into()).or_default();
        listed.name.get_or_insert(name);
        listed.containers.push(container);
    }
    let deadline = match scope {
        Scope::All => STATUS_TIMEOUT_FULL_READING,
        Scope::Pod(_) => STATUS_TIMEOUT_POD_READING,
    };
    let asker = StatusReader { ctx, deadline };
    let readings = pods.into_iter().map(|(uid, listed)| {
        let known = known.get(&uid);
        asker.pod(uid, listed, known)
    });
    let readings = join_all(readings).await;
    if readings.iter().any(|(_, unreachable)| *unreachable) {
        // If even Version fails, the runtime as a whole is unreachable, not only this sandbox.
        ctx.ports.runtime.version().await?;
    }
    Ok(readings.into_iter().map(|(pod, _)| pod).collect())
}

/// The result of a status call for one sandbox or container.
enum StatusOutcome<T> {
    /// It was removed after the list was made.
    Gone,
    Read(T),
    /// The list entry, and why there is no status.
    Listed(T, RuntimeError),
}

/// Makes the status calls.
struct StatusReader<'a> {
    ctx: &'a EngineContext,
    deadline: Duration,
}

impl StatusReader<'_> {
    /// Returns the pod, and whether the runtime said that a part of it can't be reached.
    async fn pod(
        &self,
        uid: PodUid,
        listed: Listed,
        known: Option<&PreviousObservation>,
    ) -> (Arc<ObservedPod>, bool) {
        let full_name = listed.name.unwrap_or_else(|| FullName::new("", ""));
        let sandboxes = listed.sandboxes.into_iter().map(|info| self.sandbox(info, known));
        let containers = listed.containers.into_iter().map(|info| self.container(info, known));
        let (sandboxes, containers) = tokio::join!(join_all(sandboxes), join_all(containers));
        let mut pod = ObservedPod::empty(uid, full_name);
        let mut unreachable = false;
        let mut note = |id: String, error: RuntimeError| {
            unreachable |= matches!(error, RuntimeError::Unavailable { .. });
            pod.missing_status.insert(id, error.user_message());
        };
        for part in sandboxes {
            let sandbox = match part {
                StatusOutcome::Gone => continue,
                StatusOutcome::Read(sandbox) => sandbox,
                StatusOutcome::Listed(sandbox, error) => {
                    note(sandbox.id.to_string(), error);
                    sandbox
                }
            };
            pod.sandboxes.push(sandbox);
        }
        for part in containers {
            let container = match part {
                StatusOutcome::Gone => continue,
                StatusOutcome::Read(container) => container,
                StatusOutcome::Listed(container, error) => {
                    note(container.id.to_string(), error);
                    container
                }
            };
            pod.containers.push(container);
        }
        pod.sort();
        let pod = match known {
            Some(PreviousObservation { pod: same, .. }) if **same == pod => same.clone(),
            _ => Arc::new(pod),
        };
        (pod, unreachable)
    }

    /// `Ok(None)`: it was removed.
    async fn status<T>(
        &self,
        call: &'static str,
        answer: impl Future<Output = Result<T, RuntimeError>>,
    ) -> Result<Option<T>, RuntimeError> {
        let late = || RuntimeError::TimedOut { call, after: self.deadline };
        match timeout(self.deadline, answer).await.map_err(|_| late())? {
            Ok(status) => Ok(Some(status)),
            Err(error) if error.disposition() == Disposition::Absent => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn sandbox(
        &self,
        info: SandboxInfo,
        known: Option<&PreviousObservation>,
    ) -> StatusOutcome<ObservedSandbox> {
        let old = known.and_then(|known| known.pod.sandboxes.iter().find(|s| s.id == info.id));
        let same = old.filter(|s| s.ready == info.ready);
        if let Some((old, answer)) = same.zip(earlier_status_error(known, info.id.as_str())) {
            return StatusOutcome::Listed(old.clone(), answer);
        }
        let read = same.filter(|s| !is_missing(known, s.id.as_str()));
        // A ready sandbox without an address may still get one, so its status is read again.
        if let Some(old) = read.filter(|s| !s.ready || !s.ips.is_empty()) {
            return StatusOutcome::Read(old.clone());
        }
        let answer = self.status("PodSandboxStatus", self.ctx.ports.runtime.pod_sandbox_status(&info.id));
        let answer = answer.await.and_then(|status| match status {
            Some(status) if status.info.id != info.id => {
                Err(wrong_id_error("PodSandboxStatus", status.info.id.as_str()))
            }
            status => Ok(status),
        });
        match answer {
            Ok(None) => StatusOutcome::Gone,
            Ok(Some(status)) => StatusOutcome::Read(read_sandbox(info, status)),
            // A host-network sandbox has no IP of its own, so the earlier status is still complete.
            Err(_) if read.is_some_and(|s| s.network == NamespaceMode::Node) => {
                read.map_or(StatusOutcome::Gone, |old| StatusOutcome::Read(old.clone()))
            }
            Err(error) => StatusOutcome::Listed(listed_sandbox(info, old), error),
        }
    }

    async fn container(
        &self,
        info: ContainerInfo,
        known: Option<&PreviousObservation>,
    ) -> StatusOutcome<ObservedContainer> {
        let old = known.and_then(|known| known.pod.containers.iter().find(|c| c.id == info.id));
        let same = old.filter(|c| c.state == info.state);
        if let Some((old, answer)) = same.zip(earlier_status_error(known, info.id.as_str())) {
            return StatusOutcome::Listed(old.clone(), answer);
        }
        let settled = matches!(info.state, ContainerState::Running | ContainerState::Exited);
        if let Some(old) = same.filter(|c| settled && !is_missing(known, c.id.as_str())) {
            return StatusOutcome::Read(old.clone());
        }
        let answer = self.status("ContainerStatus", self.ctx.ports.runtime.container_status(&info.id));
        let answer = answer.await.and_then(|status| match status {
            Some(status) if status.id != info.id => {
                Err(wrong_id_error("ContainerStatus", status.id.as_str()))
            }
            status => Ok(status),
        });
        match answer {
            Ok(None) => StatusOutcome::Gone,
            Ok(Some(status)) => {
                let message = termination_message(self.ctx, &info, &status).await;
                StatusOutcome::Read(observed_container(info, status, message))
            }
            Err(error) => StatusOutcome::Listed(listed_container(info, old), error),
        }
    }
}

fn is_missing(known: Option<&PreviousObservation>, id: &str) -> bool {
    known.is_some_and(|known| known.pod.missing_status.contains_key(id))
}

/// The runtime's earlier error, if it is too early to ask again.
fn earlier_status_error(known: Option<&PreviousObservation>, id: &str) -> Option<RuntimeError> {
    let answer = known.filter(|known| !known.retry_missing_status)?.pod.missing_status.get(id)?;
    Some(RuntimeError::Failed { call: "status", code: GrpcCode::Unknown, message: answer.clone() })
}

fn wrong_id_error(call: &'static str, id: &str) -> RuntimeError {
    let message = format!("the runtime answered with the status of {id:?}");
    RuntimeError::Failed { call, code: GrpcCode::Unknown, message }
}

fn read_sandbox(info: SandboxInfo, status: SandboxStatus) -> ObservedSandbox {
    let ready = status.info.ready;
    ObservedSandbox {
        id: info.id,
        attempt: info.attempt,
        created_at: Wall(info.created_at),
        ready,
        network: status.namespaces.network,
        has_network_status: status.has_network,
        ips: if ready { status.ips } else { Vec::new() },
        runtime_handler: info.runtime_handler,
    }
}

/// Describes a sandbox by its list entry and its last status.
fn listed_sandbox(info: SandboxInfo, old: Option<&ObservedSandbox>) -> ObservedSandbox {
    ObservedSandbox {
        id: info.id,
        attempt: info.attempt,
        created_at: Wall(info.created_at),
        ready: info.ready,
        network: old.map(|old| old.network).unwrap_or_default(),
        has_network_status: false,
        ips: old.filter(|_| info.ready).map(|old| old.ips.clone()).unwrap_or_default(),
        runtime_handler: info.runtime_handler,
    }
}

/// Describes a container by its list entry and its last status.
fn listed_container(info: ContainerInfo, old: Option<&ObservedContainer>) -> ObservedContainer {
    let (state, ended) = (info.state, info.state == ContainerState::Exited);
    let status = ContainerStatus {
        id: info.id.clone(),
        name: info.name.clone(),
        attempt: info.attempt,
        state,
        created_at: info.created_at,
        // The list has no start time; the container can't have started before it was created.
        started_at: info.created_at,
        finished_at: 0,
        exit_code: EXIT_CODE_UNKNOWN,
        image: info.image.clone(),
        image_ref: info.image_ref.clone(),
        image_id: info.image_id.clone(),
        reason: String::new(),
        message: String::new(),
        labels: info.labels.clone(),
        annotations: info.annotations.clone(),
        mounts: Vec::new(),
        log_path: String::new(),
        resources: None,
        user: None,
        stop_signal: 0,
    };
    let listed = observed_container(info, status, String::new());
    match old {
        Some(old) => ObservedContainer {
            state,
            exit_code: listed.exit_code,
            finished_at: listed.finished_at,
            reason: listed.reason,
            started_at: if ended && old.state == ContainerState::Created {
                listed.started_at
            } else {
                old.started_at
            },
            ..old.clone()
        },
        None => listed,
    }
}

async fn termination_message(ctx: &EngineContext, info: &ContainerInfo, status: &ContainerStatus) -> String {
    if status.state != ContainerState::Exited {
        return String::new();
    }
    let label = |key: &str| info.labels.get(key).map(String::as_str);
    let annotation = |key: &str| status.annotations.get(key).map(String::as_str);
    let request = termination_message::request(&EndedContainer {
        pod: &label(LABEL_POD_UID).unwrap_or_default().into(),
        container: label(LABEL_CONTAINER_NAME).unwrap_or(&info.name),
        path: annotation(ANNOTATION_TERMINATION_PATH),
        policy: annotation(ANNOTATION_TERMINATION_POLICY),
        mounts: &status.mounts,
        exit_code: status.exit_code,
        reason: &status.reason,
        log_path: &status.log_path,
    });
    let message = ctx.ports.files.termination_message(&request).await;
    termination_message::joined(&status.message, &message)
}

fn observed_container(info: ContainerInfo, status: ContainerStatus, message: String) -> ObservedContainer {
    let annotation = |key: &str| status.annotations.get(key);
    let number = |key: &str| annotation(key).and_then(|text| text.parse::<i64>().ok());
    let ended = status.state == ContainerState::Exited;
    let name = info.labels.get(LABEL_CONTAINER_NAME).cloned().unwrap_or(info.name);
    ObservedContainer {
        stop_signal: status.stop_signal,
        image_mounts: image_mounts(status.mounts),
        id: info.id,
        sandbox_id: info.sandbox_id,
        name,
        state: status.state,
        restart_count: number(ANNOTATION_RESTART_COUNT)
            .and_then(|n| u32::try_from(n).ok())
            .unwrap_or(status.attempt),
        hash: annotation(ANNOTATION_CONTAINER_HASH).and_then(|text| u32::from_str_radix(text, 16).ok()),
        created_at: Wall(status.created_at),
        started_at: Wall(if status.state == ContainerState::Created { 0 } else { status.started_at }),
        finished_at: Wall(if ended { status.finished_at } else { 0 }),
        exit_code: if ended { status.exit_code } else { 0 },
        reason: if ended { status.reason } else { String::new() },
        message,
        image: status.image,
        image_ref: status.image_ref,
        image_id: status.image_id,
        log_path: status.log_path,
        pre_stop: annotation(ANNOTATION_PRE_STOP).cloned(),
        pod_grace: number(ANNOTATION_POD_DELETION_GRACE).or(number(ANNOTATION_POD_GRACE)),
        resources: status.resources,
        user: status.user,
    }
}

fn image_mounts(mounts: Vec<Mount>) -> BTreeMap<String, String> {
    let images = mounts.into_iter().filter_map(|mount| Some((mount.container_path, mount.image?.image)));
    images.filter(|(_, image)| !image.is_empty()).collect()
}
