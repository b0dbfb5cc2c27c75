//! Work on the disk that is not part of a plan: measuring a pod's disk usage, updating the content of its volumes while
//! a plan runs, and notices about volume work.

use std::panic::AssertUnwindSafe;

use decide::event::Event;
use futures::FutureExt;
use model::PodUid;
use model::disk_usage::{DiskUsagePaths, PodDiskUsage};
use model::volume::VolumeSetup;
use ports::Disposition;

use crate::context::EngineContext;

pub(crate) async fn measure_disk_usage(ctx: EngineContext, uid: PodUid, places: DiskUsagePaths) {
    let result = read(&ctx, &uid, &places).await;
    ctx.outbox.send(Event::DiskMeasured { uid, result });
}

/// Always sends an event when the update has ended, because the pod's volumes are not torn down before that.
pub(crate) async fn update_volume(ctx: EngineContext, uid: PodUid, volume: Box<VolumeSetup>) {
    let work = AssertUnwindSafe(ctx.ports.files.set_up_volume(&uid, &volume)).catch_unwind();
    let result = match work.await {
        Ok(result) => result.map_err(|error| error.user_message()),
        Err(_) => Err("internal error: replacing files of a volume panicked".to_owned()),
    };
    ctx.outbox.send(Event::VolumeUpdated { uid, volume, result });
}

pub(crate) async fn forward_volume_notices(ctx: EngineContext) {
    loop {
        let (uid, news) = ctx.ports.volume_news.next().await;
        ctx.outbox.send(Event::VolumeNotice { uid, news });
    }
}

async fn read(ctx: &EngineContext, uid: &PodUid, places: &DiskUsagePaths) -> Result<PodDiskUsage, String> {
    let mut used = PodDiskUsage::default();
    let of_disk = places.volumes.values().chain(places.logs.values()).chain(&places.hosts);
    let paths: Vec<String> = of_disk.cloned().collect();
    let sizes = ctx.ports.files.disk_use(uid, &paths).await.map_err(|error| error.user_message())?;
    let mut sizes = sizes.into_iter();
    used.volumes = places.volumes.keys().cloned().zip(&mut sizes).collect();
    used.logs = places.logs.keys().cloned().zip(&mut sizes).collect();
    used.hosts = sizes.next().unwrap_or(0);
    for (name, id) in &places.layers {
        match ctx.ports.runtime.container_stats(id).await {
            Ok(stats) => {
                let bytes = stats.writable_layer.map_or(0, |layer| layer.used_bytes);
                used.layers.insert(name.clone(), bytes);
            }
            Err(error) if error.disposition() == Disposition::Absent => {}
            Err(error) => return Err(error.user_message()),
        }
    }
    Ok(used)
}
