//! `/etc/projects` and `/etc/projid`: which project id is whose, for every program of the machine.
//!
//! ```text
//! /etc/projects   1048577:/var/lib/kubelet/pods/<uid>/volumes/kubernetes.io~empty-dir/<volume>
//! /etc/projid     volume1048577:1048577
//! ```
//! Administrators write to them by hand, and other kubelets by program. So lines of others are kept as they are, both
//! files are locked (`flock`, in this order) while they are read and replaced, and an id in either of them is taken.
//!
//! An id's line in `projects` is there before its name, and goes after it. Whatever remains after a crash can be told
//! from lines of others by the path, which is below the agent's own directory.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FlockOperation, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use crate::files::step;

/// Where upstream's kubelet begins, too.
pub(super) const FIRST_ID: u32 = 1_048_577;
/// Ids that nobody wrote down, but which files have, before the search for a free one ends.
const MAX_UNLISTED: u32 = 4096;
/// Larger than files of a sane machine.
const MAX_BYTES: u64 = 16 << 20;

#[derive(Clone, Debug)]
pub struct ProjectFiles {
    projects: PathBuf,
    names: PathBuf,
}

/// The content of both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Lines {
    projects: Vec<Vec<u8>>,
    names: Vec<Vec<u8>>,
}

/// Whether to wait for others who hold the locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lock {
    Wait,
    Try,
}

/// Holds the locks of both.
struct LockedFiles<'a> {
    files: &'a ProjectFiles,
    lines: Lines,
    _locks: [Option<File>; 2],
}

impl Default for ProjectFiles {
    fn default() -> Self {
        Self { projects: "/etc/projects".into(), names: "/etc/projid".into() }
    }
}

impl ProjectFiles {
    #[cfg(test)]
    pub(crate) fn below(dir: &Path) -> Self {
        Self { projects: dir.join("projects"), names: dir.join("projid") }
    }

    /// The id that belongs to this directory and to no other. Takes no lock, because files are replaced as a whole.
    pub(super) fn id_of(&self, dir: &Path) -> io::Result<Option<u32>> {
        let lines = read(&self.projects)?;
        let mut found = None;
        for (id, path) in lines.iter().filter_map(|line| parse_project(line)) {
            if path != dir {
                continue;
            }
            if id < FIRST_ID || found.replace(id).is_some() {
                return Ok(None);
            }
        }
        let Some(id) = found else { return Ok(None) };
        let listed = lines.iter().filter(|line| parse_project(line).is_some_and(|(other, _)| other == id));
        Ok((listed.count() == 1).then_some(id))
    }

    /// Writes down an id for a directory: the one it has in the files, or else the first that nobody has. `may_use`:
    /// whether the filesystem says that the id is no other directory's.
    pub(super) fn claim(&self, dir: &Path, may_use: &dyn Fn(u32) -> io::Result<bool>) -> io::Result<u32> {
        if dir.as_os_str().as_bytes().iter().any(u8::is_ascii_control) {
            return Err(io::Error::other(format!("{}: not a path for a file of lines", dir.display())));
        }
        let mut locked = self.lock(Lock::Wait, true)?;
        if let Some(id) = self.id_of(dir)? {
            if may_use(id)? {
                locked.add_name(id)?;
                return Ok(id);
            }
            locked.remove(&|path| path == dir)?;
        } else if locked.lines.ids_of(dir).next().is_some() {
            return Err(io::Error::other(format!(
                "{} has {} with another project id, or with several",
                self.projects.display(),
                dir.display()
            )));
        }
        let id = locked.lines.first_free(may_use)?;
        let mut line = format!("{id}:").into_bytes();
        line.extend(dir.as_os_str().as_bytes());
        locked.lines.projects.push(line);
        locked.write_projects()?;
        locked.add_name(id)?;
        Ok(id)
    }

    /// Removes ids of directories below `top` that are gone.
    pub(super) fn release_below(&self, top: &Path, lock: Lock) -> io::Result<()> {
        let is_gone = |dir: &Path| {
            dir != top
                && dir.starts_with(top)
                && dir.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        self.release(&is_gone, lock)
    }

    /// Removes the id of a directory for which it could not be set.
    pub(super) fn release_claim(&self, dir: &Path) -> io::Result<()> {
        self.release(&|path| path == dir, Lock::Wait)
    }

    /// Removes what an agent left that was killed while it wrote.
    pub(super) fn remove_drafts(&self) -> io::Result<()> {
        let drafts = [&self.projects, &self.names]
            .map(|path| path.with_file_name(draft_of(path.file_name().unwrap_or_default())));
        if !drafts.iter().any(|draft| draft.symlink_metadata().is_ok()) {
            return Ok(());
        }
        let _locked = self.lock(Lock::Try, false)?;
        for draft in &drafts {
            match std::fs::remove_file(draft) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(said(draft, error)),
                _ => {}
            }
        }
        Ok(())
    }

