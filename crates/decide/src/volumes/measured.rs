//! The volumes of a pod whose sizes are reported. There are three ways to measure: volumes made by the agent are
//! walked, network and local volumes are read with statfs, CSI volumes are asked with NodeGetVolumeStats. Host paths
//! are not counted for the pod, with or without a claim.

use std::collections::{BTreeMap, BTreeSet};

use model::csi::{PLUGIN, VolumeId};
use model::k8s;
use model::report::VolumeCount;
use model::volume::MeasuredVolume;
use model::volume_source::{PersistentSource, VolumeSource};

use super::persistent::{self, ResolvedVolume};
use super::{VolumeInputs, mounted, volume_path};
use crate::csi::{inline_handle, paths};
use crate::pod_volumes::{VolumePath, host_path};

/// A volume whose claim is not resolved (yet) is left out.
pub fn measured(inputs: &VolumeInputs<'_>) -> Vec<MeasuredVolume> {
    let measure = |volume| match persistent::resolve_volume(inputs, volume) {
        Some(resolved) => claimed(inputs, resolved.ok()?),
        None => named(inputs, volume),
    };
    inputs.pod.spec().volumes.iter().flatten().filter_map(measure).collect()
}

/// A volume without a claim.
fn named(inputs: &VolumeInputs<'_>, volume: &k8s::Volume) -> Option<MeasuredVolume> {
    let source = VolumeSource::of(volume);
    let (ephemeral, on_disk) = match source {
        VolumeSource::Csi(source) => {
            let handle = inline_handle(&inputs.pod.uid, &volume.name);
            let id = VolumeId { driver: source.driver.clone(), handle };
            return Some(of_driver(inputs, &volume.name, id, (&volume.name, false), None));
        }
        VolumeSource::EmptyDir(source) => {
            (true, source.and_then(|source| source.medium.as_deref()).unwrap_or_default().is_empty())
        }
        VolumeSource::ConfigMap(_) => (true, true),
        VolumeSource::Secret(_) | VolumeSource::DownwardApi(_) | VolumeSource::Projected(_) => (true, false),
        VolumeSource::Nfs(_) => (false, false),
        VolumeSource::HostPath(_)
        | VolumeSource::PersistentVolumeClaim(_)
        | VolumeSource::Ephemeral(_)
        | VolumeSource::Image(_)
        | VolumeSource::Migrated(_)
        | VolumeSource::Unsupported(_) => return None,
    };
    let path = host_path(inputs.config, inputs.pod, volume).ok()?.path;
    let (name, plugin) = (volume.name.clone(), source.plugin()?.to_owned());
    Some(MeasuredVolume { name, path, plugin, ephemeral, on_disk, claim: None, of_driver: None })
}

/// `spec`: the volume's name in paths, and whether it is a device.
fn of_driver(
    inputs: &VolumeInputs<'_>,
    name: &str,
    id: VolumeId,
    spec: (&str, bool),
    claim: Option<String>,
) -> MeasuredVolume {
    let paths = paths(inputs.config, &inputs.pod.uid, &id, spec.0, spec.1);
    MeasuredVolume {
        name: name.to_owned(),
        path: paths.device.map_or(paths.target, |device| device.map),
        plugin: PLUGIN.to_owned(),
        ephemeral: false,
        on_disk: false,
        claim,
        of_driver: Some(id),
    }
}

fn claimed(inputs: &VolumeInputs<'_>, resolved: ResolvedVolume<'_>) -> Option<MeasuredVolume> {
    let name = resolved.claim.volume.name.clone();
    if let PersistentSource::Csi(source) = resolved.source {
        let id = VolumeId { driver: source.driver.clone(), handle: source.volume_handle.clone() };
        let spec = (resolved.spec_name, resolved.block);
        let claim = Some(resolved.claim.name).filter(|claim| !claim.is_empty());
        return Some(of_driver(inputs, &name, id, spec, claim));
    }
    if !matches!(resolved.source, PersistentSource::Local(_) | PersistentSource::Nfs(_)) {
        return None;
    }
    let Some(VolumePath::Directory(found)) = volume_path(inputs, &resolved) else { return None };
    Some(MeasuredVolume {
        name,
        plugin: resolved.source.plugin()?.to_owned(),
        path: found.path,
        ephemeral: false,
        on_disk: false,
        claim: Some(resolved.claim.name),
        of_driver: None,
    })
}

/// Adds a pod's volumes to the counts by plugin. `wanted`: the pod wants its volumes.
pub fn count_volumes(
    counted: &mut BTreeMap<&'static str, VolumeCount>,
    inputs: &VolumeInputs<'_>,
    wanted: bool,
    set_up: &BTreeSet<String>,
) {
    for volume in mounted(inputs.pod) {
        let Some(plugin) = plugin_name(inputs, volume) else { continue };
        let count = counted.entry(plugin).or_default();
        count.wanted += usize::from(wanted);
        count.set_up += usize::from(set_up.contains(&volume.name));
    }
}

/// `None` for a claim that is not resolved (yet), because its plugin is unknown.
fn plugin_name(inputs: &VolumeInputs<'_>, volume: &k8s::Volume) -> Option<&'static str> {
    match persistent::resolve_volume(inputs, volume) {
        Some(resolved) => resolved.ok()?.source.plugin(),
        None => VolumeSource::of(volume).plugin(),
    }
}
