//! Logs that the runtime writes on this node.

use std::io;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use model::Wall;

/// Which of a container's outputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogOutput {
    #[default]
    Both,
    Stdout,
    Stderr,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Go on until the container has ended.
    pub follow: bool,
    /// Begin with the last so many lines of the file.
    pub tail_lines: Option<u64>,
    /// Leave out what is older.
    pub since: Option<Wall>,
    /// Put the time before every line.
    pub timestamps: bool,
    /// Stop after so many bytes.
    pub limit_bytes: Option<u64>,
    /// How long a log that holds nothing yet is waited for, when it is not followed.
    pub first_line_within: Duration,
    pub output: LogOutput,
}

pub type LogBytes = BoxStream<'static, io::Result<Bytes>>;

/// Reads logs of containers from disk. The next piece is read when it is asked for.
#[async_trait]
pub trait ContainerLogs: Send + Sync {
    /// `path` must be a regular file below the directory of all logs. `ended` tells that the container writes no
    /// more; it is only waited for when following.
    async fn open(
        &self,
        path: &Path,
        options: LogOptions,
        ended: BoxFuture<'static, ()>,
    ) -> io::Result<LogBytes>;
}
