//! What a pod needs of the cluster: the variables of its containers, its pull secrets.

use model::ApiEvent;
use model::cluster::{ObjectKey, ObjectKind};
use model::files::EnvFileRead;
use model::k8s::Container;
use model::why::Cause;

use super::{PlanInputs, PodPlan};
use crate::action::{Action, Stage};
use crate::objects::{ObjectLookup, pull_secrets, waits_for};
use crate::render::{EnvObjects, Services, env};

/// Variables of a container that are made of objects. `objects`: `None` without a cluster.
pub(super) struct Variables<'a> {
    pub objects: Option<EnvObjects>,
    pub services: Services<'a>,
    pub files: &'a [EnvFileRead],
}

/// The same with what the container's files of variables hold; `None` while they have to be read first.
pub(super) fn with_files<'a>(
    inputs: &PlanInputs<'a>,
    container: &Container,
    variables: Variables<'a>,
    plan: &mut PodPlan,
) -> Option<Variables<'a>> {
    let on = inputs.config.feature(env::file::GATE);
    let files = if on { env::file::env_files(inputs.entry.view(), container) } else { Vec::new() };
    if files.is_empty() {
        return Some(variables);
    }
    if let Some(files) = inputs.entry.ledger.env_files.get(&container.name) {
        return Some(Variables { files, ..variables });
    }
    plan.because(Some(&container.name), Cause::Starting, None);
    plan.stages.push(Stage::continue_on_failure(vec![Action::ReadEnvFiles {
        container: container.name.clone(),
        files,
    }]));
    None
}

/// `None`, with the reason noted, while something is not known yet.
pub(super) fn variables<'a>(
    inputs: &PlanInputs<'a>,
    container: &Container,
    plan: &mut PodPlan,
) -> Option<Variables<'a>> {
    let Some(desk) = inputs.cluster else {
        return Some(Variables { objects: None, services: Services::Standalone, files: &[] });
    };
    let view = inputs.entry.view();
    let services = if desk.is_standalone() { Services::Standalone } else { desk.services() };
    if services == Services::NotRead && !view.source.is_static() {
        plan.because(Some(&container.name), Cause::WaitingForServices, None);
        return None;
    }
    match desk.env_objects(view.namespace(), container) {
        Ok(objects) => Some(Variables { objects: Some(objects), services, files: &[] }),
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
    let view = inputs.entry.view();
    let mut missing = Vec::new();
    for name in pull_secrets(view) {
        let key = ObjectKey {
            kind: ObjectKind::Secret,
            namespace: view.namespace().to_owned(),
            name: name.to_owned(),
        };
        match desk.lookup(&key) {
            ObjectLookup::Found(_) => {}
            ObjectLookup::NotRead { read_error: trouble } => {
                plan.because(Some(container), waits_for(&key, trouble), None);
                return false;
            }
            ObjectLookup::Absent | ObjectLookup::Denied(_) | ObjectLookup::NotReferenced => {
                missing.push(name)
            }
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
