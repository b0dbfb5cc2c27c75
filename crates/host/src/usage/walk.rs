//! How much a tree of files takes. Containers write such trees, so the walk
//! - opens every directory through its parent's descriptor, and never through a symlink;
//! - counts nothing that is mounted into the tree, neither a filesystem nor a file;
//! - holds at most [`MAX_OPEN`] descriptors: on the way back it goes through `..`, and only to the directory that it
//!   came from;
//! - ends soon after it is told to.

use std::collections::HashSet;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use ports::TreeFigures;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Statx, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use crate::files::open_same_mount;

const MAX_OPEN: usize = 32;
const BLOCK: u64 = 512;

/// Device and inode.
type Identity = (u32, u32, u64);

/// A directory on the way down to the one that is looked at.
struct Level {
    dir: Option<OwnedFd>,
    is: Identity,
    /// Directories in it that are still to be looked at.
    left: Vec<CString>,
}

pub(super) fn measure(top: &Path, stop: &AtomicBool) -> io::Result<TreeFigures> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::open(top, flags, Mode::empty())?;
    let mut walk = Walk { figures: TreeFigures::default(), linked: HashSet::new(), stop };
    walk.count(&look(&dir, c"", AtFlags::EMPTY_PATH)?);
    let mut levels = vec![walk.enter(dir)?];
    while let Some(level) = levels.last_mut() {
        let Some(name) = level.left.pop() else {
            climb(&mut levels)?;
            continue;
        };
        let Some(dir) = &level.dir else { return Err(moved(top)) };
        match open_same_mount(dir.as_fd(), &name) {
            Ok(dir) => levels.push(walk.enter(dir)?),
            // Gone, no directory any more, a mount point, or not ours to read.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::ACCESS) => continue,
            Err(errno) => return Err(errno.into()),
        }
        if let Some(far) = levels.len().checked_sub(MAX_OPEN + 1) {
            levels[far].dir = None;
        }
    }
    Ok(walk.figures)
}

/// Leaves the lowest level. The one above may have been closed: it is opened again from below.
fn climb(levels: &mut Vec<Level>) -> io::Result<()> {
    let below = levels.pop().and_then(|level| level.dir);
    let (Some(above), Some(below)) = (levels.last_mut(), below) else { return Ok(()) };
    if above.dir.is_none() {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(&below, c"..", flags, Mode::empty())?;
        if identity(&look(&dir, c"", AtFlags::EMPTY_PATH)?) == above.is {
            above.dir = Some(dir);
        } else {
            above.left.clear();
            return Err(io::Error::other("a directory was moved away while it was measured"));
        }
    }
    Ok(())
}

fn moved(top: &Path) -> io::Error {
    io::Error::other(format!("{} changed while it was measured", top.display()))
}

fn look(dir: &OwnedFd, name: &std::ffi::CStr, more: AtFlags) -> rustix::io::Result<Statx> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | more;
    rustix::fs::statx(dir, name, flags, StatxFlags::BASIC_STATS)
}

fn identity(found: &Statx) -> Identity {
    (found.stx_dev_major, found.stx_dev_minor, found.stx_ino)
}

struct Walk<'a> {
    figures: TreeFigures,
    /// Files with several names, which are counted once.
    linked: HashSet<Identity>,
    stop: &'a AtomicBool,
}

impl Walk<'_> {
    fn count(&mut self, found: &Statx) {
        self.figures.bytes += found.stx_blocks * BLOCK;
        self.figures.inodes += 1;
    }

    /// Counts what is in a directory.
    fn enter(&mut self, dir: OwnedFd) -> io::Result<Level> {
        let is = identity(&look(&dir, c"", AtFlags::EMPTY_PATH)?);
        let mut left = Vec::new();
        let mut entries = Dir::read_from(&dir)?;
        while let Some(entry) = entries.read() {
            if self.stop.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let found = match look(&dir, name, AtFlags::empty()) {
                Ok(found) => found,
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(errno.into()),
            };
            if found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
                continue;
            }
            let directory = FileType::from_raw_mode(found.stx_mode.into()) == FileType::Directory;
            if directory {
                left.push(name.to_owned());
            } else if found.stx_nlink > 1 && !self.linked.insert(identity(&found)) {
                continue;
            }
            self.count(&found);
        }
        Ok(Level { dir: Some(dir), is, left })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::testing::{Mounts, bind, tmpfs};
    use std::fs;
    use std::os::unix::fs::symlink;

    fn measured(top: &Path) -> TreeFigures {
        measure(top, &AtomicBool::new(false)).unwrap()
    }

    #[test]
    fn counts_what_is_there_once() {
        let temp = tempfile::tempdir().unwrap();
        let tree = temp.path().join("tree");
        fs::create_dir_all(tree.join("a/b")).unwrap();
        let empty = measured(&tree);
        assert_eq!(empty.inodes, 3);
        fs::write(tree.join("a/file"), vec![1; 100_000]).unwrap();
        fs::hard_link(tree.join("a/file"), tree.join("a/b/again")).unwrap();
        symlink("/", tree.join("a/everything")).unwrap();
        let full = measured(&tree);
        assert_eq!(full.inodes, 5);
        let grown = full.bytes - empty.bytes;
        assert!((100_000..150_000).contains(&grown), "{grown}");
    }

    #[test]
    fn goes_deeper_than_it_holds_descriptors() {
        let temp = tempfile::tempdir().unwrap();
        let mut dir = temp.path().join("tree");
        for _ in 0..(MAX_OPEN * 3) {
            fs::create_dir_all(dir.join("side")).unwrap();
            dir.push("deep");
        }
        fs::create_dir(&dir).unwrap();
        assert_eq!(measured(&temp.path().join("tree")).inodes, (MAX_OPEN * 3 * 2 + 1) as u64);
    }

    #[test]
    fn counts_nothing_that_is_mounted_into_the_tree() {
        let temp = tempfile::tempdir().unwrap();
        let _mounts = Mounts::below(temp.path());
        let (tree, outside) = (temp.path().join("tree"), temp.path().join("outside"));
        for dir in ["bind", "tmpfs"] {
            fs::create_dir_all(tree.join(dir)).unwrap();
        }
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("big"), vec![1; 100_000]).unwrap();
        fs::write(tree.join("bound"), "").unwrap();
        let before = measured(&tree);
        bind(&outside, &tree.join("bind"));
        bind(&outside.join("big"), &tree.join("bound"));
        tmpfs(&tree.join("tmpfs"));
        let after = measured(&tree);
        assert_eq!(after.inodes, before.inodes - 3);
        assert!(after.bytes <= before.bytes, "{before:?} {after:?}");
        // The top itself may be a mount: most volumes in memory are.
        fs::write(tree.join("tmpfs/file"), vec![1; 5000]).unwrap();
        assert_eq!(measured(&tree.join("tmpfs")), TreeFigures { bytes: 8192, inodes: 2 });
    }

    #[test]
    fn ends_when_told_to_and_refuses_a_link_at_the_top() {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join("file"), "").unwrap();
        let stopped = measure(temp.path(), &AtomicBool::new(true)).unwrap_err();
        assert_eq!(stopped.kind(), io::ErrorKind::Interrupted);
        symlink("/", temp.path().join("link")).unwrap();
        assert!(measure(&temp.path().join("link"), &AtomicBool::new(false)).is_err());
    }
}
