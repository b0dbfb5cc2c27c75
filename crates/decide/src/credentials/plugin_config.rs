//! `CredentialProviderConfig`: which plugins there are, and what each is for.

use std::collections::BTreeSet;

use model::codec;
use model::credentials::{CredentialPlugin, TokenAttributes, TokenCacheType};
use serde_json::Value;

use super::plugin::API_VERSIONS;
use super::{go_duration, matching};
use manifest::qualified_name;

const KIND: &str = "CredentialProviderConfig";
const GROUP_VERSIONS: [&str; 3] =
    ["kubelet.config.k8s.io/v1", "kubelet.config.k8s.io/v1alpha1", "kubelet.config.k8s.io/v1beta1"];
const CACHE_TYPES: [&str; 2] = ["ServiceAccount", "Token"];
/// With it plugins may get tokens of service accounts.
pub const TOKEN_GATE: &str = "KubeletServiceAccountTokenForCredentialProviders";

#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum PluginConfigError {
    #[error("error decoding config {path:?}")]
    Syntax {
        path: String,
        #[source]
        source: codec::CodecError,
    },
    #[error("error decoding config {path:?}: expected one {KIND} of kubelet.config.k8s.io/v1, found {found}")]
    Kind { path: String, found: String },
    #[error("error decoding config {path:?}: {field}: {detail}")]
    Field { path: String, field: String, detail: String },
    #[error("duplicate provider name {name:?} found in configuration file(s)")]
    Duplicate { name: String },
    #[error("failed to validate credential provider config: {}", faults.join(", "))]
    Invalid { faults: Vec<String> },
}

/// Reads the files of the configuration, in the order given, as one. `takes_tokens`: plugins may get tokens of service
/// accounts (the gate `KubeletServiceAccountTokenForCredentialProviders`).
pub fn parse(
    files: &[(String, Vec<u8>)],
    takes_tokens: bool,
) -> Result<Vec<CredentialPlugin>, PluginConfigError> {
    let mut plugins: Vec<CredentialPlugin> = Vec::new();
    let mut faults = Vec::new();
    for (path, bytes) in files {
        for entry in entries(path, bytes)? {
            let plugin = plugin(path, &entry, takes_tokens, &mut faults)?;
            if plugins.iter().any(|known| known.name == plugin.name) {
                return Err(PluginConfigError::Duplicate { name: plugin.name });
            }
            plugins.push(plugin);
        }
    }
    if plugins.is_empty() {
        faults.push("providers: Required value: at least 1 item in plugins is required".to_owned());
    }
    if faults.is_empty() { Ok(plugins) } else { Err(PluginConfigError::Invalid { faults }) }
}

fn entries(path: &str, bytes: &[u8]) -> Result<Vec<Value>, PluginConfigError> {
    let documents = codec::parse_documents(bytes)
        .map_err(|source| PluginConfigError::Syntax { path: path.to_owned(), source })?;
    let kind = |found: String| PluginConfigError::Kind { path: path.to_owned(), found };
    let [document] = &documents[..] else {
        return Err(kind(format!("{} documents", documents.len())));
    };
    let version = codec::api_version_of(document).unwrap_or_default();
    if codec::kind_of(document) != Some(KIND) || !GROUP_VERSIONS.contains(&version) {
        let kind_name = codec::kind_of(document).unwrap_or("no kind");
        return Err(kind(format!("{kind_name} of {version:?}")));
    }
    match &document["providers"] {
        Value::Null => Ok(Vec::new()),
        Value::Array(entries) => Ok(entries.clone()),
        _ => Err(wrong_type(path, "providers", "a list")),
    }
}

fn wrong_type(path: &str, field: &str, wanted: &str) -> PluginConfigError {
    let detail = format!("expected {wanted}");
    PluginConfigError::Field { path: path.to_owned(), field: field.to_owned(), detail }
}

fn text(path: &str, entry: &Value, field: &str) -> Result<String, PluginConfigError> {
    match &entry[field] {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        _ => Err(wrong_type(path, field, "a text")),
    }
}

fn texts(path: &str, entry: &Value, field: &str) -> Result<Vec<String>, PluginConfigError> {
    let all = match &entry[field] {
        Value::Null => Some(Vec::new()),
        Value::Array(items) => items.iter().map(|item| item.as_str().map(str::to_owned)).collect(),
        _ => None,
    };
    all.ok_or_else(|| wrong_type(path, field, "a list of texts"))
}

