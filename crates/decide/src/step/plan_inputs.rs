//! What the plan of one pod is made from.

use model::observed::ObservedPod;
use model::{Now, PodUid};

use crate::lifecycle::Lifecycle;
use crate::plan::PlanInputs;
use crate::sandbox_placement::{SandboxPlacement, SandboxPlacementError};
use crate::state::NodeState;

pub(super) fn plan_inputs<'a>(
    state: &'a NodeState,
    uid: &PodUid,
    observed: &'a ObservedPod,
    place: Result<SandboxPlacement, SandboxPlacementError>,
    now: Now,
) -> Option<PlanInputs<'a>> {
    Some(PlanInputs {
        config: &state.config,
        facts: &state.facts,
        runtime: &state.runtime,
        entry: state.pods.get(uid)?,
        observed,
        name_holder: name_holder(state, uid),
        primary_family: state.primary_family(),
        placement: place,
        cluster: state.objects.as_ref(),
        node: state.node.as_deref(),
        now,
    })
}

/// Another pod of the same name that has to end first.
fn name_holder(state: &NodeState, uid: &PodUid) -> Option<String> {
    let entry = state.pods.get(uid)?;
    if !entry.view().source.is_static() {
        return None;
    }
    let line = state.name_queues.get(&entry.view().full_name)?;
    let before = line.iter().take_while(|other| *other != uid).filter_map(|other| state.pods.get(other));
    let holder = before.into_iter().find(|other| !matches!(other.lifecycle(), Lifecycle::Finished));
    let unclaimed = state.unclaimed.values().find(|p| p.full_name == entry.view().full_name && p.uid != *uid);
    holder
        .map(|other| other.view().display_name())
        .or_else(|| unclaimed.map(|p| format!("{}({})", p.full_name, p.uid)))
}
