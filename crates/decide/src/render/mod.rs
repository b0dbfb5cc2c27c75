//! What a container sees, as the values that a CRI runtime is given.
//!
//! Pods come in defaulted; everything else that counts (addresses, the image's user, API objects) is an input. The
//! same inputs always give the same bytes.

mod annotations;
mod container;
pub mod dns;
pub mod env;
mod error;
pub mod expansion;
pub mod fields;
mod hash;
pub mod hostname;
pub mod hosts_file;
mod linux;
mod memory;
pub mod mounts;
pub mod namespaces;
pub mod ports;
#[cfg(test)]
pub(crate) mod sample;
mod sandbox;
pub mod security;
pub mod services;
pub mod sysctls;

use std::collections::BTreeMap;

use model::cri::{ContainerConfig, IdMapping, ImageSpec};
use model::files::ContainerFiles;
use model::node::{HostFacts, NodeConfig};
use model::pod::{ContainerKind, PodView};
use model::{ApiEvent, ContainerId, k8s};

use crate::pod_volumes::VolumePaths;

pub use container::{container_config, log_path};
pub(crate) use dns::resolv_conf_problem;
pub use env::{EnvObjects, EnvSources, ObjectError, Services};
pub use error::RenderError;
pub use hash::{container_hash, termination_log_name};
pub use linux::container_resources;
pub use sandbox::sandbox_config;
pub use services::{ServicePort, ServiceView};

/// The node, and what others found out about the pod.
#[derive(Clone, Copy, Debug)]
pub struct RenderContext<'a> {
    pub config: &'a NodeConfig,
    pub facts: &'a HostFacts,
    /// The ids reserved for the pod, when it has a user namespace of its own.
    pub user_namespace: Option<&'a IdMapping>,
    /// Groups that give access to the pod's persistent volumes.
    pub volume_groups: &'a [i64],
}

impl<'a> RenderContext<'a> {
    pub fn new(config: &'a NodeConfig, facts: &'a HostFacts) -> Self {
        Self { config, facts, user_namespace: None, volume_groups: &[] }
    }
}

/// A rendered value and the Events about it.
#[derive(Clone, PartialEq, Debug)]
pub struct Rendered<T> {
    pub value: T,
    /// Events about the pod.
    pub warnings: Vec<ApiEvent>,
    /// Events about the node.
    pub node_warnings: Vec<ApiEvent>,
}

/// A container of a pod with the list it stands in.
#[derive(Clone, Debug)]
pub struct ContainerRef<'a> {
    pub kind: ContainerKind,
    pub container: &'a k8s::Container,
}

impl<'a> ContainerRef<'a> {
    pub fn new(kind: ContainerKind, container: &'a k8s::Container) -> Self {
        Self { kind, container }
    }

    /// Finds a container of any kind by its name.
    pub fn find(pod: &'a PodView, name: &str) -> Option<Self> {
        pod.container(name).map(|(kind, container)| Self::new(kind, container))
    }
}

/// An image that is on the node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ResolvedImage {
    /// What the runtime knows it by.
    pub reference: String,
    /// The user that the image asks for: a number, or a name. Neither means root.
    pub user_uid: Option<i64>,
    pub username: String,
}

/// What one instance of a container is made with besides its spec.
#[derive(Clone, Copy, Debug)]
pub struct ContainerInputs<'a> {
    /// Addresses of the sandbox in the order of the pod's status. For a pod on the host's network they don't count:
    /// its addresses are the node's.
    pub sandbox_ips: &'a [String],
    pub image: &'a ResolvedImage,
    pub restart_count: u32,
    /// The container whose processes an ephemeral container shares.
    pub target: Option<&'a ContainerId>,
    pub env: EnvSources<'a>,
    /// Images to mount, by volume name.
    pub image_volumes: Option<&'a BTreeMap<String, ImageSpec>>,
    /// Where the pod's claims are.
    pub volume_paths: Option<&'a VolumePaths>,
    /// Whether the runtime's handler can make mounts read-only all the way down.
    pub recursive_read_only: bool,
}

impl<'a> ContainerInputs<'a> {
    /// The inputs of a node without an API server.
    pub fn new(sandbox_ips: &'a [String], image: &'a ResolvedImage, restart_count: u32) -> Self {
        Self {
            sandbox_ips,
            image,
            restart_count,
            target: None,
            env: EnvSources::default(),
            image_volumes: None,
            volume_paths: None,
            recursive_read_only: false,
        }
    }
}

/// A container's configuration, and what has to be on disk before it is used.
#[derive(Clone, PartialEq, Debug)]
pub struct RenderedContainer {
    pub config: ContainerConfig,
    pub files: ContainerFiles,
}

/// The addresses that a pod is reached by.
fn pod_ips<'a>(ctx: &RenderContext<'a>, pod: &PodView, sandbox_ips: &'a [String]) -> &'a [String] {
    if pod.host_network() { &ctx.facts.node_ips } else { sandbox_ips }
}
