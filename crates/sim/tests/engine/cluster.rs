//! The ports of a cluster: objects of pods with their status, config maps, tokens. The engine is given no node duties
//! here, so the node's own object, its lease and Events are not asked for.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use model::cluster::{ObjectKey, ObjectState, PodTokenRequest};
use model::credentials::ServiceAccountFacts;
use model::k8s::{
    CSIDriver, CSINode, ClusterTrustBundle, Event, Lease, Node, Pod, PodCertificateRequest, RuntimeClass,
    Service,
};
use model::pod::Source;
use model::pod_certificate::{CertificateRequested, CertificateWanted};
use model::storage::{StorageKey, StorageObject, StorageState};
use ports::{
    AccessDecision, AccessReviews, ApiError, CertificateApi, CertificateRequestError, ClusterPorts,
    CsiNodeApi, EventApi, FeedNotice, IssuedToken, LeaseApi, NodeAccess, NodeApi, ObjectApi, ObservedObject,
    PodApi, PodRef, SharedObjects, StorageApi, TokenApi, UserInfo,
};
use serde_json::Value;
use sim::workload::{extreme_expiry, extreme_services, is_extreme, make_drivers_extreme};

use super::host::{AgentConnection, CallError, DEADLINE, HostState};

impl CallError for ApiError {
    fn refused(message: String) -> Self {
        ApiError::ServerFault { call: "simulated".into(), code: 503, message }
    }
    fn timed_out() -> Self {
        ApiError::TimedOut { call: "simulated".into(), after: DEADLINE }
    }
}

fn absent() -> ApiError {
    ApiError::NotFound { call: "simulated".into(), message: "not found".into() }
}

#[derive(Clone)]
pub struct SimCluster(pub AgentConnection);

impl SimCluster {
    pub fn ports(&self) -> ClusterPorts {
        let me = Arc::new(self.clone());
        ClusterPorts {
            pods: me.clone(),
            node: me.clone(),
            leases: me.clone(),
            events: me.clone(),
            objects: me.clone(),
            storage: me.clone(),
            csi_node: me.clone(),
            shared: me.clone(),
            tokens: me.clone(),
            certificates: me.clone(),
            reviews: me.clone(),
            watches: me,
        }
    }
}

impl ports::WatchReports for SimCluster {
    fn watches(&self) -> Vec<model::report::WatchReport> {
        Vec::new()
    }
}

/// Changes an object of the server, and sends it to the watch.
pub fn store(inner: &mut HostState, mut pod: Pod) -> Arc<Pod> {
    inner.versions += 1;
    pod.metadata.resource_version = Some(inner.versions.to_string());
    let pod = Arc::new(pod);
    inner.objects.insert(pod.metadata.name.clone().unwrap_or_default(), pod.clone());
    tell(inner, FeedNotice::Changed { source: Source::Api, pod: pod.clone() });
    pod
}

pub fn remove(inner: &mut HostState, name: &str) {
    if let Some(pod) = inner.objects.remove(name) {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default().into();
        tell(inner, FeedNotice::Gone { source: Source::Api, uid });
    }
}

fn tell(inner: &mut HostState, notice: FeedNotice) {
    if let Some(feed) = inner.feeds.get(&Source::Api) {
        // Sending fails while no agent runs; the next agent lists everything.
        let _ = feed.send(notice);
    }
}

fn is(pod: &Pod, reference: &PodRef) -> bool {
    reference.uid.as_ref().is_none_or(|uid| pod.metadata.uid.as_deref() == Some(uid.as_str()))
}

#[async_trait]
impl PodApi for SimCluster {
    async fn patch_status(&self, pod: &PodRef, patch: &Value) -> Result<Arc<Pod>, ApiError> {
        let effect = |inner: &mut HostState| {
            let object = inner.objects.get(&pod.name).filter(|o| is(o, pod)).ok_or_else(absent)?;
            let mut object = Pod::clone(object);
            let status = serde_json::to_value(object.status.unwrap_or_default()).unwrap_or_default();
            let merged = sim::drive::cluster::strategic_merge(status, &patch["status"]);
            object.status = serde_json::from_value(merged).ok();
            Ok(store(inner, object))
        };
        self.0.call(&"the API server".into(), true, effect).await
    }

