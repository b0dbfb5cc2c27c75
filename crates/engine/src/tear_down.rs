//! Tears down the volumes of a pod: first the mounts of the agent itself, then the volumes of CSI drivers.

use decide::ActionResult;
use decide::csi::{VolumeRequest, VolumeRequestId};
use ports::FilesError;

use crate::csi::VolumeRequests;

/// Sub-path bind mounts are made by the agent and are unmounted first. While one is left the volume is in use on this
/// node, whatever its driver reports, so it must not be unstaged and attached to another node. `drivers`: whether CSI
/// is enabled.
pub(crate) async fn tear_down_pod_volumes(
    own: impl Future<Output = Result<(), FilesError>>,
    drivers: Option<&VolumeRequests>,
    request: VolumeRequestId,
) -> Result<(), String> {
    own.await.map_err(|error| error.user_message())?;
    let Some(drivers) = drivers else { return Ok(()) };
    match drivers.perform(request, VolumeRequest::TearDown).await {
        ActionResult::Ok => Ok(()),
        ActionResult::Failed(failure) => Err(failure.message),
        // A tear-down is never cancelled, so it is interrupted only while the agent shuts down.
        _ => Err("the agent ends".to_owned()),
    }
}
