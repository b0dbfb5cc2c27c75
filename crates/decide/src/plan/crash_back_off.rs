//! The back-off of containers that exit again and again.

use model::k8s::Container;
use model::observed::{ContainerState, ObservedContainer};
use model::pod::ContainerKind;
use model::why::Cause;
use model::{ApiEvent, Reason};

use super::{PlanInputs, PlanNote, PodPlan};
use crate::back_off::{self, CrashLimits};
use crate::ledger::StartFailure;
use model::hash::fnv1a_64;

/// Whether the container may not start yet because of its back-off. Notes the reason.
pub(super) fn waits_for_crash_back_off(
    inputs: &PlanInputs,
    kind: ContainerKind,
    container: &Container,
    plan: &mut PodPlan,
) -> bool {
    let Some(exited) = newest_exited(inputs, &container.name) else { return false };
    let view = inputs.entry.view();
    let entry = inputs.entry.ledger.crash_back_offs.get(&container.name);
    let key = definition_key(inputs, container);
    let Some(until) = back_off::crash_back_off_until(entry, key, exited.finished_at, inputs.now.wall) else {
        return false;
    };
    let delay = entry.map(|e| e.delay).unwrap_or_default();
    let (name, human) = (&container.name, view.display_name());
    let event =
        ApiEvent::warning("BackOff", format!("Back-off restarting failed container {name} in pod {human}"));
    plan.announce(format!("crash {} {}", exited.id, delay.as_secs()), event.for_container(kind, name));
    let message =
        format!("back-off {} restarting failed container={name} pod={human}", back_off::go_duration(delay));
    let failure = StartFailure { reason: Reason::CrashLoopBackOff, message };
    plan.notes.push(PlanNote::Failure { container: name.clone(), failure, retry_at: None });
    let cause = Cause::CrashBackOff {
        back_off_secs: delay.as_secs(),
        exit_code: exited.exit_code,
        finished_at: exited.finished_at,
        restarts: exited.restart_count,
    };
    plan.because(Some(name), cause, Some(inputs.now.mono_at(until)));
    true
}

/// The next crash back-off, if a container that exited is started again now.
pub(super) fn note_crash_back_off(inputs: &PlanInputs, container: &Container) -> Option<PlanNote> {
    let exited = newest_exited(inputs, &container.name)?;
    let limits =
        CrashLimits { initial: inputs.config.crash_back_off_initial, max: inputs.config.crash_back_off_max };
    let key = definition_key(inputs, container);
    let entry = inputs.entry.ledger.crash_back_offs.get(&container.name);
    let advanced = back_off::next_crash_back_off(entry, key, exited.finished_at, inputs.now.wall, limits);
    Some(PlanNote::CrashAdvance { container: container.name.clone(), entry: advanced })
}

fn newest_exited<'a>(inputs: &'a PlanInputs, name: &str) -> Option<&'a ObservedContainer> {
    inputs.observed.containers.iter().find(|c| c.name == name && c.state == ContainerState::Exited)
}

/// The key of the crash back-off. It changes with the image and the resources of the container.
fn definition_key(inputs: &PlanInputs, container: &Container) -> u64 {
    let view = inputs.entry.view();
    let resources = container.resources.as_ref().map(|r| format!("{r:?}")).unwrap_or_default();
    let image = container.image.as_deref().unwrap_or_default();
    let text =
        format!("{}/{}/{}/{}/{image}/{resources}", view.name(), view.namespace(), view.uid, container.name);
    fnv1a_64(text.as_bytes())
}
