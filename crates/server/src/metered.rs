//! Ports that count what goes through them. The words for the operations are the kubelet's.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use model::cgroup::{CgroupDriver, CgroupName, CgroupSpec};
use model::cri::{
    ContainerConfig, ContainerStats, ExecResult, FilesystemUsage, Image, ImageSpec, LinuxResources, Metric,
    MetricDescriptor, RegistryAuth, RuntimeStatus, RuntimeVersion, SandboxConfig, SandboxStats,
};
use model::hook::HttpHook;
use model::k8s::Node;
use model::probe::ProbeOutcome;
use model::{ApiEvent, ContainerId, EventSubject, PodUid, SandboxId};
use ports::{
    ApiError, ApiRequest, ApiRequestMetrics, CgroupError, Cgroups, ContainerFilter, ContainerInfo,
    ContainerStatus, EngineMetrics, EventSink, HookAnswer, HttpHooks, Images, NodeApi, ObservedObject,
    PodStatusUpdate, ProbeIdentity, Runtime, RuntimeError, SandboxFilter, SandboxInfo, SandboxStatus,
    StreamFlags,
};
use serde_json::Value;
use tokio::time::Instant;

use crate::metrics::AgentMetrics;

/// A call in progress. One that is dropped unfinished was given up, and counts as failed.
struct RuntimeCall<'a> {
    metrics: &'a AgentMetrics,
    operation: &'static str,
    /// Of a sandbox that is being made: its handler, and whether it has ids of its own.
    sandbox: Option<(&'a str, bool)>,
    begun: Instant,
    ok: bool,
}

impl Drop for RuntimeCall<'_> {
    fn drop(&mut self) {
        let seconds = self.begun.elapsed().as_secs_f64();
        self.metrics.observe_runtime_call(self.operation, seconds, self.ok);
        if let Some((handler, user_namespaced)) = self.sandbox {
            self.metrics.observe_sandbox(handler, user_namespaced, seconds, self.ok);
        }
    }
}

async fn count<T>(
    metrics: &AgentMetrics,
    operation: &'static str,
    sandbox: Option<(&str, bool)>,
    answer: impl Future<Output = Result<T, RuntimeError>>,
) -> Result<T, RuntimeError> {
    let mut call = RuntimeCall { metrics, operation, sandbox, begun: Instant::now(), ok: false };
    let result = answer.await;
    call.ok = result.is_ok();
    result
}

fn has_user_namespace(config: &SandboxConfig) -> bool {
    let security = config.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
    let ids = security.and_then(|security| security.namespace_options.as_ref()?.userns_options.as_ref());
    ids.is_some_and(|ids| ids.mode == model::cri::NamespaceMode::Pod)
}

/// What a runtime's answer begins with that could not mount an image.
const IMAGE_VOLUME_FAILED: &str = "ImageVolumeMountFailed";

/// If a container could not be created for another reason, nothing is known about its image volumes.
fn count_image_volumes<T>(metrics: &AgentMetrics, config: &ContainerConfig, made: &Result<T, RuntimeError>) {
    let images = config.mounts.iter().filter(|mount| mount.image.is_some()).count() as u64;
    let outcome = match made {
        Ok(_) => Some(true),
        Err(error) => error.user_message().contains(IMAGE_VOLUME_FAILED).then_some(false),
    };
    metrics.observe_image_volumes(images, outcome);
}

/// Implements a port by handing each call on and counting it. `async_trait` must see the methods, so the whole
/// implementation is made here.
macro_rules! metered {
    ($port:ident for $metered:ident {
        $($operation:literal: $method:ident($($name:ident: $of:ty),*) -> $answer:ty $(, sandbox $config:ident $handler:ident)? $(, volumes $made:ident)?;)*
    }) => {
        #[async_trait]
        impl $port for $metered {
            $(async fn $method(&self, $($name: $of),*) -> Result<$answer, RuntimeError> {
                #[allow(unused_mut, unused_assignments)]
                let mut sandbox: Option<(&str, bool)> = None;
                $(sandbox = Some(($handler, has_user_namespace($config)));)?
                let answer = count(&self.metrics, $operation, sandbox, self.inner.$method($($name),*)).await;
                $(count_image_volumes(&self.metrics, $made, &answer);)?
                answer
            })*
        }
    };
}

