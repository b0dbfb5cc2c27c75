//! Verifies client certificates against `clientCAFile`, and takes the user and its groups from them.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use ports::UserInfo;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{TlsError, provider, watch};

/// Where the identity of a certificate goes into what the API server is asked.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
/// The attribute of a subject that holds a user's UID.
const UID_ATTRIBUTE: &str = "1.3.6.1.4.1.57683.2";

/// Why a client certificate is not accepted.
#[derive(thiserror::Error, Debug)]
pub enum BadCertificate {
    #[error("x509: {0}")]
    Refused(#[from] rustls::Error),
    #[error("x509: the certificate can't be read")]
    Unreadable,
}

/// The CAs of `clientCAFile`.
#[derive(Debug)]
pub struct ClientAuthority {
    verifier: ArcSwap<Verifier>,
}

/// `ArcSwap` needs a sized type.
#[derive(Debug)]
struct Verifier(Arc<dyn ClientCertVerifier>);

impl ClientAuthority {
    /// Reads the file now, and again when it changes. A file that can't be used is logged, and the old CAs stay.
    pub fn from_file(path: &Path, stop: CancellationToken) -> Result<Arc<Self>, TlsError> {
        let read =
            |path: &Path| fs::read(path).map_err(|source| TlsError::Read { path: path.to_owned(), source });
        let mut last = read(path)?;
        let authority = Arc::new(Self { verifier: ArcSwap::from_pointee(verifier(path, &last)?) });
        let (watched, file) = (authority.clone(), path.to_owned());
        watch::spawn_file_watch(vec![path.to_owned()], stop, move || {
            let now = match read(&file) {
                Ok(now) if now == last => return,
                Ok(now) => now,
                Err(error) => {
                    return tracing::warn!(%error, "reading clientCAFile failed; the client CAs stay as they were");
                }
            };
            match verifier(&file, &now) {
                Ok(verifier) => {
                    watched.verifier.store(Arc::new(verifier));
                    last = now;
                    tracing::info!(path = %file.display(), "the client CAs changed");
                }
                Err(error) => {
                    tracing::warn!(%error, "clientCAFile has no usable certificates; the client CAs stay as they were")
                }
            }
        });
        Ok(authority)
    }

    /// The user that this chain names. `None` when it names none.
    pub fn identify(&self, chain: &[CertificateDer<'_>]) -> Result<Option<UserInfo>, BadCertificate> {
        let Some((leaf, intermediates)) = chain.split_first() else { return Ok(None) };
        self.verifier.load().0.verify_client_cert(leaf, intermediates, UnixTime::now())?;
        identity(leaf)
    }
}

fn verifier(path: &Path, pem: &[u8]) -> Result<Verifier, TlsError> {
    let failed = |source| TlsError::Authority { path: path.to_owned(), source };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        roots
            .add(certificate.map_err(|error| failed(error.into()))?)
            .map_err(|error| failed(error.into()))?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(provider()))
        .build()
        .map_err(|error| failed(error.into()))?;
    Ok(Verifier(verifier))
}

/// The common name is the user, organizations are its groups.
fn identity(leaf: &CertificateDer<'_>) -> Result<Option<UserInfo>, BadCertificate> {
    let (_, certificate) = X509Certificate::from_der(leaf).map_err(|_| BadCertificate::Unreadable)?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().last().and_then(|name| name.as_str().ok()).unwrap_or_default();
    if name.is_empty() {
        return Ok(None);
    }
    let uid = subject.iter_attributes().find(|part| part.attr_type().to_id_string() == UID_ATTRIBUTE);
    let uid = uid.and_then(|part| part.as_str().ok()).unwrap_or_default();
    let groups = subject.iter_organization().filter_map(|group| group.as_str().ok());
    let fingerprint: String = Sha256::digest(leaf).iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(Some(UserInfo {
        name: name.to_owned(),
        uid: uid.to_owned(),
        groups: groups.map(str::to_owned).collect(),
        extra: [(CREDENTIAL_ID.to_owned(), vec![format!("X509SHA256={fingerprint}")])].into(),
    }))
}

/// Asks for a certificate and lets the client prove that it has the key; judges nothing else.
#[derive(Debug)]
pub(super) struct RequestClientCertificate {
    wanted: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl RequestClientCertificate {
    pub fn new(wanted: bool, provider: &CryptoProvider) -> Self {
        Self { wanted, algorithms: provider.signature_verification_algorithms }
    }
}

impl ClientCertVerifier for RequestClientCertificate {
    fn offer_client_auth(&self) -> bool {
        self.wanted
    }
    fn client_auth_mandatory(&self) -> bool {
        false
    }
    /// None: the CAs may change, and a client that has one certificate shows it anyway.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }
    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
