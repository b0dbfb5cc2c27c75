//! Rotates the log files of containers.
//!
//! ```text
//!   0.log                               the runtime writes here
//!   0.log.20260102-030405               the newest rotated file: the runtime may still finish a line
//!   0.log.20260102-030355-000001        a second one within that second, until it is compressed
//!   0.log.20260102-030345.gz            older ones
//! ```
//! A container with a hostPath on the logs can swap a directory or file for a symlink at any moment. So everything
//! happens in a directory that was opened through no symlink, and only regular files are touched.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use flate2::Compression;
use flate2::write::GzEncoder;
use model::Wall;
use ports::{ContainerLogFiles, WallClock};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, Timestamps};
use rustix::io::Errno;

use super::file_lease::has_writer;
use super::open::{open_directory, own_path, regular};
use super::write_notices::{WRITES, WriteNotices};

const COMPRESSED: &str = ".gz";
const UNFINISHED: &str = ".tmp";
/// Renames within one second that get a name of their own.
const MAX_PER_TIME: u32 = 999_999;
const NUMBER_DIGITS: usize = 6;
/// More files are not looked at. A container that can write to the directory may make any number.
const MAX_NAMES: usize = 10_000;
/// A larger file is left as it is: a container that can write to the directory may make one of any size.
const MAX_COMPRESSED_BYTES: i64 = 1 << 30;

/// The files below one directory of logs.
pub struct HostLogFiles {
    logs_dir: PathBuf,
    wall: Arc<dyn WallClock>,
    notices: WriteNotices,
}

impl HostLogFiles {
    pub fn new(logs_dir: impl Into<PathBuf>, wall: Arc<dyn WallClock>) -> Self {
        Self { logs_dir: logs_dir.into(), wall, notices: WriteNotices::default() }
    }

    /// Runs work on the directory of a log in a thread that may block.
    async fn in_directory<T: Send + 'static>(
        &self,
        log: &Path,
        work: impl FnOnce(&LogDirectory) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let (logs_dir, log) = (self.logs_dir.clone(), log.to_owned());
        let work = move || work(&LogDirectory::open(&logs_dir, &log)?);
        tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
    }
}

#[async_trait]
impl ContainerLogFiles for HostLogFiles {
    async fn size(&self, log: &Path) -> io::Result<Option<u64>> {
        match self.in_directory(log, LogDirectory::size).await {
            // The directory of the pod's logs is gone too.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            other => other,
        }
    }

    async fn wait_until_written(&self, log: &Path, size: u64) -> io::Result<()> {
        let watches = self.notices.watches().await?;
        let watch = self.in_directory(log, move |dir| watches.clone().add(dir.own_path(), WRITES)).await?;
        let written = self.notices.next(watch).await;
        // What changed before the file was watched caused no notification.
        if self.size(log).await? == Some(size) {
            written.await;
        }
        Ok(())
    }

    async fn rename(&self, log: &Path, max_files: u32) -> io::Result<Option<PathBuf>> {
        let (now, path) = (self.wall.wall(), log.to_owned());
        self.in_directory(log, move |dir| {
            let renamed = dir.rename_log(now)?;
            // The runtime has to reopen its log in any case. `compress` tries again, and tells.
            let _ = dir.remove_surplus(max_files);
            Ok(renamed.map(|name| path.with_file_name(name)))
        })
        .await
    }

    async fn rename_back(&self, renamed: &Path, log: &Path) -> io::Result<()> {
        let name = file_name(renamed)?;
        self.in_directory(log, move |dir| Ok(dir.rename(&name, &dir.log)?)).await
    }

    async fn compress(&self, log: &Path, max_files: u32) -> io::Result<()> {
        let compressed = self.in_directory(log, move |dir| {
            let removed = dir.remove_unfinished().and(dir.remove_surplus(max_files));
            removed.and(dir.compress_rotated())
        });
        match compressed.await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}

/// The directory of a container's logs, opened through no symlink.
struct LogDirectory {
    fd: OwnedFd,
    /// The name of the log in it.
    log: String,
}

impl LogDirectory {
    fn open(logs_dir: &Path, log: &Path) -> io::Result<Self> {
        Ok(Self { fd: open_directory(logs_dir, log)?, log: file_name(log)? })
    }

