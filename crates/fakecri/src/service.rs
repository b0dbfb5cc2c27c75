//! RuntimeService over the table.

use std::pin::Pin;
use std::sync::Arc;

use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};

use crate::pb;
use crate::pb::runtime_service_server::RuntimeService;
use crate::table::{Container, RuntimeTable, Sandbox, SharedTable};

#[derive(Clone)]
pub(crate) struct Service(pub Arc<SharedTable>);

type Answer<T> = Result<Response<T>, Status>;
type Events = Pin<Box<dyn Stream<Item = Result<pb::ContainerEventResponse, Status>> + Send>>;

fn answer<T>(message: T) -> Answer<T> {
    Ok(Response::new(message))
}

fn required<T>(value: Option<T>, what: &str) -> Result<T, Status> {
    value.ok_or_else(|| Status::invalid_argument(format!("the request has no {what}")))
}

impl Sandbox {
    fn state(&self) -> i32 {
        let state =
            if self.ready { pb::PodSandboxState::SandboxReady } else { pb::PodSandboxState::SandboxNotready };
        state.into()
    }

    pub fn status(&self, id: &str) -> pb::PodSandboxStatus {
        let options = self.config.linux.as_ref().and_then(|l| l.security_context.as_ref());
        let options = options.and_then(|context| context.namespace_options.clone());
        pb::PodSandboxStatus {
            id: id.to_owned(),
            metadata: self.config.metadata.clone(),
            state: self.state(),
            created_at: self.created_at,
            network: Some(pb::PodSandboxNetworkStatus { ip: self.ip.clone(), additional_ips: Vec::new() }),
            linux: Some(pb::LinuxPodSandboxStatus { namespaces: Some(pb::Namespace { options }) }),
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            runtime_handler: self.handler.clone(),
        }
    }

    fn list_entry(&self, id: &str) -> pb::PodSandbox {
        pb::PodSandbox {
            id: id.to_owned(),
            metadata: self.config.metadata.clone(),
            state: self.state(),
            created_at: self.created_at,
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            runtime_handler: self.handler.clone(),
        }
    }
}

impl Container {
    fn image(&self) -> String {
        self.config.image.as_ref().map(|image| image.image.clone()).unwrap_or_default()
    }

    fn list_entry(&self, id: &str) -> pb::Container {
        pb::Container {
            id: id.to_owned(),
            pod_sandbox_id: self.sandbox.clone(),
            metadata: self.config.metadata.clone(),
            image: self.config.image.clone(),
            image_ref: self.image(),
            state: self.state.into(),
            created_at: self.created_at,
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            image_id: self.image(),
        }
    }

    fn status(&self, id: &str) -> pb::ContainerStatus {
        let ended = self.state == pb::ContainerState::ContainerExited;
        let reason = match (ended, self.exit_code) {
            (false, _) => "",
            (true, 0) => "Completed",
            (true, _) => "Error",
        };
        pb::ContainerStatus {
            id: id.to_owned(),
            metadata: self.config.metadata.clone(),
            state: self.state.into(),
            created_at: self.created_at,
            started_at: self.started_at,
            finished_at: self.finished_at,
            exit_code: self.exit_code,
            image: self.config.image.clone(),
            image_ref: self.image(),
            reason: reason.to_owned(),
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            mounts: self.config.mounts.clone(),
            log_path: format!("{}/{}", self.log_directory, self.config.log_path),
            image_id: self.image(),
            ..Default::default()
        }
    }
}

#[tonic::async_trait]
impl RuntimeService for Service {
    async fn version(&self, _: Request<pb::VersionRequest>) -> Answer<pb::VersionResponse> {
        answer(pb::VersionResponse {
            version: "0.1.0".into(),
            runtime_name: "fakecri".into(),
            runtime_version: "1.0.0".into(),
            runtime_api_version: "v1".into(),
        })
    }

