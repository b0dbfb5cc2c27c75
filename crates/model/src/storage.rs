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
    Present(StorageObject),
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
