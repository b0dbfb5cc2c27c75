//! The node: what was configured, and what was found on the host. Read by decisions, changed by nobody in them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::allocatable::AllocatableConfig;
use crate::cgroup::CgroupDriver;
use crate::credentials::{CredentialPlugin, VerificationPolicy};
use crate::eviction::EvictionConfig;
use crate::image_garbage::ImageGarbageConfig;
use crate::log_rotation::LogRotationConfig;
pub use crate::node_object_config::{CapacityRules, NodeObjectConfig, ThresholdValue};
use crate::user_namespace::{DEFAULT_IDS_PER_POD, IdRange};

/// The part of the configuration that decisions depend on.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NodeConfig {
    pub node_name: String,
    /// `--root-dir`, absolute.
    pub root_dir: String,
    pub pod_logs_dir: String,
    /// `/var/log/containers`, or where a test wants it.
    pub container_links_dir: String,
    pub cluster_dns: Vec<String>,
    pub cluster_domain: String,
    /// Empty: the host's resolver configuration is not used.
    pub resolv_conf: String,
    pub cgroups_per_qos: bool,
    pub cgroup_driver: CgroupDriver,
    /// Parts of `cgroupRoot`.
    pub cgroup_root: Vec<String>,
    /// How what is reserved is enforced.
    #[serde(default)]
    pub allocatable: AllocatableConfig,
    pub cpu_cfs_quota: bool,
    pub cpu_cfs_quota_period: Duration,
    pub pod_pids_limit: i64,
    pub seccomp_default: bool,
    pub single_process_oom_kill: bool,
    pub allowed_unsafe_sysctls: Vec<String>,
    /// What the node is in a cluster; alone it is the same node, seen by nobody.
    #[serde(default)]
    pub node_object: NodeObjectConfig,
    pub crash_back_off_initial: Duration,
    pub crash_back_off_max: Duration,
    pub serialize_image_pulls: bool,
    pub max_parallel_image_pulls: Option<u32>,
    /// Pulls per second, on average. Zero: no limit.
    pub registry_pull_qps: u32,
    /// Pulls that may begin at once after a quiet time.
    pub registry_burst: u32,
    /// Programs that are asked for credentials of registries, in the order of their configuration.
    pub credential_plugins: Vec<CredentialPlugin>,
    /// `None`: pulls are not recorded, and who may use an image is not asked.
    pub pull_verification: Option<VerificationPolicy>,
    /// `None`: logs of containers are not rotated.
    #[serde(default)]
    pub log_rotation: Option<LogRotationConfig>,
    /// Eviction for the sake of the node.
    #[serde(default)]
    pub eviction: EvictionConfig,
    /// `None`: no image is ever removed.
    #[serde(default)]
    pub image_garbage: Option<ImageGarbageConfig>,
    pub max_dead_containers_per_container: i32,
    /// -1: no limit.
    pub max_dead_containers: i32,
    pub min_container_ttl: Duration,
    /// How often everything is listed again without a notification of a change.
    pub full_relist_period: Duration,
    pub sync_frequency: Duration,
    pub features: BTreeMap<String, bool>,
    /// How many of the host's ids a pod with users of its own gets.
    pub ids_per_pod: u32,
    /// Where those come from.
    pub user_ids: IdRange,
    /// Sources that exist; each must have delivered once before anything unknown is removed.
    pub sources: Vec<crate::pod::Source>,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            node_name: "node".into(),
            root_dir: "/var/lib/kubelet".into(),
            pod_logs_dir: "/var/log/pods".into(),
            container_links_dir: "/var/log/containers".into(),
            cluster_dns: Vec::new(),
            cluster_domain: String::new(),
            resolv_conf: "/etc/resolv.conf".into(),
            cgroups_per_qos: true,
            cgroup_driver: CgroupDriver::Cgroupfs,
            cgroup_root: Vec::new(),
            allocatable: AllocatableConfig::default(),
            cpu_cfs_quota: true,
            cpu_cfs_quota_period: Duration::from_millis(100),
            pod_pids_limit: -1,
            seccomp_default: false,
            single_process_oom_kill: false,
            allowed_unsafe_sysctls: Vec::new(),
            node_object: NodeObjectConfig::default(),
            crash_back_off_initial: Duration::from_secs(10),
            crash_back_off_max: Duration::from_secs(300),
            serialize_image_pulls: true,
            max_parallel_image_pulls: None,
            registry_pull_qps: 5,
            registry_burst: 10,
            credential_plugins: Vec::new(),
            pull_verification: Some(VerificationPolicy::default()),
            log_rotation: None,
            eviction: EvictionConfig::default(),
            image_garbage: None,
            max_dead_containers_per_container: 1,
            max_dead_containers: -1,
            min_container_ttl: Duration::ZERO,
            full_relist_period: Duration::from_secs(60),
            sync_frequency: Duration::from_secs(60),
            features: BTreeMap::new(),
            ids_per_pod: DEFAULT_IDS_PER_POD,
            user_ids: IdRange {
                first: DEFAULT_IDS_PER_POD.into(),
                count: (1 << 32) - u64::from(DEFAULT_IDS_PER_POD),
            },
            sources: Vec::new(),
        }
    }
}

