//! Objects that pods refer to, sets that every node reads, and service account tokens.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, StreamExt};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequestSpec};
use model::Wall;
use model::cluster::{ObjectContent, ObjectKey, ObjectKind, ObjectState, PodTokenRequest};
use model::credentials::ServiceAccountFacts;
use model::k8s::{CSIDriver, ClusterTrustBundle, ConfigMap, ObjectMeta, RuntimeClass, Secret, Service};
use ports::{ApiError, IssuedToken, ObjectApi, SharedObjects, TokenApi};

use super::reflect::{ListWatcher, ReflectorEvent, reflect};
use crate::TokenRequest;
use crate::calls::{Api, Freshness};
use crate::object_list::ObjectList;
use crate::watch::{Watch, WatchStart};
use crate::watch_event::{ObjectIdentity, UnreadableObject};
use crate::watch_progress::WatchStatuses;

impl ObjectApi for Api {
    fn watch(&self, key: &ObjectKey) -> BoxStream<'static, ObjectState> {
        let one = NamedObject { api: self.clone(), key: key.clone() };
        match key.kind {
            ObjectKind::ConfigMap => states(reflect(ConfigMapListWatcher(one)), key, config_map),
            ObjectKind::Secret => states(reflect(SecretListWatcher(one)), key, secret),
        }
    }
}

fn states<T: Send + 'static>(
    notices: BoxStream<'static, ReflectorEvent<T>>,
    key: &ObjectKey,
    content: fn(T) -> ObjectContent,
) -> BoxStream<'static, ObjectState> {
    let watched = WatchedObject { key: key.clone(), content, known: None };
    let states = notices.scan(watched, |watched, notice| std::future::ready(Some(watched.state(notice))));
    states.filter_map(std::future::ready).boxed()
}

struct WatchedObject<T> {
    key: ObjectKey,
    content: fn(T) -> ObjectContent,
    /// UID of the version that pods use.
    known: Option<String>,
}

impl<T> WatchedObject<T> {
    /// `None`: the state has not changed.
    fn state(&mut self, notice: ReflectorEvent<T>) -> Option<ObjectState> {
        match notice {
            ReflectorEvent::All { items, unreadable } => match (items.into_iter().next(), unreadable.first())
            {
                (Some(object), _) => Some(self.readable_state(object)),
                (None, Some(odd)) => self.unreadable_state(odd),
                (None, None) => Some(self.absent()),
            },
            ReflectorEvent::Changed(object) => Some(self.readable_state(object)),
            ReflectorEvent::Gone(_) => Some(self.absent()),
            ReflectorEvent::Unreadable(odd) => {
                let kept = self.known.as_ref() == Some(&odd.identity.uid);
                log_unreadable_object(kind(&self.key), &odd, kept);
                self.unreadable_state(&odd)
            }
            ReflectorEvent::Failing(ApiError::Forbidden { message, .. }) => {
                Some(ObjectState::Denied { message })
            }
            ReflectorEvent::Failing(error) => Some(ObjectState::Unreachable { message: error.to_string() }),
            ReflectorEvent::Recovered => None,
        }
    }

    fn readable_state(&mut self, object: T) -> ObjectState {
        let content = (self.content)(object);
        self.known = Some(content.uid.clone());
        ObjectState::Present(Arc::new(content))
    }

    fn absent(&mut self) -> ObjectState {
        self.known = None;
        ObjectState::Absent { message: absent(&self.key) }
    }

    /// If the object has not been replaced, pods continue with the last version that could be decoded.
    fn unreadable_state(&mut self, odd: &UnreadableObject) -> Option<ObjectState> {
        if self.known.as_ref() == Some(&odd.identity.uid) {
            return None;
        }
        self.known = None;
        let message = format!("{} {:?} can't be read: {}", kind(&self.key), self.key.name, odd.problem);
        Some(ObjectState::Unreachable { message })
    }
}

