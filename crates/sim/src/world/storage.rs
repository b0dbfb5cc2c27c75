//! Claims and persistent volumes of the simulated cluster, and what the node's CSI driver has mounted of them.
//!
//! ```text
//!   claim: created ──> its volume is created ──> bound ──> deleted ──> created again with another volume
//!   volume on the node: record ──> staged ──> published for pods ──> unpublished ──> unstaged after the last
//! ```
//! The driver owns what is mounted. The agent owns records and directories, which outlive it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::PodUid;
use model::csi::{CsiVolumeOnDisk, VolumeRecord};
use model::k8s::{CSIDriver, PersistentVolumeClaim, Pod};
use model::storage::{StorageKey, StorageObject, StorageState};
use model::volume::DevicePaths;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::attachments::Attachments;
use super::{World, WorldError};
use crate::time::Nanos;
use crate::workload::extreme_storage_object;

pub const DRIVER: &str = "driver.sim";
/// In the directory of a device.
const DEVICE_RECORD: &str = "/data/vol_data.json";
/// In paths of devices: before the name of the volume, and between it and the UID of a pod.
const PUBLISHED: &str = "/publish/";
const STAGED: &str = "/staging/";
const MAPPED: &str = "/dev/";

#[derive(Clone, Debug, Default)]
pub struct Storage {
    claims: BTreeMap<String, Claim>,
    /// Volumes of the driver, each with the UID of the claim it was created for.
    volumes: BTreeMap<String, (String, String)>,
    /// Volumes that pods get as devices.
    devices: BTreeSet<String>,
    /// Each claim name with every volume that such a claim was ever bound to.
    ever: BTreeSet<(String, String)>,
    generations: u64,
    /// The size of volumes behind their claims in GiB, if it is not 1.
    sizes: BTreeMap<String, u64>,
    /// The driver has registered.
    pub registered: bool,
    /// Records of volumes, by their paths.
    pub records: BTreeMap<String, VolumeRecord>,
    /// Records that can't be read.
    pub unreadable: BTreeSet<String>,
    /// Volumes that are staged, each with its directory.
    pub staged: BTreeMap<String, String>,
    /// Directories at which volumes are published: for which pod, which volume.
    pub targets: BTreeMap<String, (PodUid, String)>,
    /// Links of pods to devices: where each leads.
    pub links: BTreeMap<String, String>,
    /// Maps of devices: the target that each shows.
    pub maps: BTreeMap<String, String>,
    /// Directories that a thread of the agent walks through, and until when.
    pub walks: BTreeMap<String, Nanos>,
    pub attachments: Attachments,
}

#[derive(Clone, Debug)]
struct Claim {
    uid: String,
    /// Only one pod may use it.
    exclusive: bool,
    /// Pods get its volume as a device.
    block: bool,
    volume: Option<String>,
    version: u64,
    /// Its status, with its capacity.
    status: Value,
}

