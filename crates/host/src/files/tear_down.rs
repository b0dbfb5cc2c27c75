//! Removes a pod's volumes and its directory.
//!
//! ```text
//! volumes:  sub-path binds unmounted -> volume-subpaths removed -> per volume: marker, own mount, content removed
//!           -> persistent ones unmounted; `persistent::release_local_volume` then unmounts unused disks
//! pod_dir:  refuses while anything is mounted below; volumes that still hold something are kept
//! ```

use std::path::{Path, PathBuf};

use ports::FilesError;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::layout::failed;
use super::persistent;
use super::steps::step;
use super::tree::remove_tree;
use crate::mountinfo::MountTable;

/// Volume types whose content belongs to the pod and is removed with it.
const OWNED_PLUGINS: [&str; 5] = [
    "kubernetes.io~empty-dir",
    "kubernetes.io~configmap",
    "kubernetes.io~secret",
    "kubernetes.io~projected",
    "kubernetes.io~downward-api",
];

/// Continues after failures and returns the first.
pub fn tear_down_volumes(pod: &Path) -> Result<(), FilesError> {
    let Some(pod) = resolve(pod)? else { return Ok(()) };
    let sub_paths = pod.join("volume-subpaths");
    let mut result = unmount_below(&sub_paths);
    result = result.and(remove_tree(&sub_paths));
    for plugin in OWNED_PLUGINS {
        result = result.and(remove_volumes_of(&pod, plugin));
    }
    result.and(persistent::unmount(&pod))
}

fn remove_volumes_of(pod: &Path, plugin: &str) -> Result<(), FilesError> {
    let dir = pod.join("volumes").join(plugin);
    let mut result = Ok(());
    for name in names(&dir)? {
        let markers = pod.join("plugins").join(plugin).join(&name);
        result = result.and(remove_volume(&dir.join(&name), &markers));
    }
    // Fails, as wanted, while a volume's directory is left in it.
    let _ = std::fs::remove_dir(&dir);
    result
}

/// The marker is removed first: a half-removed volume must not look ready.
fn remove_volume(path: &Path, markers: &Path) -> Result<(), FilesError> {
    remove_tree(markers)?;
    while let Some(mount) = read_mounts()?.at(path) {
        if !matches!(mount.fs_type.as_str(), "tmpfs" | "hugetlbfs") {
            return Err(FilesError::Mounted { path: path.display().to_string() });
        }
        unmount(path)?;
    }
    remove_tree(path)
}

/// All bind mounts of sub-paths are the agent's, whatever filesystem they show.
fn unmount_below(dir: &Path) -> Result<(), FilesError> {
    let mut result = Ok(());
    for mount in read_mounts()?.at_or_below(dir) {
        result = result.and(unmount(&mount.mount_point));
    }
    result
}

fn unmount(path: &Path) -> Result<(), FilesError> {
    step("unmount");
    match rustix::mount::unmount(path, UnmountFlags::NOFOLLOW) {
        // EINVAL: not mounted any more.
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(errno) => Err(failed("unmount", path)(errno)),
    }
}

/// Removes the pod's directory. Succeeds if it does not exist.
pub fn remove_pod_dir(pod: &Path) -> Result<(), FilesError> {
    let Some(pod) = resolve(pod)? else { return Ok(()) };
    if let Some(mount) = read_mounts()?.at_or_below(&pod).next() {
        return Err(FilesError::Mounted { path: mount.mount_point.display().to_string() });
    }
    // What is left there is data of a volume that was not torn down, so it is kept.
    let volumes = pod.join("volumes");
    for plugin in names(&volumes)? {
        let plugin = volumes.join(plugin);
        for volume in names(&plugin)? {
            let volume = plugin.join(volume);
            step("remove an empty volume");
            std::fs::remove_dir(&volume).map_err(failed("remove volume", &volume))?;
        }
    }
    remove_tree(&pod)
}

fn read_mounts() -> Result<MountTable, FilesError> {
    MountTable::read().map_err(failed("read", Path::new("/proc/self/mountinfo")))
}

/// The real path, as the mount table shows it. The last component is the pod's own directory, never a symlink.
fn resolve(pod: &Path) -> Result<Option<PathBuf>, FilesError> {
    let (Some(parent), Some(name)) = (pod.parent(), pod.file_name()) else { return Ok(None) };
    match parent.canonicalize() {
        Ok(parent) => Ok(Some(parent.join(name)).filter(|path| path.symlink_metadata().is_ok())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("resolve", parent)(error)),
    }
}

