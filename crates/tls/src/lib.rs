//! TLS configurations that more than one adapter needs.

use std::io;
use std::sync::Arc;

use hyper_rustls::ConfigBuilderExt;
use rustls::client::WantsClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ConfigBuilder, DigitallySignedStruct, Error, SignatureScheme, WantsVerifier};

/// A client that has yet to say which servers it trusts.
pub fn client() -> ConfigBuilder<ClientConfig, WantsVerifier> {
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring has the default protocol versions")
}

/// A client that trusts the certificate authorities of this machine, which are read now.
pub fn trusting_the_system() -> io::Result<ConfigBuilder<ClientConfig, WantsClientCert>> {
    client().with_native_roots()
}

/// A client that encrypts and does not verify the server: for pods, for a runtime that streams from this machine, both of
/// which rarely have signed certificates, and for kubeconfigs with `insecure-skip-tls-verify`.
pub fn trusting_everybody() -> ConfigBuilder<ClientConfig, WantsClientCert> {
    let builder = client();
    let schemes = builder.crypto_provider().signature_verification_algorithms.supported_schemes();
    builder.dangerous().with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate { schemes }))
}

/// Signatures are not checked either: that somebody holds the key of a certificate which anybody may have made proves
/// nothing. So a certificate that can't be parsed, such as one of version 1, is accepted as well.
#[derive(Debug)]
struct AcceptAnyCertificate {
    schemes: Vec<SignatureScheme>,
}

impl ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes.clone()
    }
}
