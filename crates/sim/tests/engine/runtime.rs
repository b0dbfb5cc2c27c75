//! The ports of the runtime, its images and its hints.

use model::GrpcCode;
use std::io;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use model::cgroup::CgroupDriver;
use model::cri::{
    ContainerConfig, ContainerStats, ExecResult, FilesystemUsage, Image, ImageSpec, LinuxResources, Metric,
    MetricDescriptor, NamespaceOptions, RegistryAuth, RuntimeCondition, RuntimeHandler, RuntimeStatus,
    RuntimeVersion, SandboxConfig, SandboxStats,
};
use model::observed::ContainerState;
use model::pod::{ANNOTATION_POD_DELETION_GRACE, ANNOTATION_POD_GRACE, ANNOTATION_RESTART_COUNT};
use model::{ContainerId, PodUid, SandboxId, Wall};
use ports::{
    CgroupDetailLevel, CgroupUsage, ContainerFilter, ContainerInfo, ContainerStatus, FilesystemFigures,
    HintStream, Images, MachineUsage, PodCgroupUsage, PodCgroups, Runtime, RuntimeError, RuntimeEvents,
    SandboxFilter, SandboxInfo, SandboxStatus, StreamFlags, TreeFigures, TreeSource, UsageReader,
};
use sim::rng::{Rng, mix};
use sim::workload::{
    ExtremeListEntry, extreme_text, is_extreme, make_image_extreme, make_runtime_status_extreme,
};
use sim::world::{World, WorldError};
use tokio::sync::{Mutex, mpsc};
use tokio::time::sleep;

use super::host::{AgentConnection, CallError, DEADLINE, HostState};

impl CallError for RuntimeError {
    fn refused(message: String) -> Self {
        RuntimeError::Failed { call: "simulated", code: GrpcCode::Unknown, message }
    }
    fn timed_out() -> Self {
        RuntimeError::TimedOut { call: "simulated", after: DEADLINE }
    }
}

fn told(refused: WorldError) -> RuntimeError {
    match refused.absent {
        true => RuntimeError::NotFound { call: "simulated", message: refused.message },
        false => RuntimeError::refused(refused.message),
    }
}

fn unsupported<T>(call: &'static str) -> Result<T, RuntimeError> {
    Err(RuntimeError::Unsupported { call })
}

pub struct SimRuntime(pub AgentConnection);

impl SimRuntime {
    async fn pod_of(&self, id: &ContainerId) -> PodUid {
        let inner = self.0.host.lock().await;
        inner.world.containers.get(id).map(|c| c.uid.clone()).unwrap_or_else(|| "nobody".into())
    }

    async fn pod_of_sandbox(&self, id: &SandboxId) -> PodUid {
        let inner = self.0.host.lock().await;
        inner.world.sandboxes.get(id).map(|s| s.uid.clone()).unwrap_or_else(|| "nobody".into())
    }
}

/// In which way the runtime gives no status where it is to give none.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NoStatus {
    Refused,
    Late,
    OfAnother,
}

impl SimRuntime {
    /// `None`: the status is given.
    async fn no_status(
        &self,
        refuses: impl FnOnce(&HostState) -> bool,
    ) -> Result<Option<NoStatus>, RuntimeError> {
        let mut inner = self.0.host.lock().await;
        if !refuses(&inner) {
            return Ok(None);
        }
        let how = *inner.rng.pick(&[NoStatus::Refused, NoStatus::Late, NoStatus::OfAnother]);
        drop(inner);
        match how {
            NoStatus::Refused => Err(RuntimeError::refused("device or resource busy".into())),
            NoStatus::Late => {
                sleep(DEADLINE).await;
                Err(RuntimeError::timed_out())
            }
            NoStatus::OfAnother => Ok(Some(how)),
        }
    }
}

