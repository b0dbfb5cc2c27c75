//! What is remembered of each image.

use std::collections::BTreeMap;

use model::Mono;
use model::cri::Image;

use super::references::ImageReferences;
use crate::images::image_key;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ImageRecord {
    /// The id, tags and digests.
    pub references: ImageReferences,
    pub id: String,
    pub size: u64,
    pub pinned: bool,
    pub first_detected: Mono,
    /// `None`: not since this agent runs.
    pub last_used: Option<Mono>,
}

impl ImageRecord {
    pub fn unused_since(&self) -> Mono {
        self.last_used.map_or(self.first_detected, |used| used.max(self.first_detected))
    }
}

/// Updates the records. An image that the runtime lists without an id can't be removed, so it has no record.
pub(super) fn detect(
    records: &mut BTreeMap<String, ImageRecord>,
    images: &[Image],
    in_use: &ImageReferences,
    (by_handler, now): (bool, Mono),
) {
    let mut known = std::mem::take(records);
    for image in images.iter().filter(|image| !image.id.is_empty()) {
        let handler = match &image.spec {
            Some(spec) if by_handler => spec.runtime_handler.as_str(),
            _ => "",
        };
        let key = image_key(&image.id, handler);
        let references = ImageReferences::of_image(image);
        let before = known.remove(&key);
        let last_used = match in_use.any_of(&references) {
            true => Some(now),
            false => before.as_ref().and_then(|record| record.last_used),
        };
        let record = ImageRecord {
            references,
            id: image.id.clone(),
            size: image.size,
            pinned: image.pinned,
            first_detected: before.map_or(now, |record| record.first_detected),
            last_used,
        };
        records.insert(key, record);
    }
}