/// A change of a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClaimChange {
    /// The claim is created, unbound. One that exists already is replaced.
    Comes {
        exclusive: bool,
        block: bool,
    },
    /// Its volume exists, but the claim is not bound to it yet.
    GetsVolume,
    Binds,
    /// Its volume was expanded, and NodeExpandVolume is due.
    Grows,
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
            ClaimChange::Comes { exclusive, block } => {
                self.generations += 1;
                let uid = format!("{name}-{}", self.generations);
                let status = json!({"capacity": {"storage": "1Gi"}});
                let claim = Claim { uid, exclusive, block, volume: None, version: 1, status };
                self.claims.insert(name.to_owned(), claim);
            }
            ClaimChange::GetsVolume | ClaimChange::Binds => {
                let Some(claim) = self.claims.get_mut(name) else { return };
                let volume = format!("pv-{}", claim.uid);
                if claim.block {
                    self.devices.insert(volume.clone());
                }
                self.volumes.insert(volume.clone(), (name.to_owned(), claim.uid.clone()));
                if change == ClaimChange::Binds {
                    self.ever.insert((name.to_owned(), volume.clone()));
                    claim.volume = Some(volume);
                }
            }
            ClaimChange::Grows => {
                let Some(claim) = self.claims.get_mut(name) else { return };
                let Some(volume) = &claim.volume else { return };
                let size = self.sizes.entry(volume.clone()).or_insert(1);
                *size += 1;
                claim.status["allocatedResources"] = json!({"storage": format!("{size}Gi")});
                claim.status["allocatedResourceStatuses"] = json!({"storage": "NodeResizePending"});
                claim.version += 1;
            }
            ClaimChange::Vanishes => drop(self.claims.remove(name)),
        }
    }

    /// `node`: the node whose attachments are read.
    pub fn look(&self, key: &StorageKey, node: &str) -> StorageState {
        if let Some(object) = extreme_storage_object(key) {
            return StorageState::Present(object);
        }
        let object = match key {
            StorageKey::Claim { name, .. } => self.claim(name).ok().map(StorageObject::Claim),
            StorageKey::Volume { name } => {
                let object =
                    |of| volume_object(name, of, self.mode(name), self.is_exclusive(name), self.size(name));
                self.volumes.get(name).map(object)
            }
            StorageKey::Attachment { name } => self.attachments.attachment(name, node),
        };
        let message = || format!("{}s {:?} not found", key.word(), key.name());
        object.map_or_else(|| StorageState::Absent { message: message() }, StorageState::Present)
    }

    pub fn drivers(&self) -> Vec<Arc<CSIDriver>> {
        let driver = json!({
            "metadata": {"name": DRIVER},
            "spec": {
                "attachRequired": self.attachments.required,
                "podInfoOnMount": false,
                "fsGroupPolicy": "File",
                "volumeLifecycleModes": ["Persistent"],
            },
        });
        vec![Arc::new(made(driver))]
    }

    fn mode(&self, volume: &str) -> &'static str {
        if self.devices.contains(volume) { "Block" } else { "Filesystem" }
    }

    /// The volumes on disk: one for each record, and for each device of a pod.
    pub fn found(&self, wanted: impl Fn(&CsiVolumeOnDisk) -> bool) -> Vec<CsiVolumeOnDisk> {
        let found = |(path, record): (&String, &VolumeRecord)| {
            let dir = dir_of(path);
            let pod = pod_of(path);
            let device = path.strip_suffix(DEVICE_RECORD);
            let mount_dir = match (device.and_then(|device| device.rsplit_once('/')), &pod) {
                (Some((devices, name)), _) => format!("{devices}/staging/{name}"),
                (None, Some(_)) => format!("{dir}/mount"),
                (None, None) => format!("{dir}/globalmount"),
            };
            CsiVolumeOnDisk {
                mount_dir,
                pod,
                block: device.is_some(),
                spec_name: device.unwrap_or(dir).rsplit('/').next().unwrap_or_default().to_owned(),
                record_path: path.clone(),
                record: self.record(path, record),
                device: None,
            }
        };
        self.records.iter().map(found).chain(self.devices_of_pods()).filter(wanted).collect()
    }

    fn record(&self, path: &str, record: &VolumeRecord) -> Result<Option<VolumeRecord>, String> {
        if self.unreadable.contains(path) { Err("it is no JSON".into()) } else { Ok(Some(record.clone())) }
    }

    /// What is linked, mapped or published.
    fn devices_of_pods(&self) -> impl Iterator<Item = CsiVolumeOnDisk> {
        let published = self.targets.keys().filter(|target| target.contains(PUBLISHED));
        let targets: BTreeSet<&String> =
            self.links.values().chain(self.maps.values()).chain(published).collect();
        targets.into_iter().filter_map(|target| {
            let (devices, rest) = target.split_once(PUBLISHED)?;
            let (name, uid) = rest.split_once('/')?;
            let record_path = format!("{devices}/{name}{DEVICE_RECORD}");
            let root = devices.split("/plugins/").next().unwrap_or_default();
            let record = self.records.get(&record_path);
            Some(CsiVolumeOnDisk {
                pod: Some(uid.into()),
                block: true,
                spec_name: name.to_owned(),
                mount_dir: target.clone(),
                record: record.map_or(Ok(None), |record| self.record(&record_path, record)),
                record_path,
                device: Some(DevicePaths {
                    link: format!("{root}/pods/{uid}/volumeDevices/kubernetes.io~csi/{name}"),
                    map: format!("{devices}/{name}/dev/{uid}"),
                }),
            })
        })
    }

    /// The record that a directory of a volume belongs to.
    pub fn record_beside(&self, place: &str) -> Option<&VolumeRecord> {
        let of_device = |devices: &str, name: &str| format!("{devices}/{name}{DEVICE_RECORD}");
        let path = match (place.split_once(PUBLISHED), place.split_once(STAGED), place.split_once(MAPPED)) {
            (Some((devices, rest)), ..) => of_device(devices, rest.split('/').next().unwrap_or_default()),
            (None, Some((devices, name)), _) => of_device(devices, name),
            (None, None, Some((device, _))) => format!("{device}{DEVICE_RECORD}"),
            (None, None, None) => format!("{}/vol_data.json", dir_of(place)),
        };
        self.records.get(&path)
    }

    /// Pods that have a record of the volume, readable or not.
    pub fn recorded_for(&self, handle: &str) -> Option<PodUid> {
        let of_it = self.records.iter().filter(|(_, record)| record.volume_handle == handle);
        let linked = self.links.iter().filter(|(_, target)| {
            self.record_beside(target).is_some_and(|record| record.volume_handle == handle)
        });
        of_it.map(|(path, _)| path).chain(linked.map(|(link, _)| link)).find_map(|path| pod_of(path))
    }

    pub fn is_mounted(&self, place: &str) -> bool {
        self.targets.contains_key(place) || self.staged.values().any(|staging| staging == place)
    }

    pub fn is_walked(&self, place: &str, now: Nanos) -> bool {
        self.walks.get(place).is_some_and(|until| now < *until)
    }

    /// Whether a volume that the claim was ever bound to is mounted for the pod.
    pub fn has_claimed(&self, uid: &PodUid, claim: &str) -> bool {
        self.targets.values().any(|(of, handle)| of == uid && self.was_bound(claim, handle))
    }

    /// Whether a mounted volume belongs to this claim, and the claim's status does not show its size yet.
    pub fn too_small(&self, uid: &PodUid, claim: &str) -> bool {
        let Some(found) = self.claims.get(claim) else { return false };
        let Some(volume) = &found.volume else { return false };
        let mounted = self.targets.values().any(|(of, handle)| of == uid && handle == volume);
        mounted && found.status["capacity"]["storage"] != json!(format!("{}Gi", self.size(volume)))
    }

    fn size(&self, volume: &str) -> u64 {
        self.sizes.get(volume).copied().unwrap_or(1)
    }

    pub fn claim(&self, name: &str) -> Result<Arc<PersistentVolumeClaim>, WorldError> {
        let claim = self.claims.get(name).ok_or_else(|| WorldError::absent(name))?;
        Ok(Arc::new(claim.object(name, self.size(claim.volume.as_deref().unwrap_or_default()))))
    }

    /// A claim that has changed since the patch was made is not patched.
    pub fn patch_claim(
        &mut self,
        name: &str,
        patch: &Value,
    ) -> Result<Arc<PersistentVolumeClaim>, WorldError> {
        let claim = self.claims.get_mut(name).ok_or_else(|| WorldError::absent(name))?;
        let from = patch["metadata"]["resourceVersion"].as_str();
        if from.is_some_and(|version| version != claim.version.to_string()) {
            return Err(WorldError::because(format!("claim {name} was changed by somebody else")));
        }
        merge(&mut claim.status, &patch["status"]);
        claim.version += 1;
        self.claim(name)
    }

    /// What the claim of this name is bound to now.
    pub fn volume_of(&self, claim: &str) -> Option<&String> {
        self.claims.get(claim)?.volume.as_ref()
    }

    /// Whether the claim of this name was ever bound to the volume.
    pub fn was_bound(&self, claim: &str, volume: &str) -> bool {
        self.ever.contains(&(claim.to_owned(), volume.to_owned()))
    }

    /// Whether only one pod may use the claim, and another pod has a volume of it, of now or of an earlier claim of
    /// that name.
    pub fn taken_from(&self, uid: &PodUid, claim: &str) -> bool {
        let by_it = |volume: &String| self.volumes.get(volume).is_some_and(|(name, _)| name == claim);
        let mut of_others = self.targets.values().filter(|(other, _)| other != uid);
        self.claims.get(claim).is_some_and(|claim| claim.exclusive)
            && of_others.any(|(_, volume)| by_it(volume))
    }

    pub fn is_exclusive(&self, volume: &str) -> bool {
        let of = self.volumes.get(volume).and_then(|(name, uid)| Some((self.claims.get(name)?, uid)));
        of.is_some_and(|(claim, uid)| claim.exclusive && claim.uid == *uid)
    }

    pub fn users(&self, volume: &str) -> BTreeSet<&PodUid> {
        self.targets.values().filter(|(_, of)| of == volume).map(|(uid, _)| uid).collect()
    }

    pub fn has_any(&self, uid: &PodUid) -> bool {
        self.targets.values().any(|(of, _)| of == uid) || self.has_map(uid)
    }

    pub fn has_map(&self, uid: &PodUid) -> bool {
        self.maps.keys().any(|map| pod_of(map).as_ref() == Some(uid))
    }

    /// What is mounted for a pod, as it is listed among the pod's volumes.
    pub fn mounted(&self, uid: &PodUid) -> BTreeSet<String> {
        let of_pod = self.targets.iter().filter(|(_, (of, _))| of == uid);
        of_pod.map(|(target, _)| listed(target)).collect()
    }
}

