//! What the node, its pods and their containers use: `/stats/summary`, `/metrics/resource` and `/metrics/cadvisor`.
//!
//! ```text
//!   summary ──┐                      ┌── cgroups, /proc  (one batch)
//!   resource ─┼──> Shared<Reading> ──┤
//!   cadvisor ─┘                      └── the agent's pods; with a gate, their figures from the runtime
//!   cadvisor ────> Shared<RuntimeMetrics>, with the same gate
//!   summary ─────> Shared<Disks>  ──── the runtime's layers and images
//!   summary ─┬───> Shared<Logs>   ──── sizes of logs
//!   /metrics ┴───> Shared<records of pulls>
//!   summary ─────> VolumeSizes    ──── files of volumes and storage drivers, beside the answers
//! ```
//!
//! Usage is read on demand. A reading is reused while it is younger than the endpoint allows.

mod cadvisor;
mod disks;
mod family;
mod figures;
mod of_runtime;
mod reading;
mod resource;
mod runtime_metrics;
mod shared;
mod summary;
mod volumes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use model::FullName;
use ports::{
    AgentView, CgroupDetailLevel, CsiDrivers, EventSink, Images, Runtime, RuntimeError, UsageReader,
    WallClock,
};

use crate::endpoints::AgentUnavailable;
use crate::log_rate_limit::LogRateLimiter;
use crate::metrics::AgentMetrics;
use disks::{DiskReading, Logs};
use figures::{ContainerFigures, PodFigures};
use of_runtime::RuntimeFigures;
use reading::StatsReading;
use runtime_metrics::RuntimeMetrics;
use shared::SharedReading;
pub(crate) use volumes::VolumeFigures;
use volumes::{PodVolumes, VolumeSizes};

/// How old a reading may be for a response. Scrapers request several endpoints within a moment, and each sample carries
/// the time of its reading.
const MAX_READING_AGE: Duration = Duration::from_secs(1);
/// The same for usage of the disk. It is more expensive: the runtime looks at every container for its layers, and logs
/// are one or more files each.
const MAX_DISK_READING_AGE: Duration = Duration::from_secs(10);

