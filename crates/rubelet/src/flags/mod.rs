//! The command line: the kubelet's flags, with the kubelet's grammar.
//!
//! [`table`] says which flags there are, what their values look like and where they go; [`parse`] reads
//! arguments by it, with the rules of the Go library that the kubelet uses: `--name=value`,
//! `--name value`, a bare `--name` for switches, `-v 2`, `-v=2` and `-v2`; `_` and `-` are the same in names.
//! What comes out is either a short answer (help, version, a sub-command) or the agent's [`Flags`].

mod error;
mod field_flags;
mod flag;
mod help;
mod kind;
mod lists;
mod node;
mod parse;
mod suggest;
pub mod table;
mod version;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

pub use error::FlagError;
pub use help::help;
pub use parse::{Invocation, parse};
pub use version::{KUBERNETES_VERSION, RUBELET_VERSION, VersionRequest};

use crate::config::{GoDuration, KubeletConfiguration, Override, Sources};

/// What the command line says, apart from configuration fields, which are in `overrides`.
#[derive(Clone, Debug, PartialEq)]
pub struct Flags {
    pub config: Option<PathBuf>,
    pub config_dir: Option<PathBuf>,
    pub root_dir: PathBuf,
    pub cert_dir: PathBuf,
    pub lock_file: Option<PathBuf>,
    pub exit_on_lock_contention: bool,

    /// Absent in standalone mode.
    pub kubeconfig: Option<PathBuf>,
    pub bootstrap_kubeconfig: Option<PathBuf>,
    pub hostname_override: Option<String>,
    /// None, one, or one per IP family. `0.0.0.0` and `::` ask for the host's address of that family.
    pub node_ips: Vec<IpAddr>,
    pub node_labels: BTreeMap<String, String>,
    pub cloud_provider: String,

    pub runtime_cgroups: Option<String>,
    pub image_credential_provider_config: Option<PathBuf>,
    pub image_credential_provider_bin_dir: Option<PathBuf>,
    pub seccomp_default: bool,
    pub minimum_container_ttl_duration: GoDuration,
    pub maximum_dead_containers_per_container: i32,
    pub maximum_dead_containers: i32,
    pub experimental_mounter_path: Option<PathBuf>,
    pub experimental_allocatable_ignore_eviction: bool,
    pub housekeeping_interval: GoDuration,
    /// The first of them that says something counts.
    pub boot_id_files: Vec<String>,
    pub machine_id_files: Vec<String>,
    /// A version to report instead of [`KUBERNETES_VERSION`].
    pub reported_version: Option<String>,

    /// Configuration fields that the command line sets.
    pub overrides: Vec<Override>,
    /// One line for every flag that is deprecated or has no effect yet, and for odd values.
    pub warnings: Vec<String>,
}

impl Flags {
    /// Where [`crate::config::load`] finds the configuration.
    pub fn sources(&self) -> Sources<'_> {
        Sources {
            file: self.config.as_deref(),
            drop_ins: self.config_dir.as_deref(),
            overrides: &self.overrides,
        }
    }

    /// Whether containers without a seccomp profile get the runtime's: flag and file, either suffices.
    pub fn effective_seccomp_default(&self, config: &KubeletConfiguration) -> bool {
        self.seccomp_default || config.seccomp_default
    }
}
