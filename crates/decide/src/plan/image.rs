//! The images that a container needs before it starts: its own, and those of the image volumes that it mounts.

use std::collections::BTreeMap;
use std::time::Duration;

use model::cri::{ImageSpec, SandboxConfig};
use model::k8s::{Container, Volume};
use model::pod::ContainerKind;
use model::why::Cause;
use model::{ApiEvent, Reason};

use super::{ImageNeed, PlanInputs, PlanNote, PodPlan, api_objects, volumes};
use crate::back_off;
use crate::images::{ImageState, PullPolicy, ResolvedImage, volume_key, volume_of_key};
use crate::ledger::StartFailure;
use crate::render;
use crate::sandbox::sandbox_change;

/// A failed pull is shown as such for this long before it is shown as waiting.
const SHOW_PULL_ERROR: Duration = Duration::from_secs(1);

/// All images of a container, ready to use.
#[derive(Clone, Debug)]
pub(super) struct ContainerImages {
    pub own: ResolvedImage,
    /// By the volume's name.
    pub volumes: BTreeMap<String, ImageSpec>,
}

/// One of them, as the spec has it.
struct WantedImage<'a> {
    /// The container's name, or the volume's key.
    key: String,
    /// `None`: a volume.
    kind: Option<ContainerKind>,
    /// The container that waits for it.
    container: &'a str,
    image: String,
    policy: PullPolicy,
}

impl WantedImage<'_> {
    fn event_for_container(&self, event: ApiEvent) -> ApiEvent {
        match self.kind {
            Some(kind) => event.for_container(kind, self.container),
            None => event,
        }
    }
}

pub(super) fn of_container(
    inputs: &PlanInputs,
    kind: ContainerKind,
    container: &Container,
    plan: &mut PodPlan,
) -> Option<ResolvedImage> {
    let wanted = WantedImage {
        key: container.name.clone(),
        kind: Some(kind),
        container: &container.name,
        image: container.image.clone().unwrap_or_default(),
        policy: PullPolicy::parse(container.image_pull_policy.as_deref()),
    };
    find_or_request_image(inputs, &wanted, plan)
}

/// Requests the images of all volumes that the pod's containers mount, including containers that start later.
pub(super) fn fetch_volumes(inputs: &PlanInputs, plan: &mut PodPlan) {
    let view = inputs.entry.view();
    for (_, container) in view.all_containers() {
        for wanted in volumes_of(inputs, container) {
            // The reason is noted when the container is about to start.
            let mut aside = PodPlan::default();
            let _ = find_or_request_image(inputs, &wanted, &mut aside);
            aside.notes.retain(|note| matches!(note, PlanNote::NeedImage(_)) && !plan.notes.contains(note));
            plan.notes.extend(aside.notes);
        }
    }
}

fn volumes_of<'a>(inputs: &PlanInputs, container: &'a Container) -> Vec<WantedImage<'a>> {
    let mounted =
        |volume: &&Volume| container.volume_mounts.iter().flatten().any(|mount| mount.name == volume.name);
    let volumes = inputs.entry.view().spec().volumes.iter().flatten().filter(mounted);
    let wanted = |volume: &Volume| {
        let source = volume.image.clone()?;
        Some(WantedImage {
            key: volume_key(&volume.name),
            kind: None,
            container: &container.name,
            image: source.reference.unwrap_or_default(),
            policy: PullPolicy::parse(source.pull_policy.as_deref()),
        })
    };
    volumes.filter_map(wanted).collect()
}

/// The images of the volumes that the container mounts; `None` if one is missing.
pub(super) fn of_volumes(
    inputs: &PlanInputs,
    kind: ContainerKind,
    container: &Container,
    plan: &mut PodPlan,
) -> Option<BTreeMap<String, ImageSpec>> {
    let annotations = inputs.entry.view().pod.metadata.annotations.clone().unwrap_or_default();
    let mut found = BTreeMap::new();
    let mut missing = false;
    for wanted in volumes_of(inputs, container) {
        let noted = plan.notes.len();
        let Some(resolved) = find_or_request_image(inputs, &wanted, plan) else {
            missing = true;
            pass_on_failure(inputs, kind, &wanted, noted, plan);
            continue;
        };
        let spec = ImageSpec {
            image: resolved.reference,
            annotations: annotations.clone(),
            user_specified_image: wanted.image,
            runtime_handler: inputs.image_handler().to_owned(),
        };
        let volume = volume_of_key(&wanted.key).unwrap_or_default().to_owned();
        found.insert(volume, spec);
    }
    (!missing).then_some(found)
}

/// The configuration of the sandbox that the pod has or is about to get, which goes with its pulls.
pub fn pull_sandbox_config(inputs: &PlanInputs) -> Option<SandboxConfig> {
    let view = inputs.entry.view();
    let attempt = sandbox_change(view, inputs.observed).attempt;
    let groups = volumes::groups(inputs);
    let rendered = render::sandbox_config(&inputs.render_context(&groups), view, attempt);
    rendered.ok().map(|rendered| rendered.value)
}

