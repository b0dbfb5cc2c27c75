//! RuntimeClass objects (`node.k8s.io/v1`), as far as a node needs them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::k8s::Quantity;

/// By name.
pub type RuntimeClasses = BTreeMap<String, RuntimeClass>;

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct RuntimeClass {
    /// How the container runtime calls it.
    pub handler: String,
    /// What a sandbox of this class costs by itself. A pod of the API has it in its spec already.
    pub overhead: BTreeMap<String, Quantity>,
}
