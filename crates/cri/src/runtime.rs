//! `ports::Runtime`: each call of RuntimeService, with the deadline that the reference gives it.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use model::cgroup::CgroupDriver;
use model::cri::{
    ContainerConfig, ContainerStats, ExecResult, LinuxResources, Metric, MetricDescriptor, RuntimeStatus,
    RuntimeVersion, SandboxConfig, SandboxStats,
};
use model::{ContainerId, PodUid, SandboxId};
use ports::{
    ContainerFilter, ContainerInfo, ContainerStatus, Runtime, RuntimeError, SandboxFilter, SandboxInfo,
    SandboxStatus, StreamFlags,
};

use crate::call::{call, malformed};
use crate::client::CriClient;
use crate::from_wire::{self, MissingField};
use crate::lists::list;
use crate::{pb, to_wire};

/// The version of the kubelet's side of the interface, which a runtime must answer with.
pub(crate) const KUBE_API_VERSION: &str = "0.1.0";
const POD_UID_LABEL: &str = "io.kubernetes.pod.uid";

/// `rpc!(self, "Name", method, deadline, request)`: the answer, or the error of that call.
macro_rules! rpc {
    ($client:expr, $name:literal, $method:ident, $deadline:expr, $request:expr) => {{
        let mut service = $client.runtime.clone();
        let send = |request| async move { service.$method(request).await };
        call($name, $client.runtime_target(), $deadline, $request, send).await
    }};
}

#[async_trait]
impl Runtime for CriClient {
    async fn version(&self) -> Result<RuntimeVersion, RuntimeError> {
        let request = pb::VersionRequest { version: KUBE_API_VERSION.into() };
        let answer = rpc!(self, "Version", version, self.default_deadline(), request)?;
        accept_version(from_wire::version(answer))
    }

    async fn status(&self) -> Result<RuntimeStatus, RuntimeError> {
        let answer =
            rpc!(self, "Status", status, self.default_deadline(), pb::StatusRequest { verbose: false })?;
        require_complete("Status", from_wire::status(answer))
    }

    async fn cgroup_driver(&self) -> Result<CgroupDriver, RuntimeError> {
        let answer = rpc!(
            self,
            "RuntimeConfig",
            runtime_config,
            self.default_deadline(),
            pb::RuntimeConfigRequest {}
        )?;
        // A runtime that says nothing about Linux leaves the choice to the fallback, as one without the call does.
        let linux = answer.linux.ok_or(RuntimeError::Unsupported { call: "RuntimeConfig" })?;
        match pb::CgroupDriver::try_from(linux.cgroup_driver) {
            Ok(pb::CgroupDriver::Systemd) => Ok(CgroupDriver::Systemd),
            Ok(pb::CgroupDriver::Cgroupfs) => Ok(CgroupDriver::Cgroupfs),
            Err(_) => Err(malformed("RuntimeConfig", "a known cgroup driver")),
        }
    }

    async fn update_runtime_config(&self, pod_cidr: &str) -> Result<(), RuntimeError> {
        let network_config = Some(pb::NetworkConfig { pod_cidr: pod_cidr.into() });
        let request =
            pb::UpdateRuntimeConfigRequest { runtime_config: Some(pb::RuntimeConfig { network_config }) };
        rpc!(self, "UpdateRuntimeConfig", update_runtime_config, self.default_deadline(), request).map(drop)
    }

    async fn run_pod_sandbox(
        &self,
        config: &SandboxConfig,
        handler: &str,
    ) -> Result<SandboxId, RuntimeError> {
        let request = pb::RunPodSandboxRequest {
            config: Some(to_wire::sandbox_config(config)),
            runtime_handler: handler.into(),
        };
        // The network is set up within: twice the usual time.
        let deadline = Some(self.request_timeout.saturating_mul(2));
        let answer = rpc!(self, "RunPodSandbox", run_pod_sandbox, deadline, request)?;
        non_empty("RunPodSandbox", answer.pod_sandbox_id, "an id").map(SandboxId::from)
    }

