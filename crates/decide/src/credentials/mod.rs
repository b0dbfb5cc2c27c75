//! Which credentials an image is pulled with, and who may use one that is on the node already.
//!
//! ```text
//!   secrets of the pod ──┐
//!   files of the node  ──┼─> candidates, in the order in which they are tried ──> pull ──> record
//!   plugins' answers   ──┘                                                                  │
//!                        image is present, policy is not Always ──> verdict <───────────────┘
//! ```

pub mod docker_config;
pub mod go_duration;
pub mod keyring;
pub mod matching;
pub mod plugin;
pub mod plugin_cache;
pub mod plugin_config;
mod pod;
pub mod records;
pub mod service_account;
pub mod verify;

pub use docker_config::{NodeDockerConfig, node_logins};
pub use keyring::{CredentialCandidate, CredentialSource, Keyring};
pub use matching::repository;
pub use plugin_cache::PluginCache;
pub use pod::{credentials_fingerprint, secrets_of_candidates};
pub use service_account::{
    PluginInvocation, PluginServiceAccount, PluginTokens, annotations_for_plugin, plugin_invocation,
    token_request_of_plugin,
};
pub use verify::{
    ImageAccess, PodCredentials, has_recorded_service_accounts, image_access, verification_result_label,
};

/// The credentials to try for an image, first to last. None: it is pulled without any.
///
/// A pod's own come before the node's, and those in files before those of plugins.
pub fn candidates(
    image: &str,
    pod: &Keyring,
    files: &Keyring,
    plugins: &Keyring,
) -> Vec<CredentialCandidate> {
    let repository = repository(image);
    [pod, files, plugins].iter().flat_map(|keyring| keyring.lookup(&repository)).collect()
}

/// One text for the failures of every credential that was tried: the only one as it is, several in brackets and each
/// text once.
pub fn aggregate(messages: &[String]) -> String {
    let mut distinct: Vec<&str> = Vec::new();
    for message in messages {
        if !distinct.contains(&message.as_str()) {
            distinct.push(message);
        }
    }
    match distinct[..] {
        [only] => only.to_owned(),
        _ => format!("[{}]", distinct.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::credentials::{Login, Logins};

    fn keyring(source: CredentialSource, entries: &[(&str, &str)]) -> Keyring {
        let mut keyring = Keyring::default();
        let login = |user: &&str| Login { username: (*user).into(), ..Login::default() };
        let logins: Logins = entries.iter().map(|(key, user)| ((*key).to_owned(), login(user))).collect();
        keyring.add(source, &logins);
        keyring
    }

    #[test]
    fn the_pods_own_come_first_then_files_then_plugins() {
        let pod = keyring(CredentialSource::Node, &[("host.test", "pod")]);
        let files = keyring(CredentialSource::Node, &[("host.test", "file"), ("other.test", "x")]);
        let plugins = keyring(CredentialSource::Node, &[("*.test", "plugin")]);
        let found = candidates("host.test/a/b:1", &pod, &files, &plugins);
        let names: Vec<&str> = found.iter().map(|c| c.login.username.as_str()).collect();
        assert_eq!(names, ["pod", "file", "plugin"]);
    }

    #[test]
    fn none_matching_is_none_at_all() {
        let files = keyring(CredentialSource::Node, &[("other.test", "x")]);
        assert!(candidates("host.test/a", &Keyring::default(), &files, &Keyring::default()).is_empty());
    }

    #[test]
    fn failures_are_told_once_each() {
        let check = |messages: &[&str], expect: &str| {
            let messages: Vec<String> = messages.iter().map(|m| (*m).to_owned()).collect();
            assert_eq!(aggregate(&messages), expect);
        };
        check(&["a"], "a");
        check(&["a", "b"], "[a, b]");
        check(&["a", "b", "a"], "[a, b]");
        check(&["a", "a"], "a");
    }
}
