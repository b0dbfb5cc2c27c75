//! Objects that stand in files beside the pods, on a node without a cluster.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::cluster::{ObjectContent, ObjectKey};
use crate::k8s::PersistentVolumeClaim;

/// In the order of their names, each once.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct LocalObjects {
    /// Config maps and secrets.
    pub contents: Vec<(ObjectKey, Arc<ObjectContent>)>,
    pub claims: Vec<Arc<PersistentVolumeClaim>>,
}

impl LocalObjects {
    pub fn is_empty(&self) -> bool {
        self.contents.is_empty() && self.claims.is_empty()
    }
}
