//! Ports that count what goes through them. The words for the operations are the kubelet's.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use model::cri::{
    ContainerConfig, ContainerStats, ExecResult, FilesystemUsage, Image, ImageSpec, LinuxResources,
    RegistryAuth, RuntimeStatus, RuntimeVersion, SandboxConfig,
};
use model::probe::ProbeOutcome;
use model::{ApiEvent, ContainerId, EventSubject, PodUid, SandboxId};
use ports::{
    ContainerFilter, ContainerInfo, ContainerStatus, EventSink, Images, Runtime, RuntimeError, SandboxFilter,
    SandboxInfo, SandboxStatus, StreamFlags,
};
use tokio::time::Instant;

use crate::metrics::AgentMetrics;

/// A call in progress. One that is dropped unfinished was given up, and counts as failed.
struct Call<'a> {
    metrics: &'a AgentMetrics,
    operation: &'static str,
    /// Of a sandbox that is being made.
    handler: Option<&'a str>,
    begun: Instant,
    ok: bool,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let seconds = self.begun.elapsed().as_secs_f64();
        self.metrics.observe_runtime_call(self.operation, seconds, self.ok);
        if let Some(handler) = self.handler {
            self.metrics.observe_sandbox(handler, seconds, self.ok);
        }
    }
}

async fn count<T>(
    metrics: &AgentMetrics,
    operation: &'static str,
    handler: Option<&str>,
    answer: impl Future<Output = Result<T, RuntimeError>>,
) -> Result<T, RuntimeError> {
    let mut call = Call { metrics, operation, handler, begun: Instant::now(), ok: false };
    let result = answer.await;
    call.ok = result.is_ok();
    result
}

/// Implements a port by handing each call on and counting it. `async_trait` must see the methods, so the whole
/// implementation is made here.
macro_rules! metered {
    ($port:ident for $metered:ident {
        $($operation:literal: $method:ident($($name:ident: $of:ty),*) -> $answer:ty $(, handler $handler:ident)?;)*
    }) => {
        #[async_trait]
        impl $port for $metered {
            $(async fn $method(&self, $($name: $of),*) -> Result<$answer, RuntimeError> {
                #[allow(unused_mut, unused_assignments)]
                let mut handler: Option<&str> = None;
                $(handler = Some($handler);)?
                count(&self.metrics, $operation, handler, self.inner.$method($($name),*)).await
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

    "run_podsandbox": run_pod_sandbox(config: &SandboxConfig, name: &str) -> SandboxId, handler name;
    "stop_podsandbox": stop_pod_sandbox(id: &SandboxId) -> ();
    "remove_podsandbox": remove_pod_sandbox(id: &SandboxId) -> ();
    "podsandbox_status": pod_sandbox_status(id: &SandboxId) -> SandboxStatus;
    "list_podsandbox": list_pod_sandboxes(filter: &SandboxFilter) -> Vec<SandboxInfo>;
    "update_podsandbox_resources": update_pod_sandbox_resources(
        id: &SandboxId, overhead: Option<&LinuxResources>, resources: Option<&LinuxResources>
    ) -> ();

    "create_container": create_container(
        sandbox: &SandboxId, config: &ContainerConfig, sandbox_config: &SandboxConfig
    ) -> ContainerId;
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

metered!(Images for MeteredImages {
    "list_images": list_images() -> Vec<Image>;
    "image_status": image_status(image: &ImageSpec) -> Option<Image>;
    "pull_image": pull_image(
        image: &ImageSpec, auth: Option<&RegistryAuth>, sandbox: Option<&SandboxConfig>
    ) -> String;
    "remove_image": remove_image(image: &ImageSpec) -> ();
    "image_fs_info": image_fs_info() -> (Vec<FilesystemUsage>, Vec<FilesystemUsage>);
});

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
        self.inner.record(about, event);
    }
}

#[cfg(test)]
mod tests;

impl ports::Meter for AgentMetrics {
    fn step(&self, event: &'static str, took: std::time::Duration) {
        self.observe_step(event, took.as_secs_f64());
    }
    fn relist(&self, took: std::time::Duration) {
        self.observe_relist(took.as_secs_f64());
    }
    fn plan_started(&self) {
        AgentMetrics::plan_started(self);
    }
    fn probe(&self, of: &ports::ProbeOf<'_>, outcome: &ProbeOutcome, took: std::time::Duration) {
        self.probes.observe(of, outcome, took.as_secs_f64());
    }
    fn forget_probes(&self, pod: &PodUid) {
        self.probes.forget(pod);
    }
}
