//! The content of a requested certificate.

use std::collections::BTreeSet;
use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use model::k8s::NodeAddress;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha512_256};

use super::loaded::LoadedCertificate;

/// What a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificatePurpose {
    /// For the agent as a client of the API server.
    Client,
    /// For the agent's own server.
    Serving,
}

impl CertificatePurpose {
    pub fn signer(self) -> &'static str {
        match self {
            CertificatePurpose::Client => "kubernetes.io/kube-apiserver-client-kubelet",
            CertificatePurpose::Serving => "kubernetes.io/kubelet-serving",
        }
    }

    /// The prefix of the file names in the certificate directory.
    pub fn prefix(self) -> &'static str {
        match self {
            CertificatePurpose::Client => "kubelet-client",
            CertificatePurpose::Serving => "kubelet-server",
        }
    }

    pub(super) fn usages(self, key_is_rsa: bool) -> Vec<String> {
        let extended = match self {
            CertificatePurpose::Client => "client auth",
            CertificatePurpose::Serving => "server auth",
        };
        let mut usages = vec!["digital signature".to_owned(), extended.to_owned()];
        if key_is_rsa {
            usages.push("key encipherment".to_owned());
        }
        usages
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateTemplate {
    pub common_name: String,
    pub organizations: Vec<String>,
    pub dns_names: Vec<String>,
    pub addresses: Vec<IpAddr>,
}

impl CertificateTemplate {
    pub fn client(node: &str) -> CertificateTemplate {
        CertificateTemplate {
            common_name: format!("system:node:{node}"),
            organizations: vec!["system:nodes".into()],
            dns_names: Vec::new(),
            addresses: Vec::new(),
        }
    }

    /// `None` while the node has no address, because such a certificate is not signed. `names_suffice`: a DNS name is
    /// enough, with the gate `AllowDNSOnlyNodeCSR`.
    pub fn serving(
        node: &str,
        addresses: &[NodeAddress],
        names_suffice: bool,
    ) -> Option<CertificateTemplate> {
        let mut names = BTreeSet::new();
        let mut ips = BTreeSet::new();
        for NodeAddress { address, type_ } in addresses.iter().filter(|found| !found.address.is_empty()) {
            match (type_.as_str(), address.parse::<IpAddr>()) {
                // Sorted as strings, as upstream does.
                ("Hostname" | "ExternalIP" | "InternalIP", Ok(ip)) => drop(ips.insert((ip.to_string(), ip))),
                ("Hostname" | "ExternalDNS" | "InternalDNS", _) => drop(names.insert(address.clone())),
                _ => {}
            }
        }
        if ips.is_empty() && (!names_suffice || names.is_empty()) {
            return None;
        }
        let addresses = ips.into_iter().map(|(_, ip)| ip).collect();
        Some(CertificateTemplate {
            dns_names: names.into_iter().collect(),
            addresses,
            ..CertificateTemplate::client(node)
        })
    }

    /// Additional content of a certificate is no reason to request another one.
    pub fn satisfied_by(&self, held: &LoadedCertificate) -> bool {
        self.common_name == held.common_name
            && self.organizations.iter().all(|wanted| held.organizations.contains(wanted))
            && self.dns_names.iter().all(|wanted| held.dns_names.contains(wanted))
            && self.addresses.iter().all(|wanted| held.addresses.contains(wanted))
    }

    /// The name of the request for this subject and key. It is deterministic, so that the request is found again.
    pub(super) fn request_name(&self, public_key: &[u8], usages: &[String]) -> String {
        let mut digest = Sha512_256::new();
        let mut add = |part: &[u8]| {
            digest.update(URL_SAFE_NO_PAD.encode(part));
            digest.update(b"|");
        };
        add(public_key);
        add(self.common_name.as_bytes());
        self.organizations.iter().chain(usages).for_each(|part| add(part.as_bytes()));
        format!("node-csr-{}", URL_SAFE_NO_PAD.encode(digest.finalize()))
    }
}