    fn release(&self, is_released: &dyn Fn(&Path) -> bool, lock: Lock) -> io::Result<()> {
        let projects = read(&self.projects)?;
        let released = |line: &Vec<u8>| {
            parse_project(line).is_some_and(|(id, path)| id >= FIRST_ID && is_released(path))
        };
        if !projects.iter().any(released) {
            return Ok(());
        }
        self.lock(lock, false)?.remove(is_released)
    }

    fn lock(&self, wait: Lock, create: bool) -> io::Result<LockedFiles<'_>> {
        loop {
            let locks =
                [open_and_lock(&self.projects, wait, create)?, open_and_lock(&self.names, wait, create)?];
            // Whoever held the locks before may have put other files in their places.
            if is_at(locks[0].as_ref(), &self.projects)? && is_at(locks[1].as_ref(), &self.names)? {
                let lines = Lines { projects: read(&self.projects)?, names: read(&self.names)? };
                return Ok(LockedFiles { files: self, lines, _locks: locks });
            }
        }
    }
}

impl LockedFiles<'_> {
    fn add_name(&mut self, id: u32) -> io::Result<()> {
        if self.lines.names.iter().any(|line| parse_name(line).is_some_and(|(_, other)| other == id)) {
            return Ok(());
        }
        self.lines.names.push(own_name(id));
        step("write the names of project ids");
        replace(&self.files.names, &self.lines.names)
    }

    fn write_projects(&self) -> io::Result<()> {
        step("write the directories of project ids");
        replace(&self.files.projects, &self.lines.projects)
    }

    /// Removes the lines of these directories, and the names that belong to no line any more.
    fn remove(&mut self, is_removed: &dyn Fn(&Path) -> bool) -> io::Result<()> {
        let mut ids = Vec::new();
        self.lines.projects.retain(|line| match parse_project(line) {
            Some((id, path)) if id >= FIRST_ID && is_removed(path) => {
                ids.push(id);
                false
            }
            _ => true,
        });
        if ids.is_empty() {
            return Ok(());
        }
        let kept: Vec<u32> =
            self.lines.projects.iter().filter_map(|line| Some(parse_project(line)?.0)).collect();
        ids.retain(|id| !kept.contains(id));
        let names = self.lines.names.len();
        self.lines.names.retain(|line| !ids.iter().any(|id| *line == own_name(*id)));
        if self.lines.names.len() != names {
            step("remove the names of project ids");
            replace(&self.files.names, &self.lines.names)?;
        }
        self.write_projects()
    }
}

impl Lines {
    fn ids_of(&self, dir: &Path) -> impl Iterator<Item = u32> {
        let of_dir = self.projects.iter().filter_map(|line| parse_project(line));
        of_dir.filter(move |(_, path)| *path == dir).map(|(id, _)| id)
    }

    fn first_free(&self, may_use: &dyn Fn(u32) -> io::Result<bool>) -> io::Result<u32> {
        let listed = self.projects.iter().filter_map(|line| Some(parse_project(line)?.0));
        let named = self.names.iter().filter_map(|line| Some(parse_name(line)?.1));
        let taken: std::collections::BTreeSet<u32> = listed.chain(named).collect();
        let unlisted = (FIRST_ID..u32::MAX).filter(|id| !taken.contains(id)).take(MAX_UNLISTED as usize);
        for id in unlisted {
            if may_use(id)? {
                return Ok(id);
            }
        }
        Err(io::Error::other(format!("no free project id in {MAX_UNLISTED} tries")))
    }
}

fn own_name(id: u32) -> Vec<u8> {
    format!("volume{id}:{id}").into_bytes()
}

/// `<id>:<path>`
fn parse_project(line: &[u8]) -> Option<(u32, &Path)> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    Some((number(&line[..colon])?, Path::new(OsStr::from_bytes(&line[colon + 1..]))))
}

