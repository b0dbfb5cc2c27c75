//! What must exist before a sandbox is created: directories, cgroup, volumes.

use model::ApiEvent;
use model::why::Cause;

use super::{PlanInputs, PlanNote, PodPlan, volumes};
use crate::action::{Action, Stage};
use crate::cgroups;

/// The stages that create the prerequisites of a sandbox.
pub(super) struct SandboxPrerequisites {
    pub stages: Vec<Stage>,
    /// True if these stages create everything that is missing.
    pub complete: bool,
}

/// Directories and cgroup, then volumes. `None` when the volumes can't be planned.
pub(super) fn prepare(inputs: &PlanInputs, plan: &mut PodPlan) -> Option<SandboxPrerequisites> {
    let view = inputs.entry.view();
    let volumes = match volumes::volume_setups(inputs, plan) {
        Ok(volumes) => volumes,
        Err(error) => {
            let message = error.to_string();
            let event =
                ApiEvent::warning("FailedMount", format!("Unable to attach or mount volumes: {message}"));
            plan.notes.push(PlanNote::PodFailure { step: "set up volumes", message: message.clone(), event });
            plan.because(None, Cause::StepFailed { step: "set up volumes".into(), message }, None);
            return None;
        }
    };
    let complete = volumes.complete;
    if !complete && volumes.actions.is_empty() && volumes.expansions.is_empty() {
        return Some(SandboxPrerequisites { stages: Vec::new(), complete });
    }
    let names = view.all_containers().map(|(_, c)| c.name.clone()).collect();
    let log_dir = inputs.config.pod_log_dir(&view.full_name, &view.uid);
    let mut ground = vec![Action::MakePodDirs { log_dir, containers: names }];
    let cgroup = cgroups::pod_cgroup_spec(inputs.config, inputs.facts, view);
    ground.extend(cgroup.map(|spec| Action::EnsureCgroup { spec }));
    let mut stages = vec![Stage::stop_on_failure(ground), Stage::stop_on_failure(volumes.actions)];
    if !volumes.expansions.is_empty() {
        stages.push(Stage::stop_on_failure(volumes.expansions));
    }
    Some(SandboxPrerequisites { stages, complete })
}
