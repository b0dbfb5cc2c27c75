//! Work on the disk that is no part of a plan: measuring what a pod keeps there, replacing files of its volumes while a
//! plan of it runs, and what is told of work on volumes.

use std::panic::AssertUnwindSafe;

use decide::event::Event;
use futures::FutureExt;
use model::PodUid;
use model::disk_use::{DiskPlaces, DiskUse};
use model::volume::VolumeSetup;
use ports::Disposition;

use crate::dispatcher::Shop;

pub(crate) async fn measure(shop: Shop, uid: PodUid, places: DiskPlaces) {
    let result = read(&shop, &uid, &places).await;
    shop.outbox.send(Event::DiskMeasured { uid, result });
}

/// Tells of its end in any case: the pod's volumes stay until then.
pub(crate) async fn update_volume(shop: Shop, uid: PodUid, volume: Box<VolumeSetup>) {
    let work = AssertUnwindSafe(shop.ports.files.set_up_volume(&uid, &volume)).catch_unwind();
    let result = match work.await {
        Ok(result) => result.map_err(|error| error.user_message()),
        Err(_) => Err("internal error: replacing files of a volume panicked".to_owned()),
    };
    shop.outbox.send(Event::VolumeUpdated { uid, volume, result });
}

pub(crate) async fn forward_news(shop: Shop) {
    loop {
        let (uid, news) = shop.ports.volume_news.next().await;
        shop.outbox.send(Event::VolumeNews { uid, news });
    }
}

async fn read(shop: &Shop, uid: &PodUid, places: &DiskPlaces) -> Result<DiskUse, String> {
    let mut used = DiskUse::default();
    let of_disk = places.volumes.values().chain(places.logs.values()).chain(&places.hosts);
    let paths: Vec<String> = of_disk.cloned().collect();
    let sizes = shop.ports.files.disk_use(uid, &paths).await.map_err(|error| error.user_message())?;
    let mut sizes = sizes.into_iter();
    used.volumes = places.volumes.keys().cloned().zip(&mut sizes).collect();
    used.logs = places.logs.keys().cloned().zip(&mut sizes).collect();
    used.hosts = sizes.next().unwrap_or(0);
    for (name, id) in &places.layers {
        match shop.ports.runtime.container_stats(id).await {
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
