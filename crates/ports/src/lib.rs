//! What the outside can do for us: one small trait per role, and its errors. No trait knows who implements it.
//!
//! Every error says what to do about it by [`Disposition`]; callers branch on that, never on text.

mod agent;
mod api;
mod cgroups;
mod clock;
mod cluster;
mod credentials;
mod csi;
mod disposition;
mod facts;
mod feed;
mod hooks;
mod images;
mod log_files;
mod logs;
mod node_signals;
mod oom_kills;
mod panics;
mod pod_files;
mod pod_watch;
mod prober;
mod profile;
mod runtime;
mod trace;
mod usage;
mod volume_notices;

pub use agent::{AgentView, PodDetails};
pub use api::{ApiError, TlsFault};
pub use cgroups::{CgroupError, Cgroups};
pub use clock::{
    ApiRequest, ApiRequestMetrics, EngineMetrics, EventSink, PodStatusUpdate, ProbeIdentity, WallClock,
};
pub use cluster::{
    AccessDecision, AccessReviews, CertificateApi, CertificateRequestError, ClusterPorts, CsiNodeApi,
    EventApi, IssuedToken, LeaseApi, NodeAccess, NodeApi, ObjectApi, ObservedObject, PodApi, PodRef,
    SharedObjects, StorageApi, TokenApi, UserInfo, WatchReports,
};
pub use credentials::{PluginError, PullRecords, RecordError, RegistryCredentials};
pub use csi::{CsiDrivers, CsiError, CsiFiles, CsiVolumeOnDisk, PluginSocketEvent, PluginSockets};
pub use disposition::Disposition;
pub use facts::{FactsError, HostFactsSource};
pub use feed::{FeedNotice, PodFeed, PodSet};
pub use hooks::{HookAnswer, HttpHooks};
pub use images::Images;
pub use log_files::ContainerLogFiles;
pub use logs::{ContainerLogs, LogBytes, LogOptions, LogOutput};
pub use node_signals::NodeSignals;
pub use oom_kills::{OomKillStream, OomKills};
pub use panics::{PanicRecordError, PanicRecords};
pub use pod_files::{FilesError, LeftoverFiles, PodFiles};
pub use pod_watch::{PodSnapshot, PodWatch, PodWatchEvent, PodWatches};
pub use prober::{ProbeRecordError, ProbeRecordStore, ProbeRecords, Prober};
pub use profile::{CodeMapping, CpuProfiler, CpuSamples, ProfileError};
pub use runtime::{
    ContainerFilter, ContainerInfo, ContainerStatus, Hint, HintStream, Runtime, RuntimeError, RuntimeEvents,
    SandboxFilter, SandboxInfo, SandboxStatus, StreamFlags,
};
pub use trace::{FinishedSpan, Span, SpanKind, TraceContext, Tracer, Tracing};
pub use usage::{
    CgroupDetail, CgroupDetailLevel, CgroupUsage, DiskCounters, DiskTraffic, FilesystemFigures,
    InterfaceFigures, MachineDisk, MachineFacts, MachineUsage, NamedUsage, PodCgroupUsage, PodCgroups,
    ProcessFigures, PsiByResource, PsiData, PsiStats, TrafficFigures, TreeFigures, TreeSource, UsageReader,
};
pub use volume_notices::VolumeNoticeFeed;
