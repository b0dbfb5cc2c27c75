//! Removal of images that nothing uses: how it is configured, and what is read from the runtime for it.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cri::Image;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ImageGarbageConfig {
    /// `imageGCHighThresholdPercent`: images are removed from this usage of their filesystem on.
    pub high_percent: u8,
    /// `imageGCLowThresholdPercent`: and until its usage is below this.
    pub low_percent: u8,
    /// `imageMinimumGCAge`: an image that was found on the node later than this is not removed to free space.
    pub min_age: Duration,
    /// `imageMaximumGCAge`: an image that was unused for longer is removed in any case. `None`: no such age.
    pub max_age: Option<Duration>,
}

impl Default for ImageGarbageConfig {
    fn default() -> Self {
        Self { high_percent: 85, low_percent: 80, min_age: Duration::from_secs(120), max_age: None }
    }
}

impl ImageGarbageConfig {
    /// Images may be removed without anybody asking for space.
    pub fn removes_by_itself(&self) -> bool {
        self.high_percent < 100 || self.max_age.is_some()
    }
}

/// The images of the runtime, and what decides which of them may be removed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ImageListing {
    pub images: Vec<Image>,
    /// Names and ids of the images of all containers in the runtime, in any state and of anybody, and of sandboxes.
    pub container_images: BTreeSet<String>,
    pub filesystem: Result<ImageFilesystem, String>,
}

/// The filesystem that holds the images.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ImageFilesystem {
    pub capacity_bytes: u64,
    pub available_bytes: u64,
}
