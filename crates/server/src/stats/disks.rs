//! What images, layers and logs take on disk.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use model::cri::FilesystemUsage;
use ports::{ContainerFilter, FilesystemFigures, TreeFigures, UsageReader};

use super::{StatsError, StatsPorts, StatsReading};

/// Sizes of logs by container.
pub(super) type Logs = BTreeMap<String, TreeFigures>;

#[derive(Debug, Default)]
pub(super) struct DiskReading {
    pub root: FilesystemFigures,
    pub image_fs: FilesystemFigures,
    pub image_use: Option<FilesystemUsage>,
    pub container_use: Option<FilesystemUsage>,
    /// Writable layers by container.
    pub layers: BTreeMap<String, FilesystemUsage>,
    pub logs: Arc<Logs>,
    /// What the agent itself keeps for a pod, and logs of the pod as a whole, by pod.
    pub pods: BTreeMap<String, TreeFigures>,
}

impl DiskReading {
    /// Whether this reading has all of these pods. If not, it is made again.
    pub fn covers(&self, reading: &StatsReading) -> bool {
        reading.pods.iter().all(|pod| self.pods.contains_key(pod.uid.as_str()))
            && covers_logs(&self.logs, reading)
    }
}

/// The same of logs alone.
pub(super) fn covers_logs(logs: &Logs, reading: &StatsReading) -> bool {
    let mut containers = reading.pods.iter().flat_map(|pod| &pod.containers);
    containers.all(|one| logs.contains_key(one.id.as_str()))
}

pub(super) async fn read(
    ports: &StatsPorts,
    root_dir: &str,
    reading: &StatsReading,
    logs: impl Future<Output = std::io::Result<Arc<Logs>>>,
) -> Result<DiskReading, StatsError> {
    let root = ports.usage.filesystem(root_dir).await.map_err(StatsError::RootFs)?;
    let failed = |error: &dyn ToString| StatsError::ImageFs(error.to_string());
    let (images, containers) = ports.images.image_fs_info().await.map_err(|error| failed(&error))?;
    let image_use = images.into_iter().next();
    let place = image_use.as_ref().map(|found| found.mountpoint.clone()).unwrap_or_default();
    let image_fs = match place.is_empty() {
        true => root.clone(),
        false => ports.usage.filesystem(&place).await.map_err(|error| failed(&error))?,
    };
    // If the runtime can't report the layers, they are left out. With usage from the runtime they are already read.
    let stats = match reading.is_of_runtime {
        true => Vec::new(),
        false => ports.runtime.list_container_stats(&ContainerFilter::default()).await.unwrap_or_default(),
    };
    let layers = stats.into_iter().filter_map(|stats| Some((stats.id, stats.writable_layer?))).collect();
    let logs = logs.await.map_err(StatsError::RootFs)?;
    let pods = pod_files(&*ports.usage, root_dir, reading).await.map_err(StatsError::RootFs)?;
    let container_use = containers.into_iter().next().or_else(|| image_use.clone());
    Ok(DiskReading { root, image_fs, image_use, container_use, layers, logs, pods })
}

/// By container; one without a directory has no bytes.
pub(super) async fn logs(usage: &dyn UsageReader, reading: &StatsReading) -> std::io::Result<Logs> {
    let containers: Vec<_> = reading.pods.iter().flat_map(|pod| &pod.containers).collect();
    let found = usage.directories(containers.iter().map(|one| one.log_dir.clone()).collect()).await?;
    Ok(containers
        .iter()
        .zip(found)
        .map(|(one, size)| (one.id.to_string(), size.unwrap_or_default()))
        .collect())
}

async fn pod_files(
    usage: &dyn UsageReader,
    root_dir: &str,
    reading: &StatsReading,
) -> std::io::Result<BTreeMap<String, TreeFigures>> {
    let mut places = Vec::new();
    for pod in &reading.pods {
        let log_dir = pod.containers.first().and_then(|one| one.log_dir.rsplit_once('/'));
        places.push(log_dir.map(|(dir, _)| dir.to_owned()).unwrap_or_default());
        places.push(format!("{root_dir}/pods/{}/etc-hosts", pod.uid));
    }
    let found = usage.directories(places).await?;
    let sum = |parts: &[Option<TreeFigures>]| {
        parts.iter().flatten().fold(TreeFigures::default(), |sum, part| TreeFigures {
            bytes: sum.bytes.saturating_add(part.bytes),
            inodes: sum.inodes.saturating_add(part.inodes),
        })
    };
    Ok(reading
        .pods
        .iter()
        .zip(found.chunks(2))
        .map(|(pod, parts)| (pod.uid.to_string(), sum(parts)))
        .collect())
}
