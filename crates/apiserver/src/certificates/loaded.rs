//! A stored certificate, with its key.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use model::Wall;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::CertificateError;
use crate::kubeconfig::KeyPair;

/// The fields of the first certificate in the chain.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedCertificate {
    pub pair: Arc<KeyPair>,
    pub not_before: Wall,
    pub not_after: Wall,
    pub common_name: String,
    pub organizations: Vec<String>,
    pub dns_names: Vec<String>,
    pub addresses: Vec<IpAddr>,
}

impl LoadedCertificate {
    /// `path` is only used in error messages.
    pub fn new(pair: KeyPair, path: &Path) -> Result<LoadedCertificate, CertificateError> {
        let refuse = |detail: String| CertificateError::Unusable { path: path.to_owned(), detail };
        let provider = rustls::crypto::ring::default_provider();
        // Fails if key and certificate do not match.
        rustls::sign::CertifiedKey::from_der(pair.chain.clone(), pair.key.clone_key(), &provider)
            .map_err(|error| refuse(error.to_string()))?;
        let leaf = pair.chain.first().ok_or_else(|| refuse("no certificate".into()))?.clone();
        let (_, leaf) = X509Certificate::from_der(&leaf).map_err(|error| refuse(error.to_string()))?;
        let text = |value: &x509_parser::x509::AttributeTypeAndValue<'_>| {
            value.as_str().map(str::to_owned).unwrap_or_default()
        };
        let mut held = LoadedCertificate {
            not_before: Wall::from_seconds(leaf.validity().not_before.timestamp()),
            not_after: Wall::from_seconds(leaf.validity().not_after.timestamp()),
            common_name: leaf.subject().iter_common_name().next().map(text).unwrap_or_default(),
            organizations: leaf.subject().iter_organization().map(text).collect(),
            dns_names: Vec::new(),
            addresses: Vec::new(),
            pair: Arc::new(pair),
        };
        let names = leaf.subject_alternative_name().ok().flatten();
        for name in names.iter().flat_map(|names| &names.value.general_names) {
            match name {
                GeneralName::DNSName(name) => held.dns_names.push((*name).to_owned()),
                GeneralName::IPAddress(bytes) => held.addresses.extend(address(bytes)),
                _ => {}
            }
        }
        Ok(held)
    }

    pub fn has_not_expired(&self, now: Wall) -> bool {
        now < self.not_after
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}
