//! The image service (CRI ImageService).

use async_trait::async_trait;
use model::cri::{FilesystemUsage, Image, ImageSpec, RegistryAuth, SandboxConfig};

use crate::runtime::RuntimeError;

#[async_trait]
pub trait Images: Send + Sync {
    async fn list_images(&self) -> Result<Vec<Image>, RuntimeError>;
    /// `None`: the runtime does not have it.
    async fn image_status(&self, image: &ImageSpec) -> Result<Option<Image>, RuntimeError>;
    /// Returns the reference to make containers from. Has no deadline; dropping the future cancels it.
    async fn pull_image(
        &self,
        image: &ImageSpec,
        auth: Option<&RegistryAuth>,
        sandbox: Option<&SandboxConfig>,
    ) -> Result<String, RuntimeError>;
    async fn remove_image(&self, image: &ImageSpec) -> Result<(), RuntimeError>;
    /// The image that sandboxes are made from, if the runtime tells it. Those that do not tell it show it as pinned.
    async fn sandbox_image(&self) -> Result<Option<String>, RuntimeError> {
        Ok(None)
    }
    /// Image filesystems, then container filesystems.
    async fn image_fs_info(&self) -> Result<(Vec<FilesystemUsage>, Vec<FilesystemUsage>), RuntimeError>;
}
