//! fsGroup: a volume's files are made the group's, and usable for it.
//!
//! ```text
//!   a stack of directories ──(a batch, several threads)──> their files, then themselves; found ones on the stack
//!   ... until it is empty ──> the volume's root, last: an interrupted walk is not taken for a finished one
//! ```
//! A container may have written the tree, and others may be writing it now. So nothing is looked up by a path that could
//! lead out: directories are opened beneath the root's descriptor, through no symlink and onto no other mount; files are
//! changed by descriptors that name them. A thread holds three descriptors, however deep or wide the tree is. What
//! vanishes meanwhile is nobody's loss; single files that can't be changed are logged, as in the reference: the volume
//! stays usable. A walk that nobody waits for any more ends at its next file: the volume may soon be somebody else's.

use std::ffi::{CStr, CString, OsStr};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use model::volume::VolumeNews;
use ports::FilesError;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags};
use rustix::io::Errno;
use tokio::time::Instant;

use super::beneath::{open_on_mount, open_same_mount};
use super::layout::failed;
use super::steps::{Pulse, step};

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
const FIRST_TOLD: Duration = Duration::from_secs(30);
const TOLD_AGAIN: Duration = Duration::from_secs(60);
/// After so many files it is looked how late it is.
const LOOKED_AT_CLOCK: u64 = 64;
/// Directories given to threads at a time; bounds what is on the stack twice.
const BATCH: usize = 1024;
/// More threads than this wait for the disk, not for each other.
const MOST_THREADS: usize = 8;
/// The kernel takes paths below 4096 bytes in one piece.
const PIECE: usize = 2048;

/// Gives everything in the volume to the group.
pub fn apply(path: &Path, group: i64, access: Access) -> Result<(), FilesError> {
    apply_telling(path, group, access, FIRST_TOLD)
}

fn apply_telling(path: &Path, group: i64, access: Access, first: Duration) -> Result<(), FilesError> {
    let group = u32::try_from(group)
        .map_err(|_| FilesError::Refused { message: format!("fsGroup {group} is not a group id") })?;
    let root = open_root(path).map_err(failed("open", path))?;
    let to = Change { group: Gid::from_raw(group), bits: access.bits() };
    walk(&root, path, to, Progress::new(first)).map_err(failed("give to fsGroup what is in", path))
}

fn open_root(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
}

#[derive(Clone, Copy)]
struct Change {
    group: Gid,
    bits: u32,
}

impl Change {
    fn of_directory(self) -> u32 {
        self.bits | SETGID_AND_SEARCH
    }
}

/// Paths on the stack are relative to the volume's root. The root comes last, and only after everything else: it says that the
/// walk was finished.
fn walk(root: &OwnedFd, path: &Path, to: Change, progress: Progress) -> Result<(), Errno> {
    let trouble = AtomicI32::new(0);
    let tree = Tree { root: root.as_fd(), path, to, pulse: Pulse::current(), progress, trouble };
    let mut stack = tree.entries(root, Path::new(""));
    while !stack.is_empty() && !tree.pulse.is_left() {
        let batch = stack.split_off(stack.len().saturating_sub(BATCH));
        stack.extend(tree.batch(&batch));
    }
    tree.finished()?;
    step("give the root to the group");
    tree.directory(root, Path::new(""));
    Ok(())
}

struct Tree<'a> {
    root: BorrowedFd<'a>,
    path: &'a Path,
    to: Change,
    /// Threads that share in the work tell of it as their own would.
    pulse: Pulse,
    progress: Progress,
    /// The first error that is of the machine, not of a file: parts of the volume may not have been seen.
    trouble: AtomicI32,
}

/// When users are told of a walk that takes long: once that it does, then again and again how far it came.
struct Progress {
    begun: Instant,
    files: AtomicU64,
    /// Seconds from the beginning.
    due: AtomicU64,
    first: u64,
}

impl Progress {
    fn new(first: Duration) -> Self {
        let first = first.as_secs();
        Self { begun: Instant::now(), files: AtomicU64::new(0), due: AtomicU64::new(first), first }
    }

    /// One more file. `Some`: it is time to tell, the first time without a number.
    fn file(&self) -> Option<Option<u64>> {
        let files = self.files.fetch_add(1, Ordering::Relaxed) + 1;
        if files.is_multiple_of(LOOKED_AT_CLOCK) {
            self.at(self.begun.elapsed().as_secs(), files)
        } else {
            None
        }
    }

    /// For one of the threads that come at the same time.
    fn at(&self, seconds: u64, files: u64) -> Option<Option<u64>> {
        let due = self.due.load(Ordering::Relaxed);
        let next = seconds + TOLD_AGAIN.as_secs();
        let told = seconds >= due
            && self.due.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        told.then_some((due != self.first).then_some(files))
    }
}

