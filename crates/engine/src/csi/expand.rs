//! Volumes that grow. What the claim says is read anew each time: others write to it too.
//!
//! ```text
//!   claim read ──> this node's turn? ──> claim: in progress ──> the driver ──> claim: its new size
//! ```
//! Failures: a driver that has refused is told to the claim; everything else begins anew, ever later.

use std::sync::Arc;

use decide::csi::{Growth, Part, expand_call, gives_up, grown, growth, refused};
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
pub(crate) struct Growing {
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
        let behind: Quantity = wanted.size.parse().map_err(|error| format!("{}: {error}", wanted.size))?;
        let claim = growing.read().await?;
        let (size, mark, told, part) = match growth(&claim, behind) {
            Growth::Due { size, mark, told, part } => (size, mark, told, part),
            Growth::Done(size) => return Ok(Expanded::Unneeded { size: size.to_string() }),
            Growth::NotYet => return Ok(Expanded::NotYet),
        };
        let can = self.ports.drivers.abilities(&volume.id.driver).await.map_err(|error| {
            format!("Expander.NodeExpand failed to check if node supports expansion : {error}")
        })?;
        if !can.expand && part != Part::Asked {
            return Ok(Expanded::Unneeded { size: size.to_string() });
        }
        let claim = match &mark {
            Some(mark) => growing.patch(mark).await?,
            None => claim,
        };
        if !can.expand {
            let message = format!("NodeExpand is not supported by the CSI driver {}", volume.id.driver);
            growing.tell(refused(&claim, &message, false, growing.at)).await;
            return Err(message);
        }
        let call = expand_call(volume, can, size, wanted);
        if let Err(error) = self.ports.drivers.expand(&volume.id.driver, &call).await {
            return self.expand_failed(growing, (&claim, size, part), lane, &error).await;
        }
        lane.refused_to_grow = false;
        if !told {
            let written = growing.patch(&grown(&claim, size)).await;
            written
                .map_err(|cause| format!("mountVolume.NodeExpandVolume update pvc status failed: {cause}"))?;
        }
        Ok(Expanded::Grown { size: size.to_string() })
    }

    async fn expand_failed(
        &self,
        growing: &Growing,
        (claim, size, part): (&PersistentVolumeClaim, Quantity, Part),
        lane: &mut Lane,
        error: &CsiError,
    ) -> Result<Expanded, String> {
        if let CsiError::NotRegistered { .. } = error {
            return Err(error.to_string());
        }
        let what = "Expander.NodeExpand failed to expand the volume";
        let message = match error.is_infeasible() {
            true => format!("{what} {error}"),
            false => format!("{what} : {error}"),
        };
        if error.is_final() && part != Part::Untold {
            let impossible = error.is_infeasible() || (lane.refused_to_grow && gives_up(claim, size));
            lane.refused_to_grow = true;
            growing.tell(refused(claim, &message, impossible, growing.at)).await;
        }
        match error.is_in_use() {
            true => Ok(Expanded::InUse),
            false => Err(message),
        }
    }
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
