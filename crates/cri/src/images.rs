//! `ports::Images`: each call of ImageService.

use async_trait::async_trait;
use model::cri::{FilesystemUsage, Image, ImageSpec, RegistryAuth, SandboxConfig};
use ports::{Images, RuntimeError};

use crate::call::{call, malformed};
use crate::client::CriClient;
use crate::from_wire;
use crate::lists::list;
use crate::{pb, to_wire};

/// `rpc!(self, "Name", method, deadline, request)`: the answer, or the error of that call.
macro_rules! rpc {
    ($client:expr, $name:literal, $method:ident, $deadline:expr, $request:expr) => {{
        let mut service = $client.images.clone();
        let send = |request| async move { service.$method(request).await };
        call($name, $client.image_target(), $deadline, $request, send).await
    }};
}

#[async_trait]
impl Images for CriClient {
    async fn list_images(&self) -> Result<Vec<Image>, RuntimeError> {
        let images = list!(
            self.images, self.image_target(), Some(self.request_timeout),
            "StreamImages" stream_images(pb::StreamImagesRequest {}) images,
            "ListImages" list_images(pb::ListImagesRequest {}) images
        )?;
        Ok(self.invalid_entries.valid_entries("ListImages", true, images, from_wire::image))
    }

    async fn image_status(&self, image: &ImageSpec) -> Result<Option<Image>, RuntimeError> {
        let deadline = Some(self.request_timeout);
        let request = pb::ImageStatusRequest { image: Some(to_wire::image_spec(image)), verbose: false };
        let answer = rpc!(self, "ImageStatus", image_status, deadline, request)?;
        let image = answer.image.map(from_wire::image).transpose();
        image.map_err(|missing| malformed("ImageStatus", missing.what))
    }

    async fn pull_image(
        &self,
        image: &ImageSpec,
        auth: Option<&RegistryAuth>,
        sandbox: Option<&SandboxConfig>,
    ) -> Result<String, RuntimeError> {
        let request = pb::PullImageRequest {
            image: Some(to_wire::image_spec(image)),
            auth: auth.map(to_wire::auth),
            sandbox_config: sandbox.map(to_wire::sandbox_config),
        };
        let answer = rpc!(self, "PullImage", pull_image, None, request)?;
        match answer.image_ref.is_empty() {
            true => Err(malformed("PullImage", "a reference")),
            false => Ok(answer.image_ref),
        }
    }

    async fn remove_image(&self, image: &ImageSpec) -> Result<(), RuntimeError> {
        let deadline = Some(self.request_timeout);
        let request = pb::RemoveImageRequest { image: Some(to_wire::image_spec(image)) };
        rpc!(self, "RemoveImage", remove_image, deadline, request).map(drop)
    }

    /// containerd before 1.7 does not show the image as pinned. Its verbose status has it, with the configuration.
    async fn sandbox_image(&self) -> Result<Option<String>, RuntimeError> {
        let mut service = self.runtime.clone();
        let send = |request| async move { service.status(request).await };
        let request = pb::StatusRequest { verbose: true };
        let deadline = Some(self.request_timeout);
        let answer = call("Status", self.runtime_target(), deadline, request, send).await?;
        Ok(answer.info.get("config").and_then(|config| sandbox_image(config)))
    }

    async fn image_fs_info(&self) -> Result<(Vec<FilesystemUsage>, Vec<FilesystemUsage>), RuntimeError> {
        let deadline = Some(self.request_timeout);
        let answer = rpc!(self, "ImageFsInfo", image_fs_info, deadline, pb::ImageFsInfoRequest {})?;
        let turn = |list: Vec<_>| list.into_iter().map(from_wire::filesystem).collect();
        Ok((turn(answer.image_filesystems), turn(answer.container_filesystems)))
    }
}

/// Of the configuration as containerd shows it. Other runtimes show anything.
fn sandbox_image(config: &str) -> Option<String> {
    let config: serde_json::Value = serde_json::from_str(config).ok()?;
    config.get("sandboxImage")?.as_str().filter(|image| !image.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::sandbox_image;

    #[test]
    fn the_image_of_sandboxes_is_read_from_the_configuration() {
        for (config, expect) in [
            (
                r#"{"containerd": {}, "sandboxImage": "registry.k8s.io/pause:3.6"}"#,
                Some("registry.k8s.io/pause:3.6"),
            ),
            (r#"{"sandboxImage": ""}"#, None),
            (r#"{"sandboxImage": 5}"#, None),
            (r#"{}"#, None),
            ("[1]", None),
            ("not JSON", None),
            ("", None),
        ] {
            assert_eq!(sandbox_image(config).as_deref(), expect, "{config}");
        }
    }
}
