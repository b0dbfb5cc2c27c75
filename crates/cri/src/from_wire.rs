//! What we are told: CRI messages as the model's and the ports' values. A runtime is free to send anything: an
//! answer without what the interface demands is refused by name (`Err` says what is missing), an unknown number
//! takes the meaning that does least, and nothing panics.

use std::fmt;

use model::cri as m;
use model::observed::{ContainerState, ObservedUser};
use model::text_limits::{TextLimit, truncate_text};
use ports::{ContainerInfo, ContainerStatus, SandboxInfo, SandboxStatus};

use crate::pb;

/// No RuntimeClass can name a handler with a longer name: it is a DNS label.
const LONGEST_HANDLER_NAME: usize = 63;
/// All handlers are shown in the Node's status.
const MAX_HANDLERS: usize = 256;

/// The part that an answer lacks.
#[derive(Debug)]
pub(crate) struct MissingField {
    pub what: &'static str,
    /// The id or name of the object that lacks it, as far as the answer tells it.
    pub of: String,
}

impl From<&'static str> for MissingField {
    fn from(what: &'static str) -> Self {
        Self { what, of: String::new() }
    }
}

impl fmt::Display for MissingField {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.of.as_str() {
            "" => write!(to, "an entry lacks {}", self.what),
            of => write!(to, "{of:?} lacks {}", self.what),
        }
    }
}

fn required(value: String, what: &'static str) -> Result<String, MissingField> {
    if value.is_empty() { Err(what.into()) } else { Ok(value) }
}

/// The same for a part of an entry that is identified by `of` without it.
fn required_of(value: String, what: &'static str, of: &str) -> Result<String, MissingField> {
    if value.is_empty() { Err(MissingField { what, of: of.to_owned() }) } else { Ok(value) }
}

/// An unknown sandbox state is not known to be ready.
fn is_ready(state: i32) -> bool {
    state == pb::PodSandboxState::SandboxReady as i32
}

fn container_state(state: i32) -> ContainerState {
    match pb::ContainerState::try_from(state) {
        Ok(pb::ContainerState::ContainerCreated) => ContainerState::Created,
        Ok(pb::ContainerState::ContainerRunning) => ContainerState::Running,
        Ok(pb::ContainerState::ContainerExited) => ContainerState::Exited,
        Ok(pb::ContainerState::ContainerUnknown) | Err(_) => ContainerState::Unknown,
    }
}

pub(crate) fn version(v: pb::VersionResponse) -> m::RuntimeVersion {
    m::RuntimeVersion {
        version: truncate_text(v.version, TextLimit::Name),
        runtime_name: truncate_text(v.runtime_name, TextLimit::Name),
        runtime_version: truncate_text(v.runtime_version, TextLimit::Name),
        runtime_api_version: truncate_text(v.runtime_api_version, TextLimit::Name),
    }
}

pub(crate) fn status(answer: pb::StatusResponse) -> Result<m::RuntimeStatus, MissingField> {
    let status = answer.status.ok_or("status")?;
    Ok(m::RuntimeStatus {
        conditions: status
            .conditions
            .into_iter()
            .map(|c| m::RuntimeCondition {
                r#type: truncate_text(c.r#type, TextLimit::Name),
                status: c.status,
                reason: truncate_text(c.reason, TextLimit::Name),
                message: truncate_text(c.message, TextLimit::RuntimeMessage),
            })
            .collect(),
        handlers: answer
            .runtime_handlers
            .into_iter()
            .filter(|h| h.name.len() <= LONGEST_HANDLER_NAME)
            .take(MAX_HANDLERS)
            .map(|h| {
                let features = h.features.unwrap_or_default();
                m::RuntimeHandler {
                    name: h.name,
                    recursive_read_only_mounts: features.recursive_read_only_mounts,
                    user_namespaces: features.user_namespaces,
                }
            })
            .collect(),
        supplemental_groups_policy: answer.features.is_some_and(|f| f.supplemental_groups_policy),
        user_namespaces_host_network: answer.features.is_some_and(|f| f.user_namespaces_host_network),
    })
}

pub(crate) fn sandbox_info(s: pb::PodSandbox) -> Result<SandboxInfo, MissingField> {
    let Some(metadata) = s.metadata else {
        return Err(MissingField { what: "metadata of a sandbox", of: s.id });
    };
    Ok(SandboxInfo {
        id: required_of(s.id, "the id of a sandbox", &metadata.name)?.into(),
        name: metadata.name,
        namespace: metadata.namespace,
        uid: metadata.uid.into(),
        attempt: metadata.attempt,
        ready: is_ready(s.state),
        created_at: s.created_at,
        labels: s.labels,
        annotations: s.annotations,
        runtime_handler: s.runtime_handler,
    })
}

