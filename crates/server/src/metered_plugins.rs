//! Ports to programs beside the agent that count what goes through them.

use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use model::credentials::{CredentialPlugin, DockerConfigFile};
use model::csi::{
    DriverNodeInfo, NodeExpandCall, NodePublishCall, NodeServiceCapabilities, NodeStageCall, NodeVolumeStats,
    PluginInfo,
};
use ports::{CsiDrivers, CsiError, PluginError, PluginSocketEvent, PluginSockets, RegistryCredentials};
use tokio::time::Instant;

use crate::metrics::{AgentMetrics, SocketState};

/// Storage drivers whose calls are timed.
pub struct MeteredCsiDrivers {
    inner: Arc<dyn CsiDrivers>,
    metrics: Arc<AgentMetrics>,
}

impl MeteredCsiDrivers {
    pub fn new(inner: Arc<dyn CsiDrivers>, metrics: Arc<AgentMetrics>) -> Self {
        Self { inner, metrics }
    }

    async fn timed<T>(
        &self,
        driver: &str,
        method: &str,
        answer: impl Future<Output = Result<T, CsiError>>,
    ) -> Result<T, CsiError> {
        let begun = Instant::now();
        let answer = answer.await;
        let code = match &answer {
            Ok(_) => "OK",
            // No call was made.
            Err(CsiError::NotRegistered { .. }) => return answer,
            Err(CsiError::Rpc { code, .. }) => code.name(),
        };
        let method = format!("/csi.v1.Node/{method}");
        self.metrics.plugins.observe_driver_call(driver, &method, code, begun.elapsed());
        answer
    }
}

#[async_trait]
impl CsiDrivers for MeteredCsiDrivers {
    fn set_endpoint(&self, driver: &str, endpoint: Option<&str>) {
        self.inner.set_endpoint(driver, endpoint);
    }
    async fn node_get_info(&self, driver: &str) -> Result<DriverNodeInfo, CsiError> {
        self.timed(driver, "NodeGetInfo", self.inner.node_get_info(driver)).await
    }
    async fn node_get_capabilities(&self, driver: &str) -> Result<NodeServiceCapabilities, CsiError> {
        self.timed(driver, "NodeGetCapabilities", self.inner.node_get_capabilities(driver)).await
    }
    async fn node_stage_volume(&self, driver: &str, call: &NodeStageCall) -> Result<(), CsiError> {
        self.timed(driver, "NodeStageVolume", self.inner.node_stage_volume(driver, call)).await
    }
    async fn node_publish_volume(&self, driver: &str, call: &NodePublishCall) -> Result<(), CsiError> {
        self.timed(driver, "NodePublishVolume", self.inner.node_publish_volume(driver, call)).await
    }
    async fn node_unpublish_volume(&self, driver: &str, handle: &str, target: &str) -> Result<(), CsiError> {
        self.timed(driver, "NodeUnpublishVolume", self.inner.node_unpublish_volume(driver, handle, target))
            .await
    }
    async fn node_unstage_volume(&self, driver: &str, handle: &str, staging: &str) -> Result<(), CsiError> {
        self.timed(driver, "NodeUnstageVolume", self.inner.node_unstage_volume(driver, handle, staging)).await
    }
    async fn node_expand_volume(&self, driver: &str, call: &NodeExpandCall) -> Result<(), CsiError> {
        self.timed(driver, "NodeExpandVolume", self.inner.node_expand_volume(driver, call)).await
    }
    async fn node_get_volume_stats(
        &self,
        driver: &str,
        handle: &str,
        path: &str,
    ) -> Result<NodeVolumeStats, CsiError> {
        self.timed(driver, "NodeGetVolumeStats", self.inner.node_get_volume_stats(driver, handle, path)).await
    }
}

/// Sockets of plugins that are counted.
pub struct MeteredPluginSockets {
    inner: Arc<dyn PluginSockets>,
    metrics: Arc<AgentMetrics>,
}

impl MeteredPluginSockets {
    pub fn new(inner: Arc<dyn PluginSockets>, metrics: Arc<AgentMetrics>) -> Self {
        Self { inner, metrics }
    }
}

#[async_trait]
impl PluginSockets for MeteredPluginSockets {
    fn watch(&self) -> BoxStream<'static, PluginSocketEvent> {
        let metrics = self.metrics.clone();
        let count = move |notice: &PluginSocketEvent| match notice {
            PluginSocketEvent::Added { path } => metrics.plugins.set_socket_state(path, SocketState::Seen),
            PluginSocketEvent::Gone { path } => metrics.plugins.remove_socket(path),
        };
        self.inner.watch().inspect(count).boxed()
    }
    async fn get_info(&self, socket: &str) -> Result<PluginInfo, CsiError> {
        self.inner.get_info(socket).await
    }
    async fn notify_registration_status(&self, socket: &str, trouble: Option<&str>) -> Result<(), CsiError> {
        let told = self.inner.notify_registration_status(socket, trouble).await;
        if told.is_ok() && trouble.is_none() {
            self.metrics.plugins.set_socket_state(socket, SocketState::Registered);
        }
        told
    }
}

/// Credential plugins whose answers are timed.
pub struct MeteredRegistryCredentials {
    inner: Arc<dyn RegistryCredentials>,
    metrics: Arc<AgentMetrics>,
}

impl MeteredRegistryCredentials {
    pub fn new(inner: Arc<dyn RegistryCredentials>, metrics: Arc<AgentMetrics>) -> Self {
        Self { inner, metrics }
    }
}

#[async_trait]
impl RegistryCredentials for MeteredRegistryCredentials {
    async fn docker_configs(&self) -> Vec<DockerConfigFile> {
        self.inner.docker_configs().await
    }
    fn plugins(&self) -> &[CredentialPlugin] {
        self.inner.plugins()
    }
    async fn ask(
        &self,
        plugin: &CredentialPlugin,
        image: &str,
        request: &str,
    ) -> Result<Vec<u8>, PluginError> {
        let begun = Instant::now();
        let answer = self.inner.ask(plugin, image, request).await;
        self.metrics.plugins.observe_credential_plugin(&plugin.name, answer.is_ok(), begun.elapsed());
        answer
    }
}

#[cfg(test)]
mod tests;
