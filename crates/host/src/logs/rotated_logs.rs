//! Finds log files that were rotated away while a slow reader was still reading an older one.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use model::Wall;

use super::log_file::LogFile;
use super::open::{open_directory, open_log, own_path};
use super::rotate::RotationTime;

/// At most this many files are examined per directory, and opened at a time. A runtime keeps five.
const MAX_ENTRIES: usize = 1000;
pub(super) const MAX_OPEN_FILES: usize = 64;

const PACKED: &str = ".gz";

/// A file that was rotated away.
pub(super) struct RotatedLog {
    pub path: PathBuf,
    /// Its name before it was compressed. In their order these are times in their order.
    pub plain_name: String,
    pub is_packed: bool,
    /// Its name is one that this agent gives.
    is_ours: bool,
    inode: u64,
    modified: Modified,
}

/// A rotated file is no longer written. Its compressed form has the same time, and another inode.
type Modified = (i64, i64);

impl RotatedLog {
    /// Also tells whether it is compressed, which it may have become meanwhile.
    pub fn open(&self, logs_dir: &Path) -> io::Result<(File, bool)> {
        match open_log(logs_dir, &self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && !self.is_packed => {
                let packed = self.path.with_file_name(format!("{}{PACKED}", self.plain_name));
                Ok((open_log(logs_dir, &packed)?, true))
            }
            other => Ok((other?, self.is_packed)),
        }
    }

    pub fn last_write(&self) -> Wall {
        let (secs, nanos) = self.modified;
        Wall(secs.saturating_mul(1_000_000_000).saturating_add(nanos))
    }
}

/// Rotated files that the reader does not need.
#[derive(Default)]
pub(super) struct RotatedLogs {
    /// Inode and time: inodes are reused.
    done: BTreeSet<(u64, Modified)>,
    done_names: BTreeSet<String>,
}

impl RotatedLogs {
    /// All rotated files that exist already are older than the log.
    pub fn existing_beside(logs_dir: &Path, log: &Path) -> Self {
        let mut found = Self::default();
        for file in siblings(logs_dir, log) {
            found.done.insert((file.inode, file.modified));
            found.done_names.insert(file.plain_name);
        }
        found
    }

    /// Marks this file as read.
    pub fn mark_done(&mut self, file: &fs::Metadata) {
        self.done.insert((file.ino(), modified(file)));
    }

    fn is_done(&self, file: &RotatedLog) -> bool {
        match file.is_packed {
            // Another program may give a name a second time.
            false => {
                self.done.contains(&(file.inode, file.modified))
                    || (file.is_ours && self.done_names.contains(&file.plain_name))
            }
            true => {
                self.done_names.contains(&file.plain_name)
                    || self.done.iter().any(|(_, modified)| *modified == file.modified)
            }
        }
    }

    /// The files that were rotated after the one that was read (`old`) and before the one at the log's path now
    /// (`new`), in order.
    pub fn between(
        &mut self,
        logs_dir: &Path,
        log: &Path,
        old: &fs::Metadata,
        new: &fs::Metadata,
    ) -> io::Result<Vec<LogFile>> {
        let mut missed = siblings(logs_dir, log);
        // Under whatever name it is now.
        self.mark_done(old);
        let read = missed.iter().filter(|file| file.inode == old.ino());
        self.done_names.extend(read.map(|file| file.plain_name.clone()));
        missed.retain(|file| file.inode != old.ino() && file.inode != new.ino() && !self.is_done(file));
        missed.sort_by(|a, b| (a.modified, &a.path).cmp(&(b.modified, &b.path)));
        let mut files = Vec::new();
        for file in missed.into_iter().take(MAX_OPEN_FILES) {
            // While it is being compressed there are two of it.
            if !self.done_names.insert(file.plain_name.clone()) && file.is_packed {
                continue;
            }
            self.done.insert((file.inode, file.modified));
            match file.open(logs_dir) {
                Ok((opened, true)) => files.push(LogFile::packed(opened, 0)),
                Ok((opened, false)) => files.push(LogFile::plain(opened)),
                // It was removed meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(files)
    }
}

fn modified(file: &fs::Metadata) -> Modified {
    (file.mtime(), file.mtime_nsec())
}

/// Regular files whose name is the log's, a dot, and a time or number, compressed or not. Files that are being compressed
/// are left out.
pub(super) fn siblings(logs_dir: &Path, log: &Path) -> Vec<RotatedLog> {
    let (Some(dir), Some(name)) = (log.parent(), log.file_name().and_then(|name| name.to_str())) else {
        return Vec::new();
    };
    let Ok(opened) = open_directory(logs_dir, log) else { return Vec::new() };
    let Ok(entries) = fs::read_dir(own_path(&opened)) else { return Vec::new() };
    let found = entries.flatten().take(MAX_ENTRIES).filter_map(|entry| {
        let found = entry.file_name().into_string().ok()?;
        let rest = found.strip_prefix(name)?.strip_prefix('.')?;
        let is_rotated = rest.starts_with(|first: char| first.is_ascii_digit()) && !rest.ends_with("tmp");
        let file = entry.metadata().ok().filter(|file| is_rotated && file.is_file())?;
        let plain_name = found.strip_suffix(PACKED).unwrap_or(&found).to_owned();
        Some(RotatedLog {
            path: dir.join(&found),
            is_ours: RotationTime::parse(rest.strip_suffix(PACKED).unwrap_or(rest)).is_some(),
            is_packed: plain_name.len() < found.len(),
            plain_name,
            inode: file.ino(),
            modified: modified(&file),
        })
    });
    found.collect()
}
