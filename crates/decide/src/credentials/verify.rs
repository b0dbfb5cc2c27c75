//! Decides whether a pod may use an image that is present on the node.

use model::credentials::{PullCredentials, PullHistory, PullSecret, PullServiceAccount, VerificationPolicy};

use super::matching::without_tag;

/// Limit for the secrets in a pull record that are added by pods with equal credentials.
const MOST_SECRETS: usize = 100;

/// Credentials of a pod that prove access to an image. Empty without an API server.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PodCredentials {
    pub secrets: Vec<PullSecret>,
    pub service_account: Option<PullServiceAccount>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ImageAccess {
    /// `new_secret`: a matching secret that is to be added to the image's pull record.
    Allowed { new_secret: Option<PullSecret> },
    /// The pod has to pull the image to prove that it has access.
    MustPull,
}

impl ImageAccess {
    const ALLOWED: ImageAccess = ImageAccess::Allowed { new_secret: None };
}

/// Whether a pod may use the image. `named`: the image name in its spec.
pub fn image_access(
    policy: &VerificationPolicy,
    named: &str,
    history: &PullHistory,
    pod: &PodCredentials,
) -> ImageAccess {
    if matches!(history, PullHistory::Unreadable { .. }) {
        return ImageAccess::MustPull;
    }
    if !must_verify(policy, named, history) {
        return ImageAccess::ALLOWED;
    }
    let PullHistory::Pulled(record) = history else { return ImageAccess::MustPull };
    match record.credential_mapping.get(without_tag(named)) {
        Some(known) => compare(known, pod),
        None => ImageAccess::MustPull,
    }
}

/// Whether the pull record of the image has service accounts.
pub fn has_recorded_service_accounts(history: &PullHistory, named: &str) -> bool {
    let PullHistory::Pulled(record) = history else { return false };
    let known = record.credential_mapping.get(without_tag(named));
    known.is_some_and(|known| !known.kubernetes_service_accounts.is_empty())
}

/// The kubelet's metric label for the result of a check.
pub fn verification_result_label(
    policy: &VerificationPolicy,
    named: &str,
    history: &PullHistory,
    verdict: &ImageAccess,
) -> &'static str {
    match (history, verdict) {
        (PullHistory::Unreadable { .. }, _) => "error",
        _ if !must_verify(policy, named, history) => "credentialPolicyAllowed",
        (_, ImageAccess::Allowed { .. }) => "credentialRecordFound",
        (_, ImageAccess::MustPull) => "mustAuthenticate",
    }
}

fn must_verify(policy: &VerificationPolicy, named: &str, history: &PullHistory) -> bool {
    match policy {
        VerificationPolicy::NeverVerify => false,
        VerificationPolicy::NeverVerifyPreloaded => *history != PullHistory::NoRecord,
        VerificationPolicy::NeverVerifyAllowlisted(list) => !is_listed(list, named),
        VerificationPolicy::AlwaysVerify => true,
    }
}

fn is_listed(list: &[String], named: &str) -> bool {
    let name = without_tag(named);
    list.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(prefix) if prefix.ends_with('/') => name.starts_with(prefix),
        _ => name == pattern,
    })
}

