//! Where a volume can be reached from: zones of Kubernetes become those of the driver.

use std::collections::BTreeSet;

use model::k8s::{NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume};

const ZONE: &str = "topology.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";
const OLD_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
const OLD_REGION: &str = "failure-domain.beta.kubernetes.io/region";
/// Between the zones of one label.
const SEVERAL: &str = "__";
const UNSPECIFIED: &str = "UNSPECIFIED";

fn label<'a>(volume: &'a PersistentVolume, key: &str) -> Option<&'a str> {
    volume.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

fn terms(volume: &PersistentVolume) -> &[NodeSelectorTerm] {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required.as_ref());
    required.map(|required| required.node_selector_terms.as_slice()).unwrap_or_default()
}

fn has_key(volume: &PersistentVolume, key: &str) -> bool {
    let expressions = terms(volume).iter().flat_map(|term| term.match_expressions.iter().flatten());
    expressions.into_iter().any(|expression| expression.key == key)
}

/// Whether some zone stands in the affinity under this key.
fn has_values(volume: &PersistentVolume, key: &str) -> bool {
    let mut expressions = terms(volume).iter().flat_map(|term| term.match_expressions.iter().flatten());
    expressions.any(|expression| expression.key == key && expression.values.iter().flatten().next().is_some())
}

/// The keys of zone and region that the volume uses: the affinity counts more than labels.
fn keys(volume: &PersistentVolume) -> (&'static str, &'static str) {
    let old_label = label(volume, ZONE).is_none() && label(volume, OLD_ZONE).is_some();
    match !has_key(volume, ZONE) && (has_key(volume, OLD_ZONE) || old_label) {
        true => (OLD_ZONE, OLD_REGION),
        false => (ZONE, REGION),
    }
}

fn rename_key(volume: &mut PersistentVolume, old: &str, new: &str) {
    let affinity = volume.spec.as_mut().and_then(|spec| spec.node_affinity.as_mut());
    let Some(required) = affinity.and_then(|affinity| affinity.required.as_mut()) else { return };
    let expressions =
        required.node_selector_terms.iter_mut().flat_map(|term| term.match_expressions.iter_mut());
    expressions.flatten().filter(|expression| expression.key == old).for_each(|expression| {
        expression.key = new.to_owned();
    });
}

/// Every term asks for one of the zones too. Without a zone nothing is added.
fn add_zones<'a>(volume: &mut PersistentVolume, key: &str, zones: impl Iterator<Item = &'a str>) {
    let zones: BTreeSet<String> =
        zones.map(str::trim).filter(|zone| !zone.is_empty()).map(str::to_owned).collect();
    if zones.is_empty() {
        return;
    }
    let spec = volume.spec.get_or_insert_default();
    let required = spec.node_affinity.get_or_insert_default().required.get_or_insert_default();
    if required.node_selector_terms.is_empty() {
        required.node_selector_terms.push(NodeSelectorTerm::default());
    }
    for term in &mut required.node_selector_terms {
        term.match_expressions.get_or_insert_default().push(NodeSelectorRequirement {
            key: key.to_owned(),
            operator: "In".to_owned(),
            values: Some(zones.iter().cloned().collect()),
        });
    }
}

/// The zones of the affinity, or else those of the labels, under the driver's key.
pub(super) fn add_driver_topology(volume: &mut PersistentVolume, driver_key: &str) {
    let (zone, region) = keys(volume);
    if has_values(volume, zone) {
        rename_key(volume, zone, driver_key);
    } else if let Some(zones) = label(volume, zone).map(str::to_owned) {
        add_zones(volume, driver_key, zones.split(SEVERAL));
    }
    // Newer nodes have no labels of the old name.
    if region == OLD_REGION && has_values(volume, OLD_REGION) {
        rename_key(volume, OLD_REGION, REGION);
    }
}

/// This driver knows regions as well, and each label is one zone.
pub(super) fn vsphere_topology(volume: &mut PersistentVolume) {
    let (zone, region) = keys(volume);
    let known = [(zone, "topology.csi.vmware.com/zone"), (region, "topology.csi.vmware.com/region")];
    for (key, driver_key) in known {
        if has_values(volume, key) {
            rename_key(volume, key, driver_key);
        } else if let Some(place) = label(volume, key).map(str::to_owned) {
            add_zones(volume, driver_key, std::iter::once(place.as_str()));
        }
    }
}

/// What the driver calls a disk: in one zone, or in a region when its label names several zones.
pub(super) fn gce_handle(volume: &PersistentVolume, disk: &str) -> Result<String, String> {
    let old = label(volume, OLD_ZONE).filter(|label| !label.is_empty());
    let zones: Vec<&str> = old.or(label(volume, ZONE)).unwrap_or_default().split(SEVERAL).collect();
    match zones[..] {
        [""] => Ok(format!("projects/{UNSPECIFIED}/zones/{UNSPECIFIED}/disks/{disk}")),
        [zone] => Ok(format!("projects/{UNSPECIFIED}/zones/{zone}/disks/{disk}")),
        _ => {
            let region =
                region_of(&zones).map_err(|message| format!("failed to get region from zones: {message}"))?;
            Ok(format!("projects/{UNSPECIFIED}/regions/{region}/disks/{disk}"))
        }
    }
}

/// Zones are named `<locale>-<region>-<zone>`.
fn region_of(zones: &[&str]) -> Result<String, String> {
    let mut regions = BTreeSet::new();
    for zone in zones {
        let parts: Vec<&str> = zone.split('-').collect();
        let [locale, region, _] = parts[..] else {
            return Err(format!(
                "zone in unexpected format, expected: {{locale}}-{{region}}-{{zone}}, got: {zone}"
            ));
        };
        regions.insert(format!("{locale}-{region}"));
    }
    match regions.len() {
        1 => Ok(regions.into_iter().next().unwrap_or_default()),
        _ => {
            let shown: Vec<String> = regions.iter().map(|region| format!("{region}:{{}}")).collect();
            Err(format!("multiple or no regions gotten from zones, got: map[{}]", shown.join(" ")))
        }
    }
}

/// The in-tree plugin took any combination of modes for one that it had.
pub(super) fn gce_access_modes(modes: Option<&[String]>) -> Option<Vec<String>> {
    let modes = modes?;
    let once = modes.iter().any(|mode| mode == "ReadWriteOnce" || mode == "ReadWriteMany");
    let read_only = modes.iter().any(|mode| mode == "ReadOnlyMany");
    let mode = if read_only && !once { "ReadOnlyMany" } else { "ReadWriteOnce" };
    Some(vec![mode.to_owned()])
}
