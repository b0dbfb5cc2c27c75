//! The Kubernetes API as a node needs it: one small trait per role.
//!
//! Every call has its own deadline and does not retry; the caller decides about retries. Watches reconnect by
//! themselves, with a back-off, and resume where they were.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use model::cluster::{ObjectKey, ObjectState, PodTokenRequest};
use model::credentials::ServiceAccountFacts;
use model::csi::ClaimObject;
use model::k8s::{
    CSIDriver, CSINode, ClusterTrustBundle, Event, Lease, Node, PersistentVolumeClaim, Pod,
    PodCertificateRequest, RuntimeClass, Service,
};
use model::pod_certificate::{CertificateRequested, CertificateWanted};
use model::report::WatchReport;
use model::storage::{StorageKey, StorageObject};
use model::{PodUid, Wall};
use serde_json::Value;

use crate::{ApiError, Disposition};

/// Identifies a pod object. A call with a UID fails with `Conflict` if another pod has the name by now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PodRef {
    pub namespace: String,
    pub name: String,
    pub uid: Option<PodUid>,
}

/// Pod objects of the API.
#[async_trait]
pub trait PodApi: Send + Sync {
    /// Strategic merge patch of the status sub-resource.
    async fn patch_status(&self, pod: &PodRef, patch: &Value) -> Result<Arc<Pod>, ApiError>;
    async fn create(&self, pod: &Pod) -> Result<Arc<Pod>, ApiError>;
    /// Deletes the object with a grace period of zero.
    async fn delete(&self, pod: &PodRef) -> Result<(), ApiError>;
}

/// An item of the watch of one object.
#[derive(Clone, Debug)]
pub enum ObservedObject<T> {
    Present(Arc<T>),
    /// The object does not exist (any more).
    Absent,
}

/// The Node object. Heartbeats use their own deadline: `patience`.
#[async_trait]
pub trait NodeApi: Send + Sync {
    async fn get(&self, name: &str) -> Result<Arc<Node>, ApiError>;
    async fn create(&self, node: &Node) -> Result<Arc<Node>, ApiError>;
    /// Strategic merge patch of metadata and spec.
    async fn patch(&self, name: &str, patch: &Value) -> Result<Arc<Node>, ApiError>;
    /// Strategic merge patch of the status sub-resource.
    async fn patch_status(
        &self,
        name: &str,
        patch: &Value,
        patience: Duration,
    ) -> Result<Arc<Node>, ApiError>;
    /// The present state first, then every change. Never ends.
    fn watch(&self, name: &str) -> BoxStream<'static, ObservedObject<Node>>;
}

/// The node's CSINode object.
#[async_trait]
pub trait CsiNodeApi: Send + Sync {
    async fn get(&self, name: &str) -> Result<CSINode, ApiError>;
    async fn create(&self, object: &CSINode) -> Result<CSINode, ApiError>;
    /// Strategic merge patch.
    async fn patch(&self, name: &str, patch: &Value) -> Result<CSINode, ApiError>;
    async fn delete(&self, name: &str) -> Result<(), ApiError>;
}

/// Leases in `kube-node-lease`.
#[async_trait]
pub trait LeaseApi: Send + Sync {
    async fn get(&self, name: &str, patience: Duration) -> Result<Lease, ApiError>;
    async fn create(&self, lease: &Lease, patience: Duration) -> Result<Lease, ApiError>;
    /// Fails with `Conflict` when its resourceVersion is not the newest.
    async fn update(&self, lease: &Lease, patience: Duration) -> Result<Lease, ApiError>;
}

/// Event objects (core/v1).
#[async_trait]
pub trait EventApi: Send + Sync {
    async fn create(&self, event: &Event) -> Result<Event, ApiError>;
    /// Strategic merge patch, for the next count of a repeated one.
    async fn patch(&self, namespace: &str, name: &str, patch: &Value) -> Result<Event, ApiError>;
}

/// Watches ConfigMaps and Secrets one by one: a node may read only those that its pods refer to.
pub trait ObjectApi: Send + Sync {
    /// The state now and after every change, until the stream is dropped. `Denied` and `Unreachable` are items too,
    /// once each time they begin.
    fn watch(&self, key: &ObjectKey) -> BoxStream<'static, ObjectState>;
}

