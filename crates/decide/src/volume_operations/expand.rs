//! Expands a volume. The claim is read again each time, because other clients write to it too.
//!
//! ```text
//!   lane ──> claim read ──> this node's turn? ──> claim: in progress ──> NodeExpandVolume ──> claim: its new size
//! ```
//! Failures: a refusal of the driver is written to the claim; any other failure is retried with back-off.

use std::sync::Arc;

use model::csi::{CsiVolume, Expansion, NodeServiceCapabilities};
use model::k8s::PersistentVolumeClaim;
use model::quantity::Quantity;

use super::{CsiVolumes, Input, Operation, OperationId, Outputs, VolumeCall, VolumeRequestId};
use crate::action::{ActionResult, CallFailure, ExpandOutcome};
use crate::csi::{
    ExpansionFailure, ExpansionNeed, ExpansionStep, NodeExpansion, expand_call, expansion_need,
};

#[derive(Clone, Debug)]
pub(super) struct ExpandVolume {
    request: VolumeRequestId,
    volume: CsiVolume,
    wanted: Expansion,
    /// The pod is terminating, and nothing waits for the outcome.
    cancelled: bool,
    step: Step,
}

/// What it waits for.
#[derive(Clone, Debug)]
enum Step {
    Lane,
    Claim,
    Capabilities {
        due: NodeExpansion,
        claim: Arc<PersistentVolumeClaim>,
    },
    /// The claim shows that the node expands the volume.
    Mark {
        due: NodeExpansion,
        can: NodeServiceCapabilities,
    },
    NodeExpand {
        due: NodeExpansion,
        claim: Arc<PersistentVolumeClaim>,
    },
    /// The claim shows how the expansion failed.
    FailureTold {
        how: Result<ExpandOutcome, String>,
    },
    /// The claim shows its new size.
    SizeTold {
        due: NodeExpansion,
    },
}

/// What an answer leads to.
#[expect(
    clippy::large_enum_variant,
    reason = "one exists at a time, and only for as long as it is taken apart"
)]
enum Next {
    Call(Step, VolumeCall),
    Done(Result<ExpandOutcome, String>),
}

impl ExpandVolume {
    pub(super) fn request(&self) -> &VolumeRequestId {
        &self.request
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled
    }

    fn patch(&self, step: Step, patch: serde_json::Value) -> Next {
        Next::Call(step, VolumeCall::PatchClaimStatus { claim: self.wanted.claim.clone(), patch })
    }

    fn patched(&self, input: Input) -> Result<Arc<PersistentVolumeClaim>, String> {
        input.claim().map_err(|failure| {
            format!("patchPVCStatus failed to patch PVC {:?}: {}", self.wanted.claim.name, failure.message)
        })
    }

    fn node_expand(
        &self,
        due: NodeExpansion,
        can: NodeServiceCapabilities,
        claim: Arc<PersistentVolumeClaim>,
    ) -> Next {
        let call = expand_call(&self.volume, can, due.size, &self.wanted);
        let call = VolumeCall::NodeExpandVolume { driver: self.volume.id.driver.clone(), call };
        Next::Call(Step::NodeExpand { due, claim }, call)
    }
}

impl CsiVolumes {
    pub(super) fn begin_expand(&mut self, request: VolumeRequestId, volume: CsiVolume, wanted: Expansion) {
        let (id, volume_id) = (self.new_id(), volume.id.clone());
        let expand = ExpandVolume { request, volume, wanted, cancelled: false, step: Step::Lane };
        self.enter_lane(id, Operation::Expand(Box::new(expand)), &volume_id);
    }

    /// One that waits ends now; one that has begun ends at its next step.
    pub(super) fn cancel_expand(
        &mut self,
        out: &mut Outputs,
        id: OperationId,
        mut expand: Box<ExpandVolume>,
    ) {
        expand.cancelled = true;
        out.answer(expand.request.clone(), ActionResult::Interrupted);
        match expand.step {
            Step::Lane => self.leave_lane(id, &expand.volume.id),
            _ => drop(self.operations.insert(id, Operation::Expand(expand))),
        }
    }

    pub(super) fn expand_goes_on(
        &mut self,
        out: &mut Outputs,
        id: OperationId,
        mut expand: Box<ExpandVolume>,
        input: Input,
    ) {
        let how = match self.next_of_expand(out, &expand, input) {
            // What the driver has done or refused is written to the claim in any case.
            Ok(Next::Call(step, _))
                if expand.cancelled && !matches!(step, Step::FailureTold { .. } | Step::SizeTold { .. }) =>
            {
                return self.leave_lane(id, &expand.volume.id);
            }
            Ok(Next::Call(step, call)) => {
                expand.step = step;
                return self.call(out, id, Operation::Expand(expand), call);
            }
            Ok(Next::Done(how)) => how,
            Err(message) => Err(message),
        };
        self.leave_lane(id, &expand.volume.id);
        if !expand.cancelled {
            let failed = |message| ActionResult::Failed(CallFailure { unreachable: false, message });
            out.answer(expand.request, how.map_or_else(failed, ActionResult::ExpandOutcome));
        }
    }

