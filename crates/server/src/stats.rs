//! What the node, its pods and their containers use: `/stats/summary` and `/metrics/resource`.
//!
//! Nothing is read unless somebody asks, and one reading serves all who asked before it began: an answer is never
//! older than its question.

mod cadvisor;
mod family;
mod resource;
mod summary;

use std::sync::Arc;

use model::observed::ContainerState;
use model::{ContainerId, Wall};
use ports::{
    AgentView, CgroupUsage, ContainerFilter, FilesystemFigures, Images, InterfaceFigures, MachineUsage,
    Runtime, UsageReader,
};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::endpoints::{Unanswered, ask};

/// Why there are no figures.
#[derive(thiserror::Error, Debug)]
pub(crate) enum StatsError {
    #[error("failed to list pods: {0}")]
    Pods(#[from] Unanswered),
    #[error("failed to get root cgroup stats: {0}")]
    Machine(#[source] std::io::Error),
    #[error("failed to get rootFs stats: {0}")]
    RootFs(#[source] std::io::Error),
    #[error("failed to get imageFs stats: {0}")]
    ImageFs(String),
}

pub(crate) struct PodFigures {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// As the driver spells it.
    pub cgroup: String,
    pub sandbox: String,
    pub started: Wall,
    pub usage: Option<CgroupUsage>,
    pub interfaces: Vec<InterfaceFigures>,
    pub containers: Vec<ContainerFigures>,
}

pub(crate) struct ContainerFigures {
    pub id: ContainerId,
    pub name: String,
    pub started: Wall,
    pub log_dir: String,
    pub cgroup: String,
    pub image: String,
    pub usage: CgroupUsage,
}

/// One look at everything that has a cgroup.
pub(crate) struct Reading {
    pub machine: MachineUsage,
    pub pods: Vec<PodFigures>,
}

/// Reads, and shares what was read.
pub struct NodeStats {
    agent: Arc<dyn AgentView>,
    usage: Arc<dyn UsageReader>,
    runtime: Arc<dyn Runtime>,
    images: Arc<dyn Images>,
    node_name: String,
    root_dir: String,
    last: Mutex<Option<(Instant, Arc<Reading>)>>,
}

impl NodeStats {
    pub fn new(
        agent: Arc<dyn AgentView>,
        usage: Arc<dyn UsageReader>,
        runtime: Arc<dyn Runtime>,
        images: Arc<dyn Images>,
        node_name: &str,
        root_dir: &str,
    ) -> Self {
        let (node_name, root_dir) = (node_name.to_owned(), root_dir.to_owned());
        Self { agent, usage, runtime, images, node_name, root_dir, last: Mutex::new(None) }
    }

    /// A reading that began after this was called.
    async fn reading(&self) -> Result<Arc<Reading>, StatsError> {
        let asked = Instant::now();
        let mut last = self.last.lock().await;
        if let Some((begun, reading)) = &*last
            && *begun > asked
        {
            return Ok(reading.clone());
        }
        let begun = Instant::now();
        let reading = Arc::new(self.read().await?);
        *last = Some((begun, reading.clone()));
        Ok(reading)
    }

    async fn read(&self) -> Result<Reading, StatsError> {
        let machine = self.usage.machine().await.map_err(StatsError::Machine)?;
        let mut pods = Vec::new();
        for pod in ask(self.agent.insides()).await? {
            let Some(observed) = &pod.observed else { continue };
            let Some(sandbox) = observed.sandboxes.iter().find(|sandbox| sandbox.ready) else { continue };
            let Some(cgroup) = &pod.cgroup else { continue };
            let mut containers = Vec::new();
            for container in observed.containers.iter().filter(|c| c.state == ContainerState::Running) {
                let Some(path) = self.usage.container_cgroup(cgroup, container.id.as_str()).await else {
                    continue;
                };
                let Some(usage) = self.usage.cgroup(&path).await else { continue };
                let log_dir = container.log_path.rsplit_once('/').map_or("", |(dir, _)| dir).to_owned();
                let (id, name) = (container.id.clone(), container.name.clone());
                containers.push(ContainerFigures {
                    id,
                    name,
                    started: container.started_at,
                    log_dir,
                    cgroup: path,
                    image: container.image.clone(),
                    usage,
                });
            }
            containers.sort_by(|a, b| a.name.cmp(&b.name));
            pods.push(PodFigures {
                namespace: observed.full_name.namespace.to_string(),
                name: observed.full_name.name.to_string(),
                uid: pod.uid.to_string(),
                cgroup: cgroup.clone(),
                sandbox: sandbox.id.to_string(),
                started: sandbox.created_at,
                usage: self.usage.cgroup(cgroup).await,
                interfaces: self.usage.interfaces(cgroup).await,
                containers,
            });
        }
        Ok(Reading { machine, pods })
    }

    /// The text of `/metrics/resource`.
    pub(crate) async fn resource_metrics(&self) -> String {
        match self.reading().await {
            Ok(reading) => resource::text(Some(&reading)),
            Err(error) => {
                tracing::warn!(%error, "resource metrics");
                resource::text(None)
            }
        }
    }

    /// The text of `/metrics/cadvisor`.
    pub(crate) async fn cgroup_metrics(&self) -> String {
        match self.reading().await {
            Ok(reading) => cadvisor::text(Some(&reading)),
            Err(error) => {
                tracing::warn!(%error, "cgroup metrics");
                cadvisor::text(None)
            }
        }
    }

    /// The object of `/stats/summary`.
    pub(crate) async fn summary(&self, only_cpu_and_memory: bool) -> Result<serde_json::Value, StatsError> {
        let reading = self.reading().await?;
        if only_cpu_and_memory {
            return Ok(summary::lean(&self.node_name, &reading));
        }
        let root_fs = self.usage.filesystem(&self.root_dir).await.map_err(StatsError::RootFs)?;
        let disks = self.disks(&reading, root_fs).await?;
        Ok(summary::full(&self.node_name, &reading, &disks))
    }

    async fn disks(&self, reading: &Reading, root: FilesystemFigures) -> Result<summary::Disks, StatsError> {
        let failed = |error: &dyn ToString| StatsError::ImageFs(error.to_string());
        let (images, containers) = self.images.image_fs_info().await.map_err(|error| failed(&error))?;
        let images = images.into_iter().next();
        let place = images.as_ref().map(|found| found.mountpoint.clone()).unwrap_or_default();
        let image_fs = match place.is_empty() {
            true => root.clone(),
            false => self.usage.filesystem(&place).await.map_err(|error| failed(&error))?,
        };
        let mut layers = std::collections::BTreeMap::new();
        // A runtime that can't tell leaves these figures out.
        for stats in self.runtime.list_container_stats(&ContainerFilter::default()).await.unwrap_or_default()
        {
            layers.extend(stats.writable_layer.map(|layer| (stats.id, layer)));
        }
        let mut logs = std::collections::BTreeMap::new();
        for container in reading.pods.iter().flat_map(|pod| &pod.containers) {
            if let Some(size) = self.usage.directory(&container.log_dir).await {
                logs.insert(container.id.to_string(), size);
            }
        }
        let container_use = containers.into_iter().next().or_else(|| images.clone());
        Ok(summary::Disks { root, image_fs, image_use: images, container_use, layers, logs })
    }
}

#[cfg(test)]
mod tests;
