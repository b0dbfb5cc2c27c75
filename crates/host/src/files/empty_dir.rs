//! emptyDir volumes: a directory, a tmpfs or a hugetlbfs.

use std::ffi::CString;
use std::path::Path;

use model::volume::EmptyDirMedium;
use ports::FilesError;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;

use super::fs_group::{self, GroupAccess};
use super::layout::{failed, make_dirs};
use super::steps::step;
use crate::mountinfo::MountTable;
use crate::quota::ProjectQuotas;

/// Idempotent: a volume that is marked ready (and mounted, if it is a mount) is not changed, since containers may be
/// using it. After a reboot the marker exists but the mount does not.
pub fn set_up(
    path: &Path,
    ready_marker: &Path,
    medium: &EmptyDirMedium,
    fs_group: Option<i64>,
) -> Result<(), FilesError> {
    let in_memory = *medium != EmptyDirMedium::Disk;
    let mounted = in_memory && is_mounted(path)?;
    let there = if in_memory { mounted } else { path.symlink_metadata().is_ok_and(|meta| meta.is_dir()) };
    if there && ready_marker.exists() {
        return Ok(());
    }
    make_volume_dir(path)?;
    if !mounted {
        open_to_all(path)?;
        match medium {
            EmptyDirMedium::Disk => {}
            EmptyDirMedium::Memory { size_bytes } => mount_tmpfs(path, *size_bytes)?,
            EmptyDirMedium::HugePages { page_size_bytes, size_bytes } => {
                mount_hugetlbfs(path, *page_size_bytes, *size_bytes)?;
            }
        }
    }
    if matches!(medium, EmptyDirMedium::HugePages { .. }) {
        // The root of a hugetlbfs is not world-writable at first, unlike a tmpfs's. This also covers an agent that was
        // killed between the mount and this call.
        open_to_all(path)?;
    }
    if let Some(group) = fs_group {
        fs_group::apply_fs_group(path, group, GroupAccess::ReadWrite)?;
    }
    mark_ready(ready_marker)
}

/// Comes before the set-up, because what is in the volume already would not be counted. Without a quota the volume works
/// all the same: its files are counted one by one.
pub fn assign_quota(path: &Path, ready_marker: &Path, quotas: &ProjectQuotas) -> Result<(), FilesError> {
    if ready_marker.exists() && path.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
        return Ok(());
    }
    make_volume_dir(path)?;
    if let Err(error) = quotas.assign(path) {
        tracing::warn!(volume = %path.display(), %error, "the volume gets no project quota, so its files will be counted");
    }
    Ok(())
}

fn make_volume_dir(path: &Path) -> Result<(), FilesError> {
    if let Some(plugin_dir) = path.parent() {
        make_dirs(plugin_dir, 0o755)?;
    }
    make_dirs(path, 0o777)
}

pub(super) fn is_mounted(path: &Path) -> Result<bool, FilesError> {
    match path.canonicalize() {
        Ok(real) => {
            let table = MountTable::read().map_err(failed("read", Path::new("/proc/self/mountinfo")))?;
            Ok(table.at(&real).is_some())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed("resolve", path)(error)),
    }
}

pub(super) fn open_to_all(path: &Path) -> Result<(), FilesError> {
    step("open to all");
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
        .and_then(|dir| rustix::fs::fchmod(dir, Mode::from_raw_mode(0o777)))
        .map_err(failed("set the mode of", path))
}

pub(super) fn mount_tmpfs(path: &Path, size: Option<u64>) -> Result<(), FilesError> {
    let size: Vec<String> = size.iter().map(|bytes| format!("size={bytes}")).collect();
    let mut no_swap = size.clone();
    no_swap.push("noswap".into());
    // Kernels before 6.4 do not know noswap, and user namespaces may not use it.
    match mount("tmpfs", path, "tmpfs", &no_swap) {
        Err(Errno::INVAL | Errno::PERM) => mount("tmpfs", path, "tmpfs", &size),
        other => other,
    }
    .map_err(failed("mount tmpfs on", path))
}

fn mount_hugetlbfs(path: &Path, page_size: u64, size: u64) -> Result<(), FilesError> {
    let mut options = vec![format!("pagesize={page_size}")];
    if size > 0 {
        options.push(format!("size={}", size.next_multiple_of(page_size.max(1))));
    }
    mount("nodev", path, "hugetlbfs", &options).map_err(failed("mount hugetlbfs on", path))
}

fn mount(source: &str, path: &Path, fs_type: &str, options: &[String]) -> Result<(), Errno> {
    let options = CString::new(options.join(",")).map_err(|_| Errno::INVAL)?;
    step("mount");
    rustix::mount::mount(source, path, fs_type, MountFlags::empty(), options.as_c_str())
}

