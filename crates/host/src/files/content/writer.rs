//! Replaces all files of a volume at once.
//!
//! ```text
//!   <volume>/..data -> ..2026_01_31_23_59_59.123456789     one rename switches from old to new
//!           /..2026_01_31_23_59_59.123456789/dir/file
//!           /dir -> ..data/dir                             what containers look at
//! ```
//! The normal case: write a new directory, set its owner, link `..data_tmp` to it, rename that to `..data`; then create
//! the symlinks of new files, remove those of removed files, and remove the old directory.
//!
//! Failures: before the rename everything is old, after it everything is new. What an interrupted write leaves starts
//! with `..`, which no file of a volume does, and is removed by the next write. Nothing is synced to disk: after a
//! power failure the files are compared with their wanted content, and written again.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use model::volume::ContentFile;
use ports::{FilesError, WallClock};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::super::confined_open::{open_subdir_on_same_mount, open_without_symlinks};
use super::super::layout::failed;
use super::super::tree::remove_tree;
use crate::clock::SystemClock;

const DATA: &str = "..data";
const NEW_DATA: &str = "..data_tmp";
/// Deeper than any reasonable path of 4096 characters. It bounds the descriptors that a manipulated volume can cost.
const MAX_DEPTH: usize = 64;

type Files = BTreeMap<String, ContentFile>;

/// `own` gives the volume to its group; `step` is called before each step that changes something.
pub fn write(
    volume: &Path,
    files: &Files,
    own: &dyn Fn() -> Result<(), FilesError>,
    step: &dyn Fn(&str),
) -> Result<(), FilesError> {
    files.keys().try_for_each(|path| check_path(path))?;
    let root = open_root(volume)?;
    let writer = Writer { root: root.as_fd(), volume, step };
    let current = writer.current();
    let live = match current.filter(|dir| writer.is_equal(dir, files)) {
        Some(dir) => dir,
        None => writer.replace(files, own)?,
    };
    writer.sync_visible_links(files)?;
    writer.clean(&live)
}

struct Writer<'a> {
    root: BorrowedFd<'a>,
    volume: &'a Path,
    step: &'a dyn Fn(&str),
}

