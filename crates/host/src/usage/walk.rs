//! Measures the size of a tree of files with [`crate::walk`]. Filesystems and files that are mounted into the tree are
//! not counted; a file with several hard links counts once.

use std::collections::HashSet;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use ports::TreeFigures;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Statx, StatxAttributes};
use rustix::io::Errno;

use crate::walk::{Identity, Visitor, identity, statx_nofollow, walk};

const BLOCK: u64 = 512;
/// At most this many files with several hard links are remembered. Beyond that each link counts with its share of the
/// file, so that a million of them take no more memory.
const MAX_LINKED: usize = 1 << 18;

pub(super) fn measure(top: &Path, stop: &AtomicBool) -> io::Result<TreeFigures> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::open(top, flags, Mode::empty())?;
    let counted = count(dir.as_fd(), &|| stop.load(Ordering::Relaxed));
    match counted.trouble {
        None => Ok(counted.figures),
        Some(Errno::CANCELED) => Err(io::ErrorKind::Interrupted.into()),
        Some(Errno::STALE) => {
            Err(io::Error::other(format!("{} changed while it was measured", top.display())))
        }
        Some(errno) => Err(errno.into()),
    }
}

/// The result, and the first error that left a part uncounted.
pub(crate) struct Counted {
    pub figures: TreeFigures,
    /// `CANCELED`: the caller is gone; `STALE`: a directory was moved during the walk; `NAMETOOLONG`: parts are nested
    /// too deep to be read.
    pub trouble: Option<Errno>,
}

/// Counts a directory with its content. `is_left` is called at each entry.
pub(crate) fn count(top: BorrowedFd<'_>, is_left: &dyn Fn() -> bool) -> Counted {
    let mut counter = Counter {
        counted: Counted { figures: TreeFigures::default(), trouble: None },
        linked: HashSet::new(),
        is_cancelled: is_left,
    };
    let result = statx_nofollow(top, c"", AtFlags::EMPTY_PATH).and_then(|found| {
        counter.add(&found);
        walk(top, &mut counter)
    });
    let mut counted = counter.counted;
    counted.trouble = result.err().or(counted.trouble);
    counted
}

struct Counter<'a> {
    counted: Counted,
    linked: HashSet<Identity>,
    is_cancelled: &'a dyn Fn() -> bool,
}

impl Counter<'_> {
    /// The server of the volume reports the file size and may report anything.
    fn add_bytes(&mut self, bytes: u64) {
        self.counted.figures.bytes = self.counted.figures.bytes.saturating_add(bytes);
    }

    fn add(&mut self, found: &Statx) {
        self.add_bytes(found.stx_blocks.saturating_mul(BLOCK));
        self.counted.figures.inodes += 1;
    }

    fn add_linked(&mut self, found: &Statx) {
        if self.linked.len() >= MAX_LINKED && !self.linked.contains(&identity(found)) {
            self.add_bytes(found.stx_blocks.saturating_mul(BLOCK) / u64::from(found.stx_nlink.max(1)));
        } else if self.linked.insert(identity(found)) {
            self.add(found);
        }
    }

    fn note(&mut self, errno: Errno) {
        // Removed, no longer a directory, a mount point, or not readable for us.
        if !matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::ACCESS) {
            self.counted.trouble.get_or_insert(errno);
        }
    }
}

impl Visitor for Counter<'_> {
    fn entry(&mut self, dir: BorrowedFd<'_>, name: &CStr, _: FileType) -> Result<bool, Errno> {
        if (self.is_cancelled)() {
            return Err(Errno::CANCELED);
        }
        let found = match statx_nofollow(dir, name, AtFlags::empty()) {
            Ok(found) => found,
            Err(errno) => {
                self.note(errno);
                return Ok(false);
            }
        };
        if found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
            return Ok(false);
        }
        let directory = FileType::from_raw_mode(found.stx_mode.into()) == FileType::Directory;
        if directory || found.stx_nlink < 2 {
            self.add(&found);
        } else {
            self.add_linked(&found);
        }
        Ok(directory)
    }

    fn not_entered(&mut self, _: BorrowedFd<'_>, _: &CStr, errno: Errno) -> Result<(), Errno> {
        self.note(errno);
        Ok(())
    }

    fn unreadable(&mut self, _: BorrowedFd<'_>, errno: Errno) -> Result<(), Errno> {
        self.note(errno);
        Ok(())
    }

    fn leave(&mut self, _: BorrowedFd<'_>, _: usize) -> Result<(), Errno> {
        Ok(())
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
