//! Tokens, access reviews and certificate requests.

use k8s_openapi::api::core::v1::ServiceAccount;
use ports::ApiError;

use super::{Api, Freshness, Resource, namespaced_name};
use crate::json;
use crate::object_list::ObjectList;
use crate::watch::{Watch, WatchStart};
use crate::{
    CertificateSigningRequest, PodCertificateRequest, SubjectAccessReview, TokenRequest, TokenReview,
};

const SERVICE_ACCOUNTS: Resource = Resource::new("/api/v1", "serviceaccounts");
const TOKEN_REVIEWS: Resource = Resource::new("/apis/authentication.k8s.io/v1", "tokenreviews");
const ACCESS_REVIEWS: Resource = Resource::new("/apis/authorization.k8s.io/v1", "subjectaccessreviews");
const SIGNING_REQUESTS: Resource =
    Resource::new("/apis/certificates.k8s.io/v1", "certificatesigningrequests");

const CERTIFICATE_REQUESTS: Resource =
    Resource::new("/apis/certificates.k8s.io/v1beta1", "podcertificaterequests");

/// A node may list and watch only its own.
fn of_node(node: &str) -> String {
    format!("spec.nodeName={node}")
}

fn name_selector(name: &str) -> String {
    format!("metadata.name={name}")
}

impl Api {
    pub async fn get_service_account(&self, namespace: &str, name: &str) -> Result<ServiceAccount, ApiError> {
        self.get("get serviceaccount", &SERVICE_ACCOUNTS, (namespace, name), json::service_account).await
    }

    /// Creates a token of a service account.
    pub async fn create_token(
        &self,
        namespace: &str,
        service_account: &str,
        request: &TokenRequest,
    ) -> Result<TokenRequest, ApiError> {
        let path = format!("{}/token", SERVICE_ACCOUNTS.object_path(namespace, service_account));
        let body = json::write_token_request(request);
        let object = namespaced_name(namespace, service_account);
        self.create("create token of serviceaccount", path, object, body, json::token_request).await
    }

    /// Creates a TokenReview.
    pub async fn review_token(&self, review: &TokenReview) -> Result<TokenReview, ApiError> {
        let body = json::write_token_review(review);
        let path = TOKEN_REVIEWS.collection_path("");
        self.create("create tokenreview", path, String::new(), body, json::token_review).await
    }

    /// Creates a SubjectAccessReview.
    pub async fn review_access(&self, review: &SubjectAccessReview) -> Result<SubjectAccessReview, ApiError> {
        let body = json::write_access_review(review);
        let path = ACCESS_REVIEWS.collection_path("");
        self.create("create subjectaccessreview", path, String::new(), body, json::access_review).await
    }

    pub async fn create_signing_request(
        &self,
        request: &CertificateSigningRequest,
    ) -> Result<CertificateSigningRequest, ApiError> {
        let body = json::write_signing_request(request);
        let name = request.metadata.name.clone().unwrap_or_default();
        let path = SIGNING_REQUESTS.collection_path("");
        self.create("create certificatesigningrequest", path, name, body, json::signing_request).await
    }

    pub async fn get_signing_request(&self, name: &str) -> Result<CertificateSigningRequest, ApiError> {
        self.get("get certificatesigningrequest", &SIGNING_REQUESTS, ("", name), json::signing_request).await
    }

    /// Zero or one object, and the version to watch it from.
    pub async fn list_signing_request(
        &self,
        name: &str,
        freshness: Freshness,
    ) -> Result<ObjectList<CertificateSigningRequest>, ApiError> {
        let path = SIGNING_REQUESTS.collection_path("");
        let selector = name_selector(name);
        self.list("list certificatesigningrequests", path, &selector, freshness, json::signing_requests).await
    }

    pub async fn watch_signing_request(
        &self,
        name: &str,
        since: WatchStart<'_>,
    ) -> Result<Watch<CertificateSigningRequest>, ApiError> {
        let path = SIGNING_REQUESTS.collection_path("");
        let selector = name_selector(name);
        self.watch("watch certificatesigningrequests", path, &selector, since, json::signing_request_event)
            .await
    }

    /// Creates a PodCertificateRequest. The server generates its name.
    pub async fn create_certificate_request(
        &self,
        request: &PodCertificateRequest,
    ) -> Result<PodCertificateRequest, ApiError> {
        let body = json::write_certificate_request(request);
        let namespace = request.metadata.namespace.as_deref().unwrap_or_default();
        let path = CERTIFICATE_REQUESTS.collection_path(namespace);
        let object = namespaced_name(namespace, &request.spec.pod_name);
        self.create("create podcertificaterequest for pod", path, object, body, json::certificate_request)
            .await
    }

    /// The requests that the node has created, in all namespaces.
    pub async fn list_certificate_requests(
        &self,
        node: &str,
        freshness: Freshness,
    ) -> Result<ObjectList<PodCertificateRequest>, ApiError> {
        let path = CERTIFICATE_REQUESTS.collection_path("");
        let selector = of_node(node);
        self.list("list podcertificaterequests", path, &selector, freshness, json::certificate_requests).await
    }

    pub async fn watch_certificate_requests(
        &self,
        node: &str,
        since: WatchStart<'_>,
    ) -> Result<Watch<PodCertificateRequest>, ApiError> {
        let path = CERTIFICATE_REQUESTS.collection_path("");
        let selector = of_node(node);
        self.watch("watch podcertificaterequests", path, &selector, since, json::certificate_request_event)
            .await
    }
}
