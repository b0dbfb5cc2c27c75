//! What storage drivers tell of their volumes. All of a pod's are asked at once; each call has its deadline at the port.

use std::sync::Arc;

use futures::future::join_all;
use model::csi::{Told, VolumeId};
use model::volume::MeasuredVolume;
use model::{ApiEvent, EventSubject, Wall};
use ports::{CsiDrivers, CsiError, FilesystemFigures, TreeFigures};
use tokio::time::Instant;

use super::{Asked, VolumeFigures, VolumeSizes};

impl VolumeSizes {
    /// `known`: as they were told before.
    pub(super) async fn by_driver(
        &self,
        asked: Asked,
        known: Vec<Arc<VolumeFigures>>,
    ) -> Vec<Arc<VolumeFigures>> {
        let Some(drivers) = &self.drivers else { return Vec::new() };
        let of_drivers = asked.volumes.iter().filter_map(|one| Some((one, one.of_driver.as_ref()?)));
        let answers = of_drivers.map(|(volume, id)| async {
            let (begun, at) = (Instant::now(), self.wall.wall());
            let answer = self.ask(&**drivers, volume, id).await;
            self.metrics.observe_volume_size(&id.driver, begun.elapsed().as_secs_f64());
            match answer {
                Ok((told, can_tell)) => {
                    let told = told?;
                    if can_tell && told.condition.abnormal {
                        self.complain(&asked, volume, &told);
                    }
                    Some(Arc::new(figures(volume, at, &told, can_tell)))
                }
                Err(error) => {
                    tracing::warn!(pod_uid = %asked.uid, volume = volume.name, %error, "the driver tells no figures");
                    known.iter().find(|one| error.is_late() && one.volume == *volume).cloned()
                }
            }
        });
        join_all(answers).await.into_iter().flatten().collect()
    }

    /// `None`: the driver has nothing to tell. `true`: it tells whether the volume is well.
    async fn ask(
        &self,
        drivers: &dyn CsiDrivers,
        volume: &MeasuredVolume,
        id: &VolumeId,
    ) -> Result<(Option<Told>, bool), CsiError> {
        let can = drivers.abilities(&id.driver).await?;
        let can_tell = can.condition && self.health;
        if !can.stats {
            return Ok((None, can_tell));
        }
        let told = drivers.tell(&id.driver, &id.handle, &volume.path).await?;
        let empty = told.bytes.is_none() && told.inodes.is_none();
        Ok(((!empty || can_tell).then_some(told), can_tell))
    }

    fn complain(&self, asked: &Asked, volume: &MeasuredVolume, told: &Told) {
        let message = format!("Volume {}: {}", volume.name, told.condition.message);
        let (uid, name) = (asked.uid.clone(), asked.name.clone());
        let about = EventSubject::Pod { uid, name, resource_version: String::new() };
        self.events.record(&about, &ApiEvent::warning("VolumeConditionAbnormal", message));
    }
}

fn figures(volume: &MeasuredVolume, at: Wall, told: &Told, can_tell: bool) -> VolumeFigures {
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
        abnormal: can_tell.then_some(told.condition.abnormal),
    }
}

#[cfg(test)]
mod tests;