    async fn create(&self, pod: &Pod) -> Result<Arc<Pod>, ApiError> {
        let effect = |inner: &mut HostState| {
            if inner.objects.contains_key(pod.metadata.name.as_deref().unwrap_or_default()) {
                let message = "already exists".to_owned();
                return Err(ApiError::AlreadyExists { call: "simulated".into(), message });
            }
            let mut made = pod.clone();
            made.metadata.uid = Some(format!("mirror-{}", inner.versions));
            Ok(store(inner, made))
        };
        self.0.call(&"the API server".into(), true, effect).await
    }

    async fn delete(&self, pod: &PodRef) -> Result<(), ApiError> {
        let effect = |inner: &mut HostState| {
            if !inner.objects.get(&pod.name).is_some_and(|object| is(object, pod)) {
                return Err(absent());
            }
            if let Some(uid) = &pod.uid {
                let HostState { check, world, .. } = inner;
                check.object_deleted(world, uid);
            }
            remove(inner, &pod.name);
            Ok(())
        };
        self.0.call(&"the API server".into(), true, effect).await
    }
}

fn not_asked<T>() -> Result<T, ApiError> {
    Err(ApiError::Unsupported { call: "simulated".into(), message: "no duties were given".into() })
}

#[async_trait]
impl NodeApi for SimCluster {
    async fn get(&self, _: &str) -> Result<Arc<Node>, ApiError> {
        // No pod of these runs is refused for node affinity.
        not_asked()
    }
    async fn create(&self, _: &Node) -> Result<Arc<Node>, ApiError> {
        not_asked()
    }
    async fn patch(&self, _: &str, _: &Value) -> Result<Arc<Node>, ApiError> {
        not_asked()
    }
    async fn patch_status(&self, _: &str, _: &Value, _: Duration) -> Result<Arc<Node>, ApiError> {
        not_asked()
    }
    fn watch(&self, _: &str) -> BoxStream<'static, ObservedObject<Node>> {
        futures::stream::pending().boxed()
    }
}

#[async_trait]
impl LeaseApi for SimCluster {
    async fn get(&self, _: &str, _: Duration) -> Result<Lease, ApiError> {
        not_asked()
    }
    async fn create(&self, _: &Lease, _: Duration) -> Result<Lease, ApiError> {
        not_asked()
    }
    async fn update(&self, _: &Lease, _: Duration) -> Result<Lease, ApiError> {
        not_asked()
    }
}

#[async_trait]
impl EventApi for SimCluster {
    async fn create(&self, _: &Event) -> Result<Event, ApiError> {
        not_asked()
    }
    async fn patch(&self, _: &str, _: &str, _: &Value) -> Result<Event, ApiError> {
        not_asked()
    }
}

#[async_trait]
impl CsiNodeApi for SimCluster {
    async fn get(&self, _: &str) -> Result<CSINode, ApiError> {
        not_asked()
    }
    async fn create(&self, _: &CSINode) -> Result<CSINode, ApiError> {
        not_asked()
    }
    async fn patch(&self, _: &str, _: &Value) -> Result<CSINode, ApiError> {
        not_asked()
    }
    async fn delete(&self, _: &str) -> Result<(), ApiError> {
        not_asked()
    }
}

#[async_trait]
impl AccessReviews for SimCluster {
    async fn review_token(&self, _: &str) -> Result<Option<UserInfo>, ApiError> {
        not_asked()
    }
    async fn review_access(&self, _: &NodeAccess) -> Result<AccessDecision, ApiError> {
        not_asked()
    }
}

