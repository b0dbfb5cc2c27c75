//! After the last container: volumes and cgroup go. In a plan of its own, and only for a pod that nobody wants any
//! more, goes everything else of it.

use model::pod::QosClass;
use model::why::Cause;

use super::{PlanInputs, PodPlan, garbage, stop};
use crate::cgroups;
use crate::effect::{Action, Stage};
use crate::lifecycle::MINIMUM_STOP_SECS;
use crate::volumes;

pub fn plan(inputs: &PlanInputs) -> PodPlan {
    let entry = inputs.entry;
    let mut plan = PodPlan::default();
    let vanish = entry.removed && entry.recreate_as.is_none();
    let stages = if inputs.observed.anything_running() {
        // A call that was given up may have its effect after the pod was seen to be at rest.
        if stop::must_wait_to_stop(inputs, &mut plan) {
            return plan;
        }
        stop::stop_everything(inputs, MINIMUM_STOP_SECS)
    } else if !entry.ledger.volumes_and_cgroup_released && !entry.ledger.volumes_being_updated.is_empty() {
        // Who comes late must not bring back what was taken away.
        return PodPlan::wait(None, Cause::Releasing);
    } else if !entry.ledger.volumes_and_cgroup_released {
        // On its own, so that a container which can't be removed keeps neither volumes nor the pod's name.
        vec![
            Stage::stop_on_failure(vec![Action::TearDownVolumes]),
            Stage::stop_on_failure(destroy_cgroups(inputs)),
        ]
    } else if vanish && entry.lifecycle.may_remove_directories(entry.removed) {
        drop_everything(inputs)
    } else {
        garbage::garbage_stages(inputs, &mut plan)
    };
    let runtime_needed = stages.iter().flat_map(|s| &s.actions).any(Action::mutates_runtime);
    if runtime_needed && !inputs.runtime.ready {
        return PodPlan::wait(None, Cause::RuntimeNotReady { message: inputs.runtime.message.clone() });
    }
    if let Some(retry) = entry.ledger.pod_retry.as_ref().filter(|r| r.at > inputs.now.mono) {
        let cause = Cause::StepFailed { step: retry.step.into(), message: retry.message.clone() };
        plan.because(None, cause, Some(retry.at));
        return plan;
    }
    let phase = entry.status.as_ref().and_then(|s| s.phase.clone()).unwrap_or_default();
    let busy = stages.iter().any(|s| !s.actions.is_empty());
    let rejected = entry.rejection.as_ref();
    let going = (vanish || inputs.observed.anything_running()) && busy;
    let cause = match (taking_away(inputs, &stages), rejected) {
        (Some(volumes), None) => Cause::ReleasingVolumes { volumes },
        (_, _) if going => Cause::Releasing,
        (_, Some((reason, message))) => Cause::Rejected { reason: reason.clone(), message: message.clone() },
        (None, None) => Cause::Finished { phase },
    };
    plan.because(None, cause, None);
    plan.stages = stages;
    plan
}

/// Volumes that storage drivers may have a part in, when they are about to go. A driver may take its time: that is what
/// users look for then.
fn taking_away(inputs: &PlanInputs, stages: &[Stage]) -> Option<Vec<String>> {
    let mut actions = stages.iter().flat_map(|stage| &stage.actions);
    actions.any(|action| matches!(action, Action::TearDownVolumes)).then_some(())?;
    Some(volumes::csi_volume_names(&inputs.entry.view)).filter(|volumes| !volumes.is_empty())
}

/// An orphan's QoS class is not known: its cgroup is looked for in every place it could be.
fn destroy_cgroups(inputs: &PlanInputs) -> Vec<Action> {
    if !inputs.config.cgroups_per_qos {
        return Vec::new();
    }
    let names = if inputs.entry.orphan {
        [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort]
            .map(|class| {
                let above = cgroups::qos_cgroup(inputs.config, class);
                above.child(format!("pod{}", inputs.entry.view.uid))
            })
            .to_vec()
    } else {
        cgroups::pod_cgroup(inputs.config, &inputs.entry.view).into_iter().collect()
    };
    names.into_iter().map(|name| Action::DestroyCgroup { name }).collect()
}

fn drop_everything(inputs: &PlanInputs) -> Vec<Stage> {
    let observed = inputs.observed;
    let containers = observed.containers.iter().map(garbage::remove).collect();
    let sandboxes = observed.sandboxes.iter().map(|s| Action::RemoveSandbox { id: s.id.clone() }).collect();
    let mut stages = vec![Stage::stop_on_failure(containers), Stage::stop_on_failure(sandboxes)];
    if !inputs.entry.ledger.directories_removed {
        let view = &inputs.entry.view;
        let log_dir = format!("{}_{}_{}", view.namespace(), view.name(), view.uid);
        stages
            .push(Stage::stop_on_failure(vec![Action::RemovePodDir, Action::RemoveLogDir { name: log_dir }]));
    }
    stages
}
