//! Logins to image registries, their providers, and the records of the credentials that images were pulled with.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::k8s::Time;

/// A login to a registry. The `Debug` form shows no secret.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Login {
    pub username: String,
    pub password: String,
    pub email: String,
    pub identity_token: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("username", &self.username).finish_non_exhaustive()
    }
}

/// Logins by the registry (and path) that they are for, as Docker's configuration has them.
pub type Logins = BTreeMap<String, Login>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DockerConfigForm {
    /// `config.json`: the logins are below `auths`.
    Json,
    /// `.dockercfg`: nothing but logins.
    Legacy,
}

/// A file of Docker's that was found on the node.
#[derive(Clone, PartialEq, Eq)]
pub struct DockerConfigFile {
    pub path: String,
    pub form: DockerConfigForm,
    pub content: Vec<u8>,
}

impl fmt::Debug for DockerConfigFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DockerConfigFile").field("path", &self.path).finish_non_exhaustive()
    }
}

/// A credential provider plugin: one entry of the CredentialProviderConfig.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CredentialPlugin {
    /// Also the name of the program.
    pub name: String,
    /// Patterns of the images that the plugin is asked about.
    pub match_images: Vec<String>,
    /// How long an answer without its own cache duration is cached.
    pub default_cache: Duration,
    pub api_version: String,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    /// The plugin takes tokens of service accounts (`tokenAttributes`).
    pub token: Option<TokenAttributes>,
}

/// How a credential plugin gets the service account of the pod.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TokenAttributes {
    pub audience: String,
    /// The plugin is asked only on behalf of pods that have a service account.
    pub required: bool,
    /// Annotations of the ServiceAccount without which the plugin is not asked.
    pub required_annotations: Vec<String>,
    pub optional_annotations: Vec<String>,
    pub cache: TokenCacheType,
}

/// The cache key of an answer that was given for a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TokenCacheType {
    /// For the same token.
    Token,
    /// For all pods of the service account.
    ServiceAccount,
}

/// Which images that are present on the node a pod may use without proving that it could pull them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum VerificationPolicy {
    /// All of them.
    NeverVerify,
    /// Those that the agent did not pull.
    #[default]
    NeverVerifyPreloaded,
    /// Those on the list: names without tag, or prefixes that end with `/*`.
    NeverVerifyAllowlisted(Vec<String>),
    /// None.
    AlwaysVerify,
}

/// A Secret with which an image was pulled.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PullSecret {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    /// SHA-256 of the login that was in it.
    pub credential_hash: String,
}

/// A ServiceAccount on whose behalf a plugin gave the credentials.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PullServiceAccount {
    pub uid: String,
    pub namespace: String,
    pub name: String,
}

/// The fields of a ServiceAccount that credential plugins need.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ServiceAccountFacts {
    pub uid: String,
    pub annotations: BTreeMap<String, String>,
}

/// The credentials that an image was pulled with, over time.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PullCredentials {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kubernetes_secrets: Vec<PullSecret>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kubernetes_service_accounts: Vec<PullServiceAccount>,
    /// With the node's own credentials, or with none: every pod of the node could have done it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub node_pods_accessible: bool,
}

/// `ImagePulledRecord`: an image that the agent pulled.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PulledRecord {
    pub last_updated_time: Option<Time>,
    /// What the runtime knows the image by.
    pub image_ref: String,
    /// By the image's name in the spec, without tag and digest.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub credential_mapping: BTreeMap<String, PullCredentials>,
}

/// The records about an image that is present on the node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum PullHistory {
    /// There is no record: the agent did not pull the image.
    #[default]
    NoRecord,
    /// A pull intent is on record without a result: the agent ended during the pull.
    PullIntent,
    Pulled(PulledRecord),
    /// There are records, but they can't be read.
    Unreadable {
        message: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_do_not_show_in_debug_output() {
        let login = Login { username: "me".into(), password: "hidden".into(), ..Login::default() };
        assert_eq!(format!("{login:?}"), "Login { username: \"me\", .. }");
        let file =
            DockerConfigFile { path: "/p".into(), form: DockerConfigForm::Json, content: b"hidden".to_vec() };
        assert!(!format!("{file:?}").contains("104"), "{file:?}");
    }

    #[test]
    fn records_have_the_references_json() {
        let text = concat!(
            r#"{"lastUpdatedTime":"2024-10-21T12:26:40Z","imageRef":"r","credentialMapping":{"a/b":"#,
            r#"{"kubernetesSecrets":[{"uid":"u","namespace":"n","name":"s","credentialHash":"h"}]},"#,
            r#""c":{"nodePodsAccessible":true}}}"#
        );
        let record: PulledRecord = serde_json::from_str(text).unwrap();
        assert!(record.credential_mapping["c"].node_pods_accessible);
        assert_eq!(serde_json::to_string(&record).unwrap(), text);
    }
}
