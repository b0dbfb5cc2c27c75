//! Images within a step: requests them, handles the results of inspections and pulls, and touches the pods that waited.

use std::collections::BTreeSet;
use std::time::Duration;

use model::credentials::{PullHistory, PullServiceAccount};
use model::cri::Image;
use model::pod::{ContainerKind, PodView};
use model::{ApiEvent, PodUid, Reason};

use super::observation_requests::check_runtime;
use super::{Context, image_garbage, pull_context};
use crate::action::CallFailure;
use crate::back_off::{self, go_duration};
use crate::credentials::{
    CredentialCandidate, ImageAccess, PodCredentials, has_recorded_service_accounts, image_access,
    secrets_of_candidates, verification_result_label,
};
use crate::effect::Effect;
use crate::event::PulledImage;
use crate::image_garbage::AnswerCheck;
use crate::image_pull::PullKey;
use crate::images::{
    AccessCheck, ImageState, PullDecision, PullPolicy, ResolvedImage, Waiter, image_key,
    normalise_image_name, resolve_image, split_key, volume_of_key,
};
use crate::ledger::StartFailure;
use crate::objects::pull_secret_candidates;
use crate::plan::{ImageNeed, RETRY};
use crate::state::NodeState;

/// The delay before a failed image inspection is retried.
const INSPECT_RETRY: Duration = RETRY;

pub(super) fn request_image(state: &mut NodeState, cx: &mut Context, uid: &PodUid, need: &ImageNeed) {
    let subject = ImageUse { kind: need.kind, named: need.image.clone(), policy: need.policy };
    let waiter = Waiter { uid: uid.clone(), container: need.container.clone() };
    let image = match normalise_image_name(&need.image) {
        Ok(image) => image_key(&image, &need.handler),
        Err(error) => {
            state.counters.image_requested(need.policy.word(), None, None);
            let text = format!("Failed to apply default image tag \"{}\": {error}", need.image);
            let known = failure_of(state, uid, &need.container).is_some_and(|f| f.message == text);
            if !known {
                let event = ApiEvent::warning("InspectFailed", text.clone());
                cx.record(state, uid, subject.event_for_container(event, &waiter));
                subject.start_failed(state, cx, &waiter, Reason::InvalidImageName);
            }
            return image_failed(state, cx, &waiter, Reason::InvalidImageName, text, Some(RETRY));
        }
    };
    let effect = match need.policy {
        PullPolicy::Always => {
            state.counters.image_requested(need.policy.word(), None, Some(true));
            return begin_pull(state, cx, &image, waiter);
        }
        PullPolicy::IfNotPresent | PullPolicy::Never => state.images.inspect(&image, waiter),
    };
    if let Some(entry) = state.pods.get_mut(uid) {
        entry.ledger.recheck_images.remove(&need.container);
        entry.ledger.image_states.insert(need.container.clone(), ImageState::Inspecting);
    }
    effect.into_iter().for_each(|e| cx.emit(e));
}

fn begin_pull(state: &mut NodeState, cx: &mut Context, image: &str, waiter: Waiter) {
    let subject = image_use(state, &waiter);
    if let Some(entry) = state.pods.get_mut(&waiter.uid) {
        entry.ledger.recheck_images.remove(&waiter.container);
        entry
            .ledger
            .image_states
            .insert(waiter.container.clone(), ImageState::Pulling { since: cx.now.mono });
    }
    let event = ApiEvent::normal("Pulling", format!("Pulling image \"{}\"", subject.named));
    cx.record(state, &waiter.uid, subject.event_for_container(event, &waiter));
    let config = state.config.clone();
    let request = pull_context::request(state, &waiter.uid, image);
    let turn = state.images.pull(request, waiter, &config, cx.now.mono);
    if let Some(refused) = apply_pull_decision(state, cx, turn) {
        pulled(state, cx, &refused, Err(rate_limited()));
    }
}

