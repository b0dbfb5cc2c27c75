//! Sizes of volumes. Counting files takes long, so it is done beside the answers: at most once per period and pod, and
//! only while somebody asks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use model::volume::MeasuredVolume;
use model::{PodUid, Wall};
use ports::{FilesystemFigures, TreeFigures, UsageReader, WallClock};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use crate::metrics::AgentMetrics;

/// How long an answer waits for a pod that has no sizes yet.
const FIRST_WAIT: Duration = Duration::from_secs(2);
/// Pods that are measured at the same time.
const AT_ONCE: usize = 2;
/// Files of a volume that take longer to count are left alone until somebody asks again.
const LONGEST: Duration = Duration::from_secs(120);
/// The same for a filesystem that only has to say how full it is. One that does not answer holds up the others so long.
const ANSWER: Duration = Duration::from_secs(5);

/// What is known of one volume.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct VolumeFigures {
    pub volume: MeasuredVolume,
    pub at: Wall,
    pub filesystem: FilesystemFigures,
    pub used: TreeFigures,
}

/// Sizes by pod.
pub(crate) type Sizes = BTreeMap<PodUid, Arc<Vec<VolumeFigures>>>;

#[derive(Default)]
struct Known {
    sizes: BTreeMap<PodUid, (Instant, Arc<Vec<VolumeFigures>>)>,
    in_work: BTreeSet<PodUid>,
}

pub(super) struct VolumeSizes {
    usage: Arc<dyn UsageReader>,
    wall: Arc<dyn WallClock>,
    metrics: Arc<AgentMetrics>,
    /// `None`: sizes are not told.
    period: Option<Duration>,
    known: watch::Sender<Known>,
    places: Semaphore,
}

impl VolumeSizes {
    pub fn new(
        usage: Arc<dyn UsageReader>,
        wall: Arc<dyn WallClock>,
        metrics: Arc<AgentMetrics>,
        period: Option<Duration>,
    ) -> Arc<Self> {
        let (known, places) = (watch::Sender::new(Known::default()), Semaphore::new(AT_ONCE));
        Arc::new(Self { usage, wall, metrics, period, known, places })
    }

    /// The sizes of these pods' volumes, as far as they are known within a moment.
    pub async fn of(self: &Arc<Self>, pods: Vec<(PodUid, Vec<MeasuredVolume>)>) -> Sizes {
        let Some(period) = self.period else { return Sizes::new() };
        let uids: BTreeSet<PodUid> = pods.iter().map(|(uid, _)| uid.clone()).collect();
        for (uid, volumes) in self.take_due(pods, &uids, period) {
            let this = self.clone();
            tokio::spawn(async move { this.measure(uid, volumes).await });
        }
        let mut told = self.known.subscribe();
        let all = told.wait_for(|known| uids.iter().all(|uid| known.sizes.contains_key(uid)));
        // Those that take longer are in a later answer.
        let _ = tokio::time::timeout(FIRST_WAIT, all).await;
        let known = self.known.borrow();
        uids.iter().filter_map(|uid| Some((uid.clone(), known.sizes.get(uid)?.1.clone()))).collect()
    }

    fn take_due(
        &self,
        pods: Vec<(PodUid, Vec<MeasuredVolume>)>,
        uids: &BTreeSet<PodUid>,
        period: Duration,
    ) -> Vec<(PodUid, Vec<MeasuredVolume>)> {
        let (now, mut due) = (Instant::now(), Vec::new());
        self.known.send_modify(|known| {
            // A pod that nobody asked for in so long is gone.
            known.sizes.retain(|uid, (at, _)| uids.contains(uid) || now.duration_since(*at) < period * 2);
            for (uid, volumes) in pods {
                let old = known.sizes.get(&uid).is_none_or(|(at, _)| now.duration_since(*at) >= period);
                if volumes.is_empty() {
                    known.sizes.insert(uid, (now, Arc::default()));
                } else if old && known.in_work.insert(uid.clone()) {
                    due.push((uid, volumes));
                }
            }
        });
        due
    }

    async fn measure(&self, uid: PodUid, volumes: Vec<MeasuredVolume>) {
        let mut found = Vec::new();
        {
            let _place = self.places.acquire().await;
            for volume in volumes {
                let patience = if volume.ephemeral { LONGEST } else { ANSWER };
                let name = volume.name.clone();
                match tokio::time::timeout(patience, self.measure_one(volume)).await {
                    Ok(figures) => found.extend(figures),
                    Err(_) => {
                        tracing::warn!(pod_uid = %uid, volume = name, "the size of the volume takes too long to find")
                    }
                }
            }
        }
        self.known.send_modify(|known| {
            known.in_work.remove(&uid);
            known.sizes.insert(uid, (Instant::now(), Arc::new(found)));
        });
    }

    /// One that is not there (yet) is left out.
    async fn measure_one(&self, volume: MeasuredVolume) -> Option<VolumeFigures> {
        let (begun, at) = (Instant::now(), self.wall.wall());
        let filesystem = self.usage.filesystem(&volume.path).await.ok()?;
        let used = match volume.ephemeral {
            true => self.usage.tree(&volume.path).await,
            false => Ok(TreeFigures {
                bytes: filesystem.used_bytes,
                inodes: filesystem.inodes.saturating_sub(filesystem.inodes_free),
            }),
        };
        let used =
            used.inspect_err(|error| tracing::debug!(path = volume.path, %error, "volume size")).ok()?;
        self.metrics.observe_volume_size(&volume.plugin, begun.elapsed().as_secs_f64());
        Some(VolumeFigures { volume, at, filesystem, used })
    }
}