fn sandbox_info(inner: &HostState, id: &SandboxId) -> Option<SandboxInfo> {
    let sandbox = inner.world.sandboxes.get(id)?;
    let config = inner.sandbox_configs.get(id)?;
    let entry = is_extreme(&sandbox.uid).then(|| ExtremeListEntry::of(&sandbox.uid));
    let info = SandboxInfo {
        id: id.clone(),
        name: config.metadata.name.clone(),
        namespace: config.metadata.namespace.clone(),
        uid: sandbox.uid.clone(),
        attempt: sandbox.attempt,
        ready: sandbox.ready,
        created_at: sandbox.created_at.0,
        labels: config.labels.clone(),
        annotations: config.annotations.clone(),
        runtime_handler: String::new(),
    };
    Some(match entry {
        Some(entry) => SandboxInfo {
            created_at: entry.created_at.unwrap_or(info.created_at),
            attempt: entry.attempt.unwrap_or(info.attempt),
            runtime_handler: extreme_text(),
            ..info
        },
        None => info,
    })
}

fn container_info(inner: &HostState, id: &ContainerId) -> Option<ContainerInfo> {
    let container = inner.world.containers.get(id)?;
    let config = inner.container_configs.get(id)?;
    let entry = is_extreme(&container.uid).then(|| ExtremeListEntry::of(&container.uid));
    let mut annotations = config.annotations.clone();
    if let Some(entry) = entry {
        annotations.insert(ANNOTATION_POD_GRACE.into(), entry.grace.into());
        annotations.insert(ANNOTATION_POD_DELETION_GRACE.into(), entry.grace.into());
        if entry.attempt.is_some() {
            annotations.insert(ANNOTATION_RESTART_COUNT.into(), entry.restart_count.into());
        }
    }
    let entry = entry.as_ref();
    Some(ContainerInfo {
        id: id.clone(),
        sandbox_id: container.sandbox.clone(),
        name: config.metadata.name.clone(),
        attempt: entry.and_then(|entry| entry.attempt).unwrap_or(container.attempt),
        state: container.shown_state(),
        created_at: entry.and_then(|entry| entry.created_at).unwrap_or(container.created_at.0),
        image: container.image.clone(),
        image_ref: container.image_ref.clone(),
        image_id: container.image_ref.clone(),
        labels: config.labels.clone(),
        annotations,
    })
}

fn container_status(inner: &HostState, id: &ContainerId) -> Option<ContainerStatus> {
    let info = container_info(inner, id)?;
    let container = inner.world.containers.get(id)?;
    let said = ContainerStatus {
        id: info.id,
        name: info.name,
        attempt: info.attempt,
        state: info.state,
        created_at: info.created_at,
        started_at: container.started_at.0,
        finished_at: container.finished_at.0,
        exit_code: container.exit_code,
        image: info.image,
        image_ref: info.image_ref,
        image_id: info.image_id,
        reason: container.reason.clone(),
        message: String::new(),
        labels: info.labels,
        annotations: info.annotations,
        mounts: Vec::new(),
        log_path: container.log_path.clone(),
        resources: None,
        user: None,
        stop_signal: 0,
    };
    Some(if is_extreme(&container.uid) { extreme(said) } else { said })
}

/// As far from what is usual as the wire allows, and the same at every reading.
fn extreme(mut said: ContainerStatus) -> ContainerStatus {
    let seed = said.id.as_str().bytes().fold(11, |sum, byte| mix(sum ^ u64::from(byte)));
    let mut rng = Rng::new(seed);
    let times = [i64::MIN, -1, 0, 1, i64::MAX];
    let (started, finished) = (*rng.pick(&times), *rng.pick(&times));
    let code = *rng.pick(&[i32::MIN, 0, i32::MAX]);
    said.started_at = started;
    if said.state == ContainerState::Exited {
        said.finished_at = finished;
        said.exit_code = code;
    }
    said.reason = "\u{10ffff}".repeat(300);
    said.message = "é".repeat(20_000);
    said.stop_signal = *rng.pick(&[i32::MIN, -1, i32::MAX]);
    said.resources = Some(LinuxResources {
        cpu_period: *rng.pick(&times),
        cpu_quota: *rng.pick(&times),
        cpu_shares: *rng.pick(&times),
        memory_limit_in_bytes: *rng.pick(&times),
        ..LinuxResources::default()
    });
    said
}

fn missing(what: &impl ToString) -> RuntimeError {
    RuntimeError::NotFound { call: "simulated", message: format!("{} not found", what.to_string()) }
}