/// The entry of a published volume in the list of the pod's volumes, which keeps the pod's directory from removal.
pub fn listed(target: &str) -> String {
    format!("mount {target}")
}

/// The pod to which a path belongs: it is in the pod's directory, or its last part is the pod's UID.
pub fn pod_of(path: &str) -> Option<PodUid> {
    if let Some((_, rest)) = path.split_once("/pods/") {
        return rest.split('/').next().map(PodUid::from);
    }
    let (_, rest) = path.split_once(PUBLISHED).or_else(|| path.split_once(MAPPED))?;
    rest.rsplit('/').next().map(PodUid::from)
}

fn dir_of(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(dir, _)| dir)
}

impl World {
    pub fn stage_volume(&mut self, handle: &str, staging: &str) -> Result<(), WorldError> {
        if !self.storage.attachments.is_attached(handle) {
            return Err(WorldError::because(format!("volume {handle} is not attached")));
        }
        self.storage.staged.insert(handle.to_owned(), staging.to_owned());
        Ok(())
    }

    pub fn publish_volume(&mut self, handle: &str, target: &str) -> Result<(), WorldError> {
        if !self.storage.staged.contains_key(handle) {
            return Err(WorldError::because(format!("volume {handle} is not staged")));
        }
        let Some(uid) = pod_of(target) else {
            return Err(WorldError::because(format!("{target} is in no pod's directory")));
        };
        self.disk.set_up_volume(&uid, &listed(target), None);
        self.storage.targets.insert(target.to_owned(), (uid, handle.to_owned()));
        Ok(())
    }

