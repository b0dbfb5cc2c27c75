//! Stats of CSI volumes. All volumes of a pod are requested at once; the port gives each call a deadline.

use std::sync::Arc;

use futures::future::join_all;
use model::csi::{NodeVolumeStats, VolumeId};
use model::volume::MeasuredVolume;
use model::{ApiEvent, EventSubject, Wall};
use ports::{CsiDrivers, CsiError, FilesystemFigures, TreeFigures};
use tokio::time::Instant;

use super::{PodVolumes, VolumeFigures, VolumeSizes};

impl VolumeSizes {
    /// `known`: the last stats of these volumes.
    pub(super) async fn measure_by_driver(
        &self,
        asked: PodVolumes,
        known: Vec<Arc<VolumeFigures>>,
    ) -> Vec<Arc<VolumeFigures>> {
        let Some(drivers) = &self.drivers else { return Vec::new() };
        let of_drivers = asked.volumes.iter().filter_map(|one| Some((one, one.of_driver.as_ref()?)));
        let answers = of_drivers.map(|(volume, id)| async {
            let (begun, at) = (Instant::now(), self.wall.wall());
            let answer = self.ask(&**drivers, volume, id).await;
            self.metrics.observe_volume_size(&id.driver, begun.elapsed().as_secs_f64());
            match answer {
                Ok((told, reports_condition)) => {
                    let told = told?;
                    if reports_condition && told.condition.abnormal {
                        self.record_abnormal_condition(&asked, volume, &told);
                    }
                    Some(Arc::new(figures(volume, at, &told, reports_condition)))
                }
                Err(error) => {
                    tracing::warn!(pod_uid = %asked.uid, volume = volume.name, %error, "the CSI driver returned no volume stats");
                    known.iter().find(|one| error.is_late() && one.volume == *volume).cloned()
                }
            }
        });
        join_all(answers).await.into_iter().flatten().collect()
    }

    /// `None`: the driver reports no stats. `true`: it reports whether the volume is healthy.
    async fn ask(
        &self,
        drivers: &dyn CsiDrivers,
        volume: &MeasuredVolume,
        id: &VolumeId,
    ) -> Result<(Option<NodeVolumeStats>, bool), CsiError> {
        let can = drivers.node_get_capabilities(&id.driver).await?;
        let reports_condition = can.volume_condition && self.health;
        if !can.get_volume_stats {
            return Ok((None, reports_condition));
        }
        let told = drivers.node_get_volume_stats(&id.driver, &id.handle, &volume.path).await?;
        let empty = told.bytes.is_none() && told.inodes.is_none();
        Ok(((!empty || reports_condition).then_some(told), reports_condition))
    }

    fn record_abnormal_condition(&self, asked: &PodVolumes, volume: &MeasuredVolume, told: &NodeVolumeStats) {
        let message = format!("Volume {}: {}", volume.name, told.condition.message);
        let (uid, name) = (asked.uid.clone(), asked.name.clone());
        let about = EventSubject::Pod { uid, name, resource_version: String::new() };
        self.events.record(&about, &ApiEvent::warning("VolumeConditionAbnormal", message));
    }
}

fn figures(
    volume: &MeasuredVolume,
    at: Wall,
    told: &NodeVolumeStats,
    reports_condition: bool,
) -> VolumeFigures {
    let (bytes, inodes) = (told.bytes.unwrap_or_default(), told.inodes.unwrap_or_default());
    VolumeFigures {
        volume: volume.clone(),
        at,
        filesystem: FilesystemFigures {
            available_bytes: bytes.available,
            capacity_bytes: bytes.total,
            used_bytes: bytes.used,
            inodes: inodes.total,
            inodes_free: inodes.available,
        },
        used: TreeFigures { bytes: bytes.used, inodes: inodes.used },
        abnormal: reports_condition.then_some(told.condition.abnormal),
    }
}

#[cfg(test)]
mod tests;
