//! What happened: the only input of [`crate::step`]. A closed list.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use model::cgroup::{CgroupDriver, CgroupName};
use model::cluster::{ObjectKey, ObjectState, PodTokenRequest, Token};
use model::credentials::{PullHistory, PullServiceAccount};
use model::cri::{IdMapping, Image, RuntimeStatus};
use model::disk_usage::PodDiskUsage;
use model::eviction::{FigureGroup, NodeFigures, PodFigures};
use model::image_garbage::ImageListing;
use model::k8s::{CSIDriver, ClusterTrustBundle, Node, Pod, PodCertificateRequest, Service};
use model::local::LocalObjects;
use model::log_rotation::LogCallResult;
use model::node::HostFacts;
use model::observed::{Observation, Scope};
use model::oom_kill::OomKill;
use model::pod::{Source, UnreadablePod};
use model::pod_certificate::{CertificateRequested, CertificateSource};
use model::probe::{ProbeKind, ProbeOutcome};
use model::runtime_class::RuntimeClasses;
use model::storage::{StorageKey, StorageState};
use model::volume::{VolumeNotice, VolumeSetup};
use model::{ContainerId, FullName, Mono, PodUid};
use serde::{Deserialize, Serialize};

use crate::action::{ActionResult, CallFailure, Epoch};
use crate::csi::{VolumeCallId, VolumeCallResult, VolumeRequest, VolumeRequestId};
use crate::effect::TimerKey;
use crate::image_pull::PullKey;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Event {
    /// The agent started: observe everything.
    Started,
    /// A source delivered its complete set.
    PodSetDelivered {
        source: Source,
        pods: Vec<Arc<Pod>>,
    },
    /// A source reported one pod that was added or changed; the others are unchanged.
    PodChanged {
        source: Source,
        pod: Arc<Pod>,
    },
    /// A source reported the removal of one pod.
    PodRemoved {
        source: Source,
        uid: PodUid,
    },
    /// A source reported pods whose objects can't be decoded. `complete`: these are all of them, and the complete set
    /// without them follows.
    UnreadablePods {
        source: Source,
        pods: Vec<UnreadablePod>,
        complete: bool,
    },
    /// The Node object of this node, or `None` if there is none.
    NodeObserved(Option<Arc<Node>>),
    /// The Node object was read from the API server on request, or could not be.
    NodeRead(Result<Arc<Node>, String>),
    /// A source reported all its RuntimeClasses.
    RuntimeClasses {
        source: Source,
        classes: RuntimeClasses,
    },
    /// A source reported all its objects. Only in standalone mode.
    LocalObjects {
        source: Source,
        objects: LocalObjects,
    },
    /// The runtime was observed.
    Observed(Observation),
    ObserveFailed {
        scope: Scope,
        message: String,
    },
    /// Something may have changed in the runtime.
    Hint(Hint),
    /// A lifecycle hook used HTTPS, and the pod's server answered with plain HTTP. `host`: name and port.
    HookFellBackToHttp {
        uid: PodUid,
        host: String,
    },
    /// The runtime answered `Status` and `Version`, or did not.
    RuntimeChecked(RuntimeCheck),
    /// One action of a pod's plan ended.
    ActionDone {
        uid: PodUid,
        epoch: Epoch,
        stage: usize,
        action: usize,
        result: ActionResult,
    },
    /// The executor has finished a plan; no action of it runs any more.
    PlanEnded {
        uid: PodUid,
        epoch: Epoch,
    },
    /// `history`: the pull records of the image, if it was found.
    ImageInspected {
        image: String,
        result: Result<Option<Image>, CallFailure>,
        history: PullHistory,
    },
    /// The credential plugins have answered or timed out. `account`: the service account on whose behalf one of them
    /// gave credentials for the image.
    CredentialPluginsAnswered {
        pull: PullKey,
        for_access: bool,
        account: Option<PullServiceAccount>,
    },
    ImagePulled {
        pull: PullKey,
        result: Result<PulledImage, CallFailure>,
    },
    /// The images were listed for removing those that nothing uses.
    ImagesListed(Result<ImageListing, CallFailure>),
    /// `RemoveImage` ended. An image that was not there counts as removed.
    ImageRemoved {
        image: String,
        result: Result<(), CallFailure>,
    },
    /// An attempt at a probe ended. `id`: the instance that was probed. `took` is for metrics.
    ProbeDone {
        uid: PodUid,
        container: String,
        kind: ProbeKind,
        id: ContainerId,
        outcome: ProbeOutcome,
        took: Duration,
    },
    /// An object that a pod refers to was read, or can't be read.
    ObjectObserved {
        key: ObjectKey,
        state: ObjectState,
    },
    /// A claim, a persistent volume or an attachment was read, or can't be read.
    StorageRead {
        key: StorageKey,
        state: StorageState,
    },
    /// All ClusterTrustBundles.
    TrustBundles(Vec<Arc<ClusterTrustBundle>>),
    /// All CSIDriver objects.
    CsiDrivers(Vec<Arc<CSIDriver>>),
    /// The CSI drivers that are registered on this node.
    CsiDriversRegistered(BTreeSet<String>),
    /// CSI drivers can register on this node, so volumes of an earlier agent have to be found.
    CsiEnabled,
    /// An operation on CSI volumes is requested. `AnswerVolumeRequest` follows.
    VolumeRequested {
        request: VolumeRequestId,
        what: VolumeRequest,
    },
    /// A call about a volume ended.
    VolumeCallEnded {
        id: VolumeCallId,
        result: VolumeCallResult,
    },
    /// All services of the cluster.
    Services(Vec<Arc<Service>>),
    /// A token was issued, or the request failed.
    TokenIssued {
        wanted: PodTokenRequest,
        result: Result<Token, String>,
    },
    /// A certificate was requested, or the request failed.
    CertificateRequested {
        source: CertificateSource,
        call: u64,
        result: Result<CertificateRequested, String>,
    },
    /// All PodCertificateRequests of this node.
    CertificateRequests(Vec<Arc<PodCertificateRequest>>),
    /// The API server answered one of our calls, or could not be reached.
    ApiAnswered(ApiCallResult),
    Timer(TimerKey),
    /// The records of user-namespace ids were read again. `None`: the record can't be read. `unlisted`: the pods'
    /// directories could not be listed.
    UserIdsRead {
        ids: Vec<(PodUid, Option<IdMapping>)>,
        unlisted: bool,
    },
    /// The cgroups above pods were written, but for these.
    NodeCgroupsWritten {
        failures: Vec<CgroupFailure>,
    },
    /// What is reserved was written into the cgroups of `UpdateReservedCgroups`, in that order up to the first failure.
    ReservedCgroupsWritten {
        results: Vec<Result<(), String>>,
    },
    /// A cgroup directly below one of the cgroups above pods is gone.
    CgroupRemoved {
        name: CgroupName,
    },
    /// Directories and cgroups of pods that exist on the node.
    PodArtifactsListed(PodArtifacts),
    /// A sweep ended, with what it could not remove.
    SweepEnded {
        problems: Vec<String>,
    },
    /// A call about the log of a container ended.
    LogCallEnded {
        id: ContainerId,
        result: LogCallResult,
    },
    /// The disk usage of a pod, or why it could not be measured.
    DiskMeasured {
        uid: PodUid,
        result: Result<PodDiskUsage, String>,
    },
    /// An Event about work on a volume is to be recorded.
    VolumeNotice {
        uid: PodUid,
        news: VolumeNotice,
    },
    /// The files of a volume were replaced outside of the pod's plan, or could not be replaced.
    VolumeUpdated {
        uid: PodUid,
        volume: Box<VolumeSetup>,
        result: Result<(), String>,
    },
    FactsChanged(Arc<HostFacts>),
    /// `at`: when the reading began.
    NodeFiguresRead {
        group: FigureGroup,
        at: Mono,
        result: Result<NodeFigures, String>,
    },
    /// The kernel gave notice of memory that runs short, or can't give notices.
    MemoryRunsShort {
        result: Result<(), String>,
    },
    /// The kernel killed a process because memory ran out.
    OomKilled(OomKill),
    /// What pods use. Those that could not be measured are absent.
    PodFiguresRead {
        call: u64,
        pods: BTreeMap<PodUid, PodFigures>,
    },
    /// A pod has to be evicted, with this reason. `grace_secs` replaces the grace period of the pod.
    Evict {
        uid: PodUid,
        reason: String,
        message: String,
        grace_secs: Option<i64>,
    },
}