    pub fn unpublish_volume(&mut self, target: &str) {
        if let Some((uid, _)) = self.storage.targets.remove(target) {
            self.disk.unmounted(&uid, &listed(target));
        }
    }

    pub fn map_device(&mut self, target: &str, map: &str) -> Result<(), WorldError> {
        if !self.storage.targets.contains_key(target) {
            return Err(WorldError::because(format!("{target} is not published")));
        }
        self.storage.maps.insert(map.to_owned(), target.to_owned());
        Ok(())
    }

    /// A directory of a volume, and its record.
    pub fn remove_volume(&mut self, place: &str, record: Option<&str>) -> Result<(), WorldError> {
        if self.storage.is_mounted(place) {
            return Err(WorldError::because(format!("{place} is still mounted")));
        }
        if let Some(record) = record {
            self.storage.records.remove(record);
            self.storage.unreadable.remove(record);
        }
        Ok(())
    }

    /// The pod's directory, with the records in it.
    pub fn remove_pod_dir(&mut self, uid: &PodUid) -> Result<(), WorldError> {
        self.disk.remove_pod(uid)?;
        let of_pod = |path: &String| pod_of(path).as_ref() == Some(uid);
        self.storage.records.retain(|path, _| !of_pod(path));
        self.storage.links.retain(|path, _| !of_pod(path));
        self.storage.unreadable.retain(|path| !of_pod(path));
        Ok(())
    }
}