#[async_trait]
impl Runtime for SimRuntime {
    async fn version(&self) -> Result<RuntimeVersion, RuntimeError> {
        self.0.alive().await;
        if self.0.host.lock().await.faults.extreme {
            let text = extreme_text();
            return Ok(RuntimeVersion {
                runtime_name: text.clone(),
                runtime_version: text,
                ..Default::default()
            });
        }
        Ok(RuntimeVersion { runtime_name: "simulated".into(), ..Default::default() })
    }

    async fn status(&self) -> Result<RuntimeStatus, RuntimeError> {
        self.0.alive().await;
        let good = |kind: &str| RuntimeCondition { r#type: kind.into(), status: true, ..Default::default() };
        let mut status = RuntimeStatus {
            conditions: vec![good("RuntimeReady"), good("NetworkReady")],
            handlers: vec![RuntimeHandler { user_namespaces: true, ..Default::default() }],
            ..Default::default()
        };
        if self.0.host.lock().await.faults.extreme {
            make_runtime_status_extreme(&mut status);
        }
        Ok(status)
    }

    async fn cgroup_driver(&self) -> Result<CgroupDriver, RuntimeError> {
        unsupported("RuntimeConfig")
    }

    async fn update_runtime_config(&self, _: &str) -> Result<(), RuntimeError> {
        unsupported("UpdateRuntimeConfig")
    }

    async fn run_pod_sandbox(&self, config: &SandboxConfig, _: &str) -> Result<SandboxId, RuntimeError> {
        let uid = PodUid::from(config.metadata.uid.as_str());
        let effect = |inner: &mut HostState| {
            let id = inner.world.run_sandbox(config).map_err(told)?;
            inner.sandbox_configs.insert(id.clone(), config.clone());
            Ok(id)
        };
        self.0.call(&uid, true, effect).await
    }

    async fn stop_pod_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        let uid = self.pod_of_sandbox(id).await;
        self.0.call(&uid, true, |inner| inner.world.stop_sandbox(id).map_err(told)).await
    }

