//! From what is wanted and what is seen to what to do next for one pod.
//!
//! `plan_pod` is a pure function; a converged pod's plan is empty (K7). A plan holds only what is certain from one
//! fresh reading: whatever depends on its outcome (the address of a new sandbox, the user of a pulled image) is left
//! to the next plan, which the outcome triggers at once.

mod api_objects;
mod container_kill;
mod crash_back_off;
mod expansion;
mod garbage;
mod image;
mod init;
mod prerequisites;
mod probe_kills;
mod release;
mod restart_all;
mod stop;
mod sync;
mod volumes;

use std::collections::BTreeMap;

use model::k8s::Node;
use model::node::{HostFacts, NodeConfig};
use model::observed::ObservedPod;
use model::pod::ContainerKind;
use model::quantity::Quantity;
use model::why::{Cause, Why};
use model::{ApiEvent, ContainerId, Mono, Now};

use crate::action::{Action, Stage};
use crate::back_off::CrashBackOff;
use crate::images::PullPolicy;
use crate::ledger::StartFailure;
use crate::lifecycle::Lifecycle;
use crate::objects::ObjectCache;
use crate::render::RenderContext;
use crate::runtime_health::RuntimeHealth;
use crate::sandbox_placement::{SandboxPlacement, SandboxPlacementError};
use crate::state::PodEntry;
use crate::status::IpFamily;
use crate::volumes::VolumeInputs;

pub use garbage::{dead_beyond_limits, dead_overall};
pub use image::pull_sandbox_config;
pub use sync::{RETRY, UNHEARD_START};

/// With this gate, images are distinguished by the runtime handler whose image storage they are in.
const IMAGE_HANDLER_GATE: &str = "RuntimeClassInImageCriApi";

/// Everything a plan may depend on.
pub struct PlanInputs<'a> {
    pub config: &'a NodeConfig,
    pub facts: &'a HostFacts,
    pub runtime: &'a RuntimeHealth,
    pub entry: &'a PodEntry,
    /// A fresh observation.
    pub observed: &'a ObservedPod,
    /// The pod that holds this pod's name, if that is another one.
    pub name_holder: Option<String>,
    pub primary_family: IpFamily,
    /// Where its sandbox is to live, or why it can't.
    pub placement: Result<SandboxPlacement, SandboxPlacementError>,
    /// What is known of the objects that pods name. `None`: there is no cluster.
    pub cluster: Option<&'a ObjectCache>,
    /// The node's own object, once it was seen.
    pub node: Option<&'a Node>,
    pub now: Now,
}

