//! The node's own objects: Node, CSINode, Lease, Events.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, StreamExt};
use model::k8s::{CSINode, Event, Lease, Node, ObjectMeta};
use ports::{ApiError, CsiNodeApi, EventApi, LeaseApi, NodeApi, ObservedObject};
use serde_json::Value;

use super::objects::log_unreadable_object;
use super::reflect::{ListWatcher, ReflectorEvent, reflect};
use crate::calls::{Api, Freshness};
use crate::object_list::ObjectList;
use crate::watch::{Watch, WatchStart};
use crate::watch_progress::WatchStatuses;

const LEASES: &str = "kube-node-lease";

#[async_trait]
impl NodeApi for Api {
    async fn get(&self, name: &str) -> Result<Arc<Node>, ApiError> {
        self.get_node(name).await.map(Arc::new)
    }

    async fn create(&self, node: &Node) -> Result<Arc<Node>, ApiError> {
        self.create_node(node).await.map(Arc::new)
    }

    async fn patch(&self, name: &str, patch: &Value) -> Result<Arc<Node>, ApiError> {
        self.patch_node(name, patch).await.map(Arc::new)
    }

    async fn patch_status(
        &self,
        name: &str,
        patch: &Value,
        patience: Duration,
    ) -> Result<Arc<Node>, ApiError> {
        self.with_deadline(patience).patch_node_status(name, patch).await.map(Arc::new)
    }

    fn watch(&self, name: &str) -> BoxStream<'static, ObservedObject<Node>> {
        let target = NodeListWatcher { api: self.clone(), name: name.to_owned() };
        reflect(target)
            .filter_map(|notice| async {
                match notice {
                    // The Node exists but can't be decoded: its last known state stays.
                    ReflectorEvent::All { items, unreadable }
                        if items.is_empty() && !unreadable.is_empty() =>
                    {
                        None
                    }
                    ReflectorEvent::All { items, .. } => Some(
                        items
                            .into_iter()
                            .next()
                            .map_or(ObservedObject::Absent, |node| ObservedObject::Present(Arc::new(node))),
                    ),
                    ReflectorEvent::Changed(node) => Some(ObservedObject::Present(Arc::new(node))),
                    ReflectorEvent::Gone(_) => Some(ObservedObject::Absent),
                    ReflectorEvent::Unreadable(odd) => {
                        log_unreadable_object("node", &odd, true);
                        None
                    }
                    ReflectorEvent::Failing(error) => {
                        tracing::warn!("watching the node's own object: {error}");
                        None
                    }
                    ReflectorEvent::Recovered => {
                        tracing::info!("watching the node's own object again");
                        None
                    }
                }
            })
            .boxed()
    }
}

struct NodeListWatcher {
    api: Api,
    name: String,
}

impl ListWatcher for NodeListWatcher {
    type Item = Node;

    fn list(&self) -> BoxFuture<'_, Result<ObjectList<Node>, ApiError>> {
        Box::pin(self.api.list_node(&self.name, Freshness::Latest))
    }

    fn watch<'a>(&'a self, version: &'a str) -> BoxFuture<'a, Result<Watch<Node>, ApiError>> {
        Box::pin(self.api.watch_node(&self.name, WatchStart::Version(version)))
    }

    fn entries(&self) -> &WatchStatuses {
        self.api.watch_statuses()
    }

    fn name(&self) -> (&'static str, String) {
        ("nodes", self.name.clone())
    }

    fn meta(node: &Node) -> &ObjectMeta {
        &node.metadata
    }
}

#[async_trait]
impl CsiNodeApi for Api {
    async fn get(&self, name: &str) -> Result<CSINode, ApiError> {
        self.get_csi_node(name).await
    }

    async fn create(&self, object: &CSINode) -> Result<CSINode, ApiError> {
        self.create_csi_node(object).await
    }

    async fn patch(&self, name: &str, patch: &Value) -> Result<CSINode, ApiError> {
        self.patch_csi_node(name, patch).await
    }

    async fn delete(&self, name: &str) -> Result<(), ApiError> {
        self.delete_csi_node(name).await
    }
}

#[async_trait]
impl LeaseApi for Api {
    async fn get(&self, name: &str, patience: Duration) -> Result<Lease, ApiError> {
        self.with_deadline(patience).get_lease(LEASES, name).await
    }

    async fn create(&self, lease: &Lease, patience: Duration) -> Result<Lease, ApiError> {
        self.with_deadline(patience).create_lease(lease).await
    }

    async fn update(&self, lease: &Lease, patience: Duration) -> Result<Lease, ApiError> {
        self.with_deadline(patience).update_lease(lease).await
    }
}

#[async_trait]
impl EventApi for Api {
    async fn create(&self, event: &Event) -> Result<Event, ApiError> {
        self.create_event(event).await
    }

    async fn patch(&self, namespace: &str, name: &str, patch: &Value) -> Result<Event, ApiError> {
        self.patch_event(namespace, name, patch).await
    }
}