fn compare(known: &PullCredentials, pod: &PodCredentials) -> ImageAccess {
    if known.node_pods_accessible {
        return ImageAccess::ALLOWED;
    }
    let room = known.kubernetes_secrets.len() < MOST_SECRETS;
    let pairs = pod.secrets.iter().flat_map(|own| known.kubernetes_secrets.iter().map(move |old| (own, old)));
    for (own, old) in pairs {
        let same_content = !old.credential_hash.is_empty() && own.credential_hash == old.credential_hash;
        let same_secret = (&own.uid, &own.namespace, &own.name) == (&old.uid, &old.namespace, &old.name);
        match (same_content, same_secret) {
            (true, true) => return ImageAccess::ALLOWED,
            (true, false) => return ImageAccess::Allowed { new_secret: room.then(|| own.clone()) },
            (false, true) if room => return ImageAccess::Allowed { new_secret: Some(own.clone()) },
            _ => {}
        }
    }
    match &pod.service_account {
        Some(account) if known.kubernetes_service_accounts.contains(account) => ImageAccess::ALLOWED,
        _ => ImageAccess::MustPull,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::credentials::PulledRecord;

    fn secret(name: &str, hash: &str) -> PullSecret {
        PullSecret {
            uid: format!("uid-{name}"),
            namespace: "ns".into(),
            name: name.into(),
            credential_hash: hash.into(),
        }
    }
    fn pod(secrets: &[(&str, &str)]) -> PodCredentials {
        let secrets = secrets.iter().map(|(name, hash)| secret(name, hash)).collect();
        PodCredentials { secrets, service_account: None }
    }
    fn record(with: PullCredentials) -> PullHistory {
        PullHistory::Pulled(PulledRecord {
            last_updated_time: None,
            image_ref: "sha256:1".into(),
            credential_mapping: [("h.test/a".to_owned(), with)].into(),
        })
    }
    fn by_node() -> PullHistory {
        record(PullCredentials { node_pods_accessible: true, ..PullCredentials::default() })
    }
    fn by_secret() -> PullHistory {
        let kubernetes_secrets = vec![secret("s", "h")];
        record(PullCredentials { kubernetes_secrets, ..PullCredentials::default() })
    }
    fn allowlist(patterns: &[&str]) -> VerificationPolicy {
        let patterns = patterns.iter().map(|p| (*p).to_owned()).collect();
        VerificationPolicy::NeverVerifyAllowlisted(patterns)
    }
    #[test]
    fn checks_have_the_kubelets_words() {
        let unreadable = PullHistory::Unreadable { message: "no".into() };
        let (always, preloaded) =
            (VerificationPolicy::AlwaysVerify, VerificationPolicy::NeverVerifyPreloaded);
        for (policy, history, expect) in [
            (&always, &unreadable, "error"),
            (&VerificationPolicy::NeverVerify, &by_secret(), "credentialPolicyAllowed"),
            (&preloaded, &PullHistory::NoRecord, "credentialPolicyAllowed"),
            (&preloaded, &by_node(), "credentialRecordFound"),
            (&preloaded, &by_secret(), "mustAuthenticate"),
            (&always, &PullHistory::NoRecord, "mustAuthenticate"),
        ] {
            let found = image_access(policy, "h.test/a:1", history, &PodCredentials::default());
            let word = verification_result_label(policy, "h.test/a:1", history, &found);
            assert_eq!(word, expect, "{policy:?} {history:?}");
        }
    }

    fn allowed(policy: &VerificationPolicy, history: &PullHistory) -> bool {
        image_access(policy, "h.test/a:1", history, &PodCredentials::default()) != ImageAccess::MustPull
    }

    #[test]
    fn the_policy_says_which_images_are_asked_about() {
        use VerificationPolicy::{AlwaysVerify, NeverVerify, NeverVerifyPreloaded};
        let listed = || allowlist(&["h.test/a"]);
        let unlisted = || allowlist(&["h.test/b"]);
        let check = |history: PullHistory, expect: [bool; 5]| {
            let policies = [NeverVerify, NeverVerifyPreloaded, listed(), unlisted(), AlwaysVerify];
            assert_eq!(policies.map(|policy| allowed(&policy, &history)), expect, "{history:?}");
        };
        check(PullHistory::NoRecord, [true, true, true, false, false]);
        check(PullHistory::PullIntent, [true, false, true, false, false]);
        check(by_node(), [true, true, true, true, true]);
        check(by_secret(), [true, false, true, false, false]);
        check(record(PullCredentials::default()), [true, false, true, false, false]);
        let message = "x".to_owned();
        check(PullHistory::Unreadable { message }, [false, false, false, false, false]);
    }

    #[test]
    fn the_record_counts_for_its_own_name_only() {
        let policy = VerificationPolicy::NeverVerifyPreloaded;
        let check = |named: &str, expect: bool| {
            let seen = image_access(&policy, named, &by_node(), &PodCredentials::default());
            assert_eq!(seen != ImageAccess::MustPull, expect, "{named}");
        };
        check("h.test/a", true);
        check("h.test/a:2", true);
        check("h.test/a@sha256:0", true);
        check("i.test/a:1", false);
    }

    #[test]
    fn a_secret_opens_by_its_content_or_by_its_name() {
        let policy = VerificationPolicy::NeverVerifyPreloaded;
        let check = |secrets: &[(&str, &str)], expect: ImageAccess| {
            let seen = image_access(&policy, "h.test/a", &by_secret(), &pod(secrets));
            assert_eq!(seen, expect, "{secrets:?}");
        };
        let learnt = |name: &str, hash: &str| ImageAccess::Allowed { new_secret: Some(secret(name, hash)) };
        check(&[("s", "h")], ImageAccess::ALLOWED);
        check(&[("t", "h")], learnt("t", "h"));
        check(&[("s", "new")], learnt("s", "new"));
        check(&[("t", "other")], ImageAccess::MustPull);
        check(&[("t", "other"), ("s", "h")], ImageAccess::ALLOWED);
        check(&[], ImageAccess::MustPull);
    }

    #[test]
    fn a_secret_whose_content_is_not_known_opens_by_name_only() {
        let kubernetes_secrets = vec![secret("s", "")];
        let history = record(PullCredentials { kubernetes_secrets, ..PullCredentials::default() });
        let policy = VerificationPolicy::NeverVerifyPreloaded;
        let seen = |own: &[(&str, &str)]| image_access(&policy, "h.test/a", &history, &pod(own));
        assert_eq!(seen(&[("t", "")]), ImageAccess::MustPull);
        assert!(matches!(seen(&[("s", "h")]), ImageAccess::Allowed { .. }));
    }

    #[test]
    fn a_record_does_not_grow_without_end() {
        let kubernetes_secrets: Vec<_> = (0..MOST_SECRETS).map(|n| secret(&n.to_string(), "h")).collect();
        let history = record(PullCredentials { kubernetes_secrets, ..PullCredentials::default() });
        let policy = VerificationPolicy::NeverVerifyPreloaded;
        assert_eq!(image_access(&policy, "h.test/a", &history, &pod(&[("t", "h")])), ImageAccess::ALLOWED);
    }

    #[test]
    fn a_service_account_opens_what_it_opened_before() {
        let account = PullServiceAccount { uid: "1".into(), namespace: "ns".into(), name: "sa".into() };
        let history = record(PullCredentials {
            kubernetes_service_accounts: vec![account.clone()],
            ..PullCredentials::default()
        });
        let policy = VerificationPolicy::NeverVerifyPreloaded;
        let seen = |account| {
            let pod = PodCredentials { secrets: Vec::new(), service_account: account };
            image_access(&policy, "h.test/a", &history, &pod)
        };
        assert_eq!(seen(Some(account.clone())), ImageAccess::ALLOWED);
        let renewed = PullServiceAccount { uid: "2".into(), ..account };
        assert_eq!(seen(Some(renewed)), ImageAccess::MustPull);
        assert_eq!(seen(None), ImageAccess::MustPull);
    }

    #[test]
    fn the_allowlist() {
        let check = |pattern: &str, named: &str, expect: bool| {
            let policy = allowlist(&[pattern]);
            let seen = image_access(&policy, named, &PullHistory::NoRecord, &PodCredentials::default());
            assert_eq!(seen != ImageAccess::MustPull, expect, "{pattern} {named}");
        };
        check("h.test/a", "h.test/a:1", true);
        check("h.test/a", "h.test/ab", false);
        check("h.test/*", "h.test/a:1", true);
        check("h.test/a/*", "h.test/a", false);
        check("h.test/a/*", "h.test/a/b", true);
        check("busybox", "busybox:1", true);
        check("busybox", "docker.io/library/busybox", false);
    }
}
