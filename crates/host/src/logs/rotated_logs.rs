//! Finds log files that were rotated away while a slow reader was still reading an older one.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::open::open_log;

/// At most this many files are examined per directory, and opened at a time. A runtime keeps five.
const MAX_ENTRIES: usize = 1000;
const MAX_OPEN_FILES: usize = 16;

/// Inode and modification time: inodes are reused, and a rotated file is no longer written.
type FileMark = (u64, i64, i64);

/// Rotated files that the reader does not need.
#[derive(Default)]
pub(super) struct RotatedLogs {
    done: BTreeSet<FileMark>,
}

impl RotatedLogs {
    /// All rotated files that exist already are older than the log.
    pub fn existing_beside(log: &Path) -> Self {
        Self { done: siblings(log).into_iter().map(|(mark, _)| mark).collect() }
    }

    /// Marks this file as read.
    pub fn mark_done(&mut self, file: &fs::Metadata) {
        self.done.insert(mark(file));
    }

    /// The files that were rotated after the one that was read (`old`) and before the one at the log's path now
    /// (`new`), in order.
    pub fn between(
        &mut self,
        logs_dir: &Path,
        log: &Path,
        old: &fs::Metadata,
        new: &fs::Metadata,
    ) -> io::Result<Vec<File>> {
        let ends = [old.ino(), new.ino()];
        let mut missed = siblings(log);
        missed.retain(|(mark, _)| !ends.contains(&mark.0) && !self.done.contains(mark));
        missed.sort_by(|(one, a), (other, b)| (one.1, one.2, a).cmp(&(other.1, other.2, b)));
        let mut files = Vec::new();
        for (mark, path) in missed.into_iter().take(MAX_OPEN_FILES) {
            self.done.insert(mark);
            match open_log(logs_dir, &path) {
                Ok(file) => files.push(file),
                // It was compressed or removed meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(files)
    }
}

fn mark(file: &fs::Metadata) -> FileMark {
    (file.ino(), file.mtime(), file.mtime_nsec())
}

/// Regular files whose name is the log's, a dot, and a time or number. Files that are or are being compressed are left
/// out.
fn siblings(log: &Path) -> Vec<(FileMark, PathBuf)> {
    let (Some(dir), Some(name)) = (log.parent(), log.file_name().and_then(|name| name.to_str())) else {
        return Vec::new();
    };
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let found = entries.flatten().take(MAX_ENTRIES).filter_map(|entry| {
        let found = entry.file_name().into_string().ok()?;
        let rest = found.strip_prefix(name)?.strip_prefix('.')?;
        let is_plain = rest.starts_with(|first: char| first.is_ascii_digit())
            && !rest.ends_with("gz")
            && !rest.ends_with("tmp");
        let file = entry.metadata().ok().filter(|file| is_plain && file.is_file())?;
        Some((mark(&file), entry.path()))
    });
    found.collect()
}
