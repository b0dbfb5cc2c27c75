//! Images: what a container needs, what the desk finds, and who is woken.

use std::time::Duration;

use model::cri::Image;
use model::pod::ContainerKind;
use model::{ApiEvent, PodUid, Reason};

use super::{Context, observe};
use crate::back_off::{self, go_duration};
use crate::event::{CallFailure, PulledImage};
use crate::images::{ImageState, PullPolicy, ResolvedImage, Waiter, normalise, resolved};
use crate::ledger::StartFailure;
use crate::plan::{ImageNeed, RETRY};
use crate::state::NodeState;

pub(super) fn request(state: &mut NodeState, cx: &mut Context, uid: &PodUid, need: &ImageNeed) {
    let image = match normalise(&need.image) {
        Ok(image) => image,
        Err(error) => {
            let text = format!("Failed to apply default image tag \"{}\": {error}", need.image);
            let known = failure_of(state, uid, &need.container).is_some_and(|f| f.message == text);
            if !known {
                cx.record(
                    state,
                    uid,
                    ApiEvent::warning("InspectFailed", text.clone()).about(need.kind, &need.container),
                );
                let event = ApiEvent::warning("Failed", format!("Error: {}", Reason::InvalidImageName));
                cx.record(state, uid, event.about(need.kind, &need.container));
            }
            return fail(state, cx, uid, &need.container, Reason::InvalidImageName, text, Some(RETRY));
        }
    };
    let waiter = Waiter { uid: uid.clone(), container: need.container.clone() };
    let effect = match need.policy {
        PullPolicy::Always => return begin_pull(state, cx, &image, waiter),
        PullPolicy::IfNotPresent | PullPolicy::Never => state.images.inspect(&image, waiter),
    };
    if let Some(entry) = state.pods.get_mut(uid) {
        entry.ledger.look_again.remove(&need.container);
        entry.ledger.images.insert(need.container.clone(), ImageState::Inspecting);
    }
    effect.into_iter().for_each(|e| cx.emit(e));
}

fn begin_pull(state: &mut NodeState, cx: &mut Context, image: &str, waiter: Waiter) {
    let (uid, container) = (waiter.uid.clone(), waiter.container.clone());
    let (kind, named) = named_in_spec(state, &uid, &container);
    if let Some(entry) = state.pods.get_mut(&uid) {
        entry.ledger.look_again.remove(&container);
        entry.ledger.images.insert(container.clone(), ImageState::Pulling { since: cx.now.mono });
    }
    cx.record(
        state,
        &uid,
        ApiEvent::normal("Pulling", format!("Pulling image \"{named}\"")).about(kind, &container),
    );
    let config = state.config.clone();
    state.images.pull(image, waiter, &config).into_iter().for_each(|e| cx.emit(e));
}

pub(super) fn inspected(
    state: &mut NodeState,
    cx: &mut Context,
    image: &str,
    result: Result<Option<Image>, CallFailure>,
) {
    for waiter in state.images.inspected(image) {
        if !still_waits(state, &waiter, image) {
            continue;
        }
        let (kind, named) = named_in_spec(state, &waiter.uid, &waiter.container);
        let about = |event: ApiEvent| event.about(kind, &waiter.container);
        match &result {
            Ok(Some(found)) => {
                let text = format!(
                    "Container image \"{named}\" already present on machine and can be accessed by the pod"
                );
                cx.record(state, &waiter.uid, about(ApiEvent::normal("Pulled", text)));
                ready(state, cx, &waiter, resolved(found));
            }
            Ok(None) => absent(state, cx, image, waiter),
            Err(failure) => {
                let text = format!("Failed to inspect image \"\": {}", failure.message);
                cx.record(state, &waiter.uid, about(ApiEvent::warning("InspectFailed", text.clone())));
                let reason = Reason::ImageInspectError;
                fail(
                    state,
                    cx,
                    &waiter.uid,
                    &waiter.container,
                    reason,
                    text,
                    Some(super::outcome::INSPECT_RETRY),
                );
            }
        }
    }
    if result.is_err_and(|f| f.unreachable) {
        observe::check_runtime(state, cx);
    }
}

