//! What the credentials of a pod prove and which pulls may share them.

use model::credentials::PullSecret;

use super::keyring::{CredentialCandidate, login_hash};
use model::hash::fnv1a_64;

/// The secrets that prove the pod's access to an image that is present.
pub fn secrets_of_candidates(candidates: &[CredentialCandidate]) -> Vec<PullSecret> {
    candidates.iter().flat_map(|candidate| candidate.as_pull_credentials().kubernetes_secrets).collect()
}

/// A hash of the pod's own credentials. Pulls with the same hash are shared; 0 means that only node credentials are
/// used.
pub fn credentials_fingerprint(candidates: &[CredentialCandidate]) -> u64 {
    if candidates.is_empty() {
        return 0;
    }
    let one = |candidate: &CredentialCandidate| {
        format!("{:?} {}\n", candidate.source, login_hash(&candidate.login))
    };
    fnv1a_64(candidates.iter().map(one).collect::<String>().as_bytes()).max(1)
}
