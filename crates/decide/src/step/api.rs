//! The pods' side of the API server: their status there, the end of their objects, and mirrors of static pods.

use std::sync::Arc;

use model::k8s::{Pod, PodStatus};
use model::pod::{PodView, Source};
use model::{FullName, PodUid};
use serde_json::json;

use super::Context;
use crate::effect::{ApiCall, Effect, LogLevel, PodObject, TimerKey};
use crate::event::{ApiCallResult, ApiFailure};
use crate::lifecycle::Lifecycle;
use crate::mirror::{self, Mirror, MirrorAction, OldPods};
use crate::publish::{self, ApiPodObject, ObjectDeletion, RECONCILE_PAUSE};
use crate::state::{NodeState, PodEntry};
use crate::status::READY_TO_START;
use model::hash::fnv1a_64;

/// The status that the API shows of a pod: of its own object, or of its mirror.
pub(super) fn shown_status(state: &NodeState, entry: &PodEntry) -> Option<Arc<PodStatus>> {
    entry.publication.api_object.as_ref().map(|s| s.status.clone()).or_else(|| {
        let object =
            if entry.view().source.is_static() { mirror_of(state, entry.view())? } else { entry.view() };
        object.pod.status.clone().map(Arc::new)
    })
}

fn mirror_of<'a>(state: &'a NodeState, view: &PodView) -> Option<&'a PodView> {
    let mirror = state.mirrors.get(&view.full_name)?.seen.as_ref()?;
    mirror::is_mirror_of(mirror, view).then_some(mirror)
}

/// Brings the API up to date about a pod that was settled.
pub(super) fn publish_status(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    if !state.has_cluster() {
        return;
    }
    let Some(entry) = state.pods.get(uid).filter(|e| !e.standing().is_orphan()) else { return };
    if entry.view().source.is_static() {
        cx.mirrors.insert(entry.view().full_name.clone());
    }
    let object = if entry.view().source.is_static() {
        mirror_of(state, entry.view()).cloned()
    } else {
        // an object that the source no longer shows is gone
        (!entry.standing().is_removed()).then(|| entry.view().clone())
    };
    let Some(entry) = state.pods.get_mut(uid) else { return };
    let Some(object) = object else {
        entry.publication.object_gone();
        return;
    };
    if !entry.publication.has_seen(&object.pod) {
        entry.publication.object_seen(ApiPodObject::of(&object.pod));
    }
    send_status_or_deletion(entry, cx, &object);
}

fn send_status_or_deletion(entry: &mut PodEntry, cx: &mut Context, object: &PodView) {
    let (lifecycle, is_static) = (entry.lifecycle().clone(), entry.view().source.is_static());
    let publication = &mut entry.publication;
    if publication.in_flight || publication.deletion != ObjectDeletion::NotAsked {
        return;
    }
    if publication.retry_at.is_some_and(|at| at > cx.now.mono) {
        return;
    }
    let (Some(status), Some(shown)) = (&entry.status, &publication.api_object) else { return };
    if publication.dirty {
        let merged = publish::merge(&shown.status, status, !lifecycle.is_terminated());
        let patch = publish::patch(&shown.status, &merged);
        // The loss of a terminating pod's sandbox is reported together with the final status, which follows at once.
        let going = matches!(lifecycle, Lifecycle::Terminating(_));
        if let Some(patch) = patch.filter(|patch| !going || !publish::is_only_of(patch, READY_TO_START)) {
            let hash = fnv1a_64(patch.to_string().as_bytes());
            if let Some(at) = publication.last_sent.filter(|(last, _)| *last == hash).map(|(_, at)| at)
                && cx.now.mono.since(at) < RECONCILE_PAUSE
            {
                // It was sent just now, and did not help.
                return wait(entry, cx, at.plus(RECONCILE_PAUSE));
            }
            publication.dirty = false;
            publication.in_flight = true;
            publication.last_sent = Some((hash, cx.now.mono));
            let patch = json!({"metadata": {"uid": shown.uid.as_str()}, "status": patch});
            let call = ApiCall::PatchStatus { uid: entry.view().uid.clone(), pod: pod_object(object), patch };
            return cx.emit(Effect::CallApi(call));
        }
        publication.dirty = false;
    }
    let released = matches!(lifecycle, Lifecycle::Finished) && entry.plan.is_none();
    if released && object.is_deleting() && !is_static && shown.is_terminal() {
        publication.deletion = ObjectDeletion::InFlight;
        let call = ApiCall::DeletePod { uid: entry.view().uid.clone(), pod: pod_object(object) };
        cx.emit(Effect::CallApi(call));
    }
}

