//! Calls about images beyond inspections and pulls: listing and removing them.

use decide::Event;
use decide::images::split_key;
use model::image_garbage::ImageListing;

use super::Simulation;

impl Simulation {
    /// The runtime is read now.
    pub(super) fn images_listed(&mut self) -> Event {
        if let Some(failure) = self.call_fails() {
            return Event::ImagesListed(Err(failure));
        }
        let containers = self.world.containers.values();
        let listing = ImageListing {
            images: self.world.images.listed(),
            container_images: containers.map(|container| container.image_ref.clone()).collect(),
            filesystem: Ok(self.world.images.filesystem()),
        };
        Event::ImagesListed(Ok(listing))
    }

    /// The image is removed now. A call that fails may have had its effect.
    pub(super) fn image_removed(&mut self, generation: u32, image: String) -> Event {
        let failure = self.call_fails();
        if failure.is_none() || self.rng.coin() {
            let id = split_key(&image).0;
            if generation == self.generation {
                self.check.image_removed(&self.world, id);
            }
            // Whether it was there makes no difference: it is not there now.
            let _ = self.world.remove_image(id);
        }
        Event::ImageRemoved { image, result: failure.map_or(Ok(()), Err) }
    }
}
