//! Killing one container of a pod that goes on.

use model::ApiEvent;
use model::observed::ObservedContainer;
use model::pod::ContainerKind;
use model::why::Cause;

use super::{PlanInputs, PlanNote, PodPlan, stop};
use crate::action::Action;
use crate::lifecycle::MINIMUM_STOP_SECS;

/// A container to be killed, and the reason as a sentence.
pub(super) struct ContainerKill<'a> {
    pub container: &'a ObservedContainer,
    pub kind: ContainerKind,
    pub message: String,
    /// Replaces the grace period of the pod.
    pub grace_secs: Option<i64>,
    /// The container is started again, whatever its restart policy says about its exit code.
    pub restart: bool,
}

impl<'a> ContainerKill<'a> {
    pub fn new(container: &'a ObservedContainer, kind: ContainerKind, message: String) -> Self {
        Self { container, kind, message, grace_secs: None, restart: false }
    }
    pub fn and_restart(mut self) -> Self {
        self.restart = true;
        self
    }
}

pub(super) fn kill_action(inputs: &PlanInputs, kill: ContainerKill, plan: &mut PodPlan) -> Action {
    let grace = kill.grace_secs.unwrap_or_else(|| inputs.entry.view().spec_grace()).max(MINIMUM_STOP_SECS);
    let name = &kill.container.name;
    plan.because(Some(name), Cause::Stopping { message: kill.message.clone(), grace_secs: grace }, None);
    let event = ApiEvent::normal("Killing", kill.message).for_container(kill.kind, name);
    plan.announce(format!("killing {}", kill.container.id), event);
    if kill.restart {
        plan.notes.push(PlanNote::MustRestart { container: name.clone(), killed: kill.container.id.clone() });
    }
    stop::stop(inputs, kill.container, grace)
}
