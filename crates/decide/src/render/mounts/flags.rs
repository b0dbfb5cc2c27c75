//! How a mount behaves.

use model::cri::MountPropagation;
use model::k8s;

use crate::render::RenderError;

pub(super) fn propagation(mount: &k8s::VolumeMount) -> Result<MountPropagation, RenderError> {
    match mount.mount_propagation.as_deref() {
        None | Some("None") => Ok(MountPropagation::Private),
        Some("HostToContainer") => Ok(MountPropagation::HostToContainer),
        Some("Bidirectional") => Ok(MountPropagation::Bidirectional),
        Some(mode) => Err(RenderError::MountPropagation { mode: mode.to_owned() }),
    }
}

/// Whether mounts below a read-only one are read-only too.
pub(super) fn recursive_read_only(mount: &k8s::VolumeMount, supported: bool) -> Result<bool, RenderError> {
    let refuse =
        |problem: String| Err(RenderError::RecursiveReadOnly { volume: mount.name.clone(), problem });
    let mode = mount.recursive_read_only.as_deref().unwrap_or("Disabled");
    if mode == "Disabled" {
        return Ok(false);
    }
    if !mount.read_only.unwrap_or(false) {
        return refuse("it is not read-only".into());
    }
    if let Some(propagation) = mount.mount_propagation.as_deref().filter(|mode| *mode != "None") {
        return refuse(format!("it is not compatible with propagation {propagation:?}"));
    }
    match mode {
        "IfPossible" => Ok(supported),
        "Enabled" if supported => Ok(true),
        "Enabled" => refuse("it is not supported by the runtime".into()),
        other => Err(RenderError::RecursiveReadOnlyMode { mode: other.to_owned() }),
    }
}
