//! Between JSON and the Kubernetes types. Each pair of a type and a deserializer takes long to compile, so it happens
//! here and nowhere else: one deserializer, and a plain function for each type.

use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use model::k8s::CSINode;
use model::k8s::{
    ClusterTrustBundle, ConfigMap, Event, Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret,
    Service, VolumeAttachment,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::status::Status;
use crate::{
    CertificateSigningRequest, CsiDriver, Lease, Listed, RuntimeClass, SubjectAccessReview, TokenRequest,
    TokenReview, WatchEvent,
};

/// Set on the bookmark that ends the initial events of a streamed list.
const INITIAL_END: &str = "k8s.io/initial-events-end";

/// Why a line of a watch is no event.
pub enum Unread {
    /// The server says that something is wrong.
    Told(Status),
    Malformed(serde_json::Error),
}

impl From<serde_json::Error> for Unread {
    fn from(error: serde_json::Error) -> Self {
        Unread::Malformed(error)
    }
}

#[derive(Deserialize)]
struct Sort {
    #[serde(rename = "type")]
    sort: String,
}

#[derive(Deserialize)]
struct With<T> {
    object: T,
}

#[derive(Deserialize)]
struct Bare {
    #[serde(default)]
    metadata: BareMeta,
}

/// The same for lists and for bookmarks.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct BareMeta {
    resource_version: String,
    r#continue: String,
    annotations: Option<std::collections::BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct ItemList<T> {
    #[serde(default)]
    metadata: BareMeta,
    items: Option<Vec<T>>,
}

fn object<T: DeserializeOwned>(json: &[u8], meta: fn(&mut T) -> &mut ObjectMeta) -> serde_json::Result<T> {
    let mut found: T = serde_json::from_slice(json)?;
    trim(meta(&mut found));
    Ok(found)
}

fn list<T: DeserializeOwned>(
    json: &[u8],
    meta: fn(&mut T) -> &mut ObjectMeta,
) -> serde_json::Result<Listed<T>> {
    let found: ItemList<T> = serde_json::from_slice(json)?;
    let mut items = found.items.unwrap_or_default();
    items.iter_mut().for_each(|item| trim(meta(item)));
    Ok(Listed { items, resource_version: found.metadata.resource_version, more: found.metadata.r#continue })
}

fn event<T: DeserializeOwned>(
    line: &[u8],
    meta: fn(&mut T) -> &mut ObjectMeta,
) -> Result<WatchEvent<T>, Unread> {
    let sort: Sort = serde_json::from_slice(line)?;
    let read = || {
        let mut found: T = serde_json::from_slice::<With<T>>(line)?.object;
        trim(meta(&mut found));
        Ok::<T, serde_json::Error>(found)
    };
    Ok(match sort.sort.as_str() {
        "ADDED" => WatchEvent::Added(read()?),
        "MODIFIED" => WatchEvent::Modified(read()?),
        "DELETED" => WatchEvent::Deleted(read()?),
        "ERROR" => return Err(Unread::Told(serde_json::from_slice::<With<Status>>(line)?.object)),
        "BOOKMARK" => {
            let metadata = serde_json::from_slice::<With<Bare>>(line)?.object.metadata;
            let ends =
                metadata.annotations.is_some_and(|all| all.get(INITIAL_END).is_some_and(|v| v == "true"));
            WatchEvent::Bookmark { resource_version: metadata.resource_version, initial_end: ends }
        }
        other => {
            let message = format!("unknown watch event {other:?}");
            return Err(Unread::Malformed(serde::de::Error::custom(message)));
        }
    })
}

/// Who wrote which field is half of many objects, and nothing to us.
fn trim(meta: &mut ObjectMeta) {
    meta.managed_fields = None;
}

/// One object of a type.
macro_rules! reading {
    ($($type:ty, $object:ident);+ $(;)?) => {
        $(pub fn $object(json: &[u8]) -> serde_json::Result<$type> {
            object(json, |found: &mut $type| &mut found.metadata)
        })+
    };
}

/// Lists and watch events of a type.
macro_rules! listing {
    ($($type:ty, $list:ident, $event:ident);+ $(;)?) => {
        $(
            pub fn $list(json: &[u8]) -> serde_json::Result<Listed<$type>> {
                list(json, |found: &mut $type| &mut found.metadata)
            }
            pub fn $event(line: &[u8]) -> Result<WatchEvent<$type>, Unread> {
                event(line, |found: &mut $type| &mut found.metadata)
            }
        )+
    };
}

reading! {
    Pod, pod;
    Node, node;
    CSINode, csi_node;
    ConfigMap, config_map;
    Secret, secret;
    ServiceAccount, service_account;
    PersistentVolumeClaim, claim;
    PersistentVolume, persistent_volume;
    VolumeAttachment, volume_attachment;
    CertificateSigningRequest, signing_request;
    Lease, lease;
    Event, core_event;
    TokenRequest, token_request;
    TokenReview, token_review;
    SubjectAccessReview, access_review;
}

listing! {
    Pod, pods, pod_event;
    Node, nodes, node_event;
    ConfigMap, config_maps, config_map_event;
    Secret, secrets, secret_event;
    Service, services, service_event;
    RuntimeClass, runtime_classes, runtime_class_event;
    CsiDriver, csi_drivers, csi_driver_event;
    ClusterTrustBundle, trust_bundles, trust_bundle_event;
    CertificateSigningRequest, signing_requests, signing_request_event;
}

/// All that we send is made of strings, numbers and maps with string keys: it can always be written.
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
    TokenRequest, write_token_request;
    TokenReview, write_token_review;
    SubjectAccessReview, write_access_review;
    serde_json::Value, write_value;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_told_apart() {
        let pod =
            r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","managedFields":[{"manager":"m"}]}}"#;
        let line = |sort: &str, object: &str| format!(r#"{{"type":"{sort}","object":{object}}}"#);
        let read = |sort: &str, object: &str| pod_event(line(sort, object).as_bytes()).ok();
        let name = |pod: Pod| (pod.metadata.name, pod.metadata.managed_fields);
        for sort in ["ADDED", "MODIFIED", "DELETED"] {
            let found = match (sort, read(sort, pod)) {
                ("ADDED", Some(WatchEvent::Added(pod))) => name(pod),
                ("MODIFIED", Some(WatchEvent::Modified(pod))) => name(pod),
                ("DELETED", Some(WatchEvent::Deleted(pod))) => name(pod),
                other => panic!("{sort} was read as {:?}", other.1),
            };
            assert_eq!(found, (Some("a".into()), None), "{sort}");
        }
        let bookmark = |annotations: &str| {
            let object = format!(
                r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"resourceVersion":"7","creationTimestamp":null{annotations}}},"spec":{{"containers":null}},"status":{{}}}}"#
            );
            read("BOOKMARK", &object)
        };
        let expect = |initial_end| Some(WatchEvent::Bookmark { resource_version: "7".into(), initial_end });
        assert_eq!(bookmark(""), expect(false));
        assert_eq!(bookmark(r#","annotations":{"k8s.io/initial-events-end":"true"}"#), expect(true));
        assert_eq!(read("LATER", pod), None);
        assert!(matches!(
            pod_event(line("ERROR", r#"{"kind":"Status","code":410}"#).as_bytes()),
            Err(Unread::Told(_))
        ));
        assert!(matches!(pod_event(b"{\"type\":\"ADD"), Err(Unread::Malformed(_))));
    }

    #[test]
    fn lists_may_be_null() {
        let read = |json: &str| {
            pods(json.as_bytes()).map(|list| (list.items.len(), list.resource_version, list.more))
        };
        let json = r#"{"kind":"PodList","metadata":{"resourceVersion":"5","continue":"c"},"items":[{"metadata":{"name":"a"}}]}"#;
        assert_eq!(read(json).expect("a list"), (1, "5".into(), "c".into()));
        let json = r#"{"kind":"PodList","metadata":{"resourceVersion":"5"},"items":null}"#;
        assert_eq!(read(json).expect("a list"), (0, "5".into(), String::new()));
    }
}
