//! What a pod needs of the cluster: the variables of its containers, its pull secrets.

use model::ApiEvent;
use model::cluster::{ObjectKey, ObjectKind};
use model::k8s::Container;
use model::why::Cause;

use super::{PlanInputs, PodPlan};
use crate::objects::{Known, pull_secrets, waits_for};
use crate::render::{EnvObjects, Services};

/// Variables of a container that are made of objects. `objects`: `None` without a cluster.
pub(super) struct Variables<'a> {
    pub objects: Option<EnvObjects>,
    pub services: Services<'a>,
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
    let services = if desk.is_alone() { Services::Standalone } else { desk.services() };
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
