//! The node's certificates: where they are stored, and how and when they are requested.
//!
//! ```text
//!            no certificate          certificate              deadline (70-90 % of its life),
//!  bootstrap ---------------> asks ----------------> waits -- or names changed ---------------+
//!                              ^                                                              |
//!                              +--------------------------------------------------------------+
//! ```
//!
//! An accepted request is stored with its key at once, so that an agent that is killed while it waits for approval
//! continues with the same request.

mod bootstrap;
mod der;
mod issue;
mod key;
mod loaded;
mod loss;
mod pending;
mod pod_key;
mod rotate;
mod store;
mod template;

use std::io;
use std::path::PathBuf;

use ports::ApiError;

pub use bootstrap::{BootstrapError, ClientIdentity, EstablishedIdentity};
pub use loaded::LoadedCertificate;
pub use loss::CertificateLoss;
pub use pod_key::PodKey;
pub use rotate::{CertificateRotator, ReplacedCertificateObserver, RotationStatus};
pub use store::CertificateStore;
pub use template::{CertificatePurpose, CertificateTemplate};

use crate::kubeconfig::PemProblem;

/// A certificate could not be read, stored or obtained.
#[derive(thiserror::Error, Debug)]
pub enum CertificateError {
    #[error("can't {operation} {}", path.display())]
    File {
        operation: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} {problem}", path.display())]
    Pem { path: PathBuf, problem: PemProblem },
    #[error("{}: certificate and key can't be used", path.display())]
    Unusable { path: PathBuf, detail: String },
    #[error("{} must be a symbolic link", path.display())]
    NotASymlink { path: PathBuf },
    #[error("the private key can't be made or used: {detail}")]
    Key { detail: String },
    #[error("the issued certificate {problem}")]
    Issued { problem: String },
    #[error("certificate signing request {name:?} was denied: {reason}: {message}")]
    Denied { name: String, reason: String, message: String },
    #[error("certificate signing request {name:?} failed: {reason}: {message}")]
    Failed { name: String, reason: String, message: String },
    #[error("certificate signing request {name:?} was deleted")]
    Deleted { name: String },
    #[error("certificate signing request {name:?} was replaced by another object of that name")]
    Replaced { name: String },
    #[error("certificate signing request {name:?} exists and does not fit: {problem}")]
    Incompatible { name: String, problem: String },
    #[error("certificate signing request {name:?} was not issued within {after:?}")]
    NotIssued { name: String, after: std::time::Duration },
    #[error(transparent)]
    Api(#[from] ApiError),
}

pub(crate) fn failed(
    operation: &'static str,
    path: &std::path::Path,
) -> impl FnOnce(io::Error) -> CertificateError {
    let path = path.to_owned();
    move |source| CertificateError::File { operation, path, source }
}

#[cfg(test)]
mod tests;