/// A failure of a volume's image is shown as the failure of the container that mounts it.
fn pass_on_failure(
    inputs: &PlanInputs,
    kind: ContainerKind,
    wanted: &WantedImage,
    noted: usize,
    plan: &mut PodPlan,
) {
    let ledger = &inputs.entry.ledger;
    let just_noted = plan.notes[noted..].iter().find_map(|note| match note {
        PlanNote::Failure { failure, .. } => Some(failure.clone()),
        _ => None,
    });
    let known = || ledger.start_failures.get(&wanted.key).cloned();
    let Some(failure) = just_noted.or_else(known) else { return };
    let container = wanted.container.to_owned();
    let tried = ledger.pull_back_offs.get(&wanted.image).map(|pull| pull.failed_at);
    let event =
        ApiEvent::warning("Failed", format!("Error: {}", failure.reason)).for_container(kind, &container);
    plan.announce(format!("{} {container} {} {tried:?}", wanted.key, failure.reason), event);
    plan.notes.push(PlanNote::Failure { container, failure, retry_at: None });
}

fn find_or_request_image(
    inputs: &PlanInputs,
    wanted: &WantedImage,
    plan: &mut PodPlan,
) -> Option<ResolvedImage> {
    let ledger = &inputs.entry.ledger;
    let image = wanted.image.clone();
    match ledger.image_states.get(&wanted.key) {
        Some(ImageState::Ready(resolved)) => return Some(resolved.clone()),
        Some(ImageState::Inspecting | ImageState::Pulling { .. }) => {
            plan.because(Some(wanted.container), Cause::PullingImage { image }, None);
            return None;
        }
        None => {}
    }
    if !ledger.recheck_images.contains(&wanted.key)
        && (waits_for_retry(inputs, wanted, plan) || backs_off(inputs, wanted, plan))
    {
        return None;
    }
    if !api_objects::pull_secrets_known(inputs, wanted.container, plan) {
        return None;
    }
    plan.because(Some(wanted.container), Cause::PullingImage { image: image.clone() }, None);
    let need = ImageNeed {
        container: wanted.key.clone(),
        kind: wanted.kind,
        image,
        policy: wanted.policy,
        handler: inputs.image_handler().to_owned(),
    };
    if !plan.notes.contains(&PlanNote::NeedImage(need.clone())) {
        plan.notes.push(PlanNote::NeedImage(need));
    }
    None
}

/// It could not be looked for, or may not be pulled: that is tried again at its time.
fn waits_for_retry(inputs: &PlanInputs, wanted: &WantedImage, plan: &mut PodPlan) -> bool {
    let ledger = &inputs.entry.ledger;
    let (Some(at), Some(failure)) =
        (ledger.retry_at.get(&wanted.key), ledger.start_failures.get(&wanted.key))
    else {
        return false;
    };
    // What else keeps a container from starting is not the image's business.
    let of_image = matches!(
        failure.reason,
        Reason::ErrImageNeverPull | Reason::InvalidImageName | Reason::ImageInspectError
    );
    if !of_image || *at <= inputs.now.mono {
        return false;
    }
    let cause = Cause::ImageUnavailable { reason: failure.reason, message: failure.message.clone() };
    plan.because(Some(wanted.container), cause, Some(*at));
    true
}

fn backs_off(inputs: &PlanInputs, wanted: &WantedImage, plan: &mut PodPlan) -> bool {
    let image = &wanted.image;
    let back_off = inputs.entry.ledger.pull_back_offs.get(image);
    let (Some(entry), Some(until)) = (back_off, back_off::pull_back_off_until(back_off, inputs.now.wall))
    else {
        return false;
    };
    let text = format!("Back-off pulling image \"{image}\"");
    let cause = Cause::ImageBackOff {
        reason: entry.reason,
        image: image.clone(),
        message: entry.message.clone(),
        back_off_secs: entry.delay.as_secs(),
    };
    plan.because(Some(wanted.container), cause, Some(inputs.now.mono_at(until)));
    let show_from = entry.failed_at.plus(SHOW_PULL_ERROR);
    if inputs.now.wall < show_from {
        plan.wake(inputs.now.mono_at(show_from));
        return true;
    }
    let tried = format!("{image} {:?}", entry.failed_at);
    plan.announce(
        format!("pull {tried}"),
        wanted.event_for_container(ApiEvent::normal("BackOff", text.clone())),
    );
    let reason = Reason::ImagePullBackOff;
    if wanted.kind.is_some() {
        let event = wanted.event_for_container(ApiEvent::warning("Failed", format!("Error: {reason}")));
        plan.announce(format!("pull error {} {tried}", wanted.key), event);
    }
    let message = format!("{text}: {}: {}", entry.reason, entry.message);
    let failure = StartFailure { reason, message };
    plan.notes.push(PlanNote::Failure { container: wanted.key.clone(), failure, retry_at: None });
    true
}
