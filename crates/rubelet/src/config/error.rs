//! Why a configuration can't be loaded.

use std::path::PathBuf;

use super::gates::GateError;

/// A failure of [`super::load`]; each names the file or the field it is about.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("can't read configuration file {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("kubelet config file {path:?} was empty")]
    Empty { path: PathBuf },
    #[error("configuration file {} is neither YAML nor JSON", path.display())]
    Syntax {
        path: PathBuf,
        #[source]
        source: Box<serde_saphyr::Error>,
    },
    #[error("configuration file {}: {key} occurs twice (line {line})", path.display())]
    DuplicateKey { path: PathBuf, key: String, line: u64 },
    #[error("configuration file {} does not hold an object", path.display())]
    NotAnObject { path: PathBuf },
    #[error("configuration file {}: {field} is missing", path.display())]
    MissingKind { path: PathBuf, field: &'static str },
    #[error(
        "configuration file {}: unknown apiVersion/kind {api_version}, {kind} (only kubelet.config.k8s.io/v1beta1, KubeletConfiguration is supported)",
        path.display()
    )]
    WrongKind { path: PathBuf, api_version: String, kind: String },
    #[error("configuration file {}: {field}", path.display())]
    Field {
        path: PathBuf,
        field: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("can't walk drop-in directory {}", path.display())]
    Directory {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the merged configuration is wrong at {field}")]
    Merged {
        field: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("invalid configuration: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Gates(Vec<GateError>),
}
