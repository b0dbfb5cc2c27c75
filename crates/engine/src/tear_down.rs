//! Taking the volumes of a pod away: what the agent itself has mounted, then what storage drivers have.

use decide::ActionResult;
use decide::csi::{VolumeRequest, VolumeRequestId};
use ports::FilesError;

use crate::csi::VolumeRequests;

/// Binds of sub-paths are the agent's own, and go first. While one of them is left the volume is still in use here, whatever
/// its driver says: it must not be unstaged, for another node to have. `drivers`: there may be storage drivers.
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
        // Nobody interrupts a tear-down.
        _ => Err("the agent ends".to_owned()),
    }
}
