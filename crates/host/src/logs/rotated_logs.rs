//! Files that a log was rotated away to. A reader who stands still while the log is rotated more than once finds there what
//! it has missed: neither the file that it reads nor the one at the log's path.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::open::open_log;

/// Looked at per directory, and opened at a time. A runtime's log has five.
const MAX_ENTRIES: usize = 1000;
const MAX_OPEN_FILES: usize = 16;

/// Inode and time of the last write: inodes are used again, and what was rotated away is not written to any more.
type FileMark = (u64, i64, i64);

/// Rotated files of which nothing more is wanted.
#[derive(Default)]
pub(super) struct RotatedLogs {
    done: BTreeSet<FileMark>,
}

impl RotatedLogs {
    /// Whatever is beside the log already is older than it.
    pub fn existing_beside(log: &Path) -> Self {
        Self { done: siblings(log).into_iter().map(|(mark, _)| mark).collect() }
    }

    /// This one was read to its end.
    pub fn mark_done(&mut self, file: &fs::Metadata) {
        self.done.insert(mark(file));
    }

    /// Those that came between the file that was read (`old`) and the one at the log's path now (`new`), in their order.
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
                // Packed or removed since.
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

/// Regular files that are called as the log, a dot, and a time or number; not those that were packed since, or are about
/// to be.
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
