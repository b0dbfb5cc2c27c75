//! CSI volumes on disk: their directories, and the records that outlive the agent.
//!
//! ```text
//! <root>/plugins/kubernetes.io/csi/<driver>/<sha256 of the handle>/globalmount     staged, once for the node
//!                                                                 /vol_data.json
//!       /plugins/kubernetes.io/csi/volumeDevices/staging/<name>                    the same for a device
//!                                               /publish/<name>/<uid>              a device, published for a pod
//!                                               /<name>/data/vol_data.json
//!                                               /<name>/dev/<uid>                   its map, see `device_map`
//!       /pods/<uid>/volumes/kubernetes.io~csi/<name>/mount                         published for a pod
//!                                                   /vol_data.json
//!       /pods/<uid>/volumeDevices/kubernetes.io~csi/<name>                         link to the published device
//! ```
//!
//! A record is written before the first call to its driver, and removed after everything else. Directories are removed
//! only if they are empty and nothing is mounted there, because what a driver has left there may be user data.
//!
//! What a driver has mounted may be on a server that hangs. Only the fsGroup walk reads inside the mounted volume. All
//! work runs on threads that may hang ([`super::workers`]): one piece of work per volume of a pod, and per staged
//! volume, so that no volume waits for another. Records lie next to what is mounted.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use model::PodUid;
use model::csi::VolumeRecord;
use model::volume::DevicePaths;
use ports::{CsiFiles, CsiVolumeOnDisk, FilesError};

use super::device_map::{self, CSI_DEVICES, CSI_MAPS, DEVICES, SHARED_DIRECTORIES};
use super::fs_group::{self, GroupAccess};
use super::layout::{failed, make_dirs, single_name};
use super::steps::step;
use super::volume_notices::HostVolumeNotices;
use super::workers::{VolumeWorkers, WorkOwner, WorkScope};
use crate::mountinfo::MountTable;

const RECORD: &str = "vol_data.json";
const DRAFT: &str = "vol_data.json.new";
const PLUGIN: &str = "plugins/kubernetes.io/csi";
const CSI_PLUGIN_DIR: &str = "kubernetes.io~csi";
/// Larger than any record.
const MAX_BYTES: u64 = 1 << 20;

/// [`CsiFiles`] in the agent's root directory.
#[derive(Clone, Debug)]
pub struct HostCsiFiles {
    pub(super) root: Arc<PathBuf>,
    /// Separate from the workers of a pod's other volumes, which continue while a CSI volume hangs.
    pub(super) workers: VolumeWorkers,
}

impl HostCsiFiles {
    pub fn new(root_dir: impl Into<PathBuf>) -> Self {
        Self { root: Arc::new(root_dir.into()), workers: VolumeWorkers::new() }
    }

    /// Sends notices about the work there.
    pub fn reporting_to(self, news: &HostVolumeNotices) -> Self {
        Self { workers: self.workers.reporting_to(news.sender()), ..self }
    }

    /// Runs work at `path` after earlier work on the same volume.
    async fn run_on_volume<T: Send + 'static>(
        &self,
        path: &str,
        what: String,
        work: impl FnOnce(&Path, &Path) -> Result<T, FilesError> + Send + 'static,
    ) -> Result<T, FilesError> {
        let (owner, volume) = work_owner(&self.root, below(&self.root, path)?);
        let (root, path) = (Arc::clone(&self.root), PathBuf::from(path));
        self.workers.run(owner, WorkScope::Volume(&volume), what, move |_| work(&root, &path)).await
    }

    /// Reads records, which are on the node's own disk. The owner's reads may run concurrently.
    async fn read_records<T: Send + 'static>(
        &self,
        whose: String,
        work: impl FnOnce(&Path) -> Result<T, FilesError> + Send + 'static,
    ) -> Result<T, FilesError> {
        let root = Arc::clone(&self.root);
        let what = format!("reading the {whose}");
        self.workers.run(WorkOwner::Node(whose), WorkScope::ReadingRecords, what, move |_| work(&root)).await
    }
}

#[async_trait]
impl CsiFiles for HostCsiFiles {
    async fn make_dir(&self, path: &str) -> Result<(), FilesError> {
        self.run_on_volume(path, format!("making {path}"), |root, path| {
            // A mount point exists as a directory and is not touched: what is mounted may hang.
            if mounts()?.at(&resolved(root, path)?).is_some() {
                return Ok(());
            }
            make_dirs(path, 0o750)
        })
        .await
    }

