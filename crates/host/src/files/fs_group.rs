//! fsGroup: gives a volume's files to the group, with permissions for it.
//!
//! ```text
//!   walk ──> directories, when they are left
//!    └─────> files of a directory, in batches ──> threads that change them
//!   after the walk ──> the volume's root: an interrupted walk does not count as finished
//! ```
//! A container may have written the tree, and others may be writing it now. [`crate::walk`] describes how it is walked
//! with bounded memory and few descriptors; files are changed through descriptors of the files themselves. Files that
//! vanish meanwhile are ignored. Single files that can't be changed are logged, as upstream: the volume stays usable.
//! When the caller is gone the walk stops at the next file, because the volume may be unstaged and reused.

use std::ffi::{CStr, CString};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use model::volume::VolumeNotice;
use ports::FilesError;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags};
use rustix::io::Errno;
use tokio::time::Instant;

use super::layout::failed;
use super::steps::{WorkProgress, step};
use crate::walk::{Visitor, walk};

/// The permissions of the group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupAccess {
    ReadWrite,
    /// Containers can't write to the volume anyway.
    ReadOnly,
}

impl GroupAccess {
    fn bits(self) -> u32 {
        match self {
            GroupAccess::ReadWrite => 0o660,
            GroupAccess::ReadOnly => 0o440,
        }
    }
}

const SETGID_AND_SEARCH: u32 = 0o2110;
const FIRST_TOLD: Duration = Duration::from_secs(30);
const TOLD_AGAIN: Duration = Duration::from_secs(60);
/// The clock is read once per this many files.
const LOOKED_AT_CLOCK: u64 = 64;
/// Names per batch, and batches in the queue: both bound the memory.
const BATCH: usize = 256;
const WAITING_BATCHES: usize = 2;
/// A directory with fewer files is not worth a thread.
const FEW: usize = 8;
/// More threads would only wait for the disk.
const MAX_THREADS: usize = 8;
/// How often a walk is repeated if directories were moved during it.
const TRIES: u32 = 3;
/// At most this many files that can't be changed are named in the log.
const NAMED_IN_LOG: u64 = 20;

/// Gives everything in the volume to the group.
pub fn apply_fs_group(path: &Path, group: i64, access: GroupAccess) -> Result<(), FilesError> {
    apply_telling(path, group, access, FIRST_TOLD)
}

fn apply_telling(path: &Path, group: i64, access: GroupAccess, first: Duration) -> Result<(), FilesError> {
    let group = u32::try_from(group)
        .map_err(|_| FilesError::Refused { message: format!("fsGroup {group} is not a group id") })?;
    let root = open_root(path).map_err(failed("open", path))?;
    let to = FsGroupChange { group: Gid::from_raw(group), bits: access.bits() };
    let progress = Progress::new(first);
    change_tree(&root, path, to, progress).map_err(failed("give to fsGroup what is in", path))
}

fn open_root(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
}

#[derive(Clone, Copy)]
struct FsGroupChange {
    group: Gid,
    bits: u32,
}

impl FsGroupChange {
    fn of_directory(self) -> u32 {
        self.bits | SETGID_AND_SEARCH
    }
}

/// The root's group is changed last, after everything else: it shows that the walk was finished.
fn change_tree(root: &OwnedFd, path: &Path, to: FsGroupChange, progress: Progress) -> Result<(), Errno> {
    let tree = FsGroupRun::new(path, to, progress);
    let walked = std::thread::scope(|scope| {
        let mut walked = Err(Errno::STALE);
        for _ in 0..TRIES {
            let mut giver =
                FsGroupVisitor { tree: &tree, workers: Workers::new(scope, &tree), batch: Vec::new() };
            walked = walk(root.as_fd(), &mut giver);
            giver.workers.finish();
            if walked != Err(Errno::STALE) {
                break;
            }
        }
        walked
    });
    tree.log_unnamed();
    tree.finished()?;
    walked?;
    step("give the root to the group");
    tree.directory(root.as_fd());
    Ok(())
}

/// Files of one directory.
struct Batch {
    dir: OwnedFd,
    names: Vec<CString>,
}

/// Threads that change files concurrently, because each change may wait for the disk or the server.
struct Workers<'scope> {
    senders: Vec<SyncSender<Batch>>,
    threads: Vec<ScopedJoinHandle<'scope, ()>>,
    next: usize,
}

