//! Objects of the cluster that pods name, and what is known of each.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::PodUid;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum ObjectKind {
    ConfigMap,
    Secret,
}

/// One object that a pod names.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ObjectKey {
    pub kind: ObjectKind,
    pub namespace: String,
    pub name: String,
}

/// What an object holds, whichever kind it is. Its values are not shown in logs.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectContent {
    pub resource_version: String,
    /// Text and bytes alike.
    pub data: BTreeMap<String, Vec<u8>>,
    /// `type` of a Secret.
    pub secret_type: Option<String>,
    /// Will never change: need not be watched.
    pub immutable: bool,
}

impl std::fmt::Debug for ObjectContent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectContent")
            .field("resource_version", &self.resource_version)
            .field("keys", &self.data.keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

/// What is known of an object.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ObjectState {
    Is(Arc<ObjectContent>),
    /// `message`: the server's own words (`configmaps "x" not found`).
    Absent {
        message: String,
    },
    /// The server does not let this node read it.
    Denied {
        message: String,
    },
    /// Can't be read now; what was known before still holds.
    Unreachable {
        message: String,
    },
}

/// A token for a service account, bound to a pod.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct TokenWanted {
    pub namespace: String,
    pub service_account: String,
    /// Empty: the API server's own.
    pub audiences: Vec<String>,
    pub expiration_secs: i64,
    pub pod_name: String,
    pub pod_uid: PodUid,
}