    async fn remove_pod_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        let uid = self.pod_of_sandbox(id).await;
        self.0.call(&uid, true, |inner| inner.world.remove_sandbox(id).map_err(told)).await
    }

    async fn pod_sandbox_status(&self, id: &SandboxId) -> Result<SandboxStatus, RuntimeError> {
        let uid = self.pod_of_sandbox(id).await;
        let odd = self.no_status(|inner| inner.faults.refuses_sandbox(&uid)).await?;
        let effect = |inner: &mut HostState| {
            let mut info = sandbox_info(inner, id).ok_or_else(|| missing(id))?;
            if odd.is_some() {
                info.id = "another".into();
            }
            let sandbox = &inner.world.sandboxes[id];
            let mut ips = sandbox.ips.clone();
            if is_extreme(&sandbox.uid) {
                ips.push(extreme_text());
            }
            let namespaces = NamespaceOptions { network: sandbox.network, ..Default::default() };
            Ok(SandboxStatus { info, has_network: true, ips, namespaces })
        };
        // Where this fails the lists were good: the reading is one that fails in part.
        self.0.call(&"everybody".into(), true, effect).await
    }

    async fn list_pod_sandboxes(&self, filter: &SandboxFilter) -> Result<Vec<SandboxInfo>, RuntimeError> {
        let uid = filter.pod_uid.clone().unwrap_or_else(|| "everybody".into());
        let effect = |inner: &mut HostState| {
            let ids: Vec<SandboxId> = inner.world.sandboxes.keys().cloned().collect();
            let all = ids.iter().filter_map(|id| sandbox_info(inner, id));
            Ok(all.filter(|s| filter.pod_uid.as_ref().is_none_or(|uid| s.uid == *uid)).collect())
        };
        self.0.call(&uid, true, effect).await
    }

    async fn update_pod_sandbox_resources(
        &self,
        _: &SandboxId,
        _: Option<&LinuxResources>,
        _: Option<&LinuxResources>,
    ) -> Result<(), RuntimeError> {
        unsupported("UpdatePodSandboxResources")
    }

    async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: &ContainerConfig,
        _: &SandboxConfig,
    ) -> Result<ContainerId, RuntimeError> {
        let uid = self.pod_of_sandbox(sandbox).await;
        let effect = |inner: &mut HostState| {
            let id = inner.world.create_container(sandbox, config).map_err(told)?;
            inner.container_configs.insert(id.clone(), config.clone());
            Ok(id)
        };
        self.0.call(&uid, true, effect).await
    }

    async fn start_container(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let uid = self.pod_of(id).await;
        self.0.call(&uid, true, |inner| inner.world.start_container(id).map_err(told)).await
    }

    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<(), RuntimeError> {
        let uid = self.pod_of(id).await;
        let ended = |world: &World| !world.containers.get(id).is_some_and(|c| c.is_live());
        let signal = |inner: &mut HostState| {
            if !inner.world.containers.contains_key(id) {
                return Err(missing(id));
            }
            inner.world.terminate(id);
            Ok(())
        };
        self.0.call(&uid, true, signal).await?;
        if !self.0.host.wait_until(grace, ended).await {
            self.0.alive().await;
            self.0.host.apply(|inner| inner.world.kill(id)).await;
        }
        self.0.alive().await;
        Ok(())
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let uid = self.pod_of(id).await;
        self.0.call(&uid, true, |inner| inner.world.remove_container(id).map_err(told)).await
    }

    async fn list_containers(&self, filter: &ContainerFilter) -> Result<Vec<ContainerInfo>, RuntimeError> {
        let uid = filter.pod_uid.clone().unwrap_or_else(|| "everybody".into());
        let effect = |inner: &mut HostState| {
            let of = |c: &&sim::world::Container| filter.pod_uid.as_ref().is_none_or(|uid| c.uid == *uid);
            let ids: Vec<_> = inner.world.containers.values().filter(of).map(|c| c.id.clone()).collect();
            Ok(ids.iter().filter_map(|id| container_info(inner, id)).collect())
        };
        self.0.call(&uid, true, effect).await
    }

    async fn container_status(&self, id: &ContainerId) -> Result<ContainerStatus, RuntimeError> {
        let uid = self.pod_of(id).await;
        let odd = self.no_status(|inner| inner.faults.refuses_container(&uid)).await?;
        let effect = |inner: &mut HostState| {
            let mut status = container_status(inner, id).ok_or_else(|| missing(id))?;
            if odd.is_some() {
                status.id = "another".into();
            }
            Ok(status)
        };
        self.0.call(&"everybody".into(), true, effect).await
    }

    async fn update_container_resources(
        &self,
        _: &ContainerId,
        _: &LinuxResources,
    ) -> Result<(), RuntimeError> {
        unsupported("UpdateContainerResources")
    }

    async fn reopen_container_log(&self, _: &ContainerId) -> Result<(), RuntimeError> {
        unsupported("ReopenContainerLog")
    }

    async fn checkpoint_container(&self, _: &ContainerId, _: &str, _: Duration) -> Result<(), RuntimeError> {
        unsupported("CheckpointContainer")
    }

    /// Hooks and probes: the script of the program says how they end.
    async fn exec_sync(
        &self,
        id: &ContainerId,
        _: &[String],
        _: Duration,
    ) -> Result<ExecResult, RuntimeError> {
        let uid = self.pod_of(id).await;
        let effect = |inner: &mut HostState| {
            let Some(container) = inner.world.containers.get(id).filter(|c| c.is_live()) else {
                return Err(missing(id));
            };
            let name = container.name.clone();
            let good = inner.world.run_hook(&uid, &name).is_ok();
            Ok(ExecResult { exit_code: i32::from(!good), ..Default::default() })
        };
        self.0.call(&uid, true, effect).await
    }

    async fn exec(&self, _: &ContainerId, _: &[String], _: StreamFlags) -> Result<String, RuntimeError> {
        unsupported("Exec")
    }

    async fn attach(&self, _: &ContainerId, _: StreamFlags) -> Result<String, RuntimeError> {
        unsupported("Attach")
    }

    async fn port_forward(&self, _: &SandboxId, _: &[i32]) -> Result<String, RuntimeError> {
        unsupported("PortForward")
    }

    async fn container_stats(&self, _: &ContainerId) -> Result<ContainerStats, RuntimeError> {
        unsupported("ContainerStats")
    }

    async fn list_container_stats(&self, _: &ContainerFilter) -> Result<Vec<ContainerStats>, RuntimeError> {
        unsupported("ListContainerStats")
    }

    async fn list_pod_sandbox_stats(&self, _: &SandboxFilter) -> Result<Vec<SandboxStats>, RuntimeError> {
        unsupported("ListPodSandboxStats")
    }

    async fn list_metric_descriptors(&self) -> Result<Vec<MetricDescriptor>, RuntimeError> {
        unsupported("ListMetricDescriptors")
    }

    async fn list_pod_sandbox_metrics(&self) -> Result<Vec<Metric>, RuntimeError> {
        unsupported("ListPodSandboxMetrics")
    }
}

