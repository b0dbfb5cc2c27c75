//! A kubeconfig file, read and resolved: the server, the trusted authorities, and the client's identity.
//!
//! All errors in the file are found here, and every message names the file and the field. Token files, certificate
//! files and exec plugins are read again later by `credential` and `connection`.

mod document;
mod resolve;
mod write;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use http::Uri;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

pub use write::write_bootstrapped_kubeconfig;

#[derive(thiserror::Error, Debug)]
pub enum KubeconfigError {
    #[error("kubeconfig {}: can't be read", file.display())]
    Read {
        file: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("kubeconfig {}: {message}", file.display())]
    Syntax { file: PathBuf, message: String },
    #[error("kubeconfig {}: {field}: {problem}", file.display())]
    Field { file: PathBuf, field: String, problem: String },
    /// A file that the kubeconfig names.
    #[error("kubeconfig {}: {field}: {}: can't be read", file.display(), names.display())]
    ReadNamed {
        file: PathBuf,
        field: String,
        names: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("kubeconfig {}: can't be written", file.display())]
    Write {
        file: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// The address of one server, and the identity to use.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedKubeconfig {
    /// The kubeconfig itself.
    pub file: PathBuf,
    pub server: Uri,
    pub trust: Trust,
    /// Verified instead of the server's own name.
    pub tls_server_name: Option<String>,
    pub proxy: Option<Uri>,
    pub certificate: Option<KeyPair>,
    /// Certificate and key, if the kubeconfig names files for both.
    pub certificate_files: Option<(PathBuf, PathBuf)>,
    pub credential: Credential,
    pub impersonate: Impersonation,
    /// Files whose content is part of this value: when one changes, the kubeconfig has to be read again.
    pub files: Vec<PathBuf>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Trust {
    /// The system's authorities.
    System,
    /// `file`: where the certificates were read from, unless they are inline in the kubeconfig.
    Authorities { certificates: Vec<CertificateDer<'static>>, pem: Vec<u8>, file: Option<PathBuf> },
    /// Accept any server certificate (insecure-skip-tls-verify).
    SkipVerification,
}

/// A certificate chain, its key, and the PEM text of both.
#[derive(Debug, PartialEq)]
pub struct KeyPair {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
}

impl Clone for KeyPair {
    fn clone(&self) -> Self {
        Self { chain: self.chain.clone(), key: self.key.clone_key() }
    }
}

#[derive(Clone, PartialEq)]
pub enum Credential {
    /// No credential besides the client certificate, if there is one.
    None,
    Token(String),
    /// Read again when it changes; `first` is used until the file was read.
    TokenFile {
        file: PathBuf,
        first: Option<String>,
    },
    Basic {
        username: String,
        password: String,
    },
    Exec(Box<ExecPlugin>),
}

impl std::fmt::Debug for Credential {
    /// Never prints the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Credential::None => f.write_str("None"),
            Credential::Token(_) => f.write_str("Token(..)"),
            Credential::TokenFile { file, .. } => write!(f, "TokenFile({})", file.display()),
            Credential::Basic { username, .. } => write!(f, "Basic({username})"),
            Credential::Exec(plugin) => write!(f, "Exec({})", plugin.command.display()),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Impersonation {
    pub user: Option<String>,
    pub uid: Option<String>,
    pub groups: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InteractiveMode {
    Never,
    IfAvailable,
    Always,
}

/// A program that prints credentials (`client.authentication.k8s.io`).
#[derive(Clone, PartialEq)]
pub struct ExecPlugin {
    pub command: PathBuf,
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub api_version: String,
    pub install_hint: Option<String>,
    pub interactive_mode: InteractiveMode,
    /// The `spec.cluster` that is passed to the plugin, if it asks for it.
    pub cluster_info: Option<serde_json::Value>,
}

/// Reads the file's current context. A kubelet has exactly one kubeconfig and merges none.
pub fn load(file: &Path) -> Result<ResolvedKubeconfig, KubeconfigError> {
    resolve::resolve(file, &read(file)?, true)
}

/// The same, but client certificate files are not read: they are managed elsewhere and need not exist yet.
pub fn load_without_client_certificate(file: &Path) -> Result<ResolvedKubeconfig, KubeconfigError> {
    resolve::resolve(file, &read(file)?, false)
}

fn read(file: &Path) -> Result<Vec<u8>, KubeconfigError> {
    std::fs::read(file).map_err(|source| KubeconfigError::Read { file: file.to_owned(), source })
}

impl KeyPair {
    /// Both may be the same text.
    pub fn from_pem(certificate: &[u8], key: &[u8]) -> Result<KeyPair, PemProblem> {
        Ok(KeyPair { chain: certificates(certificate)?, key: private_key(key)? })
    }
}

#[derive(thiserror::Error, Clone, Copy, Debug, PartialEq)]
pub enum PemProblem {
    #[error("holds no PEM certificate")]
    NoCertificate,
    #[error("holds a malformed PEM certificate")]
    MalformedCertificate,
    #[error("holds no PEM private key")]
    NoKey,
    #[error("holds a malformed PEM private key")]
    MalformedKey,
}

pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemProblem> {
    use rustls::pki_types::pem::PemObject;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|_| PemProblem::MalformedCertificate)?;
    if found.is_empty() {
        return Err(PemProblem::NoCertificate);
    }
    Ok(found)
}

pub fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, PemProblem> {
    use rustls::pki_types::pem::{Error, PemObject};
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| match error {
        Error::NoItemsFound => PemProblem::NoKey,
        _ => PemProblem::MalformedKey,
    })
}

#[cfg(test)]
mod tests;
