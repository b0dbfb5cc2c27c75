//! Claims, persistent volumes and attachments. A node may read but not watch them, so they are read when a pod needs
//! them, and again with back-off until they are ready for the pod.
//!
//! ```text
//!   wanted ──> read ──> complete: bound, claimed, attached. Not read again before another pod wants it
//!               ^ └───> missing, not bound, refused, unreachable ──> timer ──┐
//!               └────────────────────────────────────────────────────────────┘
//! ```
//! A pod is only shown reads that were started after the pod was added. An older read may be of a deleted object with
//! the same name.

mod local;

use model::volume_source::VolumeSource;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use model::k8s::{CSIDriver, PersistentVolume, PersistentVolumeClaim, VolumeAttachment};
use model::pod::PodView;
use model::storage::{StorageKey, StorageObject, StorageState};
use model::{Now, PodUid};

use crate::back_off::volume_delay;
use crate::csi::translation::{translate_inline, translate_volume};
use crate::effect::{Effect, TimerKey};

/// The longest wait between two reads. The node is not notified when a claim is bound, so a pod should not wait much
/// longer than the binding takes.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// The node authorizer learns of a pod later than the kubelet, so the first few Forbidden answers are retried instead
/// of reported.
const DOUBTED_REFUSALS: u32 = 3;

#[derive(Clone, Debug, Default)]
pub struct StorageCache {
    objects: BTreeMap<StorageKey, Entry>,
    wanted: BTreeMap<PodUid, BTreeSet<StorageKey>>,
    /// For each claim, the pods that may have it mounted.
    users_by_claim: BTreeMap<StorageKey, BTreeSet<PodUid>>,
    /// The inverse of `users_by_claim`.
    claims_by_user: BTreeMap<PodUid, BTreeSet<StorageKey>>,
    drivers: Option<BTreeMap<String, Arc<CSIDriver>>>,
    /// Migrated in-tree volumes from pod definitions, translated to CSI, by pod and name.
    inline: BTreeMap<PodUid, BTreeMap<String, Arc<PersistentVolume>>>,
    /// Objects from files, in standalone mode. `None`: objects come from the API server.
    local: Option<BTreeMap<StorageKey, StorageObject>>,
}

#[derive(Clone, Debug, Default)]
struct Entry {
    /// The pods that need the object, each with the number of the first read that counts for it.
    users: BTreeMap<PodUid, u64>,
    state: Option<StorageState>,
    /// Why the object can't be read now. Empty if it can.
    read_error: String,
    /// How many reads were started, and the number of the last one that succeeded.
    reads_begun: u64,
    last_read: u64,
    read_in_flight: bool,
    /// A pod was added during the read, so another read follows.
    reread: bool,
    attempts: u32,
}

/// Translates a migrated in-tree volume to CSI. A volume that cannot be translated is kept as it is;
/// `persistent::resolve` reports the error.
fn translated(state: StorageState) -> StorageState {
    match state {
        StorageState::Present(StorageObject::Volume(volume)) => {
            let made = translate_volume(&volume).and_then(Result::ok).map(Arc::new);
            StorageState::Present(StorageObject::Volume(made.unwrap_or(volume)))
        }
        state => state,
    }
}