impl NodeConfig {
    pub fn pod_dir(&self, uid: &crate::PodUid) -> String {
        format!("{}/pods/{uid}", self.root_dir)
    }
    /// Whether a feature gate is on. What is not configured is off.
    pub fn feature(&self, name: &str) -> bool {
        self.features.get(name).copied().unwrap_or(false)
    }
    /// `<podLogsDir>/<ns>_<name>_<uid>`
    pub fn pod_log_dir(&self, full_name: &crate::FullName, uid: &crate::PodUid) -> String {
        format!("{}/{}_{}_{uid}", self.pod_logs_dir, full_name.namespace, full_name.name)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CgroupVersion {
    V1,
    V2,
}

/// What was found on the host. Gathered by an adapter, refreshed when it changes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct HostFacts {
    pub memory_bytes: u64,
    pub swap_bytes: u64,
    pub cpus: u32,
    /// By their numbers. Empty: the host does not say.
    pub online_cpus: BTreeSet<u32>,
    pub cgroup_version: CgroupVersion,
    /// Whether the kernel's swap accounting is there (decides the swap fields sent to the runtime).
    pub swap_controller: bool,
    /// How many processes and threads the kernel allows. `None`: it does not say.
    #[serde(default)]
    pub pid_limit: Option<u64>,
    /// Of the kernel's memory, in bytes. Zero: not known.
    #[serde(default)]
    pub page_size: u64,
    /// Page size names in the order that they are sent (`2MB`, `1GB`).
    pub hugepage_sizes: Vec<String>,
    /// `/sys/devices/system/cpu/cpuN/thermal_throttle` directories that exist.
    pub thermal_throttle_paths: Vec<String>,
    /// Addresses of the node, primary first.
    pub node_ips: Vec<String>,
    pub kernel_release: String,
    /// Text of the configured resolver file.
    pub resolv_conf: String,
    /// Text of the node's `/etc/hosts`.
    pub etc_hosts: String,
    pub apparmor_enabled: bool,
    pub selinux_enabled: bool,
    /// With which files of containers are labelled unless somebody says otherwise. Empty: not known.
    #[serde(default)]
    pub selinux_file_label: String,
    pub boot_id: String,
    pub machine_id: String,
    /// What the host's administrator set aside for the user `kubelet`.
    pub subordinate_ids: Option<IdRange>,
    #[serde(default)]
    pub system_uuid: String,
    /// `PRETTY_NAME` of the operating system.
    #[serde(default)]
    pub os_image: String,
    /// As Go spells it: `amd64`.
    #[serde(default)]
    pub architecture: String,
    /// Size of the filesystem that holds the root directory. Zero: not known.
    #[serde(default)]
    pub root_fs_bytes: u64,
    /// Reserved bytes by page size in bytes.
    #[serde(default)]
    pub huge_pages: BTreeMap<u64, u64>,
    #[serde(default)]
    pub addresses: HostAddresses,
}

/// Where an address of the node can come from. Loopback, link-local and the like are left out everywhere.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct HostAddresses {
    /// What the interfaces have.
    pub local: Vec<IpAddr>,
    /// What the node's name resolves to, in the resolver's order.
    pub named: Vec<IpAddr>,
    /// Where the default routes leave from, IPv4 first.
    pub routed: Vec<IpAddr>,
}

impl Default for HostFacts {
    fn default() -> Self {
        Self {
            memory_bytes: 0,
            swap_bytes: 0,
            cpus: 1,
            online_cpus: BTreeSet::new(),
            cgroup_version: CgroupVersion::V2,
            swap_controller: false,
            pid_limit: None,
            page_size: 4096,
            hugepage_sizes: Vec::new(),
            thermal_throttle_paths: Vec::new(),
            node_ips: Vec::new(),
            kernel_release: String::new(),
            resolv_conf: String::new(),
            etc_hosts: String::new(),
            apparmor_enabled: false,
            selinux_enabled: false,
            selinux_file_label: String::new(),
            boot_id: String::new(),
            machine_id: String::new(),
            subordinate_ids: None,
            system_uuid: String::new(),
            os_image: String::new(),
            architecture: String::new(),
            root_fs_bytes: 0,
            huge_pages: BTreeMap::new(),
            addresses: HostAddresses::default(),
        }
    }
}