    async fn status(&self, _: Request<pb::StatusRequest>) -> Answer<pb::StatusResponse> {
        let ready =
            |kind: &str| pb::RuntimeCondition { r#type: kind.into(), status: true, ..Default::default() };
        let conditions = vec![ready("RuntimeReady"), ready("NetworkReady")];
        self.0.count_call_and_lock("Status", |_| ()).await;
        answer(pb::StatusResponse { status: Some(pb::RuntimeStatus { conditions }), ..Default::default() })
    }

    async fn runtime_config(
        &self,
        _: Request<pb::RuntimeConfigRequest>,
    ) -> Answer<pb::RuntimeConfigResponse> {
        let cgroup_driver = pb::CgroupDriver::Cgroupfs.into();
        answer(pb::RuntimeConfigResponse { linux: Some(pb::LinuxRuntimeConfiguration { cgroup_driver }) })
    }

    async fn update_runtime_config(
        &self,
        _: Request<pb::UpdateRuntimeConfigRequest>,
    ) -> Answer<pb::UpdateRuntimeConfigResponse> {
        answer(pb::UpdateRuntimeConfigResponse {})
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<pb::RunPodSandboxRequest>,
    ) -> Answer<pb::RunPodSandboxResponse> {
        let request = request.into_inner();
        let config = required(request.config, "config")?;
        let run = |world: &mut RuntimeTable| world.run_sandbox(config, request.runtime_handler);
        let pod_sandbox_id = self.0.count_call_and_lock("RunPodSandbox", run).await;
        answer(pb::RunPodSandboxResponse { pod_sandbox_id })
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<pb::StopPodSandboxRequest>,
    ) -> Answer<pb::StopPodSandboxResponse> {
        let id = request.into_inner().pod_sandbox_id;
        self.0.count_call_and_lock("StopPodSandbox", |world| world.stop_sandbox(&id)).await;
        answer(pb::StopPodSandboxResponse {})
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<pb::RemovePodSandboxRequest>,
    ) -> Answer<pb::RemovePodSandboxResponse> {
        let id = request.into_inner().pod_sandbox_id;
        self.0.count_call_and_lock("RemovePodSandbox", |world| world.remove_sandbox(&id)).await;
        answer(pb::RemovePodSandboxResponse {})
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<pb::PodSandboxStatusRequest>,
    ) -> Answer<pb::PodSandboxStatusResponse> {
        let id = request.into_inner().pod_sandbox_id;
        let find = |world: &mut RuntimeTable| world.sandboxes.get(&id).map(|sandbox| sandbox.status(&id));
        let status = self.0.count_call_and_lock("PodSandboxStatus", find).await;
        let status = status.ok_or_else(|| Status::not_found(format!("sandbox {id:?}: not found")))?;
        answer(pb::PodSandboxStatusResponse { status: Some(status) })
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<pb::ListPodSandboxRequest>,
    ) -> Answer<pb::ListPodSandboxResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let list = |world: &mut RuntimeTable| {
            let found = world.selected(&world.sandboxes, &filter.id, &filter.label_selector);
            found.into_iter().map(|(id, sandbox)| sandbox.list_entry(id)).collect()
        };
        let items = self.0.count_call_and_lock("ListPodSandbox", list).await;
        answer(pb::ListPodSandboxResponse { items })
    }

    async fn create_container(
        &self,
        request: Request<pb::CreateContainerRequest>,
    ) -> Answer<pb::CreateContainerResponse> {
        let request = request.into_inner();
        let config = required(request.config, "config")?;
        let create = |world: &mut RuntimeTable| world.create_container(&request.pod_sandbox_id, config);
        let container_id = self.0.count_call_and_lock("CreateContainer", create).await?;
        answer(pb::CreateContainerResponse { container_id })
    }

    async fn start_container(
        &self,
        request: Request<pb::StartContainerRequest>,
    ) -> Answer<pb::StartContainerResponse> {
        let id = request.into_inner().container_id;
        self.0.count_call_and_lock("StartContainer", |world| world.start_container(&id)).await?;
        answer(pb::StartContainerResponse {})
    }

    async fn stop_container(
        &self,
        request: Request<pb::StopContainerRequest>,
    ) -> Answer<pb::StopContainerResponse> {
        let id = request.into_inner().container_id;
        self.0.count_call_and_lock("StopContainer", |world| world.end_container(&id, 143)).await?;
        answer(pb::StopContainerResponse {})
    }

    async fn remove_container(
        &self,
        request: Request<pb::RemoveContainerRequest>,
    ) -> Answer<pb::RemoveContainerResponse> {
        let id = request.into_inner().container_id;
        self.0.count_call_and_lock("RemoveContainer", |world| world.remove_container(&id)).await;
        answer(pb::RemoveContainerResponse {})
    }

    async fn list_containers(
        &self,
        request: Request<pb::ListContainersRequest>,
    ) -> Answer<pb::ListContainersResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let list = |world: &mut RuntimeTable| {
            let found = world.selected(&world.containers, &filter.id, &filter.label_selector);
            found.into_iter().map(|(id, container)| container.list_entry(id)).collect()
        };
        let containers = self.0.count_call_and_lock("ListContainers", list).await;
        answer(pb::ListContainersResponse { containers })
    }

    async fn container_status(
        &self,
        request: Request<pb::ContainerStatusRequest>,
    ) -> Answer<pb::ContainerStatusResponse> {
        let id = request.into_inner().container_id;
        let find = |world: &mut RuntimeTable| world.containers.get(&id).map(|found| found.status(&id));
        let status = self.0.count_call_and_lock("ContainerStatus", find).await;
        let status = status.ok_or_else(|| Status::not_found(format!("container {id:?}: not found")))?;
        answer(pb::ContainerStatusResponse { status: Some(status) })
    }

    async fn list_container_stats(
        &self,
        _: Request<pb::ListContainerStatsRequest>,
    ) -> Answer<pb::ListContainerStatsResponse> {
        self.0.count_call_and_lock("ListContainerStats", |_| ()).await;
        answer(pb::ListContainerStatsResponse::default())
    }

    async fn get_container_events(&self, _: Request<pb::GetEventsRequest>) -> Answer<Events> {
        let events = self.0.count_call_and_lock("GetContainerEvents", |world| world.events.subscribe()).await;
        let lagged = |_| Status::data_loss("the listener was too slow");
        let events = BroadcastStream::new(events).map(move |event| event.map_err(lagged));
        answer(Box::pin(events) as Events)
    }
}
