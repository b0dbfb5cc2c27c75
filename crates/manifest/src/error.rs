//! Why a manifest gave no pod.

use std::fmt;

use model::codec::CodecError;

use super::validate::FieldError;

/// Where a manifest was read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// One document of a file, counted from 0 among those that are not empty.
    File {
        path: String,
        document: usize,
    },
    Http {
        url: String,
    },
}

/// A refused manifest: where it was read and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ManifestError {
    pub origin: Origin,
    pub kind: ManifestErrorKind,
}

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ManifestError { origin, kind: refusal } = self;
        match (origin, refusal) {
            (
                Origin::File { .. },
                ManifestErrorKind::Undecodable(_) | ManifestErrorKind::UnexpectedKind(_),
            ) => {
                write!(f, "{origin}: {refusal}, please check config file")
            }
            _ => write!(f, "{origin}: {refusal}"),
        }
    }
}

/// The reason alone, without the place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestErrorKind {
    /// Not YAML, not JSON, or of a wrong shape.
    #[error("couldn't parse as pod({0})")]
    Undecodable(CodecError),
    /// Something else than a pod.
    #[error("couldn't parse as pod({0})")]
    UnexpectedKind(String),
    #[error("invalid runtime class: {0}")]
    RuntimeClass(String),
    #[error("invalid {kind}: {what}")]
    Object { kind: &'static str, what: String },
    #[error("invalid pod: name is needed for the pod")]
    MissingName,
    #[error("invalid pod: {}", error_list(.0))]
    Invalid(Vec<FieldError>),
    /// It needs objects that only an API server has.
    #[error("{0}")]
    References(String),
}

fn error_list(errors: &[FieldError]) -> String {
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    format!("[{}]", errors.join(", "))
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File { path, document: 0 } => f.write_str(path),
            Origin::File { path, document } => write!(f, "{path} (document {})", document + 1),
            Origin::Http { url } => f.write_str(url),
        }
    }
}
