//! Sizes of volumes. Counting files takes long, and CSI drivers may take longer, so volumes are measured in the
//! background: at most once per period and pod, and only when a request asks for them.
//!
//! ```text
//!   request ──> cached, and younger than the period? ──no──> measured in the background ──> cached
//!           ──> the cached sizes are returned; requests for volumes that were never measured wait up to FIRST_WAIT
//! ```
//! CSI volumes are measured separately from the others. A driver that hangs delays only its own volumes, and their last
//! sizes are reported until it answers.

mod by_driver;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use model::volume::MeasuredVolume;
use model::{FullName, PodUid, Wall};
use ports::{CsiDrivers, EventSink, FilesystemFigures, TreeFigures, TreeSource, UsageReader, WallClock};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use super::{StatsPorts, StatsSettings};
use crate::metrics::AgentMetrics;

/// How long a request waits for volumes that were never measured, counted from the begin of their measurement.
const FIRST_WAIT: Duration = Duration::from_secs(2);
/// Pods that are measured at the same time.
const MAX_PARALLEL_MEASUREMENTS: usize = 2;
/// Time limit for counting the files of a volume. The next request after the period tries again.
const TREE_TIMEOUT: Duration = Duration::from_secs(120);
/// Time limit for statfs. A filesystem that does not answer delays the pod's other volumes that long.
const STATFS_TIMEOUT: Duration = Duration::from_secs(5);

/// What is known of one volume.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct VolumeFigures {
    pub volume: MeasuredVolume,
    pub at: Wall,
    pub filesystem: FilesystemFigures,
    pub used: TreeFigures,
    /// The health that its driver reports.
    pub abnormal: Option<bool>,
}

/// Sizes by pod.
pub(crate) type VolumeStatsByPod = BTreeMap<PodUid, Vec<Arc<VolumeFigures>>>;

/// A pod, and those of its volumes whose sizes are requested.
#[derive(Clone, Debug)]
pub(super) struct PodVolumes {
    pub uid: PodUid,
    pub name: FullName,
    pub volumes: Vec<MeasuredVolume>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum StatsSource {
    Host,
    Driver,
}

/// The volumes that are measured together: those of one pod, by the host or by drivers.
type MeasurementKey = (PodUid, StatsSource);

#[derive(Default)]
struct VolumeCache {
    sizes: BTreeMap<MeasurementKey, (Instant, Vec<Arc<VolumeFigures>>)>,
    /// With the time at which the measurement began.
    in_progress: BTreeMap<MeasurementKey, Instant>,
}

pub(super) struct VolumeSizes {
    usage: Arc<dyn UsageReader>,
    drivers: Option<Arc<dyn CsiDrivers>>,
    events: Arc<dyn EventSink>,
    wall: Arc<dyn WallClock>,
    metrics: Arc<AgentMetrics>,
    /// `None`: sizes are not reported.
    period: Option<Duration>,
    health: bool,
    known: watch::Sender<VolumeCache>,
    measurement_slots: Semaphore,
}

impl VolumeSizes {
    pub fn new(ports: &StatsPorts, settings: &StatsSettings, metrics: Arc<AgentMetrics>) -> Arc<Self> {
        Arc::new(Self {
            usage: ports.usage.clone(),
            drivers: ports.drivers.clone(),
            events: ports.events.clone(),
            wall: ports.wall.clone(),
            metrics,
            period: settings.volume_period,
            health: settings.volume_health,
            known: watch::Sender::new(VolumeCache::default()),
            measurement_slots: Semaphore::new(MAX_PARALLEL_MEASUREMENTS),
        })
    }

    /// The sizes of these pods' volumes, as far as they are cached or measured within [`FIRST_WAIT`].
    pub async fn of(self: &Arc<Self>, pods: Vec<PodVolumes>) -> VolumeStatsByPod {
        let Some(period) = self.period else { return VolumeStatsByPod::new() };
        let parts: BTreeMap<MeasurementKey, PodVolumes> = pods.into_iter().flat_map(parts).collect();
        let wanted: BTreeSet<MeasurementKey> = parts.keys().cloned().collect();
        for (part, asked) in self.take_due(parts, &wanted, period) {
            let this = self.clone();
            tokio::spawn(async move { this.measure(part, asked).await });
        }
        self.wait_for_first(&wanted).await;
        let (known, mut sizes) = (self.known.borrow(), VolumeStatsByPod::new());
        for part in &wanted {
            if let Some((_, figures)) = known.sizes.get(part) {
                sizes.entry(part.0.clone()).or_default().extend(figures.iter().cloned());
            }
        }
        sizes
    }