pub(crate) fn sandbox_status(answer: pb::PodSandboxStatusResponse) -> Result<SandboxStatus, MissingField> {
    let s = answer.status.ok_or("status")?;
    let metadata = s.metadata.ok_or("metadata")?;
    if s.created_at == 0 {
        return Err("time of creation".into());
    }
    let has_network = s.network.is_some();
    Ok(SandboxStatus {
        info: SandboxInfo {
            id: required(s.id, "id")?.into(),
            name: required(metadata.name, "pod name")?,
            namespace: required(metadata.namespace, "pod namespace")?,
            uid: required(metadata.uid, "pod uid")?.into(),
            attempt: metadata.attempt,
            ready: is_ready(s.state),
            created_at: s.created_at,
            labels: s.labels,
            annotations: s.annotations,
            runtime_handler: s.runtime_handler,
        },
        has_network,
        ips: s.network.map(ips).unwrap_or_default(),
        namespaces: s
            .linux
            .and_then(|l| l.namespaces)
            .and_then(|n| n.options)
            .map(namespace_options)
            .unwrap_or_default(),
    })
}

/// Without a first address there is none: further ones alone would be taken for it.
fn ips(network: pb::PodSandboxNetworkStatus) -> Vec<String> {
    if network.ip.is_empty() {
        return Vec::new();
    }
    let additional = network.additional_ips.into_iter().map(|a| a.ip).filter(|ip| !ip.is_empty());
    std::iter::once(network.ip).chain(additional).collect()
}

fn namespace_options(n: pb::NamespaceOption) -> m::NamespaceOptions {
    let mode = |number| m::NamespaceMode::from_number(number).unwrap_or_default();
    m::NamespaceOptions {
        network: mode(n.network),
        pid: mode(n.pid),
        ipc: mode(n.ipc),
        target_id: n.target_id,
        userns_options: n.userns_options.map(|u| m::UserNamespace {
            mode: mode(u.mode),
            uids: u.uids.into_iter().map(id_mapping).collect(),
            gids: u.gids.into_iter().map(id_mapping).collect(),
        }),
    }
}

fn id_mapping(i: pb::IdMapping) -> m::IdMapping {
    m::IdMapping { host_id: i.host_id, container_id: i.container_id, length: i.length }
}

pub(crate) fn container_info(c: pb::Container) -> Result<ContainerInfo, MissingField> {
    let Some(metadata) = c.metadata else {
        return Err(MissingField { what: "metadata of a container", of: c.id });
    };
    Ok(ContainerInfo {
        id: required_of(c.id, "the id of a container", &metadata.name)?.into(),
        sandbox_id: c.pod_sandbox_id.into(),
        name: metadata.name,
        attempt: metadata.attempt,
        state: container_state(c.state),
        created_at: c.created_at,
        image: c.image.map(|i| i.image).unwrap_or_default(),
        image_ref: c.image_ref,
        image_id: c.image_id,
        labels: c.labels,
        annotations: c.annotations,
    })
}

pub(crate) fn container_status(answer: pb::ContainerStatusResponse) -> Result<ContainerStatus, MissingField> {
    let s = answer.status.ok_or("status")?;
    let metadata = s.metadata.ok_or("metadata")?;
    if s.created_at == 0 {
        return Err("time of creation".into());
    }
    Ok(ContainerStatus {
        id: required(s.id, "id")?.into(),
        name: required(metadata.name, "container name")?,
        attempt: metadata.attempt,
        state: container_state(s.state),
        created_at: s.created_at,
        started_at: s.started_at,
        finished_at: s.finished_at,
        exit_code: s.exit_code,
        image: required(s.image.map(|i| i.image).unwrap_or_default(), "image")?,
        image_ref: required(s.image_ref, "image reference")?,
        image_id: s.image_id,
        reason: truncate_text(s.reason, TextLimit::RuntimeMessage),
        message: truncate_text(s.message, TextLimit::RuntimeMessage),
        labels: s.labels,
        annotations: s.annotations,
        mounts: s.mounts.into_iter().map(mount).collect(),
        log_path: s.log_path,
        resources: s.resources.and_then(|r| r.linux).map(resources),
        user: s.user.and_then(|u| u.linux).map(|u| ObservedUser {
            uid: u.uid,
            gid: u.gid,
            supplemental_groups: u.supplemental_groups,
        }),
        stop_signal: s.stop_signal,
    })
}

