//! The node's own objects: Node, CSINode, Lease, Events.

use http::Method;
use model::k8s::{CSINode, Event, Node};
use ports::ApiError;
use serde_json::Value;

use super::{Api, Freshness, Resource, namespaced_name};
use crate::Lease;
use crate::json;
use crate::object_list::ObjectList;
use crate::request::{Call, JSON};
use crate::watch::{Watch, WatchStart};

const NODES: Resource = Resource::new("/api/v1", "nodes");
const EVENTS: Resource = Resource::new("/api/v1", "events");
const CSI_NODES: Resource = Resource::new("/apis/storage.k8s.io/v1", "csinodes");
const LEASES: Resource = Resource::new("/apis/coordination.k8s.io/v1", "leases");

fn name_selector(name: &str) -> String {
    format!("metadata.name={name}")
}

impl Api {
    pub async fn get_node(&self, name: &str) -> Result<Node, ApiError> {
        self.unlimited().get("get node", &NODES, ("", name), json::node).await
    }

    /// Zero or one node.
    pub async fn list_node(&self, name: &str, freshness: Freshness) -> Result<ObjectList<Node>, ApiError> {
        self.list("list nodes", NODES.collection_path(""), &name_selector(name), freshness, json::nodes).await
    }

    pub async fn watch_node(&self, name: &str, since: WatchStart<'_>) -> Result<Watch<Node>, ApiError> {
        self.watch("watch nodes", NODES.collection_path(""), &name_selector(name), since, json::node_event)
            .await
    }

    pub async fn create_node(&self, node: &Node) -> Result<Node, ApiError> {
        let name = node.metadata.name.clone().unwrap_or_default();
        self.unlimited()
            .create("create node", NODES.collection_path(""), name, json::write_node(node), json::node)
            .await
    }

    /// A strategic merge patch.
    pub async fn patch_node(&self, name: &str, patch: &Value) -> Result<Node, ApiError> {
        self.unlimited()
            .patch("patch node", NODES.object_path("", name), name.to_owned(), patch, json::node)
            .await
    }

    /// A strategic merge patch of the status; labels and annotations may be in it.
    pub async fn patch_node_status(&self, name: &str, patch: &Value) -> Result<Node, ApiError> {
        let path = format!("{}/status", NODES.object_path("", name));
        self.unlimited().patch("patch status of node", path, name.to_owned(), patch, json::node).await
    }

    pub async fn get_csi_node(&self, name: &str) -> Result<CSINode, ApiError> {
        self.get("get csinode", &CSI_NODES, ("", name), json::csi_node).await
    }

    pub async fn create_csi_node(&self, object: &CSINode) -> Result<CSINode, ApiError> {
        let name = object.metadata.name.clone().unwrap_or_default();
        let body = json::write_csi_node(object);
        self.create("create csinode", CSI_NODES.collection_path(""), name, body, json::csi_node).await
    }

    /// A strategic merge patch.
    pub async fn patch_csi_node(&self, name: &str, patch: &Value) -> Result<CSINode, ApiError> {
        let path = CSI_NODES.object_path("", name);
        self.patch("patch csinode", path, name.to_owned(), patch, json::csi_node).await
    }

    pub async fn delete_csi_node(&self, name: &str) -> Result<(), ApiError> {
        let call =
            Call::new("delete csinode", Method::DELETE, CSI_NODES.object_path("", name), name.to_owned());
        call.run(&self.connection, self.deadline).await.map(|_| ())
    }

    pub async fn get_lease(&self, namespace: &str, name: &str) -> Result<Lease, ApiError> {
        self.unlimited().get("get lease", &LEASES, (namespace, name), json::lease).await
    }

    pub async fn create_lease(&self, lease: &Lease) -> Result<Lease, ApiError> {
        let (namespace, name) = lease_name(lease);
        let body = json::write_lease(lease);
        self.unlimited()
            .create(
                "create lease",
                LEASES.collection_path(namespace),
                namespaced_name(namespace, name),
                body,
                json::lease,
            )
            .await
    }

    /// Replaces the lease; if it has a resource version, only if that is still the current one.
    pub async fn update_lease(&self, lease: &Lease) -> Result<Lease, ApiError> {
        let (namespace, name) = lease_name(lease);
        let path = LEASES.object_path(namespace, name);
        let call = Call::new("update lease", Method::PUT, path, namespaced_name(namespace, name));
        self.unlimited().run(call.body(JSON, json::write_lease(lease)), json::lease).await
    }

    /// In the event's own namespace.
    pub async fn create_event(&self, event: &Event) -> Result<Event, ApiError> {
        let namespace = event.metadata.namespace.as_deref().unwrap_or("default");
        let object = namespaced_name(namespace, event.metadata.name.as_deref().unwrap_or_default());
        let body = json::write_core_event(event);
        self.unlimited()
            .create("create event", EVENTS.collection_path(namespace), object, body, json::core_event)
            .await
    }

    /// A strategic merge patch, of the count and the time.
    pub async fn patch_event(&self, namespace: &str, name: &str, patch: &Value) -> Result<Event, ApiError> {
        let path = EVENTS.object_path(namespace, name);
        self.unlimited()
            .patch("patch event", path, namespaced_name(namespace, name), patch, json::core_event)
            .await
    }
}

fn lease_name(lease: &Lease) -> (&str, &str) {
    let namespace = lease.metadata.namespace.as_deref().unwrap_or("kube-node-lease");
    (namespace, lease.metadata.name.as_deref().unwrap_or_default())
}
