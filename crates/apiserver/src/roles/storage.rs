//! Claims, persistent volumes and attachments, one at a time.

use std::sync::Arc;

use async_trait::async_trait;
use model::csi::ClaimObject;
use model::k8s::PersistentVolumeClaim;
use model::storage::{StorageKey, StorageObject};
use ports::{ApiError, StorageApi};
use serde_json::Value;

use crate::Api;

#[async_trait]
impl StorageApi for Api {
    async fn read(&self, key: &StorageKey) -> Result<StorageObject, ApiError> {
        Ok(match key {
            StorageKey::Claim { namespace, name } => {
                StorageObject::Claim(Arc::new(self.get_claim(namespace, name).await?))
            }
            StorageKey::Volume { name } => {
                StorageObject::Volume(Arc::new(self.get_persistent_volume(name).await?))
            }
            StorageKey::Attachment { name } => {
                StorageObject::Attachment(Arc::new(self.get_volume_attachment(name).await?))
            }
        })
    }

    async fn patch_claim_status(
        &self,
        claim: &ClaimObject,
        patch: &Value,
    ) -> Result<Arc<PersistentVolumeClaim>, ApiError> {
        Ok(Arc::new(Api::patch_claim_status(self, &claim.namespace, &claim.name, patch).await?))
    }
}