/// The runtime does not have it: pull, refuse, or go on waiting for the back-off.
fn absent(state: &mut NodeState, cx: &mut Context, image: &str, waiter: Waiter) {
    let (kind, named) = named_in_spec(state, &waiter.uid, &waiter.container);
    let Some(entry) = state.pods.get_mut(&waiter.uid) else { return };
    let policy = entry
        .view
        .container(&waiter.container)
        .map_or(PullPolicy::IfNotPresent, |(_, c)| PullPolicy::parse(c.image_pull_policy.as_deref()));
    if policy == PullPolicy::Never {
        let text = format!("Container image \"{named}\" is not present with pull policy of Never");
        let known = entry.ledger.failures.get(&waiter.container).is_some_and(|f| f.message == text);
        if !known {
            let event = ApiEvent::warning("ErrImageNeverPull", text.clone()).about(kind, &waiter.container);
            cx.record(state, &waiter.uid, event);
            let event = ApiEvent::warning("Failed", format!("Error: {}", Reason::ErrImageNeverPull));
            cx.record(state, &waiter.uid, event.about(kind, &waiter.container));
        }
        return fail(state, cx, &waiter.uid, &waiter.container, Reason::ErrImageNeverPull, text, Some(RETRY));
    }
    if back_off::pull_wait(entry.ledger.pulls.get(&named), cx.now.wall).is_some() {
        // Looked because an image had arrived; it was another one.
        entry.ledger.images.remove(&waiter.container);
        state.images.stuck.insert(waiter.uid.clone());
        return cx.touch(&waiter.uid);
    }
    begin_pull(state, cx, image, waiter);
}

pub(super) fn pulled(
    state: &mut NodeState,
    cx: &mut Context,
    image: &str,
    result: Result<PulledImage, CallFailure>,
) {
    let config = state.config.clone();
    let (waiters, next) = state.images.pulled(image, &config);
    next.into_iter().for_each(|e| cx.emit(e));
    for waiter in waiters {
        if !still_waits(state, &waiter, image) {
            continue;
        }
        match &result {
            Ok(pulled) => pull_succeeded(state, cx, &waiter, pulled),
            Err(failure) => pull_failed(state, cx, &waiter, failure),
        }
    }
    if result.is_err_and(|f| f.unreachable) {
        observe::check_runtime(state, cx);
    }
}

fn pull_succeeded(state: &mut NodeState, cx: &mut Context, waiter: &Waiter, pulled: &PulledImage) {
    let (kind, named) = named_in_spec(state, &waiter.uid, &waiter.container);
    let Some(entry) = state.pods.get_mut(&waiter.uid) else { return };
    let waited = match entry.ledger.images.get(&waiter.container) {
        Some(ImageState::Pulling { since }) => cx.now.mono.since(*since),
        _ => pulled.took,
    };
    entry.ledger.pulls.remove(&named);
    let size = pulled.image.as_ref().map_or(0, |i| i.size);
    let text = format!(
        "Successfully pulled image \"{named}\" in {} ({} including waiting). Image size: {size} bytes.",
        rounded(pulled.took),
        rounded(waited)
    );
    cx.record(state, &waiter.uid, ApiEvent::normal("Pulled", text).about(kind, &waiter.container));
    let found = pulled.image.as_ref();
    let resolved = ResolvedImage {
        reference: pulled.reference.clone(),
        user_uid: found.and_then(|i| i.uid.as_ref()).map(|u| u.value),
        username: found.map(|i| i.username.clone()).unwrap_or_default(),
    };
    ready(state, cx, waiter, resolved);
}

/// Milliseconds are enough for people.
fn rounded(d: Duration) -> String {
    go_duration(Duration::from_millis(d.as_millis() as u64))
}

fn pull_failed(state: &mut NodeState, cx: &mut Context, waiter: &Waiter, failure: &CallFailure) {
    let (kind, named) = named_in_spec(state, &waiter.uid, &waiter.container);
    let reason = match &failure.message {
        m if m.starts_with("RegistryUnavailable") => Reason::RegistryUnavailable,
        m if m.starts_with("SignatureValidationFailed") => Reason::SignatureValidationFailed,
        _ => Reason::ErrImagePull,
    };
    let text = format!("Failed to pull image \"{named}\": {}", failure.message);
    cx.record(state, &waiter.uid, ApiEvent::warning("Failed", text).about(kind, &waiter.container));
    cx.record(
        state,
        &waiter.uid,
        ApiEvent::warning("Failed", format!("Error: {reason}")).about(kind, &waiter.container),
    );
    if let Some(entry) = state.pods.get_mut(&waiter.uid) {
        let old = entry.ledger.pulls.get(&named);
        let next = back_off::pull_failed(old, cx.now.wall, reason, failure.message.clone());
        entry.ledger.pulls.insert(named, next);
    }
    fail(state, cx, &waiter.uid, &waiter.container, reason, failure.message.clone(), None);
}

