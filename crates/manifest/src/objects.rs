//! ConfigMaps, Secrets and PersistentVolumeClaims in files: what an API server would otherwise tell of.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use model::cluster::{ObjectContent, ObjectKey, ObjectKind};
use model::codec;
use model::local::LocalObjects;
use serde_json::Value;

use super::ManifestErrorKind;
use super::validate::syntax;
use model::hash::fnv1a_64;

/// Longer ones no API server would take either.
const MOST_BYTES: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalObjectKind {
    ConfigMap,
    Secret,
    Claim,
}

impl LocalObjectKind {
    pub fn word(self) -> &'static str {
        match self {
            LocalObjectKind::ConfigMap => "ConfigMap",
            LocalObjectKind::Secret => "Secret",
            LocalObjectKind::Claim => "PersistentVolumeClaim",
        }
    }
}

/// Adds the object of the document to `objects`; a later one of the same name replaces an earlier one.
pub fn decode(
    kind: LocalObjectKind,
    document: Value,
    objects: &mut LocalObjects,
) -> Result<(), ManifestErrorKind> {
    let invalid = |what: String| ManifestErrorKind::Object { kind: kind.word(), what };
    // The same text is the same version, so that a file which is only touched changes nothing.
    let version = format!("{:016x}", fnv1a_64(document.to_string().as_bytes()));
    match kind {
        LocalObjectKind::ConfigMap => {
            let map: ConfigMap = codec::from_value(&document).map_err(|e| invalid(e.to_string()))?;
            let key = object_key(ObjectKind::ConfigMap, &map.metadata).map_err(invalid)?;
            let content = config_map(map, version).map_err(invalid)?;
            keep(&mut objects.contents, key, Arc::new(content));
        }
        LocalObjectKind::Secret => {
            let secret: Secret = codec::from_value(&document).map_err(|e| invalid(e.to_string()))?;
            let key = object_key(ObjectKind::Secret, &secret.metadata).map_err(invalid)?;
            let content = secret_content(secret, version).map_err(invalid)?;
            keep(&mut objects.contents, key, Arc::new(content));
        }
        LocalObjectKind::Claim => {
            let mut claim: PersistentVolumeClaim =
                codec::from_value(&document).map_err(|e| invalid(e.to_string()))?;
            let key = object_key(ObjectKind::ConfigMap, &claim.metadata).map_err(invalid)?;
            let mode = claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref());
            if mode.is_some_and(|mode| mode != "Filesystem") {
                return Err(invalid("spec.volumeMode: without a cluster a claim is a directory".into()));
            }
            claim.metadata.namespace = Some(key.namespace);
            let place = |claim: &PersistentVolumeClaim| {
                (claim.metadata.namespace.clone(), claim.metadata.name.clone())
            };
            objects.claims.retain(|other| place(other) != place(&claim));
            objects.claims.push(Arc::new(claim));
            objects.claims.sort_by_key(|claim| place(claim));
        }
    }
    Ok(())
}

fn keep(list: &mut Vec<(ObjectKey, Arc<ObjectContent>)>, key: ObjectKey, content: Arc<ObjectContent>) {
    list.retain(|(other, _)| *other != key);
    list.push((key, content));
    list.sort_by(|(a, _), (b, _)| a.cmp(b));
}

/// Both names become parts of paths.
fn object_key(kind: ObjectKind, meta: &ObjectMeta) -> Result<ObjectKey, String> {
    let name = meta.name.clone().unwrap_or_default();
    if let Some(fault) = syntax::dns_subdomain(&name).first() {
        return Err(format!("metadata.name: {name:?}: {fault}"));
    }
    let namespace = meta.namespace.clone().filter(|namespace| !namespace.is_empty());
    let namespace = namespace.unwrap_or_else(|| "default".to_owned());
    if let Some(fault) = syntax::dns_label(&namespace).first() {
        return Err(format!("metadata.namespace: {namespace:?}: {fault}"));
    }
    Ok(ObjectKey { kind, namespace, name })
}

fn config_map(map: ConfigMap, version: String) -> Result<ObjectContent, String> {
    let text = map.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.into_bytes()));
    let binary = map.binary_data.unwrap_or_default();
    let binary_keys = binary.keys().cloned().collect();
    let binary = binary.into_iter().map(|(key, value)| (key, value.0));
    checked(ObjectContent {
        uid: "local".into(),
        resource_version: version,
        data: text.chain(binary).collect(),
        binary_keys,
        ..ObjectContent::default()
    })
}

