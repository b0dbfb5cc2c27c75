//! What a chain of certificates says.

use model::Wall;
use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The earliest notAfter in the chain. `None` if a certificate can't be parsed.
pub fn earliest_expiry(chain: &[CertificateDer<'_>]) -> Option<Wall> {
    let ends: Option<Vec<i64>> = chain
        .iter()
        .map(|der| X509Certificate::from_der(der).ok().map(|(_, cert)| cert.validity().not_after.timestamp()))
        .collect();
    ends?.into_iter().min().map(Wall::from_seconds)
}
