//! What pods refer to, and what the cluster says about all of them.

use model::k8s::{
    ClusterTrustBundle, ConfigMap, PersistentVolume, PersistentVolumeClaim, Secret, Service, VolumeAttachment,
};
use ports::ApiError;
use serde_json::Value;

use super::{Api, Freshness, Listed, Resource, named};
use crate::json;
use crate::watch::{Since, Watch};
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
/// Headless services have no address that a container could be told.
const WITH_ADDRESS: &str = "spec.clusterIP!=None";

/// The only selection of these that a node is allowed to watch.
fn only(name: &str) -> String {
    format!("metadata.name={name}")
}

impl Api {
    pub async fn get_config_map(&self, namespace: &str, name: &str) -> Result<ConfigMap, ApiError> {
        self.get("get configmap", &CONFIG_MAPS, (namespace, name), json::config_map).await
    }

    /// One or none, and the version to watch it from.
    pub async fn list_config_map(
        &self,
        namespace: &str,
        name: &str,
        freshness: Freshness,
    ) -> Result<Listed<ConfigMap>, ApiError> {
        let path = CONFIG_MAPS.all(namespace);
        self.list("list configmaps", path, &only(name), freshness, json::config_maps).await
    }

    pub async fn watch_config_map(
        &self,
        namespace: &str,
        name: &str,
        since: Since<'_>,
    ) -> Result<Watch<ConfigMap>, ApiError> {
        let path = CONFIG_MAPS.all(namespace);
        self.watch("watch configmaps", path, &only(name), since, json::config_map_event).await
    }

    pub async fn get_secret(&self, namespace: &str, name: &str) -> Result<Secret, ApiError> {
        self.get("get secret", &SECRETS, (namespace, name), json::secret).await
    }

    /// One or none, and the version to watch it from.
    pub async fn list_secret(
        &self,
        namespace: &str,
        name: &str,
        freshness: Freshness,
    ) -> Result<Listed<Secret>, ApiError> {
        self.list("list secrets", SECRETS.all(namespace), &only(name), freshness, json::secrets).await
    }

    pub async fn watch_secret(
        &self,
        namespace: &str,
        name: &str,
        since: Since<'_>,
    ) -> Result<Watch<Secret>, ApiError> {
        self.watch("watch secrets", SECRETS.all(namespace), &only(name), since, json::secret_event).await
    }

    /// Those with an address, in all namespaces.
    pub async fn list_services(&self, freshness: Freshness) -> Result<Listed<Service>, ApiError> {
        self.list("list services", SERVICES.all(""), WITH_ADDRESS, freshness, json::services).await
    }

    pub async fn watch_services(&self, since: Since<'_>) -> Result<Watch<Service>, ApiError> {
        self.watch("watch services", SERVICES.all(""), WITH_ADDRESS, since, json::service_event).await
    }

    pub async fn list_runtime_classes(&self, freshness: Freshness) -> Result<Listed<RuntimeClass>, ApiError> {
        let path = RUNTIME_CLASSES.all("");
        self.list("list runtimeclasses", path, "", freshness, json::runtime_classes).await
    }

    pub async fn watch_runtime_classes(&self, since: Since<'_>) -> Result<Watch<RuntimeClass>, ApiError> {
        let path = RUNTIME_CLASSES.all("");
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
        let path = format!("{}/status", CLAIMS.one(namespace, name));
        let object = named(namespace, name);
        self.patch("patch status of persistentvolumeclaim", path, object, patch, json::claim).await
    }

    pub async fn get_persistent_volume(&self, name: &str) -> Result<PersistentVolume, ApiError> {
        self.get("get persistentvolume", &VOLUMES, ("", name), json::persistent_volume).await
    }

    pub async fn get_volume_attachment(&self, name: &str) -> Result<VolumeAttachment, ApiError> {
        self.get("get volumeattachment", &ATTACHMENTS, ("", name), json::volume_attachment).await
    }

    pub async fn list_csi_drivers(&self, freshness: Freshness) -> Result<Listed<CsiDriver>, ApiError> {
        let path = CSI_DRIVERS.all("");
        self.list("list csidrivers", path, "", freshness, json::csi_drivers).await
    }

    pub async fn watch_csi_drivers(&self, since: Since<'_>) -> Result<Watch<CsiDriver>, ApiError> {
        self.watch("watch csidrivers", CSI_DRIVERS.all(""), "", since, json::csi_driver_event).await
    }

    pub async fn list_trust_bundles(
        &self,
        freshness: Freshness,
    ) -> Result<Listed<ClusterTrustBundle>, ApiError> {
        let path = TRUST_BUNDLES.all("");
        self.list("list clustertrustbundles", path, "", freshness, json::trust_bundles).await
    }

    pub async fn watch_trust_bundles(&self, since: Since<'_>) -> Result<Watch<ClusterTrustBundle>, ApiError> {
        let path = TRUST_BUNDLES.all("");
        self.watch("watch clustertrustbundles", path, "", since, json::trust_bundle_event).await
    }
}