fn plugin(
    path: &str,
    entry: &Value,
    takes_tokens: bool,
    faults: &mut Vec<String>,
) -> Result<CredentialPlugin, PluginConfigError> {
    let name = text(path, entry, "name")?;
    let mut env = Vec::new();
    for variable in entry["env"].as_array().into_iter().flatten() {
        env.push((text(path, variable, "name")?, text(path, variable, "value")?));
    }
    let cache = text(path, entry, "defaultCacheDuration")?;
    let default_cache = go_duration::parse(&cache);
    check_name(&name, faults);
    match default_cache {
        _ if cache.is_empty() => faults.push("providers.defaultCacheDuration: Required value".to_owned()),
        None => return Err(wrong_type(path, "defaultCacheDuration", "a span of time such as 5m")),
        Some(_) if cache.starts_with('-') => faults.push(format!(
            "providers.defaultCacheDuration: Invalid value: {cache:?}: must be greater than or equal to 0"
        )),
        Some(_) => {}
    }
    let mut plugin = CredentialPlugin {
        name,
        match_images: texts(path, entry, "matchImages")?,
        default_cache: default_cache.unwrap_or_default(),
        api_version: text(path, entry, "apiVersion")?,
        args: texts(path, entry, "args")?,
        env,
        token: None,
    };
    check_images(&plugin, faults);
    check_api_version(&plugin, faults);
    if !entry["tokenAttributes"].is_null() {
        plugin.token = token_attributes(path, entry, &plugin, takes_tokens, faults)?;
    }
    Ok(plugin)
}

fn check_name(name: &str, faults: &mut Vec<String>) {
    let mut invalid = |detail: &str| {
        faults.push(format!("providers.name: Invalid value: {name:?}: provider name cannot {detail}"));
    };
    if name.contains('/') {
        invalid("contain '/'");
    }
    if name.contains(' ') {
        invalid("contain spaces");
    }
    if ["", ".", ".."].contains(&name) {
        invalid(&format!("be '{name}'"));
    }
}

fn check_images(plugin: &CredentialPlugin, faults: &mut Vec<String>) {
    if plugin.match_images.is_empty() {
        faults.push(
            "providers.matchImages: Required value: at least 1 item in matchImages is required".to_owned(),
        );
    }
    for pattern in plugin.match_images.iter().filter(|pattern| matching::parse_location(pattern).is_none()) {
        faults.push(format!("providers.matchImages: Invalid value: {pattern:?}: match image is invalid"));
    }
}

fn check_api_version(plugin: &CredentialPlugin, faults: &mut Vec<String>) {
    let given = &plugin.api_version;
    if given.is_empty() {
        faults.push("providers.apiVersion: Required value".to_owned());
    } else if !API_VERSIONS.contains(&given.as_str()) {
        let supported = API_VERSIONS.map(|version| format!("{version:?}")).join(", ");
        faults.push(format!(
            "providers.apiVersion: Unsupported value: {given:?}: supported values: {supported}"
        ));
    }
}