fn wait(entry: &mut PodEntry, cx: &mut Context, until: model::Mono) {
    entry.publication.retry_at = Some(until);
    cx.timer(TimerKey::RetryStatusPatch(entry.view().uid.clone()), Some(until));
}

fn pod_object(view: &PodView) -> PodObject {
    PodObject { namespace: view.namespace().to_owned(), name: view.name().to_owned(), uid: view.uid.clone() }
}

pub(super) fn publish_retry_due(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    if let Some(entry) = state.pods.get_mut(uid) {
        entry.publication.retry_at = None;
        cx.touch(uid);
    }
}

pub(super) fn answered(state: &mut NodeState, cx: &mut Context, answer: ApiCallResult) {
    let (reached, succeeded) = match &answer {
        ApiCallResult::StatusPatched { result, .. } => outcome(result),
        ApiCallResult::PodDeleted { result, .. } | ApiCallResult::MirrorDeleted { result, .. } => {
            outcome(result)
        }
        ApiCallResult::MirrorCreated { result, .. } => outcome(result),
    };
    match answer {
        ApiCallResult::StatusPatched { uid, object, result } => {
            status_patched(state, cx, &uid, &object, result)
        }
        ApiCallResult::PodDeleted { uid, result } => pod_deleted(state, cx, &uid, result),
        ApiCallResult::MirrorCreated { full_name, result } => {
            mirror_answered(state, cx, &full_name, result.map(Some));
        }
        ApiCallResult::MirrorDeleted { full_name, uid, result } => {
            if result.as_ref().err().is_none_or(ApiFailure::means_gone) {
                let mirror = state.mirrors.entry(full_name.clone()).or_default();
                if mirror.seen.as_ref().is_some_and(|seen| seen.uid == uid) {
                    mirror.seen = None;
                }
            }
            mirror_answered(state, cx, &full_name, result.map(|()| None));
        }
    }
    api_reached(state, cx, reached, succeeded);
}

fn outcome<T>(result: &Result<T, ApiFailure>) -> (bool, bool) {
    (
        !matches!(result, Err(ApiFailure { kind: crate::event::ApiFailureKind::Unavailable, .. })),
        result.is_ok(),
    )
}

/// Records whether the server was reached. Once it answers again, pending retries are made at once, because their
/// back-off was meant for an unreachable server.
fn api_reached(state: &mut NodeState, cx: &mut Context, reached: bool, succeeded: bool) {
    if !reached {
        if !state.api_unreachable {
            cx.log(
                LogLevel::Warn,
                None,
                "the API server is unreachable; pod statuses are sent when it answers again",
            );
        }
        state.api_unreachable = true;
        return;
    }
    if !state.api_unreachable || !succeeded {
        return;
    }
    state.api_unreachable = false;
    cx.log(LogLevel::Info, None, "the API server answers again");
    for (uid, entry) in &mut state.pods {
        if entry.publication.retry_at.take().is_some() {
            cx.touched.insert(uid.clone());
        }
    }
    for (name, mirror) in &mut state.mirrors {
        if mirror.retry_at.take().is_some() {
            cx.mirrors.insert(name.clone());
        }
    }
}

