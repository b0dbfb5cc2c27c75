//! Volumes that have to be attached, and pods that are rejected because the node can't take more volumes.
//!
//! ```text
//!   not attached after VOLUME_WAIT_PERIOD ──> read the attachment ──> attach limit reached ──> the pod is rejected
//! ```
//! A pod is rejected only for drivers that report how many volumes a node can take
//! (nodeAllocatableUpdatePeriodSeconds), because then the scheduler sees the updated limit and places the next pod
//! elsewhere.

use model::GrpcCode;
use model::csi::VolumeId;
use model::volume_source::PersistentSource;

use super::super::{VolumeInputs, mounted, persistent};
use super::{attach_required, attached_names, driver_object, is_listed};
use crate::csi::{allocatable_update_period, attachment_name};

/// A volume of a pod that is not attached yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnattachedVolume {
    /// The name of the volume in the pod.
    pub volume: String,
    /// The driver, if it has reported that the node can't take the volume.
    pub full_driver: Option<String>,
}

/// The pod's unattached volumes, as far as they are known, sorted by name.
pub fn unattached(inputs: &VolumeInputs<'_>) -> Vec<UnattachedVolume> {
    let mut found = Vec::new();
    for volume in mounted(inputs.pod) {
        let Some(Ok(resolved)) = persistent::resolve_volume(inputs, volume) else { continue };
        let PersistentSource::Csi(source) = resolved.source else { continue };
        let id = VolumeId { driver: source.driver.clone(), handle: source.volume_handle.clone() };
        let waits =
            attach_required(inputs, &id.driver) == Some(true) && !is_listed(inputs, &id, attached_names);
        if waits {
            let no_room = is_node_full(inputs, &id).then_some(id.driver);
            found.push(UnattachedVolume { volume: volume.name.clone(), full_driver: no_room });
        }
    }
    found.sort_by(|one, other| one.volume.cmp(&other.volume));
    found
}

/// Whether the driver has nodeAllocatableUpdatePeriodSeconds.
pub(super) fn reports_volume_limit(inputs: &VolumeInputs<'_>, driver: &str) -> bool {
    driver_object(inputs, driver).flatten().is_some_and(|driver| allocatable_update_period(driver).is_some())
}

fn is_node_full(inputs: &VolumeInputs<'_>, id: &VolumeId) -> bool {
    let Some(desk) = inputs.cluster.filter(|_| reports_volume_limit(inputs, &id.driver)) else {
        return false;
    };
    let name = attachment_name(id, &inputs.config.node_name);
    let Ok(attachment) = desk.storage.attachment(&inputs.pod.uid, &name) else { return false };
    let status = attachment.status.as_ref().filter(|status| !status.attached);
    let error = status.and_then(|status| status.attach_error.as_ref());
    // With this code a driver says that the node can't take more volumes.
    error.and_then(|error| error.error_code) == Some(GrpcCode::ResourceExhausted.number())
}
