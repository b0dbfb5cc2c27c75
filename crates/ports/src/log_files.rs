//! The log files of containers, as far as they are rotated.

use std::io;
use std::path::{Path, PathBuf};

use async_trait::async_trait;

/// Each `log` must lie below the directory of all logs; no symlink is followed there, and only regular files count.
#[async_trait]
pub trait ContainerLogFiles: Send + Sync {
    /// In bytes. `None`: there is no such file.
    async fn size(&self, log: &Path) -> io::Result<Option<u64>>;

    /// Returns when the file has another size than `size`, or is gone.
    async fn wait_until_written(&self, log: &Path, size: u64) -> io::Result<()>;

    /// Renames the log, and removes the oldest rotated files so that there are `max_files` with the new one. Returns
    /// where the log is now; `None`: there is no such file.
    async fn rename(&self, log: &Path, max_files: u32) -> io::Result<Option<PathBuf>>;

    /// Undoes [`Self::rename`], unless there is a new log.
    async fn rename_back(&self, renamed: &Path, log: &Path) -> io::Result<()>;

    /// Compresses the rotated files but for the newest, which may still be written and read, and removes those beyond
    /// `max_files`.
    async fn compress(&self, log: &Path, max_files: u32) -> io::Result<()>;
}
