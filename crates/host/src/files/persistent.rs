//! Persistent volumes that are on this machine or on a server: directories, disks, NFS, devices.
//!
//! ```text
//!   directory ──────────────────────────────> bind ──> <pod>/volumes/kubernetes.io~local-volume/<pv>
//!   disk ──> empty? format ──> mount once for the node ──> bind ──> the same
//!   NFS  ───────────────────────────────────> mount ──> <pod>/volumes/kubernetes.io~nfs/<pv>
//!   device ─────────────────────────────────> link ───> <pod>/volumeDevices/kubernetes.io~local-volume/<pv>
//! ```
//! Every step looks at the mount table first, so a set-up that was cut short anywhere is simply done again.
//!
//! What is in them is not ours: nothing of it is ever removed. A tear-down unmounts, and removes empty directories only.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use model::volume::{DeviceVolume, LocalVolume, MountStage, NfsVolume};
use ports::FilesError;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::disk;
use super::layout::{Layout, failed, make_dirs, single_name};
use super::ownership::{self, Access};
use crate::mountinfo::MountTable;

pub const LOCAL: &str = "kubernetes.io~local-volume";
pub const NFS: &str = "kubernetes.io~nfs";
/// Below the root: where disks are mounted once for all pods.
pub const DEVICE_MOUNTS: &str = "plugins/kubernetes.io/local-volume/mounts";
/// Of the root of a volume that is its group's.
const GROUP_BITS: u32 = 0o2770 & !0o700;

pub fn set_up_local(layout: &Layout, target: &Path, volume: &LocalVolume) -> Result<(), FilesError> {
    let source = PathBuf::from(&volume.path);
    if volume.create {
        // Of nobody in particular, like an emptyDir: whoever is told of it may write there.
        make_dirs(&source, 0o777)?;
    }
    let found = match std::fs::metadata(&source) {
        Ok(found) => found,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(device_failed(format!("path {:?} does not exist", volume.path)));
        }
        Err(error) => return Err(device_failed(format!("{}: {error}", volume.path))),
    };
    if found.is_dir() {
        return bind(&source, target, volume);
    }
    if !found.file_type().is_block_device() {
        return Err(device_failed("only directory and block device are supported"));
    }
    let device_mount = device_mount(layout, volume)?;
    // Held from the mount to the bind: a tear-down in between would find nobody who uses it.
    let _lane = disk::lane(&device_mount);
    disk::mount_once(&source, &device_mount, volume).map_err(|error| device_failed(error.user_message()))?;
    bind(&device_mount, target, volume)
}

fn device_mount(layout: &Layout, volume: &LocalVolume) -> Result<PathBuf, FilesError> {
    let name = single_name("persistent volume", &volume.name)?;
    Ok(layout.root.join(DEVICE_MOUNTS).join(name))
}

fn device_failed(message: impl Into<String>) -> FilesError {
    FilesError::Mount { stage: MountStage::MountDevice, message: message.into() }
}

fn bind(source: &Path, target: &Path, volume: &LocalVolume) -> Result<(), FilesError> {
    let table = read_mounts()?;
    let others = is_shown_elsewhere(&table, source, target)?;
    let there = table.at(&real(target)).is_some();
    if !there {
        make_dirs(target, 0o750)?;
        rustix::mount::mount_bind(source, target).map_err(failed("bind-mount", target))?;
    }
    if let Err(error) = set_flags(target, volume) {
        // A volume that may be written although it must not be is worse than none.
        let _ = rustix::mount::unmount(target, UnmountFlags::NOFOLLOW);
        return Err(error);
    }
    match volume.fs_group {
        Some(group) if !volume.read_only && !others => own(target, group, volume.on_root_mismatch || there),
        _ => Ok(()),
    }
}

/// A mount that was there before was given to the group before, if its root says so: the root comes last.
fn own(target: &Path, group: i64, if_root_differs: bool) -> Result<(), FilesError> {
    let found = std::fs::metadata(target).map_err(failed("examine", target))?;
    let is_right = i64::from(found.gid()) == group && found.mode() & GROUP_BITS == GROUP_BITS;
    if if_root_differs && is_right {
        return Ok(());
    }
    ownership::apply(target, group, Access::ReadWrite)
}

/// Options of a bind mount take effect when it is mounted again.
fn set_flags(target: &Path, volume: &LocalVolume) -> Result<(), FilesError> {
    let mut options = volume.mount_options.clone();
    if volume.read_only {
        options.push("ro".into());
    }
    match options.as_slice() {
        [] => Ok(()),
        [only] if only == "ro" => {
            let flags = MountFlags::BIND | MountFlags::RDONLY;
            rustix::mount::mount_remount(target, flags, c"").map_err(failed("make read-only", target))
        }
        _ => {
            let options = format!("remount,bind,{}", options.join(","));
            disk::run("mount", &["-o", &options, &target.to_string_lossy()])
        }
    }
}