    async fn stop_pod_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        let request = pb::StopPodSandboxRequest { pod_sandbox_id: id.to_string() };
        rpc!(self, "StopPodSandbox", stop_pod_sandbox, self.default_deadline(), request).map(drop)
    }

    async fn remove_pod_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        let request = pb::RemovePodSandboxRequest { pod_sandbox_id: id.to_string() };
        rpc!(self, "RemovePodSandbox", remove_pod_sandbox, self.default_deadline(), request).map(drop)
    }

    async fn pod_sandbox_status(&self, id: &SandboxId) -> Result<SandboxStatus, RuntimeError> {
        let request = pb::PodSandboxStatusRequest { pod_sandbox_id: id.to_string(), verbose: false };
        let answer = rpc!(self, "PodSandboxStatus", pod_sandbox_status, self.default_deadline(), request)?;
        require_complete("PodSandboxStatus", from_wire::sandbox_status(answer))
    }

    async fn list_pod_sandboxes(&self, filter: &SandboxFilter) -> Result<Vec<SandboxInfo>, RuntimeError> {
        let is_of_all = is_of_all(filter.id.as_ref(), filter.pod_uid.as_ref());
        let filter = pb::PodSandboxFilter {
            id: filter.id.as_ref().map(ToString::to_string).unwrap_or_default(),
            label_selector: selector(filter.pod_uid.as_ref()),
        };
        let filter = Some(filter);
        let sandboxes = list!(
            self.runtime, self.runtime_target(), self.default_deadline(),
            "StreamPodSandboxes"
                stream_pod_sandboxes(pb::StreamPodSandboxesRequest { filter: filter.clone() }) pod_sandboxes,
            "ListPodSandbox" list_pod_sandbox(pb::ListPodSandboxRequest { filter }) items
        )?;
        Ok(self.invalid_entries.valid_entries(
            "ListPodSandbox",
            is_of_all,
            sandboxes,
            from_wire::sandbox_info,
        ))
    }

    async fn update_pod_sandbox_resources(
        &self,
        id: &SandboxId,
        overhead: Option<&LinuxResources>,
        resources: Option<&LinuxResources>,
    ) -> Result<(), RuntimeError> {
        let request = pb::UpdatePodSandboxResourcesRequest {
            pod_sandbox_id: id.to_string(),
            overhead: overhead.map(to_wire::resources),
            resources: resources.map(to_wire::resources),
        };
        rpc!(
            self,
            "UpdatePodSandboxResources",
            update_pod_sandbox_resources,
            self.default_deadline(),
            request
        )
        .map(drop)
    }

    async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: &ContainerConfig,
        sandbox_config: &SandboxConfig,
    ) -> Result<ContainerId, RuntimeError> {
        let request = pb::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_string(),
            config: Some(to_wire::container_config(config)),
            sandbox_config: Some(to_wire::sandbox_config(sandbox_config)),
        };
        let answer = rpc!(self, "CreateContainer", create_container, self.default_deadline(), request)?;
        non_empty("CreateContainer", answer.container_id, "an id").map(ContainerId::from)
    }

    async fn start_container(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let request = pb::StartContainerRequest { container_id: id.to_string() };
        rpc!(self, "StartContainer", start_container, self.default_deadline(), request).map(drop)
    }

    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<(), RuntimeError> {
        let request =
            pb::StopContainerRequest { container_id: id.to_string(), timeout: whole_seconds(grace) };
        let deadline = Some(self.request_timeout.saturating_add(grace));
        rpc!(self, "StopContainer", stop_container, deadline, request).map(drop)
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let request = pb::RemoveContainerRequest { container_id: id.to_string() };
        rpc!(self, "RemoveContainer", remove_container, self.default_deadline(), request).map(drop)
    }

    async fn list_containers(&self, filter: &ContainerFilter) -> Result<Vec<ContainerInfo>, RuntimeError> {
        let is_of_all = is_of_all(filter.id.as_ref(), filter.pod_uid.as_ref());
        let filter = pb::ContainerFilter {
            id: filter.id.as_ref().map(ToString::to_string).unwrap_or_default(),
            label_selector: selector(filter.pod_uid.as_ref()),
        };
        let filter = Some(filter);
        let containers = list!(
            self.runtime, self.runtime_target(), self.default_deadline(),
            "StreamContainers"
                stream_containers(pb::StreamContainersRequest { filter: filter.clone() }) containers,
            "ListContainers" list_containers(pb::ListContainersRequest { filter }) containers
        )?;
        Ok(self.invalid_entries.valid_entries(
            "ListContainers",
            is_of_all,
            containers,
            from_wire::container_info,
        ))
    }

    async fn container_status(&self, id: &ContainerId) -> Result<ContainerStatus, RuntimeError> {
        let request = pb::ContainerStatusRequest { container_id: id.to_string(), verbose: false };
        let answer = rpc!(self, "ContainerStatus", container_status, self.default_deadline(), request)?;
        require_complete("ContainerStatus", from_wire::container_status(answer))
    }

    async fn update_container_resources(
        &self,
        id: &ContainerId,
        resources: &LinuxResources,
    ) -> Result<(), RuntimeError> {
        let request = pb::UpdateContainerResourcesRequest {
            container_id: id.to_string(),
            linux: Some(to_wire::resources(resources)),
        };
        rpc!(self, "UpdateContainerResources", update_container_resources, self.default_deadline(), request)
            .map(drop)
    }

    async fn reopen_container_log(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let request = pb::ReopenContainerLogRequest { container_id: id.to_string() };
        rpc!(self, "ReopenContainerLog", reopen_container_log, self.default_deadline(), request).map(drop)
    }

    async fn checkpoint_container(
        &self,
        id: &ContainerId,
        location: &str,
        timeout: Duration,
    ) -> Result<(), RuntimeError> {
        // A caller may ask for more time than usual, not for less.
        let timeout = timeout.max(self.request_timeout);
        let request = pb::CheckpointContainerRequest {
            container_id: id.to_string(),
            location: location.into(),
            timeout: whole_seconds(timeout),
        };
        rpc!(self, "CheckpointContainer", checkpoint_container, Some(timeout), request).map(drop)
    }

    async fn exec_sync(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Duration,
    ) -> Result<ExecResult, RuntimeError> {
        let request = pb::ExecSyncRequest {
            container_id: id.to_string(),
            cmd: command.to_vec(),
            timeout: whole_seconds(timeout),
        };
        let deadline = (!timeout.is_zero()).then(|| self.request_timeout.saturating_add(timeout));
        match rpc!(self, "ExecSync", exec_sync, deadline, request) {
            Ok(answer) => {
                Ok(ExecResult { stdout: answer.stdout, stderr: answer.stderr, exit_code: answer.exit_code })
            }
            // What ran out is the command's time; ours only stands behind it.
            Err(RuntimeError::TimedOut { call, .. }) => Err(RuntimeError::TimedOut { call, after: timeout }),
            Err(error) => Err(error),
        }
    }

    async fn exec(
        &self,
        id: &ContainerId,
        command: &[String],
        streams: StreamFlags,
    ) -> Result<String, RuntimeError> {
        let request = pb::ExecRequest {
            container_id: id.to_string(),
            cmd: command.to_vec(),
            tty: streams.tty,
            stdin: streams.stdin,
            stdout: streams.stdout,
            stderr: streams.stderr,
        };
        let answer = rpc!(self, "Exec", exec, self.default_deadline(), request)?;
        non_empty("Exec", answer.url, "a URL")
    }

    async fn attach(&self, id: &ContainerId, streams: StreamFlags) -> Result<String, RuntimeError> {
        let request = pb::AttachRequest {
            container_id: id.to_string(),
            stdin: streams.stdin,
            tty: streams.tty,
            stdout: streams.stdout,
            stderr: streams.stderr,
        };
        let answer = rpc!(self, "Attach", attach, self.default_deadline(), request)?;
        non_empty("Attach", answer.url, "a URL")
    }

    async fn port_forward(&self, id: &SandboxId, ports: &[i32]) -> Result<String, RuntimeError> {
        let request = pb::PortForwardRequest { pod_sandbox_id: id.to_string(), port: ports.to_vec() };
        let answer = rpc!(self, "PortForward", port_forward, self.default_deadline(), request)?;
        non_empty("PortForward", answer.url, "a URL")
    }

    async fn container_stats(&self, id: &ContainerId) -> Result<ContainerStats, RuntimeError> {
        let request = pb::ContainerStatsRequest { container_id: id.to_string() };
        let answer = rpc!(self, "ContainerStats", container_stats, self.default_deadline(), request)?;
        let stats = answer.stats.ok_or_else(|| malformed("ContainerStats", "stats"))?;
        require_complete("ContainerStats", from_wire::container_stats(stats))
    }

    async fn list_container_stats(
        &self,
        filter: &ContainerFilter,
    ) -> Result<Vec<ContainerStats>, RuntimeError> {
        let is_of_all = is_of_all(filter.id.as_ref(), filter.pod_uid.as_ref());
        let filter = pb::ContainerStatsFilter {
            id: filter.id.as_ref().map(ToString::to_string).unwrap_or_default(),
            label_selector: selector(filter.pod_uid.as_ref()),
        };
        let filter = Some(filter);
        let stats = list!(
            self.runtime, self.runtime_target(), self.default_deadline(),
            "StreamContainerStats"
                stream_container_stats(pb::StreamContainerStatsRequest { filter: filter.clone() }) container_stats,
            "ListContainerStats" list_container_stats(pb::ListContainerStatsRequest { filter }) stats
        )?;
        Ok(self.invalid_entries.valid_entries(
            "ListContainerStats",
            is_of_all,
            stats,
            from_wire::container_stats,
        ))
    }

    async fn list_pod_sandbox_stats(
        &self,
        filter: &SandboxFilter,
    ) -> Result<Vec<SandboxStats>, RuntimeError> {
        let is_of_all = is_of_all(filter.id.as_ref(), filter.pod_uid.as_ref());
        let filter = Some(pb::PodSandboxStatsFilter {
            id: filter.id.as_ref().map(ToString::to_string).unwrap_or_default(),
            label_selector: selector(filter.pod_uid.as_ref()),
        });
        let stats = list!(
            self.runtime, self.runtime_target(), self.default_deadline(),
            "StreamPodSandboxStats"
                stream_pod_sandbox_stats(pb::StreamPodSandboxStatsRequest { filter: filter.clone() }) pod_sandbox_stats,
            "ListPodSandboxStats" list_pod_sandbox_stats(pb::ListPodSandboxStatsRequest { filter }) stats
        )?;
        Ok(self.invalid_entries.valid_entries(
            "ListPodSandboxStats",
            is_of_all,
            stats,
            from_wire::sandbox_stats,
        ))
    }

    async fn list_metric_descriptors(&self) -> Result<Vec<MetricDescriptor>, RuntimeError> {
        let request = pb::ListMetricDescriptorsRequest {};
        let answer =
            rpc!(self, "ListMetricDescriptors", list_metric_descriptors, self.default_deadline(), request)?;
        Ok(self.invalid_entries.valid_entries(
            "ListMetricDescriptors",
            true,
            answer.descriptors,
            from_wire::metric_descriptor,
        ))
    }

    async fn list_pod_sandbox_metrics(&self) -> Result<Vec<Metric>, RuntimeError> {
        let pods = list!(
            self.runtime, self.runtime_target(), self.default_deadline(),
            "StreamPodSandboxMetrics"
                stream_pod_sandbox_metrics(pb::StreamPodSandboxMetricsRequest {}) pod_sandbox_metrics,
            "ListPodSandboxMetrics" list_pod_sandbox_metrics(pb::ListPodSandboxMetricsRequest {}) pod_metrics
        )?;
        let of_pod = |pod: pb::PodSandboxMetrics| {
            let of_containers = pod.container_metrics.into_iter().flat_map(|one| one.metrics);
            pod.metrics.into_iter().chain(of_containers)
        };
        let metrics = pods.into_iter().flat_map(of_pod).collect();
        Ok(self.invalid_entries.valid_entries("ListPodSandboxMetrics", true, metrics, from_wire::metric))
    }
}

