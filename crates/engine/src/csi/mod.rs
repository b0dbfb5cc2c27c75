//! Storage drivers (CSI): their registration, and the calls about their volumes.
//!
//! `decide::volume_operations::CsiVolumes` decides which calls are made and in what order; it is part of the node's state. Here each
//! call runs in a task of its own and its outcome is sent as an event. Cancelling a call drops its future.
//!
//! ```text
//!   executor, sweep ── request ──> dispatcher: VolumeRequested ──> step ──> CallVolume ──> a task ──> VolumeCallEnded
//!          ^                                                        └─> AnswerVolumeRequest
//!          └────────────────────────────────────────────────────────────┘
//! ```

pub(crate) mod node_object;
pub(crate) mod registry;

use std::collections::HashMap;
use std::sync::Arc;

use decide::csi::{
    VolumeCall, VolumeCallAnswer, VolumeCallFailure, VolumeCallFailureKind, VolumeCallId, VolumeCallResult,
    VolumeRequest, VolumeRequestId,
};
use decide::{ActionResult, Event};
use model::csi::ClaimObject;
use model::storage::{StorageKey, StorageObject};
use ports::{CsiDrivers, CsiError, CsiFiles, FilesError, PluginSockets, StorageApi};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::outbox::Outbox;
use crate::tasks;

/// Storage drivers of the node, as the engine uses them.
#[derive(Clone)]
pub struct CsiPorts {
    pub drivers: Arc<dyn CsiDrivers>,
    pub files: Arc<dyn CsiFiles>,
    pub sockets: Arc<dyn PluginSockets>,
}

/// Makes the calls about volumes: to CSI drivers, to the disk and to the API server.
#[derive(Clone)]
pub struct VolumeCalls {
    pub ports: CsiPorts,
    /// `None`: the node runs without a cluster.
    pub storage: Option<Arc<dyn StorageApi>>,
}

/// An operation on a volume that a task has requested and waits for.
pub(crate) struct WantedVolumeOperation {
    pub request: VolumeRequestId,
    pub what: VolumeRequest,
    pub answer: oneshot::Sender<ActionResult>,
}

/// Sends requests for volume operations to the dispatcher.
#[derive(Clone)]
pub(crate) struct VolumeRequests(mpsc::UnboundedSender<WantedVolumeOperation>);

impl VolumeRequests {
    pub fn new() -> (Self, mpsc::UnboundedReceiver<WantedVolumeOperation>) {
        let (requests, wanted) = mpsc::unbounded_channel();
        (Self(requests), wanted)
    }

    /// Returns the result of the operation. When the plan that asked is cancelled, `decide` answers the request at
    /// once.
    pub async fn perform(&self, request: VolumeRequestId, what: VolumeRequest) -> ActionResult {
        let (answer, answered) = oneshot::channel();
        // Sending fails only while the engine shuts down.
        let _ = self.0.send(WantedVolumeOperation { request, what, answer });
        answered.await.unwrap_or(ActionResult::Interrupted)
    }
}

/// The dispatcher's side: the requests that wait for an answer, and the calls that are running.
pub(crate) struct VolumeWork {
    /// `None`: no storage driver can register.
    calls: Option<VolumeCalls>,
    waiting: HashMap<VolumeRequestId, oneshot::Sender<ActionResult>>,
    under_way: HashMap<VolumeCallId, CancellationToken>,
}

impl VolumeWork {
    pub fn new(calls: Option<VolumeCalls>) -> Self {
        Self { calls, waiting: HashMap::new(), under_way: HashMap::new() }
    }

    /// Stores the sender of the answer and returns the event for the step.
    pub fn wanted(&mut self, wanted: WantedVolumeOperation) -> Event {
        let WantedVolumeOperation { request, what, answer } = wanted;
        self.waiting.insert(request.clone(), answer);
        Event::VolumeRequested { request, what }
    }

    pub fn answer(&mut self, request: &VolumeRequestId, result: ActionResult) {
        if let Some(answer) = self.waiting.remove(request) {
            // The receiver is dropped only while the engine shuts down.
            let _ = answer.send(result);
        }
    }

    pub fn call(&mut self, outbox: &Outbox, id: VolumeCallId, call: VolumeCall) {
        let cancel = CancellationToken::new();
        self.under_way.insert(id, cancel.clone());
        let (calls, told) = (self.calls.clone(), outbox.clone());
        let work = async move {
            let result = match calls {
                Some(calls) => cancel.run_until_cancelled(calls.perform(call)).await,
                None => Some(Err(failed("CSI is not available on this node".into()))),
            };
            // No event is sent for a call that was cancelled.
            if let Some(result) = result {
                told.send(Event::VolumeCallEnded { id, result });
            }
        };
        let panicked = move |message| Some(Event::VolumeCallEnded { id, result: Err(failed(message)) });
        tasks::spawn_call(outbox, work, panicked);
    }

    pub fn cancel(&mut self, id: VolumeCallId) {
        if let Some(call) = self.under_way.remove(&id) {
            call.cancel();
        }
    }

    pub fn ended(&mut self, id: VolumeCallId) {
        self.under_way.remove(&id);
    }
}

