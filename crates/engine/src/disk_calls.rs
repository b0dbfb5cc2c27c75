//! Measuring what a pod keeps on the node's disk.

use decide::event::Event;
use model::PodUid;
use model::disk_use::{DiskPlaces, DiskUse};
use ports::Disposition;

use crate::dispatcher::Shop;

pub(crate) async fn measure(shop: Shop, uid: PodUid, places: DiskPlaces) {
    let result = read(&shop, &uid, &places).await;
    shop.outbox.send(Event::DiskMeasured { uid, result });
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
