//! The TLS configuration for rustls, and TLS errors as messages for operators.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;

use ports::TlsFault;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, Error, InvalidMessage,
    OtherError, RootCertStore, SignatureScheme,
};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::kubeconfig::{KeyPair, Trust};

#[derive(thiserror::Error, Debug)]
pub enum TlsSetupError {
    #[error("the system's certificate authorities can't be read")]
    SystemRoots(#[source] io::Error),
    #[error("none of the certificate authorities can be used")]
    NoUsableAuthority,
    #[error("the client certificate and its key can't be used")]
    ClientCertificate(#[source] Error),
}

/// Without ALPN, which the connector sets.
pub fn client_config(trust: &Trust, pair: Option<&KeyPair>) -> Result<ClientConfig, TlsSetupError> {
    let builder = match trust {
        Trust::System => tls::trusting_the_system().map_err(TlsSetupError::SystemRoots)?,
        Trust::Authorities { certificates, .. } => {
            let builder = tls::client();
            let verifier = ConfiguredAuthorities::new(certificates, builder.crypto_provider().clone())?;
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        }
        Trust::SkipVerification => tls::trusting_everybody(),
    };
    match pair {
        None => Ok(builder.with_no_client_auth()),
        Some(pair) => builder
            .with_client_auth_cert(pair.chain.clone(), pair.key.clone_key())
            .map_err(TlsSetupError::ClientCertificate),
    }
}

/// Trusts the configured authorities. A server that presents one of these very certificates is also trusted: small
/// clusters often configure a self-signed server certificate as the authority, and webpki alone refuses it.
#[derive(Debug)]
struct ConfiguredAuthorities {
    inner: Arc<WebPkiServerVerifier>,
    shown: Vec<CertificateDer<'static>>,
}

impl ConfiguredAuthorities {
    fn new(
        certificates: &[CertificateDer<'static>],
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, TlsSetupError> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates.iter().cloned());
        let inner = WebPkiServerVerifier::builder_with_provider(roots.into(), provider)
            .build()
            .map_err(|_| TlsSetupError::NoUsableAuthority)?;
        Ok(Self { inner, shown: certificates.to_vec() })
    }
}

impl ServerCertVerifier for ConfiguredAuthorities {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verdict =
            self.inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verdict {
            Err(Error::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::BadSignature | CertificateError::Other(_),
            )) if self.shown.iter().any(|known| known.as_ref() == end_entity.as_ref()) => {
                check_validity_period(end_entity, now)?;
                let parsed = ParsedCertificate::try_from(end_entity)?;
                rustls::client::verify_server_name(&parsed, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

fn check_validity_period(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|error| {
        Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(io::Error::other(error)))))
    })?;
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if now > parsed.validity().not_after.timestamp() {
        return Err(CertificateError::Expired.into());
    }
    if now < parsed.validity().not_before.timestamp() {
        return Err(CertificateError::NotValidYet.into());
    }
    Ok(())
}

/// The TLS error in a failure, if there is one.
pub fn find_tls_fault(error: &(dyn StdError + 'static)) -> Option<(TlsFault, String)> {
    let mut at = Some(error);
    while let Some(error) = at {
        if let Some(found) = error.downcast_ref::<Error>() {
            return Some((fault(found), found.to_string()));
        }
        // An error inside an `io::Error` is not among its sources.
        let held = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if let Some(found) = held.and_then(|held| find_tls_fault(held)) {
            return Some(found);
        }
        at = error.source();
    }
    alert_in(&super::error_chain(error))
}

/// HTTP/2 reports only the text of a connection failure. An alert that arrives after our side of the handshake, as all
/// alerts about our certificate do, is visible only there.
fn alert_in(words: &str) -> Option<(TlsFault, String)> {
    let from = words.find(ALERT)?;
    let name = words[from + ALERT.len()..].split(|c: char| !c.is_alphanumeric()).next()?;
    let about_us = CLIENT_ALERTS.iter().any(|alert| format!("{alert:?}") == name);
    let fault = if about_us { TlsFault::ClientRefused } else { TlsFault::Other };
    Some((fault, words[from..].to_owned()))
}

const ALERT: &str = "received fatal alert: ";
const CLIENT_ALERTS: [AlertDescription; 8] = [
    AlertDescription::BadCertificate,
    AlertDescription::UnsupportedCertificate,
    AlertDescription::CertificateRevoked,
    AlertDescription::CertificateExpired,
    AlertDescription::CertificateUnknown,
    AlertDescription::CertificateRequired,
    AlertDescription::UnknownCA,
    AlertDescription::AccessDenied,
];

fn fault(error: &Error) -> TlsFault {
    match error {
        Error::InvalidCertificate(certificate) => match certificate {
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => TlsFault::ServerCertificateNotInForce,
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                TlsFault::NameMismatch
            }
            _ => TlsFault::UntrustedServer,
        },
        Error::AlertReceived(alert) if CLIENT_ALERTS.contains(alert) => TlsFault::ClientRefused,
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => TlsFault::NotTls,
        _ => TlsFault::Other,
    }
}