/// The pod's own credentials for the image.
fn own_of(state: &NodeState, uid: &PodUid, image: &str) -> Vec<CredentialCandidate> {
    let (Some(desk), Some(entry)) = (&state.objects, state.pods.get(uid)) else { return Vec::new() };
    pull_secret_candidates(desk, entry.view(), image)
}

pub(super) fn plugins_asked(state: &mut NodeState, cx: &mut Context, pull: &PullKey) {
    let config = state.config.clone();
    let turn = state.images.plugins_answered(pull, &config, cx.now.mono);
    if let Some(refused) = apply_pull_decision(state, cx, turn) {
        pulled(state, cx, &refused, Err(rate_limited()));
    }
}

/// Sets going what is to be done for a pull. Gives it back when it may not begin.
fn apply_pull_decision(
    state: &mut NodeState,
    cx: &mut Context,
    turn: Option<PullDecision>,
) -> Option<PullKey> {
    let effect = match turn? {
        PullDecision::RateLimited(pull) => return Some(pull),
        PullDecision::AskPlugins(pull, uid) => Effect::AskCredentialPlugins {
            pull,
            pod: pull_context::pulling_pod(state, &uid),
            for_access: false,
        },
        PullDecision::CheckAccess(pull, uid) => Effect::AskCredentialPlugins {
            pull,
            pod: pull_context::pulling_pod(state, &uid),
            for_access: true,
        },
        PullDecision::StartPull(pull, own, uid) => {
            let context = Box::new(pull_context::pull_context(state, cx, &uid));
            Effect::PullImage { pull, pod_credentials: own, context }
        }
    };
    cx.emit(effect);
    None
}

fn rate_limited() -> CallFailure {
    CallFailure { unreachable: false, message: PullDecision::RATE_LIMITED_MESSAGE.into() }
}

pub(super) fn inspected(
    state: &mut NodeState,
    cx: &mut Context,
    image: &str,
    result: Result<Option<Image>, CallFailure>,
    history: &PullHistory,
) {
    let found = result.as_ref().ok().and_then(|found| found.as_ref()).map(|found| found.id.as_str());
    match state.image_garbage.outdated.check_inspection(image, found) {
        AnswerCheck::Valid => {}
        // Who waits for the inspection goes on waiting.
        AnswerCheck::Held => return,
        AnswerCheck::Outdated => return cx.emit(Effect::InspectImage { image: image.to_owned() }),
    }
    for waiter in state.images.inspected(image) {
        if !still_waits(state, &waiter, image) {
            continue;
        }
        let subject = image_use(state, &waiter);
        match &result {
            Ok(Some(found)) if asks_for_access(state, &waiter, image, history) => {
                let key = pull_context::request(state, &waiter.uid, image).key;
                let turn = state.images.check_access(key, waiter, found, history);
                // Asking has no limit of its own: it is never refused.
                apply_pull_decision(state, cx, turn);
            }
            Ok(Some(found)) => use_or_pull(state, cx, (image, found, history), waiter, None),
            Ok(None) => {
                count_request(state, subject.policy, &result, false);
                image_unavailable(state, cx, image, waiter);
            }
            Err(failure) => {
                count_request(state, subject.policy, &result, false);
                let text = format!("Failed to inspect image \"\": {}", failure.message);
                let event = ApiEvent::warning("InspectFailed", text.clone());
                cx.record(state, &waiter.uid, subject.event_for_container(event, &waiter));
                let reason = Reason::ImageInspectError;
                subject.start_failed(state, cx, &waiter, reason);
                image_failed(state, cx, &waiter, reason, text, Some(INSPECT_RETRY));
            }
        }
    }
    if result.is_err_and(|f| f.unreachable) {
        check_runtime(state, cx);
    }
}

