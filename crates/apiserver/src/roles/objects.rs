//! Objects that pods name, sets that every node reads, and tokens of service accounts.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, StreamExt};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequestSpec};
use model::Wall;
use model::cluster::{ObjectContent, ObjectKey, ObjectKind, ObjectState, TokenWanted};
use model::credentials::ServiceAccountFacts;
use model::k8s::{CSIDriver, ClusterTrustBundle, ConfigMap, ObjectMeta, RuntimeClass, Secret, Service};
use ports::{ApiError, IssuedToken, ObjectApi, SharedObjects, TokenApi};

use super::progress::WatchEntries;
use super::reflect::{Notice, Target, reflect};
use crate::TokenRequest;
use crate::calls::{Api, Freshness, Listed};
use crate::watch::{ObjectIdentity, Since, UnreadableObject, Watch};

impl ObjectApi for Api {
    fn watch(&self, key: &ObjectKey) -> BoxStream<'static, ObjectState> {
        let one = One { api: self.clone(), key: key.clone() };
        match key.kind {
            ObjectKind::ConfigMap => states(reflect(ConfigMapOf(one)), key, config_map),
            ObjectKind::Secret => states(reflect(SecretOf(one)), key, secret),
        }
    }
}

fn states<T: Send + 'static>(
    notices: BoxStream<'static, Notice<T>>,
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
    /// `None`: nothing to tell.
    fn state(&mut self, notice: Notice<T>) -> Option<ObjectState> {
        match notice {
            Notice::All { items, unreadable } => match (items.into_iter().next(), unreadable.first()) {
                (Some(object), _) => Some(self.is(object)),
                (None, Some(odd)) => self.unread(odd),
                (None, None) => Some(self.absent()),
            },
            Notice::Changed(object) => Some(self.is(object)),
            Notice::Gone(_) => Some(self.absent()),
            Notice::Unreadable(odd) => {
                let kept = self.known.as_ref() == Some(&odd.identity.uid);
                tell_unreadable(kind(&self.key), &odd, kept);
                self.unread(&odd)
            }
            Notice::Failing(ApiError::Forbidden { message, .. }) => Some(ObjectState::Denied { message }),
            Notice::Failing(error) => Some(ObjectState::Unreachable { message: error.to_string() }),
            Notice::Recovered => None,
        }
    }

    fn is(&mut self, object: T) -> ObjectState {
        let content = (self.content)(object);
        self.known = Some(content.uid.clone());
        ObjectState::Is(Arc::new(content))
    }

    fn absent(&mut self) -> ObjectState {
        self.known = None;
        ObjectState::Absent { message: absent(&self.key) }
    }

    /// Pods go on with an older version of the same object.
    fn unread(&mut self, odd: &UnreadableObject) -> Option<ObjectState> {
        if self.known.as_ref() == Some(&odd.identity.uid) {
            return None;
        }
        self.known = None;
        let message = format!("{} {:?} can't be read: {}", kind(&self.key), self.key.name, odd.problem);
        Some(ObjectState::Unreachable { message })
    }
}

/// Once for each object and mistake.
pub(super) fn tell_unreadable(kind: &str, object: &UnreadableObject, kept: bool) {
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

struct One {
    api: Api,
    key: ObjectKey,
}

struct ConfigMapOf(One);

impl Target for ConfigMapOf {
    type Item = ConfigMap;

    fn list(&self) -> BoxFuture<'_, Result<Listed<ConfigMap>, ApiError>> {
        let One { api, key } = &self.0;
        Box::pin(api.list_config_map(&key.namespace, &key.name, Freshness::Cached))
    }

    fn watch<'a>(&'a self, version: &'a str) -> BoxFuture<'a, Result<Watch<ConfigMap>, ApiError>> {
        let One { api, key } = &self.0;
        Box::pin(api.watch_config_map(&key.namespace, &key.name, Since::Version(version)))
    }

    fn entries(&self) -> &WatchEntries {
        self.0.api.watch_entries()
    }

    fn name(&self) -> (&'static str, String) {
        ("configmaps", format!("{}/{}", self.0.key.namespace, self.0.key.name))
    }

    fn meta(object: &ConfigMap) -> &ObjectMeta {
        &object.metadata
    }
}

struct SecretOf(One);

impl Target for SecretOf {
    type Item = Secret;

