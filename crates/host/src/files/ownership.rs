//! fsGroup: a volume's files are made the group's, and writable for it.

use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ports::FilesError;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags};
use rustix::io::Errno;

use super::layout::failed;
use super::tree::open_same_mount;

/// What the group may do with the files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    ReadWrite,
    /// Containers can't write there anyway.
    ReadOnly,
}

impl Access {
    fn bits(self) -> u32 {
        match self {
            Access::ReadWrite => 0o660,
            Access::ReadOnly => 0o440,
        }
    }
}

const SETGID_AND_SEARCH: u32 = 0o2110;
/// A new emptyDir is empty; this only bounds what a broken one can make us hold open.
const MAX_DEPTH: usize = 256;

/// Depth first, the volume's root last, so that an interrupted run is not taken for a finished one.
/// Single files that can't be changed are logged, as in the reference: the volume stays usable.
pub fn apply(path: &Path, group: i64, access: Access) -> Result<(), FilesError> {
    let group = u32::try_from(group)
        .map_err(|_| FilesError::Refused { message: format!("fsGroup {group} is not a group id") })?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(failed("open", path))?;
    let to = Change { group: Gid::from_raw(group), bits: access.bits() };
    apply_to_dir(&dir, &mut path.to_path_buf(), to, 0);
    Ok(())
}

#[derive(Clone, Copy)]
struct Change {
    group: Gid,
    bits: u32,
}

fn apply_to_dir(dir: &OwnedFd, path: &mut PathBuf, to: Change, depth: usize) {
    if let Err(errno) = apply_to_entries(dir, path, to, depth) {
        warn(path, errno);
    }
    let change = rustix::fs::fchown(dir, None, Some(to.group))
        .and_then(|()| rustix::fs::fstat(dir))
        .and_then(|stat| rustix::fs::fchmod(dir, widened(stat.st_mode, to.bits | SETGID_AND_SEARCH)));
    if let Err(errno) = change {
        warn(path, errno);
    }
}

fn apply_to_entries(dir: &OwnedFd, path: &mut PathBuf, to: Change, depth: usize) -> Result<(), Errno> {
    if depth >= MAX_DEPTH {
        return Err(Errno::NAMETOOLONG);
    }
    let mut entries = Dir::read_from(dir)?;
    while let Some(entry) = entries.read() {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        path.push(OsStr::from_bytes(name.to_bytes()));
        let result = match open_same_mount(dir.as_fd(), name) {
            Ok(inner) => {
                apply_to_dir(&inner, path, to, depth + 1);
                Ok(())
            }
            Err(Errno::NOTDIR | Errno::LOOP) => apply_to_file(dir.as_fd(), name, to),
            Err(errno) => Err(errno),
        };
        if let Err(errno) = result {
            warn(path, errno);
        }
        path.pop();
    }
    Ok(())
}

/// Through a descriptor that names the file itself: it can't become a symlink in between.
fn apply_to_file(dir: BorrowedFd<'_>, name: &CStr, to: Change) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, name, flags, Mode::empty())?;
    rustix::fs::chownat(&file, c"", None, Some(to.group), AtFlags::EMPTY_PATH)?;
    let stat = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
        return Ok(());
    }
    let itself = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(|_| Errno::INVAL)?;
    rustix::fs::chmod(itself, widened(stat.st_mode, to.bits))
}

fn widened(mode: u32, by: u32) -> Mode {
    Mode::from_raw_mode((mode & 0o7777) | by)
}

fn warn(path: &Path, errno: Errno) {
    tracing::warn!(path = %path.display(), error = %errno, "could not give the file to fsGroup");
}
