//! After the last container has ended, volumes and cgroup are removed. Containers, sandboxes, directories and logs are
//! removed in a later plan, and only if no source wants the pod any more.

use model::pod::QosClass;
use model::why::Cause;

use super::{PlanInputs, PodPlan, garbage, stop};
use crate::action::{Action, Stage};
use crate::cgroups;
use crate::lifecycle::MINIMUM_STOP_SECS;
use crate::state::FailureReason;
use crate::volumes;

pub fn plan(inputs: &PlanInputs) -> PodPlan {
    let entry = inputs.entry;
    let mut plan = PodPlan::default();
    let vanish = entry.standing().is_gone_for_good();
    let stages = if inputs.observed.anything_running() {
        // A call that was abandoned may still take effect after all containers were seen stopped.
        if stop::must_wait_to_stop(inputs, &mut plan) {
            return plan;
        }
        stop::stop_everything(inputs, MINIMUM_STOP_SECS)
    } else if !entry.ledger.volumes_and_cgroup_released && !entry.ledger.volumes_being_updated.is_empty() {
        // A volume update that is still running could write into a volume that was torn down, so wait for it.
        return PodPlan::wait(None, Cause::Releasing);
    } else if !entry.ledger.volumes_and_cgroup_released {
        // This is a plan of its own, so that a container that can't be removed blocks neither the volumes nor the pod's
        // name.
        vec![
            Stage::stop_on_failure(vec![Action::TearDownVolumes]),
            Stage::stop_on_failure(destroy_cgroups(inputs)),
        ]
    } else if vanish && entry.standing().may_remove_directories() {
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
    let rejected = entry.standing().rejection();
    let going = (vanish || inputs.observed.anything_running()) && busy;
    let cause = match (taking_away(inputs, &stages), rejected) {
        (Some(volumes), None) => Cause::ReleasingVolumes { volumes },
        (_, _) if going => Cause::Releasing,
        (_, Some(FailureReason { reason, message, .. })) => {
            Cause::Rejected { reason: reason.clone(), message: message.clone() }
        }
        (None, None) => Cause::Finished { phase },
    };
    plan.because(None, cause, None);
    plan.stages = stages;
    plan
}

/// CSI volumes that these stages tear down. A driver may be slow, so `why` names them.
fn taking_away(inputs: &PlanInputs, stages: &[Stage]) -> Option<Vec<String>> {
    let mut actions = stages.iter().flat_map(|stage| &stage.actions);
    actions.any(|action| matches!(action, Action::TearDownVolumes)).then_some(())?;
    Some(volumes::csi_volume_names(inputs.entry.view())).filter(|volumes| !volumes.is_empty())
}

/// The QoS class of an orphan is not known, so its cgroup is removed under every class.
fn destroy_cgroups(inputs: &PlanInputs) -> Vec<Action> {
    if !inputs.config.cgroups_per_qos {
        return Vec::new();
    }
    let names = if inputs.entry.standing().is_orphan() {
        [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort]
            .map(|class| {
                let above = cgroups::qos_cgroup(inputs.config, class);
                above.child(format!("pod{}", inputs.entry.view().uid))
            })
            .to_vec()
    } else {
        cgroups::pod_cgroup(inputs.config, inputs.entry.view()).into_iter().collect()
    };
    names.into_iter().map(|name| Action::DestroyCgroup { name }).collect()
}

fn drop_everything(inputs: &PlanInputs) -> Vec<Stage> {
    let observed = inputs.observed;
    let containers = observed.containers.iter().map(garbage::remove).collect();
    let sandboxes = observed.sandboxes.iter().map(|s| Action::RemoveSandbox { id: s.id.clone() }).collect();
    let mut stages = vec![Stage::stop_on_failure(containers), Stage::stop_on_failure(sandboxes)];
    if !inputs.entry.ledger.directories_removed {
        let view = inputs.entry.view();
        let log_dir = format!("{}_{}_{}", view.namespace(), view.name(), view.uid);
        stages
            .push(Stage::stop_on_failure(vec![Action::RemovePodDir, Action::RemoveLogDir { name: log_dir }]));
    }
    stages
}