    async fn write_record(&self, path: &str, record: &VolumeRecord) -> Result<(), FilesError> {
        let record = record.clone();
        self.run_on_volume(path, format!("writing {path}"), move |_, path| write_record(path, &record)).await
    }

    async fn list_volumes(&self) -> Result<Vec<CsiVolumeOnDisk>, FilesError> {
        self.read_records("records of all volumes of drivers".into(), |root| {
            let mut found = staged(root)?;
            let mut devices = device_map::csi_names(root)?;
            let mut uids = BTreeSet::from_iter(names(&root.join("pods"))?.into_iter().map(PodUid::new));
            // The directory of a pod may be gone, and its device still be published.
            uids.extend(devices.keys().cloned());
            for uid in uids {
                match published(root, &uid, devices.remove(&uid).unwrap_or_default()) {
                    Ok(of_pod) => found.extend(of_pod),
                    Err(error) => {
                        found.push(unlisted(Some(&uid), &root.join("pods").join(uid.as_str()), &error))
                    }
                }
            }
            Ok(found)
        })
        .await
    }

    async fn list_pod_volumes(&self, uid: &PodUid) -> Result<Vec<CsiVolumeOnDisk>, FilesError> {
        single_name("pod uid", uid.as_str())?;
        let own = uid.clone();
        self.read_records(format!("records of volumes of pod {uid}"), move |root| {
            let mut devices = device_map::csi_names(root)?;
            published(root, &own, devices.remove(&own).unwrap_or_default())
        })
        .await
    }

    async fn wait_until_idle(&self, place: &str) -> Result<(), FilesError> {
        let (owner, volume) = work_owner(&self.root, below(&self.root, place)?);
        self.workers
            .wait_until_idle(owner, WorkScope::Volume(&volume), &format!("earlier work on {place}"))
            .await
    }

    async fn remove(&self, place: &str, record: Option<&str>) -> Result<(), FilesError> {
        let record = record.map(|record| below(&self.root, record).map(Path::to_owned)).transpose()?;
        self.run_on_volume(place, format!("removing {place}"), move |root, place| {
            remove(root, place, record.as_deref())
        })
        .await
    }

    async fn apply_fs_group(&self, path: &str, group: i64, on_root_mismatch: bool) -> Result<(), FilesError> {
        self.run_on_volume(path, format!("giving what is in {path} to group {group}"), move |_, path| {
            if on_root_mismatch && root_matches(path, group) {
                return Ok(());
            }
            fs_group::apply_fs_group(path, group, GroupAccess::ReadWrite)
        })
        .await
    }

    async fn link_device(&self, device: &str, link: &str) -> Result<(), FilesError> {
        let device = below(&self.root, device)?.to_owned();
        self.run_on_volume(link, format!("making {link}"), move |_, link| {
            if let Some(parent) = link.parent() {
                make_dirs(parent, 0o750)?;
            }
            step("link the device");
            match std::os::unix::fs::symlink(&device, link) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    let there = fs::read_link(link).map_err(failed("read", link))?;
                    let message = format!("{} leads to {}", link.display(), there.display());
                    if there == device { Ok(()) } else { Err(FilesError::Refused { message }) }
                }
                made => made.map_err(failed("link", link)),
            }
        })
        .await
    }

    async fn unlink_device(&self, link: &str) -> Result<(), FilesError> {
        self.run_on_volume(link, format!("removing {link}"), |_, link| device_map::remove_link(link)).await
    }

    async fn map_device(&self, device: &str, map: &str) -> Result<(), FilesError> {
        let device = below(&self.root, device)?.to_owned();
        self.run_on_volume(map, format!("mapping the device at {map}"), move |_, map| {
            device_map::map(&device, map)
        })
        .await
    }

    async fn unmap_device(&self, map: &str) -> Result<(), FilesError> {
        self.run_on_volume(map, format!("unmapping the device at {map}"), |_, map| device_map::unmap(map))
            .await
    }
}

