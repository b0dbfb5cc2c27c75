//! Volumes of CSI drivers: claims whose persistent volume names a driver, and volumes that name one themselves.

use model::k8s;
use model::volume::VolumeSetup;

use super::persistent::Resolved;
use super::{ContentInputs, Held, VolumeError};

/// `resolved`: `None` for a volume that lives and dies with its pod.
pub(super) fn setup(
    _inputs: &ContentInputs<'_>,
    volume: &k8s::Volume,
    _resolved: Option<&Resolved<'_>>,
) -> Result<VolumeSetup, Held> {
    let message = VolumeError::Unsupported { volume: volume.name.clone(), kind: "csi" }.to_string();
    Err(Held::Refused { volume: volume.name.clone(), message })
}