fn status_patched(
    state: &mut NodeState,
    cx: &mut Context,
    uid: &PodUid,
    object: &PodUid,
    result: Result<Arc<Pod>, ApiFailure>,
) {
    let Some(entry) = state.pods.get_mut(uid) else { return };
    let PodView { source, full_name, .. } = entry.view();
    let (is_static, full_name) = (source.is_static(), full_name.clone());
    let publication = &mut entry.publication;
    publication.in_flight = false;
    if publication.api_object.as_ref().is_some_and(|shown| shown.uid != *object) {
        // Another object has replaced it meanwhile, and this answer is not about that one.
        return cx.touch(uid);
    }
    match result {
        Ok(pod) => {
            publication.succeeded();
            publication.object_seen(ApiPodObject::of(&pod));
        }
        Err(failure) if failure.means_gone() => {
            // The object is deleted, or another one has its name: the source will report it.
            publication.succeeded();
            publication.object_gone();
            if !is_static {
                publication.deletion = ObjectDeletion::Done;
            } else if let Some(mirror) = state.mirrors.get_mut(&full_name)
                && mirror.seen.as_ref().is_some_and(|seen| seen.uid == *object)
            {
                mirror.seen = None;
            }
        }
        Err(failure) => {
            publication.last_sent = None;
            publication.failed(failure.is_refusal(), failure.retry_after, cx.now.mono);
            let at = publication.retry_at;
            cx.timer(TimerKey::RetryStatusPatch(uid.clone()), at);
            log_refusal(cx, uid, "reporting the pod's status failed", &failure);
        }
    }
    cx.touch(uid);
}

fn pod_deleted(state: &mut NodeState, cx: &mut Context, uid: &PodUid, result: Result<(), ApiFailure>) {
    let Some(entry) = state.pods.get_mut(uid) else { return };
    match result {
        Err(failure) if !failure.means_gone() => {
            entry.publication.deletion = ObjectDeletion::NotAsked;
            entry.publication.failed(failure.is_refusal(), failure.retry_after, cx.now.mono);
            let at = entry.publication.retry_at;
            cx.timer(TimerKey::RetryStatusPatch(uid.clone()), at);
            log_refusal(cx, uid, "deleting the pod's object failed", &failure);
        }
        _ => entry.publication.deletion = ObjectDeletion::Done,
    }
    cx.touch(uid);
}

fn log_refusal(cx: &mut Context, uid: &PodUid, what: &str, failure: &ApiFailure) {
    if failure.is_refusal() {
        cx.log(LogLevel::Warn, Some(uid), format!("{what}: {}", failure.message));
    }
}

/// The source shows a mirror, or (with `None`) no longer.
pub(super) fn mirror_seen(
    state: &mut NodeState,
    cx: &mut Context,
    full_name: FullName,
    seen: Option<PodView>,
) {
    let mirror = state.mirrors.entry(full_name.clone()).or_default();
    mirror.seen = seen;
    // What was waited for may just have happened.
    mirror.retry_at = None;
    cx.touched.extend(state.name_queues.get(&full_name).into_iter().flatten().cloned());
    cx.mirrors.insert(full_name);
}

/// Whether this very object is the mirror that is known under its name.
pub(super) fn is_known_mirror(state: &NodeState, view: &PodView) -> bool {
    let mirror = state.mirrors.get(&view.full_name).and_then(|mirror| mirror.seen.as_ref());
    mirror.is_some_and(|seen| seen.uid == view.uid)
}

pub(super) fn all_mirrors(state: &NodeState, cx: &mut Context) {
    if state.has_cluster() {
        let fixed = state.pods.values().filter(|e| e.view().source.is_static());
        cx.mirrors.extend(fixed.map(|e| e.view().full_name.clone()));
        cx.mirrors.extend(state.mirrors.keys().cloned());
    }
}