fn ready(state: &mut NodeState, cx: &mut Context, waiter: &Waiter, image: ResolvedImage) {
    if let Some(entry) = state.pods.get_mut(&waiter.uid) {
        entry.ledger.images.insert(waiter.container.clone(), ImageState::Ready(image));
        let waited_for_image =
            entry.ledger.failures.get(&waiter.container).is_some_and(|f| is_image_reason(f.reason));
        if waited_for_image {
            entry.ledger.failures.remove(&waiter.container);
            entry.ledger.retry_at.remove(&waiter.container);
        }
        if !entry.ledger.failures.values().any(|f| is_image_reason(f.reason)) {
            state.images.stuck.remove(&waiter.uid);
        }
        cx.touch(&waiter.uid);
    }
}

fn fail(
    state: &mut NodeState,
    cx: &mut Context,
    uid: &PodUid,
    container: &str,
    reason: Reason,
    message: String,
    retry: Option<Duration>,
) {
    if let Some(entry) = state.pods.get_mut(uid) {
        entry.ledger.images.remove(container);
        entry.ledger.look_again.remove(container);
        entry.ledger.failures.insert(container.to_owned(), StartFailure { reason, message });
        match retry {
            Some(wait) => entry.ledger.retry_at.insert(container.to_owned(), cx.now.mono.plus(wait)),
            None => entry.ledger.retry_at.remove(container),
        };
        state.images.stuck.insert(uid.clone());
        cx.touch(uid);
    }
}

/// An image arrived in the runtime: who has been refused or backs off looks again at once.
pub(super) fn arrived(state: &mut NodeState, cx: &mut Context) {
    for uid in state.images.stuck.clone() {
        let Some(entry) = state.pods.get_mut(&uid) else { continue };
        let waiting: Vec<String> = entry
            .ledger
            .failures
            .iter()
            .filter(|(_, f)| is_image_reason(f.reason) && f.reason != Reason::InvalidImageName)
            .map(|(name, _)| name.clone())
            .filter(|name| {
                let policy = entry.view.container(name).and_then(|(_, c)| c.image_pull_policy.clone());
                PullPolicy::parse(policy.as_deref()) != PullPolicy::Always
            })
            .collect();
        if !waiting.is_empty() {
            entry.ledger.look_again.extend(waiting);
            cx.touch(&uid);
        }
    }
}

fn is_image_reason(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::ErrImagePull
            | Reason::ImagePullBackOff
            | Reason::ErrImageNeverPull
            | Reason::InvalidImageName
            | Reason::ImageInspectError
            | Reason::RegistryUnavailable
            | Reason::SignatureValidationFailed
    )
}

/// The list it stands in and the image as the spec names it.
fn named_in_spec(state: &NodeState, uid: &PodUid, container: &str) -> (ContainerKind, String) {
    let found = state.pods.get(uid).and_then(|e| e.view.container(container));
    found.map_or((ContainerKind::Regular, String::new()), |(kind, c)| {
        (kind, c.image.clone().unwrap_or_default())
    })
}

fn failure_of<'a>(state: &'a NodeState, uid: &PodUid, container: &str) -> Option<&'a StartFailure> {
    state.pods.get(uid)?.ledger.failures.get(container)
}

/// Not when the pod goes, nor when its spec names another image by now, or no such container.
fn still_waits(state: &NodeState, waiter: &Waiter, image: &str) -> bool {
    state.pods.get(&waiter.uid).is_some_and(|e| {
        let in_spec = e.view.container(&waiter.container).and_then(|(_, c)| c.image.as_deref());
        e.lifecycle.may_start()
            && in_spec.is_some_and(|named| normalise(named).is_ok_and(|named| named == image))
            && matches!(
                e.ledger.images.get(&waiter.container),
                Some(ImageState::Inspecting | ImageState::Pulling { .. })
            )
    })
}
