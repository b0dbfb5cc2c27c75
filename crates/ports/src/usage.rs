//! What the node and its cgroups use, read when somebody asks.

use async_trait::async_trait;
use model::Wall;

/// Numbers of one cgroup. Absent ones are not known here.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CgroupUsage {
    pub at: Wall,
    pub cpu_nanos: Option<u64>,
    /// Over the time since a reading before this one; absent for the first.
    pub cpu_nano_cores: Option<u64>,
    pub memory_bytes: Option<u64>,
    /// Without what the kernel can take back at once.
    pub working_set_bytes: Option<u64>,
    pub rss_bytes: Option<u64>,
    pub page_faults: Option<u64>,
    pub major_page_faults: Option<u64>,
    /// Absent: none.
    pub memory_limit_bytes: Option<u64>,
    pub swap_bytes: Option<u64>,
    /// Absent: none.
    pub swap_limit_bytes: Option<u64>,
    pub processes: Option<u64>,
    pub cpu_user_nanos: Option<u64>,
    pub cpu_system_nanos: Option<u64>,
    /// Of the CPU cap: its periods so far, those in which it held somebody back, and for how long.
    pub cap_periods: Option<u64>,
    pub capped_periods: Option<u64>,
    pub capped_nanos: Option<u64>,
    /// Pages of files.
    pub cache_bytes: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct FilesystemFigures {
    pub available_bytes: u64,
    pub capacity_bytes: u64,
    pub used_bytes: u64,
    pub inodes: u64,
    pub inodes_free: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceFigures {
    pub name: String,
    pub rx_bytes: u64,
    pub rx_errors: u64,
    pub tx_bytes: u64,
    pub tx_errors: u64,
}

/// Of the machine itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MachineUsage {
    pub root: CgroupUsage,
    pub boot: Wall,
    pub memory_capacity_bytes: u64,
    pub swap_capacity_bytes: u64,
    pub interfaces: Vec<InterfaceFigures>,
    pub processes: u64,
    pub most_processes: u64,
    pub cores: u64,
    pub boot_id: String,
    pub machine_id: String,
}

/// Reads directly, and blocks nobody else.
#[async_trait]
pub trait UsageReader: Send + Sync {
    async fn machine(&self) -> std::io::Result<MachineUsage>;
    /// `path` is as a driver spells it; `None` when there is no such cgroup.
    async fn cgroup(&self, path: &str) -> Option<CgroupUsage>;
    /// The cgroup of a container below its pod's, whatever the runtime calls it.
    async fn container_cgroup(&self, pod: &str, id: &str) -> Option<String>;
    /// Interfaces in the network namespace of whatever runs in this cgroup.
    async fn interfaces(&self, cgroup: &str) -> Vec<InterfaceFigures>;
    /// Bytes and number of the regular files directly in a directory.
    async fn directory(&self, path: &str) -> Option<(u64, u64)>;
    /// Of the filesystem that holds this path.
    async fn filesystem(&self, path: &str) -> std::io::Result<FilesystemFigures>;
}