/// A runtime whose calls are counted.
pub struct MeteredRuntime {
    inner: Arc<dyn Runtime>,
    metrics: Arc<AgentMetrics>,
}

impl MeteredRuntime {
    pub fn new(inner: Arc<dyn Runtime>, metrics: Arc<AgentMetrics>) -> Self {
        Self { inner, metrics }
    }
}

metered!(Runtime for MeteredRuntime {
    "version": version() -> RuntimeVersion;
    "status": status() -> RuntimeStatus;
    "runtime_config": cgroup_driver() -> model::cgroup::CgroupDriver;
    "update_runtime_config": update_runtime_config(pod_cidr: &str) -> ();

    "run_podsandbox": run_pod_sandbox(config: &SandboxConfig, name: &str) -> SandboxId, sandbox config name;
    "stop_podsandbox": stop_pod_sandbox(id: &SandboxId) -> ();
    "remove_podsandbox": remove_pod_sandbox(id: &SandboxId) -> ();
    "podsandbox_status": pod_sandbox_status(id: &SandboxId) -> SandboxStatus;
    "list_podsandbox": list_pod_sandboxes(filter: &SandboxFilter) -> Vec<SandboxInfo>;
    "update_podsandbox_resources": update_pod_sandbox_resources(
        id: &SandboxId, overhead: Option<&LinuxResources>, resources: Option<&LinuxResources>
    ) -> ();

    "create_container": create_container(
        sandbox: &SandboxId, config: &ContainerConfig, sandbox_config: &SandboxConfig
    ) -> ContainerId, volumes config;
    "start_container": start_container(id: &ContainerId) -> ();
    "stop_container": stop_container(id: &ContainerId, grace: Duration) -> ();
    "remove_container": remove_container(id: &ContainerId) -> ();
    "list_containers": list_containers(filter: &ContainerFilter) -> Vec<ContainerInfo>;
    "container_status": container_status(id: &ContainerId) -> ContainerStatus;
    "update_container": update_container_resources(id: &ContainerId, resources: &LinuxResources) -> ();
    "reopen_container_log": reopen_container_log(id: &ContainerId) -> ();
    "checkpoint_container": checkpoint_container(id: &ContainerId, location: &str, timeout: Duration) -> ();

    "exec_sync": exec_sync(id: &ContainerId, command: &[String], timeout: Duration) -> ExecResult;
    "exec": exec(id: &ContainerId, command: &[String], streams: StreamFlags) -> String;
    "attach": attach(id: &ContainerId, streams: StreamFlags) -> String;
    "port_forward": port_forward(id: &SandboxId, ports: &[i32]) -> String;

    "container_stats": container_stats(id: &ContainerId) -> ContainerStats;
    "list_container_stats": list_container_stats(filter: &ContainerFilter) -> Vec<ContainerStats>;
    "list_podsandbox_stats": list_pod_sandbox_stats(filter: &SandboxFilter) -> Vec<SandboxStats>;
    "list_metric_descriptors": list_metric_descriptors() -> Vec<MetricDescriptor>;
    "list_podsandbox_metrics": list_pod_sandbox_metrics() -> Vec<Metric>;
});

/// An image service whose calls are counted.
pub struct MeteredImages {
    inner: Arc<dyn Images>,
    metrics: Arc<AgentMetrics>,
}

impl MeteredImages {
    pub fn new(inner: Arc<dyn Images>, metrics: Arc<AgentMetrics>) -> Self {
        Self { inner, metrics }
    }
}

