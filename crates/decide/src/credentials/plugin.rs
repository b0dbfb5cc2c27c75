//! The language of credential plugins: one JSON request on stdin, one JSON response on stdout.

use std::time::Duration;

use model::credentials::{CredentialPlugin, Login, Logins, TokenCacheType};
use serde_json::{Value, json};

use super::service_account::PluginServiceAccount;
use super::{go_duration, matching};

pub(crate) const API_VERSIONS: [&str; 3] = [
    "credentialprovider.kubelet.k8s.io/v1",
    "credentialprovider.kubelet.k8s.io/v1alpha1",
    "credentialprovider.kubelet.k8s.io/v1beta1",
];

/// What an answer is good for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheKeyType {
    Image,
    Registry,
    Global,
}

/// What a plugin said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PluginResponse {
    pub logins: Logins,
    pub key: CacheKeyType,
    /// `None`: as long as the configuration says.
    pub cache: Option<Duration>,
}

/// Why an answer is not used. What the plugin said is never part of it: it holds secrets.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum PluginResponseError {
    #[error("error reading GVK from response: not a JSON object")]
    NotJson,
    #[error(
        "apiVersion from credential plugin response did not match expected apiVersion:{expected}, actual apiVersion:{actual}"
    )]
    ApiVersion { expected: String, actual: String },
    #[error("error decoding credential provider plugin response from stdout: {field}")]
    Malformed { field: &'static str },
    #[error(
        "credential provider plugin returned the service account token as the password which is not allowed when service account cache type is not set to 'Token'"
    )]
    TokenEchoed,
    #[error("credential provider plugin did not return a valid cacheKeyType: {given}")]
    CacheKeyType { given: String },
}

/// Whether a plugin is asked about an image. `repository` is its name with the registry and without tag.
pub fn matches_image(plugin: &CredentialPlugin, repository: &str, has_service_account: bool) -> bool {
    (has_service_account || !plugin.token.as_ref().is_some_and(|token| token.required))
        && plugin.match_images.iter().any(|pattern| matching::matches(pattern, repository))
}

pub fn request(
    plugin: &CredentialPlugin,
    repository: &str,
    on_behalf_of: Option<&PluginServiceAccount>,
) -> String {
    let mut request = json!({
        "kind": "CredentialProviderRequest",
        "apiVersion": plugin.api_version,
        "image": repository,
    });
    if let Some(PluginServiceAccount { annotations, token, .. }) = on_behalf_of {
        request["serviceAccountToken"] = json!(token);
        if !annotations.is_empty() {
            request["serviceAccountAnnotations"] = json!(annotations);
        }
    }
    format!("{request}\n")
}

pub fn parse_plugin_response(
    plugin: &CredentialPlugin,
    stdout: &[u8],
    on_behalf_of: Option<&PluginServiceAccount>,
) -> Result<PluginResponse, PluginResponseError> {
    let document: Value = serde_json::from_slice(stdout).map_err(|_| PluginResponseError::NotJson)?;
    if !document.is_object() {
        return Err(PluginResponseError::NotJson);
    }
    let text = |name: &str| document[name].as_str().unwrap_or_default().to_owned();
    let actual = text("apiVersion");
    if actual != plugin.api_version {
        return Err(PluginResponseError::ApiVersion { expected: plugin.api_version.clone(), actual });
    }
    if text("kind") != "CredentialProviderResponse" {
        return Err(PluginResponseError::Malformed { field: "kind" });
    }
    let cache = match &document["cacheDuration"] {
        Value::Null => None,
        Value::String(text) => {
            Some(go_duration::parse(text).ok_or(PluginResponseError::Malformed { field: "cacheDuration" })?)
        }
        _ => return Err(PluginResponseError::Malformed { field: "cacheDuration" }),
    };
    let logins = match &document["auth"] {
        Value::Null => Logins::new(),
        Value::Object(entries) => entries
            .iter()
            .map(|(name, entry)| Ok((name.clone(), login(entry)?)))
            .collect::<Result<_, PluginResponseError>>()?,
        _ => return Err(PluginResponseError::Malformed { field: "auth" }),
    };
    // Such an answer is one pod's, and must not be kept for the others of its service account.
    let of_account = plugin.token.as_ref().is_some_and(|token| token.cache == TokenCacheType::ServiceAccount);
    if let Some(PluginServiceAccount { token, .. }) = on_behalf_of.filter(|_| of_account)
        && logins.values().any(|login| login.password == *token)
    {
        return Err(PluginResponseError::TokenEchoed);
    }
    let key = match text("cacheKeyType").as_str() {
        "Image" => CacheKeyType::Image,
        "Registry" => CacheKeyType::Registry,
        "Global" => CacheKeyType::Global,
        given => return Err(PluginResponseError::CacheKeyType { given: given.to_owned() }),
    };
    Ok(PluginResponse { logins, key, cache })
}

fn login(entry: &Value) -> Result<Login, PluginResponseError> {
    let text = |name: &str| match &entry[name] {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        _ => Err(PluginResponseError::Malformed { field: "auth" }),
    };
    match entry {
        Value::Null | Value::Object(_) => {
            Ok(Login { username: text("username")?, password: text("password")?, ..Login::default() })
        }
        _ => Err(PluginResponseError::Malformed { field: "auth" }),
    }
}

