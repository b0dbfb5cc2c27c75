//! What is kept of a panic in a step of the decision core, for the next start of the agent.

use serde::{Deserialize, Serialize};

use crate::{PodUid, Wall};

/// One panic. Small and plain: it is written when the agent is about to end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PanicRecord {
    /// The version of the agent: another one may have the mistake mended.
    pub version: String,
    /// The pod that the step was about. `None`: it was about no pod.
    pub pod: Option<PanickedPod>,
    /// The kind of event that the step was given.
    pub event: String,
    pub message: String,
    pub at: Wall,
}

/// A pod as it was when a step about it panicked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PanickedPod {
    pub uid: PodUid,
    pub namespace: String,
    pub name: String,
    /// Hash of the definition: another definition is another try.
    pub definition: u64,
    /// It was set aside already, and the little that is still done for such a pod was too much.
    pub set_aside: bool,
    /// Its object was being merged into what its source delivers.
    #[serde(default)]
    pub in_merge: bool,
}
