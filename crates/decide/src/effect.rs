//! Effects: the only output of [`crate::step`]. The engine carries them out and makes no decisions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use model::cgroup::{CgroupName, CgroupSpec};
use model::cluster::{ObjectKey, PodTokenRequest};
use model::credentials::PullSecret;
use model::csi::{ClaimObject, VolumeId};
use model::disk_usage::DiskUsagePaths;
use model::eviction::{
    EvictionSignal, FigureGroup, MemoryNoticeLevels, NodePressure, PodToMeasure, SignalKind,
};
use model::k8s::{Pod, PodStatus};
use model::log_rotation::LogCall;
use model::observed::Scope;
use model::pod_certificate::{CertificateSource, CertificateWanted};
use model::probe::{ProbeCall, ProbeKind, ProbeRecord};
use model::storage::StorageKey;
use model::volume::VolumeSetup;
use model::{ApiEvent, ContainerId, FullName, Mono, PodUid};
use serde::{Deserialize, Serialize};

use crate::action::{ActionResult, Epoch, Stage};
use crate::credentials::CredentialCandidate;
use crate::csi::{VolumeCall, VolumeCallId, VolumeRequestId};
use crate::image_pull::{PullContext, PullKey, PullingPod};

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Effect {
    /// Read the runtime: one pod, or everything.
    Observe(Scope),
    /// Ask the runtime for its status, and for its cgroup driver while that is not known.
    CheckRuntime {
        ask_cgroup_driver: bool,
    },
    /// Carry out a plan. The pod has no other plan running.
    RunPlan {
        uid: PodUid,
        epoch: Epoch,
        stages: Arc<Vec<Stage>>,
    },
    /// Begin no further action of this plan, and interrupt those that may be interrupted. `PlanEnded` still follows.
    CancelPlan {
        uid: PodUid,
        epoch: Epoch,
    },
    InspectImage {
        image: String,
    },
    /// Ask the credential plugins about an image on behalf of a pod, and keep their answers for its pull. `for_access`:
    /// the answers are not kept; they only show whose credentials give access. `CredentialPluginsAnswered` follows.
    AskCredentialPlugins {
        pull: PullKey,
        pod: PullingPod,
        for_access: bool,
    },
    /// `pod_credentials`: credentials of the pods that wait for the image, tried before the node's. `context`: the pod
    /// that the pull request names.
    PullImage {
        pull: PullKey,
        #[serde(skip)]
        pod_credentials: Vec<CredentialCandidate>,
        context: Box<PullContext>,
    },
    /// Record that a pod with this secret may use the image.
    RecordImageAccess {
        image: String,
        image_ref: String,
        secret: PullSecret,
    },
    /// List the images, what containers use, and how full the filesystem of the images is. `ImagesListed` follows.
    ListImages,
    /// Remove this image (its id, and the runtime handler as in names of images). `ImageRemoved` follows.
    RemoveImage {
        image: String,
    },
    /// Remove the pull records of images that are no longer there.
    PrunePullRecords,
    /// Watch this object until `UnwatchObject`. `ObjectObserved` follows now and after every change.
    WatchObject {
        key: ObjectKey,
    },
    UnwatchObject {
        key: ObjectKey,
    },
    /// `TokenIssued` follows.
    RequestToken {
        wanted: PodTokenRequest,
    },
    /// Read this object once. `StorageRead` follows.
    ReadStorageObject {
        key: StorageKey,
    },
    /// Make a key and request a certificate. `CertificateRequested` follows, with the number of the call.
    RequestCertificate {
        source: CertificateSource,
        call: u64,
        wanted: Box<CertificateWanted>,
    },
    /// Watch this node's PodCertificateRequests from now on. `CertificateRequests` follow.
    FollowCertificateRequests {
        node: String,
    },
    /// Watch ClusterTrustBundles from now on. `TrustBundles` follow.
    WatchTrustBundles,
    /// Write these volumes, by their unique names, to volumesInUse of the Node.
    ReportVolumesInUse {
        volumes: Vec<String>,
    },
    /// Set the interval in seconds at which NodeGetInfo of each driver is called again.
    SetDriverUpdatePeriods {
        periods: BTreeMap<String, u64>,
    },
    /// Call NodeGetInfo of this driver now and update the CSINode.
    RefreshDriverNodeInfo {
        driver: String,
    },
    /// Sets, moves or (with `None`) clears a timer.
    SetTimer {
        key: TimerKey,
        at: Option<Mono>,
    },
    StatusChanged {
        uid: PodUid,
        status: Arc<PodStatus>,
    },
    /// The pod as watchers of the Pods API see it has changed. Only with the gate `PodsAPI`.
    PodChanged {
        uid: PodUid,
    },
    /// Make an attempt at a probe, and further ones (`attempts` in all) while it can't be carried out.
    /// `ProbeDone` follows.
    RunProbe {
        uid: PodUid,
        container: String,
        kind: ProbeKind,
        id: ContainerId,
        call: ProbeCall,
        attempts: u32,
    },
    /// Replace the stored probe record of a pod, which outlives the agent.
    StoreProbeRecord {
        uid: PodUid,
        record: ProbeRecord,
    },
    /// The pod is no longer known here.
    ForgetPod {
        uid: PodUid,
    },
    RecordEvent {
        uid: PodUid,
        full_name: FullName,
        event: ApiEvent,
    },
    /// An Event about a claim that a pod uses.
    RecordClaimEvent {
        claim: ClaimObject,
        event: ApiEvent,
    },
    /// An Event about the node itself.
    RecordNodeEvent {
        event: ApiEvent,
    },
    /// Write these cgroups (the levels above pods). `NodeCgroupsWritten` follows.
    EnsureCgroups {
        specs: Vec<CgroupSpec>,
    },
    /// Write what is reserved into these cgroups, which others made. `ReservedCgroupsWritten` follows.
    UpdateReservedCgroups {
        specs: Vec<CgroupSpec>,
    },
    /// The node can't be guarded as configured: the agent ends. Pods keep running.
    EndAgent {
        reason: String,
    },
    /// Read the records of user-namespace ids. `UserIdsRead` follows.
    ReadUserIds,
    /// List what is on disk and in the cgroup tree.
    ListPodArtifacts,
    /// Remove what belongs to no pod. `SweepEnded` follows.
    Sweep(Sweep),
    /// Replace the files of a volume of a pod while its plan runs. `VolumeUpdated` follows.
    UpdateVolume {
        uid: PodUid,
        volume: Box<VolumeSetup>,
    },
    /// Make a call about a CSI volume. `VolumeCallEnded` follows, unless the call is cancelled.
    CallVolume {
        id: VolumeCallId,
        call: VolumeCall,
    },
    /// Nothing waits for this call any more: it is to end at its next step.
    CancelVolumeCall {
        id: VolumeCallId,
    },
    /// Report the result of an operation on CSI volumes to the plan or sweep that requested it (`VolumeRequested`).
    AnswerVolumeRequest {
        request: VolumeRequestId,
        result: ActionResult,
    },
    /// Measure the disk usage of a pod. `DiskMeasured` follows.
    MeasureDisk {
        uid: PodUid,
        places: DiskUsagePaths,
    },
    /// Read the Node object of this node. `NodeRead` follows.
    ReadNode,
    /// Read these figures of the node. `NodeFiguresRead` follows.
    ReadNodeFigures {
        group: FigureGroup,
    },
    /// Wait for the kernel to give notice of memory that runs short, instead of the wait before. `MemoryRunsShort`
    /// follows.
    AwaitMemoryPressure {
        levels: MemoryNoticeLevels,
    },
    /// Measure what these pods use. `PodFiguresRead` follows.
    MeasurePods {
        call: u64,
        kind: SignalKind,
        pods: Vec<PodToMeasure>,
    },
    /// Report what the node is short of in the Node object.
    ReportNodePressure {
        pressure: NodePressure,
    },
    /// Of the figures that an eviction is based on, for a metric.
    RecordFiguresAge {
        signal: EvictionSignal,
        age: Duration,
    },
    /// Make a call about the log of a running container. `LogCallEnded` follows, unless the file is removed meanwhile.
    CallLog {
        id: ContainerId,
        path: String,
        call: LogCall,
    },
    /// Call the API server. `ApiAnswered` follows.
    CallApi(ApiCall),
    /// Write to the log.
    Log {
        level: LogLevel,
        uid: Option<PodUid>,
        message: String,
    },
}

