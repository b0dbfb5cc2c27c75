//! Image calls: look, pull. One task each; the desk in `decide` sees to it that there is only one per image.

use decide::event::{Event, PulledImage};
use model::cri::ImageSpec;
use tokio::time::Instant;

use crate::dispatcher::Shop;
use crate::executor::call_failure;

fn spec(image: &str) -> ImageSpec {
    ImageSpec { image: image.to_owned(), ..Default::default() }
}

pub(crate) async fn inspect(shop: Shop, image: String) {
    let result = shop.ports.images.image_status(&spec(&image)).await.map_err(|e| call_failure(&e));
    shop.outbox.send(Event::ImageInspected { image, result });
}

pub(crate) async fn pull(shop: Shop, image: String) {
    let began = Instant::now();
    let images = &shop.ports.images;
    let result = match images.pull_image(&spec(&image), None, None).await {
        // The user of the image is needed to make a container; without it the pull is of no use yet.
        Ok(reference) => match images.image_status(&spec(&image)).await {
            Ok(found) => Ok(PulledImage { reference, image: found, took: began.elapsed() }),
            Err(error) => Err(call_failure(&error)),
        },
        Err(error) => Err(call_failure(&error)),
    };
    shop.outbox.send(Event::ImagePulled { image, result });
}