pub fn names(dir: &Path) -> Result<Vec<std::ffi::OsString>, FilesError> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed("list", dir)(error)),
    };
    entries.map(|entry| entry.map(|entry| entry.file_name()).map_err(failed("list", dir))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::empty_dir;
    use crate::files::sub_path;
    use crate::files::testing::{Mounts, bind};
    use model::volume::{EmptyDirMedium, SubPathMount};
    use std::fs;
    use std::os::unix::fs::symlink;

    struct Bench {
        mounts: Mounts,
        temp: tempfile::TempDir,
        pod: PathBuf,
    }

    fn bench() -> Bench {
        let temp = tempfile::tempdir().unwrap();
        let pod = temp.path().join("pods/uid");
        fs::create_dir_all(pod.join("volumes")).unwrap();
        fs::create_dir(temp.path().join("outside")).unwrap();
        fs::write(temp.path().join("outside/precious"), "x").unwrap();
        Bench { mounts: Mounts::below(temp.path()), temp, pod }
    }

    impl Bench {
        fn empty_dir(&self, name: &str, medium: EmptyDirMedium) -> PathBuf {
            let path = self.pod.join("volumes/kubernetes.io~empty-dir").join(name);
            let marker = self.pod.join("plugins/kubernetes.io~empty-dir").join(name).join("ready");
            empty_dir::set_up(&path, &marker, &medium, None).unwrap();
            path
        }
        fn sub_path(&self, volume: &Path, index: u32) -> PathBuf {
            let target = self.pod.join(format!("volume-subpaths/v/c/{index}"));
            let mount = SubPathMount {
                volume_path: volume.to_str().unwrap().into(),
                sub_path: "sub/path".into(),
                target: target.to_str().unwrap().into(),
                mount_name: "v".into(),
                container: "c".into(),
                create: true,
                read_only: false,
            };
            sub_path::prepare(&mount, &target).unwrap();
            target
        }
        fn precious(&self) -> bool {
            self.temp.path().join("outside/precious").exists()
        }
    }

    #[test]
    fn a_pod_with_every_kind_of_volume_goes_without_a_trace() {
        let b = bench();
        let disk = b.empty_dir("disk", EmptyDirMedium::Disk);
        let memory = b.empty_dir("memory", EmptyDirMedium::Memory { size_bytes: None });
        fs::write(memory.join("x"), "x").unwrap();
        fs::create_dir_all(disk.join("a/b")).unwrap();
        symlink(b.temp.path().join("outside"), disk.join("a/link")).unwrap();
        let target = b.sub_path(&disk, 0);
        b.sub_path(&memory, 1);
        bind(&target, &target);
        assert_eq!(b.mounts.count(), 4);
        let error = remove_pod_dir(&b.pod).unwrap_err();
        assert!(matches!(error, FilesError::Mounted { .. }), "{error:?}");
        assert!(disk.join("a/b").exists(), "refused before anything is removed");

        tear_down_volumes(&b.pod).unwrap();
        assert_eq!(b.mounts.count(), 0);
        assert!(!disk.exists() && !memory.exists() && !b.pod.join("volume-subpaths").exists());
        assert!(!b.pod.join("plugins/kubernetes.io~empty-dir/disk").exists());
        tear_down_volumes(&b.pod).unwrap();
        fs::create_dir_all(b.pod.join("containers/c")).unwrap();
        fs::write(b.pod.join("containers/c/1234"), "x").unwrap();
        remove_pod_dir(&b.pod).unwrap();
        assert!(!b.pod.exists() && b.precious());
        remove_pod_dir(&b.pod).unwrap();
        tear_down_volumes(&b.pod).unwrap();
    }

    #[test]
    fn a_foreign_mount_in_a_volume_is_kept_with_its_content() {
        let b = bench();
        let disk = b.empty_dir("disk", EmptyDirMedium::Disk);
        let other = b.empty_dir("other", EmptyDirMedium::Disk);
        fs::create_dir(disk.join("mounted")).unwrap();
        fs::write(disk.join("mine"), "x").unwrap();
        bind(&b.temp.path().join("outside"), &disk.join("mounted"));
        let error = tear_down_volumes(&b.pod).unwrap_err();
        assert!(matches!(&error, FilesError::Mounted { path } if path.ends_with("mounted")), "{error:?}");
        assert!(b.precious() && !disk.join("mine").exists() && !other.exists());
        assert!(matches!(remove_pod_dir(&b.pod), Err(FilesError::Mounted { .. })));
        assert!(b.precious() && disk.exists());

        rustix::mount::unmount(disk.join("mounted"), UnmountFlags::NOFOLLOW).unwrap();
        tear_down_volumes(&b.pod).unwrap();
        remove_pod_dir(&b.pod).unwrap();
        assert!(!b.pod.exists() && b.precious());
    }

    #[test]
    fn a_foreign_mount_on_the_volume_itself_is_kept() {
        let b = bench();
        let disk = b.empty_dir("disk", EmptyDirMedium::Disk);
        bind(&b.temp.path().join("outside"), &disk);
        assert!(matches!(tear_down_volumes(&b.pod), Err(FilesError::Mounted { .. })));
        assert!(b.precious());
    }

    #[test]
    fn a_pod_directory_that_is_a_link_is_only_a_link() {
        let b = bench();
        let link = b.temp.path().join("pods/link");
        symlink(b.temp.path().join("outside"), &link).unwrap();
        remove_pod_dir(&link).unwrap();
        assert!(b.precious() && !link.is_symlink());
    }

    #[test]
    fn volumes_of_others_that_hold_data_are_kept() {
        let b = bench();
        let volume = b.pod.join("volumes/example.com~disk/data");
        fs::create_dir_all(&volume).unwrap();
        fs::write(volume.join("x"), "x").unwrap();
        tear_down_volumes(&b.pod).unwrap();
        let error = remove_pod_dir(&b.pod).unwrap_err();
        assert!(error.user_message().contains("not empty"), "{}", error.user_message());
        assert!(volume.join("x").exists());
        fs::remove_file(volume.join("x")).unwrap();
        remove_pod_dir(&b.pod).unwrap();
        assert!(!b.pod.exists());
    }

    #[test]
    fn a_busy_sub_path_is_told_and_works_later() {
        let b = bench();
        let disk = b.empty_dir("disk", EmptyDirMedium::Disk);
        let target = b.sub_path(&disk, 0);
        let held = fs::File::create(target.join("held")).unwrap();
        let error = tear_down_volumes(&b.pod).unwrap_err();
        assert!(error.to_string().starts_with("unmount "), "{error:?}");
        drop(held);
        tear_down_volumes(&b.pod).unwrap();
        assert_eq!(b.mounts.count(), 0);
    }
}
