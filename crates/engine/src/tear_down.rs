//! Taking the volumes of a pod away: what the agent itself has mounted, then what storage drivers have.

use std::sync::Arc;

use model::PodUid;
use ports::FilesError;

use crate::csi::CsiKeeper;

/// Binds of sub-paths are the agent's own, and go first. While one of them is left the volume is still in use here, whatever
/// its driver says: it must not be let go of, for another node to have.
pub(crate) async fn volumes(
    own: impl Future<Output = Result<(), FilesError>>,
    csi: Option<&Arc<CsiKeeper>>,
    uid: &PodUid,
) -> Result<(), String> {
    own.await.map_err(|error| error.user_message())?;
    match csi {
        Some(csi) => csi.tear_down(uid).await,
        None => Ok(()),
    }
}
