//! What identifies an image pull, and the pod that it is made for.

use std::collections::BTreeMap;

use model::PodUid;
use model::cri::SandboxConfig;
use serde::{Deserialize, Serialize};

/// A pull. The same image with other credentials, or for pods that the runtime may treat differently, is another one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct PullKey {
    pub image: String,
    /// A hash of the pods' own credentials that the pull is tried with. Zero: none.
    pub access: u64,
    /// A hash of what the runtime and credential plugins are told about the pods: see `pull_context::requester_id`.
    pub requester: u64,
}

/// The pod that a pull request names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PullContext {
    pub annotations: BTreeMap<String, String>,
    /// `None`: the configuration can't be made now.
    pub sandbox: Option<SandboxConfig>,
}

/// The pod on whose behalf credential plugins are asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullingPod {
    pub namespace: String,
    pub name: String,
    pub uid: PodUid,
    /// Empty if the pod has none.
    pub service_account: String,
}
