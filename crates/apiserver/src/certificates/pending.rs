//! Stores a request that waits for its certificate, so that a restarted agent continues with it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::template::CertificateTemplate;
use super::{CertificateError, failed};
use crate::atomic_file;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PendingRequest {
    pub name: String,
    pub uid: String,
    pub template: CertificateTemplate,
    /// PEM.
    pub key: String,
}

/// The file lies next to the certificates, because it holds a key as well.
pub struct PendingFile {
    path: PathBuf,
}

impl PendingFile {
    pub fn new(dir: &Path, prefix: &str) -> Self {
        Self { path: dir.join(format!("{prefix}-pending.json")) }
    }

    /// A file that can't be parsed counts as none.
    pub fn read(&self) -> Option<PendingRequest> {
        let bytes = fs::read(&self.path).ok()?;
        serde_json::from_slice(&bytes)
            .inspect_err(|error| tracing::warn!("ignoring {}: {error}", self.path.display()))
            .ok()
    }

    pub fn write(&self, pending: &PendingRequest) -> Result<(), CertificateError> {
        let bytes = serde_json::to_vec(pending).map_err(|error| failed("write", &self.path)(error.into()))?;
        atomic_file::replace_file(&self.path, &bytes).map_err(failed("write", &self.path))
    }

    pub fn remove(&self) {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!("can't remove {}: {error}", self.path.display());
            }
            _ => {}
        }
    }
}
