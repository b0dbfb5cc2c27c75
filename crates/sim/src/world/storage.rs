//! Claims and persistent volumes of the simulated cluster, and what the node's storage driver has mounted of them.
//!
//! ```text
//!   claim: comes ──> its volume is made for it ──> bound ──> vanishes ──> comes again under its name, with another volume
//!   volume on the node: staged ──> published for a pod, for another ──> unpublished ──> unstaged after the last
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::PodUid;
use model::csi::VolumeId;
use model::k8s::{CSIDriver, Pod};
use model::storage::{StorageKey, StorageObject, StorageState};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::attach::Attachments;

pub const DRIVER: &str = "driver.sim";

#[derive(Clone, Debug, Default)]
pub struct Storage {
    claims: BTreeMap<String, Claim>,
    /// Volumes that the driver serves, each with the UID of the claim it was made for.
    volumes: BTreeMap<String, (String, String)>,
    /// Claims by name with each volume that they were ever bound to.
    ever: BTreeSet<(String, String)>,
    generations: u64,
    /// The driver has registered, and serves.
    pub registered: bool,
    /// Volumes of which there is a record on disk: it is written before the driver is asked for anything.
    pub recorded: BTreeSet<String>,
    pub staged: BTreeSet<String>,
    /// For which pod, under which name in it, which volume.
    pub published: BTreeSet<(PodUid, String, String)>,
    pub attachments: Attachments,
}

#[derive(Clone, Debug)]
struct Claim {
    uid: String,
    /// For one pod only.
    exclusive: bool,
    volume: Option<String>,
}

/// What becomes of a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClaimChange {
    /// It is there, and bound to nothing. One that is there already is made anew.
    Comes {
        exclusive: bool,
    },
    /// Its volume is there; the claim does not say so yet.
    GetsVolume,
    Binds,
    Vanishes,
}

pub(super) fn made<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("the simulation makes good objects")
}

/// The name of the claim that a pod's volume has.
pub fn claims_of(pod: &Pod) -> impl Iterator<Item = (&str, &str)> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| {
        let claim = volume.persistent_volume_claim.as_ref()?;
        Some((volume.name.as_str(), claim.claim_name.as_str()))
    })
}

impl Storage {
    pub fn change(&mut self, name: &str, change: ClaimChange) {
        match change {
            ClaimChange::Comes { exclusive } => {
                self.generations += 1;
                let uid = format!("{name}-{}", self.generations);
                self.claims.insert(name.to_owned(), Claim { uid, exclusive, volume: None });
            }
            ClaimChange::GetsVolume | ClaimChange::Binds => {
                let Some(claim) = self.claims.get_mut(name) else { return };
                let volume = format!("pv-{}", claim.uid);
                self.volumes.insert(volume.clone(), (name.to_owned(), claim.uid.clone()));
                if change == ClaimChange::Binds {
                    self.ever.insert((name.to_owned(), volume.clone()));
                    claim.volume = Some(volume);
                }
            }
            ClaimChange::Vanishes => drop(self.claims.remove(name)),
        }
    }

    /// `node`: whose attachments are looked at.
    pub fn look(&self, key: &StorageKey, node: &str) -> StorageState {
        let object = match key {
            StorageKey::Claim { name, .. } => self.claims.get(name).map(|claim| claim.object(name)),
            StorageKey::Volume { name } => {
                self.volumes.get(name).map(|of| volume_object(name, of, self.is_exclusive(name)))
            }
            StorageKey::Attachment { name } => self.attachments.look(name, node),
        };
        let message = || format!("{}s {:?} not found", key.word(), key.name());
        object.map_or_else(|| StorageState::Absent { message: message() }, StorageState::Is)
    }

    pub fn drivers(&self) -> Vec<Arc<CSIDriver>> {
        let driver = json!({
            "metadata": {"name": DRIVER},
            "spec": {
                "attachRequired": self.attachments.required,
                "podInfoOnMount": false,
                "volumeLifecycleModes": ["Persistent"],
            },
        });
        vec![Arc::new(made(driver))]
    }

    pub fn on_node(&self) -> BTreeSet<VolumeId> {
        let there = self.staged.iter().chain(self.published.iter().map(|(_, _, handle)| handle));
        there
            .chain(&self.recorded)
            .map(|handle| VolumeId { driver: DRIVER.into(), handle: handle.clone() })
            .collect()
    }

    /// What the claim of this name is bound to now.
    pub fn volume_of(&self, claim: &str) -> Option<&String> {
        self.claims.get(claim)?.volume.as_ref()
    }