/// Logged once for each object and problem.
pub(super) fn log_unreadable_object(kind: &str, object: &UnreadableObject, kept: bool) {
    let UnreadableObject { identity, problem } = object;
    let meanwhile = if kept { "its last readable version stays in use" } else { "it is left out" };
    tracing::warn!("{kind} {identity} can't be read, so {meanwhile}: {problem}");
}

fn kind(key: &ObjectKey) -> &'static str {
    match key.kind {
        ObjectKind::ConfigMap => "configmap",
        ObjectKind::Secret => "secret",
    }
}

pub(super) fn absent(key: &ObjectKey) -> String {
    format!("{} {:?} not found", kind(key), key.name)
}

pub(super) fn config_map(object: ConfigMap) -> ObjectContent {
    let text = object.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.into_bytes()));
    let binary = object.binary_data.unwrap_or_default();
    let binary_keys = binary.keys().cloned().collect();
    let binary = binary.into_iter().map(|(key, value)| (key, value.0));
    ObjectContent {
        uid: object.metadata.uid.unwrap_or_default(),
        resource_version: object.metadata.resource_version.unwrap_or_default(),
        data: text.chain(binary).collect(),
        binary_keys,
        secret_type: None,
        immutable: object.immutable.unwrap_or(false),
    }
}

pub(super) fn secret(object: Secret) -> ObjectContent {
    let data = object.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0));
    ObjectContent {
        uid: object.metadata.uid.unwrap_or_default(),
        resource_version: object.metadata.resource_version.unwrap_or_default(),
        data: data.collect(),
        binary_keys: Default::default(),
        secret_type: object.type_,
        immutable: object.immutable.unwrap_or(false),
    }
}

struct NamedObject {
    api: Api,
    key: ObjectKey,
}

struct ConfigMapListWatcher(NamedObject);

impl ListWatcher for ConfigMapListWatcher {
    type Item = ConfigMap;

    fn list(&self) -> BoxFuture<'_, Result<ObjectList<ConfigMap>, ApiError>> {
        let NamedObject { api, key } = &self.0;
        Box::pin(api.list_config_map(&key.namespace, &key.name, Freshness::Cached))
    }

    fn watch<'a>(&'a self, version: &'a str) -> BoxFuture<'a, Result<Watch<ConfigMap>, ApiError>> {
        let NamedObject { api, key } = &self.0;
        Box::pin(api.watch_config_map(&key.namespace, &key.name, WatchStart::Version(version)))
    }

    fn entries(&self) -> &WatchStatuses {
        self.0.api.watch_statuses()
    }

    fn name(&self) -> (&'static str, String) {
        ("configmaps", format!("{}/{}", self.0.key.namespace, self.0.key.name))
    }

    fn meta(object: &ConfigMap) -> &ObjectMeta {
        &object.metadata
    }
}

struct SecretListWatcher(NamedObject);

impl ListWatcher for SecretListWatcher {
    type Item = Secret;

    fn list(&self) -> BoxFuture<'_, Result<ObjectList<Secret>, ApiError>> {
        let NamedObject { api, key } = &self.0;
        Box::pin(api.list_secret(&key.namespace, &key.name, Freshness::Cached))
    }

    fn watch<'a>(&'a self, version: &'a str) -> BoxFuture<'a, Result<Watch<Secret>, ApiError>> {
        let NamedObject { api, key } = &self.0;
        Box::pin(api.watch_secret(&key.namespace, &key.name, WatchStart::Version(version)))
    }

    fn entries(&self) -> &WatchStatuses {
        self.0.api.watch_statuses()
    }

    fn name(&self) -> (&'static str, String) {
        ("secrets", format!("{}/{}", self.0.key.namespace, self.0.key.name))
    }

    fn meta(object: &Secret) -> &ObjectMeta {
        &object.metadata
    }
}