impl Writer<'_> {
    /// The target of `..data`, if it is a directory that we wrote.
    fn current(&self) -> Option<String> {
        let name =
            String::from_utf8(rustix::fs::readlinkat(self.root, DATA, Vec::new()).ok()?.into()).ok()?;
        let ours = name.starts_with("..") && name.len() > 2 && !name.contains('/');
        (ours && name != DATA && name != NEW_DATA).then_some(name)
    }

    /// Compares names and content, but not modes.
    fn is_equal(&self, dir: &str, files: &Files) -> bool {
        let mut found = BTreeSet::new();
        let listed = open_dir(self.root, dir.as_ref()).and_then(|dir| list(&dir, "", 0, &mut found));
        let wanted: BTreeSet<&str> = files.keys().map(String::as_str).collect();
        listed.is_ok()
            && found.iter().map(String::as_str).eq(wanted)
            && files.iter().all(|(path, file)| self.holds(&format!("{dir}/{path}"), &file.bytes))
    }

    fn holds(&self, path: &str, bytes: &[u8]) -> bool {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let Ok(file) = open_without_symlinks(self.root, Path::new(path), flags, Mode::empty()) else {
            return false;
        };
        let mut content = Vec::with_capacity(bytes.len());
        let limit = bytes.len() as u64 + 1;
        std::fs::File::from(file).take(limit).read_to_end(&mut content).is_ok() && content == bytes
    }

    /// Writes a new directory and makes it the live one. Returns its name.
    fn replace(&self, files: &Files, own: &dyn Fn() -> Result<(), FilesError>) -> Result<String, FilesError> {
        (self.step)("make the new directory");
        let name = self.new_dir()?;
        let result = self.fill(&name, files, own).and_then(|()| self.switch_to(&name));
        if result.is_err() {
            // The next write would remove it too, but the disk may be full now.
            let _ = remove_tree(&self.volume.join(&name));
        }
        result.map(|()| name)
    }

    fn new_dir(&self) -> Result<String, FilesError> {
        let at = SystemClock.wall();
        let stamp =
            at.timestamp().to_zoned(jiff::tz::TimeZone::UTC).strftime("%Y_%m_%d_%H_%M_%S").to_string();
        let first = at.0.rem_euclid(1_000_000_000);
        for number in first.. {
            let name = format!("..{stamp}.{number}");
            match rustix::fs::mkdirat(self.root, &name, Mode::from_raw_mode(0o755)) {
                Ok(()) => {
                    let dir = open_dir(self.root, name.as_ref());
                    dir.and_then(|dir| rustix::fs::fchmod(dir, Mode::from_raw_mode(0o755)))
                        .map_err(failed("make directory", &self.volume.join(&name)))?;
                    return Ok(name);
                }
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(failed("make directory", &self.volume.join(&name))(errno)),
            }
        }
        Err(failed("make directory in", self.volume)(Errno::EXIST))
    }

    fn fill(
        &self,
        dir: &str,
        files: &Files,
        own: &dyn Fn() -> Result<(), FilesError>,
    ) -> Result<(), FilesError> {
        for (path, file) in files {
            (self.step)("write a file");
            let inner = format!("{dir}/{path}");
            self.write_file(&inner, file).map_err(failed("write", &self.volume.join(&inner)))?;
        }
        (self.step)("give it to the group");
        own()
    }

    fn write_file(&self, path: &str, file: &ContentFile) -> Result<(), std::io::Error> {
        for (at, _) in path.match_indices('/').skip(1) {
            match rustix::fs::mkdirat(self.root, &path[..at], Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
            let dir =
                open_without_symlinks(self.root, Path::new(&path[..at]), OFlags::DIRECTORY, Mode::empty())?;
            rustix::fs::fchmod(dir, Mode::from_raw_mode(0o755))?;
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        // The file must not be readable before it has its mode.
        let mut open = std::fs::File::from(open_without_symlinks(
            self.root,
            Path::new(path),
            flags,
            Mode::from_raw_mode(0o600),
        )?);
        open.write_all(&file.bytes)?;
        rustix::fs::fchmod(&open, Mode::from_raw_mode(file.mode & 0o7777))?;
        if let Some(owner) = file.owner {
            let owner = u32::try_from(owner).map_err(|_| Errno::INVAL)?;
            rustix::fs::fchown(&open, Some(Uid::from_raw(owner)), None)?;
        }
        Ok(())
    }

    fn switch_to(&self, dir: &str) -> Result<(), FilesError> {
        (self.step)("link the new directory");
        match rustix::fs::unlinkat(self.root, NEW_DATA, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(failed("remove", &self.volume.join(NEW_DATA))(errno)),
        }
        let link = rustix::fs::symlinkat(dir, self.root, NEW_DATA);
        link.map_err(failed("link", &self.volume.join(NEW_DATA)))?;
        (self.step)("switch");
        rustix::fs::renameat(self.root, NEW_DATA, self.root, DATA)
            .map_err(failed("replace", &self.volume.join(DATA)))
    }

    /// Creates the symlinks of all files in the volume, and removes others.
    fn sync_visible_links(&self, files: &Files) -> Result<(), FilesError> {
        for name in visible(files) {
            let target = format!("{DATA}/{name}");
            if self.leads_to(name.as_ref(), &target) {
                continue;
            }
            (self.step)("show a file");
            rustix::fs::symlinkat(&target, self.root, name)
                .map_err(failed("link", &self.volume.join(name)))?;
        }
        for name in self.names()? {
            let Some(text) = name.to_str() else { continue };
            let stale = !visible(files).contains(text) && self.leads_to(&name, &format!("{DATA}/{text}"));
            if stale {
                (self.step)("hide a file");
                let gone = rustix::fs::unlinkat(self.root, &name, AtFlags::empty());
                gone.map_err(failed("remove", &self.volume.join(&name)))?;
            }
        }
        Ok(())
    }

    fn leads_to(&self, name: &OsStr, target: &str) -> bool {
        let found = rustix::fs::readlinkat(self.root, name, Vec::new());
        found.is_ok_and(|found| found.as_bytes() == target.as_bytes())
    }

    /// Removes the old directory, and what interrupted writes have left.
    fn clean(&self, live: &str) -> Result<(), FilesError> {
        for name in self.names()? {
            if name.as_bytes().starts_with(b"..") && name != DATA && name != live {
                (self.step)("remove what is old");
                remove_tree(&self.volume.join(name))?;
            }
        }
        Ok(())
    }

    fn names(&self) -> Result<Vec<std::ffi::OsString>, FilesError> {
        let list = || {
            let mut names = Vec::new();
            for entry in Dir::read_from(self.root)? {
                let entry = entry?;
                let name = entry.file_name().to_bytes();
                if !matches!(name, b"." | b"..") {
                    names.push(OsStr::from_bytes(name).to_owned());
                }
            }
            names.sort();
            Ok(names)
        };
        list().map_err(|errno: Errno| failed("list", self.volume)(errno))
    }
}

/// The first component of each path.
fn visible(files: &Files) -> BTreeSet<&str> {
    files.keys().filter_map(|path| path.split('/').next()).collect()
}

/// The planner has checked the paths; one that leads out of the volume is refused here as well.
fn check_path(path: &str) -> Result<(), FilesError> {
    let mut parts = Path::new(path).components();
    let plain = parts.clone().next().is_some() && parts.all(|part| matches!(part, Component::Normal(_)));
    let clean = !path.starts_with("..") && !path.contains("//") && !path.ends_with('/');
    if plain && clean && !path.contains("/./") && !path.starts_with("./") {
        return Ok(());
    }
    Err(FilesError::Refused { message: format!("{path:?} is not the path of a file in a volume") })
}

fn open_root(volume: &Path) -> Result<OwnedFd, FilesError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, volume, flags, Mode::empty()).map_err(failed("open", volume))
}

fn open_dir(parent: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    let name = std::ffi::CString::new(name.as_bytes()).map_err(|_| Errno::INVAL)?;
    open_subdir_on_same_mount(parent, &name)
}

/// The paths of everything that is not a directory.
fn list(dir: &OwnedFd, prefix: &str, depth: usize, found: &mut BTreeSet<String>) -> Result<(), Errno> {
    if depth >= MAX_DEPTH {
        return Err(Errno::NAMETOOLONG);
    }
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let path = format!("{prefix}{}", name.to_str().map_err(|_| Errno::ILSEQ)?);
        match entry.file_type() {
            FileType::Directory => {
                list(&open_subdir_on_same_mount(dir.as_fd(), name)?, &format!("{path}/"), depth + 1, found)?;
            }
            _ => {
                found.insert(path);
            }
        }
    }
    Ok(())
}