    fn list(&self) -> BoxFuture<'_, Result<Listed<Secret>, ApiError>> {
        let One { api, key } = &self.0;
        Box::pin(api.list_secret(&key.namespace, &key.name, Freshness::Cached))
    }

    fn watch<'a>(&'a self, version: &'a str) -> BoxFuture<'a, Result<Watch<Secret>, ApiError>> {
        let One { api, key } = &self.0;
        Box::pin(api.watch_secret(&key.namespace, &key.name, Since::Version(version)))
    }

    fn entries(&self) -> &WatchEntries {
        self.0.api.watch_entries()
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

/// The set after each change. These sets are small and change seldom.
pub(super) fn whole_sets<T: Send + Sync + 'static>(
    notices: BoxStream<'static, Notice<T>>,
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
    /// True when the set is another one now.
    fn take(&mut self, notice: Notice<T>) -> bool {
        match notice {
            Notice::All { items, unreadable } => {
                let before = std::mem::take(&mut self.known);
                self.known = items.into_iter().map(|object| (self.key(&object), Arc::new(object))).collect();
                for odd in unreadable {
                    let old = before.get(&key_of(&odd.identity)).filter(|old| self.is_same(old, &odd));
                    self.known.extend(old.map(|old| (key_of(&odd.identity), old.clone())));
                }
                true
            }
            Notice::Changed(object) => {
                self.known.insert(self.key(&object), Arc::new(object));
                true
            }
            Notice::Gone(identity) => self.known.remove(&key_of(&identity)).is_some(),
            Notice::Unreadable(odd) => {
                let old = self.known.get(&key_of(&odd.identity));
                let kept = old.is_some_and(|old| self.is_same(old, &odd));
                tell_unreadable(self.kind, &odd, kept);
                // Another object of that name is gone.
                !kept && self.known.remove(&key_of(&odd.identity)).is_some()
            }
            Notice::Failing(error) => {
                tracing::warn!("{error}");
                false
            }
            Notice::Recovered => false,
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

impl Target for Services {
    type Item = Service;

    fn list(&self) -> BoxFuture<'_, Result<Listed<Service>, ApiError>> {
        Box::pin(self.0.list_services(Freshness::Cached))
    }

    fn watch<'a>(&'a self, version: &'a str) -> BoxFuture<'a, Result<Watch<Service>, ApiError>> {
        Box::pin(self.0.watch_services(Since::Version(version)))
    }

    fn entries(&self) -> &WatchEntries {
        self.0.watch_entries()
    }

    fn name(&self) -> (&'static str, String) {
        ("services", String::new())
    }

    fn meta(service: &Service) -> &ObjectMeta {
        &service.metadata
    }
}

struct RuntimeClasses(Api);

impl Target for RuntimeClasses {
    type Item = RuntimeClass;

    fn list(&self) -> BoxFuture<'_, Result<Listed<RuntimeClass>, ApiError>> {
        Box::pin(self.0.list_runtime_classes(Freshness::Cached))
    }

    fn watch<'a>(&'a self, version: &'a str) -> BoxFuture<'a, Result<Watch<RuntimeClass>, ApiError>> {
        Box::pin(self.0.watch_runtime_classes(Since::Version(version)))
    }

    fn entries(&self) -> &WatchEntries {
        self.0.watch_entries()
    }

    fn name(&self) -> (&'static str, String) {
        ("runtimeclasses", String::new())
    }

    fn meta(class: &RuntimeClass) -> &ObjectMeta {
        &class.metadata
    }
}

struct CsiDrivers(Api);

impl Target for CsiDrivers {
    type Item = CSIDriver;

    fn list(&self) -> BoxFuture<'_, Result<Listed<CSIDriver>, ApiError>> {
        Box::pin(self.0.list_csi_drivers(Freshness::Cached))
    }

    fn watch<'a>(&'a self, version: &'a str) -> BoxFuture<'a, Result<Watch<CSIDriver>, ApiError>> {
        Box::pin(self.0.watch_csi_drivers(Since::Version(version)))
    }

    fn entries(&self) -> &WatchEntries {
        self.0.watch_entries()
    }

    fn name(&self) -> (&'static str, String) {
        ("csidrivers", String::new())
    }

    fn meta(driver: &CSIDriver) -> &ObjectMeta {
        &driver.metadata
    }
}

struct TrustBundles(Api);

impl Target for TrustBundles {
    type Item = ClusterTrustBundle;

    fn list(&self) -> BoxFuture<'_, Result<Listed<ClusterTrustBundle>, ApiError>> {
        Box::pin(self.0.list_trust_bundles(Freshness::Cached))
    }

    fn watch<'a>(&'a self, version: &'a str) -> BoxFuture<'a, Result<Watch<ClusterTrustBundle>, ApiError>> {
        Box::pin(self.0.watch_trust_bundles(Since::Version(version)))
    }

    fn entries(&self) -> &WatchEntries {
        self.0.watch_entries()
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

    async fn request(&self, wanted: &TokenWanted) -> Result<IssuedToken, ApiError> {
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
