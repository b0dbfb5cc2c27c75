//! Removes trees that containers wrote to.
//!
//! A container may leave a symlink to `/`, a bind mount of the node's disk (through a shared mount), a
//! million files in one directory or a hundred thousand nested directories. So the walk
//! - opens every directory through its parent's descriptor, and never through a symlink;
//! - never enters a mount point: neither another filesystem nor a bind mount of the same one;
//! - continues after what it can't remove, and returns the first such error;
//! - holds at most [`MAX_DEPTH`] descriptors: deeper directories are moved up and removed from there.

use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ports::FilesError;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::confined_open::open_subdir_on_same_mount;
use super::layout::failed;
use super::steps::step;

const MAX_DEPTH: usize = 64;

/// Removes `path` and everything below it. Succeeds if it does not exist.
pub fn remove_tree(path: &Path) -> Result<(), FilesError> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(failed("remove", path)(Errno::INVAL));
    };
    let parent_fd = match open_anchor(parent) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(failed("open", parent)(errno)),
    };
    let mut removal = Removal { hoisted: 0, top: None, first_error: None };
    removal.remove_top(parent_fd.as_fd(), name, path);
    removal.first_error.map_or(Ok(()), Err)
}

/// Opens the directory to start from. Its own path is trusted.
fn open_anchor(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

struct Removal {
    /// Where directories that are nested too deep are moved to.
    top: Option<OwnedFd>,
    hoisted: u64,
    first_error: Option<FilesError>,
}

impl Removal {
    fn remove_top(&mut self, parent: BorrowedFd<'_>, name: &OsStr, path: &Path) {
        let Ok(name) = std::ffi::CString::new(name.as_bytes()) else {
            return self.note(path, Errno::INVAL);
        };
        self.remove(parent, &name, FileType::Unknown, &mut path.to_path_buf(), 0);
    }

    fn note(&mut self, path: &Path, errno: Errno) {
        let error = match errno {
            // EBUSY: it is a mount point (unlink, rmdir, rename). EXDEV: it is one (open).
            Errno::BUSY | Errno::XDEV => FilesError::Mounted { path: path.display().to_string() },
            errno => failed("remove", path)(errno),
        };
        self.first_error.get_or_insert(error);
    }

    /// Returns true if the entry was removed.
    fn remove(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &CStr,
        kind: FileType,
        path: &mut PathBuf,
        depth: usize,
    ) -> bool {
        step("remove an entry");
        if kind != FileType::Directory {
            match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => return true,
                Err(Errno::ISDIR) => {}
                Err(errno) => {
                    self.note(path, errno);
                    return false;
                }
            }
        }
        match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return true,
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(errno) => {
                self.note(path, errno);
                return false;
            }
        }
        if depth >= MAX_DEPTH {
            return self.move_to_top(parent, name, path);
        }
        match open_subdir_on_same_mount(parent, name) {
            Ok(dir) => self.clear(dir, path, depth),
            Err(Errno::NOENT) => return true,
            Err(errno) => {
                self.note(path, errno);
                return false;
            }
        }
        match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => true,
            Err(errno) => {
                self.note(path, errno);
                false
            }
        }
    }

    /// Removes the content of a directory, in passes until one removes nothing (new entries, moved-up directories).
    fn clear(&mut self, dir: OwnedFd, path: &mut PathBuf, depth: usize) {
        if depth == 0 {
            self.top = dir.try_clone().ok();
        }
        let mut progress = true;
        while progress {
            progress = false;
            let mut entries = match Dir::read_from(&dir) {
                Ok(entries) => entries,
                Err(errno) => return self.note(path, errno),
            };
            while let Some(entry) = entries.read() {
                let entry = match entry {
                    Ok(entry) => entry,
                    Err(errno) => return self.note(path, errno),
                };
                let name = entry.file_name();
                if matches!(name.to_bytes(), b"." | b"..") {
                    continue;
                }
                path.push(OsStr::from_bytes(name.to_bytes()));
                progress |= self.remove(dir.as_fd(), name, entry.file_type(), path, depth + 1);
                path.pop();
            }
        }
    }

    fn move_to_top(&mut self, parent: BorrowedFd<'_>, name: &CStr, path: &Path) -> bool {
        let Some(top) = &self.top else { return false };
        loop {
            self.hoisted += 1;
            let to = format!(".rubelet-removing-{}", self.hoisted);
            match rustix::fs::renameat_with(parent, name, top, to, RenameFlags::NOREPLACE) {
                Ok(()) | Err(Errno::NOENT) => return true,
                Err(Errno::EXIST) => continue,
                Err(errno) => {
                    self.note(path, errno);
                    return false;
                }
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

    #[test]
    fn removes_everything_of_its_own() {
        let temp = tempfile::tempdir().unwrap();
        let tree = temp.path().join("tree");
        fs::create_dir_all(tree.join("a/b/c")).unwrap();
        for number in 0..3000 {
            fs::write(tree.join(format!("a/b/file-{number}")), "x").unwrap();
        }
        symlink("/nowhere", tree.join("dangling")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, tree.join("fifo"), Mode::RWXU).unwrap();
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
        remove_tree(&tree).unwrap();
        remove_tree(&temp.path().join("missing/missing")).unwrap();
        fs::write(&tree, "").unwrap();
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
    }

    #[test]
    fn never_follows_symlinks() {
        let temp = tempfile::tempdir().unwrap();
        let outside = temp.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("precious"), "x").unwrap();
        let tree = temp.path().join("tree");
        fs::create_dir(&tree).unwrap();
        symlink(&outside, tree.join("link")).unwrap();
        symlink("..", tree.join("up")).unwrap();
        remove_tree(&tree).unwrap();
        assert!(outside.join("precious").exists() && !tree.exists());
        symlink(&outside, &tree).unwrap();
        remove_tree(&tree).unwrap();
        assert!(outside.join("precious").exists() && !tree.is_symlink());
    }

    #[test]
    fn never_enters_mounts_even_of_the_same_filesystem() {
        let temp = tempfile::tempdir().unwrap();
        let _mounts = Mounts::below(temp.path());
        let outside = temp.path().join("outside");
        let tree = temp.path().join("tree");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("precious"), "x").unwrap();
        fs::write(temp.path().join("file"), "x").unwrap();
        fs::create_dir_all(tree.join("sub/bind")).unwrap();
        fs::create_dir_all(tree.join("tmpfs")).unwrap();
        fs::write(tree.join("sub/other"), "x").unwrap();
        fs::write(tree.join("bound-file"), "").unwrap();
        bind(&outside, &tree.join("sub/bind"));
        bind(&temp.path().join("file"), &tree.join("bound-file"));
        tmpfs(&tree.join("tmpfs"));
        fs::write(tree.join("tmpfs/kept"), "x").unwrap();

        let error = remove_tree(&tree).unwrap_err();
        assert!(matches!(error, FilesError::Mounted { .. }), "{error:?}");
        assert!(outside.join("precious").exists() && tree.join("tmpfs/kept").exists());
        assert_eq!(fs::read(temp.path().join("file")).unwrap(), b"x");
        assert!(!tree.join("sub/other").exists(), "what is ours goes");

        let error = remove_tree(&tree.join("tmpfs")).unwrap_err();
        assert!(matches!(error, FilesError::Mounted { .. }), "the top itself: {error:?}");
        assert!(tree.join("tmpfs/kept").exists());
    }

    /// The second line of defence: the kernel refuses to remove a mount point in the first place.
    #[test]
    fn directories_are_opened_only_on_their_own_mount() {
        let temp = tempfile::tempdir().unwrap();
        let _mounts = Mounts::below(temp.path());
        for name in ["plain", "bind", "tmpfs", "outside"] {
            fs::create_dir(temp.path().join(name)).unwrap();
        }
        symlink("plain", temp.path().join("link")).unwrap();
        bind(&temp.path().join("outside"), &temp.path().join("bind"));
        tmpfs(&temp.path().join("tmpfs"));
        let base = open_anchor(temp.path()).unwrap();
        let open = |name: &CStr| open_subdir_on_same_mount(base.as_fd(), name).map(drop);
        assert_eq!(open(c"plain"), Ok(()));
        assert_eq!((open(c"bind"), open(c"tmpfs")), (Err(Errno::XDEV), Err(Errno::XDEV)));
        assert!(open(c"link").is_err());
    }

    #[test]
    fn removes_a_nest_deeper_than_descriptors_and_paths_allow() {
        let temp = tempfile::tempdir().unwrap();
        let tree = temp.path().join("tree");
        fs::create_dir(&tree).unwrap();
        let mut dir = open_anchor(&tree).unwrap();
        for _ in 0..1200 {
            rustix::fs::mkdirat(&dir, "deep", Mode::RWXU).unwrap();
            dir = open_subdir_on_same_mount(dir.as_fd(), c"deep").unwrap();
        }
        drop(dir);
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
    }
}
