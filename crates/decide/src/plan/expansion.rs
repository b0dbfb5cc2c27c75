//! Expands CSI volumes whose PersistentVolume is larger than the filesystem on this node, before the pod starts or
//! while it runs.

use model::ApiEvent;
use model::why::Cause;

use super::{PlanInputs, PlanNote, PodPlan};
use crate::action::Action;
use crate::volumes;

const STEP: &str = "expand volume";

/// The expansions for a running pod.
pub(super) fn online(inputs: &PlanInputs, plan: &mut PodPlan) -> Vec<Action> {
    plan_expansions(inputs, plan, true, |_| true).0
}

/// The expansions before the pod starts, after its volumes are set up, and whether they are all that are needed.
/// `ready`: the volume is set up by then.
pub(super) fn before_start(
    inputs: &PlanInputs,
    plan: &mut PodPlan,
    ready: impl Fn(&str) -> bool,
) -> (Vec<Action>, bool) {
    plan_expansions(inputs, plan, false, ready)
}

fn plan_expansions(
    inputs: &PlanInputs,
    plan: &mut PodPlan,
    online: bool,
    ready: impl Fn(&str) -> bool,
) -> (Vec<Action>, bool) {
    let (mut actions, mut all) = (Vec::new(), true);
    if !volumes::may_use_csi_drivers(inputs.entry.view()) {
        return (actions, all);
    }
    let ledger = &inputs.entry.ledger;
    let found = volumes::expansion::volume_expansions(&inputs.volume_inputs(), &ledger.volume_sizes, online);
    for (volume, size) in found.first_seen.into_iter().filter(|(name, _)| ready(name)) {
        plan.notes.push(PlanNote::VolumeSize { volume, size });
    }
    for (spec_name, claim) in found.read_only.into_iter().filter(|_| !online) {
        let text = format!(
            "MountVolume.NodeExpandVolume failed for volume {spec_name:?} requested read-only file system"
        );
        let key = format!("read-only growth of {}", claim.name);
        plan.announce(key, ApiEvent::warning("FileSystemResizeFailed", text));
    }
    for (volume, expansion) in found.growing.into_iter().filter(|(volume, _)| ready(&volume.name)) {
        match ledger.expand_retry.get(&volume.name).filter(|retry| retry.at > inputs.now.mono) {
            Some(retry) => {
                let message = retry.message.clone();
                plan.because(None, Cause::StepFailed { step: STEP.into(), message }, Some(retry.at));
                all = false;
            }
            None => actions.push(Action::ExpandVolume { volume, expansion: Box::new(expansion) }),
        }
    }
    (actions, all)
}