/// A pod's object in the API. `uid` is the object's own: a mirror's differs from its pod's.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PodObject {
    pub namespace: String,
    pub name: String,
    pub uid: PodUid,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum ApiCall {
    /// Patch the status of the pod `uid` into its object or its mirror.
    PatchStatus {
        uid: PodUid,
        pod: PodObject,
        patch: serde_json::Value,
    },
    /// Nothing of the pod is left, so its object may be deleted.
    DeletePod {
        uid: PodUid,
        pod: PodObject,
    },
    CreateMirror {
        full_name: FullName,
        pod: Arc<Pod>,
    },
    DeleteMirror {
        full_name: FullName,
        /// UID of the mirror.
        uid: PodUid,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LogLevel {
    Info,
    Warn,
    Error,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum TimerKey {
    /// The next time to plan the pod: a back-off ends or a retry is due.
    PodWakeUp(PodUid),
    /// The next attempt at one of the pod's probes.
    Probe(PodUid),
    /// Retry of an observation that failed.
    RetryObservation(PodUid),
    /// The pod is observed once more after a container of it was started.
    ObserveStart(PodUid),
    /// Observations that contradict what the runtime reported before are repeated.
    ConfirmObservations,
    /// The pod's local storage is to be measured.
    MeasureDisk(PodUid),
    /// The log of a container is to be measured.
    MeasureLog(ContainerId),
    /// These figures of the node are to be read.
    NodeFigures(FigureGroup),
    /// A grace period of a threshold, or the time of a condition about pressure, is over.
    NodePressure,
    /// What is done about a shortage takes too long.
    EvictionStep,
    /// Images are to be listed, and removed if there is a reason.
    ImageGarbage,
    /// A token has to be requested (again).
    Token(PodTokenRequest),
    /// A certificate of a pod has to be requested (again), or an Event about it is due.
    Certificate(CertificateSource),
    /// A claim, a persistent volume or an attachment is read again.
    Storage(StorageKey),
    /// Retry of unstaging a volume that no pod uses.
    Unstage(VolumeId),
    /// Retry of reading the records of CSI volumes.
    ListVolumes,
    /// Retry of reporting a pod's status.
    RetryStatusPatch(PodUid),
    /// Retry of creating or deleting a mirror.
    Mirror(FullName),
    FullRelist,
    RuntimeCheck,
    Sweep,
    /// Retry of writing the cgroups above pods.
    NodeCgroups,
    /// Retry of reading the records of user-namespace ids.
    UserIds,
}

impl TimerKey {
    /// The pod that it is about, if it is about one.
    pub fn pod(&self) -> Option<&PodUid> {
        match self {
            TimerKey::PodWakeUp(uid)
            | TimerKey::Probe(uid)
            | TimerKey::RetryObservation(uid)
            | TimerKey::ObserveStart(uid)
            | TimerKey::MeasureDisk(uid)
            | TimerKey::RetryStatusPatch(uid) => Some(uid),
            TimerKey::Token(wanted) => Some(&wanted.pod_uid),
            TimerKey::Certificate(source) => Some(&source.pod),
            TimerKey::Storage(_)
            | TimerKey::MeasureLog(_)
            | TimerKey::NodeFigures(_)
            | TimerKey::NodePressure
            | TimerKey::EvictionStep
            | TimerKey::ImageGarbage
            | TimerKey::Unstage(_)
            | TimerKey::ListVolumes
            | TimerKey::Mirror(_)
            | TimerKey::ConfirmObservations
            | TimerKey::FullRelist
            | TimerKey::RuntimeCheck
            | TimerKey::Sweep
            | TimerKey::NodeCgroups
            | TimerKey::UserIds => None,
        }
    }
}

impl Effect {
    /// The pod that it is about, if it is about one.
    pub fn pod(&self) -> Option<&PodUid> {
        match self {
            Effect::Observe(Scope::Pod(uid))
            | Effect::RunPlan { uid, .. }
            | Effect::CancelPlan { uid, .. }
            | Effect::StatusChanged { uid, .. }
            | Effect::PodChanged { uid }
            | Effect::RunProbe { uid, .. }
            | Effect::StoreProbeRecord { uid, .. }
            | Effect::ForgetPod { uid }
            | Effect::RecordEvent { uid, .. }
            | Effect::UpdateVolume { uid, .. }
            | Effect::MeasureDisk { uid, .. } => Some(uid),
            Effect::SetTimer { key, .. } => key.pod(),
            Effect::RequestToken { wanted } => Some(&wanted.pod_uid),
            Effect::RequestCertificate { source, .. } => Some(&source.pod),
            Effect::AnswerVolumeRequest { request, .. } => Some(&request.uid),
            Effect::Log { uid, .. } => uid.as_ref(),
            _ => None,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Sweep {
    pub pod_dirs: Vec<PodUid>,
    pub log_dirs: Vec<String>,
    pub links: Vec<String>,
    pub cgroups: Vec<CgroupName>,
}

impl Sweep {
    pub fn is_empty(&self) -> bool {
        self.pod_dirs.is_empty()
            && self.log_dirs.is_empty()
            && self.links.is_empty()
            && self.cgroups.is_empty()
    }
}
