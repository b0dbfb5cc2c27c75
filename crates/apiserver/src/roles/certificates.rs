//! PodCertificateRequests.

use std::sync::Arc;

use async_trait::async_trait;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use k8s_openapi::ByteString;
use model::k8s::{ObjectMeta, OwnerReference, PodCertificateRequestSpec};
use model::pod_certificate::{CertificateRequested, CertificateWanted, PrivateKey};
use ports::{ApiError, CertificateApi, CertificateRequestError};
use tokio::sync::Semaphore;

use super::objects::whole_sets;
use super::reflect::{ListWatcher, reflect};
use crate::PodCertificateRequest;
use crate::calls::{Api, Freshness};
use crate::certificates::PodKey;
use crate::object_list::ObjectList;
use crate::watch::{Watch, WatchStart};
use crate::watch_progress::WatchStatuses;

#[async_trait]
impl CertificateApi for Api {
    async fn request(
        &self,
        wanted: &CertificateWanted,
    ) -> Result<CertificateRequested, CertificateRequestError> {
        let account = self.get_service_account(&wanted.namespace, &wanted.service_account).await;
        let account = account.map_err(CertificateRequestError::ServiceAccount)?;
        let account_uid = account.metadata.uid.unwrap_or_default();
        let key = generated(&wanted.key_type).await?;
        let request = written(wanted, account_uid, key.stub_request);
        let made = self.create_certificate_request(&request).await;
        let made = made.map_err(CertificateRequestError::Create)?;
        Ok(CertificateRequested { name: made.metadata.name.unwrap_or_default(), key: PrivateKey(key.pem) })
    }

    fn requests(&self, node: &str) -> BoxStream<'static, Vec<Arc<PodCertificateRequest>>> {
        let notices = reflect(OfNode { api: self.clone(), node: node.to_owned() });
        whole_sets(notices, "podcertificaterequest", |request: &PodCertificateRequest| &request.metadata)
    }
}

/// A restarted agent needs new keys for all pods at once. One is generated at a time, so that the node's other work goes on.
static KEY_GENERATION: Semaphore = Semaphore::const_new(1);

/// Generating a large RSA key takes seconds of CPU time.
async fn generated(key_type: &str) -> Result<PodKey, CertificateRequestError> {
    let failed = |message: String| CertificateRequestError::Key { key_type: key_type.to_owned(), message };
    let wanted = key_type.to_owned();
    let permit = KEY_GENERATION.acquire().await.map_err(|error| failed(error.to_string()))?;
    let made = tokio::task::spawn_blocking(move || {
        // Held until the key is there, also when nobody waits for it any more.
        let _permit = permit;
        PodKey::generate(&wanted)
    })
    .await;
    made.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))
}

fn written(
    wanted: &CertificateWanted,
    service_account_uid: String,
    stub_request: Vec<u8>,
) -> PodCertificateRequest {
    let annotations = &wanted.user_annotations;
    PodCertificateRequest {
        metadata: ObjectMeta {
            namespace: Some(wanted.namespace.clone()),
            generate_name: Some("req-".into()),
            // It is deleted with its pod.
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".into(),
                kind: "Pod".into(),
                name: wanted.pod_name.clone(),
                uid: wanted.pod_uid.to_string(),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        spec: PodCertificateRequestSpec {
            signer_name: wanted.signer_name.clone(),
            pod_name: wanted.pod_name.clone(),
            pod_uid: wanted.pod_uid.to_string(),
            service_account_name: wanted.service_account.clone(),
            service_account_uid,
            node_name: wanted.node_name.clone(),
            node_uid: wanted.node_uid.clone(),
            max_expiration_seconds: wanted.max_expiration_secs,
            stub_pkc_s10_request: ByteString(stub_request),
            unverified_user_annotations: (!annotations.is_empty()).then(|| annotations.clone()),
            ..PodCertificateRequestSpec::default()
        },
        status: None,
    }
}

struct OfNode {
    api: Api,
    node: String,
}

impl ListWatcher for OfNode {
    type Item = PodCertificateRequest;

    fn list(&self) -> BoxFuture<'_, Result<ObjectList<PodCertificateRequest>, ApiError>> {
        // A request that is not listed counts as deleted, and an old cache may lack one that was there before.
        Box::pin(self.api.list_certificate_requests(&self.node, Freshness::Latest))
    }

    fn watch<'a>(
        &'a self,
        version: &'a str,
    ) -> BoxFuture<'a, Result<Watch<PodCertificateRequest>, ApiError>> {
        Box::pin(self.api.watch_certificate_requests(&self.node, WatchStart::Version(version)))
    }

    fn entries(&self) -> &WatchStatuses {
        self.api.watch_statuses()
    }

    fn name(&self) -> (&'static str, String) {
        ("podcertificaterequests", String::new())
    }

    fn meta(request: &PodCertificateRequest) -> &ObjectMeta {
        &request.metadata
    }
}