fn mount(x: pb::Mount) -> m::Mount {
    m::Mount {
        container_path: x.container_path,
        host_path: x.host_path,
        readonly: x.readonly,
        selinux_relabel: x.selinux_relabel,
        propagation: m::MountPropagation::from_number(x.propagation).unwrap_or_default(),
        uid_mappings: x.uid_mappings.into_iter().map(id_mapping).collect(),
        gid_mappings: x.gid_mappings.into_iter().map(id_mapping).collect(),
        recursive_read_only: x.recursive_read_only,
        image: x.image.map(image_spec),
        image_sub_path: x.image_sub_path,
    }
}

fn resources(r: pb::LinuxContainerResources) -> m::LinuxResources {
    m::LinuxResources {
        cpu_period: r.cpu_period,
        cpu_quota: r.cpu_quota,
        cpu_shares: r.cpu_shares,
        memory_limit_in_bytes: r.memory_limit_in_bytes,
        oom_score_adj: r.oom_score_adj,
        cpuset_cpus: r.cpuset_cpus,
        cpuset_mems: r.cpuset_mems,
        hugepage_limits: r
            .hugepage_limits
            .into_iter()
            .map(|h| m::HugepageLimit { page_size: h.page_size, limit: h.limit })
            .collect(),
        unified: r.unified,
        memory_swap_limit_in_bytes: r.memory_swap_limit_in_bytes,
    }
}

fn image_spec(i: pb::ImageSpec) -> m::ImageSpec {
    m::ImageSpec {
        image: i.image,
        annotations: i.annotations,
        user_specified_image: i.user_specified_image,
        runtime_handler: i.runtime_handler,
    }
}

pub(crate) fn image(i: pb::Image) -> Result<m::Image, MissingField> {
    Ok(m::Image {
        id: required_of(i.id, "the id of an image", i.repo_tags.first().map_or("", String::as_str))?,
        repo_tags: i.repo_tags,
        repo_digests: i.repo_digests,
        size: i.size,
        uid: i.uid.map(|u| m::Int64Value { value: u.value }),
        username: i.username,
        pinned: i.pinned,
        spec: i.spec.map(image_spec),
    })
}

pub(crate) fn filesystem(f: pb::FilesystemUsage) -> m::FilesystemUsage {
    m::FilesystemUsage {
        timestamp: f.timestamp,
        mountpoint: f.fs_id.map(|id| id.mountpoint).unwrap_or_default(),
        used_bytes: number(f.used_bytes).unwrap_or_default(),
        inodes_used: number(f.inodes_used).unwrap_or_default(),
    }
}

fn number(value: Option<pb::UInt64Value>) -> Option<u64> {
    value.map(|v| v.value)
}

fn pressure(psi: Option<pb::PsiStats>) -> Option<m::Pressure> {
    let stall = |data: Option<pb::PsiData>| {
        let data = data.unwrap_or_default();
        m::PressureStall { total: data.total, avg10: data.avg10, avg60: data.avg60, avg300: data.avg300 }
    };
    psi.map(|psi| m::Pressure { some: stall(psi.some), full: stall(psi.full) })
}

fn resource_usage(
    cpu: Option<pb::CpuUsage>,
    memory: Option<pb::MemoryUsage>,
    swap: Option<pb::SwapUsage>,
    io: Option<pb::IoUsage>,
) -> m::ResourceUsage {
    let (cpu, memory) = (cpu.unwrap_or_default(), memory.unwrap_or_default());
    let swap = swap.unwrap_or_default();
    m::ResourceUsage {
        timestamp: if cpu.timestamp != 0 { cpu.timestamp } else { memory.timestamp },
        cpu_usage_core_nano_seconds: number(cpu.usage_core_nano_seconds),
        cpu_usage_nano_cores: number(cpu.usage_nano_cores),
        cpu_pressure: pressure(cpu.psi),
        memory_working_set_bytes: number(memory.working_set_bytes),
        memory_available_bytes: number(memory.available_bytes),
        memory_usage_bytes: number(memory.usage_bytes),
        memory_rss_bytes: number(memory.rss_bytes),
        memory_page_faults: number(memory.page_faults),
        memory_major_page_faults: number(memory.major_page_faults),
        memory_pressure: pressure(memory.psi),
        swap_available_bytes: number(swap.swap_available_bytes),
        swap_usage_bytes: number(swap.swap_usage_bytes),
        io_pressure: pressure(io.and_then(|io| io.psi)),
    }
}

