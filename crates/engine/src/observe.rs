//! Reading the runtime: lists first, and a status only for what the lists show to have changed.
//!
//! The time of a reading is taken before its first call. A container or sandbox that vanishes between list and status
//! is simply not there; any other failure fails the reading as a whole, so that half of the truth is never shown.

use std::collections::BTreeMap;
use std::sync::Arc;

use decide::event::{Event, RuntimeCheck};
use decide::termination_message::{self, Ended};
use futures::future::try_join_all;
use model::cgroup::CgroupDriver;
use model::cri::{RuntimeStatus, RuntimeVersion};
use model::observed::{ContainerState, Observation, ObservedContainer, ObservedPod, ObservedSandbox, Scope};
use model::pod::{
    ANNOTATION_CONTAINER_HASH, ANNOTATION_POD_DELETION_GRACE, ANNOTATION_POD_GRACE, ANNOTATION_PRE_STOP,
    ANNOTATION_RESTART_COUNT, ANNOTATION_TERMINATION_PATH, ANNOTATION_TERMINATION_POLICY,
    LABEL_CONTAINER_NAME, LABEL_POD_NAME, LABEL_POD_NAMESPACE, LABEL_POD_UID,
};
use model::{FullName, PodUid, Wall};
use ports::{
    ContainerFilter, ContainerInfo, ContainerStatus, Disposition, RuntimeError, SandboxFilter, SandboxInfo,
};

use crate::dispatcher::Shop;

type Known = BTreeMap<PodUid, Arc<ObservedPod>>;

pub(crate) async fn check_runtime(shop: Shop, ask_cgroup_driver: bool) {
    let answer = async {
        let runtime = &shop.ports.runtime;
        let version = runtime.version().await?;
        let status = runtime.status().await?;
        seen(&shop, &version, &status);
        let cgroup_driver = if ask_cgroup_driver { cgroup_driver(&shop).await? } else { None };
        Ok::<_, RuntimeError>(RuntimeCheck::Answered {
            runtime_name: version.runtime_name,
            status,
            cgroup_driver,
        })
    };
    let check = answer.await.unwrap_or_else(|e| {
        shop.runtime_view.send_modify(|view| view.failed = true);
        RuntimeCheck::Failed { message: e.user_message() }
    });
    shop.outbox.send(Event::RuntimeChecked(check));
}

fn seen(shop: &Shop, version: &RuntimeVersion, status: &RuntimeStatus) {
    let at = shop.clock.mono();
    shop.runtime_view.send_modify(|view| {
        view.name.clone_from(&version.runtime_name);
        view.version.clone_from(&version.runtime_version);
        view.status = Some(status.clone());
        view.answered = Some(at);
        view.failed = false;
    });
}

/// `None` when this runtime does not tell: the configured driver stands.
async fn cgroup_driver(shop: &Shop) -> Result<Option<CgroupDriver>, RuntimeError> {
    match shop.ports.runtime.cgroup_driver().await {
        Ok(driver) => {
            shop.ports.cgroups.use_driver(driver);
            Ok(Some(driver))
        }
        Err(error) if error.disposition() == Disposition::Unsupported => Ok(None),
        Err(error) => Err(error),
    }
}

pub(crate) async fn observe(shop: Shop, scope: Scope, known: Known) {
    let at = shop.clock.mono();
    let event = match read(&shop, &scope, &known).await {
        Ok(pods) => {
            let took = shop.clock.mono().since(at);
            if scope == Scope::All {
                shop.ports.meter.relist(took);
                shop.runtime_view.send_modify(|view| view.read = Some(at));
            } else {
                shop.ports.meter.pod_relist(took);
            }
            Event::Observed(Observation { at, scope, pods })
        }
        Err(error) => Event::ObserveFailed { scope, message: error.to_string() },
    };
    shop.outbox.send(event);
}

/// What the lists show of one pod.
#[derive(Default)]
struct Listed {
    name: Option<FullName>,
    sandboxes: Vec<SandboxInfo>,
    containers: Vec<ContainerInfo>,
}