/// Whether only a service account may show that the pod may use the image: plugins know, and are asked first.
fn asks_for_access(state: &NodeState, waiter: &Waiter, image: &str, history: &PullHistory) -> bool {
    let Some(policy) = &state.config.pull_verification else { return false };
    let named = image_use(state, waiter).named;
    if !has_recorded_service_accounts(history, &named)
        || !pull_context::service_account_may_have_credentials(state, &waiter.uid, image)
    {
        return false;
    }
    let secrets = secrets_of_candidates(&own_of(state, &waiter.uid, image));
    let shown = PodCredentials { secrets, service_account: None };
    image_access(policy, &named, history, &shown) == ImageAccess::MustPull
}

/// The plugins have answered whose credentials they have for an image that is present.
pub(super) fn access_checked(
    state: &mut NodeState,
    cx: &mut Context,
    pull: &PullKey,
    account: Option<&PullServiceAccount>,
) {
    let Some(AccessCheck { waiters, found, history }) = state.images.access_checked(pull) else { return };
    for waiter in waiters {
        if still_waits(state, &waiter, &pull.image) {
            use_or_pull(state, cx, (&pull.image, &found, &history), waiter, account);
        }
    }
}

/// The image is present: the pod uses it if it may, and has to pull it otherwise.
fn use_or_pull(
    state: &mut NodeState,
    cx: &mut Context,
    (image, found, history): (&str, &Image, &PullHistory),
    waiter: Waiter,
    account: Option<&PullServiceAccount>,
) {
    let subject = image_use(state, &waiter);
    let usable = may_use(state, cx, &waiter, (&subject.named, image, &found.id), history, account);
    count_request(state, subject.policy, &Ok(Some(found.clone())), usable);
    if !usable {
        return image_unavailable(state, cx, image, waiter);
    }
    let access = match state.config.pull_verification {
        Some(_) => " and can be accessed by the pod",
        None => "",
    };
    let text = format!("Container image \"{}\" already present on machine{access}", subject.named);
    cx.record(state, &waiter.uid, subject.event_for_container(ApiEvent::normal("Pulled", text), &waiter));
    image_ready(state, cx, &waiter, resolve_image(found));
}

/// Counts the outcome of an image inspection by pull policy. With policy Never no pull can be required.
fn count_request(
    state: &mut NodeState,
    policy: PullPolicy,
    found: &Result<Option<Image>, CallFailure>,
    usable: bool,
) {
    let (present, pull_required) = match found {
        Ok(Some(_)) => (Some(true), Some(!usable)),
        Ok(None) if policy == PullPolicy::Never => (Some(false), None),
        Ok(None) => (Some(false), Some(true)),
        Err(_) => (None, None),
    };
    state.counters.image_requested(policy.word(), present, pull_required);
}

/// Whether a pod may use an image that is present, or has to pull it first. Without an API server, pods have no
/// credentials of their own.
fn may_use(
    state: &mut NodeState,
    cx: &mut Context,
    waiter: &Waiter,
    (named, image, image_ref): (&str, &str, &str),
    history: &PullHistory,
    account: Option<&PullServiceAccount>,
) -> bool {
    let Some(policy) = &state.config.pull_verification else { return true };
    let secrets = secrets_of_candidates(&own_of(state, &waiter.uid, image));
    let shown = PodCredentials { secrets, service_account: account.cloned() };
    let found = image_access(policy, named, history, &shown);
    let word = verification_result_label(policy, named, history, &found);
    *state.counters.access_checks.entry(word.to_owned()).or_default() += 1;
    match found {
        ImageAccess::MustPull => false,
        ImageAccess::Allowed { new_secret: None } => true,
        ImageAccess::Allowed { new_secret: Some(secret) } => {
            let (image, image_ref) = (named.to_owned(), image_ref.to_owned());
            cx.emit(Effect::RecordImageAccess { image, image_ref, secret });
            true
        }
    }
}