/// What stands in `stringData` replaces what stands in `data`.
fn secret_content(secret: Secret, version: String) -> Result<ObjectContent, String> {
    let data = secret.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0));
    let plain = secret.string_data.unwrap_or_default();
    let plain = plain.into_iter().map(|(key, value)| (key, value.into_bytes()));
    checked(ObjectContent {
        uid: "local".into(),
        resource_version: version,
        data: data.chain(plain).collect(),
        secret_type: secret.type_,
        ..ObjectContent::default()
    })
}

fn checked(content: ObjectContent) -> Result<ObjectContent, String> {
    for key in content.data.keys() {
        let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if key.is_empty() || key.len() > 253 || !key.chars().all(fine) || key == "." || key.starts_with("..")
        {
            return Err(format!("data[{key}]: a key has letters, digits, '-', '_' or '.', and no '..'"));
        }
    }
    if content.data.values().map(Vec::len).sum::<usize>() > MOST_BYTES {
        return Err("data: must have at most 1048576 bytes".into());
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn decoded(kind: LocalObjectKind, document: Value) -> Result<LocalObjects, String> {
        let mut objects = LocalObjects::default();
        decode(kind, document, &mut objects).map_err(|refusal| refusal.to_string())?;
        Ok(objects)
    }

    fn data(objects: &LocalObjects) -> Vec<String> {
        let (_, content) = &objects.contents[0];
        let line = |(key, bytes): (&String, &Vec<u8>)| format!("{key}={}", String::from_utf8_lossy(bytes));
        content.data.iter().map(line).collect()
    }

    #[test]
    fn contents() {
        let map = json!({"metadata": {"name": "m"}, "data": {"a": "1"}, "binaryData": {"b": "Mg=="}});
        let found = decoded(LocalObjectKind::ConfigMap, map).unwrap();
        assert_eq!(data(&found), ["a=1", "b=2"]);
        assert_eq!(found.contents[0].0.namespace, "default");
        let secret = json!({
            "metadata": {"name": "s", "namespace": "ns"}, "type": "Opaque",
            "data": {"a": "MQ==", "b": "Mg=="}, "stringData": {"b": "two"},
        });
        let found = decoded(LocalObjectKind::Secret, secret).unwrap();
        assert_eq!(data(&found), ["a=1", "b=two"]);
        assert_eq!(found.contents[0].1.secret_type.as_deref(), Some("Opaque"));
        assert!(!format!("{found:?}").contains("two"), "a secret does not show");
    }

    #[test]
    fn what_is_refused() {
        let check = |kind: LocalObjectKind, document: Value, expect: &str| {
            let error = decoded(kind, document).unwrap_err();
            assert!(error.contains(expect), "{error}");
        };
        check(LocalObjectKind::ConfigMap, json!({"metadata": {}}), "invalid ConfigMap: metadata.name");
        check(LocalObjectKind::Claim, json!({"metadata": {"name": "../up"}}), "metadata.name");
        check(
            LocalObjectKind::Claim,
            json!({"metadata": {"name": "a", "namespace": "a.b"}}),
            "metadata.namespace",
        );
        let block = json!({"metadata": {"name": "a"}, "spec": {"volumeMode": "Block"}});
        check(LocalObjectKind::Claim, block, "spec.volumeMode");
        let key = json!({"metadata": {"name": "a"}, "data": {"../x": "1"}});
        check(LocalObjectKind::ConfigMap, key, "data[../x]");
        check(
            LocalObjectKind::Secret,
            json!({"metadata": {"name": "a"}, "data": {"k": "%"}}),
            "invalid Secret",
        );
        let much = json!({"metadata": {"name": "a"}, "data": {"k": "x".repeat(MOST_BYTES + 1)}});
        check(LocalObjectKind::ConfigMap, much, "at most");
    }

    #[test]
    fn the_last_of_a_name_counts_and_its_version_is_its_text() {
        let mut objects = LocalObjects::default();
        let map = |text: &str| json!({"metadata": {"name": "m"}, "data": {"k": text}});
        let mut versions = Vec::new();
        for text in ["1", "1", "2"] {
            decode(LocalObjectKind::ConfigMap, map(text), &mut objects).unwrap();
            assert_eq!(objects.contents.len(), 1);
            versions.push(objects.contents[0].1.resource_version.clone());
        }
        assert_eq!(versions[0], versions[1]);
        assert_ne!(versions[1], versions[2]);
    }
}
