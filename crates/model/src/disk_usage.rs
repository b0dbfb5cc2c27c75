//! What a pod uses of the node's own disk.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ContainerId;

/// Where to look.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DiskUsagePaths {
    /// Directories of volumes, by the volume's name.
    pub volumes: BTreeMap<String, String>,
    /// Directories of logs, by the container's name.
    pub logs: BTreeMap<String, String>,
    /// Containers whose writable layers the runtime keeps, by name.
    pub layers: BTreeMap<String, ContainerId>,
    /// The hosts file, which containers may write to.
    pub hosts: Option<String>,
}

/// What was found there, in bytes. What could not be measured is absent.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PodDiskUsage {
    pub volumes: BTreeMap<String, u64>,
    pub logs: BTreeMap<String, u64>,
    pub layers: BTreeMap<String, u64>,
    pub hosts: u64,
}

impl PodDiskUsage {
    pub fn total(&self) -> u64 {
        let parts = [&self.volumes, &self.logs, &self.layers];
        // A tree that could not be measured counts as larger than everything.
        parts
            .into_iter()
            .flat_map(|part| part.values())
            .fold(self.hosts, |sum, bytes| sum.saturating_add(*bytes))
    }
}