/// Does what is due about one mirror.
pub(super) fn sync_mirror(state: &mut NodeState, cx: &mut Context, full_name: &FullName) {
    if !state.sources.get(&Source::Api).is_some_and(|set| set.delivered_once) {
        return;
    }
    let here: Vec<&PodEntry> = state
        .name_queues
        .get(full_name)
        .into_iter()
        .flatten()
        .filter_map(|uid| state.pods.get(uid))
        .filter(|e| e.view().source.is_static() && !e.standing().is_orphan())
        .collect();
    let wanted = here
        .iter()
        .find(|e| !e.standing().is_removed() && e.standing().rejection().is_none())
        .map(|e| e.view().clone());
    // Clients that watch the mirror see the pod's last status before the mirror is deleted.
    let over = |e: &&PodEntry| e.lifecycle().is_terminated() && !e.publication.in_flight;
    let seen = state.mirrors.get(full_name).and_then(|mirror| mirror.seen.as_ref());
    let shown = |e: &&PodEntry| seen.is_some_and(|seen| mirror::is_mirror_of(seen, e.view()));
    let old_pods = OldPods {
        gone: state.sources_ready() && here.iter().all(over),
        shown_pod_ending: here.iter().any(|e| e.standing().is_removed() && shown(e) && !over(e)),
    };
    let Some(mirror) =
        state.mirrors.get(full_name).cloned().or_else(|| wanted.as_ref().map(|_| Mirror::default()))
    else {
        return;
    };
    if mirror.in_flight || mirror.retry_at.is_some_and(|at| at > cx.now.mono) {
        return;
    }
    if mirror.seen.is_none() && wanted.is_none() {
        state.mirrors.remove(full_name);
        return;
    }
    let step =
        mirror::next_mirror_action(mirror.seen.as_ref(), wanted.as_ref(), old_pods, state.node.as_deref());
    let call = match step {
        MirrorAction::Nothing => None,
        MirrorAction::Create(pod) => {
            Some(ApiCall::CreateMirror { full_name: full_name.clone(), pod: Arc::new(*pod) })
        }
        MirrorAction::Delete(uid) => Some(ApiCall::DeleteMirror { full_name: full_name.clone(), uid }),
    };
    if let Some(call) = call {
        state.mirrors.entry(full_name.clone()).or_default().in_flight = true;
        cx.emit(Effect::CallApi(call));
    }
}

fn mirror_answered(
    state: &mut NodeState,
    cx: &mut Context,
    full_name: &FullName,
    result: Result<Option<Arc<Pod>>, ApiFailure>,
) {
    let mirror = state.mirrors.entry(full_name.clone()).or_default();
    mirror.in_flight = false;
    match result {
        Ok(made) => {
            mirror.succeeded();
            // The watch reports the mirror and its deletion too. A known mirror is at least as new as this answer, so
            // it is kept: an answer must not bring back a mirror that was deleted since.
            if let (Some(pod), None) = (made, &mirror.seen) {
                mirror.seen = Some(PodView::new(pod, Source::Api));
            }
        }
        Err(failure) if failure.means_gone() => mirror.succeeded(),
        Err(failure) => {
            mirror.failed(failure.is_refusal(), failure.retry_after, cx.now.mono);
            let at = mirror.retry_at;
            cx.timer(TimerKey::Mirror(full_name.clone()), at);
            if failure.is_refusal() {
                let text = format!("mirror pod {full_name}: {}", failure.message);
                cx.log(LogLevel::Warn, None, text);
            }
        }
    }
    cx.touched.extend(state.name_queues.get(full_name).into_iter().flatten().cloned());
    cx.mirrors.insert(full_name.clone());
}

pub(super) fn mirror_timer(state: &mut NodeState, cx: &mut Context, full_name: FullName) {
    if let Some(mirror) = state.mirrors.get_mut(&full_name) {
        mirror.retry_at = None;
    }
    cx.mirrors.insert(full_name);
}