/// The image is absent, or the pod may not use it: pull it, fail, or go on waiting for the back-off. A pod that may not
/// use an image gets the same messages as if the image were absent.
fn image_unavailable(state: &mut NodeState, cx: &mut Context, image: &str, waiter: Waiter) {
    let subject = image_use(state, &waiter);
    let Some(entry) = state.pods.get_mut(&waiter.uid) else { return };
    if subject.policy == PullPolicy::Never {
        let text = format!("Container image \"{}\" is not present with pull policy of Never", subject.named);
        let known = entry.ledger.start_failures.get(&waiter.container).is_some_and(|f| f.message == text);
        if !known {
            let event = ApiEvent::warning("ErrImageNeverPull", text.clone());
            cx.record(state, &waiter.uid, subject.event_for_container(event, &waiter));
            subject.start_failed(state, cx, &waiter, Reason::ErrImageNeverPull);
        }
        return image_failed(state, cx, &waiter, Reason::ErrImageNeverPull, text, Some(RETRY));
    }
    if back_off::pull_back_off_until(entry.ledger.pull_back_offs.get(&subject.named), cx.now.wall).is_some() {
        // The inspection was made because some image had arrived, but it was another one.
        entry.ledger.image_states.remove(&waiter.container);
        state.images.pods_without_image.insert(waiter.uid.clone());
        return cx.touch(&waiter.uid);
    }
    begin_pull(state, cx, image, waiter);
}

pub(super) fn pulled(
    state: &mut NodeState,
    cx: &mut Context,
    pull: &PullKey,
    result: Result<PulledImage, CallFailure>,
) {
    let config = state.config.clone();
    let mut ended = Some((pull.clone(), result));
    while let Some((pull, result)) = ended {
        let (waiters, next) = state.images.pulled(&pull, &config, cx.now.mono);
        ended = apply_pull_decision(state, cx, next).map(|refused| (refused, Err(rate_limited())));
        if let Ok(pulled) = &result {
            image_garbage::pull_ended(state, cx);
            if removed_after_pull(state, cx, &pull, pulled, &waiters) {
                continue;
            }
        }
        for waiter in waiters {
            if !still_waits(state, &waiter, &pull.image) {
                continue;
            }
            match &result {
                Ok(pulled) => pull_succeeded(state, cx, &waiter, pulled),
                Err(failure) => pull_failed(state, cx, &waiter, failure),
            }
        }
        if result.is_err_and(|f| f.unreachable) {
            check_runtime(state, cx);
        }
    }
}

/// The image was removed since it was pulled, or is being removed: who waits for it waits for an inspection.
fn removed_after_pull(
    state: &mut NodeState,
    cx: &mut Context,
    pull: &PullKey,
    pulled: &PulledImage,
    waiters: &BTreeSet<Waiter>,
) -> bool {
    let id = pulled.image.as_ref().map(|image| image.id.as_str());
    let found: Vec<&str> = [Some(pulled.reference.as_str()), id].into_iter().flatten().collect();
    let check = state.image_garbage.outdated.check_pull(pull, &found);
    if check == AnswerCheck::Valid {
        return false;
    }
    for waiter in waiters {
        if !still_waits(state, waiter, &pull.image) {
            continue;
        }
        if let Some(entry) = state.pods.get_mut(&waiter.uid) {
            entry.ledger.image_states.insert(waiter.container.clone(), ImageState::Inspecting);
        }
        let inspect = state.images.inspect(&pull.image, waiter.clone());
        inspect.filter(|_| check == AnswerCheck::Outdated).into_iter().for_each(|effect| cx.emit(effect));
    }
    true
}

fn pull_succeeded(state: &mut NodeState, cx: &mut Context, waiter: &Waiter, pulled: &PulledImage) {
    let subject = image_use(state, waiter);
    let Some(entry) = state.pods.get_mut(&waiter.uid) else { return };
    let waited = match entry.ledger.image_states.get(&waiter.container) {
        Some(ImageState::Pulling { since }) => cx.now.mono.since(*since),
        _ => pulled.took,
    };
    entry.ledger.pull_back_offs.remove(&subject.named);
    let size = pulled.image.as_ref().map_or(0, |i| i.size);
    let text = format!(
        "Successfully pulled image \"{}\" in {} ({} including waiting). Image size: {size} bytes.",
        subject.named,
        rounded(pulled.took),
        rounded(waited)
    );
    cx.record(state, &waiter.uid, subject.event_for_container(ApiEvent::normal("Pulled", text), waiter));
    let found = pulled.image.as_ref();
    let resolved = ResolvedImage {
        reference: pulled.reference.clone(),
        user_uid: found.and_then(|i| i.uid.as_ref()).map(|u| u.value),
        username: found.map(|i| i.username.clone()).unwrap_or_default(),
    };
    image_ready(state, cx, waiter, resolved);
}