impl ObjectApi for SimCluster {
    /// Polls every second, which costs nothing in paused time.
    fn watch(&self, key: &ObjectKey) -> BoxStream<'static, ObjectState> {
        let start = (self.0.clone(), key.clone(), None::<String>);
        futures::stream::unfold(start, |(reach, key, told)| async move {
            loop {
                reach.alive().await;
                let state = reach.host.lock().await.world.objects.object_state(&key);
                let words = format!("{state:?}");
                if told.as_ref() != Some(&words) {
                    return Some((state, (reach, key, Some(words))));
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        })
        .boxed()
    }
}

#[async_trait]
impl StorageApi for SimCluster {
    async fn read(&self, key: &StorageKey) -> Result<StorageObject, ApiError> {
        let read = |inner: &mut HostState| match inner.world.storage.look(key, "node") {
            StorageState::Present(object) => Ok(object),
            _ => Err(absent()),
        };
        self.0.call(&"the API server".into(), true, read).await
    }
    async fn patch_claim_status(
        &self,
        claim: &model::csi::ClaimObject,
        patch: &serde_json::Value,
    ) -> Result<Arc<model::k8s::PersistentVolumeClaim>, ApiError> {
        let write =
            |inner: &mut HostState| inner.world.storage.patch_claim(&claim.name, patch).map_err(|_| absent());
        self.0.call(&"the API server".into(), true, write).await
    }
}

impl SharedObjects for SimCluster {
    fn csi_drivers(&self) -> BoxStream<'static, Vec<Arc<CSIDriver>>> {
        let host = self.0.host.clone();
        let drivers = async move {
            let drivers = sim::world::Storage::default().drivers();
            if host.lock().await.faults.extreme { make_drivers_extreme(drivers) } else { drivers }
        };
        futures::stream::once(drivers).chain(futures::stream::pending()).boxed()
    }
    fn trust_bundles(&self) -> BoxStream<'static, Vec<Arc<ClusterTrustBundle>>> {
        futures::stream::pending().boxed()
    }
    fn services(&self) -> BoxStream<'static, Vec<Arc<Service>>> {
        let host = self.0.host.clone();
        let services =
            async move { if host.lock().await.faults.extreme { extreme_services() } else { Vec::new() } };
        futures::stream::once(services).chain(futures::stream::pending()).boxed()
    }
    fn runtime_classes(&self) -> BoxStream<'static, Vec<Arc<RuntimeClass>>> {
        futures::stream::iter([Vec::new()]).chain(futures::stream::pending()).boxed()
    }
}

#[async_trait]
impl TokenApi for SimCluster {
    async fn service_account(&self, namespace: &str, name: &str) -> Result<ServiceAccountFacts, ApiError> {
        let facts = ServiceAccountFacts { uid: format!("{namespace}/{name}"), ..Default::default() };
        self.0.call(&"the API server".into(), true, |_: &mut HostState| Ok(facts)).await
    }

    async fn request(&self, wanted: &PodTokenRequest) -> Result<IssuedToken, ApiError> {
        let lasts = Duration::from_secs(wanted.expiration_secs.max(0) as u64);
        let issue = |inner: &mut HostState| {
            inner.versions += 1;
            let expires = match is_extreme(&wanted.pod_uid) {
                true => extreme_expiry(&mut inner.rng),
                false => inner.world.wall().plus(lasts),
            };
            Ok(IssuedToken { token: format!("token {}", inner.versions), expires })
        };
        self.0.call(&"the API server".into(), true, issue).await
    }
}

/// There are no signers in these runs, and no pod has a certificate.
#[async_trait]
impl CertificateApi for SimCluster {
    async fn request(&self, _: &CertificateWanted) -> Result<CertificateRequested, CertificateRequestError> {
        Err(CertificateRequestError::Create(absent()))
    }
    fn requests(&self, _: &str) -> BoxStream<'static, Vec<Arc<PodCertificateRequest>>> {
        futures::stream::pending().boxed()
    }
}
