//! Bytes of a manifest to static pods. No I/O, and nothing of what happens to the pods afterwards.
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
mod objects;
mod references;
mod runtime_class;
mod totals;
mod validate;

use k8s_openapi::api::core::v1::Pod;
use model::codec::{self, CodecError};
use model::local::LocalObjects;
use model::runtime_class::RuntimeClasses;
use serde_json::Value;

pub use self::defaults::defaults;
pub use self::error::{ManifestError, ManifestErrorKind, Origin};
use self::identity::static_pod;
use self::objects::LocalObjectKind;
pub use self::references::{ReferencePolicy, StaticPodRules};
pub use self::validate::FieldError;
pub use self::validate::qualified_name;

/// What a document says it is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Pod,
    PodList,
    RuntimeClass,
    Object(LocalObjectKind),
    Other(String),
}

fn kind(document: &Value) -> Kind {
    let (version, kind) = (codec::api_version_of(document), codec::kind_of(document));
    match (version, kind) {
        (Some("v1"), Some("Pod")) => Kind::Pod,
        (Some("v1"), Some("PodList" | "List")) => Kind::PodList,
        (Some("node.k8s.io/v1"), Some("RuntimeClass")) => Kind::RuntimeClass,
        (Some("v1"), Some("ConfigMap")) => Kind::Object(LocalObjectKind::ConfigMap),
        (Some("v1"), Some("Secret")) => Kind::Object(LocalObjectKind::Secret),
        (Some("v1"), Some("PersistentVolumeClaim")) => Kind::Object(LocalObjectKind::Claim),
        (_, None) => Kind::Other("kind is missing".to_owned()),
        (None, Some(kind)) => Kind::Other(format!("apiVersion is missing for kind {kind:?}")),
        (Some(version), Some(kind)) => {
            Kind::Other(format!("kind {kind:?} of {version:?} is not a Pod of \"v1\""))
        }
    }
}

/// What one file says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FileContent {
    pub pods: Vec<Pod>,
    pub runtime_classes: RuntimeClasses,
    /// For a node without a cluster.
    pub objects: LocalObjects,
    /// What was wrong with its other documents.
    pub errors: Vec<ManifestError>,
}

/// The static pods of one file, and what pods beside it may name: runtime classes and, without a cluster, objects.
pub fn decode_file(
    bytes: &[u8],
    path: &str,
    node_name: &str,
    rules: impl Into<StaticPodRules>,
) -> FileContent {
    let rules: StaticPodRules = rules.into();
    let origin = |document| Origin::File { path: path.to_owned(), document };
    let refuse = |refusal| ManifestError { origin: origin(0), kind: refusal };
    let of_error = |error| FileContent { errors: vec![error], ..FileContent::default() };
    let documents = match codec::parse_documents(bytes) {
        Ok(documents) => documents,
        Err(error) => return of_error(refuse(ManifestErrorKind::Undecodable(error))),
    };
    if documents.is_empty() {
        return of_error(refuse(ManifestErrorKind::UnexpectedKind("the file is empty".to_owned())));
    }
    let mut content = FileContent::default();
    for (index, document) in documents.into_iter().enumerate() {
        if kind(&document) == Kind::RuntimeClass {
            match runtime_class::decode(document) {
                Ok((name, class)) => drop(content.runtime_classes.insert(name, class)),
                Err(refusal) => content.errors.push(ManifestError { origin: origin(index), kind: refusal }),
            }
            continue;
        }
        if let (Kind::Object(kind), ReferencePolicy::AllowLocal) = (kind(&document), rules.references) {
            let read = objects::decode(kind, document, &mut content.objects);
            let refused = read.err().map(|refusal| ManifestError { origin: origin(index), kind: refusal });
            content.errors.extend(refused);
            continue;
        }
        match pod_document(document, &origin(index), node_name, rules) {
            Ok(pod) => content.pods.push(pod),
            Err(error) => content.errors.push(error),
        }
    }
    content
}

fn pod_document(
    document: Value,
    origin: &Origin,
    node_name: &str,
    rules: StaticPodRules,
) -> Result<Pod, ManifestError> {
    let refuse = |refusal| ManifestError { origin: origin.clone(), kind: refusal };
    match kind(&document) {
        Kind::Pod => {}
        Kind::PodList => {
            return Err(refuse(ManifestErrorKind::UnexpectedKind(
                "a list of pods is not allowed in a file".to_owned(),
            )));
        }
        Kind::RuntimeClass => {
            return Err(refuse(ManifestErrorKind::UnexpectedKind("it is a RuntimeClass".to_owned())));
        }
        Kind::Object(kind) => {
            let kind = kind.word();
            let what = format!("kind {kind:?} is read from files only where there is no cluster");
            return Err(refuse(ManifestErrorKind::UnexpectedKind(what)));
        }
        Kind::Other(what) => return Err(refuse(ManifestErrorKind::UnexpectedKind(what))),
    }
    let pod =
        codec::pod_from_value(document).map_err(|error| refuse(ManifestErrorKind::Undecodable(error)))?;
    static_pod(pod, origin, node_name, rules)
}

/// The static pods that an HTTP server sent: one Pod or one list of them.
pub fn decode_http(
    bytes: &[u8],
    url: &str,
    node_name: &str,
    rules: impl Into<StaticPodRules>,
) -> Result<Vec<Pod>, ManifestError> {
    let rules: StaticPodRules = rules.into();
    let origin = Origin::Http { url: url.to_owned() };
    let refuse = |refusal| ManifestError { origin: origin.clone(), kind: refusal };
    let undecodable = |error: CodecError| refuse(ManifestErrorKind::Undecodable(error));
    let mut documents = codec::parse_documents(bytes).map_err(undecodable)?;
    let document = match (documents.pop(), documents.len()) {
        (Some(document), 0) => document,
        (None, _) => return Err(refuse(ManifestErrorKind::UnexpectedKind("the answer is empty".to_owned()))),
        (Some(_), _) => {
            return Err(refuse(ManifestErrorKind::UnexpectedKind("more than one document".to_owned())));
        }
    };
    let pods = match kind(&document) {
        Kind::Pod => vec![codec::pod_from_value(document).map_err(undecodable)?],
        Kind::PodList => codec::pod_list_from_value(document).map_err(undecodable)?,
        Kind::RuntimeClass => {
            return Err(refuse(ManifestErrorKind::UnexpectedKind(
                "runtime classes are read from files only".to_owned(),
            )));
        }
        Kind::Object(kind) => {
            let what = format!("kind {:?} is read from files only", kind.word());
            return Err(refuse(ManifestErrorKind::UnexpectedKind(what)));
        }
        Kind::Other(what) => return Err(refuse(ManifestErrorKind::UnexpectedKind(what))),
    };
    pods.into_iter().map(|pod| static_pod(pod, &origin, node_name, rules)).collect()
}

#[cfg(test)]
mod tests;