/// The owner of the volume at `path`, and its name there: a pod, or the node for staged volumes and for records of
/// devices.
fn work_owner(root: &Path, path: &Path) -> (WorkOwner, String) {
    let inner = path.strip_prefix(root).unwrap_or(path);
    let parts: Vec<String> = inner.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let plugin: Vec<&str> = PLUGIN.split('/').collect();
    let of_pod = |uid: &str, name: &str| (WorkOwner::Pod(PodUid::new(uid)), name.to_owned());
    let of_node = |dir: &str, name: &str| (WorkOwner::Node(format!("{dir}/{name}")), name.to_owned());
    match (parts.as_slice(), parts.strip_prefix(plugin.as_slice())) {
        (["pods", uid, "volumes" | DEVICES, CSI_PLUGIN_DIR, name, ..], _) => of_pod(uid, name),
        (_, Some([DEVICES, "publish", name, uid, ..])) => of_pod(uid, name),
        (_, Some([DEVICES, name, CSI_MAPS, uid])) => of_pod(uid, name),
        (_, Some([DEVICES, "staging" | "publish", name])) => of_node(DEVICES, name),
        (_, Some([driver, volume, ..])) => of_node(driver, volume),
        _ => of_node(&inner.to_string_lossy(), ""),
    }
}

/// Paths contain names from outside, so they must not lead out of the root.
fn below<'a>(root: &Path, path: &'a str) -> Result<&'a Path, FilesError> {
    let plain = Path::new(path).strip_prefix(root).is_ok_and(|rest| {
        rest.components().next().is_some()
            && rest.components().all(|part| matches!(part, std::path::Component::Normal(_)))
    });
    if !plain {
        return Err(FilesError::Refused { message: format!("{path} is not below {}", root.display()) });
    }
    Ok(Path::new(path))
}

/// Write a draft, sync, rename, sync the directory: after a crash there is the old record or the new one.
fn write_record(path: &Path, record: &VolumeRecord) -> Result<(), FilesError> {
    let dir = path.parent().unwrap_or(path);
    make_dirs(dir, 0o750)?;
    let text = serde_json::to_string(record).map_err(io::Error::other).map_err(failed("write", path))?;
    let draft = dir.join(DRAFT);
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o644);
    step("create the draft of a record");
    let mut file = options.open(&draft).map_err(failed("create", &draft))?;
    step("write the draft of a record");
    file.write_all(text.as_bytes()).map_err(failed("write", &draft))?;
    file.sync_all().map_err(failed("write", &draft))?;
    step("put the record in its place");
    fs::rename(&draft, path).map_err(failed("replace", path))?;
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed("write", dir))
}

fn read_record(path: &Path) -> Result<Option<VolumeRecord>, String> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text).map_err(|error| error.to_string())?;
    let record: VolumeRecord = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    if record.driver_name.is_empty() || record.volume_handle.is_empty() {
        return Err("it names no driver or no volume".into());
    }
    Ok(Some(record))
}

fn staged(root: &Path) -> Result<Vec<CsiVolumeOnDisk>, FilesError> {
    let plugin = root.join(PLUGIN);
    let mut found = Vec::new();
    for driver in names(&plugin)?.into_iter().filter(|name| name != DEVICES) {
        let of_driver = plugin.join(&driver);
        let volumes = names(&of_driver).unwrap_or_else(|error| {
            found.push(unlisted(None, &of_driver, &error));
            Vec::new()
        });
        for volume in volumes {
            let dir = of_driver.join(&volume);
            found.push(volume_at(None, &volume, &dir.join("globalmount"), &dir.join(RECORD), None));
        }
    }
    let devices = root.join(CSI_DEVICES);
    for name in names(&devices)?.into_iter().filter(|name| !SHARED_DIRECTORIES.contains(&name.as_str())) {
        let record = devices.join(&name).join("data").join(RECORD);
        let mut one = volume_at(None, &name, &devices.join("staging").join(&name), &record, None);
        one.block = true;
        found.push(one);
    }
    Ok(found)
}

/// `devices`: block volumes that are published or mapped for the pod.
fn published(
    root: &Path,
    uid: &PodUid,
    mut devices: BTreeSet<String>,
) -> Result<Vec<CsiVolumeOnDisk>, FilesError> {
    let pod = root.join("pods").join(uid.as_str());
    let mut found = Vec::new();
    let volumes = pod.join("volumes").join(CSI_PLUGIN_DIR);
    for name in names(&volumes)? {
        let dir = volumes.join(&name);
        found.push(volume_at(Some(uid), &name, &dir.join("mount"), &dir.join(RECORD), None));
    }
    let links = pod.join(DEVICES).join(CSI_PLUGIN_DIR);
    devices.extend(names(&links)?);
    let all = root.join(CSI_DEVICES);
    for name in devices {
        let place = all.join("publish").join(&name).join(uid.as_str());
        let record = all.join(&name).join("data").join(RECORD);
        let map = all.join(&name).join(CSI_MAPS).join(uid.as_str());
        let paths = DevicePaths { link: text(&links.join(&name)), map: text(&map) };
        found.push(volume_at(Some(uid), &name, &place, &record, Some(paths)));
    }
    Ok(found)
}