impl SharedObjects for Api {
    fn services(&self) -> BoxStream<'static, Vec<Arc<Service>>> {
        whole_sets(reflect(Services(self.clone())), "service", |service: &Service| &service.metadata)
    }

    fn runtime_classes(&self) -> BoxStream<'static, Vec<Arc<RuntimeClass>>> {
        let notices = reflect(RuntimeClasses(self.clone()));
        whole_sets(notices, "runtimeclass", |class: &RuntimeClass| &class.metadata)
    }

    fn csi_drivers(&self) -> BoxStream<'static, Vec<Arc<CSIDriver>>> {
        whole_sets(reflect(CsiDrivers(self.clone())), "csidriver", |driver: &CSIDriver| &driver.metadata)
    }

    fn trust_bundles(&self) -> BoxStream<'static, Vec<Arc<ClusterTrustBundle>>> {
        let notices = reflect(TrustBundles(self.clone()));
        whole_sets(notices, "clustertrustbundle", |bundle: &ClusterTrustBundle| &bundle.metadata)
    }
}

/// Emits the whole set after each change. These sets are small and change rarely.
pub(super) fn whole_sets<T: Send + Sync + 'static>(
    notices: BoxStream<'static, ReflectorEvent<T>>,
    kind: &'static str,
    meta: fn(&T) -> &ObjectMeta,
) -> BoxStream<'static, Vec<Arc<T>>> {
    let set = ObjectSet { kind, meta, known: BTreeMap::new() };
    let sets = notices.scan(set, |set, notice| {
        let changed = set.take(notice);
        std::future::ready(Some(changed.then(|| set.known.values().cloned().collect())))
    });
    sets.filter_map(std::future::ready).boxed()
}

struct ObjectSet<T> {
    kind: &'static str,
    meta: fn(&T) -> &ObjectMeta,
    known: BTreeMap<(String, String), Arc<T>>,
}

impl<T> ObjectSet<T> {
    /// Returns true if the set has changed.
    fn take(&mut self, notice: ReflectorEvent<T>) -> bool {
        match notice {
            ReflectorEvent::All { items, unreadable } => {
                let before = std::mem::take(&mut self.known);
                self.known = items.into_iter().map(|object| (self.key(&object), Arc::new(object))).collect();
                for odd in unreadable {
                    let old = before.get(&key_of(&odd.identity)).filter(|old| self.is_same(old, &odd));
                    self.known.extend(old.map(|old| (key_of(&odd.identity), old.clone())));
                }
                true
            }
            ReflectorEvent::Changed(object) => {
                self.known.insert(self.key(&object), Arc::new(object));
                true
            }
            ReflectorEvent::Gone(identity) => self.known.remove(&key_of(&identity)).is_some(),
            ReflectorEvent::Unreadable(odd) => {
                let old = self.known.get(&key_of(&odd.identity));
                let kept = old.is_some_and(|old| self.is_same(old, &odd));
                log_unreadable_object(self.kind, &odd, kept);
                // The unreadable object replaced another one of that name, which is removed.
                !kept && self.known.remove(&key_of(&odd.identity)).is_some()
            }
            ReflectorEvent::Failing(error) => {
                tracing::warn!("{error}");
                false
            }
            ReflectorEvent::Recovered => false,
        }
    }

    fn key(&self, object: &T) -> (String, String) {
        let meta = (self.meta)(object);
        (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
    }

    fn is_same(&self, old: &T, odd: &UnreadableObject) -> bool {
        (self.meta)(old).uid.as_deref().unwrap_or_default() == odd.identity.uid
    }
}

fn key_of(identity: &ObjectIdentity) -> (String, String) {
    (identity.namespace.clone(), identity.name.clone())
}

struct Services(Api);

impl ListWatcher for Services {
    type Item = Service;

    fn list(&self) -> BoxFuture<'_, Result<ObjectList<Service>, ApiError>> {
        Box::pin(self.0.list_services(Freshness::Cached))
    }

    fn watch<'a>(&'a self, version: &'a str) -> BoxFuture<'a, Result<Watch<Service>, ApiError>> {
        Box::pin(self.0.watch_services(WatchStart::Version(version)))
    }

    fn entries(&self) -> &WatchStatuses {
        self.0.watch_statuses()
    }

    fn name(&self) -> (&'static str, String) {
        ("services", String::new())
    }

    fn meta(service: &Service) -> &ObjectMeta {
        &service.metadata
    }
}

struct RuntimeClasses(Api);

