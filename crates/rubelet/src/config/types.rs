//! `KubeletConfiguration` of `kubelet.config.k8s.io/v1beta1`, with every field resolved to a value.
//!
//! Field names, and which fields are written when they are zero, follow the published schema, so that
//! this type's JSON is also the answer of `/configz`. Reading it does *not* apply defaults: absent fields
//! become zero. [`super::defaults`] fills a document before it is read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::duration::GoDuration;
use super::parts::{
    Authentication, Authorization, CrashLoopBackOff, Logging, MemoryReservation, MemorySwap,
    ShutdownGracePeriodByPodPriority, Taint, Tracing, UserNamespaces, is_zero,
};

pub const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
pub const KIND: &str = "KubeletConfiguration";

/// Everything that `--config`, `--config-dir` and the flags together say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeletConfiguration {
    #[serde(default = "api_version")]
    pub api_version: String,
    #[serde(default = "kind")]
    pub kind: String,

    // The server and static pods
    #[serde(default)]
    pub enable_server: bool,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub static_pod_path: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pod_logs_dir: String,
    #[serde(default)]
    pub sync_frequency: GoDuration,
    #[serde(default)]
    pub file_check_frequency: GoDuration,
    #[serde(default)]
    pub http_check_frequency: GoDuration,
    #[serde(rename = "staticPodURL", default, skip_serializing_if = "is_zero")]
    pub static_pod_url: String,
    #[serde(rename = "staticPodURLHeader", default, skip_serializing_if = "is_zero")]
    pub static_pod_url_header: BTreeMap<String, Vec<String>>,

    // Where and how the HTTPS API is served
    #[serde(default, skip_serializing_if = "is_zero")]
    pub address: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub port: i32,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub read_only_port: i32,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tls_cert_file: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tls_private_key_file: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tls_cipher_suites: Vec<String>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tls_curve_preferences: Vec<i32>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tls_min_version: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rotate_certificates: bool,
    #[serde(rename = "serverTLSBootstrap", default, skip_serializing_if = "is_zero")]
    pub server_tls_bootstrap: bool,

    // Who may use it
    #[serde(default)]
    pub authentication: Authentication,
    #[serde(default)]
    pub authorization: Authorization,

    // Image pulls
    #[serde(rename = "registryPullQPS", default)]
    pub registry_pull_qps: i32,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub registry_burst: i32,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub image_pull_credentials_verification_policy: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub preloaded_images_verification_allowlist: Vec<String>,

    // Events
    #[serde(rename = "eventRecordQPS", default)]
    pub event_record_qps: i32,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub event_burst: i32,

    // Debugging and health
    #[serde(default)]
    pub enable_debugging_handlers: bool,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub enable_contention_profiling: bool,
    #[serde(default)]
    pub healthz_port: i32,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub healthz_bind_address: String,
    #[serde(default)]
    pub oom_score_adj: i32,

    // Cluster DNS and streaming
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cluster_domain: String,
    #[serde(rename = "clusterDNS", default, skip_serializing_if = "is_zero")]
    pub cluster_dns: Vec<String>,
    #[serde(default)]
    pub streaming_connection_idle_timeout: GoDuration,

    // Heartbeats
    #[serde(default)]
    pub node_status_update_frequency: GoDuration,
    #[serde(default)]
    pub node_status_report_frequency: GoDuration,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub node_lease_duration_seconds: i32,

    // Image garbage, volume statistics
    #[serde(rename = "imageMinimumGCAge", default)]
    pub image_minimum_gc_age: GoDuration,
    #[serde(rename = "imageMaximumGCAge", default)]
    pub image_maximum_gc_age: GoDuration,
    #[serde(rename = "imageGCHighThresholdPercent", default)]
    pub image_gc_high_threshold_percent: i32,
    #[serde(rename = "imageGCLowThresholdPercent", default)]
    pub image_gc_low_threshold_percent: i32,
    #[serde(default)]
    pub volume_stats_agg_period: GoDuration,

    // Cgroups
    #[serde(default, skip_serializing_if = "is_zero")]
    pub kubelet_cgroups: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub system_cgroups: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cgroup_root: String,
    #[serde(rename = "cgroupsPerQOS", default)]
    pub cgroups_per_qos: bool,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cgroup_driver: String,

    // CPU, memory and topology managers
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cpu_manager_policy: String,
    /// `None` leaves the choice to the cgroup version: v1 kills one process, v2 the whole container.
    #[serde(rename = "singleProcessOOMKill", default, skip_serializing_if = "Option::is_none")]
    pub single_process_oom_kill: Option<bool>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cpu_manager_policy_options: BTreeMap<String, String>,
    #[serde(default)]
    pub cpu_manager_reconcile_period: GoDuration,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub memory_manager_policy: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub topology_manager_policy: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub topology_manager_scope: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub topology_manager_policy_options: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub qos_reserved: BTreeMap<String, String>,

    // Runtime and pods
    #[serde(default)]
    pub runtime_request_timeout: GoDuration,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hairpin_mode: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub max_pods: i32,
    #[serde(rename = "podCIDR", default, skip_serializing_if = "is_zero")]
    pub pod_cidr: String,
    /// -1 is no limit.
    #[serde(default)]
    pub pod_pids_limit: i64,
    /// Empty means no resolver file at all, which differs from the default file.
    #[serde(default)]
    pub resolv_conf: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub run_once: bool,
    #[serde(rename = "cpuCFSQuota", default)]
    pub cpu_cfs_quota: bool,
    #[serde(rename = "cpuCFSQuotaPeriod", default)]
    pub cpu_cfs_quota_period: GoDuration,
    #[serde(default)]
    pub node_status_max_images: i32,

    // The process and its API client
    #[serde(default, skip_serializing_if = "is_zero")]
    pub max_open_files: i64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub content_type: String,
    #[serde(rename = "kubeAPIQPS", default)]
    pub kube_api_qps: i32,
    #[serde(rename = "kubeAPIBurst", default, skip_serializing_if = "is_zero")]
    pub kube_api_burst: i32,

    // Image pulls, again
    #[serde(default)]
    pub serialize_image_pulls: bool,
    /// `None` is no limit of our own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_parallel_image_pulls: Option<i32>,

    // Eviction
    /// An empty map is not the same as an absent one: only an absent one gets the default thresholds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub eviction_hard: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub eviction_soft: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub eviction_soft_grace_period: BTreeMap<String, String>,
    #[serde(default)]
    pub eviction_pressure_transition_period: GoDuration,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub eviction_max_pod_grace_period: i32,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub eviction_minimum_reclaim: BTreeMap<String, String>,
    #[serde(default)]
    pub merge_default_eviction_settings: bool,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pods_per_core: i32,

    // Volumes, kernel, iptables
    #[serde(default)]
    pub enable_controller_attach_detach: bool,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub protect_kernel_defaults: bool,
    #[serde(rename = "makeIPTablesUtilChains", default)]
    pub make_iptables_util_chains: bool,
    #[serde(default)]
    pub iptables_masquerade_bit: i32,
    #[serde(default)]
    pub iptables_drop_bit: i32,

    // Gates and swap
    /// As given; [`super::FeatureGates`] answers what is on.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub feature_gates: BTreeMap<String, bool>,
    #[serde(default)]
    pub fail_swap_on: bool,
    #[serde(default)]
    pub memory_swap: MemorySwap,

    // Container logs
    #[serde(default, skip_serializing_if = "is_zero")]
    pub container_log_max_size: String,
    #[serde(default)]
    pub container_log_max_files: i32,
    #[serde(default)]
    pub container_log_max_workers: i32,
    #[serde(default)]
    pub container_log_monitor_interval: GoDuration,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub config_map_and_secret_change_detection_strategy: String,

    // Reservations
    #[serde(default, skip_serializing_if = "is_zero")]
    pub system_reserved: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub kube_reserved: BTreeMap<String, String>,
    #[serde(rename = "reservedSystemCPUs", default, skip_serializing_if = "is_zero")]
    pub reserved_system_cpus: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub show_hidden_metrics_for_version: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub system_reserved_cgroup: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub kube_reserved_cgroup: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub enforce_node_allocatable: Vec<String>,

    // Miscellaneous
    #[serde(default, skip_serializing_if = "is_zero")]
    pub allowed_unsafe_sysctls: Vec<String>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub volume_plugin_dir: String,
    #[serde(rename = "providerID", default, skip_serializing_if = "is_zero")]
    pub provider_id: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub kernel_memcg_notification: bool,
    #[serde(default)]
    pub logging: Logging,
    #[serde(default)]
    pub enable_system_log_handler: bool,
    #[serde(default)]
    pub enable_system_log_query: bool,

    // Shutdown and back-off
    #[serde(default)]
    pub shutdown_grace_period: GoDuration,
    #[serde(default)]
    pub shutdown_grace_period_critical_pods: GoDuration,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub shutdown_grace_period_by_pod_priority: Vec<ShutdownGracePeriodByPodPriority>,
    #[serde(default)]
    pub crash_loop_back_off: CrashLoopBackOff,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reserved_memory: Vec<MemoryReservation>,
    #[serde(default)]
    pub enable_profiling_handler: bool,
    #[serde(default)]
    pub enable_debug_flags_handler: bool,
    #[serde(default)]
    pub seccomp_default: bool,

    // Memory QoS
    #[serde(default)]
    pub memory_throttling_factor: f64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub memory_reservation_policy: String,

    // Registration
    #[serde(default, skip_serializing_if = "is_zero")]
    pub register_with_taints: Vec<Taint>,
    #[serde(default)]
    pub register_node: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracing: Option<Tracing>,
    #[serde(default)]
    pub local_storage_capacity_isolation: bool,

    // Runtime endpoints
    #[serde(default)]
    pub container_runtime_endpoint: String,
    /// Empty means the runtime endpoint.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub image_service_endpoint: String,
    #[serde(default)]
    pub fail_cgroup_v1: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_namespaces: Option<UserNamespaces>,
}

fn api_version() -> String {
    API_VERSION.to_owned()
}

fn kind() -> String {
    KIND.to_owned()
}
