//! Chooses the runtime handler and the user-namespace ids of a pod's sandbox.

use model::cri::IdMapping;
use model::observed::ObservedPod;
use model::pod::PodView;

use crate::runtime_class;
use crate::sandbox_placement::{SandboxPlacement, SandboxPlacementError, handler_features};
use crate::state::NodeState;
use crate::user_namespaces;

/// Chooses the handler of a pod, and reserves ids if it needs a user namespace.
pub(super) fn choose_placement(
    state: &mut NodeState,
    pod: &PodView,
    observed: &ObservedPod,
) -> Result<SandboxPlacement, SandboxPlacementError> {
    let handler = handler(state, pod, observed)?;
    let features = handler_features(&state.runtime.handlers, &handler);
    let mut place = SandboxPlacement {
        recursive_read_only: features.is_some_and(|f| f.recursive_read_only_mounts),
        user_ids: None,
        handler,
    };
    if pod.spec().host_users.unwrap_or(true) {
        return Ok(place);
    }
    // Ids that were reserved once are kept, whatever features the runtime reports now.
    if !state.user_ids.contains_key(&pod.uid) {
        if !features.is_some_and(|f| f.user_namespaces) {
            return Err(match place.handler.is_empty() {
                true => SandboxPlacementError::NoUserNamespaces,
                false => SandboxPlacementError::HandlerWithoutUserNamespaces { handler: place.handler },
            });
        }
        let free = free_ids(state)?;
        state.user_ids.insert(pod.uid.clone(), Some(free));
    }
    match state.user_ids.get(&pod.uid).cloned().flatten() {
        Some(ids) => place.user_ids = Some(ids),
        None => return Err(SandboxPlacementError::IdsUnknown { pod: pod.uid.clone() }),
    }
    Ok(place)
}

/// A free block of ids. Fails while the ids of any pod are unknown: two pods with the same ids could read each other's
/// files.
fn free_ids(state: &NodeState) -> Result<IdMapping, SandboxPlacementError> {
    if state.user_id_listing_failed {
        return Err(SandboxPlacementError::IdsUnlisted);
    }
    if let Some((pod, _)) = state.user_ids.iter().find(|(_, ids)| ids.is_none()) {
        return Err(SandboxPlacementError::IdsUnknown { pod: pod.clone() });
    }
    let taken = state.user_ids.values().flatten();
    let free = user_namespaces::first_free(state.config.user_ids, state.config.ids_per_pod, taken);
    free.ok_or(SandboxPlacementError::NoIdsLeft)
}

/// The handler of the ready sandbox, whatever became of the RuntimeClass; otherwise the handler of the class.
fn handler(
    state: &NodeState,
    pod: &PodView,
    observed: &ObservedPod,
) -> Result<String, SandboxPlacementError> {
    if let Some(sandbox) = observed.newest_sandbox().filter(|s| s.ready) {
        return Ok(sandbox.runtime_handler.clone());
    }
    let class = runtime_class::class_of(pod, &state.runtime_classes)?;
    Ok(class.map(|class| class.handler.clone()).unwrap_or_default())
}