pub struct SimImages(pub AgentConnection);

#[async_trait]
impl Images for SimImages {
    async fn list_images(&self) -> Result<Vec<Image>, RuntimeError> {
        let inner = self.0.host.lock().await;
        Ok(inner.world.images.known.keys().filter_map(|name| inner.world.images.image(name)).collect())
    }

    async fn image_status(&self, image: &ImageSpec) -> Result<Option<Image>, RuntimeError> {
        let look = |inner: &mut HostState| {
            let mut found = inner.world.images.image(&image.image);
            if let Some(found) = found.as_mut().filter(|_| inner.faults.extreme) {
                make_image_extreme(found);
            }
            Ok(found)
        };
        self.0.call(&"images".into(), true, look).await
    }

    async fn pull_image(
        &self,
        image: &ImageSpec,
        _: Option<&RegistryAuth>,
        _: Option<&SandboxConfig>,
    ) -> Result<String, RuntimeError> {
        let pull = |inner: &mut HostState| inner.world.pull(&image.image).map_err(RuntimeError::refused);
        self.0.call(&"images".into(), true, pull).await
    }

    async fn remove_image(&self, image: &ImageSpec) -> Result<(), RuntimeError> {
        let remove =
            |inner: &mut HostState| inner.world.remove_image(&image.image).map_err(RuntimeError::refused);
        self.0.call(&"images".into(), true, remove).await
    }

    async fn image_fs_info(&self) -> Result<(Vec<FilesystemUsage>, Vec<FilesystemUsage>), RuntimeError> {
        let images = FilesystemUsage { mountpoint: "/images".into(), ..FilesystemUsage::default() };
        Ok((vec![images], Vec::new()))
    }
}

/// Of the filesystem that holds the images only.
pub struct SimUsage(pub AgentConnection);

fn no_figures<T>() -> io::Result<T> {
    Err(io::ErrorKind::Unsupported.into())
}

#[async_trait]
impl UsageReader for SimUsage {
    async fn machine(&self, _: CgroupDetailLevel) -> io::Result<MachineUsage> {
        no_figures()
    }
    async fn cgroups(&self, _: Vec<String>, _: CgroupDetailLevel) -> io::Result<Vec<Option<CgroupUsage>>> {
        no_figures()
    }
    async fn pods(&self, _: Vec<PodCgroups>, _: CgroupDetailLevel) -> io::Result<Vec<PodCgroupUsage>> {
        no_figures()
    }
    async fn cgroup_start(&self, _: &str) -> Option<Wall> {
        None
    }
    async fn own_cgroup(&self) -> Option<String> {
        None
    }
    async fn directories(&self, _: Vec<String>) -> io::Result<Vec<Option<TreeFigures>>> {
        no_figures()
    }
    async fn filesystem(&self, _: &str) -> io::Result<FilesystemFigures> {
        let filesystem = self.0.host.lock().await.world.images.filesystem();
        Ok(FilesystemFigures {
            capacity_bytes: filesystem.capacity_bytes,
            available_bytes: filesystem.available_bytes,
            ..FilesystemFigures::default()
        })
    }
    async fn tree(&self, _: &str) -> io::Result<(TreeFigures, TreeSource)> {
        no_figures()
    }
}

/// Given to one agent, once.
pub struct SimHints(pub Mutex<Option<mpsc::UnboundedReceiver<ports::Hint>>>);

impl RuntimeEvents for SimHints {
    fn hints(&self) -> HintStream {
        let receiver = self.0.try_lock().ok().and_then(|mut kept| kept.take());
        match receiver {
            Some(receiver) => {
                futures::stream::unfold(receiver, |mut from| async move { Some((from.recv().await?, from)) })
                    .boxed()
            }
            None => futures::stream::pending().boxed(),
        }
    }
}