    fn next_of_expand(
        &mut self,
        out: &mut Outputs,
        expand: &ExpandVolume,
        input: Input,
    ) -> Result<Next, String> {
        match expand.step.clone() {
            Step::Lane => {
                Ok(Next::Call(Step::Claim, VolumeCall::ReadClaim { claim: expand.wanted.claim.clone() }))
            }
            Step::Claim => {
                let size = &expand.wanted.size;
                let behind: Quantity = size.parse().map_err(|error| format!("{size}: {error}"))?;
                let claim = input.claim().map_err(|failure| {
                    format!("mountVolume.NodeExpandVolume get PVC failed : {}", failure.message)
                })?;
                let due = match expansion_need(&claim, behind) {
                    ExpansionNeed::Needed(due) => due,
                    ExpansionNeed::Settled(how) => return Ok(Next::Done(Ok(how))),
                };
                let driver = expand.volume.id.driver.clone();
                let call = VolumeCall::NodeGetCapabilities { driver };
                Ok(Next::Call(Step::Capabilities { due, claim }, call))
            }
            Step::Capabilities { due, claim } => {
                let can = input.capabilities().map_err(|failure| {
                    let cause = failure.message;
                    format!("Expander.NodeExpand failed to check if node supports expansion : {cause}")
                })?;
                if let ExpansionStep::Settled(how) = due.next_step(&expand.volume.id.driver, can) {
                    return Ok(Next::Done(Ok(how)));
                }
                match due.in_progress_patch.clone() {
                    Some(mark) => Ok(expand.patch(Step::Mark { due, can }, mark)),
                    None => self.ask_driver(out, expand, due, can, claim),
                }
            }
            Step::Mark { due, can } => {
                let claim = expand.patched(input)?;
                self.ask_driver(out, expand, due, can, claim)
            }
            Step::NodeExpand { due, claim } => match input.done() {
                Ok(()) => {
                    if let Some(known) = self.volumes.get_mut(&expand.volume.id) {
                        known.refused_to_expand = false;
                    }
                    match due.grown(&claim) {
                        Some(patch) => Ok(expand.patch(Step::SizeTold { due }, patch)),
                        None => Ok(grown(&due)),
                    }
                }
                Err(failure) => Ok(self.expansion_failed(out, expand, &due, &claim, failure.into())),
            },
            Step::FailureTold { how } => {
                // If the claim can't be patched now, it is patched when the expansion fails again.
                if let Err(message) = expand.patched(input) {
                    let id = &expand.volume.id;
                    out.warn(format!(
                        "the claim of {id} is not told that its volume does not grow: {message}"
                    ));
                }
                Ok(Next::Done(how))
            }
            Step::SizeTold { due } => {
                expand.patched(input).map_err(|cause| {
                    format!("mountVolume.NodeExpandVolume update pvc status failed: {cause}")
                })?;
                Ok(grown(&due))
            }
        }
    }

    fn ask_driver(
        &mut self,
        out: &mut Outputs,
        expand: &ExpandVolume,
        due: NodeExpansion,
        can: NodeServiceCapabilities,
        claim: Arc<PersistentVolumeClaim>,
    ) -> Result<Next, String> {
        match due.next_step(&expand.volume.id.driver, can) {
            ExpansionStep::CallDriver => Ok(expand.node_expand(due, can, claim)),
            ExpansionStep::Fail(failure) => Ok(self.expansion_failed(out, expand, &due, &claim, failure)),
            ExpansionStep::Settled(how) => Ok(Next::Done(Ok(how))),
        }
    }

    fn expansion_failed(
        &mut self,
        out: &mut Outputs,
        expand: &ExpandVolume,
        due: &NodeExpansion,
        claim: &PersistentVolumeClaim,
        failure: ExpansionFailure,
    ) -> Next {
        let refused = self.volumes.get(&expand.volume.id).is_some_and(|known| known.refused_to_expand);
        let verdict = due.failed(claim, failure, refused, out.now.wall);
        if let Some(known) = self.volumes.get_mut(&expand.volume.id) {
            known.refused_to_expand |= verdict.refused;
        }
        match verdict.claim_patch {
            Some(patch) => expand.patch(Step::FailureTold { how: verdict.result }, patch),
            None => Next::Done(verdict.result),
        }
    }
}

fn grown(due: &NodeExpansion) -> Next {
    Next::Done(Ok(ExpandOutcome::Grown { size: due.size.to_string() }))
}