/// Merges a patch into an object. Lists are replaced as a whole; a strategic patch of the conditions removes them.
fn merge(into: &mut Value, patch: &Value) {
    let (Value::Object(into), Value::Object(patch)) = (into, patch) else { return };
    for (key, value) in patch {
        match value {
            Value::Null => drop(into.remove(key)),
            Value::Object(_) => merge(into.entry(key).or_insert_with(|| json!({})), value),
            other if key == "conditions" && other[0].get("$patch").is_some() => drop(into.remove(key)),
            other => drop(into.insert(key.clone(), other.clone())),
        }
    }
}

fn access_mode(exclusive: bool) -> &'static str {
    if exclusive { "ReadWriteOncePod" } else { "ReadWriteOnce" }
}

impl Claim {
    /// Of the size in GiB that was asked for last.
    fn object(&self, name: &str, size: u64) -> PersistentVolumeClaim {
        let mode = access_mode(self.exclusive);
        let phase = if self.volume.is_some() { "Bound" } else { "Pending" };
        let mut status = self.status.clone();
        status["phase"] = json!(phase);
        made(json!({
            "metadata": {
                "name": name, "namespace": "sim", "uid": self.uid,
                "resourceVersion": self.version.to_string(),
            },
            "spec": {
                "accessModes": [mode], "volumeName": self.volume,
                "volumeMode": if self.block { "Block" } else { "Filesystem" },
                "resources": {"requests": {"storage": format!("{size}Gi")}},
            },
            "status": status,
        }))
    }
}

fn volume_object(
    name: &str,
    (claim, uid): &(String, String),
    mode: &str,
    exclusive: bool,
    size: u64,
) -> StorageObject {
    StorageObject::Volume(Arc::new(made(json!({
        "metadata": {"name": name},
        "spec": {
            "csi": {"driver": DRIVER, "volumeHandle": name},
            "claimRef": {"namespace": "sim", "name": claim, "uid": uid},
            "accessModes": [access_mode(exclusive)],
            "capacity": {"storage": format!("{size}Gi")},
            "volumeMode": mode,
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
            StorageState::Present(StorageObject::Claim(claim)) => {
                claim.spec.clone().and_then(|s| s.volume_name)
            }
            _ => None,
        };
        storage.change("c", ClaimChange::Binds);
        assert!(
            matches!(storage.look(&key, "node"), StorageState::Absent { .. }),
            "what is not there can't be bound"
        );
        storage.change("c", ClaimChange::Comes { exclusive: true, block: false });
        storage.change("c", ClaimChange::GetsVolume);
        assert_eq!(bound(&storage), None);
        storage.change("c", ClaimChange::Binds);
        let first = bound(&storage).expect("it is bound");
        assert!(storage.was_bound("c", &first) && storage.is_exclusive(&first));
        storage.targets.insert("/pods/a/v/mount".into(), ("a".into(), first.clone()));
        assert!(storage.taken_from(&"b".into(), "c") && !storage.taken_from(&"a".into(), "c"));
        assert!(storage.has_claimed(&"a".into(), "c") && storage.is_mounted("/pods/a/v/mount"));
        storage.change("c", ClaimChange::Vanishes);
        storage.change("c", ClaimChange::Comes { exclusive: false, block: false });
        storage.change("c", ClaimChange::Binds);
        assert_ne!(bound(&storage), Some(first));
    }
}
