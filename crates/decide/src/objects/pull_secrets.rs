//! The credentials in a pod's pull secrets.

use model::cluster::{ObjectContent, ObjectKey, ObjectKind};
use model::credentials::DockerConfigForm;
use model::pod::PodView;

use super::{ObjectCache, ObjectLookup, pull_secrets};
use crate::credentials::{CredentialCandidate, CredentialSource, Keyring, docker_config, repository};

/// The credentials of the pod's pull secrets that match an image, in the order in which they are tried. Secrets that
/// are missing, of another type or malformed are skipped.
pub fn pull_secret_candidates(desk: &ObjectCache, pod: &PodView, image: &str) -> Vec<CredentialCandidate> {
    let mut keyring = Keyring::default();
    for name in pull_secrets(pod) {
        let key = ObjectKey {
            kind: ObjectKind::Secret,
            namespace: pod.namespace().to_owned(),
            name: name.to_owned(),
        };
        let ObjectLookup::Found(content) = desk.lookup(&key) else { continue };
        let Some((form, bytes)) = config_in(content) else { continue };
        let Ok(logins) = docker_config::parse(form, bytes) else { continue };
        let uid = content.uid.clone();
        keyring.add(CredentialSource::Secret { uid, namespace: key.namespace, name: key.name }, &logins);
    }
    keyring.lookup(&repository(image))
}

fn config_in(content: &ObjectContent) -> Option<(DockerConfigForm, &[u8])> {
    let (form, key) = match content.secret_type.as_deref()? {
        "kubernetes.io/dockerconfigjson" => (DockerConfigForm::Json, ".dockerconfigjson"),
        "kubernetes.io/dockercfg" => (DockerConfigForm::Legacy, ".dockercfg"),
        _ => return None,
    };
    content.data.get(key).filter(|bytes| !bytes.is_empty()).map(|bytes| (form, bytes.as_slice()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::cluster::ObjectState;
    use serde_json::json;

    use super::*;
    use crate::credentials::{credentials_fingerprint, secrets_of_candidates};
    use crate::render::sample;

    fn secret(kind: &str, key: &str, text: &str) -> ObjectState {
        ObjectState::Present(Arc::new(ObjectContent {
            uid: "u".into(),
            secret_type: Some(kind.into()),
            data: [(key.to_owned(), text.into())].into(),
            ..Default::default()
        }))
    }

    fn users(state: ObjectState, image: &str) -> Vec<String> {
        let pod =
            sample::pod(json!({"containers": [], "imagePullSecrets": [{"name": "s"}, {"name": "gone"}]}));
        let mut desk = ObjectCache::default();
        desk.set_pod_references(&pod);
        let key = ObjectKey { kind: ObjectKind::Secret, namespace: "ns".into(), name: "s".into() };
        desk.record_state(&key, state);
        let found = pull_secret_candidates(&desk, &pod, image);
        let shown = secrets_of_candidates(&found);
        assert!(
            shown
                .iter()
                .all(|s| (s.uid.as_str(), s.name.as_str()) == ("u", "s") && !s.credential_hash.is_empty())
        );
        assert_eq!(found.is_empty(), credentials_fingerprint(&found) == 0);
        found.into_iter().map(|c| c.login.username).collect()
    }

    #[test]
    fn secrets_of_both_forms() {
        let auth = r#"{"username": "me", "password": "p"}"#;
        let json = format!(r#"{{"auths": {{"h.test": {auth}}}}}"#);
        let legacy = format!(r#"{{"h.test": {auth}}}"#);
        let none: [&str; 0] = [];
        let (new, old) = ("kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg");
        assert_eq!(users(secret(new, ".dockerconfigjson", &json), "h.test/a:1"), ["me"]);
        assert_eq!(users(secret(new, ".dockerconfigjson", &json), "other.test/a:1"), none);
        assert_eq!(users(secret(old, ".dockercfg", &legacy), "h.test/a:1"), ["me"]);
        assert_eq!(users(secret("Opaque", ".dockerconfigjson", &json), "h.test/a:1"), none);
        assert_eq!(users(secret(new, ".dockercfg", &legacy), "h.test/a:1"), none);
        assert_eq!(users(secret(new, ".dockerconfigjson", "no json"), "h.test/a:1"), none);
        assert_eq!(users(ObjectState::Absent { message: String::new() }, "h.test/a:1"), none);
    }
}
