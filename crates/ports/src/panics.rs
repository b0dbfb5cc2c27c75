//! Records of panics, which outlive the agent that panicked.

use async_trait::async_trait;
use model::panic_record::PanicRecord;

use crate::Disposition;

#[derive(Debug, thiserror::Error)]
pub enum PanicRecordError {
    #[error("could not {operation} {path}")]
    Io {
        operation: &'static str,
        path: String,
        #[source]
        source: std::io::Error,
    },
    #[error("{path} is damaged and counts as empty: {detail}")]
    Damaged { path: String, detail: String },
}

impl PanicRecordError {
    /// The error and its causes in one line.
    pub fn user_message(&self) -> String {
        match std::error::Error::source(self) {
            Some(cause) => format!("{self}: {cause}"),
            None => self.to_string(),
        }
    }

    pub fn disposition(&self) -> Disposition {
        match self {
            PanicRecordError::Io { .. } => Disposition::Retry,
            PanicRecordError::Damaged { .. } => Disposition::Refused,
        }
    }
}

#[async_trait]
pub trait PanicRecords: Send + Sync {
    /// Oldest first; none where nothing was ever recorded.
    async fn load(&self) -> Result<Vec<PanicRecord>, PanicRecordError>;

    /// Replaces all records. Once it returns, a crash of the machine does not lose them.
    async fn save(&self, records: &[PanicRecord]) -> Result<(), PanicRecordError>;
}
