//! Effects: the only output of [`crate::step`]. The engine carries them out and makes no decisions.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::cgroup::{CgroupName, CgroupSpec};
use model::cluster::{ObjectKey, PodTokenRequest};
use model::credentials::PullSecret;
use model::cri::{ContainerConfig, IdMapping, SandboxConfig};
use model::csi::{ClaimObject, Expansion, VolumeId};
use model::disk_usage::DiskUsagePaths;
use model::files::{ContainerFiles, EnvFile};
use model::hook::HookCall;
use model::k8s::{Pod, PodStatus};
use model::observed::Scope;
use model::pod::ContainerKind;
use model::pod_certificate::{CertificateSource, CertificateWanted};
use model::probe::{ProbeCall, ProbeKind, ProbeRecord};
use model::storage::StorageKey;
use model::volume::VolumeSetup;
use model::{ApiEvent, ContainerId, FullName, Mono, PodUid, SandboxId};
use serde::{Deserialize, Serialize};

use crate::credentials::CredentialCandidate;
use crate::csi::{VolumeCall, VolumeCallId, VolumeRequestId};
use crate::event::ActionResult;
use crate::images::PullKey;

/// Number of a plan of one pod. Grows; a result with another epoch is late.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Epoch(pub u64);

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
    /// Write these cgroups (the levels above pods).
    EnsureCgroups {
        specs: Vec<CgroupSpec>,
    },
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
    /// Observations that contradict what the runtime reported before are repeated.
    ConfirmObservations,
    /// The pod's local storage is to be measured.
    MeasureDisk(PodUid),
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
}

