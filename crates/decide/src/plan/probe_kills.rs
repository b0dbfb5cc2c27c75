//! Kills containers that failed a startup or liveness probe.

use model::k8s::Container;
use model::observed::ObservedContainer;
use model::pod::{ContainerKind, RestartPolicy};
use model::probe::ProbeKind;

use super::PlanInputs;
use super::container_kill::ContainerKill;
use crate::probes::probe_of;
use crate::restart::effective_policy;

/// The kill of a regular container that failed a probe.
pub(super) fn kill<'a>(
    inputs: &PlanInputs,
    container: &Container,
    running: &'a ObservedContainer,
) -> Option<ContainerKill<'a>> {
    let (kind, grace) = failed(inputs, container, running)?;
    let mut message = format!("Container {} failed {kind} probe", container.name);
    // Restart rules apply only to containers that exit by themselves.
    let restart = effective_policy(inputs.entry.view(), container) != RestartPolicy::Never;
    if restart {
        message.push_str(", will be restarted");
    }
    let kill = ContainerKill::new(running, ContainerKind::Regular, message);
    Some(ContainerKill { grace_secs: grace, restart, ..kill })
}

/// The kill of a sidecar that failed a probe. It is always started again.
pub(super) fn kill_sidecar<'a>(
    inputs: &PlanInputs,
    container: &Container,
    running: &'a ObservedContainer,
) -> Option<ContainerKill<'a>> {
    let (kind, grace) = failed(inputs, container, running)?;
    let message = format!("Init container {} failed {kind} probe", container.name);
    Some(ContainerKill { grace_secs: grace, ..ContainerKill::new(running, ContainerKind::Init, message) })
}

/// The probe that failed, and its grace period.
fn failed(
    inputs: &PlanInputs,
    container: &Container,
    running: &ObservedContainer,
) -> Option<(&'static str, Option<i64>)> {
    let of = |kind, word| {
        let failed = inputs.entry.probes.has_failed(&container.name, kind, &running.id);
        let grace = probe_of(container, kind).and_then(|p| p.termination_grace_period_seconds);
        failed.then_some((word, grace))
    };
    of(ProbeKind::Liveness, "liveness").or_else(|| of(ProbeKind::Startup, "startup"))
}
