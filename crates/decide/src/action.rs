//! The actions of a pod's plan, and how each of them ended.

use std::collections::BTreeMap;

use model::cgroup::{CgroupName, CgroupSpec};
use model::cri::{ContainerConfig, IdMapping, SandboxConfig};
use model::csi::Expansion;
use model::files::{ContainerFiles, EnvFile, EnvFileRead};
use model::hook::HookCall;
use model::pod::ContainerKind;
use model::volume::{MountStage, VolumeSetup};
use model::{ContainerId, FullName, Mono, SandboxId};
use serde::{Deserialize, Serialize};

/// Number of a plan of one pod. Grows; a result with another epoch is late.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Epoch(pub u64);

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

impl ActionResult {
    /// Whether what follows the action may begin. A failed preStop hook does not keep its container from being stopped.
    pub fn succeeded(&self) -> bool {
        match self {
            ActionResult::Ok
            | ActionResult::Dirs { .. }
            | ActionResult::SandboxRunning { .. }
            | ActionResult::ContainerStarted { .. }
            | ActionResult::HookFailed { .. }
            | ActionResult::ExpandOutcome(_)
            | ActionResult::EnvFiles(_) => true,
            ActionResult::StartFailed { .. }
            | ActionResult::Failed(_)
            | ActionResult::VolumeFailed { .. }
            | ActionResult::Skipped
            | ActionResult::Interrupted => false,
        }
    }
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

/// A call that failed, as far as decisions and users need to know it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CallFailure {
    /// Whether the other side was away (as opposed to having refused).
    pub unreachable: bool,
    /// For users: the runtime's own words.
    pub message: String,
}
