//! Requests for certificates of pods in the simulated cluster, and what their signers have made of them. Keys and
//! certificates are words that hold the name of their request, so that it shows which belong together.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::Wall;
use model::k8s::{
    Condition, Pod, PodCertificateRequest, PodCertificateRequestSpec, PodCertificateRequestStatus,
};
use model::pod_certificate::{CertificateWanted, PrivateKey};

use crate::time::EPOCH;

/// Signs soon; signs late; denies every request.
pub const SIGNERS: [&str; 3] = ["sim.test/soon", "sim.test/late", DENIES];
pub const DENIES: &str = "sim.test/denies";

#[derive(Clone, Debug, Default)]
pub struct Signer {
    requests: BTreeMap<String, Arc<PodCertificateRequest>>,
    /// When the certificate of a request ends.
    issued: BTreeMap<String, Wall>,
}

/// The signers that a pod wants certificates of.
pub fn signers_of(pod: &Pod) -> impl Iterator<Item = &str> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let sources = volumes.filter_map(|v| v.projected.as_ref()).flat_map(|p| p.sources.iter().flatten());
    sources.filter_map(|source| source.pod_certificate.as_ref()).map(|source| source.signer_name.as_str())
}

impl Signer {
    pub fn add(&mut self, name: &str, wanted: &CertificateWanted) -> PrivateKey {
        let mut request = PodCertificateRequest {
            spec: PodCertificateRequestSpec {
                signer_name: wanted.signer_name.clone(),
                pod_name: wanted.pod_name.clone(),
                pod_uid: wanted.pod_uid.to_string(),
                node_uid: wanted.node_uid.clone(),
                ..PodCertificateRequestSpec::default()
            },
            ..PodCertificateRequest::default()
        };
        request.metadata.namespace = Some(wanted.namespace.clone());
        request.metadata.name = Some(name.to_owned());
        self.requests.insert(name.to_owned(), Arc::new(request));
        PrivateKey(format!("key {name}\n"))
    }

    pub fn all(&self) -> Vec<Arc<PodCertificateRequest>> {
        self.requests.values().cloned().collect()
    }

    pub fn get(&self, name: &str) -> Option<&PodCertificateRequest> {
        self.requests.get(name).map(|request| &**request)
    }

    pub fn remove(&mut self, name: &str) {
        self.requests.remove(name);
    }

    pub fn deny(&mut self, name: &str) {
        self.answer(name, PodCertificateRequestStatus::default(), "Denied");
    }

    pub fn issue(&mut self, name: &str, not_before: Wall, begin_refresh: Wall, not_after: Wall) {
        self.issued.insert(name.to_owned(), not_after);
        let chain = format!("-----BEGIN CERTIFICATE-----\n{name}\n-----END CERTIFICATE-----\n");
        let status = PodCertificateRequestStatus {
            not_before: Some(not_before.api_time()),
            begin_refresh_at: Some(begin_refresh.api_time()),
            not_after: Some(not_after.api_time()),
            certificate_chain: Some(chain),
            conditions: None,
        };
        self.answer(name, status, "Issued");
    }

    fn answer(&mut self, name: &str, mut status: PodCertificateRequestStatus, word: &str) {
        let Some(request) = self.requests.get_mut(name) else { return };
        status.conditions = Some(vec![Condition {
            type_: word.into(),
            status: "True".into(),
            reason: "Simulated".into(),
            message: format!("simulated: {word}"),
            last_transition_time: EPOCH.api_time(),
            observed_generation: None,
        }]);
        Arc::make_mut(request).status = Some(status);
    }

    /// When the certificate in these files ends. `None`: there is none.
    pub fn ends(&self, files: &str) -> Option<Wall> {
        names_in(files).first().and_then(|name| self.issued.get(*name)).copied()
    }
}

/// The requests that the keys and certificates in these files belong to.
pub fn names_in(files: &str) -> Vec<&str> {
    let words = files.split(|c: char| c.is_whitespace() || c == ';' || c == '=');
    let mut names: Vec<_> = words.filter(|word| word.starts_with("req-")).collect();
    names.sort_unstable();
    names.dedup();
    names
}