impl Tree<'_> {
    fn beat(&self) {
        self.pulse.step("give it to the group");
        if let Some(files) = self.progress.file() {
            let path = self.path.to_string_lossy().into_owned();
            self.pulse.tell(VolumeNews::ChangingGroup { path, files });
        }
    }

    /// Directories found in those of the batch.
    fn batch(&self, batch: &[PathBuf]) -> Vec<PathBuf> {
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let share = batch.len().div_ceil(cores.min(MOST_THREADS)).max(16);
        let mut shares = batch.chunks(share);
        let own = shares.next().unwrap_or_default();
        std::thread::scope(|scope| {
            let others: Vec<_> = shares.map(|share| scope.spawn(move || self.share(share))).collect();
            let mut found = self.share(own);
            for other in others {
                match other.join() {
                    Ok(more) => found.extend(more),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            found
        })
    }

    fn share(&self, directories: &[PathBuf]) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for inner in directories {
            if self.pulse.is_left() {
                break;
            }
            match open_far(self.root, inner) {
                Ok(dir) => {
                    found.extend(self.entries(&dir, inner));
                    self.directory(&dir, inner);
                }
                Err(errno) => self.warn(inner, errno),
            }
        }
        found
    }

    /// Changes all in the directory but directories, and gives their paths.
    fn entries(&self, dir: &OwnedFd, inner: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut entries = match Dir::read_from(dir) {
            Ok(entries) => entries,
            Err(errno) => {
                self.warn(inner, errno);
                return found;
            }
        };
        while let Some(entry) = entries.read().filter(|_| !self.pulse.is_left()) {
            let entry = match entry {
                Ok(entry) => entry,
                Err(errno) => {
                    self.warn(inner, errno);
                    break;
                }
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let path = || inner.join(OsStr::from_bytes(name.to_bytes()));
            let is_dir = match entry.file_type() {
                FileType::Directory => true,
                FileType::Unknown => open_same_mount(dir.as_fd(), name).is_ok(),
                _ => false,
            };
            if is_dir {
                found.push(path());
            } else if let Err(errno) = self.file(dir.as_fd(), name) {
                self.warn(&path(), errno);
            }
        }
        found
    }

    /// Through a descriptor that names the file itself: it can't become a symlink in between. What is mounted on it
    /// (a file of somebody else) is not touched.
    fn file(&self, dir: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
        self.beat();
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(dir, name, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            // It was a file when the directory was read.
            return Err(Errno::ISDIR);
        }
        if is_mount_point(file.as_fd()) {
            return Err(Errno::XDEV);
        }
        rustix::fs::chownat(&file, c"", None, Some(self.to.group), AtFlags::EMPTY_PATH)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
            return Ok(());
        }
        // The kernel may have taken bits away when the group changed.
        let stat = rustix::fs::fstat(&file)?;
        let itself = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(|_| Errno::INVAL)?;
        rustix::fs::chmod(itself, widened(stat.st_mode, self.to.bits))
    }

    fn directory(&self, dir: &OwnedFd, inner: &Path) {
        self.beat();
        let change = rustix::fs::fchown(dir, None, Some(self.to.group))
            .and_then(|()| rustix::fs::fstat(dir))
            .and_then(|stat| rustix::fs::fchmod(dir, widened(stat.st_mode, self.to.of_directory())));
        if let Err(errno) = change {
            self.warn(inner, errno);
        }
    }

    fn finished(&self) -> Result<(), Errno> {
        if self.pulse.is_left() {
            return Err(Errno::CANCELED);
        }
        match self.trouble.load(Ordering::Relaxed) {
            0 => Ok(()),
            code => Err(Errno::from_raw_os_error(code)),
        }
    }

    fn warn(&self, inner: &Path, errno: Errno) {
        if matches!(errno, Errno::IO | Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::STALE) {
            let _ =
                self.trouble.compare_exchange(0, errno.raw_os_error(), Ordering::Relaxed, Ordering::Relaxed);
        }
        if errno != Errno::NOENT {
            let path = self.path.join(inner);
            tracing::warn!(path = %path.display(), error = %errno, "could not give the file to fsGroup");
        }
    }
}

/// Only mount points have this bit; a kernel that does not tell (before 5.8) is taken to have none on files.
fn is_mount_point(file: BorrowedFd<'_>) -> bool {
    rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, rustix::fs::StatxFlags::empty())
        .is_ok_and(|stat| stat.stx_attributes.contains(rustix::fs::StatxAttributes::MOUNT_ROOT))
}

/// A path of any length, in pieces that the kernel takes.
pub fn open_far(root: BorrowedFd<'_>, inner: &Path) -> Result<OwnedFd, Errno> {
    let mut at: Option<OwnedFd> = None;
    let mut piece = PathBuf::new();
    let mut parts = inner.components().peekable();
    while let Some(part) = parts.next() {
        piece.push(part);
        let long = piece.as_os_str().len() + parts.peek().map_or(0, |next| next.as_os_str().len()) > PIECE;
        if long || parts.peek().is_none() {
            let from = at.as_ref().map_or(root, |dir| dir.as_fd());
            at = Some(open_on_mount(from, &std::mem::take(&mut piece))?);
        }
    }
    at.ok_or(Errno::INVAL)
}

fn widened(mode: u32, by: u32) -> Mode {
    Mode::from_raw_mode((mode & 0o7777) | by)
}

#[cfg(test)]
mod tests;