impl ListWatcher for RuntimeClasses {
    type Item = RuntimeClass;

    fn list(&self) -> BoxFuture<'_, Result<ObjectList<RuntimeClass>, ApiError>> {
        Box::pin(self.0.list_runtime_classes(Freshness::Cached))
    }

    fn watch<'a>(&'a self, version: &'a str) -> BoxFuture<'a, Result<Watch<RuntimeClass>, ApiError>> {
        Box::pin(self.0.watch_runtime_classes(WatchStart::Version(version)))
    }

    fn entries(&self) -> &WatchStatuses {
        self.0.watch_statuses()
    }

    fn name(&self) -> (&'static str, String) {
        ("runtimeclasses", String::new())
    }

    fn meta(class: &RuntimeClass) -> &ObjectMeta {
        &class.metadata
    }
}

struct CsiDrivers(Api);

impl ListWatcher for CsiDrivers {
    type Item = CSIDriver;

    fn list(&self) -> BoxFuture<'_, Result<ObjectList<CSIDriver>, ApiError>> {
        Box::pin(self.0.list_csi_drivers(Freshness::Cached))
    }

    fn watch<'a>(&'a self, version: &'a str) -> BoxFuture<'a, Result<Watch<CSIDriver>, ApiError>> {
        Box::pin(self.0.watch_csi_drivers(WatchStart::Version(version)))
    }

    fn entries(&self) -> &WatchStatuses {
        self.0.watch_statuses()
    }

    fn name(&self) -> (&'static str, String) {
        ("csidrivers", String::new())
    }

    fn meta(driver: &CSIDriver) -> &ObjectMeta {
        &driver.metadata
    }
}

struct TrustBundles(Api);

impl ListWatcher for TrustBundles {
    type Item = ClusterTrustBundle;

    fn list(&self) -> BoxFuture<'_, Result<ObjectList<ClusterTrustBundle>, ApiError>> {
        Box::pin(self.0.list_trust_bundles(Freshness::Cached))
    }

    fn watch<'a>(&'a self, version: &'a str) -> BoxFuture<'a, Result<Watch<ClusterTrustBundle>, ApiError>> {
        Box::pin(self.0.watch_trust_bundles(WatchStart::Version(version)))
    }

    fn entries(&self) -> &WatchStatuses {
        self.0.watch_statuses()
    }

    fn name(&self) -> (&'static str, String) {
        ("clustertrustbundles", String::new())
    }

    fn meta(bundle: &ClusterTrustBundle) -> &ObjectMeta {
        &bundle.metadata
    }
}

#[async_trait]
impl TokenApi for Api {
    async fn service_account(&self, namespace: &str, name: &str) -> Result<ServiceAccountFacts, ApiError> {
        let found = self.get_service_account(namespace, name).await?.metadata;
        Ok(ServiceAccountFacts {
            uid: found.uid.unwrap_or_default(),
            annotations: found.annotations.unwrap_or_default(),
        })
    }

    async fn request(&self, wanted: &PodTokenRequest) -> Result<IssuedToken, ApiError> {
        let request = TokenRequest {
            metadata: ObjectMeta { uid: wanted.account_uid.clone(), ..ObjectMeta::default() },
            spec: Some(TokenRequestSpec {
                audiences: Some(wanted.audiences.clone()),
                expiration_seconds: Some(wanted.expiration_secs),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".into()),
                    kind: Some("Pod".into()),
                    name: Some(wanted.pod_name.clone()),
                    uid: Some(wanted.pod_uid.to_string()),
                }),
            }),
            ..Default::default()
        };
        let answer = self.create_token(&wanted.namespace, &wanted.service_account, &request).await?;
        let issued = answer.status.and_then(|status| Some((status.token?, status.expiration_timestamp?)));
        let (token, expires) = issued.ok_or_else(|| ApiError::Decode {
            call: format!("create token of serviceaccount {}/{}", wanted.namespace, wanted.service_account),
            message: "it has no token".into(),
        })?;
        Ok(IssuedToken { token, expires: Wall::from_timestamp(expires.0) })
    }
}
