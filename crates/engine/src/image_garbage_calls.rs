//! Calls for removing images that nothing uses.
//!
//! ```text
//!   list:    images ──> containers ──> image of sandboxes ──> filesystem ──> ImagesListed
//!   remove:  ImageRemoved
//!   prune:   records ──> images ──> for each record without an image: ask again, remove
//! ```

use std::collections::BTreeSet;
use std::time::Duration;

use decide::action::CallFailure;
use decide::event::Event;
use decide::image_garbage::refs_without_image;
use model::cri::ImageSpec;
use model::image_garbage::{ImageFilesystem, ImageListing};
use ports::{ContainerFilter, Disposition, PullRecords};
use tokio::time::timeout;

use crate::context::EngineContext;
use crate::executor::call_failure;
use crate::image_calls::spec;

/// Reading the size of a filesystem can hang, for example if it is on a server that is away.
const FILESYSTEM_TIMEOUT: Duration = Duration::from_secs(30);
/// Pulls that end wait meanwhile, because they record how they were made.
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) async fn list(ctx: EngineContext) {
    let listing = read_listing(&ctx).await;
    ctx.outbox.send(Event::ImagesListed(listing));
}

/// Containers are listed last, so that those which are created meanwhile are in their list.
async fn read_listing(ctx: &EngineContext) -> Result<ImageListing, CallFailure> {
    let images = ctx.ports.images.list_images().await.map_err(|error| call_failure(&error))?;
    let all = ContainerFilter::default();
    let containers = ctx.ports.runtime.list_containers(&all).await.map_err(|error| call_failure(&error))?;
    let of_sandboxes = ctx.ports.images.sandbox_image().await.map_err(|error| call_failure(&error))?;
    let of = |container: ports::ContainerInfo| [container.image, container.image_ref, container.image_id];
    let all = containers.into_iter().flat_map(of).chain(of_sandboxes);
    let container_images: BTreeSet<String> = all.filter(|image| !image.is_empty()).collect();
    Ok(ImageListing { images, container_images, filesystem: filesystem(ctx).await })
}

async fn filesystem(ctx: &EngineContext) -> Result<ImageFilesystem, String> {
    let (images, _) = ctx.ports.images.image_fs_info().await.map_err(|error| error.user_message())?;
    let Some(used) = images.into_iter().next().filter(|used| !used.mountpoint.is_empty()) else {
        return Err("the runtime does not tell where the filesystem of its images is mounted".to_owned());
    };
    let read = timeout(FILESYSTEM_TIMEOUT, ctx.ports.usage.filesystem(&used.mountpoint)).await;
    let figures = match read {
        Ok(figures) => figures.map_err(|error| format!("{}: {error}", used.mountpoint))?,
        Err(_) => return Err(format!("{}: no answer within {FILESYSTEM_TIMEOUT:?}", used.mountpoint)),
    };
    Ok(ImageFilesystem { capacity_bytes: figures.capacity_bytes, available_bytes: figures.available_bytes })
}

pub(crate) async fn remove(ctx: EngineContext, image: String) {
    let result = match ctx.ports.images.remove_image(&spec(&image)).await {
        Err(error) if error.disposition() == Disposition::Absent => Ok(()),
        result => result.map_err(|error| call_failure(&error)),
    };
    ctx.images_changed.notify_one();
    ctx.outbox.send(Event::ImageRemoved { image, result });
}

/// Removes the records of images that are not there. A record that is missed now is found the next time.
pub(crate) async fn prune_records(ctx: EngineContext) {
    let Some(records) = &ctx.ports.pull_records else { return };
    let known = match records.pulled().await {
        Ok(known) => known,
        Err(error) => return tracing::warn!("pull records can't be listed: {}", error.user_message()),
    };
    let images = match ctx.ports.images.list_images().await {
        Ok(images) => images,
        Err(error) => return tracing::debug!("images can't be listed to remove pull records: {error}"),
    };
    for image_ref in refs_without_image(&known, &images) {
        remove_record(&ctx, &**records, &image_ref).await;
    }
}

/// The image may have been pulled again since it was listed. As long as the lock is held, no pull records how it was
/// made: what is not there now is recorded after this.
async fn remove_record(ctx: &EngineContext, records: &dyn PullRecords, image_ref: &str) {
    let _records_guard = ctx.image_call_state.records.lock().await;
    let image = ImageSpec { image: image_ref.to_owned(), ..ImageSpec::default() };
    let Ok(Ok(None)) = timeout(STATUS_TIMEOUT, ctx.ports.images.image_status(&image)).await else { return };
    if let Err(error) = records.remove_pulled(image_ref).await {
        tracing::warn!(image_ref, "the image's pull record could not be removed: {}", error.user_message());
    }
}
