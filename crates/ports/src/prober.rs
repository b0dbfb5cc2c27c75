//! Probes over the network, and the place where results of probes outlive the agent.

use async_trait::async_trait;
use model::PodUid;
use model::probe::{NetworkCheck, ProbeOutcome, ProbeRecord};

/// Asks containers over the network.
#[async_trait]
pub trait Prober: Send + Sync {
    /// One attempt, which takes no longer than `timeout`. Dropping the future ends it.
    async fn probe(&self, check: &NetworkCheck, timeout: std::time::Duration) -> ProbeOutcome;
}

#[derive(thiserror::Error, Debug)]
pub enum ProbeRecordError {
    #[error("{operation} {path}")]
    Io {
        operation: &'static str,
        path: String,
        #[source]
        source: std::io::Error,
    },
    /// It is not what was written: cut short, or changed.
    #[error("{path} is damaged: {detail}")]
    Damaged { path: String, detail: String },
    #[error("{uid:?} is no name for a directory")]
    Name { uid: PodUid },
}

impl ProbeRecordError {
    /// The error and its causes in one line.
    pub fn user_message(&self) -> String {
        match std::error::Error::source(self) {
            Some(cause) => format!("{self}: {cause}"),
            None => self.to_string(),
        }
    }
}

/// What was found on disk.
#[derive(Debug, Default)]
pub struct ProbeRecords {
    pub records: Vec<(PodUid, ProbeRecord)>,
    /// Records that can't be used.
    pub problems: Vec<ProbeRecordError>,
}

#[async_trait]
pub trait ProbeRecordStore: Send + Sync {
    async fn load(&self) -> ProbeRecords;
    /// Replaces the pod's record as a whole. A pod whose directory is gone has none, and that is fine.
    async fn save(&self, uid: &PodUid, record: &ProbeRecord) -> Result<(), ProbeRecordError>;
}
