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

use super::reflect::{Notice, Target, reflect};
use crate::TokenRequest;
use crate::calls::{Api, Freshness, Listed};
use crate::watch::{Since, Watch};

impl ObjectApi for Api {
    fn watch(&self, key: &ObjectKey) -> BoxStream<'static, ObjectState> {
        let one = One { api: self.clone(), key: key.clone() };
        let absent = absent(key);
        match key.kind {
            ObjectKind::ConfigMap => {
                let states = reflect(ConfigMapOf(one));
                states.filter_map(move |n| std::future::ready(state(n, config_map, &absent))).boxed()
            }
            ObjectKind::Secret => {
                let states = reflect(SecretOf(one));
                states.filter_map(move |n| std::future::ready(state(n, secret, &absent))).boxed()
            }
        }
    }
}

pub(super) fn absent(key: &ObjectKey) -> String {
    let kind = match key.kind {
        ObjectKind::ConfigMap => "configmap",
        ObjectKind::Secret => "secret",
    };
    format!("{kind} {:?} not found", key.name)
}

/// `None`: nothing to tell.
fn state<T>(notice: Notice<T>, content: fn(T) -> ObjectContent, absent: &str) -> Option<ObjectState> {
    let is = |object: T| ObjectState::Is(Arc::new(content(object)));
    let absent = || ObjectState::Absent { message: absent.to_owned() };
    match notice {
        Notice::All(objects) => Some(objects.into_iter().next().map_or_else(absent, is)),
        Notice::Changed(object) => Some(is(object)),
        Notice::Gone(_) => Some(absent()),
        Notice::Failing(ApiError::Forbidden { message, .. }) => Some(ObjectState::Denied { message }),
        Notice::Failing(error) => Some(ObjectState::Unreachable { message: error.to_string() }),
        Notice::Recovered => None,
    }
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

    fn meta(object: &Secret) -> &ObjectMeta {
        &object.metadata
    }
}

impl SharedObjects for Api {
    fn services(&self) -> BoxStream<'static, Vec<Arc<Service>>> {
        whole_sets(reflect(Services(self.clone())), |service: &Service| &service.metadata)
    }

    fn runtime_classes(&self) -> BoxStream<'static, Vec<Arc<RuntimeClass>>> {
        whole_sets(reflect(RuntimeClasses(self.clone())), |class: &RuntimeClass| &class.metadata)
    }

    fn csi_drivers(&self) -> BoxStream<'static, Vec<Arc<CSIDriver>>> {
        whole_sets(reflect(CsiDrivers(self.clone())), |driver: &CSIDriver| &driver.metadata)
    }

    fn trust_bundles(&self) -> BoxStream<'static, Vec<Arc<ClusterTrustBundle>>> {
        whole_sets(reflect(TrustBundles(self.clone())), |bundle: &ClusterTrustBundle| &bundle.metadata)
    }
}

/// The set after each change. These sets are small and change seldom.
fn whole_sets<T: Send + Sync + 'static>(
    notices: BoxStream<'static, Notice<T>>,
    meta: fn(&T) -> &ObjectMeta,
) -> BoxStream<'static, Vec<Arc<T>>> {
    let key = move |object: &T| {
        let meta = meta(object);
        (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
    };
    let known: BTreeMap<(String, String), Arc<T>> = BTreeMap::new();
    let sets = notices.scan(known, move |known, notice| {
        let told = match notice {
            Notice::All(all) => {
                *known = all.into_iter().map(|object| (key(&object), Arc::new(object))).collect();
                true
            }
            Notice::Changed(object) => {
                known.insert(key(&object), Arc::new(object));
                true
            }
            Notice::Gone(object) => known.remove(&key(&object)).is_some(),
            Notice::Failing(error) => {
                tracing::warn!("{error}");
                false
            }
            Notice::Recovered => false,
        };
        std::future::ready(Some(told.then(|| known.values().cloned().collect())))
    });
    sets.filter_map(std::future::ready).boxed()
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
