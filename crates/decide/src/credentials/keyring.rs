//! Logins of one kind of source, found by image.

use std::collections::BTreeMap;

use model::credentials::{Login, Logins, PullCredentials, PullSecret, PullServiceAccount};
use sha2::{Digest, Sha256};

use super::matching::{is_at_default_registry, matches, parse_location};

const DEFAULT_REGISTRY: &str = "index.docker.io";

/// Where a login came from, as far as it matters who else may use what was pulled with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CredentialSource {
    /// The node's own: every pod of it may.
    Node,
    Secret {
        uid: String,
        namespace: String,
        name: String,
    },
    ServiceAccount(PullServiceAccount),
}

/// A login to try.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CredentialCandidate {
    pub login: Login,
    pub source: CredentialSource,
}

impl CredentialCandidate {
    /// How a pull with it is recorded.
    pub fn as_pull_credentials(&self) -> PullCredentials {
        match &self.source {
            CredentialSource::Node => {
                PullCredentials { node_pods_accessible: true, ..PullCredentials::default() }
            }
            CredentialSource::Secret { uid, namespace, name } => {
                let secret = PullSecret {
                    uid: uid.clone(),
                    namespace: namespace.clone(),
                    name: name.clone(),
                    credential_hash: login_hash(&self.login),
                };
                PullCredentials { kubernetes_secrets: vec![secret], ..PullCredentials::default() }
            }
            CredentialSource::ServiceAccount(account) => PullCredentials {
                kubernetes_service_accounts: vec![account.clone()],
                ..PullCredentials::default()
            },
        }
    }
}

