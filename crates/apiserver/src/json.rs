//! Converts between JSON and the Kubernetes types. Each pair of a type and a deserializer takes long to compile, so
//! this happens only here: one deserializer, and a plain function for each type.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::ServiceAccount;
use model::codec::{self, CodecError, FieldFilter};
use model::k8s::CSINode;
use model::k8s::{
    ClusterTrustBundle, ConfigMap, Event, Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret,
    Service, VolumeAttachment,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::status::Status;
use crate::{
    CertificateSigningRequest, CsiDriver, Lease, ObjectIdentity, ObjectList, PodCertificateRequest,
    RuntimeClass, SubjectAccessReview, TokenRequest, TokenReview, UnreadableObject, WatchEvent,
};

/// Set on the bookmark that ends the initial events of a streamed list.
const INITIAL_END: &str = "k8s.io/initial-events-end";

/// Enough to tell objects apart and to know whether one has changed.
const IDENTITY: FieldFilter = FieldFilter::Only(&[
    ("name", FieldFilter::Whole),
    ("namespace", FieldFilter::Whole),
    ("uid", FieldFilter::Whole),
    ("resourceVersion", FieldFilter::Whole),
]);

/// The fields that are decoded of each kind. Fields that are not listed are not decoded, so invalid values there do not
/// make the object unreadable.
mod parts {
    use super::{FieldFilter, IDENTITY};

    const ALL: FieldFilter = FieldFilter::Whole;
    /// Everything but the metadata that the codec always leaves out.
    pub const WHOLE: FieldFilter = FieldFilter::Whole;
    /// The status is compared with the status that the agent wants, and the difference is sent, so every field that the
    /// agent writes is needed, and the conditions of others as well: a patch tells their order.
    pub const NODE: FieldFilter = FieldFilter::Except(&[("spec", NODE_SPEC), ("status", NODE_STATUS)]);
    const NODE_SPEC: FieldFilter = FieldFilter::Only(&[
        ("podCIDR", ALL),
        ("podCIDRs", ALL),
        ("providerID", ALL),
        ("taints", ALL),
        ("unschedulable", ALL),
    ]);
    const NODE_STATUS: FieldFilter =
        FieldFilter::Except(&[("config", FieldFilter::Skip), ("phase", FieldFilter::Skip)]);
    /// The status is compared as that of a node, when a volume has grown.
    pub const CLAIM: FieldFilter = FieldFilter::Except(&[("spec", CLAIM_SPEC), ("status", CLAIM_STATUS)]);
    const CLAIM_SPEC: FieldFilter = FieldFilter::Only(&[
        ("accessModes", ALL),
        ("resources", ALL),
        ("storageClassName", ALL),
        ("volumeMode", ALL),
        ("volumeName", ALL),
    ]);
    const CLAIM_STATUS: FieldFilter = FieldFilter::Except(&[
        ("currentVolumeAttributesClassName", FieldFilter::Skip),
        ("modifyVolumeStatus", FieldFilter::Skip),
    ]);
    /// The service environment variables of containers are made of these.
    pub const SERVICE: FieldFilter = FieldFilter::Only(&[("metadata", IDENTITY), ("spec", SERVICE_SPEC)]);
    const SERVICE_SPEC: FieldFilter = FieldFilter::Only(&[("clusterIP", ALL), ("ports", SERVICE_PORT)]);
    const SERVICE_PORT: FieldFilter = FieldFilter::Only(&[("name", ALL), ("protocol", ALL), ("port", ALL)]);
    pub const CONFIG_MAP: FieldFilter =
        FieldFilter::Only(&[("metadata", IDENTITY), ("data", ALL), ("binaryData", ALL), ("immutable", ALL)]);
    pub const SECRET: FieldFilter =
        FieldFilter::Only(&[("metadata", IDENTITY), ("data", ALL), ("type", ALL), ("immutable", ALL)]);
    /// For RuntimeClass and CSIDriver, which have no status, and for certificate requests, whose status is the answer.
    pub const NAMED_SPEC: FieldFilter = FieldFilter::Except(&[("metadata", IDENTITY)]);
    /// A projected volume may select bundles by their labels.
    pub const TRUST_BUNDLE: FieldFilter = FieldFilter::Only(&[("metadata", LABELLED), ("spec", ALL)]);
    const LABELLED: FieldFilter =
        FieldFilter::Only(&[("name", ALL), ("uid", ALL), ("resourceVersion", ALL), ("labels", ALL)]);
    pub const PERSISTENT_VOLUME: FieldFilter = FieldFilter::Except(&[("status", FieldFilter::Skip)]);
}

/// Why a line of a watch is not an event.
pub enum WatchLineError {
    /// The server sent an error status.
    ErrorStatus(Status),
    Malformed(serde_json::Error),
}

impl From<serde_json::Error> for WatchLineError {
    fn from(error: serde_json::Error) -> Self {
        WatchLineError::Malformed(error)
    }
}

#[derive(Deserialize)]
struct WatchLine<'a> {
    #[serde(rename = "type", borrow)]
    event_type: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct ItemList<'a> {
    #[serde(default)]
    metadata: ListMetadata,
    #[serde(borrow)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
struct MetadataOnly {
    #[serde(default)]
    metadata: ListMetadata,
}

/// The same for lists and for bookmarks.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ListMetadata {
    resource_version: String,
    r#continue: String,
    annotations: Option<std::collections::BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct Named {
    #[serde(default)]
    metadata: ObjectIdentity,
}

/// The metadata that every object has, even if the rest can't be decoded. Of metadata that can't be decoded, the fields
/// that can: the version is needed to step past the object. An object without them has an empty identity.
fn identity(object: &[u8]) -> ObjectIdentity {
    const NAMED: FieldFilter = FieldFilter::Only(&[("metadata", IDENTITY)]);
    const FIELDS: [FieldFilter; 4] = [
        FieldFilter::Only(&[("metadata", FieldFilter::Only(&[("namespace", FieldFilter::Whole)]))]),
        FieldFilter::Only(&[("metadata", FieldFilter::Only(&[("name", FieldFilter::Whole)]))]),
        FieldFilter::Only(&[("metadata", FieldFilter::Only(&[("uid", FieldFilter::Whole)]))]),
        FieldFilter::Only(&[("metadata", FieldFilter::Only(&[("resourceVersion", FieldFilter::Whole)]))]),
    ];
    let decode = |filter| codec::decode::<Named>(object, filter).map(|named| named.metadata);
    decode(NAMED).unwrap_or_else(|_| {
        let [namespace, name, uid, version] = FIELDS.map(|field| decode(field).unwrap_or_default());
        ObjectIdentity {
            namespace: namespace.namespace,
            name: name.name,
            uid: uid.uid,
            resource_version: version.resource_version,
        }
    })
}

/// A deleted object need not be decodable, but it has to be known which one it was.
fn deleted(object: &[u8]) -> Result<ObjectIdentity, WatchLineError> {
    let identity = identity(object);
    if identity.name.is_empty() {
        return Err(malformed("a deleted object without a name"));
    }
    Ok(identity)
}

fn malformed(message: impl std::fmt::Display) -> WatchLineError {
    WatchLineError::Malformed(serde::de::Error::custom(message))
}

fn unreadable(object: &[u8], error: &CodecError) -> UnreadableObject {
    UnreadableObject { identity: identity(object), problem: error.to_string() }
}

/// Decodes each item separately: one that can't be decoded does not affect the others.
fn list<T>(json: &[u8], read: fn(&[u8]) -> Result<T, CodecError>) -> Result<ObjectList<T>, CodecError> {
    let found: ItemList<'_> =
        serde_json::from_slice(json).map_err(|error| CodecError::Unplaced { detail: error.to_string() })?;
    let mut listed = ObjectList {
        items: Vec::new(),
        unreadable: Vec::new(),
        resource_version: found.metadata.resource_version,
        continue_token: found.metadata.r#continue,
    };
    for item in found.items.unwrap_or_default() {
        let item = item.get().as_bytes();
        match read(item) {
            Ok(object) => listed.items.push(object),
            Err(error) => listed.unreadable.push(unreadable(item, &error)),
        }
    }
    Ok(listed)
}

fn event<T>(line: &[u8], read: fn(&[u8]) -> Result<T, CodecError>) -> Result<WatchEvent<T>, WatchLineError> {
    let line: WatchLine<'_> = serde_json::from_slice(line)?;
    let object = line.object.get().as_bytes();
    let event = |of: fn(T) -> WatchEvent<T>| match read(object) {
        Ok(found) => of(found),
        Err(error) => WatchEvent::Unreadable(unreadable(object, &error)),
    };
    Ok(match &*line.event_type {
        "ADDED" => event(WatchEvent::Added),
        "MODIFIED" => event(WatchEvent::Modified),
        "DELETED" => WatchEvent::Deleted(deleted(object)?),
        "ERROR" => return Err(WatchLineError::ErrorStatus(serde_json::from_slice(object)?)),
        "BOOKMARK" => {
            let metadata = serde_json::from_slice::<MetadataOnly>(object)?.metadata;
            let ends =
                metadata.annotations.is_some_and(|all| all.get(INITIAL_END).is_some_and(|v| v == "true"));
            WatchEvent::Bookmark { resource_version: metadata.resource_version, ends_initial_events: ends }
        }
        other => return Err(malformed(format!("unknown watch event {other:?}"))),
    })
}

fn object<T: DeserializeOwned>(json: &[u8], take: FieldFilter) -> Result<T, CodecError> {
    codec::decode(json, take)
}

/// Defines the function that decodes one object of a type.
macro_rules! reading {
    ($($type:ty, $object:ident, $take:ident);+ $(;)?) => {
        $(pub fn $object(json: &[u8]) -> Result<$type, CodecError> {
            object(json, parts::$take)
        })+
    };
}

/// Defines the functions that decode lists and watch events of a type.
macro_rules! listing {
    ($($type:ty, $object:path, $list:ident, $event:ident);+ $(;)?) => {
        $(
            pub fn $list(json: &[u8]) -> Result<ObjectList<$type>, CodecError> {
                list(json, $object)
            }
            pub fn $event(line: &[u8]) -> Result<WatchEvent<$type>, WatchLineError> {
                event(line, $object)
            }
        )+
    };
}

pub use codec::pod_from_json as pod;

reading! {
    Node, node, NODE;
    CSINode, csi_node, WHOLE;
    ConfigMap, config_map, CONFIG_MAP;
    Secret, secret, SECRET;
    ServiceAccount, service_account, WHOLE;
    Service, service, SERVICE;
    RuntimeClass, runtime_class, NAMED_SPEC;
    CsiDriver, csi_driver, NAMED_SPEC;
    ClusterTrustBundle, trust_bundle, TRUST_BUNDLE;
    PersistentVolumeClaim, claim, CLAIM;
    PersistentVolume, persistent_volume, PERSISTENT_VOLUME;
    VolumeAttachment, volume_attachment, WHOLE;
    CertificateSigningRequest, signing_request, WHOLE;
    PodCertificateRequest, certificate_request, NAMED_SPEC;
    Lease, lease, WHOLE;
    Event, core_event, WHOLE;
    TokenRequest, token_request, WHOLE;
    TokenReview, token_review, WHOLE;
    SubjectAccessReview, access_review, WHOLE;
}

listing! {
    Pod, pod, pods, pod_event;
    Node, node, nodes, node_event;
    ConfigMap, config_map, config_maps, config_map_event;
    Secret, secret, secrets, secret_event;
    Service, service, services, service_event;
    RuntimeClass, runtime_class, runtime_classes, runtime_class_event;
    CsiDriver, csi_driver, csi_drivers, csi_driver_event;
    ClusterTrustBundle, trust_bundle, trust_bundles, trust_bundle_event;
    CertificateSigningRequest, signing_request, signing_requests, signing_request_event;
    PodCertificateRequest, certificate_request, certificate_requests, certificate_request_event;
}

/// Serialization can't fail: everything we send consists of strings, numbers and maps with string keys.
fn bytes<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("Kubernetes objects are JSON")
}

macro_rules! writing {
    ($($type:ty, $name:ident);+ $(;)?) => {
        $(pub fn $name(value: &$type) -> Vec<u8> {
            bytes(value)
        })+
    };
}

writing! {
    Pod, write_pod;
    Node, write_node;
    CSINode, write_csi_node;
    Lease, write_lease;
    Event, write_core_event;
    CertificateSigningRequest, write_signing_request;
    PodCertificateRequest, write_certificate_request;
    TokenRequest, write_token_request;
    TokenReview, write_token_review;
    SubjectAccessReview, write_access_review;
    serde_json::Value, write_value;
}

#[cfg(test)]
mod tests;
