//! The runtime handler and the user-namespace ids of a pod's sandbox.

use std::collections::BTreeMap;

use model::PodUid;
use model::cri::{IdMapping, RuntimeHandler};

use crate::runtime_class::RuntimeClassNotFound;

#[derive(Clone, PartialEq, Debug, Default)]
pub struct SandboxPlacement {
    /// The name of the handler in the runtime. Empty for the default handler.
    pub handler: String,
    pub recursive_read_only: bool,
    /// Host ids of the pod's user namespace. `None` if the pod shares the users of the host.
    pub user_ids: Option<IdMapping>,
}

/// Why a pod can't be placed. Users read the text.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum SandboxPlacementError {
    #[error(transparent)]
    Class(#[from] RuntimeClassNotFound),
    #[error("can't set `spec.hostUsers: false`, runtime does not support user namespaces")]
    NoUserNamespaces,
    #[error(
        "can't set `spec.hostUsers: false`, RuntimeClass handler {handler:?} does not support user namespaces"
    )]
    HandlerWithoutUserNamespaces { handler: String },
    #[error("could not find an empty slot to allocate a user namespace")]
    NoIdsLeft,
    #[error(
        "can't allocate a user namespace: the record of the ids of pod {pod} can't be read, so any id may be in use \
         until that pod's directory is gone"
    )]
    IdsUnknown { pod: PodUid },
    #[error(
        "can't allocate a user namespace: the directories of pods could not be listed, so any id may be in use"
    )]
    IdsUnlisted,
}

/// What the runtime tells of a handler.
pub(crate) fn handler_features<'a>(
    handlers: &'a BTreeMap<String, RuntimeHandler>,
    handler: &str,
) -> Option<&'a RuntimeHandler> {
    handlers.get(handler)
}
