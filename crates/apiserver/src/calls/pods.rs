//! Pods.

use http::Method;
use model::k8s::Pod;
use model::{PodPhase, PodUid};
use ports::ApiError;
use serde_json::{Value, json};

use super::{Api, Freshness, Resource, namespaced_name};
use crate::json;
use crate::object_list::ObjectList;
use crate::request::{Call, JSON};
use crate::watch::{Watch, WatchStart};

const PODS: Resource = Resource::new("/api/v1", "pods");

/// How a pod's object is to be deleted.
#[derive(Clone, Debug, Default)]
pub struct DeletePodOptions {
    /// `None`: the pod's own grace period.
    pub grace_seconds: Option<i64>,
    /// Delete only the object with this UID: another pod may have the name by now ([`ApiError::Conflict`]).
    pub uid: Option<PodUid>,
}

impl DeletePodOptions {
    /// Deletes the object at once.
    pub fn now(uid: Option<PodUid>) -> Self {
        Self { grace_seconds: Some(0), uid }
    }

    fn options(&self) -> Value {
        let mut options = json!({ "kind": "DeleteOptions", "apiVersion": "v1" });
        if let Some(seconds) = self.grace_seconds {
            options["gracePeriodSeconds"] = seconds.into();
        }
        if let Some(uid) = &self.uid {
            options["preconditions"] = json!({ "uid": uid.to_string() });
        }
        options
    }
}

fn has_terminal_phase(patch: &Value) -> bool {
    patch["status"]["phase"].as_str().and_then(PodPhase::parse).is_some_and(PodPhase::is_terminal)
}

fn on_node(node: &str) -> String {
    format!("spec.nodeName={node}")
}

impl Api {
    /// All pods that are bound to the node, in all namespaces.
    pub async fn list_pods(&self, node: &str, freshness: Freshness) -> Result<ObjectList<Pod>, ApiError> {
        self.list("list pods", PODS.collection_path(""), &on_node(node), freshness, json::pods).await
    }

    pub async fn watch_pods(&self, node: &str, since: WatchStart<'_>) -> Result<Watch<Pod>, ApiError> {
        self.watch("watch pods", PODS.collection_path(""), &on_node(node), since, json::pod_event).await
    }

    pub async fn get_pod(&self, namespace: &str, name: &str) -> Result<Pod, ApiError> {
        self.get("get pod", &PODS, (namespace, name), json::pod).await
    }

    /// In the pod's own namespace.
    pub async fn create_pod(&self, pod: &Pod) -> Result<Pod, ApiError> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        let object = namespaced_name(namespace, pod.metadata.name.as_deref().unwrap_or_default());
        self.create("create pod", PODS.collection_path(namespace), object, json::write_pod(pod), json::pod)
            .await
    }

    /// A strategic merge patch.
    pub async fn patch_pod(&self, namespace: &str, name: &str, patch: &Value) -> Result<Pod, ApiError> {
        let path = PODS.object_path(namespace, name);
        self.patch("patch pod", path, namespaced_name(namespace, name), patch, json::pod).await
    }

    /// A strategic merge patch of the status. A `metadata.uid` in it makes it fail ([`ApiError::Invalid`]) for another
    /// pod of the name.
    pub async fn patch_pod_status(
        &self,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<Pod, ApiError> {
        let path = format!("{}/status", PODS.object_path(namespace, name));
        // The end of a pod is known at once, however much there is to say of others.
        let api = if has_terminal_phase(patch) { self.unlimited() } else { self.clone() };
        api.patch("patch status of pod", path, namespaced_name(namespace, name), patch, json::pod).await
    }

    pub async fn delete_pod(
        &self,
        namespace: &str,
        name: &str,
        how: &DeletePodOptions,
    ) -> Result<(), ApiError> {
        let body = json::write_value(&how.options());
        let path = PODS.object_path(namespace, name);
        let call =
            Call::new("delete pod", Method::DELETE, path, namespaced_name(namespace, name)).body(JSON, body);
        // The response is the pod or a Status; both say only that the call succeeded.
        call.run(&self.connection, self.deadline).await.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deletion_says_only_what_is_meant() {
        let check = |how: DeletePodOptions, expect: Value| assert_eq!(how.options(), expect);
        let plain = json!({ "kind": "DeleteOptions", "apiVersion": "v1" });
        check(DeletePodOptions::default(), plain.clone());
        let mut expect = plain;
        expect["gracePeriodSeconds"] = 0.into();
        check(DeletePodOptions::now(None), expect.clone());
        expect["preconditions"] = json!({ "uid": "u-1" });
        check(DeletePodOptions::now(Some(PodUid::new("u-1"))), expect);
    }
}
