//! All ports of the engine.

use std::sync::Arc;

use ports::{
    Cgroups, ClusterPorts, ContainerLogFiles, EngineMetrics, EventSink, HttpHooks, Images, NodeSignals,
    OomKills, PanicRecords, PodFiles, ProbeRecordStore, Prober, PullRecords, RegistryCredentials, Runtime,
    RuntimeEvents, Tracing, UsageReader, VolumeNoticeFeed, WallClock,
};

use crate::csi::CsiPorts;

/// The ports that the engine uses.
#[derive(Clone)]
pub struct Ports {
    pub runtime: Arc<dyn Runtime>,
    pub images: Arc<dyn Images>,
    pub credentials: Arc<dyn RegistryCredentials>,
    /// `None`: pulls are not recorded.
    pub pull_records: Option<Arc<dyn PullRecords>>,
    pub hints: Arc<dyn RuntimeEvents>,
    pub files: Arc<dyn PodFiles>,
    pub volume_news: Arc<dyn VolumeNoticeFeed>,
    pub log_files: Arc<dyn ContainerLogFiles>,
    pub node_signals: Arc<dyn NodeSignals>,
    pub oom_kills: Arc<dyn OomKills>,
    pub cgroups: Arc<dyn Cgroups>,
    /// Figures of cgroups and filesystems.
    pub usage: Arc<dyn UsageReader>,
    pub events: Arc<dyn EventSink>,
    pub http_hooks: Arc<dyn HttpHooks>,
    pub prober: Arc<dyn Prober>,
    pub probe_records: Arc<dyn ProbeRecordStore>,
    pub panic_records: Arc<dyn PanicRecords>,
    pub wall: Arc<dyn WallClock>,
    pub meter: Arc<dyn EngineMetrics>,
    /// `None`: no storage driver can register.
    pub csi: Option<CsiPorts>,
    /// Where plans send their spans.
    pub tracing: Tracing,
    /// `None`: the node runs without a cluster.
    pub cluster: Option<ClusterPorts>,
}
