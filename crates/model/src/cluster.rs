//! Objects of the cluster that pods name, and what is known of each.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{PodUid, Wall};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum ObjectKind {
    ConfigMap,
    Secret,
}

impl ObjectKind {
    /// As messages have it: `configmap "x" not found`.
    pub fn word(self) -> &'static str {
        match self {
            ObjectKind::ConfigMap => "configmap",
            ObjectKind::Secret => "secret",
        }
    }
}

/// One object that a pod names.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ObjectKey {
    pub kind: ObjectKind,
    pub namespace: String,
    pub name: String,
}

/// What an object holds, whichever kind it is. Its values are not shown in logs.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ObjectContent {
    pub uid: String,
    pub resource_version: String,
    /// Text and bytes alike.
    pub data: BTreeMap<String, Vec<u8>>,
    /// Keys from `binaryData` of a ConfigMap: they are no variables.
    pub binary_keys: BTreeSet<String>,
    /// `type` of a Secret.
    pub secret_type: Option<String>,
    /// Will never change: need not be watched.
    pub immutable: bool,
}

impl fmt::Debug for ObjectContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectContent")
            .field("resource_version", &self.resource_version)
            .field("keys", &self.data.keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

/// What is known of an object.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ObjectState {
    Present(Arc<ObjectContent>),
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
pub struct PodTokenRequest {
    pub namespace: String,
    pub service_account: String,
    /// The token is for this service account only, not for another one of the same name.
    pub account_uid: Option<String>,
    /// Empty: the API server's own.
    pub audiences: Vec<String>,
    pub expiration_secs: i64,
    pub pod_name: String,
    pub pod_uid: PodUid,
}

/// A token as it was issued. Its debug form does not show it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    pub token: String,
    pub expires: Wall,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("expires", &self.expires).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_do_not_show_in_debug_output() {
        let data = [("k".to_owned(), b"hidden".to_vec())].into();
        let content = ObjectContent { data, resource_version: "7".into(), ..ObjectContent::default() };
        let shown = format!("{content:?}");
        assert_eq!(shown, "ObjectContent { resource_version: \"7\", keys: [\"k\"], .. }");
        let token = Token { token: "hidden".into(), expires: Wall(0) };
        assert!(!format!("{token:?}").contains("hidden"));
    }
}