/// Of the login's JSON form in Docker's words, so that records of other kubelets compare.
pub(crate) fn login_hash(login: &Login) -> String {
    let fields = [
        ("username", &login.username),
        ("password", &login.password),
        ("email", &login.email),
        ("identitytoken", &login.identity_token),
    ];
    let given = fields.iter().filter(|(_, value)| !value.is_empty());
    let written: Vec<String> = given.map(|(name, value)| format!("{name:?}:{}", json_text(value))).collect();
    let digest = Sha256::digest(format!("{{{}}}", written.join(",")));
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A JSON string as Go writes it: HTML's special characters are escaped as well.
fn json_text(value: &str) -> String {
    let text = serde_json::Value::from(value).to_string();
    let escapes = [
        ("<", "\\u003c"),
        (">", "\\u003e"),
        ("&", "\\u0026"),
        ("\u{2028}", "\\u2028"),
        ("\u{2029}", "\\u2029"),
    ];
    escapes.iter().fold(text, |text, (from, to)| text.replace(from, to))
}

#[derive(Clone, Debug, Default)]
pub struct Keyring {
    by_location: BTreeMap<String, Vec<CredentialCandidate>>,
}

impl Keyring {
    /// Adds logins behind those that are there for the same places. Entries that name no place are left out.
    pub fn add(&mut self, source: CredentialSource, logins: &Logins) {
        for (location, login) in logins {
            if let Some(key) = key_of(location) {
                let candidate = CredentialCandidate { login: login.clone(), source: source.clone() };
                self.by_location.entry(key).or_default().push(candidate);
            }
        }
    }

    /// Every login for the place of an image, the longest names first.
    pub fn lookup(&self, repository: &str) -> Vec<CredentialCandidate> {
        let matching = self.by_location.iter().rev().filter(|(key, _)| matches(key, repository));
        let found: Vec<CredentialCandidate> =
            matching.flat_map(|(_, candidates)| candidates.clone()).collect();
        if found.is_empty() && is_at_default_registry(repository) {
            return self.by_location.get(DEFAULT_REGISTRY).cloned().unwrap_or_default();
        }
        found
    }
}

/// Docker's clients write full URLs, and take the API's versions for the host itself.
fn key_of(location: &str) -> Option<String> {
    let schemeless = ["https://", "http://"].iter().find_map(|scheme| location.strip_prefix(scheme));
    let place = parse_location(schemeless.unwrap_or(location))?;
    let versioned = place.path.starts_with("/v1/") || place.path.starts_with("/v2/");
    let path = if versioned { &place.path[3..] } else { &place.path };
    Some(if path == "/" { place.host } else { format!("{}{path}", place.host) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logins(entries: &[&str]) -> Logins {
        let login = |name: &&str| Login { username: (*name).into(), ..Login::default() };
        entries.iter().map(|name| ((*name).to_owned(), login(name))).collect()
    }

    /// Usernames say which entry a login is from.
    fn check(entries: &[&str], repository: &str, expect: &[&str]) {
        let mut keyring = Keyring::default();
        keyring.add(CredentialSource::Node, &logins(entries));
        let found = keyring.lookup(repository);
        let names: Vec<&str> = found.iter().map(|c| c.login.username.as_str()).collect();
        assert_eq!(names, expect, "{repository} in {entries:?}");
    }

    #[test]
    fn longer_places_come_first() {
        check(&["h.test", "h.test/a", "h.test/a/b"], "h.test/a/b/c", &["h.test/a/b", "h.test/a", "h.test"]);
        check(&["h.test", "h.test/a"], "h.test/b", &["h.test"]);
    }

    #[test]
    fn plain_names_come_before_patterns() {
        check(&["*.test", "h.test"], "h.test/a", &["h.test", "*.test"]);
    }

    #[test]
    fn schemes_and_api_versions_do_not_count() {
        check(&["https://h.test/v1/"], "h.test/a", &["https://h.test/v1/"]);
        check(&["http://h.test/v2/"], "h.test/a", &["http://h.test/v2/"]);
        check(&["https://h.test"], "h.test/a", &["https://h.test"]);
        check(&["https://h.test/"], "h.test/a", &["https://h.test/"]);
        check(&["https://h.test/v2/a"], "h.test/a/b", &["https://h.test/v2/a"]);
        // Only with the slash behind it is it a version.
        check(&["https://h.test/v1"], "h.test/a", &[]);
        check(&["https://h.test/v1"], "h.test/v1/a", &["https://h.test/v1"]);
    }

    #[test]
    fn the_default_registry_has_a_key_of_its_own() {
        let hub = "https://index.docker.io/v1/";
        check(&[hub], "docker.io/library/busybox", &[hub]);
        check(&[hub], "docker.io/team/app", &[hub]);
        check(&[hub], "h.test/app", &[]);
        check(&["docker.io", hub], "docker.io/team/app", &["docker.io"]);
        check(&[], "docker.io/team/app", &[]);
    }

    #[test]
    fn entries_that_name_no_place_are_left_out() {
        check(&["h.test:port", "h .test", "h.test"], "h.test/a", &["h.test"]);
    }

    #[test]
    fn one_place_may_have_several_logins() {
        let mut keyring = Keyring::default();
        keyring.add(CredentialSource::Node, &logins(&["h.test"]));
        keyring.add(CredentialSource::Node, &logins(&["https://h.test"]));
        let found = keyring.lookup("h.test/a");
        let names: Vec<&str> = found.iter().map(|c| c.login.username.as_str()).collect();
        assert_eq!(names, ["h.test", "https://h.test"]);
    }

    #[test]
    fn a_pull_is_recorded_by_the_source_of_its_login() {
        let login = Login { username: "u".into(), password: "p<".into(), ..Login::default() };
        let recorded = |source| CredentialCandidate { login: login.clone(), source }.as_pull_credentials();
        assert!(recorded(CredentialSource::Node).node_pods_accessible);
        let secret = CredentialSource::Secret { uid: "1".into(), namespace: "n".into(), name: "s".into() };
        let secrets = recorded(secret).kubernetes_secrets;
        // of {"username":"u","password":"p\u003c"}
        let hash = "43613dbfa39e0fb6f3063b043db9971ece8a578c595a1818942ae332c4037ec5";
        assert_eq!(secrets[0].credential_hash, hash);
        let account = PullServiceAccount { uid: "2".into(), ..PullServiceAccount::default() };
        let accounts = recorded(CredentialSource::ServiceAccount(account.clone()));
        assert_eq!(accounts.kubernetes_service_accounts, [account]);
    }
}
