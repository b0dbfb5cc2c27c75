//! Persistent volumes that are on this machine or on a server: directories, disks, NFS. Disks that containers get as
//! devices are in [`super::device_map`].
//!
//! ```text
//!   directory ──────────────────────────────> bind ──> <pod>/volumes/kubernetes.io~local-volume/<pv>
//!   disk ──> empty? format ──> mount once for the node ──> bind ──> the same
//!   NFS  ───────────────────────────────────> mount ──> <pod>/volumes/kubernetes.io~nfs/<pv>
//! ```
//! Every step checks the mount table first, so a set-up that was interrupted anywhere is repeated. The pod's directory
//! of the volume is created first and removed last, so a tear-down finds every volume. Several pods may use a disk or
//! directory concurrently; [`shared_resources`] names what only one of them may work on at a time.
//!
//! The content belongs to users and is never removed. A tear-down unmounts, and removes empty directories only.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use model::volume::{LocalVolume, MountStage, NfsVolume, VolumeNotice};
use ports::FilesError;
use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::disk;
use super::fs_group::{self, GroupAccess};
use super::layout::{FilesLayout, failed, make_dirs, single_name};
use super::program;
use super::steps::{WorkProgress, step};
use super::tear_down::names;
use crate::mountinfo::MountTable;

pub const LOCAL: &str = "kubernetes.io~local-volume";
pub const NFS: &str = "kubernetes.io~nfs";
/// In the root directory: where disks are mounted once for all pods.
pub const DEVICE_MOUNTS: &str = "plugins/kubernetes.io/local-volume/mounts";
/// Mode bits of the root that a finished walk leaves.
const ROOT_BITS: u32 = 0o2770;

/// The resources of the volume that other pods may use too, through whatever persistent volume.
pub fn shared_resources(volume: &LocalVolume) -> Vec<String> {
    let itself =
        std::fs::metadata(&volume.path).ok().map(|found| match found.file_type().is_block_device() {
            true => format!("disk {}:{}", rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev())),
            false => format!("directory {} of device {:#x}", found.ino(), found.dev()),
        });
    itself.into_iter().chain([device_mount_name(&volume.name)]).collect()
}

/// The lock name of a disk's node-wide mount: only one pod at a time sets it up, binds it or unmounts it.
pub fn device_mount_name(name: &str) -> String {
    format!("the node's mount of persistent volume {name}")
}

