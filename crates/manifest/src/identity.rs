//! What makes a pod from a manifest *this* pod: its UID, names and marks.

use k8s_openapi::api::core::v1::{Pod, Toleration};
use model::codec;

use super::error::{ManifestError, ManifestErrorKind, Origin};
use super::references::{self, StaticPodRules};
use super::{defaults, validate};

/// The annotation that carries the UID (hence a hash of the content) to the mirror pod.
pub const CONFIG_HASH_ANNOTATION: &str = "kubernetes.io/config.hash";

/// A decoded Pod becomes a static pod of this node.
pub fn static_pod(
    mut pod: Pod,
    origin: &Origin,
    node_name: &str,
    rules: impl Into<StaticPodRules>,
) -> Result<Pod, ManifestError> {
    let rules: StaticPodRules = rules.into();
    let refuse = |refusal| ManifestError { origin: origin.clone(), kind: refusal };
    if pod.metadata.name.as_ref().is_none_or(String::is_empty) {
        return Err(refuse(ManifestErrorKind::MissingName));
    }
    defaults::defaults(&mut pod);
    set_static_pod_fields(&mut pod, origin, node_name);
    validate::validate_with_gate(&pod, rules.user_namespace_with_host_network)
        .map_err(|errors| refuse(ManifestErrorKind::Invalid(errors)))?;
    references::check(&pod, rules.references)
        .map_err(|reason| refuse(ManifestErrorKind::References(reason)))?;
    Ok(pod)
}

/// The static defaults: everything below is derived from the content, the place and the node.
fn set_static_pod_fields(pod: &mut Pod, origin: &Origin, node_name: &str) {
    let uid = match pod.metadata.uid.take().filter(|uid| !uid.is_empty()) {
        Some(given) => given,
        None => uid(pod, origin, node_name),
    };
    let metadata = &mut pod.metadata;
    metadata.annotations.get_or_insert_default().insert(CONFIG_HASH_ANNOTATION.to_owned(), uid.clone());
    metadata.uid = Some(uid);
    metadata.name = metadata.name.take().map(|name| format!("{name}-{}", node_name.to_lowercase()));
    if metadata.namespace.as_ref().is_none_or(String::is_empty) {
        metadata.namespace = Some("default".to_owned());
    }
    let spec = pod.spec.get_or_insert_default();
    spec.node_name = Some(node_name.to_owned());
    if matches!(origin, Origin::File { .. }) {
        tolerate_no_execute(spec.tolerations.get_or_insert_default());
    }
    pod.status.get_or_insert_default().phase = Some(model::PodPhase::Pending.as_str().to_owned());
}

/// Files describe what belongs to the node itself, so no taint evicts it.
fn tolerate_no_execute(tolerations: &mut Vec<Toleration>) {
    let wanted = Toleration {
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        ..Toleration::default()
    };
    let empty = |text: &Option<String>| text.as_ref().is_none_or(String::is_empty);
    let matches = |toleration: &&mut Toleration| {
        empty(&toleration.key)
            && empty(&toleration.value)
            && toleration.operator == wanted.operator
            && toleration.effect == wanted.effect
    };
    match tolerations.iter_mut().find(matches) {
        Some(present) => *present = wanted,
        None => tolerations.push(wanted),
    }
}

/// A hash of the defaulted pod and its place, so that changed content is another pod and equal content in
/// another place too.
fn uid(pod: &Pod, origin: &Origin, node_name: &str) -> String {
    let mut hash = Fnv128::new();
    hash.write(&codec::pod_to_canonical_json(pod));
    match origin {
        Origin::File { path, document } => {
            hash.write(format!("host:{node_name}file:{path}").as_bytes());
            if *document > 0 {
                hash.write(format!("document:{document}").as_bytes());
            }
        }
        Origin::Http { url } => hash.write(format!("url:{url}").as_bytes()),
    }
    format!("{:032x}", hash.0)
}

/// FNV-1a with 128 bits.
struct Fnv128(u128);

impl Fnv128 {
    fn new() -> Self {
        Fnv128(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 ^= u128::from(*byte);
            self.0 = self.0.wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    }
}

#[cfg(test)]
mod tests;