impl<'a> PlanInputs<'a> {
    fn volume_inputs(&self) -> VolumeInputs<'a> {
        VolumeInputs {
            config: self.config,
            facts: self.facts,
            pod: self.entry.view(),
            cluster: self.cluster,
            node: self.node,
            now: self.now.wall,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodPlan {
    pub stages: Vec<Stage>,
    /// When to plan again although nothing happens.
    pub wake_at: Option<Mono>,
    pub why: Vec<Why>,
    /// What the ledger should remember of this plan.
    pub notes: Vec<PlanNote>,
}

/// A side result of planning: recorded by `step`, never by the executor.
#[derive(Clone, Debug, PartialEq)]
pub enum PlanNote {
    /// A container can't be started now; shown in its status.
    Failure {
        container: String,
        failure: StartFailure,
        retry_at: Option<Mono>,
    },
    /// A step of the whole pod failed while it was planned.
    PodFailure {
        step: &'static str,
        message: String,
        event: ApiEvent,
    },
    /// A container is about to be started after an exit.
    CrashAdvance {
        container: String,
        entry: CrashBackOff,
    },
    /// A container is killed in order to be started again.
    MustRestart {
        container: String,
        killed: ContainerId,
    },
    /// The node can't attach what the pod needs: it is not for this node. The driver is asked what the node takes.
    NoRoomForVolumes {
        driver: String,
        message: String,
    },
    /// Volumes are waited for from now on, if they were not before.
    WaitingForVolumes,
    /// The volume has this size, as far as nothing else is known.
    VolumeSize {
        volume: String,
        size: Quantity,
    },
    /// All containers are about to start over.
    RestartAllBegins,
    NeedImage(ImageNeed),
    /// An Event that is recorded once as long as the same condition holds. `key` identifies the condition.
    Announce {
        key: String,
        event: ApiEvent,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub struct ImageNeed {
    /// The container's name, or the key of an image volume.
    pub container: String,
    /// `None`: a volume.
    pub kind: Option<ContainerKind>,
    /// As the spec has it.
    pub image: String,
    pub policy: PullPolicy,
    /// For whose storage.
    pub handler: String,
}

impl PlanInputs<'_> {
    fn handler(&self) -> &str {
        self.placement.as_ref().map_or("", |place| &place.handler)
    }

    /// The runtime handler whose image storage is used. It is passed to the runtime only with the gate (KEP-4216).
    fn image_handler(&self) -> &str {
        if self.config.feature(IMAGE_HANDLER_GATE) { self.handler() } else { "" }
    }

    fn render_context<'a>(&'a self, volume_groups: &'a [i64]) -> RenderContext<'a> {
        let user_namespace = self.placement.as_ref().ok().and_then(|place| place.user_ids.as_ref());
        RenderContext { user_namespace, volume_groups, ..RenderContext::new(self.config, self.facts) }
    }
}

pub fn plan_pod(inputs: &PlanInputs) -> PodPlan {
    let mut plan = match &inputs.entry.lifecycle() {
        Lifecycle::Syncing => sync::plan(inputs),
        Lifecycle::Terminating(termination) => stop::plan(inputs, termination),
        Lifecycle::Terminated | Lifecycle::Finished => release::plan(inputs),
    };
    delay_repeated_removals(inputs, &mut plan);
    plan.stages.retain(|stage| !stage.actions.is_empty());
    plan
}

/// Delays repeated removals: the runtime has confirmed them, although it still lists the ids.
fn delay_repeated_removals(inputs: &PlanInputs, plan: &mut PodPlan) {
    if !inputs.entry.observation_guard.has_still_listed() {
        return;
    }
    // The id of a removal that had no effect before, and when it may be retried.
    let repeated = |action: &Action| {
        let id = match action {
            Action::RemoveContainer { id, .. } => id.as_str(),
            Action::RemoveSandbox { id } => id.as_str(),
            _ => return None,
        };
        let retry_at = inputs.entry.observation_guard.retry_removal(id)?;
        Some((id.to_owned(), retry_at))
    };
    let delayed = |action: &Action| repeated(action).is_some_and(|(_, at)| at > inputs.now.mono);
    let actions = plan.stages.iter().flat_map(|stage| &stage.actions);
    // What nobody wants to remove any more may stay listed.
    let removals: BTreeMap<String, Mono> = actions.filter_map(repeated).collect();
    for stage in &mut plan.stages {
        stage.actions.retain(|action| !delayed(action));
    }
    let next = removals.values().copied().filter(|at| *at > inputs.now.mono).min();
    let observed = inputs.observed;
    let containers = observed.containers.iter().map(|c| c.id.as_str());
    let ids = observed.sandboxes.iter().map(|s| s.id.as_str()).chain(containers);
    let ids: Vec<String> = ids.filter(|id| removals.contains_key(*id)).map(str::to_owned).collect();
    if !ids.is_empty() {
        plan.because(None, Cause::StillListed { ids }, next);
    }
}

impl PodPlan {
    pub(crate) fn wait(container: Option<&str>, cause: Cause) -> Self {
        let mut plan = PodPlan::default();
        plan.because(container, cause, None);
        plan
    }

    pub(crate) fn because(&mut self, container: Option<&str>, cause: Cause, next_attempt: Option<Mono>) {
        self.why.push(Why { container: container.map(str::to_owned), cause, next_attempt });
        if let Some(at) = next_attempt {
            self.wake(at);
        }
    }

    pub(crate) fn wake(&mut self, at: Mono) {
        self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
    }

    pub(crate) fn announce(&mut self, key: impl Into<String>, event: ApiEvent) {
        self.notes.push(PlanNote::Announce { key: key.into(), event });
    }
}

#[cfg(test)]
pub(crate) mod tests;
