//! Block devices of pods: where each is mapped, and what keeps it from vanishing while a pod uses it.
//!
//! ```text
//!   <root>/pods/<uid>/volumeDevices/<plugin>/<volume>                        link to the device, for the runtime
//!         /plugins/kubernetes.io~local-volume/volumeDevices/<volume>/<uid>   map: a bind mount of the device
//!         /plugins/kubernetes.io/csi/volumeDevices/<volume>/dev/<uid>        the same for a storage driver's device
//!
//!   set-up:     link ──> map file ──> bind mount ──> loop device over it
//!   tear-down:  loop device detached ──> unmounted ──> map file removed ──> link removed
//! ```
//! The paths are upstream's, so that either kubelet can remove what the other has left. Each pod has a map and a loop
//! device of its own, so pods that share a volume share only the directory of their maps. The loop device is found again
//! by the path of the map, in sysfs; those that others have made over the same device are left alone.
//!
//! A map that shows another device than the volume's path does now was made before the device was replaced. A container
//! of the pod may still be using the old one, so the set-up fails until the pod is deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use model::PodUid;
use model::volume::{DeviceVolume, MountStage};
use ports::FilesError;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::layout::{FilesLayout, failed, make_dirs};
use super::persistent::LOCAL;
use super::steps::step;
use crate::loop_device;
use crate::mountinfo::MountTable;

/// In the pod's directory and in those of plugins.
pub const DEVICES: &str = "volumeDevices";
/// In the root directory: the directories of maps of local volumes.
const LOCAL_MAPS: &str = "plugins/kubernetes.io~local-volume/volumeDevices";
/// In the root directory: those of storage drivers' volumes, and where drivers publish and stage devices.
pub const CSI_DEVICES: &str = "plugins/kubernetes.io/csi/volumeDevices";
/// In the directory of a storage driver's volume: its maps.
pub const CSI_MAPS: &str = "dev";

/// Beside the directories of storage drivers' volumes. No volume may be called so.
pub const SHARED_DIRECTORIES: [&str; 2] = ["staging", "publish"];

/// The lock name of a local volume's directory of maps, which the last pod removes.
pub fn lock_name(volume: &str) -> String {
    format!("the maps of devices of persistent volume {volume}")
}

/// The volume's name in its map's path.
pub fn volume_of(map: &Path) -> String {
    let dir = map.parent().and_then(Path::file_name).unwrap_or_default();
    dir.to_string_lossy().into_owned()
}

/// Maps the device of a local volume for a pod.
pub fn set_up_local(layout: &FilesLayout, uid: &PodUid, volume: &DeviceVolume) -> Result<(), FilesError> {
    let (link, path) = (layout.in_pod(uid, &volume.paths.link)?, layout.in_plugins(&volume.paths.map)?);
    let device = resolve_device(Path::new(&volume.device), &path)?;
    make_link(&device, &link)?;
    map(&device, &path)
}

/// Removes a local volume's map and link. The caller must hold the lock [`lock_name`].
pub fn release_local(layout: &FilesLayout, pod: &Path, uid: &PodUid, name: &str) -> Result<(), FilesError> {
    unmap(&layout.root.join(LOCAL_MAPS).join(name).join(uid.as_str()))?;
    remove_link(&pod.join(DEVICES).join(LOCAL).join(name))
}

/// Volumes of which the pod has a link or a map. Names that can't be a persistent volume's are ignored.
pub fn local_names(layout: &FilesLayout, pod: &Path, uid: &PodUid) -> Result<BTreeSet<String>, FilesError> {
    let mut found = BTreeSet::from_iter(names(&pod.join(DEVICES).join(LOCAL))?);
    found.extend(
        in_directories(&layout.root.join(LOCAL_MAPS), Path::new(""))?.remove(uid).unwrap_or_default(),
    );
    Ok(found)
}

/// The devices of storage drivers that are mapped or published, with a link or without one.
pub fn csi_names(root: &Path) -> Result<BTreeMap<PodUid, BTreeSet<String>>, FilesError> {
    let devices = root.join(CSI_DEVICES);
    let mut found = in_directories(&devices.join("publish"), Path::new(""))?;
    for (uid, mut names) in in_directories(&devices, Path::new(CSI_MAPS))? {
        // A volume that is called like the directory of maps has its places in these directories.
        names.retain(|name| !SHARED_DIRECTORIES.contains(&name.as_str()));
        if !names.is_empty() {
            found.entry(uid).or_default().extend(names);
        }
    }
    Ok(found)
}

/// Pods with a map of a device or a published one. Their own directories may be gone.
pub fn pods(root: &Path) -> Result<BTreeSet<PodUid>, FilesError> {
    let local = in_directories(&root.join(LOCAL_MAPS), Path::new(""))?;
    Ok(local.into_keys().chain(csi_names(root)?.into_keys()).collect())
}

/// For each pod the volumes with `<dir>/<volume>/<below>/<uid>`.
fn in_directories(dir: &Path, below: &Path) -> Result<BTreeMap<PodUid, BTreeSet<String>>, FilesError> {
    let mut found: BTreeMap<PodUid, BTreeSet<String>> = BTreeMap::new();
    for volume in names(dir)? {
        for uid in names(&dir.join(&volume).join(below))? {
            found.entry(PodUid::new(uid)).or_default().insert(volume.clone());
        }
    }
    Ok(found)
}

