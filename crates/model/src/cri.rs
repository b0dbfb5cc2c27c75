//! The values that a kubelet sends to a CRI runtime, as plain data.
//!
//! `decide` renders them, `cri` puts them on the wire, golden tests compare them. Field names are those of the CRI
//! v1 messages, and a value that the wire would omit is omitted when serialised too, so a recorded message compares
//! directly.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

macro_rules! wire_enum {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $number:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub enum $name { #[default] $($variant = $number),* }
        impl $name {
            pub fn number(self) -> i32 { self as i32 }
            pub fn from_number(number: i32) -> Option<Self> {
                match number { $($number => Some($name::$variant),)* _ => None }
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_i32(self.number())
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let number = i32::deserialize(d)?;
                Self::from_number(number).ok_or_else(|| serde::de::Error::custom(format!("unknown number {number}")))
            }
        }
    };
}

// `#[default]` goes to the variant named first, which is the wire's zero.
macro_rules! wire_struct {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident : $ty:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
        #[serde(default)]
        pub struct $name {
            $($(#[$fdoc])* #[serde(skip_serializing_if = "is_default")] pub $field: $ty,)*
        }
    };
}

wire_enum!(NamespaceMode { Pod = 0, Container = 1, Node = 2, Target = 3 });
wire_enum!(
    /// Profile type of seccomp and AppArmor.
    ProfileType { RuntimeDefault = 0, Unconfined = 1, Localhost = 2 }
);
wire_enum!(MountPropagation { Private = 0, HostToContainer = 1, Bidirectional = 2 });
wire_enum!(Protocol { Tcp = 0, Udp = 1, Sctp = 2 });
wire_enum!(SupplementalGroupsPolicy { Merge = 0, Strict = 1 });

wire_struct!(SandboxMetadata { name: String, uid: String, namespace: String, attempt: u32 });
wire_struct!(DnsConfig { servers: Vec<String>, searches: Vec<String>, options: Vec<String> });
wire_struct!(PortMapping { protocol: Protocol, container_port: i32, host_port: i32, host_ip: String });
wire_struct!(Int64Value { value: i64 });
wire_struct!(IdMapping { host_id: u32, container_id: u32, length: u32 });
wire_struct!(UserNamespace { mode: NamespaceMode, uids: Vec<IdMapping>, gids: Vec<IdMapping> });
wire_struct!(NamespaceOptions {
    network: NamespaceMode,
    pid: NamespaceMode,
    ipc: NamespaceMode,
    target_id: String,
    userns_options: Option<UserNamespace>,
});
wire_struct!(SelinuxOptions { user: String, role: String, r#type: String, level: String });
wire_struct!(SecurityProfile { profile_type: ProfileType, localhost_ref: String });
wire_struct!(SandboxSecurityContext {
    namespace_options: Option<NamespaceOptions>,
    selinux_options: Option<SelinuxOptions>,
    run_as_user: Option<Int64Value>,
    run_as_group: Option<Int64Value>,
    readonly_rootfs: bool,
    supplemental_groups: Vec<i64>,
    supplemental_groups_policy: SupplementalGroupsPolicy,
    privileged: bool,
    seccomp: Option<SecurityProfile>,
    apparmor: Option<SecurityProfile>,
});
wire_struct!(HugepageLimit { page_size: String, limit: u64 });
wire_struct!(LinuxResources {
    cpu_period: i64,
    cpu_quota: i64,
    cpu_shares: i64,
    memory_limit_in_bytes: i64,
    oom_score_adj: i64,
    cpuset_cpus: String,
    cpuset_mems: String,
    hugepage_limits: Vec<HugepageLimit>,
    unified: BTreeMap<String, String>,
    memory_swap_limit_in_bytes: i64,
});
wire_struct!(LinuxSandboxConfig {
    cgroup_parent: String,
    security_context: Option<SandboxSecurityContext>,
    sysctls: BTreeMap<String, String>,
    overhead: Option<LinuxResources>,
    resources: Option<LinuxResources>,
});
wire_struct!(SandboxConfig {
    metadata: SandboxMetadata,
    hostname: String,
    log_directory: String,
    dns_config: Option<DnsConfig>,
    port_mappings: Vec<PortMapping>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    linux: Option<LinuxSandboxConfig>,
});

wire_struct!(ContainerMetadata { name: String, attempt: u32 });
wire_struct!(ImageSpec {
    image: String,
    annotations: BTreeMap<String, String>,
    user_specified_image: String,
    runtime_handler: String,
});
wire_struct!(KeyValue { key: String, value: String });
wire_struct!(Mount {
    container_path: String,
    host_path: String,
    readonly: bool,
    selinux_relabel: bool,
    propagation: MountPropagation,
    #[serde(rename = "uidMappings")]
    uid_mappings: Vec<IdMapping>,
    #[serde(rename = "gidMappings")]
    gid_mappings: Vec<IdMapping>,
    recursive_read_only: bool,
    image: Option<ImageSpec>,
    image_sub_path: String,
});
wire_struct!(Device { container_path: String, host_path: String, permissions: String });
wire_struct!(Capabilities {
    add_capabilities: Vec<String>,
    drop_capabilities: Vec<String>,
    add_ambient_capabilities: Vec<String>,
});
wire_struct!(ContainerSecurityContext {
    capabilities: Option<Capabilities>,
    privileged: bool,
    namespace_options: Option<NamespaceOptions>,
    selinux_options: Option<SelinuxOptions>,
    run_as_user: Option<Int64Value>,
    run_as_group: Option<Int64Value>,
    run_as_username: String,
    readonly_rootfs: bool,
    supplemental_groups: Vec<i64>,
    supplemental_groups_policy: SupplementalGroupsPolicy,
    no_new_privs: bool,
    masked_paths: Vec<String>,
    readonly_paths: Vec<String>,
    seccomp: Option<SecurityProfile>,
    apparmor: Option<SecurityProfile>,
    /// The older spelling that runtimes still read.
    apparmor_profile: String,
});
wire_struct!(LinuxContainerConfig {
    resources: Option<LinuxResources>,
    security_context: Option<ContainerSecurityContext>,
});
wire_struct!(ContainerConfig {
    metadata: ContainerMetadata,
    image: Option<ImageSpec>,
    command: Vec<String>,
    args: Vec<String>,
    working_dir: String,
    envs: Vec<KeyValue>,
    mounts: Vec<Mount>,
    devices: Vec<Device>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    log_path: String,
    stdin: bool,
    stdin_once: bool,
    tty: bool,
    linux: Option<LinuxContainerConfig>,
    #[serde(rename = "CDI_devices")]
    cdi_devices: Vec<String>,
    stop_signal: i32,
});

wire_struct!(
    /// `Version`: who answers.
    RuntimeVersion { version: String, runtime_name: String, runtime_version: String, runtime_api_version: String }
);
wire_struct!(RuntimeCondition { r#type: String, status: bool, reason: String, message: String });
wire_struct!(RuntimeHandler { name: String, recursive_read_only_mounts: bool, user_namespaces: bool });
wire_struct!(
    /// `Status`: whether the runtime and its network are ready, and what they can do.
    RuntimeStatus {
        conditions: Vec<RuntimeCondition>,
        handlers: Vec<RuntimeHandler>,
        supplemental_groups_policy: bool,
        /// Containers may be on the host's network and in a user namespace of their own.
        user_namespaces_host_network: bool,
    }
);

impl RuntimeStatus {
    pub fn condition(&self, kind: &str) -> Option<&RuntimeCondition> {
        self.conditions.iter().find(|c| c.r#type == kind)
    }
}

wire_struct!(
    /// An image as the runtime knows it.
    Image {
        id: String,
        repo_tags: Vec<String>,
        repo_digests: Vec<String>,
        size: u64,
        uid: Option<Int64Value>,
        username: String,
        pinned: bool,
        spec: Option<ImageSpec>,
    }
);
wire_struct!(
    /// Credentials of one pull.
    RegistryAuth {
        username: String,
        password: String,
        auth: String,
        server_address: String,
        identity_token: String,
        registry_token: String,
    }
);
wire_struct!(FilesystemUsage { timestamp: i64, mountpoint: String, used_bytes: u64, inodes_used: u64 });
wire_struct!(ExecResult { stdout: Vec<u8>, stderr: Vec<u8>, exit_code: i32 });
wire_struct!(
    /// Time that was lost waiting, in the unit in which the runtime tells it, and percent over 10, 60 and 300 seconds.
    PressureStall { total: u64, avg10: f64, avg60: f64, avg300: f64 }
);
wire_struct!(
    /// `some`: somebody waited; `full`: everybody did.
    Pressure { some: PressureStall, full: PressureStall }
);
wire_struct!(
    /// Numbers of a container or of a whole sandbox. Absent ones are not known.
    ResourceUsage {
        timestamp: i64,
        cpu_usage_core_nano_seconds: Option<u64>,
        cpu_usage_nano_cores: Option<u64>,
        cpu_pressure: Option<Pressure>,
        memory_working_set_bytes: Option<u64>,
        memory_available_bytes: Option<u64>,
        memory_usage_bytes: Option<u64>,
        memory_rss_bytes: Option<u64>,
        memory_page_faults: Option<u64>,
        memory_major_page_faults: Option<u64>,
        memory_pressure: Option<Pressure>,
        swap_available_bytes: Option<u64>,
        swap_usage_bytes: Option<u64>,
        io_pressure: Option<Pressure>,
    }
);
wire_struct!(
    /// Numbers of one container, as `ContainerStats` gives them.
    ContainerStats {
        id: String,
        name: String,
        attempt: u32,
        labels: BTreeMap<String, String>,
        annotations: BTreeMap<String, String>,
        usage: ResourceUsage,
        writable_layer: Option<FilesystemUsage>,
    }
);
wire_struct!(
    /// What went through one network interface. Absent numbers are not known.
    InterfaceStats {
        name: String,
        rx_bytes: Option<u64>,
        rx_errors: Option<u64>,
        tx_bytes: Option<u64>,
        tx_errors: Option<u64>,
    }
);
wire_struct!(
    /// Numbers of a sandbox as a whole and of each container in it, as `ListPodSandboxStats` gives them.
    SandboxStats {
        id: String,
        usage: ResourceUsage,
        default_interface: Option<InterfaceStats>,
        interfaces: Vec<InterfaceStats>,
        process_count: Option<u64>,
        containers: Vec<ContainerStats>,
    }
);
wire_struct!(
    /// What a metric of the runtime means, and the names of its labels in the order of their values.
    MetricDescriptor { name: String, help: String, label_keys: Vec<String> }
);
wire_struct!(
    /// One sample of a metric that the runtime describes.
    Metric {
        name: String,
        /// In nanoseconds; zero when it was measured for this answer.
        timestamp: i64,
        is_gauge: bool,
        label_values: Vec<String>,
        value: u64,
    }
);