#[async_trait]
impl Images for MeteredImages {
    async fn list_images(&self) -> Result<Vec<Image>, RuntimeError> {
        count(&self.metrics, "list_images", None, self.inner.list_images()).await
    }
    async fn image_status(&self, image: &ImageSpec) -> Result<Option<Image>, RuntimeError> {
        count(&self.metrics, "image_status", None, self.inner.image_status(image)).await
    }
    async fn pull_image(
        &self,
        image: &ImageSpec,
        auth: Option<&RegistryAuth>,
        sandbox: Option<&SandboxConfig>,
    ) -> Result<String, RuntimeError> {
        let begun = Instant::now();
        let pulled =
            count(&self.metrics, "pull_image", None, self.inner.pull_image(image, auth, sandbox)).await?;
        let took = begun.elapsed().as_secs_f64();
        // How long is worth knowing only with how much.
        if let Ok(Some(found)) = self.image_status(image).await {
            self.metrics.observe_pull(found.size, took);
        }
        Ok(pulled)
    }
    async fn remove_image(&self, image: &ImageSpec) -> Result<(), RuntimeError> {
        count(&self.metrics, "remove_image", None, self.inner.remove_image(image)).await
    }
    async fn sandbox_image(&self) -> Result<Option<String>, RuntimeError> {
        count(&self.metrics, "status", None, self.inner.sandbox_image()).await
    }
    async fn image_fs_info(&self) -> Result<(Vec<FilesystemUsage>, Vec<FilesystemUsage>), RuntimeError> {
        count(&self.metrics, "image_fs_info", None, self.inner.image_fs_info()).await
    }
}

/// Cgroups whose making and end are timed.
pub struct MeteredCgroups {
    inner: Arc<dyn Cgroups>,
    metrics: Arc<AgentMetrics>,
}

impl MeteredCgroups {
    pub fn new(inner: Arc<dyn Cgroups>, metrics: Arc<AgentMetrics>) -> Self {
        Self { inner, metrics }
    }
}

#[async_trait]
impl Cgroups for MeteredCgroups {
    fn use_driver(&self, driver: CgroupDriver) {
        self.inner.use_driver(driver);
    }
    async fn ensure(&self, spec: &CgroupSpec) -> Result<(), CgroupError> {
        // If this fails, the cgroup counts as new; the call below fails as well.
        let is_there = self.inner.exists(&spec.name).await.unwrap_or_default();
        let begun = Instant::now();
        let result = self.inner.ensure(spec).await;
        let operation = if is_there { "update" } else { "create" };
        self.metrics.observe_cgroup(operation, begun.elapsed().as_secs_f64());
        result
    }
    async fn update(&self, spec: &CgroupSpec) -> Result<(), CgroupError> {
        let begun = Instant::now();
        let result = self.inner.update(spec).await;
        self.metrics.observe_cgroup("update", begun.elapsed().as_secs_f64());
        result
    }
    async fn exists(&self, name: &CgroupName) -> Result<bool, CgroupError> {
        self.inner.exists(name).await
    }
    fn removals(&self, above: Vec<CgroupName>) -> BoxStream<'static, CgroupName> {
        self.inner.removals(above)
    }
    async fn destroy(&self, name: &CgroupName) -> Result<(), CgroupError> {
        let begun = Instant::now();
        let result = self.inner.destroy(name).await;
        self.metrics.observe_cgroup("destroy", begun.elapsed().as_secs_f64());
        result
    }
    async fn children(&self, name: &CgroupName) -> Result<Vec<String>, CgroupError> {
        self.inner.children(name).await
    }
}

/// Hooks, with a count of those with the scheme HTTPS that were answered in plain HTTP.
pub struct MeteredHttpHooks {
    inner: Arc<dyn HttpHooks>,
    metrics: Arc<AgentMetrics>,
}

impl MeteredHttpHooks {
    pub fn new(inner: Arc<dyn HttpHooks>, metrics: Arc<AgentMetrics>) -> Self {
        Self { inner, metrics }
    }
}

#[async_trait]
impl HttpHooks for MeteredHttpHooks {
    async fn get(&self, hook: &HttpHook) -> Result<HookAnswer, String> {
        let answer = self.inner.get(hook).await;
        if answer == Ok(HookAnswer::AnsweredWithoutTls) {
            self.metrics.count_hook_fallback();
        }
        answer
    }
}

/// The Node object, with an eye on how a new node comes to be ready.
pub struct MeteredNodeApi {
    inner: Arc<dyn NodeApi>,
    metrics: Arc<AgentMetrics>,
}

impl MeteredNodeApi {
    pub fn new(inner: Arc<dyn NodeApi>, metrics: Arc<AgentMetrics>) -> Self {
        Self { inner, metrics }
    }

