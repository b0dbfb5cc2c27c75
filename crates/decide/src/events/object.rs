//! The Event object of one record.

use model::k8s::{self, ObjectMeta, ObjectReference};
use model::{ApiEvent, EventSubject, EventType, Wall};

/// The component that a kubelet's Events come from.
const COMPONENT: &str = "kubelet";

/// Who tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EventSource {
    /// The node's name.
    pub host: String,
}

pub fn event_object(source: &EventSource, about: &EventSubject, event: &ApiEvent, at: Wall) -> k8s::Event {
    let reference = reference(about, event);
    let name = reference.name.clone().unwrap_or_default();
    k8s::Event {
        metadata: ObjectMeta {
            name: Some(event_name(&name, at)),
            // Nodes have no namespace; Events about them go to `default`, as upstream.
            namespace: Some(reference.namespace.clone().unwrap_or_else(|| "default".into())),
            annotations: Some(event.annotations.clone()).filter(|annotations| !annotations.is_empty()),
            ..ObjectMeta::default()
        },
        involved_object: reference,
        reason: Some(event.reason.clone()),
        message: Some(event.message.clone()),
        first_timestamp: Some(at.api_time()),
        last_timestamp: Some(at.api_time()),
        count: Some(1),
        type_: Some(
            match event.kind {
                EventType::Normal => "Normal",
                EventType::Warning => "Warning",
            }
            .into(),
        ),
        source: Some(k8s::EventSource { component: Some(COMPONENT.into()), host: Some(source.host.clone()) }),
        reporting_component: Some(COMPONENT.into()),
        reporting_instance: Some(source.host.clone()),
        ..k8s::Event::default()
    }
}

pub(super) fn event_name(about: &str, at: Wall) -> String {
    format!("{about}.{:x}", at.0)
}

fn reference(about: &EventSubject, event: &ApiEvent) -> ObjectReference {
    match about {
        EventSubject::Pod { uid, name, resource_version } => ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            namespace: Some(name.namespace.to_string()),
            name: Some(name.name.to_string()),
            uid: Some(uid.as_str().to_owned()),
            resource_version: Some(resource_version.clone()).filter(|version| !version.is_empty()),
            field_path: event.field_path(),
        },
        EventSubject::Claim(claim) => ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("PersistentVolumeClaim".into()),
            namespace: Some(claim.namespace.clone()),
            name: Some(claim.name.clone()),
            uid: Some(claim.uid.clone()),
            ..ObjectReference::default()
        },
        EventSubject::Node { name } => ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Node".into()),
            name: Some(name.clone()),
            ..ObjectReference::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::pod::ContainerKind;
    use model::{FullName, PodUid};
    use serde_json::json;

    #[test]
    fn objects() {
        let source = EventSource { host: "vm".into() };
        let about = EventSubject::Pod {
            uid: PodUid::from("u"),
            name: FullName { namespace: "ns".into(), name: "web".into() },
            resource_version: "42".into(),
        };
        let at = Wall(1_700_000_000_123_456_789);
        let event = ApiEvent::normal("Started", "Container started").for_container(ContainerKind::Init, "c");
        let made = serde_json::to_value(event_object(&source, &about, &event, at)).unwrap();
        let expect = json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "web.17979cfe3d85cd15", "namespace": "ns"},
            "involvedObject": {
                "apiVersion": "v1", "kind": "Pod", "namespace": "ns", "name": "web", "uid": "u",
                "resourceVersion": "42", "fieldPath": "spec.initContainers{c}",
            },
            "reason": "Started",
            "message": "Container started",
            "type": "Normal",
            "count": 1,
            "firstTimestamp": "2023-11-14T22:13:20Z",
            "lastTimestamp": "2023-11-14T22:13:20Z",
            "source": {"component": "kubelet", "host": "vm"},
            "reportingComponent": "kubelet",
            "reportingInstance": "vm",
        });
        assert_eq!(made, expect);
        let node = EventSubject::Node { name: "vm".into() };
        let made = event_object(&source, &node, &ApiEvent::warning("Rebooted", "x"), at);
        assert_eq!(made.metadata.namespace.as_deref(), Some("default"));
        assert_eq!(
            serde_json::to_value(&made.involved_object).unwrap(),
            json!({"apiVersion": "v1", "kind": "Node", "name": "vm"})
        );
    }
}