impl VolumeCalls {
    pub async fn perform(&self, call: VolumeCall) -> VolumeCallResult {
        match call {
            VolumeCall::NodeGetCapabilities { .. }
            | VolumeCall::NodeStageVolume { .. }
            | VolumeCall::NodePublishVolume { .. }
            | VolumeCall::NodeUnpublishVolume { .. }
            | VolumeCall::NodeUnstageVolume { .. }
            | VolumeCall::NodeExpandVolume { .. } => {
                self.ask_driver(call).await.map_err(|error| refused(&error))
            }
            VolumeCall::ReadClaim { claim } => self.read_claim(&claim).await,
            VolumeCall::PatchClaimStatus { claim, patch } => self.patch_claim(&claim, &patch).await,
            on_disk => self.on_disk(on_disk).await.map_err(|error| failed(error.user_message())),
        }
    }

    async fn ask_driver(&self, call: VolumeCall) -> Result<VolumeCallAnswer, CsiError> {
        let drivers = &self.ports.drivers;
        match call {
            VolumeCall::NodeGetCapabilities { driver } => {
                return Ok(VolumeCallAnswer::Capabilities(drivers.node_get_capabilities(&driver).await?));
            }
            VolumeCall::NodeStageVolume { driver, call } => drivers.node_stage_volume(&driver, &call).await?,
            VolumeCall::NodePublishVolume { driver, call } => {
                drivers.node_publish_volume(&driver, &call).await?
            }
            VolumeCall::NodeUnpublishVolume { driver, handle, target } => {
                drivers.node_unpublish_volume(&driver, &handle, &target).await?;
            }
            VolumeCall::NodeUnstageVolume { driver, handle, staging } => {
                drivers.node_unstage_volume(&driver, &handle, &staging).await?;
            }
            VolumeCall::NodeExpandVolume { driver, call } => {
                drivers.node_expand_volume(&driver, &call).await?
            }
            _ => {}
        }
        Ok(VolumeCallAnswer::Done)
    }

    async fn on_disk(&self, call: VolumeCall) -> Result<VolumeCallAnswer, FilesError> {
        let files = &self.ports.files;
        match call {
            VolumeCall::ListRecords => return Ok(VolumeCallAnswer::Records(files.list_volumes().await?)),
            VolumeCall::ListPodRecords { uid } => {
                return Ok(VolumeCallAnswer::Records(files.list_pod_volumes(&uid).await?));
            }
            VolumeCall::WaitForEarlierWork { place } => files.wait_until_idle(&place).await?,
            VolumeCall::MakeDir { path } => files.make_dir(&path).await?,
            VolumeCall::WriteRecord { path, record } => files.write_record(&path, &record).await?,
            VolumeCall::Remove { place, record } => files.remove(&place, record.as_deref()).await?,
            VolumeCall::ApplyGroup { path, group, on_root_mismatch } => {
                files.apply_fs_group(&path, group, on_root_mismatch).await?;
            }
            VolumeCall::LinkDevice { device, link } => files.link_device(&device, &link).await?,
            VolumeCall::UnlinkDevice { link } => files.unlink_device(&link).await?,
            VolumeCall::MapDevice { device, map } => files.map_device(&device, &map).await?,
            VolumeCall::UnmapDevice { map } => files.unmap_device(&map).await?,
            _ => {}
        }
        Ok(VolumeCallAnswer::Done)
    }

    async fn read_claim(&self, claim: &ClaimObject) -> VolumeCallResult {
        let Some(storage) = &self.storage else { return Err(no_cluster()) };
        let key = StorageKey::Claim { namespace: claim.namespace.clone(), name: claim.name.clone() };
        match storage.read(&key).await {
            Ok(StorageObject::Claim(found)) => Ok(VolumeCallAnswer::Claim(found)),
            Ok(_) => Err(failed(format!("what was read of the claim {} is no claim", claim.name))),
            Err(error) => Err(failed(error.to_string())),
        }
    }

    async fn patch_claim(&self, claim: &ClaimObject, patch: &serde_json::Value) -> VolumeCallResult {
        let Some(storage) = &self.storage else { return Err(no_cluster()) };
        let written = storage.patch_claim_status(claim, patch).await;
        written.map(VolumeCallAnswer::Claim).map_err(|error| failed(error.to_string()))
    }
}

/// A failure after which the driver or the disk may still be working on the call.
fn failed(message: String) -> VolumeCallFailure {
    VolumeCallFailure { kind: VolumeCallFailureKind::Open, message }
}

fn no_cluster() -> VolumeCallFailure {
    failed("this node has no cluster that could have claims".into())
}

fn refused(error: &CsiError) -> VolumeCallFailure {
    let kind = match error {
        CsiError::NotRegistered { .. } => VolumeCallFailureKind::NotRegistered,
        error if error.is_in_use() => VolumeCallFailureKind::InUse,
        error if error.is_infeasible() => VolumeCallFailureKind::Infeasible,
        error if error.is_final() => VolumeCallFailureKind::Final,
        CsiError::Rpc { .. } => VolumeCallFailureKind::Open,
    };
    VolumeCallFailure { kind, message: error.to_string() }
}

#[cfg(test)]
mod tests;
