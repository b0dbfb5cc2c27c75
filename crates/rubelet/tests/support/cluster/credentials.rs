//! Credentials for those who talk to the cluster: nodes, users, newcomers with a bootstrap token.

use std::path::PathBuf;

use super::Cluster;
use crate::support::harness::{hack, run};

/// A certificate and its key.
#[derive(Debug, Clone)]
pub struct KeyPair {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Cluster {
    /// A kubeconfig with a client certificate of that node: user `system:node:<name>`, group `system:nodes`.
    #[track_caller]
    pub fn node_kubeconfig(&self, name: &str) -> PathBuf {
        self.make("node", &[name])
    }

    /// A kubeconfig with a client certificate of that user and its groups. Rights are up to RBAC.
    #[track_caller]
    pub fn user_kubeconfig(&self, name: &str, groups: &[&str]) -> PathBuf {
        self.make("user", &[&[name], groups].concat())
    }

    /// A kubeconfig with a new bootstrap token, as `kubeadm` makes it: its holder may ask for a node's client
    /// certificate, and is given it at once (by a whole cluster).
    #[track_caller]
    pub fn bootstrap_kubeconfig(&self) -> PathBuf {
        self.make("bootstrap", &[])
    }

    /// A serving certificate for a kubelet on this machine, which the API server trusts. It holds loopback and the
    /// machine's addresses: upstream's kubelet refuses loopback as its node's address, and without one
    /// `kubectl logs` finds no way to it.
    #[track_caller]
    pub fn serving_certificate(&self, node: &str) -> KeyPair {
        let certificate = self.make("serving", &[node]);
        KeyPair { key: certificate.with_extension("key"), certificate }
    }

    /// The API server's own client certificate for kubelets.
    pub fn kubelet_client(&self) -> KeyPair {
        let certificate = self.dir.join("pki/kubelet-client.crt");
        KeyPair { key: certificate.with_extension("key"), certificate }
    }

    /// Approves a certificate signing request that nobody approves by rule, such as for serving.
    #[track_caller]
    pub fn approve(&self, request: &str) {
        self.kubectl(&["certificate", "approve", request]);
    }

    #[track_caller]
    fn make(&self, what: &str, args: &[&str]) -> PathBuf {
        PathBuf::from(run(hack("cluster").arg(what).arg(&self.dir).args(args)).trim())
    }
}