/// Rounded to milliseconds, for messages.
fn rounded(d: Duration) -> String {
    go_duration(Duration::from_millis(d.as_millis() as u64))
}

fn pull_failed(state: &mut NodeState, cx: &mut Context, waiter: &Waiter, failure: &CallFailure) {
    let subject = image_use(state, waiter);
    let (reason, message) = pull_error(&subject.named, &failure.message);
    let text = format!("Failed to pull image \"{}\": {}", subject.named, failure.message);
    cx.record(state, &waiter.uid, subject.event_for_container(ApiEvent::warning("Failed", text), waiter));
    subject.start_failed(state, cx, waiter, reason);
    if let Some(entry) = state.pods.get_mut(&waiter.uid) {
        let old = entry.ledger.pull_back_offs.get(&subject.named);
        // Two containers of the pod may have waited for the same pull: its failure counts once.
        if old.is_none_or(|old| old.failed_at != cx.now.wall) {
            let next = back_off::next_pull_back_off(old, cx.now.wall, reason, message.clone());
            entry.ledger.pull_back_offs.insert(subject.named, next);
        }
    }
    image_failed(state, cx, waiter, reason, message, None);
}

/// Two kinds of failure are recognized by the beginning of the runtime's message.
fn pull_error(named: &str, error: &str) -> (Reason, String) {
    let kinds = [
        (Reason::RegistryUnavailable, "the registry is unavailable"),
        (Reason::SignatureValidationFailed, "the signature validation failed"),
    ];
    for (reason, because) in kinds {
        if let Some(detail) = error.strip_prefix(reason.as_str()) {
            return (reason, format!("image pull failed for {named} because {because}{detail}"));
        }
    }
    (Reason::ErrImagePull, error.to_owned())
}

fn image_ready(state: &mut NodeState, cx: &mut Context, waiter: &Waiter, image: ResolvedImage) {
    state.image_garbage.note_use(&image.reference, cx.now.mono);
    if let Some(entry) = state.pods.get_mut(&waiter.uid) {
        let (view, ledger) = entry.view_and_ledger();
        ledger.resolved_images.insert(waiter.container.clone(), image.reference.clone());
        ledger.image_states.insert(waiter.container.clone(), ImageState::Ready(image));
        // A missing image volume is shown as a failure of the containers that mount it, so their failures are cleared
        // too. If their own image is missing, the next plan finds that again.
        let mounting = view.all_containers().map(|(_, c)| c).filter(|container| {
            let mut mounts = container.volume_mounts.iter().flatten();
            mounts.any(|mount| volume_of_key(&waiter.container) == Some(&mount.name))
        });
        let named = mounting.map(|container| container.name.clone());
        for name in named.chain([waiter.container.clone()]) {
            if ledger.start_failures.get(&name).is_some_and(|f| f.reason.is_about_image()) {
                ledger.start_failures.remove(&name);
                ledger.retry_at.remove(&name);
            }
        }
        if !ledger.start_failures.values().any(|f| f.reason.is_about_image()) {
            state.images.pods_without_image.remove(&waiter.uid);
        }
        cx.touch(&waiter.uid);
    }
}

