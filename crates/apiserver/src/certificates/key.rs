//! Private keys, and certificate requests signed with them.

use rcgen::{CertificateParams, DistinguishedName, DnType, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::template::CertificateTemplate;
use super::{CertificateError, der};
use crate::kubeconfig::private_key;

pub struct CertificateKey {
    pair: rcgen::KeyPair,
}

fn refused(error: impl std::fmt::Display) -> CertificateError {
    CertificateError::Key { detail: error.to_string() }
}

impl CertificateKey {
    /// ECDSA P-256, as upstream.
    pub fn generate() -> Result<CertificateKey, CertificateError> {
        Ok(CertificateKey { pair: rcgen::KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(refused)? })
    }

    /// Reads any of the common formats; the first key in the text.
    pub fn from_pem(pem: &[u8]) -> Result<CertificateKey, CertificateError> {
        CertificateKey::from_der(&private_key(pem).map_err(refused)?)
    }

    pub fn from_der(key: &PrivateKeyDer<'_>) -> Result<CertificateKey, CertificateError> {
        let pkcs8 = PrivatePkcs8KeyDer::from(der::pkcs8(key));
        Ok(CertificateKey { pair: rcgen::KeyPair::try_from(&pkcs8).map_err(refused)? })
    }

    pub fn pem(&self) -> String {
        self.pair.serialize_pem()
    }

    pub fn is_rsa(&self) -> bool {
        // The only other algorithms that can be read here are ECDSA and Ed25519.
        format!("{:?}", self.pair.algorithm()).contains("RSA")
    }

    /// SubjectPublicKeyInfo.
    pub fn public(&self) -> Vec<u8> {
        self.pair.subject_public_key_info()
    }

    /// PKCS#10, as PEM.
    pub fn request(&self, template: &CertificateTemplate) -> Result<String, CertificateError> {
        let mut params = CertificateParams::default();
        let mut name = DistinguishedName::new();
        for organization in &template.organizations {
            name.push(DnType::OrganizationName, organization.clone());
        }
        name.push(DnType::CommonName, template.common_name.clone());
        params.distinguished_name = name;
        for dns in &template.dns_names {
            params.subject_alt_names.push(SanType::DnsName(dns.as_str().try_into().map_err(refused)?));
        }
        params.subject_alt_names.extend(template.addresses.iter().copied().map(SanType::IpAddress));
        params.serialize_request(&self.pair).and_then(|request| request.pem()).map_err(refused)
    }
}
