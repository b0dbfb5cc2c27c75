//! Volumes of storage drivers that are larger behind their claims than they are on this node.

use std::collections::BTreeMap;

use model::csi::{ClaimObject, Expansion};
use model::k8s;
use model::quantity::Quantity;
use model::volume::VolumeSetup;

use super::persistent::{self, Resolved, Source};
use super::{ContentInputs, csi, mounted};
use crate::csi::{Growth, capacity_of, growth, quantity};
use crate::ledger::VolumeSize;

/// What a look at the pod's claims shows.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Sizes {
    /// Volumes that nothing is known of, with what their claims say.
    pub first_seen: Vec<(String, Quantity)>,
    pub growing: Vec<(VolumeSetup, Expansion)>,
    /// Those that would grow, but are read only for this pod: its volume's name, and what stands behind it.
    pub read_only: Vec<(String, ClaimObject)>,
}

/// `online`: the pod has its volumes and does not wait for them.
pub fn sizes(inputs: &ContentInputs<'_>, known: &BTreeMap<String, VolumeSize>, online: bool) -> Sizes {
    let mut found = Sizes::default();
    for volume in mounted(inputs.pod) {
        let Some(claim) = persistent::claim_of(inputs.pod, volume) else { continue };
        let Ok(resolved) = persistent::resolve(inputs, claim) else { continue };
        let (Source::Csi(source), Some(object)) = (resolved.source, resolved.claim_object) else { continue };
        let known = known.get(&volume.name);
        let told = capacity_of(object);
        if let (None, Some(size)) = (known, told) {
            found.first_seen.push((volume.name.clone(), size));
        }
        let Some(behind) = larger(&resolved, known, told) else { continue };
        if resolved.claim.read_only {
            found.read_only.push((resolved.spec_name.to_owned(), claim_object(&resolved)));
            continue;
        }
        if let Growth::Due(_) = growth(object, behind) {
            found.growing.extend(expansion(inputs, volume, &resolved, source, (behind, online)));
        }
    }
    found
}

/// The size behind the claim, if the volume is smaller here and something may be done about that now.
fn larger(resolved: &Resolved<'_>, known: Option<&VolumeSize>, told: Option<Quantity>) -> Option<Quantity> {
    let spec = resolved.volume.spec.as_ref()?;
    let behind = quantity(spec.capacity.as_ref())?;
    let version = resolved.claim_object?.metadata.resource_version.as_ref();
    if known.is_some_and(|known| known.in_use || (known.judged.is_some() && known.judged.as_ref() == version))
    {
        return None;
    }
    let here = known.map(|known| known.size).or(told)?;
    (behind > here && !here.is_zero()).then_some(behind)
}

/// `None`: something that its set-up needs is not known now.
fn expansion(
    inputs: &ContentInputs<'_>,
    volume: &k8s::Volume,
    resolved: &Resolved<'_>,
    source: &k8s::CSIPersistentVolumeSource,
    (size, online): (Quantity, bool),
) -> Option<(VolumeSetup, Expansion)> {
    let setup = super::persistent(inputs, volume).ok()?;
    let secrets = csi::expand_secrets(inputs, resolved, source).ok()?;
    let version = resolved.claim_object?.metadata.resource_version.clone().unwrap_or_default();
    let claim = claim_object(resolved);
    Some((setup, Expansion { claim, size: size.to_string(), secrets, version, online }))
}

fn claim_object(resolved: &Resolved<'_>) -> ClaimObject {
    ClaimObject {
        namespace: resolved.claim.namespace.to_owned(),
        name: resolved.claim.name.clone(),
        uid: resolved.claim_object.and_then(|object| object.metadata.uid.clone()).unwrap_or_default(),
    }
}
