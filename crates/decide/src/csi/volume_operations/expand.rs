//! Making a volume larger. What the claim says is read anew each time: others write to it too.
//!
//! ```text
//!   lane ──> claim read ──> this node's turn? ──> claim: in progress ──> NodeExpandVolume ──> claim: its new size
//! ```
//! Failures: a driver that has refused is told to the claim; everything else begins anew, ever later.

use std::sync::Arc;

use model::csi::{Abilities, CsiVolume, Expansion};
use model::k8s::PersistentVolumeClaim;
use model::quantity::Quantity;

use super::super::expand::{Due, Failure, Growth, Turn, expand_call, growth};
use super::{CsiVolumes, Input, Operation, OperationId, Outputs, VolumeCall, VolumeRequestId};
use crate::event::{CallFailure, Expanded, StepResult};

#[derive(Clone, Debug)]
pub(super) struct ExpandVolume {
    request: VolumeRequestId,
    volume: CsiVolume,
    wanted: Expansion,
    /// The pod is going, and nobody waits for the outcome.
    cancelled: bool,
    step: Step,
}

/// What it waits for.
#[derive(Clone, Debug)]
enum Step {
    Lane,
    Claim,
    Capabilities {
        due: Due,
        claim: Arc<PersistentVolumeClaim>,
    },
    /// The claim says that the node is at it.
    Mark {
        due: Due,
        can: Abilities,
    },
    NodeExpand {
        due: Due,
        claim: Arc<PersistentVolumeClaim>,
    },
    /// The claim says how it failed.
    FailureTold {
        how: Result<Expanded, String>,
    },
    /// The claim says its new size.
    SizeTold {
        due: Due,
    },
}

/// What an answer leads to.
enum Next {
    Call(Step, VolumeCall),
    Done(Result<Expanded, String>),
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

    fn node_expand(&self, due: Due, can: Abilities, claim: Arc<PersistentVolumeClaim>) -> Next {
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

    /// One that waits ends now; one that has begun ends by itself.
    pub(super) fn cancel_expand(
        &mut self,
        out: &mut Outputs,
        id: OperationId,
        mut expand: Box<ExpandVolume>,
    ) {
        expand.cancelled = true;
        out.answer(expand.request.clone(), StepResult::Interrupted);
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
            Ok(Next::Call(step, call)) => {
                expand.step = step;
                return self.call(out, id, Operation::Expand(expand), call);
            }
            Ok(Next::Done(how)) => how,
            Err(message) => Err(message),
        };
        self.leave_lane(id, &expand.volume.id);
        if !expand.cancelled {
            let failed = |message| StepResult::Failed(CallFailure { unreachable: false, message });
            out.answer(expand.request, how.map_or_else(failed, StepResult::Expanded));
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
                let due = match growth(&claim, behind) {
                    Growth::Due(due) => due,
                    Growth::Over(how) => return Ok(Next::Done(Ok(how))),
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
                if let Turn::Over(how) = due.turn(&expand.volume.id.driver, can) {
                    return Ok(Next::Done(Ok(how)));
                }
                match due.mark.clone() {
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
                // What can't be told now is told when it fails again.
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
        due: Due,
        can: Abilities,
        claim: Arc<PersistentVolumeClaim>,
    ) -> Result<Next, String> {
        match due.turn(&expand.volume.id.driver, can) {
            Turn::Ask => Ok(expand.node_expand(due, can, claim)),
            Turn::Fail(failure) => Ok(self.expansion_failed(out, expand, &due, &claim, failure)),
            Turn::Over(how) => Ok(Next::Done(Ok(how))),
        }
    }

    fn expansion_failed(
        &mut self,
        out: &mut Outputs,
        expand: &ExpandVolume,
        due: &Due,
        claim: &PersistentVolumeClaim,
        failure: Failure,
    ) -> Next {
        let refused = self.volumes.get(&expand.volume.id).is_some_and(|known| known.refused_to_expand);
        let verdict = due.failed(claim, failure, refused, out.now.wall);
        if let Some(known) = self.volumes.get_mut(&expand.volume.id) {
            known.refused_to_expand |= verdict.refused;
        }
        match verdict.told {
            Some(patch) => expand.patch(Step::FailureTold { how: verdict.how }, patch),
            None => Next::Done(verdict.how),
        }
    }
}

fn grown(due: &Due) -> Next {
    Next::Done(Ok(Expanded::Grown { size: due.size.to_string() }))
}
