//! What a pod needs of the cluster: the files of its volumes, the variables of its containers, its pull secrets.

use model::ApiEvent;
use model::cluster::{ObjectKey, ObjectKind};
use model::k8s::Container;
use model::volume::VolumeSetup;
use model::why::Cause;

use super::{PlanInputs, PodPlan};
use crate::effect::Action;
use crate::objects::{Known, pull_secrets, waits_for};
use crate::render::{EnvObjects, Services};
use crate::volumes::{self, ContentInputs, Held, VolumeError, mount_failure};

const STEP: &str = "set up volumes";

/// Variables of a container that are made of objects. `objects`: `None` without a cluster.
pub(super) struct Variables<'a> {
    pub objects: Option<EnvObjects>,
    pub services: Services<'a>,
}

fn inputs_of<'a>(inputs: &PlanInputs<'a>) -> ContentInputs<'a> {
    ContentInputs {
        config: inputs.config,
        facts: inputs.facts,
        pod: &inputs.entry.view,
        cluster: inputs.cluster,
        now: inputs.now.wall,
    }
}

/// The set-up of all volumes; `None`, with the reasons noted, while one of them can't be set up.
pub(super) fn setups(inputs: &PlanInputs, plan: &mut PodPlan) -> Result<Option<Vec<Action>>, VolumeError> {
    let found = volumes::setups(&inputs_of(inputs))?;
    let held = !found.held.is_empty();
    for one in found.held {
        say(inputs, one, plan);
    }
    let waits = found.ready.iter().filter(|setup| waits_for_retry(inputs, setup, plan)).count();
    let actions = found.ready.into_iter().map(|volume| Action::SetUpVolume { volume }).collect();
    Ok((!held && waits == 0).then_some(actions))
}

/// Volumes of a pod that runs whose files should be others by now. What can't be had leaves the old files.
pub(super) fn updates(inputs: &PlanInputs, plan: &mut PodPlan) -> Vec<Action> {
    let found = volumes::updates(&inputs_of(inputs), &inputs.entry.ledger.content);
    for one in found.held {
        say(inputs, one, plan);
    }
    let ready = found.ready.into_iter();
    let due: Vec<_> = ready.filter(|setup| !waits_for_retry(inputs, setup, plan)).collect();
    due.into_iter().map(|volume| Action::SetUpVolume { volume }).collect()
}

fn say(inputs: &PlanInputs, held: Held, plan: &mut PodPlan) {
    match held {
        Held::Waits { cause, .. } => plan.because(None, cause, None),
        Held::Refused { volume, message } => {
            let message = mount_failure(&volume, &message);
            // Once it was there, that it is gone again is news.
            let had = inputs.entry.ledger.content.get(&volume);
            plan.announce(format!("{message} {had:?}"), ApiEvent::warning("FailedMount", message.clone()));
            plan.because(None, Cause::StepFailed { step: STEP.into(), message }, None);
        }
    }
}

/// Each volume has a back-off of its own.
fn waits_for_retry(inputs: &PlanInputs, setup: &VolumeSetup, plan: &mut PodPlan) -> bool {
    let retry = inputs.entry.ledger.volume_retry.get(&setup.name);
    let Some(retry) = retry.filter(|retry| retry.at > inputs.now.mono) else { return false };
    let message = mount_failure(&setup.name, &retry.message);
    plan.because(None, Cause::StepFailed { step: STEP.into(), message }, Some(retry.at));
    true
}

/// `None`, with the reason noted, while something is not known yet.
pub(super) fn variables<'a>(
    inputs: &PlanInputs<'a>,
    container: &Container,
    plan: &mut PodPlan,
) -> Option<Variables<'a>> {
    let Some(desk) = inputs.cluster else {
        return Some(Variables { objects: None, services: Services::Standalone });
    };
    let view = &inputs.entry.view;
    let services = desk.services();
    if services == Services::NotRead && !view.source.is_static() {
        plan.because(Some(&container.name), Cause::WaitingForServices, None);
        return None;
    }
    match desk.env_objects(view.namespace(), container) {
        Ok(objects) => Some(Variables { objects: Some(objects), services }),
        Err(cause) => {
            plan.because(Some(&container.name), cause, None);
            None
        }
    }
}

/// Whether images may be looked for: every pull secret was read, or is known to be missing. The pull may succeed
/// without those.
pub(super) fn pull_secrets_known(inputs: &PlanInputs, container: &str, plan: &mut PodPlan) -> bool {
    let Some(desk) = inputs.cluster else { return true };
    let view = &inputs.entry.view;
    let mut missing = Vec::new();
    for name in pull_secrets(view) {
        let key = ObjectKey {
            kind: ObjectKind::Secret,
            namespace: view.namespace().to_owned(),
            name: name.to_owned(),
        };
        match desk.look(&key) {
            Known::Is(_) => {}
            Known::Unread { trouble } => {
                plan.because(Some(container), waits_for(&key, trouble), None);
                return false;
            }
            Known::Absent | Known::Denied(_) | Known::Unclaimed => missing.push(name),
        }
    }
    if !missing.is_empty() {
        let names = missing.join(", ");
        let text = format!(
            "Unable to retrieve some image pull secrets ({names}); attempting to pull the image may not succeed."
        );
        plan.announce(text.clone(), ApiEvent::warning("FailedToRetrieveImagePullSecret", text));
    }
    true
}