/// `None` where there is a fault: nothing is made of the configuration then.
fn token_attributes(
    path: &str,
    entry: &Value,
    plugin: &CredentialPlugin,
    takes_tokens: bool,
    faults: &mut Vec<String>,
) -> Result<Option<TokenAttributes>, PluginConfigError> {
    let token = &entry["tokenAttributes"];
    let mut fault = |detail: String| faults.push(format!("providers.tokenAttributes{detail}"));
    if !takes_tokens {
        fault(format!(
            ": Forbidden: tokenAttributes is not supported when {TOKEN_GATE} feature gate is disabled"
        ));
    }
    let audience = text(path, token, "serviceAccountTokenAudience")?;
    if audience.is_empty() {
        fault(".serviceAccountTokenAudience: Required value".to_owned());
    }
    let required = texts(path, token, "requiredServiceAccountAnnotationKeys")?;
    let optional = texts(path, token, "optionalServiceAccountAnnotationKeys")?;
    for (field, keys) in [("required", &required), ("optional", &optional)] {
        annotation_key_faults(keys).into_iter().for_each(|detail| {
            fault(format!(".{field}ServiceAccountAnnotationKeys: {detail}"));
        });
    }
    let require = token["requireServiceAccount"].as_bool();
    match require {
        None => fault(".requireServiceAccount: Required value".to_owned()),
        Some(false) if !required.is_empty() => fault(".requiredServiceAccountAnnotationKeys: Forbidden: requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set".to_owned()),
        Some(_) => {}
    }
    let both: BTreeSet<&String> = required.iter().filter(|key| optional.contains(key)).collect();
    if !both.is_empty() {
        fault(format!(": Invalid value: {both:?}: annotation keys cannot be both required and optional"));
    }
    if plugin.api_version != API_VERSIONS[0] {
        fault(format!(": Forbidden: tokenAttributes is only supported for {} API version", API_VERSIONS[0]));
    }
    let cache_type = text(path, token, "cacheType")?;
    if cache_type.is_empty() {
        fault(format!(
            ".cacheType: Required value: cacheType is required to be set when tokenAttributes is specified. Supported values are: {}",
            CACHE_TYPES.join(", ")
        ));
    } else if !CACHE_TYPES.contains(&cache_type.as_str()) {
        fault(format!(
            ".cacheType: Unsupported value: {cache_type:?}: supported values: \"ServiceAccount\", \"Token\""
        ));
    }
    let cache = match cache_type.as_str() {
        "Token" => TokenCacheType::Token,
        _ => TokenCacheType::ServiceAccount,
    };
    Ok(require.map(|is_required| TokenAttributes {
        audience,
        required: is_required,
        required_annotations: required,
        optional_annotations: optional,
        cache,
    }))
}

