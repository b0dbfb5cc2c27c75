//! What the node and its cgroups use, read when somebody asks.

use async_trait::async_trait;
use model::Wall;

/// How much is read of a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CgroupDetailLevel {
    /// CPU, memory, swap, processes, pressure.
    Basic,
    /// And everything that `/metrics/cadvisor` tells, which needs a look at every process.
    Full,
}

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
    /// Processes and threads.
    pub tasks: Option<u64>,
    pub pressure: PsiByResource,
    pub detail: Option<Box<CgroupDetail>>,
}

/// Time that was lost waiting, by what was waited for. Absent where the kernel does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PsiByResource {
    pub cpu: Option<PsiStats>,
    pub memory: Option<PsiStats>,
    pub io: Option<PsiStats>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PsiStats {
    /// Somebody waited.
    pub some: PsiData,
    /// Everybody did.
    pub full: PsiData,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PsiData {
    pub total_micros: u64,
    /// Percent over the last 10, 60 and 300 seconds.
    pub averages: [f64; 3],
}

/// What only `/metrics/cadvisor` tells.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CgroupDetail {
    pub cpu_user_nanos: Option<u64>,
    pub cpu_system_nanos: Option<u64>,
    /// Of the CPU cap: its periods so far, those in which it held somebody back, and for how long.
    pub cfs_periods: Option<u64>,
    pub cfs_throttled_periods: Option<u64>,
    pub cfs_throttled_nanos: Option<u64>,
    pub burst_periods: Option<u64>,
    pub burst_nanos: Option<u64>,
    pub cpu_shares: Option<u64>,
    /// In microseconds. Absent: no cap.
    pub cpu_quota: Option<u64>,
    pub cpu_period: Option<u64>,
    /// Pages of files.
    pub cache_bytes: Option<u64>,
    pub mapped_bytes: Option<u64>,
    pub kernel_bytes: Option<u64>,
    pub max_usage_bytes: Option<u64>,
    pub active_file_bytes: Option<u64>,
    pub inactive_file_bytes: Option<u64>,
    /// How often the limit was met.
    pub memory_failcnt: Option<u64>,
    /// Without the cgroups below.
    pub own_page_faults: Option<u64>,
    pub own_major_page_faults: Option<u64>,
    pub oom_kills: Option<u64>,
    /// Absent: none.
    pub memory_reservation_bytes: Option<u64>,
    /// As the kernel has it: with memory in version 1, without in version 2. Absent: none.
    pub memory_swap_limit_raw_bytes: Option<u64>,
    /// Absent: none.
    pub task_limit: Option<u64>,
    pub disks: Vec<DiskTraffic>,
    pub processes: Option<ProcessFigures>,
}

/// What a cgroup moved to and from one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskTraffic {
    /// Such as `/dev/sda`, or its numbers when it has no name.
    pub device: String,
    pub major: u32,
    pub minor: u32,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub reads: u64,
    pub writes: u64,
}

/// Of the processes in one cgroup, without those below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessFigures {
    pub processes: u64,
    /// Absent when there are too many to count.
    pub open_files: Option<u64>,
    pub sockets: Option<u64>,
    pub running: u64,
    pub sleeping: u64,
    pub stopped: u64,
    pub uninterruptible: u64,
    /// Files that the first process may open; absent without a limit.
    pub open_files_limit: Option<u64>,
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
    pub rx: TrafficFigures,
    pub tx: TrafficFigures,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficFigures {
    pub bytes: u64,
    pub packets: u64,
    pub errors: u64,
    pub dropped: u64,
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
    pub process_limit: u64,
    /// With [`CgroupDetailLevel::Full`].
    pub disks: Vec<MachineDisk>,
    pub facts: MachineFacts,
}

/// What stays as it is until the machine is started again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MachineFacts {
    pub cores: u64,
    pub physical_cores: u64,
    pub sockets: u64,
    pub books: u64,
    pub drawers: u64,
    pub boot_id: String,
    pub machine_id: String,
    pub system_uuid: String,
    pub kernel: String,
    pub os: String,
}

/// A block device with a mounted filesystem.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MachineDisk {
    pub device: String,
    pub filesystem: FilesystemFigures,
    /// Absent where the kernel keeps no account.
    pub traffic: Option<DiskCounters>,
}

/// One line of `/proc/diskstats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskCounters {
    pub reads: u64,
    pub reads_merged: u64,
    pub sectors_read: u64,
    pub read_millis: u64,
    pub writes: u64,
    pub writes_merged: u64,
    pub sectors_written: u64,
    pub write_millis: u64,
    pub in_flight: u64,
    pub io_millis: u64,
    pub weighted_io_millis: u64,
}

/// Whose cgroups to read: ids are those of the runtime.
#[derive(Clone, Debug, Default)]
pub struct PodCgroups {
    /// As a driver spells it.
    pub cgroup: String,
    pub sandbox: String,
    pub containers: Vec<String>,
    /// Whether it has interfaces of its own.
    pub own_network: bool,
}

/// A cgroup that was found, with its path.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NamedUsage {
    pub path: String,
    pub usage: CgroupUsage,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodCgroupUsage {
    pub whole: Option<CgroupUsage>,
    pub sandbox: Option<NamedUsage>,
    /// In the order of the question.
    pub containers: Vec<Option<NamedUsage>>,
    pub interfaces: Vec<InterfaceFigures>,
}

/// What a tree of files takes on its filesystem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeFigures {
    pub bytes: u64,
    pub inodes: u64,
}

/// How a tree was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeSource {
    /// File by file.
    Walk,
    /// The filesystem counts it by itself.
    ProjectQuota,
}

/// Reads directly, and blocks nobody else.
#[async_trait]
pub trait UsageReader: Send + Sync {
    async fn machine(&self, depth: CgroupDetailLevel) -> std::io::Result<MachineUsage>;
    /// `paths` are as a driver spells them; `None` when there is no such cgroup.
    async fn cgroups(
        &self,
        paths: Vec<String>,
        depth: CgroupDetailLevel,
    ) -> std::io::Result<Vec<Option<CgroupUsage>>>;
    /// All of these pods in one go, in their order.
    async fn pods(
        &self,
        wanted: Vec<PodCgroups>,
        depth: CgroupDetailLevel,
    ) -> std::io::Result<Vec<PodCgroupUsage>>;
    /// When a cgroup came into being, as far as the kernel can tell.
    async fn cgroup_start(&self, path: &str) -> Option<Wall>;
    /// The cgroup that this agent runs in, if not the root.
    async fn own_cgroup(&self) -> Option<String>;
    /// Bytes and number of the regular files directly in each directory; a path may also be that of one file.
    async fn directories(&self, paths: Vec<String>) -> std::io::Result<Vec<Option<TreeFigures>>>;
    /// Of the filesystem that holds this path.
    async fn filesystem(&self, path: &str) -> std::io::Result<FilesystemFigures>;
    /// Everything below a directory that is on its own mount. Dropping the future ends the walk.
    async fn tree(&self, path: &str) -> std::io::Result<(TreeFigures, TreeSource)>;
}
