//! ImageService: every image exists and takes no space.

use tonic::{Request, Response, Status};

use crate::pb;
use crate::pb::image_service_server::ImageService;
use crate::service::Service;
use crate::table::now;

fn image(name: &str) -> pb::Image {
    pb::Image { id: name.to_owned(), repo_tags: vec![name.to_owned()], size: 1, ..Default::default() }
}

#[tonic::async_trait]
impl ImageService for Service {
    async fn list_images(
        &self,
        _: Request<pb::ListImagesRequest>,
    ) -> Result<Response<pb::ListImagesResponse>, Status> {
        self.0.count_call_and_lock("ListImages", |_| ()).await;
        Ok(Response::new(pb::ListImagesResponse::default()))
    }

    async fn image_status(
        &self,
        request: Request<pb::ImageStatusRequest>,
    ) -> Result<Response<pb::ImageStatusResponse>, Status> {
        self.0.count_call_and_lock("ImageStatus", |_| ()).await;
        let name = request.into_inner().image.unwrap_or_default().image;
        Ok(Response::new(pb::ImageStatusResponse { image: Some(image(&name)) }))
    }

    async fn pull_image(
        &self,
        request: Request<pb::PullImageRequest>,
    ) -> Result<Response<pb::PullImageResponse>, Status> {
        self.0.count_call_and_lock("PullImage", |_| ()).await;
        let image_ref = request.into_inner().image.unwrap_or_default().image;
        Ok(Response::new(pb::PullImageResponse { image_ref }))
    }

    async fn image_fs_info(
        &self,
        _: Request<pb::ImageFsInfoRequest>,
    ) -> Result<Response<pb::ImageFsInfoResponse>, Status> {
        self.0.count_call_and_lock("ImageFsInfo", |_| ()).await;
        let since = now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let usage = pb::FilesystemUsage {
            timestamp: i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
            fs_id: Some(pb::FilesystemIdentifier { mountpoint: "/".into() }),
            used_bytes: Some(pb::UInt64Value { value: 1 }),
            inodes_used: Some(pb::UInt64Value { value: 1 }),
        };
        let info = pb::ImageFsInfoResponse {
            image_filesystems: vec![usage.clone()],
            container_filesystems: vec![usage],
        };
        Ok(Response::new(info))
    }
}