pub(crate) fn container_stats(s: pb::ContainerStats) -> Result<m::ContainerStats, MissingField> {
    let attributes = s.attributes.ok_or("attributes of stats")?;
    let metadata = attributes.metadata.unwrap_or_default();
    Ok(m::ContainerStats {
        id: required_of(attributes.id, "the id of a container", &metadata.name)?,
        name: metadata.name,
        attempt: metadata.attempt,
        labels: attributes.labels,
        annotations: attributes.annotations,
        usage: resource_usage(s.cpu, s.memory, s.swap, s.io),
        writable_layer: s.writable_layer.map(filesystem),
    })
}

fn interface_stats(i: pb::NetworkInterfaceUsage) -> m::InterfaceStats {
    m::InterfaceStats {
        name: i.name,
        rx_bytes: number(i.rx_bytes),
        rx_errors: number(i.rx_errors),
        tx_bytes: number(i.tx_bytes),
        tx_errors: number(i.tx_errors),
    }
}

/// A container without attributes is left out, and the sandbox keeps the others.
pub(crate) fn sandbox_stats(s: pb::PodSandboxStats) -> Result<m::SandboxStats, MissingField> {
    let attributes = s.attributes.ok_or("attributes of stats")?;
    let Some(linux) = s.linux else {
        return Err(MissingField { what: "stats of Linux", of: attributes.id });
    };
    let network = linux.network.unwrap_or_default();
    Ok(m::SandboxStats {
        id: required(attributes.id, "the id of a sandbox")?,
        usage: resource_usage(linux.cpu, linux.memory, None, linux.io),
        default_interface: network.default_interface.map(interface_stats),
        interfaces: network.interfaces.into_iter().map(interface_stats).collect(),
        process_count: linux.process.and_then(|process| number(process.process_count)),
        containers: linux.containers.into_iter().filter_map(|one| container_stats(one).ok()).collect(),
    })
}

pub(crate) fn metric_descriptor(d: pb::MetricDescriptor) -> Result<m::MetricDescriptor, MissingField> {
    let name = required(d.name, "the name of a metric")?;
    Ok(m::MetricDescriptor { name, help: d.help, label_keys: d.label_keys })
}

pub(crate) fn metric(x: pb::Metric) -> Result<m::Metric, MissingField> {
    let name = required(x.name, "the name of a metric")?;
    let Some(value) = number(x.value) else {
        return Err(MissingField { what: "the value of a metric", of: name });
    };
    let is_gauge = x.metric_type == pb::MetricType::Gauge as i32;
    Ok(m::Metric { name, timestamp: x.timestamp, is_gauge, label_values: x.label_values, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_about_the_runtime_itself_are_cut() {
        let long = || "x".repeat(10 << 20);
        let answer = pb::StatusResponse {
            status: Some(pb::RuntimeStatus {
                conditions: vec![
                    pb::RuntimeCondition {
                        r#type: "RuntimeReady".into(),
                        status: false,
                        reason: long(),
                        message: long(),
                    },
                    pb::RuntimeCondition { r#type: long(), ..Default::default() },
                ],
            }),
            runtime_handlers: [long(), "runc".into(), String::new()]
                .map(|name| pb::RuntimeHandler { name, features: None })
                .into(),
            ..Default::default()
        };
        let status = status(answer).unwrap();
        let lengths: Vec<_> =
            status.conditions.iter().map(|c| (c.r#type.len(), c.reason.len(), c.message.len())).collect();
        let (name, message) = (TextLimit::Name.bytes(), TextLimit::RuntimeMessage.bytes());
        assert_eq!(status.conditions[0].r#type, "RuntimeReady");
        assert!(lengths.iter().all(|l| l.0 <= name && l.1 <= name && l.2 <= message), "{lengths:?}");
        let handlers: Vec<_> = status.handlers.iter().map(|handler| handler.name.as_str()).collect();
        assert_eq!(handlers, ["runc", ""]);

        let version = version(pb::VersionResponse {
            version: long(),
            runtime_name: long(),
            runtime_version: long(),
            runtime_api_version: long(),
        });
        for text in
            [version.version, version.runtime_name, version.runtime_version, version.runtime_api_version]
        {
            assert!(text.len() <= name, "{}", text.len());
        }
    }
}