impl<'scope> Workers<'scope> {
    fn new<'env>(scope: &'scope Scope<'scope, 'env>, tree: &'scope FsGroupRun<'scope>) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let (mut senders, mut threads) = (Vec::new(), Vec::new());
        for _ in 1..cores.min(MAX_THREADS) {
            let (sender, batches) = sync_channel(WAITING_BATCHES);
            // Without threads the walk changes all files itself.
            let work = move || tree.change_batches(&batches);
            let Ok(thread) = std::thread::Builder::new().name("fsgroup".into()).spawn_scoped(scope, work)
            else {
                break;
            };
            senders.push(sender);
            threads.push(thread);
        }
        Self { senders, threads, next: 0 }
    }

    /// The batch is returned if no thread takes it.
    fn offer(&mut self, mut batch: Batch) -> Result<(), Batch> {
        for _ in 0..self.senders.len() {
            self.next = (self.next + 1) % self.senders.len();
            match self.senders[self.next].try_send(batch) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full(refused) | TrySendError::Disconnected(refused)) => batch = refused,
            }
        }
        Err(batch)
    }

    fn finish(self) {
        drop(self.senders);
        for thread in self.threads {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

/// Processes the entries of the walk.
struct FsGroupVisitor<'scope> {
    tree: &'scope FsGroupRun<'scope>,
    workers: Workers<'scope>,
    /// Files of the directory that is being read.
    batch: Vec<CString>,
}

impl FsGroupVisitor<'_> {
    fn flush(&mut self, dir: BorrowedFd<'_>) {
        let names = std::mem::take(&mut self.batch);
        if names.is_empty() {
            return;
        }
        if names.len() > FEW
            && let Ok(own) = dir.try_clone_to_owned()
        {
            if let Err(batch) = self.workers.offer(Batch { dir: own, names }) {
                self.tree.files(batch.dir.as_fd(), &batch.names);
            }
            return;
        }
        self.tree.files(dir, &names);
    }
}

impl Visitor for FsGroupVisitor<'_> {
    fn entry(&mut self, dir: BorrowedFd<'_>, name: &CStr, kind: FileType) -> Result<bool, Errno> {
        if self.tree.pulse.is_cancelled() {
            return Err(Errno::CANCELED);
        }
        let kind = match kind {
            FileType::Unknown => match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(found) => FileType::from_raw_mode(found.st_mode),
                Err(errno) => {
                    self.tree.warn(dir, name, errno);
                    return Ok(false);
                }
            },
            known => known,
        };
        if kind == FileType::Directory {
            self.flush(dir);
            return Ok(true);
        }
        self.batch.push(name.to_owned());
        if self.batch.len() >= BATCH {
            self.flush(dir);
        }
        Ok(false)
    }

    fn not_entered(&mut self, dir: BorrowedFd<'_>, name: &CStr, errno: Errno) -> Result<(), Errno> {
        self.tree.warn(dir, name, errno);
        Ok(())
    }

    fn unreadable(&mut self, dir: BorrowedFd<'_>, errno: Errno) -> Result<(), Errno> {
        self.tree.warn(dir, c"", errno);
        Ok(())
    }

    fn leave(&mut self, dir: BorrowedFd<'_>, depth: usize) -> Result<(), Errno> {
        self.flush(dir);
        if depth > 0 {
            self.tree.directory(dir);
        }
        Ok(())
    }
}

struct FsGroupRun<'a> {
    path: &'a Path,
    to: FsGroupChange,
    /// The steps of helper threads count here too.
    pulse: WorkProgress,
    progress: Progress,
    /// The first I/O or resource error. With one the walk may have missed files, so it must not be reported as
    /// finished.
    trouble: AtomicI32,
    /// Files that could not be changed.
    unchanged: AtomicU64,
}

/// When users are notified of a long walk: once that it takes long, then repeatedly with the number of files.
struct Progress {
    begun: Instant,
    files: AtomicU64,
    /// Seconds from the start.
    due: AtomicU64,
    first: u64,
}

impl Progress {
    fn new(first: Duration) -> Self {
        let first = first.as_secs();
        Self { begun: Instant::now(), files: AtomicU64::new(0), due: AtomicU64::new(first), first }
    }

    /// Counts one file. `Some`: a notice is due, the first time without a number.
    fn file(&self) -> Option<Option<u64>> {
        let files = self.files.fetch_add(1, Ordering::Relaxed) + 1;
        if files.is_multiple_of(LOOKED_AT_CLOCK) {
            self.at(self.begun.elapsed().as_secs(), files)
        } else {
            None
        }
    }