#[cfg(test)]
pub(super) fn sample() -> CredentialPlugin {
    CredentialPlugin {
        name: "sample".into(),
        match_images: vec!["*.test".into(), "h.test:5000/path".into()],
        default_cache: Duration::from_secs(60),
        api_version: API_VERSIONS[0].into(),
        args: Vec::new(),
        env: Vec::new(),
        token: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::credentials::{PullServiceAccount, TokenAttributes};

    #[test]
    fn only_images_that_it_is_for() {
        let plugin = sample();
        for (repository, expect) in [
            ("h.test/a", true),
            ("h.other/a", false),
            ("h.test:5000/path/a", true),
            ("h.test:5000/other", false),
            ("docker.io/library/a", false),
        ] {
            assert_eq!(matches_image(&plugin, repository, false), expect, "{repository}");
        }
    }

    #[test]
    fn one_that_needs_a_service_account_is_not_asked_without() {
        let plugin = CredentialPlugin { token: Some(token(TokenCacheType::Token)), ..sample() };
        assert!(!matches_image(&plugin, "h.test/a", false));
        assert!(matches_image(&plugin, "h.test/a", true));
    }

    fn token(cache: TokenCacheType) -> TokenAttributes {
        TokenAttributes {
            audience: "a".into(),
            required: true,
            required_annotations: Vec::new(),
            optional_annotations: Vec::new(),
            cache,
        }
    }

    fn on_behalf_of(annotations: &[(&str, &str)]) -> PluginServiceAccount {
        let annotations = annotations.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        PluginServiceAccount { account: PullServiceAccount::default(), annotations, token: "t0ken".into() }
    }

    #[test]
    fn the_request_on_behalf_of_a_service_account() {
        let told = |pod: &PluginServiceAccount| -> Value {
            serde_json::from_str(&request(&sample(), "h.test/a", Some(pod))).unwrap()
        };
        let with = told(&on_behalf_of(&[("k", "v")]));
        assert_eq!(
            (&with["serviceAccountToken"], &with["serviceAccountAnnotations"]),
            (&json!("t0ken"), &json!({"k": "v"}))
        );
        let without = told(&on_behalf_of(&[]));
        assert!(without.get("serviceAccountAnnotations").is_none(), "{without}");
        assert!(!format!("{:?}", on_behalf_of(&[])).contains("t0ken"));
    }

    #[test]
    fn a_token_as_the_password_is_for_who_showed_it() {
        let document = json!({
            "kind": "CredentialProviderResponse",
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
            "cacheKeyType": "Registry",
            "auth": { "*.test": { "username": "u", "password": "t0ken" } },
        });
        let parsed = |cache: TokenCacheType| {
            let plugin = CredentialPlugin { token: Some(token(cache)), ..sample() };
            parse_plugin_response(&plugin, document.to_string().as_bytes(), Some(&on_behalf_of(&[])))
        };
        assert!(parsed(TokenCacheType::Token).is_ok());
        assert_eq!(parsed(TokenCacheType::ServiceAccount), Err(PluginResponseError::TokenEchoed));
    }

    #[test]
    fn the_request() {
        let request: Value = serde_json::from_str(&request(&sample(), "h.test/a", None)).unwrap();
        assert_eq!(
            request,
            json!({
                "kind": "CredentialProviderRequest",
                "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
                "image": "h.test/a"
            })
        );
    }

    fn answer(edit: impl FnOnce(&mut Value)) -> Result<PluginResponse, PluginResponseError> {
        let mut document = json!({
            "kind": "CredentialProviderResponse",
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
            "cacheKeyType": "Registry",
            "cacheDuration": "5m0s",
            "auth": { "*.test": { "username": "u", "password": "p" } },
        });
        edit(&mut document);
        parse_plugin_response(&sample(), document.to_string().as_bytes(), None)
    }

    #[test]
    fn answers() {
        let good = answer(|_| {}).unwrap();
        assert_eq!((good.key, good.cache), (CacheKeyType::Registry, Some(Duration::from_secs(300))));
        assert_eq!(good.logins["*.test"].username, "u");
        let without = answer(|d| {
            d.as_object_mut().unwrap().remove("cacheDuration");
            d["auth"] = Value::Null;
            d["cacheKeyType"] = json!("Global");
        });
        assert_eq!(
            without,
            Ok(PluginResponse { logins: Logins::new(), key: CacheKeyType::Global, cache: None })
        );
        let zero = answer(|d| d["cacheDuration"] = json!("0")).unwrap();
        assert_eq!(zero.cache, Some(Duration::ZERO));
    }

    #[test]
    fn answers_that_are_not_used() {
        let check = |edit: fn(&mut Value), expect: &str| {
            assert_eq!(answer(edit).unwrap_err().to_string(), expect);
        };
        check(
            |d| d["apiVersion"] = json!("credentialprovider.kubelet.k8s.io/v1beta1"),
            "apiVersion from credential plugin response did not match expected apiVersion:credentialprovider.kubelet.k8s.io/v1, actual apiVersion:credentialprovider.kubelet.k8s.io/v1beta1",
        );
        check(
            |d| d["cacheKeyType"] = json!("Sometimes"),
            "credential provider plugin did not return a valid cacheKeyType: Sometimes",
        );
        let decoding = "error decoding credential provider plugin response from stdout: ";
        check(|d| d["kind"] = json!("Pod"), &format!("{decoding}kind"));
        check(|d| d["auth"] = json!([]), &format!("{decoding}auth"));
        check(|d| d["auth"]["*.test"] = json!("u:p"), &format!("{decoding}auth"));
        check(|d| d["auth"]["*.test"]["password"] = json!(5), &format!("{decoding}auth"));
        check(|d| d["cacheDuration"] = json!("soon"), &format!("{decoding}cacheDuration"));
        check(|d| d["cacheDuration"] = json!(5), &format!("{decoding}cacheDuration"));
        for garbage in ["", "hidden", "[]", "\"hidden\""] {
            let error = parse_plugin_response(&sample(), garbage.as_bytes(), None).unwrap_err();
            assert_eq!(error, PluginResponseError::NotJson, "{garbage}");
            assert!(!error.to_string().contains("hidden"));
        }
    }
}
