//! What happened: the only input of [`crate::step`]. A closed list.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use model::cgroup::{CgroupDriver, CgroupName};
use model::cluster::{ObjectKey, ObjectState, PodTokenRequest, Token};
use model::credentials::{PullHistory, PullServiceAccount};
use model::cri::{Image, RuntimeStatus};
use model::disk_usage::PodDiskUsage;
use model::files::EnvFileRead;
use model::k8s::{CSIDriver, ClusterTrustBundle, Node, Pod, PodCertificateRequest, Service};
use model::local::LocalObjects;
use model::node::HostFacts;
use model::observed::{Observation, Scope};
use model::pod::{Source, UnreadablePod};
use model::pod_certificate::{CertificateRequested, CertificateSource};
use model::probe::{ProbeKind, ProbeOutcome};
use model::runtime_class::RuntimeClasses;
use model::storage::{StorageKey, StorageState};
use model::volume::{MountStage, VolumeNotice, VolumeSetup};
use model::{ContainerId, FullName, PodUid, SandboxId};
use serde::{Deserialize, Serialize};

use crate::csi::{VolumeCallId, VolumeCallResult, VolumeRequest, VolumeRequestId};
use crate::effect::{Epoch, TimerKey};
use crate::images::PullKey;

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
    /// The cgroups above pods could not be written.
    NodeCgroupsFailed,
    /// Directories and cgroups of pods that exist on the node.
    PodArtifactsListed(PodArtifacts),
    /// A sweep ended, with what it could not remove.
    SweepEnded {
        problems: Vec<String>,
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
            Event::PodSetDelivered { .. } => "pods",
            Event::PodChanged { .. } => "pod_changed",
            Event::PodRemoved { .. } => "pod_gone",
            Event::UnreadablePods { .. } => "unreadable_pods",
            Event::NodeObserved(_) => "node_seen",
            Event::RuntimeClasses { .. } => "runtime_classes",
            Event::LocalObjects { .. } => "local_objects",
            Event::Observed(_) => "observed",
            Event::ObserveFailed { .. } => "observe_failed",
            Event::Hint(_) => "hint",
            Event::HookFellBackToHttp { .. } => "hook_fell_back_to_http",
            Event::RuntimeChecked(_) => "runtime_checked",
            Event::ActionDone { .. } => "step_done",
            Event::PlanEnded { .. } => "plan_ended",
            Event::ImageInspected { .. } => "image_inspected",
            Event::CredentialPluginsAnswered { .. } => "plugins_asked",
            Event::ImagePulled { .. } => "image_pulled",
            Event::ProbeDone { .. } => "probe_done",
            Event::ObjectObserved { .. } => "object_seen",
            Event::StorageRead { .. } => "storage_read",
            Event::TrustBundles(_) => "trust_bundles",
            Event::CsiDrivers(_) => "csi_drivers",
            Event::CsiDriversRegistered(_) => "csi_registered",
            Event::CsiEnabled => "csi_enabled",
            Event::VolumeRequested { .. } => "volume_requested",
            Event::VolumeCallEnded { .. } => "volume_call_ended",
            Event::Services(_) => "services",
            Event::TokenIssued { .. } => "token_issued",
            Event::CertificateRequested { .. } => "certificate_requested",
            Event::CertificateRequests(_) => "certificate_requests",
            Event::ApiAnswered(_) => "api_answered",
            Event::Timer(_) => "timer",
            Event::NodeCgroupsFailed => "node_cgroups_failed",
            Event::PodArtifactsListed(_) => "leftovers",
            Event::SweepEnded { .. } => "swept",
            Event::FactsChanged(_) => "facts_changed",
            Event::DiskMeasured { .. } => "disk-measured",
            Event::VolumeNotice { .. } => "volume_news",
            Event::VolumeUpdated { .. } => "volume_updated",
            Event::Evict { .. } => "evict",
        }
    }
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

/// A call that failed, as far as decisions and users need to know it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CallFailure {
    /// Whether the other side was away (as opposed to having refused).
    pub unreachable: bool,
    /// For users: the runtime's own words.
    pub message: String,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PulledImage {
    pub reference: String,
    /// Looked up right after the pull.
    pub image: Option<Image>,
    pub took: Duration,
}

/// How one action ended.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum ActionResult {
    Ok,
    /// Directories are there; the highest log number found of each container that has logs.
    Dirs {
        log_numbers: BTreeMap<String, u32>,
    },
    SandboxRunning {
        id: SandboxId,
    },
    /// Created and started.
    ContainerStarted {
        id: ContainerId,
    },
    /// The container could not be started; `at` is the step that failed.
    StartFailed {
        at: StartFailurePoint,
        id: Option<ContainerId>,
        failure: CallFailure,
    },
    Failed(CallFailure),
    /// A volume could not be set up; `stage` is the step that failed.
    VolumeFailed {
        stage: MountStage,
        failure: CallFailure,
    },
    ExpandOutcome(ExpandOutcome),
    /// What was found in files of variables.
    EnvFiles(Vec<EnvFileRead>),
    /// Stopped, but its hook failed. `message` is for the log only.
    HookFailed {
        message: String,
    },
    /// The plan was cancelled before this action began.
    Skipped,
    /// The plan was cancelled and this action cut short: it may or may not have had its effect.
    Interrupted,
}

/// How the growth of a volume ended, if it did not fail. Sizes are quantities.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ExpandOutcome {
    Grown {
        size: String,
    },
    /// It has this size, and the driver had no part in it.
    Unneeded {
        size: String,
    },
    /// The claim shows that no expansion by the node is needed or allowed now.
    NotYet,
    /// The driver does not do it while the volume is in use.
    InUse,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StartFailurePoint {
    /// Files, sub-paths: `CreateContainerConfigError`.
    Files,
    Create,
    Start,
    /// It runs, but its hook failed: it has to be stopped.
    PostStart,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PodArtifacts {
    pub pod_dirs: Vec<PodUid>,
    /// `<ns>_<name>_<uid>`
    pub log_dirs: Vec<String>,
    /// Links whose target does not exist.
    pub dead_links: Vec<String>,
    /// Pod cgroups found below the QoS levels.
    pub pod_cgroups: Vec<CgroupName>,
}
