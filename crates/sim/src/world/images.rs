//! Images: what the runtime has, and what its registry can deliver.

use std::collections::BTreeMap;

use model::cri::Image;

use super::{World, WorldChange};
use crate::time::Nanos;

/// The future of one image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImageFate {
    pub present: bool,
    /// How many of its next pulls fail.
    pub failing_pulls: u32,
    /// The registry has it from then on. `None`: never.
    pub pullable_from: Option<Nanos>,
}

#[derive(Clone, Debug, Default)]
pub struct Images {
    pub known: BTreeMap<String, ImageFate>,
}

impl Images {
    pub fn image(&self, name: &str) -> Option<Image> {
        self.known.get(name).filter(|i| i.present).map(|_| Image {
            id: reference(name),
            repo_tags: vec![name.to_owned()],
            size: 1000,
            ..Default::default()
        })
    }

    /// Whether a container with this image will be able to run some time, for a pod that may or may not pull.
    pub fn will_come(&self, name: &str, may_pull: bool) -> bool {
        self.known.get(name).is_some_and(|i| i.present || (may_pull && i.pullable_from.is_some()))
    }
}

fn reference(name: &str) -> String {
    format!("sha256:{:016x}", model::hash::fnv1a_64(name.as_bytes()))
}

impl World {
    pub fn pull(&mut self, name: &str) -> Result<String, String> {
        let now = self.now;
        let Some(image) = self.images.known.get_mut(name) else {
            return Err(format!("{name}: not found in the registry"));
        };
        if image.failing_pulls > 0 {
            image.failing_pulls -= 1;
            return Err("the simulated registry stumbled".into());
        }
        if image.pullable_from.is_none_or(|from| from > now) {
            return Err(format!("{name}: not found in the registry"));
        }
        image.present = true;
        self.changes.push(WorldChange::Images);
        Ok(reference(name))
    }

    /// Something outside the agent added the image.
    pub fn image_arrives(&mut self, name: &str) {
        if let Some(image) = self.images.known.get_mut(name) {
            image.present = true;
            self.changes.push(WorldChange::Images);
        }
    }
}
