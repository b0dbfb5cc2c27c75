//! The SELinux label for the mount option `context=`, which replaces recursive relabelling.
//!
//! ```text
//!   SELinux is on, the driver has seLinuxMount, the volume is ReadWriteOncePod (or the gate SELinuxMount is on)
//!       ──> the labels of all containers that mount it: one, none, or an error if there are several
//!       ──> no label if the pod's seLinuxChangePolicy is Recursive
//! ```

use std::collections::BTreeSet;

use model::k8s::{CSIDriverSpec, SELinuxOptions};

use super::super::VolumeInputs;
use super::ResolvedVolume;

const GATE: &str = "SELinuxMount";
const ONE_POD: &str = "ReadWriteOncePod";
const BY_FILES: &str = "Recursive";

/// The label to mount the volume with. Empty: without a label.
pub(super) fn mount_label(
    inputs: &VolumeInputs<'_>,
    resolved: &ResolvedVolume<'_>,
    spec: &CSIDriverSpec,
) -> Result<String, String> {
    let can_be_mounted_with_label =
        modes_are_supported(inputs, resolved.access_modes) && !resolved.block && driver_supports(spec);
    let labels = container_labels(inputs, &resolved.claim.volume.name);
    let Some(labels) = labels.filter(|_| can_be_mounted_with_label) else { return Ok(String::new()) };
    if labels.len() > 1 {
        let list = labels.into_iter().collect::<Vec<_>>().join(",");
        return Err(format!("multiple SELinux labels found: {list}"));
    }
    Ok(label_by_policy(inputs, labels))
}

pub(super) fn driver_supports(spec: &CSIDriverSpec) -> bool {
    spec.se_linux_mount == Some(true)
}

/// Whether volumes with these access modes are mounted with a label.
pub(super) fn modes_are_supported(inputs: &VolumeInputs<'_>, modes: &[String]) -> bool {
    matches!(modes, [only] if only == ONE_POD) || inputs.config.feature(GATE)
}

/// The labels of the containers that mount the volume. `None`: SELinux is off.
pub(super) fn container_labels(inputs: &VolumeInputs<'_>, volume: &str) -> Option<BTreeSet<String>> {
    let default = &inputs.facts.selinux_file_label;
    let known = inputs.facts.selinux_enabled && !default.is_empty();
    known.then(|| options(inputs, volume).map(|options| file_label(default, options)).collect())
}

/// The only label of the containers, unless the pod wants its files labelled one by one.
pub(super) fn label_by_policy(inputs: &VolumeInputs<'_>, labels: BTreeSet<String>) -> String {
    let context = inputs.pod.spec().security_context.as_ref();
    let policy = context.and_then(|context| context.se_linux_change_policy.as_deref());
    labels.into_iter().next().filter(|_| policy != Some(BY_FILES)).unwrap_or_default()
}

/// SELinux options of the containers that mount the volume.
fn options<'a>(inputs: &VolumeInputs<'a>, volume: &str) -> impl Iterator<Item = &'a SELinuxOptions> {
    let of_pod = inputs.pod.spec().security_context.as_ref().and_then(|c| c.se_linux_options.as_ref());
    let containers = inputs.pod.all_containers().map(|(_, container)| container);
    let mounting = containers
        .filter(move |container| container.volume_mounts.iter().flatten().any(|mount| mount.name == volume));
    mounting.filter_map(move |container| {
        let own = container.security_context.as_ref().and_then(|c| c.se_linux_options.as_ref());
        own.or(of_pod)
    })
}

/// Files get the user and the level of the process; role and type come from the policy. Without a level in the spec the
/// runtime chooses one that is not known beforehand, so there is no label.
fn file_label(default: &str, options: &SELinuxOptions) -> String {
    let said = |field: &Option<String>| field.clone().filter(|text| !text.is_empty());
    let mut parts: Vec<String> = default.splitn(4, ':').map(str::to_owned).collect();
    let (Some(level), [user, _, _, _]) = (said(&options.level), &mut parts[..]) else { return String::new() };
    if let Some(wanted) = said(&options.user) {
        *user = wanted;
    }
    parts[3] = level;
    parts.join(":")
}

/// The label is quoted, because a level may contain commas.
pub(super) fn context_option(label: &str) -> String {
    format!("context={label:?}")
}
