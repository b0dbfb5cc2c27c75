//! Rotation of the logs of containers: how it is configured, and what is asked of the files.

use std::time::Duration;

use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LogRotationConfig {
    /// `containerLogMaxSize`.
    pub max_bytes: u64,
    /// `containerLogMaxFiles`: the log itself and its rotated files.
    pub max_files: u32,
    /// `containerLogMaxWorkers`: logs whose rotated files are compressed at once.
    pub workers: u32,
    /// `containerLogMonitorInterval`: when a failed rotation is tried again.
    pub interval: Duration,
}

impl Default for LogRotationConfig {
    fn default() -> Self {
        Self { max_bytes: 10 << 20, max_files: 5, workers: 1, interval: Duration::from_secs(10) }
    }
}

/// One call about the log of a container.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LogCall {
    Measure,
    /// Ends when the log has another size than this.
    AwaitWrite {
        size: u64,
    },
    /// Rename the log and let the runtime begin a new one. A log that is missing is begun.
    Rotate {
        max_files: u32,
    },
    /// Compress its rotated files but for the newest, and remove those that are too many.
    Compress {
        max_files: u32,
    },
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LogCallResult {
    /// `None`: there is no such file.
    Measured(Result<Option<u64>, String>),
    Written(Result<(), String>),
    Rotated(Result<(), String>),
    Compressed(Result<(), String>),
}

impl LogCall {
    /// Its result, had it failed.
    pub fn failed(&self, message: String) -> LogCallResult {
        match self {
            LogCall::Measure => LogCallResult::Measured(Err(message)),
            LogCall::AwaitWrite { .. } => LogCallResult::Written(Err(message)),
            LogCall::Rotate { .. } => LogCallResult::Rotated(Err(message)),
            LogCall::Compress { .. } => LogCallResult::Compressed(Err(message)),
        }
    }
}
