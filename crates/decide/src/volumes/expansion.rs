//! CSI volumes whose PersistentVolume is larger than the filesystem on this node.

use model::volume_source::PersistentSource;
use std::collections::BTreeMap;

use model::csi::{ClaimObject, Expansion};
use model::k8s;
use model::quantity::Quantity;
use model::volume::VolumeSetup;

use super::persistent::{self, ResolvedVolume};
use super::{VolumeInputs, csi, mounted};
use crate::csi::{ExpansionNeed, capacity_of, expansion_need, quantity};
use crate::ledger::VolumeSize;

/// Result of comparing the pod's claims with the known sizes.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct VolumeExpansions {
    /// Volumes whose size was not known before, with the size from status.capacity.
    pub first_seen: Vec<(String, Quantity)>,
    pub growing: Vec<(VolumeSetup, Expansion)>,
    /// Volumes that would be expanded but are read-only for this pod: the name of the PersistentVolume, and the claim.
    pub read_only: Vec<(String, ClaimObject)>,
}

/// `online`: the pod's containers may run already.
pub(crate) fn volume_expansions(
    inputs: &VolumeInputs<'_>,
    known: &BTreeMap<String, VolumeSize>,
    online: bool,
) -> VolumeExpansions {
    let mut found = VolumeExpansions::default();
    for volume in mounted(inputs.pod) {
        let Some(claim) = persistent::pod_volume_claim(inputs.pod, volume) else { continue };
        let Ok(resolved) = persistent::resolve(inputs, claim) else { continue };
        let (PersistentSource::Csi(source), Some(object)) = (resolved.source, resolved.claim_object) else {
            continue;
        };
        let known = known.get(&volume.name);
        let told = capacity_of(object);
        if let (None, Some(size)) = (known, told) {
            found.first_seen.push((volume.name.clone(), size));
        }
        let Some(behind) = size_to_expand_to(&resolved, known, told) else { continue };
        if resolved.claim.read_only {
            found.read_only.push((resolved.spec_name.to_owned(), claim_object(&resolved)));
            continue;
        }
        if let ExpansionNeed::Needed(_) = expansion_need(object, behind) {
            found.growing.extend(expansion(inputs, volume, &resolved, source, (behind, online)));
        }
    }
    found
}

/// The size of the PersistentVolume, if the volume is smaller on this node and may be expanded now.
fn size_to_expand_to(
    resolved: &ResolvedVolume<'_>,
    known: Option<&VolumeSize>,
    told: Option<Quantity>,
) -> Option<Quantity> {
    let spec = resolved.volume.spec.as_ref()?;
    let behind = quantity(spec.capacity.as_ref())?;
    let version = resolved.claim_object?.metadata.resource_version.as_ref();
    if known.is_some_and(|known| {
        known.in_use
            || (known.not_our_turn_for_claim_version.is_some()
                && known.not_our_turn_for_claim_version.as_ref() == version)
    }) {
        return None;
    }
    let here = known.map(|known| known.size).or(told)?;
    (behind > here && !here.is_zero()).then_some(behind)
}

/// `None`: an object that its set-up needs is not known now.
fn expansion(
    inputs: &VolumeInputs<'_>,
    volume: &k8s::Volume,
    resolved: &ResolvedVolume<'_>,
    source: &k8s::CSIPersistentVolumeSource,
    (size, online): (Quantity, bool),
) -> Option<(VolumeSetup, Expansion)> {
    let setup = super::persistent(inputs, volume).ok()?;
    let secrets = csi::expand_secrets(inputs, resolved, source).ok()?;
    let version = resolved.claim_object?.metadata.resource_version.clone().unwrap_or_default();
    let claim = claim_object(resolved);
    Some((setup, Expansion { claim, size: size.to_string(), secrets, version, online }))
}

fn claim_object(resolved: &ResolvedVolume<'_>) -> ClaimObject {
    ClaimObject {
        namespace: resolved.claim.namespace.to_owned(),
        name: resolved.claim.name.clone(),
        uid: resolved.claim_object.and_then(|object| object.metadata.uid.clone()).unwrap_or_default(),
    }
}