pub fn set_up_local(layout: &FilesLayout, target: &Path, volume: &LocalVolume) -> Result<(), FilesError> {
    let source = PathBuf::from(&volume.path);
    if volume.create {
        // The directory is world-writable, as an emptyDir is. Its parents are not.
        if let Some(above) = source.parent() {
            make_dirs(above, 0o750)?;
        }
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
    make_dirs(target, 0o750)?;
    disk::mount_device(&source, &device_mount, volume)
        .map_err(|error| device_failed(error.user_message()))?;
    bind(&device_mount, target, volume)
}

fn device_mount(layout: &FilesLayout, volume: &LocalVolume) -> Result<PathBuf, FilesError> {
    let name = single_name("persistent volume", &volume.name)?;
    Ok(layout.root.join(DEVICE_MOUNTS).join(name))
}

fn device_failed(message: impl Into<String>) -> FilesError {
    FilesError::Mount { stage: MountStage::MountDevice, message: message.into() }
}

fn bind(source: &Path, target: &Path, volume: &LocalVolume) -> Result<(), FilesError> {
    let table = read_mounts()?;
    let others = is_mounted_for_other_pod(&table, source, target)?;
    let there = table.at(&real(target)).is_some();
    if !there {
        make_dirs(target, 0o750)?;
        step("bind");
        rustix::mount::mount_bind(source, target).map_err(failed("bind-mount", target))?;
    }
    if let Err(error) = set_flags(target, volume) {
        // A writable mount of a read-only volume must not stay.
        let _ = rustix::mount::unmount(target, UnmountFlags::NOFOLLOW);
        return Err(error);
    }
    if let (Some(wanted), true, false) = (volume.fs_group, others, there) {
        report_group_conflict(source, wanted, volume)?;
    }
    match volume.fs_group {
        Some(group) if !volume.read_only && !others => {
            ensure_fs_group(target, group, volume.on_root_mismatch || there)
        }
        _ => Ok(()),
    }
}

/// If another pod already uses the volume, its fsGroup stays; the new pod gets a warning Event when it asked for
/// another group.
fn report_group_conflict(source: &Path, wanted: i64, volume: &LocalVolume) -> Result<(), FilesError> {
    let found = std::fs::metadata(source).map_err(failed("examine", source))?.gid();
    if i64::from(found) != wanted {
        let spec_name = volume.name.clone();
        WorkProgress::current().tell(VolumeNotice::FsGroupMismatch { spec_name, wanted, found });
    }
    Ok(())
}

/// The root's group is changed last, so a root that already has the group means that an earlier walk finished.
fn ensure_fs_group(target: &Path, group: i64, if_root_differs: bool) -> Result<(), FilesError> {
    let found = std::fs::metadata(target).map_err(failed("examine", target))?;
    let is_right = i64::from(found.gid()) == group && found.mode() & ROOT_BITS == ROOT_BITS;
    if if_root_differs && is_right {
        return Ok(());
    }
    fs_group::apply_fs_group(target, group, GroupAccess::ReadWrite)
}

/// The options of a bind mount take effect only by a remount.
fn set_flags(target: &Path, volume: &LocalVolume) -> Result<(), FilesError> {
    let mut options = volume.mount_options.clone();
    if volume.read_only {
        options.push("ro".into());
    }
    match options.as_slice() {
        [] => Ok(()),
        [only] if only == "ro" => {
            step("make it read-only");
            let flags = MountFlags::BIND | MountFlags::RDONLY | inherited_flags(target)?;
            rustix::mount::mount_remount(target, flags, c"").map_err(failed("make read-only", target))
        }
        _ => {
            let options = format!("remount,bind,{}", options.join(","));
            step("set its options");
            program::run("mount", &["-o", &options, &target.to_string_lossy()])
        }
    }
}

/// Flags that the mount has from its source, and that a remount without them would clear.
fn inherited_flags(target: &Path) -> Result<MountFlags, FilesError> {
    let has = rustix::fs::statvfs(target).map_err(failed("examine", target))?.f_flag;
    let pairs = [
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
    ];
    Ok(pairs.into_iter().filter(|(from, _)| has.contains(*from)).map(|(_, to)| to).collect())
}

/// Whether the volume is mounted for another pod, which may have set its group.
fn is_mounted_for_other_pod(table: &MountTable, source: &Path, target: &Path) -> Result<bool, FilesError> {
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
    step("mount the server's directory");
    program::run("mount", &words).inspect_err(|_| {
        // Nothing is mounted there, so the empty directory is removed.
        let _ = std::fs::remove_dir(target);
    })
}

/// The arguments of the `mount` program.
fn nfs_words(target: &Path, volume: &NfsVolume) -> Vec<String> {
    let mut options = volume.mount_options.clone();
    options.extend(volume.read_only.then(|| "ro".to_owned()));
    let mut words = vec!["-t".to_owned(), "nfs".to_owned()];
    if !options.is_empty() {
        words.extend(["-o".to_owned(), options.join(",")]);
    }
    // The source is chosen by a user, and must not be parsed as an option.
    words.extend(["--".to_owned(), volume.source.clone(), target.to_string_lossy().into_owned()]);
    words
}

/// Unmounts the pod's persistent volumes. `pod` is its real path. Directories of local volumes stay, for
/// [`release_local_volume`].
pub fn unmount(pod: &Path) -> Result<(), FilesError> {
    let mut result = Ok(());
    for plugin in [LOCAL, NFS] {
        let dir = pod.join("volumes").join(plugin);
        for name in names(&dir)? {
            let target = dir.join(&name);
            let unmounted = unmount_all(&target);
            let removed = |()| if plugin == NFS { remove_empty(&target) } else { Ok(()) };
            result = result.and(unmounted.and_then(removed));
        }
        // Fails, as wanted, while a volume's directory is left in it.
        let _ = std::fs::remove_dir(&dir);
    }
    result
}

/// Local volumes that the pod has a directory of. Names that can't be a persistent volume's are ignored.
pub fn local_names(pod: &Path) -> Result<Vec<String>, FilesError> {
    let names = names(&pod.join("volumes").join(LOCAL))?;
    Ok(names.into_iter().filter_map(|name| name.into_string().ok()).collect())
}

/// Releases a local volume that is no longer mounted for the pod. For the last pod the node-wide mount of the disk is
/// unmounted too. The caller must hold the lock [`device_mount_name`].
pub fn release_local_volume(layout: &FilesLayout, pod: &Path, name: &str) -> Result<(), FilesError> {
    let name = single_name("persistent volume", name)?;
    unmount_device_if_unused(&layout.root.join(DEVICE_MOUNTS).join(name))?;
    let dir = pod.join("volumes").join(LOCAL);
    remove_empty(&dir.join(name))?;
    // Fails, as wanted, while a volume's directory is left in it.
    let _ = std::fs::remove_dir(&dir);
    Ok(())
}

fn unmount_all(target: &Path) -> Result<(), FilesError> {
    while read_mounts()?.at(target).is_some() {
        step("unmount");
        rustix::mount::unmount(target, UnmountFlags::NOFOLLOW).map_err(failed("unmount", target))?;
    }
    Ok(())
}

/// A directory with content stays, because the content is not the agent's.
fn remove_empty(target: &Path) -> Result<(), FilesError> {
    step("remove the mount point");
    match std::fs::remove_dir(target) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(failed("remove volume", target)(error))
        }
        _ => Ok(()),
    }
}

fn unmount_device_if_unused(device_mount: &Path) -> Result<(), FilesError> {
    let Ok(device_mount) = device_mount.canonicalize() else { return Ok(()) };
    let table = read_mounts()?;
    let Some(own) = table.at(&device_mount) else { return remove_empty(&device_mount) };
    let used =
        |mount: &crate::mountinfo::Mount| mount.device == own.device && mount.mount_point != device_mount;
    if table.mounts().iter().any(used) {
        return Ok(());
    }
    step("unmount the disk");
    match rustix::mount::unmount(&device_mount, UnmountFlags::NOFOLLOW) {
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
        Err(errno) => return Err(failed("unmount", &device_mount)(errno)),
    }
    remove_empty(&device_mount)
}

fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

fn read_mounts() -> Result<MountTable, FilesError> {
    MountTable::read().map_err(failed("read", Path::new("/proc/self/mountinfo")))
}

#[cfg(test)]
mod tests;