impl TimerKey {
    /// The pod that it is about, if it is about one.
    pub fn pod(&self) -> Option<&PodUid> {
        match self {
            TimerKey::PodWakeUp(uid)
            | TimerKey::Probe(uid)
            | TimerKey::RetryObservation(uid)
            | TimerKey::MeasureDisk(uid)
            | TimerKey::RetryStatusPatch(uid) => Some(uid),
            TimerKey::Token(wanted) => Some(&wanted.pod_uid),
            TimerKey::Certificate(source) => Some(&source.pod),
            TimerKey::Storage(_)
            | TimerKey::Unstage(_)
            | TimerKey::ListVolumes
            | TimerKey::Mirror(_)
            | TimerKey::ConfirmObservations
            | TimerKey::FullRelist
            | TimerKey::RuntimeCheck
            | TimerKey::Sweep
            | TimerKey::NodeCgroups => None,
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

/// Actions that run at the same time. The next stage waits for all of them, unless it has a `not_after`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Stage {
    pub actions: Vec<Action>,
    /// Whether the plan ends here when one of them fails.
    pub stop_on_failure: bool,
    /// At this time the stage begins even if the stages before it have not ended.
    pub not_after: Option<Mono>,
}

impl Stage {
    /// A stage whose failure ends the plan.
    pub fn stop_on_failure(actions: Vec<Action>) -> Self {
        Self { actions, stop_on_failure: true, not_after: None }
    }
    /// A stage after which the plan goes on in any case.
    pub fn continue_on_failure(actions: Vec<Action>) -> Self {
        Self { actions, stop_on_failure: false, not_after: None }
    }
    /// The same stage, which waits until `at` at most for the stages before it.
    pub fn not_after(mut self, at: Mono) -> Self {
        self.not_after = Some(at);
        self
    }
}

/// One thing to do for a pod. Each is a fixed sequence without choices.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Action {
    /// Creates the pod's directories and its log directory. Returns the highest log number of each container.
    MakePodDirs {
        log_dir: String,
        containers: Vec<String>,
    },
    EnsureCgroup {
        spec: CgroupSpec,
    },
    SetUpVolume {
        volume: VolumeSetup,
    },
    /// Calls NodeExpandVolume to grow the volume to the size of its PersistentVolume, and updates the claim.
    ExpandVolume {
        volume: VolumeSetup,
        expansion: Box<Expansion>,
    },
    /// Reads env files (`fileKeyRef`) from emptyDirs, for a container that is about to start.
    ReadEnvFiles {
        container: String,
        files: Vec<EnvFile>,
    },
    /// Records in the pod's directory which host ids belong to the pod's user namespace.
    StoreUserIds {
        ids: IdMapping,
    },
    RunSandbox {
        config: Box<SandboxConfig>,
        handler: String,
    },
    StartContainer(Box<StartContainer>),
    /// Runs the preStop hook for at most the grace period, then stops the container with the rest of it (at least two
    /// seconds). May be interrupted: the next plan stops the container again with the grace that is left.
    StopContainer {
        id: ContainerId,
        name: String,
        grace_secs: i64,
        deadline: Mono,
        pre_stop: Option<HookCall>,
    },
    /// Runs the preStop hook of a sidecar when the termination begins. The sidecar itself is stopped later, in its
    /// order.
    PreStop {
        id: ContainerId,
        name: String,
        deadline: Mono,
        hook: HookCall,
    },
    StopSandbox {
        id: SandboxId,
    },
    /// `log`: the container's log files to remove as well.
    RemoveContainer {
        id: ContainerId,
        name: String,
        log: Option<String>,
    },
    RemoveSandbox {
        id: SandboxId,
    },
    TearDownVolumes,
    DestroyCgroup {
        name: CgroupName,
    },
    RemovePodDir,
    /// Name below the pod logs directory.
    RemoveLogDir {
        name: String,
    },
}

impl Action {
    /// Whether the action changes the runtime's state, so that older observations are stale.
    pub fn mutates_runtime(&self) -> bool {
        matches!(
            self,
            Action::RunSandbox { .. }
                | Action::StartContainer(_)
                | Action::StopContainer { .. }
                | Action::StopSandbox { .. }
                | Action::RemoveContainer { .. }
                | Action::RemoveSandbox { .. }
        )
    }
    /// A few words for logs and `why`.
    pub fn name(&self) -> &'static str {
        match self {
            Action::MakePodDirs { .. } => "make pod directories",
            Action::EnsureCgroup { .. } => "make pod cgroup",
            Action::SetUpVolume { .. } => "set up volume",
            Action::ExpandVolume { .. } => "expand volume",
            Action::ReadEnvFiles { .. } => "read files of variables",
            Action::StoreUserIds { .. } => "record user namespace",
            Action::RunSandbox { .. } => "create pod sandbox",
            Action::StartContainer(_) => "start container",
            Action::StopContainer { .. } => "stop container",
            Action::PreStop { .. } => "run preStop hook",
            Action::StopSandbox { .. } => "stop pod sandbox",
            Action::RemoveContainer { .. } => "remove container",
            Action::RemoveSandbox { .. } => "remove pod sandbox",
            Action::TearDownVolumes => "tear down volumes",
            Action::DestroyCgroup { .. } => "remove pod cgroup",
            Action::RemovePodDir => "remove pod directory",
            Action::RemoveLogDir { .. } => "remove log directory",
        }
    }
}

/// Prepare files, create, start, link the log, run the hook: in this order, each only when the one before succeeded.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StartContainer {
    pub kind: ContainerKind,
    pub name: String,
    pub pod: FullName,
    pub sandbox_id: SandboxId,
    pub sandbox_config: SandboxConfig,
    pub config: ContainerConfig,
    pub files: ContainerFiles,
    /// Absolute path of the log file.
    pub log_path: String,
    /// Runs right after the start; until it is over, nothing further of the pod begins.
    pub post_start: Option<HookCall>,
}

/// The pod that a pull request names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PullContext {
    pub annotations: BTreeMap<String, String>,
    /// `None`: the configuration can't be made now.
    pub sandbox: Option<SandboxConfig>,
}

/// The pod on whose behalf credential plugins are asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullingPod {
    pub namespace: String,
    pub name: String,
    pub uid: PodUid,
    /// Empty if the pod has none.
    pub service_account: String,
}
