//! TLS of the secure port: versions and suites, the serving certificate, the CAs of client certificates.
//!
//! ```text
//!   tlsCertFile + tlsPrivateKeyFile ─(files change)─┐
//!   <cert-dir>/kubelet.crt, .key (self-signed) ─────┼─> ServingCertificate ──> every new handshake
//!   issued by the cluster (others fill the slot) ───┘
//!   clientCAFile ─(file changes)─> ClientAuthority ──> every request
//! ```
//!
//! The handshake only proves that the client has the key of its certificate. The certificate is verified for each
//! request. So a client with an expired or unknown certificate gets 401 and not a broken connection, and a new CA file
//! is used at once.

mod certificate;
mod client;
mod settings;
mod watch;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;

pub use certificate::ServingCertificate;
pub use client::ClientAuthority;
pub use settings::TlsSettings;

#[derive(thiserror::Error, Debug)]
pub enum TlsError {
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("there is no certificate in {origin}")]
    NoCertificate { origin: String },
    #[error("there is no usable private key in {origin}")]
    NoKey { origin: String },
    #[error("certificate and private key of {origin} do not match")]
    Pair {
        origin: String,
        #[source]
        source: rustls::Error,
    },
    #[error("clientCAFile {} can't be used", path.display())]
    Authority {
        path: PathBuf,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("cannot make a self-signed certificate for {host}")]
    SelfSigned {
        host: String,
        #[source]
        source: rcgen::Error,
    },
    #[error("unknown tls version {0:?}")]
    UnknownVersion(String),
    #[error("Cipher suite {0} not supported or doesn't exist")]
    UnknownSuite(String),
    #[error("tlsCurvePreferences: no curve of {0:?} is supported")]
    UnknownCurves(Vec<i32>),
    #[error("no cipher suite is usable with the configured TLS versions")]
    Settings(#[source] rustls::Error),
}

/// What each handshake uses. With an authority, clients are asked for a certificate.
pub fn server_config(
    settings: &TlsSettings,
    certificate: Arc<ServingCertificate>,
    authority: Option<Arc<ClientAuthority>>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let (provider, versions) = settings.resolve()?;
    let provider = Arc::new(provider);
    let asking = Arc::new(client::RequestClientCertificate::new(authority.is_some(), &provider));
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions)
        .map_err(TlsError::Settings)?
        .with_client_cert_verifier(asking)
        .with_cert_resolver(certificate);
    // Streams need upgrades, which only this version has.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn provider() -> CryptoProvider {
    rustls::crypto::ring::default_provider()
}

#[cfg(test)]
pub(crate) mod tests;