/// Whether another pod has it mounted, whose group it may be by now.
fn is_shown_elsewhere(table: &MountTable, source: &Path, target: &Path) -> Result<bool, FilesError> {
    let source = source.canonicalize().map_err(failed("resolve", source))?;
    let Some(on) = table.containing(&source) else { return Ok(false) };
    let inside = source.strip_prefix(&on.mount_point).unwrap_or(Path::new(""));
    let root = on.root.join(inside);
    let target = real(target);
    let shown = |mount: &crate::mountinfo::Mount| {
        mount.device == on.device && mount.root == root && mount.mount_point != target
    };
    let of_pod = |mount: &&crate::mountinfo::Mount| mount.mount_point.iter().any(|part| part == LOCAL);
    Ok(table.mounts().iter().filter(of_pod).any(shown))
}

pub fn set_up_nfs(target: &Path, volume: &NfsVolume) -> Result<(), FilesError> {
    if read_mounts()?.at(&real(target)).is_some() {
        return Ok(());
    }
    make_dirs(target, 0o750)?;
    let words = nfs_words(target, volume);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    disk::run("mount", &words).inspect_err(|_| {
        // Nothing is mounted there: an empty directory would only be in the way.
        let _ = std::fs::remove_dir(target);
    })
}

/// What the `mount` program is told.
fn nfs_words(target: &Path, volume: &NfsVolume) -> Vec<String> {
    let mut options = volume.mount_options.clone();
    options.extend(volume.read_only.then(|| "ro".to_owned()));
    let mut words = vec!["-t".to_owned(), "nfs".to_owned()];
    if !options.is_empty() {
        words.extend(["-o".to_owned(), options.join(",")]);
    }
    words.extend([volume.source.clone(), target.to_string_lossy().into_owned()]);
    words
}

/// The device under the name that the runtime is told.
pub fn map_device(link: &Path, volume: &DeviceVolume) -> Result<(), FilesError> {
    let device = Path::new(&volume.device);
    let found = std::fs::metadata(device).map_err(failed("find device", device))?;
    if !found.file_type().is_block_device() {
        let message = format!("{} is not a block device", volume.device);
        return Err(FilesError::Mount { stage: MountStage::SetUp, message });
    }
    if let Some(dir) = link.parent() {
        make_dirs(dir, 0o750)?;
    }
    match std::fs::read_link(link) {
        Ok(old) if old == device => return Ok(()),
        Ok(_) => std::fs::remove_file(link).map_err(failed("remove", link))?,
        Err(_) => {}
    }
    std::os::unix::fs::symlink(device, link).map_err(failed("link", link))
}

/// Unmounts what the pod has of these. `pod`: its real path, two below the root.
pub fn tear_down(pod: &Path) -> Result<(), FilesError> {
    let root = pod.parent().and_then(Path::parent).unwrap_or(pod);
    let mut result = Ok(());
    for plugin in [LOCAL, NFS] {
        let dir = pod.join("volumes").join(plugin);
        for name in super::tear_down::names(&dir)? {
            result = result.and(release(&dir.join(&name)));
            if plugin == LOCAL {
                result = result.and(release_disk(&root.join(DEVICE_MOUNTS).join(&name)));
            }
        }
        // Stays while a volume stays.
        let _ = std::fs::remove_dir(&dir);
    }
    result.and(super::tree::remove_tree(&pod.join("volumeDevices").join(LOCAL)))
}

fn release(target: &Path) -> Result<(), FilesError> {
    while read_mounts()?.at(target).is_some() {
        rustix::mount::unmount(target, UnmountFlags::NOFOLLOW).map_err(failed("unmount", target))?;
    }
    match std::fs::remove_dir(target) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(failed("remove volume", target)(error))
        }
        _ => Ok(()),
    }
}

/// The last pod takes the node's mount of the disk with it.
fn release_disk(device_mount: &Path) -> Result<(), FilesError> {
    let Ok(device_mount) = device_mount.canonicalize() else { return Ok(()) };
    let _lane = disk::lane(&device_mount);
    let table = read_mounts()?;
    let Some(own) = table.at(&device_mount) else { return Ok(()) };
    let used =
        |mount: &crate::mountinfo::Mount| mount.device == own.device && mount.mount_point != device_mount;
    if table.mounts().iter().any(used) {
        return Ok(());
    }
    match rustix::mount::unmount(&device_mount, UnmountFlags::NOFOLLOW) {
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
        Err(errno) => return Err(failed("unmount", &device_mount)(errno)),
    }
    std::fs::remove_dir(&device_mount).map_err(failed("remove", &device_mount))
}

fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

fn read_mounts() -> Result<MountTable, FilesError> {
    MountTable::read().map_err(failed("read", Path::new("/proc/self/mountinfo")))
}

#[cfg(test)]
mod tests;
