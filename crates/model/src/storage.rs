<<<<<<< HEAD
//! What a pod uses of the node's own disk.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ContainerId;

/// Where to look.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StoragePlaces {
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
pub struct StorageUse {
    pub volumes: BTreeMap<String, u64>,
    pub logs: BTreeMap<String, u64>,
    pub layers: BTreeMap<String, u64>,
    pub hosts: u64,
}

impl StorageUse {
    pub fn total(&self) -> u64 {
        let parts = [&self.volumes, &self.logs, &self.layers];
        parts.into_iter().flat_map(|part| part.values()).sum::<u64>() + self.hosts
    }
}
=======
//! Objects about storage that are read one by one: a node may ask for those that its pods use, and may not watch them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::k8s::{PersistentVolume, PersistentVolumeClaim, VolumeAttachment};

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum StorageKey {
    Claim { namespace: String, name: String },
    Volume { name: String },
    Attachment { name: String },
}

impl StorageKey {
    /// As messages have it.
    pub fn word(&self) -> &'static str {
        match self {
            StorageKey::Claim { .. } => "persistentvolumeclaim",
            StorageKey::Volume { .. } => "persistentvolume",
            StorageKey::Attachment { .. } => "volumeattachment",
        }
    }
    pub fn name(&self) -> &str {
        match self {
            StorageKey::Claim { name, .. }
            | StorageKey::Volume { name }
            | StorageKey::Attachment { name } => name,
        }
    }
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum StorageObject {
    Claim(Arc<PersistentVolumeClaim>),
    Volume(Arc<PersistentVolume>),
    Attachment(Arc<VolumeAttachment>),
}

/// How the reading of one ended.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum StorageState {
    Is(StorageObject),
    /// In the server's words (`persistentvolumeclaims "x" not found`).
    Absent {
        message: String,
    },
    /// The server does not let this node read it.
    Denied {
        message: String,
    },
    /// It could not be asked for; what was known before still holds.
    Unreachable {
        message: String,
    },
}
>>>>>>> main
