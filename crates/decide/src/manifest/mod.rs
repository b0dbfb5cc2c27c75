//! Bytes of a manifest to static pods.
//!
//! ```text
//! bytes -> documents -> kind? -> Pod -> API defaults -> static identity -> validation -> references -> pod
//! ```
//!
//! A file may hold several documents, and each stands on its own: a refused one is reported and its neighbours
//! stay. Text that does not parse gives nothing at all, since nobody knows where its documents end. What an
//! HTTP server sends is one Pod or one list, all or nothing.

mod defaults;
mod error;
mod identity;
mod image;
mod references;
mod totals;
mod validate;

use k8s_openapi::api::core::v1::Pod;
use model::codec::{self, CodecError};
use serde_json::Value;

pub use self::defaults::defaults;
pub use self::error::{ManifestError, Refusal};
pub use self::identity::{CONFIG_HASH_ANNOTATION, Origin, static_pod};
pub use self::references::{always_refused, references};
pub use self::validate::{FieldError, validate};

/// What a document says it is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Pod,
    PodList,
    Other(String),
}

fn kind(document: &Value) -> Kind {
    let (version, kind) = (codec::api_version_of(document), codec::kind_of(document));
    match (version, kind) {
        (Some("v1"), Some("Pod")) => Kind::Pod,
        (Some("v1"), Some("PodList" | "List")) => Kind::PodList,
        (_, None) => Kind::Other("kind is missing".to_owned()),
        (None, Some(kind)) => Kind::Other(format!("apiVersion is missing for kind {kind:?}")),
        (Some(version), Some(kind)) => {
            Kind::Other(format!("kind {kind:?} of {version:?} is not a Pod of \"v1\""))
        }
    }
}

/// The static pods of one file, and what was wrong with its other documents.
pub fn decode_file(
    bytes: &[u8],
    path: &str,
    node_name: &str,
    prevent_references: bool,
) -> (Vec<Pod>, Vec<ManifestError>) {
    let origin = |document| Origin::File { path: path.to_owned(), document };
    let refuse = |refusal| ManifestError { origin: origin(0), refusal };
    let documents = match codec::parse_documents(bytes) {
        Ok(documents) => documents,
        Err(error) => return (Vec::new(), vec![refuse(Refusal::Undecodable(error))]),
    };
    if documents.is_empty() {
        return (Vec::new(), vec![refuse(Refusal::OtherKind("the file is empty".to_owned()))]);
    }
    let (mut pods, mut errors) = (Vec::new(), Vec::new());
    for (index, document) in documents.into_iter().enumerate() {
        match pod_document(document, &origin(index), node_name, prevent_references) {
            Ok(pod) => pods.push(pod),
            Err(error) => errors.push(error),
        }
    }
    (pods, errors)
}

fn pod_document(
    document: Value,
    origin: &Origin,
    node_name: &str,
    prevent_references: bool,
) -> Result<Pod, ManifestError> {
    let refuse = |refusal| ManifestError { origin: origin.clone(), refusal };
    match kind(&document) {
        Kind::Pod => {}
        Kind::PodList => {
            return Err(refuse(Refusal::OtherKind("a list of pods is not allowed in a file".to_owned())));
        }
        Kind::Other(what) => return Err(refuse(Refusal::OtherKind(what))),
    }
    let pod = codec::pod_from_value(document).map_err(|error| refuse(Refusal::Undecodable(error)))?;
    static_pod(pod, origin, node_name, prevent_references)
}

/// The static pods that an HTTP server sent: one Pod or one list of them.
pub fn decode_http(
    bytes: &[u8],
    url: &str,
    node_name: &str,
    prevent_references: bool,
) -> Result<Vec<Pod>, ManifestError> {
    let origin = Origin::Http { url: url.to_owned() };
    let refuse = |refusal| ManifestError { origin: origin.clone(), refusal };
    let undecodable = |error: CodecError| refuse(Refusal::Undecodable(error));
    let mut documents = codec::parse_documents(bytes).map_err(undecodable)?;
    let document = match (documents.pop(), documents.len()) {
        (Some(document), 0) => document,
        (None, _) => return Err(refuse(Refusal::OtherKind("the answer is empty".to_owned()))),
        (Some(_), _) => return Err(refuse(Refusal::OtherKind("more than one document".to_owned()))),
    };
    let pods = match kind(&document) {
        Kind::Pod => vec![codec::pod_from_value(document).map_err(undecodable)?],
        Kind::PodList => codec::pod_list_from_value(document).map_err(undecodable)?,
        Kind::Other(what) => return Err(refuse(Refusal::OtherKind(what))),
    };
    pods.into_iter().map(|pod| static_pod(pod, &origin, node_name, prevent_references)).collect()
}

#[cfg(test)]
mod tests;