impl CriClient {
    fn default_deadline(&self) -> Option<Duration> {
        Some(self.request_timeout)
    }
}

/// The runtime's name becomes part of every container ID that users see, and another version another interface:
/// both are refused before anything else is asked.
fn accept_version(version: RuntimeVersion) -> Result<RuntimeVersion, RuntimeError> {
    if version.version != KUBE_API_VERSION {
        return Err(RuntimeError::Failed {
            call: "Version",
            code: model::GrpcCode::FailedPrecondition,
            message: format!(
                "runtime {:?} speaks version {:?} of the runtime API, only {KUBE_API_VERSION:?} is supported",
                version.runtime_name, version.version
            ),
        });
    }
    let parts = [
        (&version.runtime_name, "its name"),
        (&version.runtime_version, "its version"),
        (&version.runtime_api_version, "the version of its API"),
    ];
    match parts.iter().find(|(value, _)| value.is_empty()) {
        Some((_, what)) => Err(malformed("Version", what)),
        None => Ok(version),
    }
}

fn is_of_all<T>(id: Option<&T>, pod_uid: Option<&PodUid>) -> bool {
    id.is_none() && pod_uid.is_none()
}

fn selector(pod_uid: Option<&PodUid>) -> BTreeMap<String, String> {
    pod_uid.map(|uid| (POD_UID_LABEL.to_owned(), uid.to_string())).into_iter().collect()
}