impl Event {
    /// The pod that it is about, if it is about one.
    pub fn pod(&self) -> Option<PodUid> {
        match self {
            Event::PodChanged { pod, .. } => pod.metadata.uid.as_deref().map(PodUid::from),
            Event::Observed(Observation { scope: Scope::Pod(uid), .. })
            | Event::ObserveFailed { scope: Scope::Pod(uid), .. }
            | Event::Hint(Hint::Pod(uid))
            | Event::PodRemoved { uid, .. }
            | Event::ActionDone { uid, .. }
            | Event::PlanEnded { uid, .. }
            | Event::ProbeDone { uid, .. }
            | Event::DiskMeasured { uid, .. }
            | Event::VolumeNotice { uid, .. }
            | Event::VolumeUpdated { uid, .. }
            | Event::Evict { uid, .. }
            | Event::ApiAnswered(
                ApiCallResult::StatusPatched { uid, .. } | ApiCallResult::PodDeleted { uid, .. },
            ) => Some(uid.clone()),
            Event::CertificateRequested { source, .. } => Some(source.pod.clone()),
            Event::TokenIssued { wanted, .. } => Some(wanted.pod_uid.clone()),
            Event::VolumeRequested { request, .. } => Some(request.uid.clone()),
            Event::Timer(key) => key.pod().cloned(),
            _ => None,
        }
    }

