//! The paths of a volume that a pod uses as a device.

use serde::{Deserialize, Serialize};

/// Where a device is mapped for one pod.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct DevicePaths {
    /// Below the pod's directory: a link to the device. The runtime gets this path.
    pub link: String,
    /// In the global map directory of the volume, below `<root>/plugins`: a bind mount of the device. A loop device over
    /// it keeps the device open.
    pub map: String,
}

impl DevicePaths {
    /// The directory of all maps of the volume.
    pub fn global_map_dir(&self) -> &str {
        self.map.rsplit_once('/').map_or("", |(dir, _)| dir)
    }

    /// The directory of the pod's links to devices of this kind of volume.
    pub fn pod_map_dir(&self) -> &str {
        self.link.rsplit_once('/').map_or("", |(dir, _)| dir)
    }
}