async fn read(shop: &Shop, scope: &Scope, known: &Known) -> Result<Vec<Arc<ObservedPod>>, RuntimeError> {
    let pod_uid = match scope {
        Scope::All => None,
        Scope::Pod(uid) => Some(uid.clone()),
    };
    let sandbox_filter = SandboxFilter { pod_uid: pod_uid.clone(), id: None };
    let container_filter = ContainerFilter { pod_uid, id: None };
    let (sandboxes, containers) = tokio::try_join!(
        shop.ports.runtime.list_pod_sandboxes(&sandbox_filter),
        shop.ports.runtime.list_containers(&container_filter),
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
    let readings = pods.into_iter().map(|(uid, listed)| one(shop, uid.clone(), listed, known.get(&uid)));
    try_join_all(readings).await
}

async fn one(
    shop: &Shop,
    uid: PodUid,
    listed: Listed,
    known: Option<&Arc<ObservedPod>>,
) -> Result<Arc<ObservedPod>, RuntimeError> {
    let full_name = listed.name.unwrap_or_else(|| FullName::new("", ""));
    let sandboxes = listed.sandboxes.into_iter().map(|info| sandbox(shop, info, known));
    let containers = listed.containers.into_iter().map(|info| container(shop, info, known));
    let (sandboxes, containers) = tokio::try_join!(try_join_all(sandboxes), try_join_all(containers))?;
    let mut pod = ObservedPod {
        uid,
        full_name,
        sandboxes: sandboxes.into_iter().flatten().collect(),
        containers: containers.into_iter().flatten().collect(),
    };
    pod.sort();
    Ok(match known {
        Some(same) if **same == pod => same.clone(),
        _ => Arc::new(pod),
    })
}

fn absent_is_none<T>(result: Result<T, RuntimeError>) -> Result<Option<T>, RuntimeError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.disposition() == Disposition::Absent => Ok(None),
        Err(error) => Err(error),
    }
}

async fn sandbox(
    shop: &Shop,
    info: SandboxInfo,
    known: Option<&Arc<ObservedPod>>,
) -> Result<Option<ObservedSandbox>, RuntimeError> {
    let old = known.and_then(|pod| pod.sandboxes.iter().find(|s| s.id == info.id));
    // A ready sandbox without an address may still get one.
    if let Some(old) = old.filter(|s| s.ready == info.ready && (!s.ready || !s.ips.is_empty())) {
        return Ok(Some(old.clone()));
    }
    let Some(status) = absent_is_none(shop.ports.runtime.pod_sandbox_status(&info.id).await)? else {
        return Ok(None);
    };
    let ready = status.info.ready;
    Ok(Some(ObservedSandbox {
        id: info.id,
        attempt: info.attempt,
        created_at: Wall(info.created_at),
        ready,
        network: status.namespaces.network,
        has_network_status: status.has_network,
        ips: if ready { status.ips } else { Vec::new() },
        runtime_handler: info.runtime_handler,
    }))
}

async fn container(
    shop: &Shop,
    info: ContainerInfo,
    known: Option<&Arc<ObservedPod>>,
) -> Result<Option<ObservedContainer>, RuntimeError> {
    let old = known.and_then(|pod| pod.containers.iter().find(|c| c.id == info.id));
    let settled = matches!(info.state, ContainerState::Running | ContainerState::Exited);
    if let Some(old) = old.filter(|c| settled && c.state == info.state) {
        return Ok(Some(old.clone()));
    }
    let Some(status) = absent_is_none(shop.ports.runtime.container_status(&info.id).await)? else {
        return Ok(None);
    };
    let message = termination_message(shop, &info, &status).await;
    Ok(Some(observed(info, status, message)))
}

async fn termination_message(shop: &Shop, info: &ContainerInfo, status: &ContainerStatus) -> String {
    if status.state != ContainerState::Exited {
        return String::new();
    }
    let label = |key: &str| info.labels.get(key).map(String::as_str);
    let annotation = |key: &str| status.annotations.get(key).map(String::as_str);
    let request = termination_message::request(&Ended {
        pod: &label(LABEL_POD_UID).unwrap_or_default().into(),
        container: label(LABEL_CONTAINER_NAME).unwrap_or(&info.name),
        path: annotation(ANNOTATION_TERMINATION_PATH),
        policy: annotation(ANNOTATION_TERMINATION_POLICY),
        mounts: &status.mounts,
        exit_code: status.exit_code,
        reason: &status.reason,
        log_path: &status.log_path,
    });
    let message = shop.ports.files.termination_message(&request).await;
    termination_message::joined(&status.message, &message)
}

fn observed(info: ContainerInfo, status: ContainerStatus, message: String) -> ObservedContainer {
    let annotation = |key: &str| status.annotations.get(key);
    let number = |key: &str| annotation(key).and_then(|text| text.parse::<i64>().ok());
    let ended = status.state == ContainerState::Exited;
    let name = info.labels.get(LABEL_CONTAINER_NAME).cloned().unwrap_or(info.name);
    ObservedContainer {
        stop_signal: status.stop_signal,
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