    /// The name of its kind, for counting.
    pub fn kind(&self) -> &'static str {
        match self {
            Event::Started => "started",
            Event::PodSetDelivered { .. } => "pod_set_delivered",
            Event::PodChanged { .. } => "pod_changed",
            Event::PodRemoved { .. } => "pod_removed",
            Event::UnreadablePods { .. } => "unreadable_pods",
            Event::NodeObserved(_) => "node_observed",
            Event::NodeRead(_) => "node_read",
            Event::RuntimeClasses { .. } => "runtime_classes",
            Event::LocalObjects { .. } => "local_objects",
            Event::Observed(_) => "observed",
            Event::ObserveFailed { .. } => "observe_failed",
            Event::Hint(_) => "hint",
            Event::HookFellBackToHttp { .. } => "hook_fell_back_to_http",
            Event::RuntimeChecked(_) => "runtime_checked",
            Event::ActionDone { .. } => "action_done",
            Event::PlanEnded { .. } => "plan_ended",
            Event::ImageInspected { .. } => "image_inspected",
            Event::CredentialPluginsAnswered { .. } => "credential_plugins_answered",
            Event::ImagePulled { .. } => "image_pulled",
            Event::ImagesListed(_) => "images_listed",
            Event::ImageRemoved { .. } => "image_removed",
            Event::ProbeDone { .. } => "probe_done",
            Event::ObjectObserved { .. } => "object_observed",
            Event::StorageRead { .. } => "storage_read",
            Event::TrustBundles(_) => "trust_bundles",
            Event::CsiDrivers(_) => "csi_drivers",
            Event::CsiDriversRegistered(_) => "csi_drivers_registered",
            Event::CsiEnabled => "csi_enabled",
            Event::VolumeRequested { .. } => "volume_requested",
            Event::VolumeCallEnded { .. } => "volume_call_ended",
            Event::Services(_) => "services",
            Event::TokenIssued { .. } => "token_issued",
            Event::CertificateRequested { .. } => "certificate_requested",
            Event::CertificateRequests(_) => "certificate_requests",
            Event::ApiAnswered(_) => "api_answered",
            Event::Timer(_) => "timer",
            Event::UserIdsRead { .. } => "user_ids_read",
            Event::NodeCgroupsWritten { .. } => "node_cgroups_written",
            Event::ReservedCgroupsWritten { .. } => "reserved_cgroups_written",
            Event::CgroupRemoved { .. } => "cgroup_removed",
            Event::PodArtifactsListed(_) => "pod_artifacts_listed",
            Event::SweepEnded { .. } => "sweep_ended",
            Event::FactsChanged(_) => "facts_changed",
            Event::DiskMeasured { .. } => "disk_measured",
            Event::VolumeNotice { .. } => "volume_notice",
            Event::VolumeUpdated { .. } => "volume_updated",
            Event::LogCallEnded { .. } => "log_call_ended",
            Event::NodeFiguresRead { .. } => "node_figures_read",
            Event::MemoryRunsShort { .. } => "memory_runs_short",
            Event::OomKilled(_) => "oom_killed",
            Event::PodFiguresRead { .. } => "pod_figures_read",
            Event::Evict { .. } => "evict",
        }
    }
}

