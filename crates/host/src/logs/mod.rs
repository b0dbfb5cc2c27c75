//! Reads container log files as the runtime writes them.
//!
//! A container with a hostPath on the logs directory could put a symlink to any file of the node where a log is
//! expected. So files are opened beneath the logs directory without following any symlink, and only regular files are
//! read.

mod earlier_files;
mod file_lease;
mod line;
mod log_file;
mod open;
pub(crate) mod render;
mod rotate;
mod rotated_logs;
mod stream;
mod tail;
mod write_notices;

use std::io;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use futures::future::BoxFuture;
use ports::{ContainerLogs, LogBytes};

pub use open::open_log;
pub use ports::{LogOptions, LogOutput};
pub use rotate::HostLogFiles;
pub use stream::stream;

pub(crate) use open::regular;
pub(crate) use tail::read_tail;

/// The logs below one directory.
pub struct HostLogs {
    logs_dir: PathBuf,
}

impl HostLogs {
    pub fn new(logs_dir: impl Into<PathBuf>) -> Self {
        Self { logs_dir: logs_dir.into() }
    }
}

#[async_trait]
impl ContainerLogs for HostLogs {
    async fn open(
        &self,
        path: &Path,
        options: LogOptions,
        ended: BoxFuture<'static, ()>,
    ) -> io::Result<LogBytes> {
        stream::open_stream(&self.logs_dir, path, options, ended).await
    }
}

#[cfg(test)]
mod stream_tests;
