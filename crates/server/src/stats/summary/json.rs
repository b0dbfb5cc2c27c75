//! The fields of a summary, under the names that its readers know.

use model::Wall;
use serde::{Serialize, Serializer};

/// Seconds are what the API's times have.
#[derive(Clone, Copy)]
pub struct Time(pub Wall);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0.timestamp().strftime("%Y-%m-%dT%H:%M:%SZ"))
    }
}

#[derive(Serialize)]
pub struct Summary<'a> {
    pub node: NodeStatsJson<'a>,
    pub pods: Vec<PodStats<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatsJson<'a> {
    pub node_name: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub system_containers: Vec<SystemStats<'a>>,
    pub start_time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io: Option<IoStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkStats<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fs: Option<FsStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<RuntimeStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rlimit: Option<Rlimit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<SwapStats>,
}

impl<'a> NodeStatsJson<'a> {
    pub fn new(node_name: &'a str, start: Wall) -> Self {
        Self {
            node_name,
            system_containers: Vec::new(),
            start_time: Time(start),
            cpu: None,
            memory: None,
            io: None,
            network: None,
            fs: None,
            runtime: None,
            rlimit: None,
            swap: None,
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SystemStats<'a> {
    pub name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    pub cpu: CpuStats,
    pub memory: MemoryStats,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io: Option<IoStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<SwapStats>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStats<'a> {
    pub pod_ref: PodRef<'a>,
    pub start_time: Time,
    pub containers: Vec<ContainerStats<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io: Option<IoStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkStats<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volume: Vec<VolumeStats<'a>>,
    #[serde(rename = "ephemeral-storage", skip_serializing_if = "Option::is_none")]
    pub ephemeral_storage: Option<FsStats>,
    #[serde(rename = "process_stats", skip_serializing_if = "Option::is_none")]
    pub process_stats: Option<ProcessStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<SwapStats>,
}

impl<'a> PodStats<'a> {
    pub fn new(pod_ref: PodRef<'a>, start: Wall) -> Self {
        Self {
            pod_ref,
            start_time: Time(start),
            containers: Vec::new(),
            cpu: None,
            memory: None,
            io: None,
            network: None,
            volume: Vec::new(),
            ephemeral_storage: None,
            process_stats: None,
            swap: None,
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerStats<'a> {
    pub name: &'a str,
    pub start_time: Time,
    pub cpu: CpuStats,
    pub memory: MemoryStats,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io: Option<IoStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rootfs: Option<FsStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logs: Option<FsStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<SwapStats>,
}

#[derive(Serialize)]
pub struct PodRef<'a> {
    pub name: &'a str,
    pub namespace: &'a str,
    pub uid: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CpuStats {
    pub time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_nano_cores: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_core_nano_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psi: Option<Psi>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryStats {
    pub time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_set_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rss_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_faults: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub major_page_faults: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psi: Option<Psi>,
}

#[derive(Serialize)]
pub struct IoStats {
    pub time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psi: Option<Psi>,
}

#[derive(Serialize)]
pub struct Psi {
    pub full: PsiStall,
    pub some: PsiStall,
}

#[derive(Serialize)]
pub struct PsiStall {
    pub total: u64,
    pub avg10: f64,
    pub avg60: f64,
    pub avg300: f64,
}

#[derive(Serialize)]
pub struct SwapStats {
    pub time: Time,
    #[serde(rename = "swapAvailableBytes", skip_serializing_if = "Option::is_none")]
    pub available: Option<u64>,
    #[serde(rename = "swapUsageBytes", skip_serializing_if = "Option::is_none")]
    pub usage: Option<u64>,
}

#[derive(Serialize)]
pub struct NetworkStats<'a> {
    pub time: Time,
    #[serde(flatten)]
    pub main: Interface<'a>,
    pub interfaces: Vec<Interface<'a>>,
}

#[derive(Serialize)]
pub struct Interface<'a> {
    pub name: &'a str,
    #[serde(flatten)]
    pub counts: Option<InterfaceCounts>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceCounts {
    pub rx_bytes: u64,
    pub rx_errors: u64,
    pub tx_bytes: u64,
    pub tx_errors: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FsStats {
    pub time: Time,
    pub available_bytes: u64,
    pub capacity_bytes: u64,
    pub used_bytes: u64,
    pub inodes_free: u64,
    pub inodes: u64,
    pub inodes_used: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeStats {
    pub image_fs: FsStats,
    pub container_fs: FsStats,
}

#[derive(Serialize)]
pub struct Rlimit {
    pub time: Time,
    pub maxpid: u64,
    pub curproc: u64,
}

#[derive(Serialize)]
pub struct ProcessStats {
    pub process_count: u64,
}

#[derive(Serialize)]
pub struct VolumeStats<'a> {
    pub name: &'a str,
    #[serde(rename = "pvcRef", skip_serializing_if = "Option::is_none")]
    pub pvc_ref: Option<ClaimRef<'a>>,
    #[serde(flatten)]
    pub fs: FsStats,
    #[serde(rename = "volumeHealthStats", skip_serializing_if = "Option::is_none")]
    pub health: Option<VolumeHealth>,
}

#[derive(Serialize)]
pub struct VolumeHealth {
    pub abnormal: bool,
}

#[derive(Serialize)]
pub struct ClaimRef<'a> {
    pub name: &'a str,
    pub namespace: &'a str,
}