/// A cgroup that could not be written, and why.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CgroupFailure {
    pub name: CgroupName,
    pub message: String,
}

/// How a [`crate::effect::ApiCall`] ended.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum ApiCallResult {
    /// `object`: the UID of the object that was written to.
    StatusPatched {
        uid: PodUid,
        object: PodUid,
        result: Result<Arc<Pod>, ApiFailure>,
    },
    PodDeleted {
        uid: PodUid,
        result: Result<(), ApiFailure>,
    },
    MirrorCreated {
        full_name: FullName,
        result: Result<Arc<Pod>, ApiFailure>,
    },
    MirrorDeleted {
        full_name: FullName,
        uid: PodUid,
        result: Result<(), ApiFailure>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ApiFailureKind {
    /// There is no such object, or another one has its name.
    Gone,
    /// The server will refuse again until something changes.
    Refused,
    /// The server is away, busy or broken.
    Unavailable,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ApiFailure {
    pub kind: ApiFailureKind,
    /// The server asked to be left alone for so long.
    pub retry_after: Option<Duration>,
    pub message: String,
}

impl ApiFailure {
    pub fn means_gone(&self) -> bool {
        self.kind == ApiFailureKind::Gone
    }
    pub fn is_refusal(&self) -> bool {
        self.kind == ApiFailureKind::Refused
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Hint {
    Pod(PodUid),
    /// A container or sandbox id.
    ContainerOrSandbox(String),
    /// An image came or changed.
    Images,
    Everything,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum RuntimeCheck {
    /// `cgroup_driver`: `None` if it was not requested, or the runtime does not report it.
    Answered {
        runtime_name: String,
        status: RuntimeStatus,
        cgroup_driver: Option<CgroupDriver>,
    },
    Failed {
        message: String,
    },
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PulledImage {
    pub reference: String,
    /// Looked up right after the pull.
    pub image: Option<Image>,
    pub took: Duration,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PodArtifacts {
    pub pod_dirs: Vec<PodUid>,
    /// `pod_dirs` lacks none. Otherwise a pod that is not in it may have a directory all the same.
    pub pod_dirs_complete: bool,
    /// `<ns>_<name>_<uid>`
    pub log_dirs: Vec<String>,
    /// Links whose target does not exist.
    pub dead_links: Vec<String>,
    /// Pod cgroups found below the QoS levels.
    pub pod_cgroups: Vec<CgroupName>,
}