/// `<name>:<id>`
fn parse_name(line: &[u8]) -> Option<(&[u8], u32)> {
    let colon = line.iter().rposition(|byte| *byte == b':')?;
    let is_comment = line.starts_with(b"#");
    Some((&line[..colon], number(&line[colon + 1..])?)).filter(|_| !is_comment)
}

/// Spaces around a number are no reason to give it to somebody else.
fn number(text: &[u8]) -> Option<u32> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

/// Lines without their ends. A file that does not exist has none.
fn read(path: &Path) -> io::Result<Vec<Vec<u8>>> {
    let file = match open(path, OFlags::RDONLY) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(Vec::new()),
        Err(errno) => return Err(said(path, errno.into())),
    };
    let mut text = Vec::new();
    let length = file.take(MAX_BYTES).read_to_end(&mut text).map_err(|error| said(path, error))?;
    if length as u64 == MAX_BYTES {
        return Err(said(path, io::Error::other("too large")));
    }
    let mut lines: Vec<Vec<u8>> = text.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    if lines.last().is_some_and(Vec::is_empty) {
        lines.pop();
    }
    Ok(lines)
}

/// Neither a link nor a device is followed or waited for.
fn open(path: &Path, access: OFlags) -> Result<File, Errno> {
    let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::from_raw_mode(0o644)).map(File::from)
}

/// `None`: there is no such file. It can be made by a holder of the other lock only.
fn open_and_lock(path: &Path, wait: Lock, create: bool) -> io::Result<Option<File>> {
    let create = if create { OFlags::CREATE } else { OFlags::empty() };
    let file = match open(path, OFlags::RDONLY | create) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(said(path, errno.into())),
    };
    let operation = match wait {
        Lock::Wait => FlockOperation::LockExclusive,
        Lock::Try => FlockOperation::NonBlockingLockExclusive,
    };
    rustix::fs::flock(&file, operation).map_err(|errno| said(path, errno.into()))?;
    Ok(Some(file))
}

/// Whether what was locked is still what is at the path.
fn is_at(held: Option<&File>, path: &Path) -> io::Result<bool> {
    let identity = |found: &std::fs::Metadata| (found.dev(), found.ino());
    let held = held.map(File::metadata).transpose().map_err(|error| said(path, error))?;
    match path.symlink_metadata() {
        Ok(found) if !found.is_file() => Err(said(path, io::Error::other("not a plain file"))),
        Ok(found) => Ok(held.is_some_and(|held| identity(&held) == identity(&found))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(held.is_none()),
        Err(error) => Err(said(path, error)),
    }
}

/// After a crash there is the old file or the new one. Owner and mode stay.
fn replace(path: &Path, lines: &[Vec<u8>]) -> io::Result<()> {
    let write = || -> io::Result<()> {
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let found = path.symlink_metadata();
        let (mode, owner) =
            found.map_or((0o644, (0, 0)), |old| (old.permissions().mode(), (old.uid(), old.gid())));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(dir, flags, Mode::empty())?;
        let draft_name = draft_of(name);
        let draft = draft(&dir, &draft_name)?;
        let done = fill(draft, lines, mode & 0o7777, owner).and_then(|()| {
            step("put a file of project ids in its place");
            Ok(rustix::fs::renameat(&dir, &draft_name, &dir, name)?)
        });
        if done.is_err() {
            let _ = rustix::fs::unlinkat(&dir, &draft_name, AtFlags::empty());
        }
        done?;
        Ok(rustix::fs::fsync(&dir)?)
    };
    write().map_err(|error| said(path, error))
}

fn draft_of(name: &OsStr) -> std::ffi::OsString {
    let mut draft = name.to_owned();
    draft.push(".rubelet-new");
    draft
}

/// One that an earlier agent left is not used, since others may have it open.
fn draft(dir: &OwnedFd, name: &OsStr) -> Result<File, Errno> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o600)).map(File::from)
}

fn fill(mut draft: File, lines: &[Vec<u8>], mode: u32, owner: (u32, u32)) -> io::Result<()> {
    let mut text = lines.join(&b'\n');
    if !lines.is_empty() {
        text.push(b'\n');
    }
    draft.write_all(&text)?;
    let (user, group) = (Uid::from_raw(owner.0), Gid::from_raw(owner.1));
    rustix::fs::fchown(draft.as_fd(), Some(user), Some(group))?;
    rustix::fs::fchmod(draft.as_fd(), Mode::from_raw_mode(mode))?;
    draft.sync_all()
}

/// Names the file in an error.
fn said(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
