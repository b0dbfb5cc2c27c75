//! How much of the disk a tree takes.
//!
//! Containers write these trees while they are measured: directories are opened through their parents, never through a
//! symlink and never onto another mount; what vanishes is not counted; a file with several names counts once.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ports::FilesError;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::layout::failed;
use super::ownership::open_far;
use super::steps::step;

/// `st_blocks` are of this size, whatever the filesystem's are.
const BLOCK: u64 = 512;

/// Bytes of a directory with all in it, or of a file. Nothing there is nothing.
pub fn measure(path: &Path) -> Result<u64, FilesError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let root = match rustix::fs::openat(CWD, path, flags, Mode::empty()) {
        Ok(root) => root,
        Err(Errno::NOENT) => return Ok(0),
        Err(errno) => return Err(failed("measure", path)(errno)),
    };
    let stat = rustix::fs::fstat(&root).map_err(failed("measure", path))?;
    let mut count = Count { bytes: 0, seen: BTreeSet::new() };
    count.add(&stat);
    if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
        let mut stack = Vec::new();
        count.directory(&root, Path::new(""), &mut stack);
        while let Some(inner) = stack.pop() {
            step("measure a directory");
            // A mount point, or gone meanwhile: not ours to count.
            if let Ok(dir) = open_far(root.as_fd(), &inner) {
                count.directory(&dir, &inner, &mut stack);
            }
        }
    }
    Ok(count.bytes)
}

struct Count {
    bytes: u64,
    /// Files with more than one name.
    seen: BTreeSet<(u64, u64)>,
}

impl Count {
    fn add(&mut self, stat: &Stat) {
        let directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if directory || stat.st_nlink < 2 || self.seen.insert((stat.st_dev, stat.st_ino)) {
            self.bytes += u64::try_from(stat.st_blocks).unwrap_or(0) * BLOCK;
        }
    }

    fn directory(&mut self, dir: &OwnedFd, inner: &Path, stack: &mut Vec<PathBuf>) {
        let Ok(entries) = Dir::read_from(dir) else { return };
        let own = rustix::fs::fstat(dir).map(|stat| stat.st_dev);
        for entry in entries.flatten() {
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let Ok(stat) = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            if own != Ok(stat.st_dev) {
                continue;
            }
            self.add(&stat);
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                stack.push(inner.join(std::ffi::OsStr::from_bytes(name.to_bytes())));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::testing::{Mounts, bind, tmpfs};
    use std::fs;
    use std::os::unix::fs::symlink;

    fn blocks(bytes: u64) -> std::ops::Range<u64> {
        // Directories and the filesystem's own blocks come on top.
        bytes..bytes + 64 * 1024
    }

    #[test]
    fn counts_what_is_on_the_disk_once() {
        let temp = tempfile::tempdir().unwrap();
        let _mounts = Mounts::below(temp.path());
        let volume = temp.path().join("volume");
        let outside = temp.path().join("outside");
        fs::create_dir_all(volume.join("a/b")).unwrap();
        fs::create_dir(&outside).unwrap();
        let megabyte = vec![1; 1 << 20];
        fs::write(volume.join("a/b/file"), &megabyte).unwrap();
        fs::hard_link(volume.join("a/b/file"), volume.join("a/again")).unwrap();
        fs::write(outside.join("big"), &megabyte).unwrap();
        symlink(&outside, volume.join("a/link")).unwrap();
        symlink("../../outside/big", volume.join("a/link-to-file")).unwrap();
        for name in ["bound", "tmpfs"] {
            fs::create_dir(volume.join(name)).unwrap();
        }
        bind(&outside, &volume.join("bound"));
        tmpfs(&volume.join("tmpfs"));
        fs::write(volume.join("tmpfs/big"), &megabyte).unwrap();
        let bytes = measure(&volume).unwrap();
        assert!(blocks(1 << 20).contains(&bytes), "{bytes}");

        // A file with a hole takes what was written.
        let sparse = fs::File::create(volume.join("sparse")).unwrap();
        sparse.set_len(1 << 30).unwrap();
        assert!(measure(&volume).unwrap() < 2 << 20);
        assert_eq!(measure(&temp.path().join("none")).unwrap(), 0);
        assert!(measure(&volume.join("a/link")).is_err(), "a link is not followed");
    }

    /// CVE-2020-8557: the hosts file is mounted into containers, which may fill the node's disk by it.
    #[test]
    fn a_hosts_file_that_grows_is_seen_to_grow() {
        let temp = tempfile::tempdir().unwrap();
        let hosts = temp.path().join("etc-hosts");
        fs::write(&hosts, "127.0.0.1 localhost\n").unwrap();
        let before = measure(&hosts).unwrap();
        fs::write(&hosts, vec![b'x'; 3 << 20]).unwrap();
        let after = measure(&hosts).unwrap();
        assert!(before < 64 * 1024 && blocks(3 << 20).contains(&after), "{before} {after}");
    }
}