    fn take_due(
        &self,
        parts: BTreeMap<MeasurementKey, PodVolumes>,
        wanted: &BTreeSet<MeasurementKey>,
        period: Duration,
    ) -> Vec<(MeasurementKey, PodVolumes)> {
        let (now, mut due) = (Instant::now(), Vec::new());
        self.known.send_modify(|known| {
            // No request named this pod for two periods: it is gone.
            known.sizes.retain(|part, (at, _)| wanted.contains(part) || now.duration_since(*at) < period * 2);
            for (part, asked) in parts {
                let old = known.sizes.get(&part).is_none_or(|(at, _)| now.duration_since(*at) >= period);
                if old && !known.in_progress.contains_key(&part) {
                    known.in_progress.insert(part.clone(), now);
                    due.push((part, asked));
                }
            }
        });
        due
    }

    /// Volumes that take longer are in a later answer. Later requests do not wait for them again.
    async fn wait_for_first(&self, wanted: &BTreeSet<MeasurementKey>) {
        let awaited: BTreeMap<MeasurementKey, Instant> = {
            let known = self.known.borrow();
            let new = known.in_progress.iter().filter(|(part, _)| !known.sizes.contains_key(*part));
            let new = new.filter(|(part, _)| wanted.contains(*part));
            new.map(|(part, begun)| (part.clone(), *begun + FIRST_WAIT)).collect()
        };
        let Some(until) = awaited.values().max() else { return };
        let mut told = self.known.subscribe();
        let all = told.wait_for(|known| awaited.keys().all(|part| known.sizes.contains_key(part)));
        let _ = tokio::time::timeout_at(*until, all).await;
    }

    async fn measure(&self, part: MeasurementKey, asked: PodVolumes) {
        let found = match part.1 {
            StatsSource::Host => self.measure_by_host(asked).await,
            StatsSource::Driver => {
                let known = self.known.borrow().sizes.get(&part).map(|(_, figures)| figures.clone());
                self.measure_by_driver(asked, known.unwrap_or_default()).await
            }
        };
        self.known.send_modify(|known| {
            known.in_progress.remove(&part);
            known.sizes.insert(part, (Instant::now(), found));
        });
    }

    async fn measure_by_host(&self, asked: PodVolumes) -> Vec<Arc<VolumeFigures>> {
        let mut found = Vec::new();
        let _place = self.measurement_slots.acquire().await;
        for volume in asked.volumes {
            let patience = if volume.ephemeral { TREE_TIMEOUT } else { STATFS_TIMEOUT };
            let name = volume.name.clone();
            match tokio::time::timeout(patience, self.measure_one(volume)).await {
                Ok(figures) => found.extend(figures.map(Arc::new)),
                Err(_) => {
                    tracing::warn!(pod_uid = %asked.uid, volume = name, "measuring the volume timed out")
                }
            }
        }
        found
    }

    /// `None` when the volume is not there (yet).
    async fn measure_one(&self, volume: MeasuredVolume) -> Option<VolumeFigures> {
        let (begun, at) = (Instant::now(), self.wall.wall());
        let filesystem = self.usage.filesystem(&volume.path).await.ok()?;
        let measured = match volume.ephemeral {
            true => self.usage.tree(&volume.path).await.map(|(used, source)| (used, source_name(source))),
            false => {
                let inodes = filesystem.inodes.saturating_sub(filesystem.inodes_free);
                Ok((TreeFigures { bytes: filesystem.used_bytes, inodes }, "statfs"))
            }
        };
        let (used, source) = measured
            .inspect_err(|error| tracing::debug!(path = volume.path, %error, "measuring the volume failed"))
            .ok()?;
        self.metrics.observe_volume_size(source, begun.elapsed().as_secs_f64());
        Some(VolumeFigures { volume, at, filesystem, used, abnormal: None })
    }
}

/// The kubelet's word for it in the metric.
fn source_name(source: TreeSource) -> &'static str {
    match source {
        TreeSource::Walk => "du",
        TreeSource::ProjectQuota => "fsquota",
    }
}

/// Splits a pod's volumes into those that the host measures and those that drivers do.
fn parts(asked: PodVolumes) -> impl Iterator<Item = (MeasurementKey, PodVolumes)> {
    let PodVolumes { uid, name, volumes } = asked;
    let (drivers, host): (Vec<_>, Vec<_>) =
        volumes.into_iter().partition(|volume| volume.of_driver.is_some());
    let parts = [(StatsSource::Host, host), (StatsSource::Driver, drivers)];
    parts.into_iter().filter(|(_, volumes)| !volumes.is_empty()).map(move |(teller, volumes)| {
        ((uid.clone(), teller), PodVolumes { uid: uid.clone(), name: name.clone(), volumes })
    })
}
