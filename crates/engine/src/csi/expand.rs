//! Volumes that grow. What the claim says is read anew each time: others write to it too.
//!
//! ```text
//!   claim read ──> this node's turn? ──> claim: in progress ──> the driver ──> claim: its new size
//! ```
//! Failures: a driver that has refused is told to the claim; everything else begins anew, ever later.

use std::sync::Arc;

use decide::csi::{Failure, FailureKind, Growth, Turn, expand_call, growth};
use decide::event::Expanded;
use model::Wall;
use model::csi::{CsiVolume, Expansion};
use model::k8s::PersistentVolumeClaim;
use model::quantity::Quantity;
use model::storage::{StorageKey, StorageObject};
use ports::{ApiError, CsiError, StorageApi};
use tokio_util::sync::CancellationToken;

use super::{CsiKeeper, Lane};

/// What is to be made larger, and where its claim is.
#[derive(Clone)]
pub struct Growing {
    pub storage: Arc<dyn StorageApi>,
    pub volume: CsiVolume,
    pub wanted: Expansion,
    pub at: Wall,
}

impl CsiKeeper {
    /// `None`: the pod is going, and what was begun for it ends by itself.
    pub async fn expand(
        self: &Arc<Self>,
        growing: Growing,
        cancel: &CancellationToken,
    ) -> Option<Result<Expanded, String>> {
        let (this, token) = (self.clone(), cancel.clone());
        super::detached(cancel, async move {
            let lane = this.lane(&growing.volume.id).await;
            let mut lane = lane.lock().await;
            match token.is_cancelled() {
                true => Err("context canceled".to_owned()),
                false => this.expand_now(&growing, &mut lane).await,
            }
        })
        .await
    }

    async fn expand_now(&self, growing: &Growing, lane: &mut Lane) -> Result<Expanded, String> {
        let Growing { volume, wanted, .. } = growing;
        let drivers = &self.ports.drivers;
        let behind: Quantity = wanted.size.parse().map_err(|error| format!("{}: {error}", wanted.size))?;
        let claim = growing.read().await?;
        let due = match growth(&claim, behind) {
            Growth::Due(due) => due,
            Growth::Over(how) => return Ok(how),
        };
        let can = drivers.abilities(&volume.id.driver).await.map_err(|error| {
            format!("Expander.NodeExpand failed to check if node supports expansion : {error}")
        })?;
        let turn = due.turn(&volume.id.driver, can);
        if let Turn::Over(how) = turn {
            return Ok(how);
        }
        let claim = match &due.mark {
            Some(mark) => growing.patch(mark).await?,
            None => claim,
        };
        let asked = match turn {
            Turn::Fail(failure) => Err(failure),
            _ => {
                let call = expand_call(volume, can, due.size, wanted);
                drivers.expand(&volume.id.driver, &call).await.map_err(|error| failure_of(&error))
            }
        };
        if let Err(failure) = asked {
            let verdict = due.failed(&claim, failure, lane.refused_to_grow, growing.at);
            lane.refused_to_grow |= verdict.refused;
            growing.tell(verdict.told).await;
            return verdict.how;
        }
        lane.refused_to_grow = false;
        if let Some(patch) = due.grown(&claim) {
            let written = growing.patch(&patch).await;
            written
                .map_err(|cause| format!("mountVolume.NodeExpandVolume update pvc status failed: {cause}"))?;
        }
        Ok(Expanded::Grown { size: due.size.to_string() })
    }
}

fn failure_of(error: &CsiError) -> Failure {
    let kind = match error {
        CsiError::NotRegistered { .. } => FailureKind::Away,
        error if error.is_in_use() => FailureKind::InUse,
        error if error.is_infeasible() => FailureKind::Impossible,
        error if error.is_final() => FailureKind::Final,
        CsiError::Rpc { .. } => FailureKind::Open,
    };
    Failure { kind, message: error.to_string() }
}

impl Growing {
    async fn read(&self) -> Result<Arc<PersistentVolumeClaim>, String> {
        let claim = &self.wanted.claim;
        let key = StorageKey::Claim { namespace: claim.namespace.clone(), name: claim.name.clone() };
        match self.storage.read(&key).await {
            Ok(StorageObject::Claim(found)) => Ok(found),
            Ok(_) => Err(format!("what was read of the claim {} is no claim", claim.name)),
            Err(error) => Err(format!("mountVolume.NodeExpandVolume get PVC failed : {error}")),
        }
    }

    async fn patch(&self, patch: &serde_json::Value) -> Result<Arc<PersistentVolumeClaim>, String> {
        let claim = &self.wanted.claim;
        let written = self.storage.patch_claim_status(claim, patch).await;
        written.map_err(|error: ApiError| {
            format!("patchPVCStatus failed to patch PVC {:?}: {error}", claim.name)
        })
    }

    /// What can't be told now is told when it fails again.
    async fn tell(&self, patch: Option<serde_json::Value>) {
        let Some(patch) = patch else { return };
        if let Err(message) = self.patch(&patch).await {
            tracing::warn!(volume = %self.volume.id, "the claim is not told that its volume does not grow: {message}");
        }
    }
}