    /// A path to the log that nobody can lead elsewhere.
    fn own_path(&self) -> PathBuf {
        own_path(&self.fd).join(&self.log)
    }

    fn size(&self) -> io::Result<Option<u64>> {
        let stat = match rustix::fs::statat(&self.fd, &self.log, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(Some(u64::try_from(stat.st_size).unwrap_or(0))),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
        }
    }

    /// The new name, which comes after those of all rotated files. `None`: there is no log.
    fn rename_log(&self, now: Wall) -> io::Result<Option<String>> {
        if self.size()?.is_none() {
            return Ok(None);
        }
        let newest = self.rotated()?.pop();
        let mut next = NextName::after(newest.map(|file| file.time), local_time(now));
        loop {
            let name = format!("{}.{}", self.log, next.suffix());
            match self.rename(&self.log, &name) {
                Ok(()) => return Ok(Some(name)),
                Err(Errno::NOENT) => return Ok(None),
                Err(Errno::EXIST) if next.number < MAX_PER_TIME => next.number += 1,
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), Errno> {
        rustix::fs::renameat_with(&self.fd, from, &self.fd, to, RenameFlags::NOREPLACE)
    }

    /// Files that a killed agent was compressing, and those of which there is a compressed one as well.
    fn remove_unfinished(&self) -> io::Result<()> {
        let names = self.names()?;
        let is_left = |name: &str| match name.strip_suffix(UNFINISHED) {
            Some(plain) => self.time_of(plain).is_some(),
            None => self.time_of(name).is_some() && names.contains(&format!("{name}{COMPRESSED}")),
        };
        names.iter().filter(|name| is_left(name)).map(|name| self.unlink(name)).fold(Ok(()), Result::and)
    }

    /// The log itself counts as one of `max_files`.
    fn remove_surplus(&self, max_files: u32) -> io::Result<()> {
        let rotated = self.rotated()?;
        let kept = usize::try_from(max_files.saturating_sub(1)).unwrap_or(usize::MAX);
        let surplus = &rotated[..rotated.len().saturating_sub(kept)];
        surplus.iter().map(|file| self.unlink(&file.name)).fold(Ok(()), Result::and)
    }

    fn compress_rotated(&self) -> io::Result<()> {
        let rotated = self.rotated()?;
        let older = rotated.split_last().map_or(&[][..], |(_, older)| older);
        for file in older.iter().filter(|file| !file.is_compressed()) {
            match self.compress(&file.name) {
                // It became one too many meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
        Ok(())
    }

    fn compress(&self, name: &str) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut source = regular(File::from(rustix::fs::openat(&self.fd, name, flags, Mode::empty())?))?;
        if has_writer(&source) == Some(true) {
            // The runtime has yet to write what it read before it began the new log: next time.
            return Ok(());
        }
        let stat = rustix::fs::fstat(&source)?;
        if stat.st_size > MAX_COMPRESSED_BYTES {
            return Ok(());
        }
        let unfinished = format!("{name}{UNFINISHED}");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(stat.st_mode & 0o777);
        let target = File::from(rustix::fs::openat(&self.fd, &unfinished, flags, mode)?);
        let written = (|| {
            // Fast rather than small: a container may write faster than the best compression keeps up with.
            let mut encoder = GzEncoder::new(target, Compression::fast());
            io::copy(&mut source.by_ref().take(u64::try_from(stat.st_size).unwrap_or(0)), &mut encoder)?;
            let target = encoder.finish()?;
            let time = |sec: i64, nsec: u64| rustix::fs::Timespec { tv_sec: sec, tv_nsec: nsec as _ };
            let times = Timestamps {
                last_access: time(stat.st_atime as i64, stat.st_atime_nsec as u64),
                last_modification: time(stat.st_mtime as i64, stat.st_mtime_nsec as u64),
            };
            rustix::fs::futimens(&target, &times)?;
            self.rename(&unfinished, &format!("{name}{COMPRESSED}"))?;
            Ok(())
        })();
        if written.is_err() {
            let _ = self.unlink(&unfinished);
            return written;
        }
        self.unlink(name)
    }

    /// Regular files with a name that a rotation gives, oldest first. Names of others stay as they are.
    fn rotated(&self) -> io::Result<Vec<RotatedFile>> {
        let mut rotated = Vec::new();
        for name in self.names()? {
            let plain = name.strip_suffix(COMPRESSED).unwrap_or(&name).to_owned();
            let Some(time) = self.time_of(&plain) else { continue };
            let stat = rustix::fs::statat(&self.fd, &name, AtFlags::SYMLINK_NOFOLLOW);
            if stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile) {
                rotated.push(RotatedFile { time, plain, name });
            }
        }
        rotated.sort_by(|a, b| (&a.time, &a.name).cmp(&(&b.time, &b.name)));
        Ok(rotated)
    }

    /// When the file of this name was rotated, if it is a rotated file of this log.
    fn time_of(&self, plain: &str) -> Option<RotationTime> {
        RotationTime::parse(plain.strip_prefix(&self.log)?.strip_prefix('.')?)
    }

    /// Of files beside the log that may be its rotated ones.
    fn names(&self) -> io::Result<BTreeSet<String>> {
        let prefix = format!("{}.", self.log);
        let mut names = BTreeSet::new();
        for entry in Dir::read_from(&self.fd)? {
            let entry = entry?;
            let name = entry.file_name().to_str().ok().filter(|name| name.starts_with(&prefix));
            names.extend(name.map(str::to_owned));
            if names.len() >= MAX_NAMES {
                break;
            }
        }
        Ok(names)
    }

    fn unlink(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

struct RotatedFile {
    time: RotationTime,
    name: String,
    /// Its name before it was compressed.
    plain: String,
}

impl RotatedFile {
    fn is_compressed(&self) -> bool {
        self.name != self.plain
    }
}

/// The time in the name of a rotated file, and its number among those of that time.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct RotationTime {
    time: String,
    number: u32,
}

impl RotationTime {
    /// `20260102-030405`, or `20260102-030405-000001`.
    pub(super) fn parse(suffix: &str) -> Option<Self> {
        let digits =
            |text: &str, count: usize| text.len() == count && text.bytes().all(|b| b.is_ascii_digit());
        let mut parts = suffix.split('-');
        let (day, time) = (parts.next()?, parts.next()?);
        let number = match (parts.next(), parts.next()) {
            (None, None) => 0,
            (Some(number), None) if digits(number, NUMBER_DIGITS) => number.parse().ok()?,
            _ => return None,
        };
        (digits(day, 8) && digits(time, 6)).then(|| Self { time: format!("{day}-{time}"), number })
    }
}

/// The name that a log gets: never one that sorts before an older file, also when the clock was set back.
struct NextName {
    time: String,
    number: u32,
}

impl NextName {
    fn after(newest: Option<RotationTime>, now: String) -> Self {
        match newest {
            Some(newest) if newest.time >= now => Self { time: newest.time, number: newest.number + 1 },
            _ => Self { time: now, number: 0 },
        }
    }

    fn suffix(&self) -> String {
        match self.number {
            0 => self.time.clone(),
            number => format!("{}-{number:0NUMBER_DIGITS$}", self.time),
        }
    }
}

fn file_name(path: &Path) -> io::Result<String> {
    let name = path.file_name().and_then(|name| name.to_str());
    let unnamed = || io::Error::new(io::ErrorKind::InvalidInput, format!("{} is no file", path.display()));
    name.map(str::to_owned).ok_or_else(unnamed)
}

/// As upstream names rotated logs, in the time zone of the host.
fn local_time(now: Wall) -> String {
    let time = jiff::Timestamp::from_nanosecond(i128::from(now.0)).unwrap_or_default();
    time.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y%m%d-%H%M%S").to_string()
}

#[cfg(test)]
mod tests;