fn mark_ready(marker: &Path) -> Result<(), FilesError> {
    if let Some(dir) = marker.parent() {
        make_dirs(dir, 0o750)?;
    }
    step("mark as ready");
    std::fs::write(marker, "").map_err(failed("write", marker))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::testing::Mounts;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::path::PathBuf;

    struct Volume {
        temp: tempfile::TempDir,
        path: PathBuf,
        marker: PathBuf,
    }

    fn volume() -> Volume {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("volumes/kubernetes.io~empty-dir/v");
        let marker = temp.path().join("plugins/kubernetes.io~empty-dir/v/ready");
        Volume { temp, path, marker }
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn on_disk_is_open_to_all_and_made_once() {
        let v = volume();
        set_up(&v.path, &v.marker, &EmptyDirMedium::Disk, None).unwrap();
        assert_eq!(mode(&v.path), 0o777);
        assert!(v.marker.exists());
        fs::set_permissions(&v.path, fs::Permissions::from_mode(0o700)).unwrap();
        set_up(&v.path, &v.marker, &EmptyDirMedium::Disk, Some(7)).unwrap();
        assert_eq!(mode(&v.path), 0o700, "a ready volume is the containers'");
        fs::remove_dir(&v.path).unwrap();
        set_up(&v.path, &v.marker, &EmptyDirMedium::Disk, None).unwrap();
        assert_eq!(mode(&v.path), 0o777, "a marker alone is not a volume");
    }

    #[test]
    fn a_group_owns_what_it_shall() {
        let v = volume();
        fs::create_dir_all(v.path.join("dir")).unwrap();
        fs::write(v.path.join("dir/file"), "").unwrap();
        fs::set_permissions(v.path.join("dir/file"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(v.temp.path().join("outside"), "").unwrap();
        fs::set_permissions(v.temp.path().join("outside"), fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(v.temp.path().join("outside"), v.path.join("link")).unwrap();
        set_up(&v.path, &v.marker, &EmptyDirMedium::Disk, Some(4711)).unwrap();
        let of = |path: &Path| (path.metadata().unwrap().gid(), mode(path));
        assert_eq!(of(&v.path), (4711, 0o2777));
        assert_eq!(of(&v.path.join("dir")), (4711, 0o2775));
        assert_eq!(of(&v.path.join("dir/file")), (4711, 0o660));
        assert_eq!(v.path.join("link").symlink_metadata().unwrap().gid(), 4711);
        assert_eq!(of(&v.temp.path().join("outside")), (0, 0o600), "a link's target is not touched");
    }

    #[test]
    fn in_memory_is_a_tmpfs_of_that_size_and_comes_back_after_a_reboot() {
        let v = volume();
        let mounts = Mounts::below(v.temp.path());
        let medium = EmptyDirMedium::Memory { size_bytes: Some(1 << 20) };
        set_up(&v.path, &v.marker, &medium, Some(9)).unwrap();
        set_up(&v.path, &v.marker, &medium, Some(9)).unwrap();
        assert_eq!(mounts.count(), 1);
        let real = v.path.canonicalize().unwrap();
        assert_eq!(MountTable::read().unwrap().at(&real).unwrap().fs_type, "tmpfs");
        let info = rustix::fs::statvfs(&v.path).unwrap();
        assert_eq!(info.f_blocks * info.f_frsize, 1 << 20);
        assert_eq!((v.path.metadata().unwrap().gid(), mode(&v.path) & 0o2777), (9, 0o2777));
        let options = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line = options.lines().find(|line| line.contains(real.to_str().unwrap())).unwrap();
        assert!(line.contains("noswap"), "{line}");

        fs::write(v.path.join("x"), "x").unwrap();
        rustix::mount::unmount(&v.path, rustix::mount::UnmountFlags::NOFOLLOW).unwrap();
        set_up(&v.path, &v.marker, &medium, None).unwrap();
        assert_eq!(mounts.count(), 1);
        assert!(!v.path.join("x").exists());
    }

    #[test]
    fn huge_pages_mount_a_hugetlbfs_or_say_why_not() {
        let v = volume();
        let _mounts = Mounts::below(v.temp.path());
        let medium = EmptyDirMedium::HugePages { page_size_bytes: 2 << 20, size_bytes: 3 << 20 };
        let known = fs::read_to_string("/proc/filesystems").unwrap().contains("hugetlbfs");
        let pages = Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB").exists();
        match set_up(&v.path, &v.marker, &medium, None) {
            Ok(()) => {
                let table = MountTable::read().unwrap();
                assert_eq!(table.at(&v.path.canonicalize().unwrap()).unwrap().fs_type, "hugetlbfs");
                assert_eq!(mode(&v.path), 0o777);
            }
            Err(error) => {
                assert!(!known || !pages, "{}", error.user_message());
                assert!(error.to_string().starts_with("mount hugetlbfs on /"));
                assert!(!v.marker.exists());
            }
        }
        let odd = EmptyDirMedium::HugePages { page_size_bytes: 12345, size_bytes: 0 };
        let v = volume();
        assert!(set_up(&v.path, &v.marker, &odd, None).is_err());
    }
}