/// Links the device under the name that is passed to the runtime.
fn make_link(device: &Path, link: &Path) -> Result<(), FilesError> {
    if let Some(dir) = link.parent() {
        make_dirs(dir, 0o750)?;
    }
    match fs::read_link(link) {
        Ok(old) if old == device => return Ok(()),
        Ok(_) => {
            step("remove the link to another device");
            fs::remove_file(link).map_err(failed("remove", link))?;
        }
        Err(_) => {}
    }
    step("link the device");
    std::os::unix::fs::symlink(device, link).map_err(failed("link", link))
}

/// Removes the pod's link, and directories that are empty then.
pub fn remove_link(link: &Path) -> Result<(), FilesError> {
    step("remove the link to the device");
    match fs::remove_file(link) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed("remove", link)(error)),
        _ => {}
    }
    for dir in link.ancestors().skip(1).take(2) {
        remove_empty(dir);
    }
    Ok(())
}

/// Bind-mounts the device at `path`, and attaches a loop device to that.
pub fn map(device: &Path, path: &Path) -> Result<(), FilesError> {
    let device = resolve_device(device, path)?;
    let dir = path.parent().unwrap_or(path);
    make_dirs(dir, 0o750)?;
    let real = dir.canonicalize().map_err(failed("resolve", dir))?.join(path.file_name().unwrap_or_default());
    if shown(&real)?.is_none_or(|found| !found.file_type().is_block_device()) {
        step("create the map of the device");
        let flags = OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::RDONLY;
        rustix::fs::open(&real, flags, Mode::from_raw_mode(0o640)).map_err(failed("create", &real))?;
        step("mount the device on its map");
        rustix::mount::mount_bind(&device, &real).map_err(failed("bind-mount", &real)).map_err(map_failed)?;
    }
    let found =
        loop_device::find(&real).map_err(failed("find the loop device of", &real)).map_err(map_failed)?;
    if found.is_empty() {
        step("attach a loop device to the map");
        let attached = loop_device::attach(&real).map_err(failed("attach a loop device to", &real));
        attached.map_err(map_failed)?;
    }
    Ok(())
}

/// Undoes [`map`], however far that came.
pub fn unmap(path: &Path) -> Result<(), FilesError> {
    let Some(dir) = path.parent() else { return Ok(()) };
    let real = match dir.canonicalize() {
        Ok(dir) => dir.join(path.file_name().unwrap_or_default()),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("resolve", dir)(error)),
    };
    if shown(&real)?.is_some() {
        for device in loop_device::find(&real).map_err(failed("find the loop device of", &real))? {
            step("detach the loop device");
            loop_device::detach(&device, &real).map_err(failed("detach the loop device of", &real))?;
        }
        while MountTable::read()
            .map_err(failed("read", Path::new("/proc/self/mountinfo")))?
            .at(&real)
            .is_some()
        {
            step("unmount the device");
            rustix::mount::unmount(&real, UnmountFlags::NOFOLLOW).map_err(failed("unmount", &real))?;
        }
        step("remove the map of the device");
        match rustix::fs::unlink(&real) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(failed("remove", &real)(errno)),
        }
    }
    remove_empty(dir);
    Ok(())
}

/// The device without symlinks. Fails if it is none, or if the map at `path` shows another one.
fn resolve_device(device: &Path, path: &Path) -> Result<PathBuf, FilesError> {
    let find = |error| map_failed(failed("find device", device)(error));
    let real = device.canonicalize().map_err(find)?;
    let found = fs::metadata(&real).map_err(find)?;
    if !found.file_type().is_block_device() {
        return Err(mount_failed(format!("{} is not a block device", device.display())));
    }
    let mapped = shown(path)?.filter(|mapped| mapped.file_type().is_block_device());
    match mapped.filter(|mapped| mapped.rdev() != found.rdev()) {
        None => Ok(real),
        Some(old) => Err(mount_failed(format!(
            "{} is block device {} now, and the pod was given block device {}: the device was replaced while the pod \
             used it, so delete the pod",
            device.display(),
            number(&found),
            number(&old)
        ))),
    }
}

fn number(device: &Metadata) -> String {
    format!("{}:{}", rustix::fs::major(device.rdev()), rustix::fs::minor(device.rdev()))
}

/// What is at the path. `None`: nothing.
fn shown(path: &Path) -> Result<Option<Metadata>, FilesError> {
    match path.symlink_metadata() {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("examine", path)(error)),
    }
}

fn mount_failed(message: String) -> FilesError {
    FilesError::Mount { stage: MountStage::MapDevice, message }
}

fn map_failed(error: FilesError) -> FilesError {
    mount_failed(error.user_message())
}

/// A directory that is not empty stays: its content is still needed.
fn remove_empty(dir: &Path) {
    step("remove a directory, if it is empty");
    let _ = fs::remove_dir(dir);
}

/// Entries of a directory. A missing directory has none.
fn names(dir: &Path) -> Result<Vec<String>, FilesError> {
    let names = match super::tear_down::names(dir) {
        Err(FilesError::Io { source, .. }) if source.kind() == ErrorKind::NotADirectory => {
            return Ok(Vec::new());
        }
        names => names?,
    };
    Ok(names.into_iter().filter_map(|name| name.into_string().ok()).collect())
}

#[cfg(test)]
mod tests;
