//! Objects that pods refer to, and objects of the whole cluster.

use model::k8s::{
    ClusterTrustBundle, ConfigMap, PersistentVolume, PersistentVolumeClaim, Secret, Service, VolumeAttachment,
};
use ports::ApiError;
use serde_json::Value;

use super::{Api, Freshness, Resource, namespaced_name};
use crate::json;
use crate::object_list::ObjectList;
use crate::watch::{Watch, WatchStart};
use crate::{CsiDriver, RuntimeClass};

const CONFIG_MAPS: Resource = Resource::new("/api/v1", "configmaps");
const SECRETS: Resource = Resource::new("/api/v1", "secrets");
const SERVICES: Resource = Resource::new("/api/v1", "services");
const RUNTIME_CLASSES: Resource = Resource::new("/apis/node.k8s.io/v1", "runtimeclasses");
const CLAIMS: Resource = Resource::new("/api/v1", "persistentvolumeclaims");
const VOLUMES: Resource = Resource::new("/api/v1", "persistentvolumes");
const ATTACHMENTS: Resource = Resource::new("/apis/storage.k8s.io/v1", "volumeattachments");
const CSI_DRIVERS: Resource = Resource::new("/apis/storage.k8s.io/v1", "csidrivers");
const TRUST_BUNDLES: Resource = Resource::new("/apis/certificates.k8s.io/v1beta1", "clustertrustbundles");
/// Headless services have no cluster IP, so containers get no variables for them.
const WITH_ADDRESS: &str = "spec.clusterIP!=None";

/// A node may list and watch these only by a single name.
fn name_selector(name: &str) -> String {
    format!("metadata.name={name}")
}

impl Api {
    pub async fn get_config_map(&self, namespace: &str, name: &str) -> Result<ConfigMap, ApiError> {
        self.get("get configmap", &CONFIG_MAPS, (namespace, name), json::config_map).await
    }

    /// Zero or one object, and the version to watch it from.
    pub async fn list_config_map(
        &self,
        namespace: &str,
        name: &str,
        freshness: Freshness,
    ) -> Result<ObjectList<ConfigMap>, ApiError> {
        let path = CONFIG_MAPS.collection_path(namespace);
        self.list("list configmaps", path, &name_selector(name), freshness, json::config_maps).await
    }

    pub async fn watch_config_map(
        &self,
        namespace: &str,
        name: &str,
        since: WatchStart<'_>,
    ) -> Result<Watch<ConfigMap>, ApiError> {
        let path = CONFIG_MAPS.collection_path(namespace);
        self.watch("watch configmaps", path, &name_selector(name), since, json::config_map_event).await
    }

    pub async fn get_secret(&self, namespace: &str, name: &str) -> Result<Secret, ApiError> {
        self.get("get secret", &SECRETS, (namespace, name), json::secret).await
    }

    /// Zero or one object, and the version to watch it from.
    pub async fn list_secret(
        &self,
        namespace: &str,
        name: &str,
        freshness: Freshness,
    ) -> Result<ObjectList<Secret>, ApiError> {
        self.list(
            "list secrets",
            SECRETS.collection_path(namespace),
            &name_selector(name),
            freshness,
            json::secrets,
        )
        .await
    }

    pub async fn watch_secret(
        &self,
        namespace: &str,
        name: &str,
        since: WatchStart<'_>,
    ) -> Result<Watch<Secret>, ApiError> {
        self.watch(
            "watch secrets",
            SECRETS.collection_path(namespace),
            &name_selector(name),
            since,
            json::secret_event,
        )
        .await
    }

    /// Services with a cluster IP, in all namespaces.
    pub async fn list_services(&self, freshness: Freshness) -> Result<ObjectList<Service>, ApiError> {
        self.list("list services", SERVICES.collection_path(""), WITH_ADDRESS, freshness, json::services)
            .await
    }

    pub async fn watch_services(&self, since: WatchStart<'_>) -> Result<Watch<Service>, ApiError> {
        self.watch("watch services", SERVICES.collection_path(""), WITH_ADDRESS, since, json::service_event)
            .await
    }

    pub async fn list_runtime_classes(
        &self,
        freshness: Freshness,
    ) -> Result<ObjectList<RuntimeClass>, ApiError> {
        let path = RUNTIME_CLASSES.collection_path("");
        self.list("list runtimeclasses", path, "", freshness, json::runtime_classes).await
    }

    pub async fn watch_runtime_classes(
        &self,
        since: WatchStart<'_>,
    ) -> Result<Watch<RuntimeClass>, ApiError> {
        let path = RUNTIME_CLASSES.collection_path("");
        self.watch("watch runtimeclasses", path, "", since, json::runtime_class_event).await
    }

    pub async fn get_claim(&self, namespace: &str, name: &str) -> Result<PersistentVolumeClaim, ApiError> {
        self.get("get persistentvolumeclaim", &CLAIMS, (namespace, name), json::claim).await
    }

    /// A strategic merge patch of the status.
    pub async fn patch_claim_status(
        &self,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<PersistentVolumeClaim, ApiError> {
        let path = format!("{}/status", CLAIMS.object_path(namespace, name));
        let object = namespaced_name(namespace, name);
        self.patch("patch status of persistentvolumeclaim", path, object, patch, json::claim).await
    }

    pub async fn get_persistent_volume(&self, name: &str) -> Result<PersistentVolume, ApiError> {
        self.get("get persistentvolume", &VOLUMES, ("", name), json::persistent_volume).await
    }

    pub async fn get_volume_attachment(&self, name: &str) -> Result<VolumeAttachment, ApiError> {
        self.get("get volumeattachment", &ATTACHMENTS, ("", name), json::volume_attachment).await
    }

    pub async fn list_csi_drivers(&self, freshness: Freshness) -> Result<ObjectList<CsiDriver>, ApiError> {
        let path = CSI_DRIVERS.collection_path("");
        self.list("list csidrivers", path, "", freshness, json::csi_drivers).await
    }

    pub async fn watch_csi_drivers(&self, since: WatchStart<'_>) -> Result<Watch<CsiDriver>, ApiError> {
        self.watch("watch csidrivers", CSI_DRIVERS.collection_path(""), "", since, json::csi_driver_event)
            .await
    }

    pub async fn list_trust_bundles(
        &self,
        freshness: Freshness,
    ) -> Result<ObjectList<ClusterTrustBundle>, ApiError> {
        let path = TRUST_BUNDLES.collection_path("");
        self.list("list clustertrustbundles", path, "", freshness, json::trust_bundles).await
    }

    pub async fn watch_trust_bundles(
        &self,
        since: WatchStart<'_>,
    ) -> Result<Watch<ClusterTrustBundle>, ApiError> {
        let path = TRUST_BUNDLES.collection_path("");
        self.watch("watch clustertrustbundles", path, "", since, json::trust_bundle_event).await
    }
}