    /// Whether the claim of this name was ever bound to the volume.
    pub fn was_bound(&self, claim: &str, volume: &str) -> bool {
        self.ever.contains(&(claim.to_owned(), volume.to_owned()))
    }

    /// Whether the claim is for one pod, and another one has a volume by it: that of now, or of before it came again.
    pub fn taken_from(&self, uid: &PodUid, claim: &str) -> bool {
        let by_it = |volume: &String| self.volumes.get(volume).is_some_and(|(name, _)| name == claim);
        let mut of_others = self.published.iter().filter(|(other, ..)| other != uid);
        self.claims.get(claim).is_some_and(|claim| claim.exclusive)
            && of_others.any(|(_, _, volume)| by_it(volume))
    }

    pub fn is_exclusive(&self, volume: &str) -> bool {
        let of = self.volumes.get(volume).and_then(|(name, uid)| Some((self.claims.get(name)?, uid)));
        of.is_some_and(|(claim, uid)| claim.exclusive && claim.uid == *uid)
    }

    pub fn users(&self, volume: &str) -> BTreeSet<&PodUid> {
        self.published.iter().filter(|(_, _, of)| of == volume).map(|(uid, ..)| uid).collect()
    }

    pub fn has_any(&self, uid: &PodUid) -> bool {
        self.published.iter().any(|(of, ..)| of == uid)
    }

    /// The names of what is mounted for a pod.
    pub fn mounted(&self, uid: &PodUid) -> BTreeSet<String> {
        let of_pod = self.published.iter().filter(|(of, ..)| of == uid);
        of_pod.map(|(_, name, _)| name.clone()).collect()
    }

    /// Everything that the driver has mounted for a pod. `Err`: there is something, and the driver is away.
    pub fn unpublish(&mut self, uid: &PodUid) -> Result<(), String> {
        if !self.has_any(uid) {
            return Ok(());
        }
        if !self.registered {
            return Err(format!("driver name {DRIVER} not found in the list of registered CSI drivers"));
        }
        self.published.retain(|(of, ..)| of != uid);
        Ok(())
    }
}

fn access_mode(exclusive: bool) -> &'static str {
    if exclusive { "ReadWriteOncePod" } else { "ReadWriteOnce" }
}

impl Claim {
    fn object(&self, name: &str) -> StorageObject {
        let mode = access_mode(self.exclusive);
        let phase = if self.volume.is_some() { "Bound" } else { "Pending" };
        StorageObject::Claim(Arc::new(made(json!({
            "metadata": {"name": name, "namespace": "sim", "uid": self.uid},
            "spec": {"accessModes": [mode], "volumeName": self.volume, "volumeMode": "Filesystem"},
            "status": {"phase": phase},
        }))))
    }
}

fn volume_object(name: &str, (claim, uid): &(String, String), exclusive: bool) -> StorageObject {
    StorageObject::Volume(Arc::new(made(json!({
        "metadata": {"name": name},
        "spec": {
            "csi": {"driver": DRIVER, "volumeHandle": name},
            "claimRef": {"namespace": "sim", "name": claim, "uid": uid},
            "accessModes": [access_mode(exclusive)],
            "volumeMode": "Filesystem",
        },
    }))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_that_comes_again_has_another_volume() {
        let mut storage = Storage::default();
        let key = StorageKey::Claim { namespace: "sim".into(), name: "c".into() };
        let bound = |storage: &Storage| match storage.look(&key, "node") {
            StorageState::Is(StorageObject::Claim(claim)) => claim.spec.clone().and_then(|s| s.volume_name),
            _ => None,
        };
        storage.change("c", ClaimChange::Binds);
        assert!(
            matches!(storage.look(&key, "node"), StorageState::Absent { .. }),
            "what is not there can't be bound"
        );
        storage.change("c", ClaimChange::Comes { exclusive: true });
        storage.change("c", ClaimChange::GetsVolume);
        assert_eq!(bound(&storage), None);
        storage.change("c", ClaimChange::Binds);
        let first = bound(&storage).expect("it is bound");
        assert!(storage.was_bound("c", &first) && storage.is_exclusive(&first));
        storage.published.insert(("a".into(), "v".into(), first.clone()));
        assert!(storage.taken_from(&"b".into(), "c") && !storage.taken_from(&"a".into(), "c"));
        assert!(storage.unpublish(&"a".into()).is_err(), "nobody serves");
        storage.registered = true;
        assert!(storage.unpublish(&"a".into()).is_ok() && storage.users(&first).is_empty());
        storage.change("c", ClaimChange::Vanishes);
        storage.change("c", ClaimChange::Comes { exclusive: false });
        storage.change("c", ClaimChange::Binds);
        assert_ne!(bound(&storage), Some(first));
    }
}
