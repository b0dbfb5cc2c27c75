//! Images: what the runtime has, and what its registry can deliver.

use std::collections::{BTreeMap, BTreeSet};

use model::cri::Image;
use model::image_garbage::ImageFilesystem;

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
    pub pinned: bool,
}

/// The size of each image.
const IMAGE_BYTES: u64 = 1000;

#[derive(Clone, Debug, Default)]
pub struct Images {
    pub known: BTreeMap<String, ImageFate>,
    /// Names of images that have the same content as the image of another name.
    pub same_as: BTreeMap<String, String>,
    /// Of the filesystem that holds them.
    pub capacity_bytes: u64,
}

impl Images {
    pub fn image(&self, name: &str) -> Option<Image> {
        self.known.get(name).filter(|i| i.present).map(|_| self.of_id(&self.id_of(name)))
    }

    fn of_id(&self, id: &str) -> Image {
        let tags = self.known.iter().filter(|(name, fate)| fate.present && self.id_of(name) == id);
        Image {
            id: id.to_owned(),
            repo_tags: tags.map(|(name, _)| name.clone()).collect(),
            size: IMAGE_BYTES,
            pinned: self.is_pinned(id),
            ..Default::default()
        }
    }

    pub fn id_of(&self, name: &str) -> String {
        reference(self.same_as.get(name).map_or(name, String::as_str))
    }

    /// Another name may stand for the same image.
    pub fn has_other_name(&self, name: &str) -> bool {
        self.same_as.iter().any(|(one, other)| one == name || other == name)
    }

    pub fn is_pinned(&self, id: &str) -> bool {
        self.known.iter().any(|(name, fate)| fate.pinned && fate.present && self.id_of(name) == id)
    }

    fn present_ids(&self) -> BTreeSet<String> {
        self.known.iter().filter(|(_, fate)| fate.present).map(|(name, _)| self.id_of(name)).collect()
    }

    /// All that are present.
    pub fn listed(&self) -> Vec<Image> {
        self.present_ids().iter().map(|id| self.of_id(id)).collect()
    }

    /// Whether a container can be made from this: ids that are no image's are taken as they are.
    pub fn is_missing(&self, id: &str) -> bool {
        self.known.keys().any(|name| self.id_of(name) == id) && !self.present_ids().contains(id)
    }

    pub fn filesystem(&self) -> ImageFilesystem {
        let used = self.present_ids().len() as u64 * IMAGE_BYTES;
        let available_bytes = self.capacity_bytes.saturating_sub(used);
        ImageFilesystem { capacity_bytes: self.capacity_bytes, available_bytes }
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
        Ok(self.images.id_of(name))
    }

    /// By its id, with all its names.
    pub fn remove_image(&mut self, id: &str) -> Result<(), String> {
        let names: Vec<String> =
            self.images.known.keys().filter(|name| self.images.id_of(name) == id).cloned().collect();
        if names.is_empty() {
            return Err(format!("{id}: no such image"));
        }
        for name in names {
            if let Some(image) = self.images.known.get_mut(&name) {
                image.present = false;
            }
        }
        self.changes.push(WorldChange::Images);
        Ok(())
    }

    /// Something outside the agent added the image.
    pub fn image_arrives(&mut self, name: &str) {
        if let Some(image) = self.images.known.get_mut(name) {
            image.present = true;
            self.changes.push(WorldChange::Images);
        }
    }
}