fn image_failed(
    state: &mut NodeState,
    cx: &mut Context,
    waiter: &Waiter,
    reason: Reason,
    message: String,
    retry: Option<Duration>,
) {
    let container = &waiter.container;
    if let Some(entry) = state.pods.get_mut(&waiter.uid) {
        entry.ledger.image_states.remove(container);
        entry.ledger.recheck_images.remove(container);
        entry.ledger.start_failures.insert(container.clone(), StartFailure { reason, message });
        match retry {
            Some(wait) => entry.ledger.retry_at.insert(container.clone(), cx.now.mono.plus(wait)),
            None => entry.ledger.retry_at.remove(container),
        };
        state.images.pods_without_image.insert(waiter.uid.clone());
        cx.touch(&waiter.uid);
    }
}

/// An image arrived in the runtime: containers that failed for an image are inspected again at once, unless they always
/// pull.
pub(super) fn recheck_missing_images(state: &mut NodeState, cx: &mut Context) {
    for uid in state.images.pods_without_image.clone() {
        let Some(entry) = state.pods.get_mut(&uid) else { continue };
        let waiting: Vec<String> = entry
            .ledger
            .start_failures
            .iter()
            .filter(|(_, f)| f.reason.is_about_image() && f.reason != Reason::InvalidImageName)
            .map(|(name, _)| name.clone())
            .filter(|name| image_use_in(entry.view(), name).policy != PullPolicy::Always)
            .collect();
        if !waiting.is_empty() {
            entry.ledger.recheck_images.extend(waiting);
            cx.touch(&uid);
        }
    }
}

/// What an image is used for, according to the spec.
struct ImageUse {
    /// The container's list; `None`: a volume, and so the pod as a whole.
    kind: Option<ContainerKind>,
    named: String,
    policy: PullPolicy,
}

impl ImageUse {
    fn event_for_container(&self, event: ApiEvent, waiter: &Waiter) -> ApiEvent {
        match self.kind {
            Some(kind) => event.for_container(kind, &waiter.container),
            None => event,
        }
    }

    /// Records the Event of a container that can't start without its image. For an image volume the plan reports the
    /// failure.
    fn start_failed(&self, state: &NodeState, cx: &mut Context, waiter: &Waiter, reason: Reason) {
        if self.kind.is_some() {
            let event = ApiEvent::warning("Failed", format!("Error: {reason}"));
            cx.record(state, &waiter.uid, self.event_for_container(event, waiter));
        }
    }
}

fn image_use(state: &NodeState, waiter: &Waiter) -> ImageUse {
    let nobody = ImageUse { kind: None, named: String::new(), policy: PullPolicy::IfNotPresent };
    state.pods.get(&waiter.uid).map_or(nobody, |entry| image_use_in(entry.view(), &waiter.container))
}

fn image_use_in(view: &PodView, key: &str) -> ImageUse {
    let (kind, image, policy) = match volume_of_key(key) {
        Some(name) => {
            let volume = view.spec().volumes.iter().flatten().find(|volume| volume.name == name);
            let source = volume.and_then(|volume| volume.image.clone()).unwrap_or_default();
            (None, source.reference, source.pull_policy)
        }
        None => match view.container(key) {
            Some((kind, container)) => {
                (Some(kind), container.image.clone(), container.image_pull_policy.clone())
            }
            None => (Some(ContainerKind::Regular), None, None),
        },
    };
    ImageUse { kind, named: image.unwrap_or_default(), policy: PullPolicy::parse(policy.as_deref()) }
}

fn failure_of<'a>(state: &'a NodeState, uid: &PodUid, container: &str) -> Option<&'a StartFailure> {
    state.pods.get(uid)?.ledger.start_failures.get(container)
}

/// False if the pod terminates, or if its spec names another image by now or has no such container.
fn still_waits(state: &NodeState, waiter: &Waiter, image: &str) -> bool {
    // The spec may have changed meanwhile: only the image that it names now counts.
    let named = image_use(state, waiter).named;
    state.pods.get(&waiter.uid).is_some_and(|e| {
        e.lifecycle().may_start()
            && normalise_image_name(&named).is_ok_and(|named| named == split_key(image).0)
            && matches!(
                e.ledger.image_states.get(&waiter.container),
                Some(ImageState::Inspecting | ImageState::Pulling { .. })
            )
    })
}
