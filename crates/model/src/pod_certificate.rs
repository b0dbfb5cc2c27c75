//! Certificates of pods, as projected volumes ask for them.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::PodUid;

/// One `podCertificate` source of a projected volume.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct CertificateSource {
    pub pod: PodUid,
    pub volume: String,
    /// Its place among the sources of the volume.
    pub index: usize,
}

/// What a PodCertificateRequest is to ask for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CertificateWanted {
    pub namespace: String,
    pub pod_name: String,
    pub pod_uid: PodUid,
    pub service_account: String,
    pub node_name: String,
    pub node_uid: String,
    pub signer_name: String,
    pub key_type: String,
    pub max_expiration_secs: Option<i32>,
    pub user_annotations: BTreeMap<String, String>,
}

/// A request that the API server has taken, and the key that it is for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CertificateRequested {
    /// The name of the PodCertificateRequest.
    pub name: String,
    pub key: PrivateKey,
}

/// A private key, as PEM. Its debug form does not show it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrivateKey(pub String);

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_does_not_show_in_debug_output() {
        let requested = CertificateRequested { name: "req-1".into(), key: PrivateKey("hidden".into()) };
        let shown = format!("{requested:?}");
        assert_eq!(shown, "CertificateRequested { name: \"req-1\", key: PrivateKey(..) }");
    }
}