    fn note_if_ready(&self, node: &Node) {
        let conditions =
            node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        if conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True") {
            self.metrics.cluster.node_ready();
        }
    }
}

#[async_trait]
impl NodeApi for MeteredNodeApi {
    async fn get(&self, name: &str) -> Result<Arc<Node>, ApiError> {
        self.inner.get(name).await
    }
    async fn create(&self, node: &Node) -> Result<Arc<Node>, ApiError> {
        self.metrics.cluster.node_registering();
        let made = self.inner.create(node).await?;
        self.metrics.cluster.node_registered();
        self.note_if_ready(&made);
        Ok(made)
    }
    async fn patch(&self, name: &str, patch: &Value) -> Result<Arc<Node>, ApiError> {
        self.inner.patch(name, patch).await
    }
    async fn patch_status(
        &self,
        name: &str,
        patch: &Value,
        patience: Duration,
    ) -> Result<Arc<Node>, ApiError> {
        let node = self.inner.patch_status(name, patch, patience).await?;
        self.note_if_ready(&node);
        Ok(node)
    }
    fn watch(&self, name: &str) -> BoxStream<'static, ObservedObject<Node>> {
        self.inner.watch(name)
    }
}

/// Counts started containers by the Events that tell of them, and hands the Events on.
pub struct MeteredEvents {
    inner: Arc<dyn EventSink>,
    metrics: Arc<AgentMetrics>,
}

impl MeteredEvents {
    pub fn new(inner: Arc<dyn EventSink>, metrics: Arc<AgentMetrics>) -> Self {
        Self { inner, metrics }
    }
}

impl EventSink for MeteredEvents {
    fn record(&self, about: &EventSubject, event: &ApiEvent) {
        if let (Some((kind, _)), "Started") = (&event.container, event.reason.as_str()) {
            self.metrics.container_started(*kind);
        }
        if let (EventSubject::Pod { uid, .. }, "Pulling" | "Pulled" | "Failed") =
            (about, event.reason.as_str())
        {
            self.metrics.pods.track_image_pull(uid, event.reason == "Pulling");
        }
        self.inner.record(about, event);
    }
}

impl EngineMetrics for AgentMetrics {
    fn step(&self, event: &'static str, took: Duration) {
        self.observe_step(event, took.as_secs_f64());
    }
    fn relist(&self, took: Duration) {
        self.observe_relist(took.as_secs_f64());
    }
    fn pod_relist(&self, took: Duration) {
        self.observe_pod_relist(took.as_secs_f64());
    }
    fn pod_status(&self, seen: &PodStatusUpdate<'_>) {
        self.pods.status(seen, self.now());
    }
    fn status_synced(&self, took: Duration) {
        self.cluster.status_synced(took);
    }
    fn plan_started(&self, pod: &PodUid) {
        self.count_plan();
        self.pods.plan_started(pod);
    }
    fn plan_ended(&self, pod: &PodUid, ending: bool, took: Duration) {
        self.pods.plan_ended(pod, ending, took);
    }
    fn volume_set_up(&self, plugin: &str, ok: bool, took: Duration) {
        self.observe_volume(plugin, ok, took.as_secs_f64());
    }
    fn probe(&self, of: &ProbeIdentity<'_>, outcome: &ProbeOutcome, took: Duration) {
        self.probes.observe(of, outcome, took.as_secs_f64());
    }
    fn record_sleep_cut_short(&self) {
        self.sleep_cut_short();
    }
    fn eviction_figures_age(&self, signal: &str, age: Duration) {
        self.observe_eviction_figures_age(signal, age.as_secs_f64());
    }
    fn record_watcher_cut(&self) {
        self.pod_watch_event_dropped();
    }
    fn record_sweep(&self, pods: usize, failed: usize) {
        self.set_cleaned_volumes(pods, failed);
    }
    fn forget(&self, pod: &PodUid) {
        self.probes.forget(pod);
        self.pods.forget(pod);
    }
}

impl ApiRequestMetrics for AgentMetrics {
    fn request(&self, request: &ApiRequest<'_>) {
        self.cluster.request(request);
    }
}

#[cfg(test)]
pub(crate) mod tests;