/// Why an object can't be shown to a pod.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum StorageLookupError<'a> {
    /// The object was not read yet. `read_error` may say why.
    NotRead { read_error: &'a str },
    /// The object does not exist or may not be read. Holds the server's message.
    Refused(&'a str),
}

impl StorageCache {
    pub(super) fn standalone() -> Self {
        Self { local: Some(BTreeMap::new()), ..Self::default() }
    }

    /// Replaces the set of local claims. Each has its own directory. Returns the pods that a change affects.
    pub(super) fn set_local_objects(
        &mut self,
        claims: &[Arc<PersistentVolumeClaim>],
        root_dir: &str,
    ) -> BTreeSet<PodUid> {
        let told: BTreeMap<_, _> = claims.iter().flat_map(|claim| local::bound(claim, root_dir)).collect();
        let mut concerned = BTreeSet::new();
        for (key, entry) in &mut self.objects {
            let state = Some(local::state(&told, key));
            if entry.state != state {
                entry.state = state;
                concerned.extend(entry.users.keys().cloned());
            }
        }
        self.local = Some(told);
        concerned
    }

    /// Translates the migrated in-tree volumes of the pod's definition to CSI. Those that can't be translated are left
    /// out.
    pub fn translate_inline(&mut self, pod: &PodView) {
        let volumes = pod.spec().volumes.iter().flatten();
        let translated: BTreeMap<_, _> = volumes
            .filter_map(|volume| {
                let VolumeSource::Migrated(source) = VolumeSource::of(volume) else { return None };
                let made = translate_inline(&volume.name, source, pod.namespace()).ok()?;
                Some((volume.name.clone(), Arc::new(made)))
            })
            .collect();
        if !translated.is_empty() {
            self.inline.insert(pod.uid.clone(), translated);
        }
    }

    pub fn inline_volume(&self, uid: &PodUid, volume: &str) -> Option<&PersistentVolume> {
        self.inline.get(uid)?.get(volume).map(|volume| &**volume)
    }

    /// Sets the objects that the pod needs.
    pub fn set_wanted(&mut self, uid: &PodUid, keys: BTreeSet<StorageKey>) -> Vec<Effect> {
        let old = match self.wanted.get(uid) {
            Some(old) if *old == keys => return Vec::new(),
            None if keys.is_empty() => return Vec::new(),
            old => old.cloned().unwrap_or_default(),
        };
        let mut effects = Vec::new();
        for key in keys.difference(&old) {
            let entry = self.objects.entry(key.clone()).or_default();
            if let Some(told) = &self.local {
                entry.users.insert(uid.clone(), 0);
                entry.state = Some(local::state(told, key));
                continue;
            }
            entry.users.insert(uid.clone(), entry.reads_begun + 1);
            if entry.read_in_flight {
                entry.reread = true;
            } else {
                effects.extend(entry.ask(key));
            }
        }
        for key in old.difference(&keys) {
            effects.extend(self.remove_user(key, uid));
        }
        if keys.is_empty() {
            self.wanted.remove(uid);
        } else {
            self.wanted.insert(uid.clone(), keys);
        }
        effects
    }

    /// Releases everything of the pod. Returns the pods that may have waited for its claims.
    pub fn release(&mut self, uid: &PodUid) -> (BTreeSet<PodUid>, Vec<Effect>) {
        let effects = self.set_wanted(uid, BTreeSet::new());
        self.inline.remove(uid);
        let mut freed = BTreeSet::new();
        for key in self.claims_by_user.remove(uid).unwrap_or_default() {
            if let Some(holders) = self.users_by_claim.get_mut(&key) {
                holders.remove(uid);
                if holders.is_empty() {
                    self.users_by_claim.remove(&key);
                }
            }
            let users = self.objects.get(&key).map(|entry| &entry.users);
            freed.extend(users.into_iter().flat_map(|users| users.keys().cloned()));
        }
        (freed, effects)
    }

    fn remove_user(&mut self, key: &StorageKey, uid: &PodUid) -> Option<Effect> {
        let entry = self.objects.get_mut(key)?;
        entry.users.remove(uid);
        if !entry.users.is_empty() {
            return None;
        }
        let waits = !entry.read_in_flight && entry.attempts > 0;
        self.objects.remove(key);
        waits.then(|| Effect::SetTimer { key: TimerKey::Storage(key.clone()), at: None })
    }

    /// Reads the object now, unless a read is in flight.
    pub fn read_again(&mut self, key: &StorageKey) -> Option<Effect> {
        let entry = self.objects.get_mut(key)?;
        if entry.read_in_flight { None } else { entry.ask(key) }
    }

    /// Records the result of a read. Returns the pods that a change affects.
    pub fn record_read(
        &mut self,
        key: &StorageKey,
        state: StorageState,
        now: Now,
    ) -> (BTreeSet<PodUid>, Vec<Effect>) {
        let Some(entry) = self.objects.get_mut(key) else { return Default::default() };
        let news = entry.take(translated(state));
        let again = std::mem::take(&mut entry.reread);
        let mut effects = Vec::new();
        if again {
            effects.extend(entry.ask(key));
        }
        for key in [Some(key.clone()), self.other_side(key)].into_iter().flatten() {
            effects.extend(self.ask_later(&key, now));
        }
        (news, effects)
    }

    /// Schedules another read if the object is not complete.
    fn ask_later(&mut self, key: &StorageKey, now: Now) -> Option<Effect> {
        let complete = self.is_complete(key);
        let entry = self.objects.get_mut(key)?;
        if complete && entry.read_error.is_empty() {
            entry.attempts = 0;
            return None;
        }
        if entry.read_in_flight {
            return None;
        }
        entry.attempts += 1;
        let at = now.mono.plus(volume_delay(entry.attempts).min(LONGEST_WAIT));
        Some(Effect::SetTimer { key: TimerKey::Storage(key.clone()), at: Some(at) })
    }

    /// The claim of a volume, if the two do not fit together. The known claim may be older than the volume.
    fn other_side(&self, key: &StorageKey) -> Option<StorageKey> {
        self.claim_of(key).filter(|_| !self.is_complete(key))
    }

    /// The claim that a volume's claimRef names.
    fn claim_of(&self, key: &StorageKey) -> Option<StorageKey> {
        let StorageObject::Volume(volume) = self.object(key)? else { return None };
        let reference = volume.spec.as_ref()?.claim_ref.as_ref()?;
        Some(StorageKey::Claim {
            namespace: reference.namespace.clone().unwrap_or_default(),
            name: reference.name.clone().unwrap_or_default(),
        })
    }

    /// Whether a pod can use the object: the claim is bound, the volume is claimed, or the attachment is attached.
    fn is_complete(&self, key: &StorageKey) -> bool {
        match self.object(key) {
            Some(StorageObject::Claim(claim)) => {
                bound_to(claim).is_some_and(|volume| match self.known_volume(volume) {
                    Some(volume) => claim_uid_of(volume) == claim.metadata.uid.as_deref(),
                    None => true,
                })
            }
            Some(StorageObject::Volume(volume)) => {
                let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
                reference.is_some_and(|reference| {
                    let key = StorageKey::Claim {
                        namespace: reference.namespace.clone().unwrap_or_default(),
                        name: reference.name.clone().unwrap_or_default(),
                    };
                    match self.object(&key) {
                        Some(StorageObject::Claim(claim)) => claim.metadata.uid == reference.uid,
                        _ => true,
                    }
                })
            }
            Some(StorageObject::Attachment(attachment)) => {
                attachment.status.as_ref().is_some_and(|status| status.attached)
                    && attachment.metadata.deletion_timestamp.is_none()
            }
            None => false,
        }
    }

    fn object(&self, key: &StorageKey) -> Option<&StorageObject> {
        match self.objects.get(key)?.state.as_ref()? {
            StorageState::Present(object) => Some(object),
            _ => None,
        }
    }

    fn known_volume(&self, name: &str) -> Option<&PersistentVolume> {
        match self.object(&StorageKey::Volume { name: name.to_owned() })? {
            StorageObject::Volume(volume) => Some(volume),
            _ => None,
        }
    }

    fn lookup(&self, uid: &PodUid, key: &StorageKey) -> Result<&StorageObject, StorageLookupError<'_>> {
        let nothing = StorageLookupError::NotRead { read_error: "" };
        let entry = self.objects.get(key).ok_or(nothing)?;
        let since = entry.users.get(uid).ok_or(nothing)?;
        match &entry.state {
            Some(_) if entry.last_read < *since => {
                Err(StorageLookupError::NotRead { read_error: &entry.read_error })
            }
            Some(StorageState::Present(object)) => Ok(object),
            Some(StorageState::Absent { message } | StorageState::Denied { message }) => {
                Err(StorageLookupError::Refused(message))
            }
            Some(StorageState::Unreachable { .. }) | None => {
                Err(StorageLookupError::NotRead { read_error: &entry.read_error })
            }
        }
    }

    pub fn claim(
        &self,
        uid: &PodUid,
        namespace: &str,
        name: &str,
    ) -> Result<&Arc<PersistentVolumeClaim>, StorageLookupError<'_>> {
        let key = StorageKey::Claim { namespace: namespace.to_owned(), name: name.to_owned() };
        match self.lookup(uid, &key)? {
            StorageObject::Claim(claim) => Ok(claim),
            _ => Err(StorageLookupError::NotRead { read_error: "" }),
        }
    }

    pub fn volume(&self, uid: &PodUid, name: &str) -> Result<&Arc<PersistentVolume>, StorageLookupError<'_>> {
        match self.lookup(uid, &StorageKey::Volume { name: name.to_owned() })? {
            StorageObject::Volume(volume) => Ok(volume),
            _ => Err(StorageLookupError::NotRead { read_error: "" }),
        }
    }

    pub fn attachment(
        &self,
        uid: &PodUid,
        name: &str,
    ) -> Result<&Arc<VolumeAttachment>, StorageLookupError<'_>> {
        match self.lookup(uid, &StorageKey::Attachment { name: name.to_owned() })? {
            StorageObject::Attachment(attachment) => Ok(attachment),
            _ => Err(StorageLookupError::NotRead { read_error: "" }),
        }
    }

    /// The object and its claim, if both are complete. They are read again now and then because a CSI volume may be
    /// expanded.
    pub fn settled_csi_objects(&self, key: &StorageKey) -> Vec<StorageKey> {
        let keys = [Some(key.clone()), self.claim_of(key)].into_iter().flatten();
        keys.filter(|key| self.is_of_driver(key) && self.is_settled(key)).collect()
    }

    fn is_settled(&self, key: &StorageKey) -> bool {
        let quiet = |entry: &Entry| !entry.read_in_flight && entry.read_error.is_empty();
        self.local.is_none() && self.objects.get(key).is_some_and(quiet) && self.is_complete(key)
    }

    fn is_of_driver(&self, key: &StorageKey) -> bool {
        let volume = match self.object(key) {
            Some(StorageObject::Volume(volume)) => Some(&**volume),
            Some(StorageObject::Claim(claim)) => bound_to(claim).and_then(|name| self.known_volume(name)),
            _ => None,
        };
        volume.and_then(|volume| volume.spec.as_ref()).is_some_and(|spec| spec.csi.is_some())
    }

    /// Records that the pod may have the claim mounted from now on.
    pub fn add_claim_user(&mut self, uid: &PodUid, claim: StorageKey) {
        self.claims_by_user.entry(uid.clone()).or_default().insert(claim.clone());
        self.users_by_claim.entry(claim).or_default().insert(uid.clone());
    }

    /// False if the claim was not read.
    pub fn is_read_write_once_pod(&self, claim: &StorageKey) -> bool {
        let Some(StorageObject::Claim(claim)) = self.object(claim) else { return false };
        let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_deref());
        matches!(modes, Some([only]) if only == "ReadWriteOncePod")
    }

    pub fn is_used_by_another_pod(&self, uid: &PodUid, claim: &StorageKey) -> bool {
        self.users_by_claim.get(claim).is_some_and(|holders| holders.iter().any(|holder| holder != uid))
    }

    /// Replaces the set of CSIDriver objects.
    pub fn set_drivers(&mut self, drivers: &[Arc<CSIDriver>]) {
        let name = |driver: &Arc<CSIDriver>| driver.metadata.name.clone().unwrap_or_default();
        self.drivers = Some(drivers.iter().map(|driver| (name(driver), driver.clone())).collect());
    }

    /// `None`: not read yet.
    pub fn drivers(&self) -> Option<&BTreeMap<String, Arc<CSIDriver>>> {
        self.drivers.as_ref()
    }

    /// Pods that need any storage object.
    pub fn users(&self) -> impl Iterator<Item = &PodUid> {
        self.wanted.keys()
    }

    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
            && self.wanted.is_empty()
            && self.users_by_claim.is_empty()
            && self.claims_by_user.is_empty()
    }
}