    /// Called by several threads concurrently.
    fn at(&self, seconds: u64, files: u64) -> Option<Option<u64>> {
        let due = self.due.load(Ordering::Relaxed);
        let next = seconds + TOLD_AGAIN.as_secs();
        let told = seconds >= due
            && self.due.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        told.then_some((due != self.first).then_some(files))
    }
}

impl<'a> FsGroupRun<'a> {
    fn new(path: &'a Path, to: FsGroupChange, progress: Progress) -> Self {
        let (trouble, unchanged) = (AtomicI32::new(0), AtomicU64::new(0));
        Self { path, to, pulse: WorkProgress::current(), progress, trouble, unchanged }
    }

    fn record_step(&self) {
        self.pulse.step("give it to the group");
        if let Some(files) = self.progress.file() {
            let path = self.path.to_string_lossy().into_owned();
            self.pulse.tell(VolumeNotice::ChangingOwnership { path, files });
        }
    }

    fn change_batches(&self, batches: &Receiver<Batch>) {
        while let Ok(batch) = batches.recv() {
            self.files(batch.dir.as_fd(), &batch.names);
        }
    }

    fn files(&self, dir: BorrowedFd<'_>, names: &[CString]) {
        for name in names {
            if self.pulse.is_cancelled() {
                return;
            }
            if let Err(errno) = self.file(dir, name) {
                self.warn(dir, name, errno);
            }
        }
    }

    /// Changes the file through a descriptor of the file itself, so that it can't be replaced by a symlink in between.
    /// A file that is mounted on it is not changed.
    fn file(&self, dir: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
        self.record_step();
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
        // The kernel may have cleared mode bits when the group changed.
        let stat = rustix::fs::fstat(&file)?;
        let itself = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(|_| Errno::INVAL)?;
        rustix::fs::chmod(itself, widened(stat.st_mode, self.to.bits))
    }

    fn directory(&self, dir: BorrowedFd<'_>) {
        self.record_step();
        let change = rustix::fs::fchown(dir, None, Some(self.to.group))
            .and_then(|()| rustix::fs::fstat(dir))
            .and_then(|stat| rustix::fs::fchmod(dir, widened(stat.st_mode, self.to.of_directory())));
        if let Err(errno) = change {
            self.warn(dir, c"", errno);
        }
    }

    fn finished(&self) -> Result<(), Errno> {
        if self.pulse.is_cancelled() {
            return Err(Errno::CANCELED);
        }
        match self.trouble.load(Ordering::Relaxed) {
            0 => Ok(()),
            code => Err(Errno::from_raw_os_error(code)),
        }
    }

    fn warn(&self, dir: BorrowedFd<'_>, name: &CStr, errno: Errno) {
        if matches!(errno, Errno::IO | Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::STALE) {
            let _ =
                self.trouble.compare_exchange(0, errno.raw_os_error(), Ordering::Relaxed, Ordering::Relaxed);
        }
        if errno != Errno::NOENT && self.unchanged.fetch_add(1, Ordering::Relaxed) < NAMED_IN_LOG {
            // If the directory is nested too deep for a path, only its volume is named.
            let dir = std::fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd()));
            let path = dir.unwrap_or_else(|_| self.path.to_owned()).join(&*name.to_string_lossy());
            tracing::warn!(path = %path.display(), error = %errno, "could not give the file to fsGroup");
        }
    }

    fn log_unnamed(&self) {
        let unnamed = self.unchanged.load(Ordering::Relaxed).saturating_sub(NAMED_IN_LOG);
        if unnamed > 0 {
            let path = self.path.display();
            tracing::warn!(%path, "could not give {unnamed} more files of the volume to fsGroup");
        }
    }
}

/// Only mount points have this attribute. A kernel that does not report it (before 5.8) is assumed to have no mounts on
/// files.
fn is_mount_point(file: BorrowedFd<'_>) -> bool {
    rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, rustix::fs::StatxFlags::empty())
        .is_ok_and(|stat| stat.stx_attributes.contains(rustix::fs::StatxAttributes::MOUNT_ROOT))
}

fn widened(mode: u32, by: u32) -> Mode {
    Mode::from_raw_mode((mode & 0o7777) | by)
}

#[cfg(test)]
mod tests;