/// The wire knows whole seconds only, and zero often means "forever": never less than was asked for. Runtimes
/// count on in nanoseconds, of which 64 bits hold 292 years: never more than that.
fn whole_seconds(duration: Duration) -> i64 {
    const LONGEST: u64 = i64::MAX as u64 / 1_000_000_000;
    let seconds = duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0));
    seconds.min(LONGEST) as i64
}

fn require_complete<T>(call: &'static str, value: Result<T, MissingField>) -> Result<T, RuntimeError> {
    value.map_err(|missing| malformed(call, missing.what))
}

fn non_empty(call: &'static str, value: String, what: &str) -> Result<String, RuntimeError> {
    if value.is_empty() { Err(malformed(call, what)) } else { Ok(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_never_less_than_asked() {
        let check = |millis, expect| assert_eq!(whole_seconds(Duration::from_millis(millis)), expect);
        check(0, 0);
        check(1, 1);
        check(1000, 1);
        check(1001, 2);
        assert_eq!(whole_seconds(Duration::MAX), 9_223_372_036);
    }

    #[test]
    fn only_a_whole_answer_of_our_version_is_accepted() {
        let check = |parts: [&str; 4], expect: Result<(), &str>| {
            let [version, runtime_name, runtime_version, runtime_api_version] = parts.map(String::from);
            let version = RuntimeVersion { version, runtime_name, runtime_version, runtime_api_version };
            match (accept_version(version), expect) {
                (Ok(_), Ok(())) => {}
                (Err(error), Err(text)) => assert!(error.to_string().contains(text), "{error}"),
                (got, expect) => panic!("{parts:?}: {got:?}, expected {expect:?}"),
            }
        };
        check(["0.1.0", "containerd", "1.6.20", "v1"], Ok(()));
        check(["0.2.0", "containerd", "9", "v1"], Err("speaks version \"0.2.0\""));
        check(["", "containerd", "9", "v1"], Err("speaks version \"\""));
        check(["0.1.0", "", "9", "v1"], Err("without its name"));
        check(["0.1.0", "x", "", "v1"], Err("without its version"));
        check(["0.1.0", "x", "9", ""], Err("without the version of its API"));
    }
}