/// Claims, persistent volumes and attachments: a node may read those that its pods use, but not watch them.
#[async_trait]
pub trait StorageApi: Send + Sync {
    async fn read(&self, key: &StorageKey) -> Result<StorageObject, ApiError>;
    /// Strategic merge patch of the status of a claim.
    async fn patch_claim_status(
        &self,
        claim: &ClaimObject,
        patch: &Value,
    ) -> Result<Arc<PersistentVolumeClaim>, ApiError>;
}

/// Sets of objects that every node reads as a whole. Each item is the complete set.
pub trait SharedObjects: Send + Sync {
    /// Services with a cluster IP.
    fn services(&self) -> BoxStream<'static, Vec<Arc<Service>>>;
    fn runtime_classes(&self) -> BoxStream<'static, Vec<Arc<RuntimeClass>>>;
    fn csi_drivers(&self) -> BoxStream<'static, Vec<Arc<CSIDriver>>>;
    /// There is no item while the API server does not serve them.
    fn trust_bundles(&self) -> BoxStream<'static, Vec<Arc<ClusterTrustBundle>>>;
}

#[derive(Clone, PartialEq, Eq)]
pub struct IssuedToken {
    pub token: String,
    pub expires: Wall,
}

impl std::fmt::Debug for IssuedToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IssuedToken").field("expires", &self.expires).finish_non_exhaustive()
    }
}

/// Tokens of service accounts.
#[async_trait]
pub trait TokenApi: Send + Sync {
    /// The facts about a ServiceAccount that credential plugins get.
    async fn service_account(&self, namespace: &str, name: &str) -> Result<ServiceAccountFacts, ApiError>;
    async fn request(&self, wanted: &PodTokenRequest) -> Result<IssuedToken, ApiError>;
}

/// Why no certificate could be requested.
#[derive(thiserror::Error, Clone, Debug, PartialEq)]
pub enum CertificateRequestError {
    #[error("a key of type {key_type:?} could not be made: {message}")]
    Key { key_type: String, message: String },
    #[error("the service account could not be read")]
    ServiceAccount(#[source] ApiError),
    #[error("the request could not be made")]
    Create(#[source] ApiError),
}

impl CertificateRequestError {
    pub fn disposition(&self) -> Disposition {
        match self {
            CertificateRequestError::Key { .. } => Disposition::Refused,
            CertificateRequestError::ServiceAccount(cause) | CertificateRequestError::Create(cause) => {
                cause.disposition()
            }
        }
    }
}

/// PodCertificateRequests. A node may create them for its own pods, and read its own.
#[async_trait]
pub trait CertificateApi: Send + Sync {
    /// Makes a key and creates a request for it. Only the result contains the key.
    async fn request(
        &self,
        wanted: &CertificateWanted,
    ) -> Result<CertificateRequested, CertificateRequestError>;
    /// All requests of the node, now and after every change.
    fn requests(&self, node: &str) -> BoxStream<'static, Vec<Arc<PodCertificateRequest>>>;
}

/// An authenticated user, from a TokenReview.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct UserInfo {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

/// A request to this node's own API that has to be authorized.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeAccess {
    pub who: UserInfo,
    /// `get`, `create`, ...
    pub verb: String,
    pub node: String,
    /// `proxy`, `log`, `stats`, `metrics`, ...
    pub subresource: String,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AccessDecision {
    Allowed,
    /// With the reason that the authorizer gave, if any.
    Denied(String),
}

/// TokenReview and SubjectAccessReview for requests to this node's own API.
#[async_trait]
pub trait AccessReviews: Send + Sync {
    /// `None`: the token is not valid.
    async fn review_token(&self, token: &str) -> Result<Option<UserInfo>, ApiError>;
    async fn review_access(&self, wanted: &NodeAccess) -> Result<AccessDecision, ApiError>;
}

/// State of each watch.
pub trait WatchReports: Send + Sync {
    fn watches(&self) -> Vec<WatchReport>;
}

/// All API ports of a node in a cluster.
#[derive(Clone)]
pub struct ClusterPorts {
    pub pods: Arc<dyn PodApi>,
    pub node: Arc<dyn NodeApi>,
    pub csi_node: Arc<dyn CsiNodeApi>,
    pub leases: Arc<dyn LeaseApi>,
    pub events: Arc<dyn EventApi>,
    pub objects: Arc<dyn ObjectApi>,
    pub storage: Arc<dyn StorageApi>,
    pub shared: Arc<dyn SharedObjects>,
    pub tokens: Arc<dyn TokenApi>,
    pub certificates: Arc<dyn CertificateApi>,
    pub reviews: Arc<dyn AccessReviews>,
    pub watches: Arc<dyn WatchReports>,
}