fn annotation_key_faults(keys: &[String]) -> Vec<String> {
    let mut faults = Vec::new();
    for (place, key) in keys.iter().enumerate() {
        let invalid = qualified_name(&key.to_lowercase()).into_iter();
        faults.extend(invalid.map(|detail| format!("Invalid value: {key:?}: {detail}")));
        if keys[..place].contains(key) {
            faults.push(format!("Duplicate value: {key:?}"));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    fn provider(edit: impl FnOnce(&mut Value)) -> Value {
        let mut entry = json!({
            "name": "p",
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
            "matchImages": ["*.test"],
            "defaultCacheDuration": "5m",
        });
        edit(&mut entry);
        entry
    }

    fn file(providers: Value) -> (String, Vec<u8>) {
        let document = json!({
            "kind": "CredentialProviderConfig",
            "apiVersion": "kubelet.config.k8s.io/v1",
            "providers": providers,
        });
        ("/c.json".to_owned(), document.to_string().into_bytes())
    }

    #[test]
    fn yaml_with_everything() {
        let text = "
apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
  - name: p
    apiVersion: credentialprovider.kubelet.k8s.io/v1
    matchImages: ['*.test', 'h:5000/path']
    defaultCacheDuration: 1h30m
    args: [get, --fast]
    env:
      - name: A
        value: b
";
        let plugins = parse(&[("/c.yaml".into(), text.into())], true).unwrap();
        let expect = CredentialPlugin {
            name: "p".into(),
            match_images: vec!["*.test".into(), "h:5000/path".into()],
            default_cache: Duration::from_secs(5400),
            api_version: "credentialprovider.kubelet.k8s.io/v1".into(),
            args: vec!["get".into(), "--fast".into()],
            env: vec![("A".into(), "b".into())],
            token: None,
        };
        assert_eq!(plugins, [expect]);
    }

    #[test]
    fn several_files_are_one_configuration() {
        let second = provider(|p| p["name"] = json!("q"));
        let plugins = parse(&[file(json!([provider(|_| {})])), file(json!([second]))], true).unwrap();
        assert_eq!(plugins.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["p", "q"]);
        let twice = parse(&[file(json!([provider(|_| {})])), file(json!([provider(|_| {})]))], true);
        assert_eq!(twice, Err(PluginConfigError::Duplicate { name: "p".into() }));
    }

    fn faults(edit: impl FnOnce(&mut Value)) -> String {
        match parse(&[file(json!([provider(edit)]))], true) {
            Err(PluginConfigError::Invalid { faults }) => faults.join("\n"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn faults_name_the_field() {
        let check = |edit: fn(&mut Value), expect: &str| assert_eq!(faults(edit), expect);
        let name = |name: &str, detail: &str| {
            format!("providers.name: Invalid value: {name:?}: provider name cannot {detail}")
        };
        check(|p| p["name"] = json!("a/b"), &name("a/b", "contain '/'"));
        check(|p| p["name"] = json!("a b"), &name("a b", "contain spaces"));
        check(|p| p["name"] = json!(".."), &name("..", "be '..'"));
        check(|p| p["apiVersion"] = Value::Null, "providers.apiVersion: Required value");
        check(
            |p| p["apiVersion"] = json!("v7"),
            "providers.apiVersion: Unsupported value: \"v7\": supported values: \"credentialprovider.kubelet.k8s.io/v1\", \"credentialprovider.kubelet.k8s.io/v1alpha1\", \"credentialprovider.kubelet.k8s.io/v1beta1\"",
        );
        check(
            |p| p["matchImages"] = json!([]),
            "providers.matchImages: Required value: at least 1 item in matchImages is required",
        );
        check(
            |p| p["matchImages"] = json!(["a b"]),
            "providers.matchImages: Invalid value: \"a b\": match image is invalid",
        );
        check(|p| p["defaultCacheDuration"] = Value::Null, "providers.defaultCacheDuration: Required value");
        check(
            |p| p["defaultCacheDuration"] = json!("-1s"),
            "providers.defaultCacheDuration: Invalid value: \"-1s\": must be greater than or equal to 0",
        );
    }

    #[test]
    fn a_plugin_may_need_a_service_account() {
        let token = json!({
            "serviceAccountTokenAudience": "a", "requireServiceAccount": true, "cacheType": "Token",
            "requiredServiceAccountAnnotationKeys": ["h.test/must"],
            "optionalServiceAccountAnnotationKeys": ["may"],
        });
        let with = provider(|p| p["tokenAttributes"] = token.clone());
        let expect = TokenAttributes {
            audience: "a".into(),
            required: true,
            required_annotations: vec!["h.test/must".into()],
            optional_annotations: vec!["may".into()],
            cache: TokenCacheType::Token,
        };
        assert_eq!(parse(&[file(json!([with]))], true).unwrap()[0].token, Some(expect));
        let off = parse(&[file(json!([with]))], false).unwrap_err().to_string();
        assert!(off.contains("tokenAttributes: Forbidden: tokenAttributes is not supported"), "{off}");
        let keys = faults(|p| {
            p["tokenAttributes"] = token.clone();
            p["tokenAttributes"]["requiredServiceAccountAnnotationKeys"] = json!(["a", "a"]);
            p["tokenAttributes"]["optionalServiceAccountAnnotationKeys"] = json!(["-b"]);
        });
        assert!(keys.contains("requiredServiceAccountAnnotationKeys: Duplicate value: \"a\""), "{keys}");
        assert!(keys.contains("optionalServiceAccountAnnotationKeys: Invalid value: \"-b\": "), "{keys}");
        let bad = faults(|p| p["tokenAttributes"] = json!({}));
        for field in ["serviceAccountTokenAudience", "requireServiceAccount", "cacheType"] {
            assert!(bad.contains(&format!("tokenAttributes.{field}: Required value")), "{bad}");
        }
    }

    #[test]
    fn what_is_no_such_configuration_is_refused() {
        let check = |text: &str, expect: &str| {
            let error = parse(&[("/c".into(), text.into())], true).unwrap_err();
            assert!(error.to_string().contains(expect), "{text}: {error}");
        };
        check("{", "error decoding config \"/c\"");
        check("", "0 documents");
        check("kind: Pod\napiVersion: v1", "found Pod of \"v1\"");
        check("{}", "found no kind of \"\"");
        let head = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\n";
        check(head, "at least 1 item in plugins is required");
        check(&format!("{head}providers: 1"), "providers: expected a list");
        check(&format!("{head}providers: [{{name: 1}}]"), "name: expected a text");
        check(
            &format!("{head}providers: [{{name: a, matchImages: [1]}}]"),
            "matchImages: expected a list of texts",
        );
        check(
            &format!("{head}providers: [{{name: a, defaultCacheDuration: soon}}]"),
            "defaultCacheDuration: expected a span of time such as 5m",
        );
    }
}
