//! Pod objects.

use std::sync::Arc;

use async_trait::async_trait;
use model::k8s::Pod;
use ports::{ApiError, PodApi, PodRef};
use serde_json::Value;

use crate::calls::{Api, DeletePodOptions};

#[async_trait]
impl PodApi for Api {
    async fn patch_status(&self, pod: &PodRef, patch: &Value) -> Result<Arc<Pod>, ApiError> {
        let answer = self.patch_pod_status(&pod.namespace, &pod.name, patch).await;
        answer.map(Arc::new).map_err(|error| another_pod(error, pod))
    }

    async fn create(&self, pod: &Pod) -> Result<Arc<Pod>, ApiError> {
        self.create_pod(pod).await.map(Arc::new)
    }

    async fn delete(&self, pod: &PodRef) -> Result<(), ApiError> {
        self.delete_pod(&pod.namespace, &pod.name, &DeletePodOptions::now(pod.uid.clone())).await
    }
}

/// If the UID does not match, the server reports the patch as invalid, because it takes it for a change of the UID. And
/// the server forbids a node to read pods of other nodes, and such a pod may have the name after ours was deleted.
fn another_pod(error: ApiError, pod: &PodRef) -> ApiError {
    match error {
        ApiError::Invalid { call, message } if pod.uid.is_some() && message.contains("metadata.uid") => {
            ApiError::Conflict { call, message }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_uid_is_a_conflict() {
        let pod = PodRef { namespace: "ns".into(), name: "a".into(), uid: Some("u".into()) };
        let invalid = |message: &str| ApiError::Invalid {
            call: "patch status of pod ns/a".into(),
            message: message.into(),
        };
        let uid = invalid("Pod \"a\" is invalid: metadata.uid: Invalid value: \"u\": field is immutable");
        assert!(matches!(another_pod(uid, &pod), ApiError::Conflict { .. }));
        let other = invalid("Pod \"a\" is invalid: status.phase: Invalid value");
        assert!(matches!(another_pod(other, &pod), ApiError::Invalid { .. }));
    }
}