impl Entry {
    fn ask(&mut self, key: &StorageKey) -> Option<Effect> {
        self.read_in_flight = true;
        self.reads_begun += 1;
        Some(Effect::ReadStorageObject { key: key.clone() })
    }

    /// Records the result of a read. Returns the pods that a change affects.
    fn take(&mut self, state: StorageState) -> BTreeSet<PodUid> {
        self.read_in_flight = false;
        let doubted = self.attempts < DOUBTED_REFUSALS;
        let (trouble, state) = match state {
            StorageState::Unreachable { message } => (message, None),
            StorageState::Denied { message } if doubted => (message, None),
            state => (String::new(), Some(state)),
        };
        let troubled = self.read_error != trouble;
        self.read_error = trouble;
        let before = self.last_read;
        let Some(state) = state else {
            let waiting = self.users.iter().filter(|(_, since)| troubled && before < **since);
            return waiting.map(|(uid, _)| uid.clone()).collect();
        };
        self.last_read = self.reads_begun;
        let changed = self.state.as_ref() != Some(&state);
        self.state = Some(state);
        let now = self.last_read;
        let concerned =
            self.users.iter().filter(|(_, since)| **since <= now && (changed || before < **since));
        concerned.map(|(uid, _)| uid.clone()).collect()
    }
}

/// The volume that the claim is bound to, if it is bound.
fn bound_to(claim: &PersistentVolumeClaim) -> Option<&str> {
    let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    volume.filter(|name| bound && !name.is_empty())
}

fn claim_uid_of(volume: &PersistentVolume) -> Option<&str> {
    volume.spec.as_ref()?.claim_ref.as_ref()?.uid.as_deref()
}

#[cfg(test)]
mod tests;