/// A pod or driver whose volumes can't be listed. It is reported as existing, and all others are listed.
fn unlisted(pod: Option<&PodUid>, dir: &Path, error: &FilesError) -> CsiVolumeOnDisk {
    let record = Err(error.user_message());
    CsiVolumeOnDisk { record, ..volume_at(pod, "", dir, dir, None) }
}

fn volume_at(
    pod: Option<&PodUid>,
    name: &str,
    place: &Path,
    record: &Path,
    device: Option<DevicePaths>,
) -> CsiVolumeOnDisk {
    CsiVolumeOnDisk {
        pod: pod.cloned(),
        block: device.is_some(),
        spec_name: name.to_owned(),
        mount_dir: text(place),
        record_path: text(record),
        record: read_record(record),
        device,
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn remove(root: &Path, place: &Path, record: Option<&Path>) -> Result<(), FilesError> {
    let real = resolved(root, place)?;
    let table = mounts()?;
    if let Some(mount) = table.at_or_below(&real).next() {
        return Err(FilesError::Mounted { path: mount.mount_point.display().to_string() });
    }
    step("remove the place");
    let gone = match fs::symlink_metadata(place) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir(place),
        Ok(_) => fs::remove_file(place),
        Err(error) => Err(error),
    };
    absent_is_ok(gone).map_err(failed("remove", place))?;
    // A draft of an agent that was killed while it wrote.
    let draft = record.unwrap_or(place).with_file_name(DRAFT);
    step("remove the draft of a record");
    absent_is_ok(fs::remove_file(&draft)).map_err(failed("remove", &draft))?;
    remove_empty(place.parent().filter(|_| record.is_none()));
    let Some(record) = record else { return Ok(()) };
    let dir = record.parent();
    // A device's path has one more level. The driver's directory of a filesystem volume stays for its other volumes.
    let device = dir.filter(|dir| dir.file_name() == Some(OsStr::new("data"))).and_then(Path::parent);
    let published =
        device.and_then(|device| Some(device.with_file_name("publish").join(device.file_name()?)));
    remove_empty(published.as_deref());
    remove_empty(device.map(|device| device.join(CSI_MAPS)).as_deref());
    step("remove the record");
    absent_is_ok(fs::remove_file(record)).map_err(failed("remove", record))?;
    remove_empty(dir);
    remove_empty(device);
    Ok(())
}

fn mounts() -> Result<MountTable, FilesError> {
    MountTable::read().map_err(failed("read", Path::new("/proc/self/mountinfo")))
}

/// The path as the mount table shows it.
fn resolved(root: &Path, place: &Path) -> Result<PathBuf, FilesError> {
    match root.canonicalize() {
        Ok(real) => Ok(real.join(place.strip_prefix(root).unwrap_or(place))),
        Err(error) => Err(failed("resolve", root)(error)),
    }
}

/// A directory that is not empty stays: its content is still needed.
fn remove_empty(dir: Option<&Path>) {
    if let Some(dir) = dir {
        step("remove a directory, if it is empty");
        let _ = fs::remove_dir(dir);
    }
}

/// Removes staging directories that have no record. The agent writes the record before the first CSI call, so no driver
/// knows these volumes. Call this only at start, before any volume work.
pub fn remove_volumes_without_record(root: &Path) -> Result<(), FilesError> {
    let mut result = Ok(());
    for one in staged(root)?.into_iter().filter(|one| matches!(one.record, Ok(None))) {
        result = result.and(remove(root, Path::new(&one.mount_dir), Some(Path::new(&one.record_path))));
    }
    result
}

fn absent_is_ok(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Whether the root of the volume is as a finished run leaves it.
fn root_matches(path: &Path, group: i64) -> bool {
    const WANTED: u32 = 0o2770;
    fs::metadata(path).is_ok_and(|root| i64::from(root.gid()) == group && root.mode() & WANTED == WANTED)
}

fn names(dir: &Path) -> Result<Vec<String>, FilesError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(failed("list", dir)(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed("list", dir))?.file_name();
        found.extend(name.into_string().ok());
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests;
