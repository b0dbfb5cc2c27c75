//! Ports to programs beside the agent that count what goes through them.

use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use model::credentials::{CredentialPlugin, DockerConfigFile};
use model::csi::{Abilities, DriverNode, Expand, PluginInfo, Publish, Stage, Told};
use ports::{CsiDrivers, CsiError, PluginError, PluginSockets, RegistryCredentials, SocketNotice};
use tokio::time::Instant;

use crate::metrics::{AgentMetrics, SocketState};

/// Storage drivers whose calls are timed.
pub struct MeteredDrivers {
    inner: Arc<dyn CsiDrivers>,
    metrics: Arc<AgentMetrics>,
}

impl MeteredDrivers {
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
            // Nobody was called.
            Err(CsiError::NotRegistered { .. }) => return answer,
            Err(CsiError::Rpc { code, .. }) => code,
        };
        let method = format!("/csi.v1.Node/{method}");
        self.metrics.plugins.observe_driver_call(driver, &method, code, begun.elapsed());
        answer
    }
}

#[async_trait]
impl CsiDrivers for MeteredDrivers {
    fn place(&self, driver: &str, endpoint: Option<&str>) {
        self.inner.place(driver, endpoint);
    }
    async fn node_info(&self, driver: &str) -> Result<DriverNode, CsiError> {
        self.timed(driver, "NodeGetInfo", self.inner.node_info(driver)).await
    }
    async fn abilities(&self, driver: &str) -> Result<Abilities, CsiError> {
        self.timed(driver, "NodeGetCapabilities", self.inner.abilities(driver)).await
    }
    async fn stage(&self, driver: &str, call: &Stage) -> Result<(), CsiError> {
        self.timed(driver, "NodeStageVolume", self.inner.stage(driver, call)).await
    }
    async fn publish(&self, driver: &str, call: &Publish) -> Result<(), CsiError> {
        self.timed(driver, "NodePublishVolume", self.inner.publish(driver, call)).await
    }
    async fn unpublish(&self, driver: &str, handle: &str, target: &str) -> Result<(), CsiError> {
        self.timed(driver, "NodeUnpublishVolume", self.inner.unpublish(driver, handle, target)).await
    }
    async fn unstage(&self, driver: &str, handle: &str, staging: &str) -> Result<(), CsiError> {
        self.timed(driver, "NodeUnstageVolume", self.inner.unstage(driver, handle, staging)).await
    }
    async fn expand(&self, driver: &str, call: &Expand) -> Result<(), CsiError> {
        self.timed(driver, "NodeExpandVolume", self.inner.expand(driver, call)).await
    }
    async fn tell(&self, driver: &str, handle: &str, path: &str) -> Result<Told, CsiError> {
        self.timed(driver, "NodeGetVolumeStats", self.inner.tell(driver, handle, path)).await
    }
}

/// Sockets of plugins that are counted.
pub struct MeteredSockets {
    inner: Arc<dyn PluginSockets>,
    metrics: Arc<AgentMetrics>,
}

impl MeteredSockets {
    pub fn new(inner: Arc<dyn PluginSockets>, metrics: Arc<AgentMetrics>) -> Self {
        Self { inner, metrics }
    }
}

#[async_trait]
impl PluginSockets for MeteredSockets {
    fn watch(&self) -> BoxStream<'static, SocketNotice> {
        let metrics = self.metrics.clone();
        let count = move |notice: &SocketNotice| match notice {
            SocketNotice::Came { path } => metrics.plugins.socket_is(path, SocketState::Seen),
            SocketNotice::Gone { path } => metrics.plugins.socket_is_gone(path),
        };
        self.inner.watch().inspect(count).boxed()
    }
    async fn info(&self, socket: &str) -> Result<PluginInfo, CsiError> {
        self.inner.info(socket).await
    }
    async fn notify(&self, socket: &str, trouble: Option<&str>) -> Result<(), CsiError> {
        let told = self.inner.notify(socket, trouble).await;
        if told.is_ok() && trouble.is_none() {
            self.metrics.plugins.socket_is(socket, SocketState::Registered);
        }
        told
    }
}

/// Credential plugins whose answers are timed.
pub struct MeteredCredentials {
    inner: Arc<dyn RegistryCredentials>,
    metrics: Arc<AgentMetrics>,
}

impl MeteredCredentials {
    pub fn new(inner: Arc<dyn RegistryCredentials>, metrics: Arc<AgentMetrics>) -> Self {
        Self { inner, metrics }
    }
}

#[async_trait]
impl RegistryCredentials for MeteredCredentials {
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