/// Why usage could not be read.
#[derive(thiserror::Error, Debug)]
pub(crate) enum StatsError {
    #[error("failed to list pods: {0}")]
    Pods(#[from] AgentUnavailable),
    #[error("failed to get root cgroup stats: {0}")]
    Machine(#[source] std::io::Error),
    #[error("failed to get rootFs stats: {0}")]
    RootFs(#[source] std::io::Error),
    #[error("failed to get imageFs stats: {0}")]
    ImageFs(String),
    #[error("failed to list pod stats: {0}")]
    Runtime(#[source] RuntimeError),
    #[error("failed to list pod metrics: {0}")]
    RuntimeMetrics(#[source] RuntimeError),
}

/// The ports that usage is read from.
pub struct StatsPorts {
    pub agent: Arc<dyn AgentView>,
    pub usage: Arc<dyn UsageReader>,
    pub runtime: Arc<dyn Runtime>,
    pub images: Arc<dyn Images>,
    /// CSI drivers. `None`: there are none.
    pub drivers: Option<Arc<dyn CsiDrivers>>,
    pub events: Arc<dyn EventSink>,
    pub wall: Arc<dyn WallClock>,
}

#[derive(Clone, Debug, Default)]
pub struct StatsSettings {
    pub node_name: String,
    pub root_dir: String,
    /// The cgroup above all pods, as the driver spells it.
    pub pods_cgroup: Option<String>,
    /// Of the container runtime, where it is known.
    pub runtime_cgroup: Option<String>,
    /// Of everything else, where it is known.
    pub system_cgroup: Option<String>,
    /// How often files of volumes are counted at most. `None`: never.
    pub volume_period: Option<Duration>,
    /// The health that drivers report of volumes is shown.
    pub volume_health: bool,
    /// Usage of pods and containers comes from the runtime, and from cgroups only if the runtime does not support that.
    pub stats_from_runtime: bool,
}

/// Reads usage, and shares readings between requests.
pub struct NodeStats {
    ports: StatsPorts,
    settings: StatsSettings,
    reading: SharedReading<StatsReading>,
    of_runtime: RuntimeFigures,
    runtime_metrics: SharedReading<RuntimeMetrics>,
    disks: SharedReading<DiskReading>,
    logs: SharedReading<Logs>,
    pull_records: SharedReading<[u64; 2]>,
    /// Limits log lines about readings that failed.
    failures: LogRateLimiter,
    volumes: Arc<VolumeSizes>,
}

impl NodeStats {
    pub fn new(ports: StatsPorts, settings: StatsSettings, metrics: Arc<AgentMetrics>) -> Self {
        if settings.stats_from_runtime {
            metrics.figures_come_from_the_runtime();
        }
        let volumes = VolumeSizes::new(&ports, &settings, metrics);
        Self {
            ports,
            settings,
            reading: SharedReading::default(),
            of_runtime: RuntimeFigures::default(),
            runtime_metrics: SharedReading::default(),
            disks: SharedReading::default(),
            logs: SharedReading::default(),
            pull_records: SharedReading::default(),
            failures: LogRateLimiter::default(),
            volumes,
        }
    }

    async fn reading(&self, depth: CgroupDetailLevel) -> Result<Arc<StatsReading>, StatsError> {
        let read = reading::read(&self.ports, &self.of_runtime, &self.settings, depth);
        self.reading.get(MAX_READING_AGE, |reading| reading.depth >= depth, read).await
    }

    /// The text of `/metrics/resource`.
    pub(crate) async fn resource_metrics(&self) -> String {
        match self.reading(CgroupDetailLevel::Basic).await {
            Ok(reading) => resource::text(Some(&reading)),
            Err(error) => {
                self.failed("resource metrics", &error);
                resource::text(None)
            }
        }
    }

    /// The text of `/metrics/cadvisor`.
    pub(crate) async fn cgroup_metrics(&self) -> String {
        if self.settings.stats_from_runtime {
            return self.metrics_of_runtime().await;
        }
        match self.reading(CgroupDetailLevel::Full).await {
            Ok(reading) => cadvisor::text(Some(&reading)),
            Err(error) => {
                self.failed("cgroup metrics", &error);
                cadvisor::text(None)
            }
        }
    }

    async fn metrics_of_runtime(&self) -> String {
        let read = RuntimeMetrics::read(&*self.ports.runtime);
        let told = self.runtime_metrics.get(MAX_READING_AGE, |_| true, read).await;
        let told = told.inspect_err(|error| self.failed("metrics of the runtime", error)).ok();
        let machine = self.ports.usage.machine(CgroupDetailLevel::Basic).await.map_err(StatsError::Machine);
        let machine = machine.inspect_err(|error| self.failed("metrics of the machine", error)).ok();
        cadvisor::text_of_runtime(machine.as_ref(), told.as_deref())
    }

    /// The JSON of `/stats/summary`.
    pub(crate) async fn summary(&self, only_cpu_and_memory: bool) -> Result<Vec<u8>, StatsError> {
        let reading = self.reading(CgroupDetailLevel::Basic).await?;
        let node = &self.settings.node_name;
        let summary = match only_cpu_and_memory {
            true => summary::to_json(&summary::cpu_and_memory_summary(node, &reading)),
            false => {
                let disks = self.disks(&reading).await?;
                let volumes = self.volumes.of(reading.pods.iter().map(asked).collect()).await;
                summary::to_json(&summary::full_summary(node, &reading, &disks, &volumes))
            }
        };
        Ok(summary)
    }

    async fn disks(&self, reading: &StatsReading) -> Result<Arc<DiskReading>, StatsError> {
        let read = disks::read(&self.ports, &self.settings.root_dir, reading, self.logs(reading));
        self.disks.get(MAX_DISK_READING_AGE, |disks| disks.covers(reading), read).await
    }

    async fn logs(&self, reading: &StatsReading) -> std::io::Result<Arc<Logs>> {
        let read = disks::logs(&*self.ports.usage, reading);
        self.logs.get(MAX_DISK_READING_AGE, |logs| disks::covers_logs(logs, reading), read).await
    }

    fn failed(&self, what: &str, error: &StatsError) {
        if let Some(suppressed) = self.failures.permit() {
            tracing::warn!(%error, suppressed, "reading usage for {what} failed");
        }
    }

    /// Bytes of logs by container, for `/metrics`: pod UID, namespace, pod, container.
    pub(crate) async fn log_sizes(&self) -> Vec<([String; 4], u64)> {
        let Ok(reading) = self.reading(CgroupDetailLevel::Basic).await else { return Vec::new() };
        let Ok(logs) = self.logs(&reading).await else { return Vec::new() };
        let of = |(pod, container): (&PodFigures, &ContainerFigures)| {
            let owner =
                [pod.uid.to_string(), pod.namespace.clone(), pod.name.clone(), container.name.clone()];
            Some((owner, logs.get(container.id.as_str())?.bytes))
        };
        let all = reading.pods.iter().flat_map(|pod| pod.containers.iter().map(move |one| (pod, one)));
        all.filter_map(of).collect()
    }

    /// What is known of volumes behind claims, by namespace and claim.
    pub(crate) async fn claims(&self) -> Vec<([String; 2], VolumeFigures)> {
        let Ok(reading) = self.reading(CgroupDetailLevel::Basic).await else { return Vec::new() };
        let pods = reading.pods.iter().filter(|pod| pod.volumes.iter().any(|volume| volume.claim.is_some()));
        let sizes = self.volumes.of(pods.map(asked).collect()).await;
        let mut claims = BTreeMap::new();
        for pod in &reading.pods {
            for figures in sizes.get(&pod.uid).into_iter().flatten() {
                if let Some(claim) = &figures.volume.claim {
                    claims.insert([pod.namespace.clone(), claim.clone()], VolumeFigures::clone(figures));
                }
            }
        }
        claims.into_iter().collect()
    }

    /// How many records there are of pulled images, and of pulls.
    pub(crate) async fn pull_records(&self) -> Option<[u64; 2]> {
        let dirs = ["pulled", "pulling"].map(|dir| format!("{}/image_manager/{dir}", self.settings.root_dir));
        let read = async {
            let found = self.ports.usage.directories(dirs.into()).await.ok();
            // Before the first pull there is no directory, and no record.
            let found = found.into_iter().flatten().map(|records| records.unwrap_or_default().inodes);
            found.collect::<Vec<u64>>().try_into()
        };
        self.pull_records.get(MAX_DISK_READING_AGE, |_| true, read).await.ok().map(|records| *records)
    }
}

fn asked(pod: &PodFigures) -> PodVolumes {
    let name = FullName { namespace: pod.namespace.as_str().into(), name: pod.name.as_str().into() };
    PodVolumes { uid: pod.uid.clone(), name, volumes: pod.volumes.clone() }
}

#[cfg(test)]
mod cost;
#[cfg(test)]
pub(crate) mod tests;
