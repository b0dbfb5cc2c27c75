//! Additions, changes and removals of pods by sources, and orphans: pods of the runtime that no source wants.

use std::sync::Arc;

use model::k8s::Pod;
use model::pod::{PodView, Source};
use model::runtime_class::RuntimeClasses;
use model::{ApiEvent, FullName, Mono, PodUid};

use super::{Context, api, csi, set_aside, sweep, unreadable};
use crate::admission::{self, AdmissionRejection};
use crate::allocation::Allocated;
use crate::effect::{Effect, LogLevel};
use crate::gated_fields::without_gated_fields;
use crate::lifecycle::{MINIMUM_GRACE_SECS, grace_secs};
use crate::mirror::is_mirror;
use crate::observation_guard::PodObservation;
use crate::resources::quota_period_micros;
use crate::set_aside::unless_it_panics;
use crate::sources::{Change, Duplicate, merge, merge_one, remove_one};
use crate::state::{EndReason, EndRequest, FailureReason, NodeState, ObservationRequest, PodEntry};
use crate::{allocation, runtime_class};

pub(super) fn delivered(state: &mut NodeState, cx: &mut Context, source: Source, pods: Vec<Arc<Pod>>) {
    let was_ready = state.sources_ready();
    let pods = leave_out_unmergeable(state, source, pods);
    unreadable::replace_unreadable_set(state, cx, source);
    let set = state.sources.entry(source).or_default();
    let mut merged = merge(set, source, pods, cx.now.wall);
    // Removals first, so that their resources are free. Then additions by creation time, so that after a restart of the
    // agent older pods are admitted before newer ones.
    merged.changes.sort_by_key(|change| match change {
        Change::Removed(_) => (0, None),
        Change::Added(view) => (1, view.pod.metadata.creation_timestamp.as_ref().map(|at| at.0)),
        _ => (1, None),
    });
    for duplicate in merged.duplicates {
        report_duplicate_name(cx, source, duplicate);
    }
    for change in merged.changes {
        state.pod_in_step = Some(change.uid().clone());
        apply(state, cx, change);
    }
    state.pod_in_step = None;
    if source == Source::Api {
        api::all_mirrors(state, cx);
    }
    if !was_ready && state.sources_ready() {
        api::all_mirrors(state, cx);
        let at = state.full_observation.last;
        if let Some(at) = at {
            terminate_orphans(state, cx, at);
            sweep::list_pod_artifacts_once(state, cx);
        }
    } else {
        terminate_orphans_again(state, cx);
    }
}

/// Objects that can't be merged count as unreadable in the set that is about to be merged.
fn leave_out_unmergeable(state: &mut NodeState, source: Source, mut pods: Vec<Arc<Pod>>) -> Vec<Arc<Pod>> {
    let mut left_out = Vec::new();
    if state.set_aside.values().flatten().any(|found| found.unmergeable) {
        pods.retain(|pod| {
            let found = set_aside::unmergeable(state, pod);
            let keep = found.is_none();
            left_out.extend(found);
            keep
        });
    }
    state.sources.entry(source).or_default().unreadable_in_next_set.extend(left_out);
    pods
}

pub(super) fn changed(state: &mut NodeState, cx: &mut Context, source: Source, pod: Arc<Pod>) {
    if let Some(found) = set_aside::unmergeable(state, &pod) {
        return unreadable::unreadable_pods_reported(state, cx, source, vec![found], false);
    }
    unreadable::remove_unreadable_pod(
        state,
        source,
        &PodUid::new(pod.metadata.uid.as_deref().unwrap_or_default()),
    );
    let set = state.sources.entry(source).or_default();
    match merge_one(set, source, pod, cx.now.wall) {
        Ok(Some(change)) => apply(state, cx, change),
        Ok(None) => {}
        Err(duplicate) => report_duplicate_name(cx, source, duplicate),
    }
}

pub(super) fn gone(state: &mut NodeState, cx: &mut Context, source: Source, uid: &PodUid) {
    if unreadable::remove_unreadable_pod(state, source, uid) {
        terminate_orphans_again(state, cx);
    }
    let set = state.sources.entry(source).or_default();
    if let Some(change) = remove_one(set, uid) {
        apply(state, cx, change);
    }
}

fn report_duplicate_name(cx: &mut Context, source: Source, Duplicate(view): Duplicate) {
    let text = format!(
        "Error validating pod {} from {} due to duplicate pod name \"{}\", ignoring",
        view.display_name(),
        source.as_str(),
        view.name()
    );
    cx.log(LogLevel::Warn, Some(&view.uid), text.clone());
    let event = ApiEvent::warning("FailedValidation", text);
    cx.emit(Effect::RecordEvent { uid: view.uid.clone(), full_name: view.full_name, event });
}

fn apply(state: &mut NodeState, cx: &mut Context, change: Change) {
    let ungated = |view: PodView| without_gated_fields(view, &state.config);
    let change = match change {
        Change::Added(view) => Change::Added(ungated(view)),
        Change::Updated(view) => Change::Updated(ungated(view)),
        Change::Reconciled(view) => Change::Reconciled(ungated(view)),
        removed => removed,
    };
    match change {
        Change::Removed(view) if api::is_known_mirror(state, &view) => {
            api::mirror_seen(state, cx, view.full_name, None);
        }
        Change::Removed(view) => removed(state, cx, &view.uid),
        Change::Added(view) | Change::Updated(view) | Change::Reconciled(view) if is_mirror(&view) => {
            api::mirror_seen(state, cx, view.full_name.clone(), Some(view));
        }
        Change::Added(view) => added(state, cx, view),
        Change::Updated(view) | Change::Reconciled(view) => updated(state, cx, view),
    }
}

/// Updates the RuntimeClasses of a source, and touches pods that name a class.
pub(super) fn runtime_classes_changed(
    state: &mut NodeState,
    cx: &mut Context,
    source: Source,
    classes: RuntimeClasses,
) {
    let known = state.runtime_classes.entry(source).or_default();
    if *known == classes {
        return;
    }
    *known = classes;
    let mut changed = Vec::new();
    for (uid, entry) in &mut state.pods {
        if runtime_class::class_name(entry.view()).is_none() {
            continue;
        }
        if !entry.ledger.prerequisites_ready && entry.plan.is_none() {
            let view = || runtime_class::with_overhead(entry.view().clone(), &state.runtime_classes);
            let view = match entry.standing().is_set_aside() {
                true => unless_it_panics(view),
                false => Some(view()),
            };
            changed.extend(view.map(|view| (uid.clone(), view, entry.pending_resize().cloned())));
        }
        entry.ledger.pod_retry = None;
        cx.touched.insert(uid.clone());
    }
    for (uid, view, pending) in changed {
        state.pods.redefine(&uid, view, pending);
    }
}

/// Replaces the definition by one with the resources that are allocated to the pod. A new pending resize has Events.
fn redefine(state: &mut NodeState, cx: &mut Context, uid: &PodUid, allocated: Allocated) {
    let Allocated { view, pending } = allocated;
    let view = runtime_class::with_overhead(view, &state.runtime_classes);
    let declares = state.config.features.get("NodeDeclaredFeatures") == Some(&true);
    let Some(entry) = state.pods.get(uid) else { return };
    let told = entry.pending_resize().map(|before| before.generation);
    let news = pending.clone().filter(|now| told != Some(now.generation));
    state.pods.redefine(uid, view, pending);
    let Some(news) = news else { return };
    if declares && !news.features.is_empty() {
        let missing = news.features.join(", ");
        let text = format!("Pod requires node features that are not available: {missing}");
        cx.record(state, uid, ApiEvent::warning("FailedNodeDeclaredFeaturesCheck", text));
    }
    cx.record(state, uid, news.event());
}

fn added(state: &mut NodeState, cx: &mut Context, view: PodView) {
    let uid = view.uid.clone();
    if state.pods.get(&uid).is_some_and(|entry| entry.standing().is_set_aside()) {
        return updated(state, cx, view);
    }
    if state.pods.contains_key(&uid) {
        // A pod that ends is created as a new pod once it has finished.
        if let Some(view) = state.pods.recreate_from(&uid, view)
            && let Some(entry) = state.pods.get(&uid)
        {
            let allocated = allocation::keep_allocated(view, entry.view());
            redefine(state, cx, &uid, allocated);
        }
        cx.touch(&uid);
        return;
    }
    create(state, cx, view, None);
}

/// What is known of the containers of a pod that is created again.
pub(super) struct PriorObservation {
    pub reading: Option<PodObservation>,
    pub last_mutation: Mono,
    pub unread_since_mutation: bool,
    pub observation_request: ObservationRequest,
}

/// Creates the entry of a pod that a source wants. `known`: the last observation, if the pod had an entry before.
pub(super) fn create(
    state: &mut NodeState,
    cx: &mut Context,
    view: PodView,
    known: Option<PriorObservation>,
) {
    if let Some(why) = set_aside::find_record(state, &view) {
        let view = with_allocated(state, view);
        return set_aside::create(state, cx, view, why, false);
    }
    let uid = view.uid.clone();
    let Allocated { view, pending } = restore_allocated(state, view);
    let again = known.is_some();
    let mut entry = PodEntry::undecided(view, pending);
    if let Some(known) = known {
        entry.observed = known.reading;
        entry.last_mutation = known.last_mutation;
        entry.unread_since_mutation = known.unread_since_mutation;
        entry.observation_request = known.observation_request;
    } else if let Some(pod) = state.unclaimed.remove(&uid) {
        state.unclaimed_guards.remove(&uid);
        entry.status_retry = state.unclaimed_status_retries.remove(&uid);
        let at = state.full_observation.last.unwrap_or(Mono::ZERO);
        for id in
            pod.containers.iter().map(|c| c.id.as_str()).chain(pod.sandboxes.iter().map(|s| s.id.as_str()))
        {
            state.pod_by_runtime_id.insert(id.to_owned(), uid.clone());
        }
        entry.observed = Some(PodObservation { at, pod });
    } else if let Some(at) = state.full_observation.last {
        // The last full relist did not show the pod, and only this agent creates pods here. When the pod was last
        // forgotten nothing of it was left either, so an observation that began before that must not count as newer.
        let at = state.forgotten_at.get(&uid).map_or(at, |when| at.max(*when));
        let empty = model::observed::ObservedPod::empty(uid.clone(), entry.view().full_name.clone());
        entry.observed = Some(PodObservation { at, pod: Arc::new(empty) });
    }
    let full_name = entry.view().full_name.clone();
    let deleting = entry.view().is_deleting();
    let runs = entry.observed.as_ref().is_some_and(|r| r.pod.anything_running());
    // What is left of a pod that was created before under this UID says nothing about this one, unless it runs.
    let left = entry.observed.as_ref().is_some_and(|r| !r.pod.is_empty());
    let admitted = runs || !again && (left || admission::was_admitted(entry.view()));
    let line = state.name_queues.entry(full_name).or_default();
    // A pod that runs already has the name, whichever source delivered first. The other pods of that name are planned
    // again.
    cx.touched.extend(line.iter().cloned());
    if runs {
        line.push_front(uid.clone());
    } else {
        line.push_back(uid.clone());
    }
    state.pods.insert(entry);
    if admitted {
        state.pods.admit(&uid);
    } else {
        cx.undecided.push_back(uid.clone());
    }
    if deleting {
        let grace = deletion_grace(state, &uid);
        terminate(state, cx, &uid, EndReason::Deleted, grace);
    }
    cx.touch(&uid);
}

/// The definition with what was allocated to the pod before a restart, and the overhead of its RuntimeClass.
pub(super) fn restore_allocated(state: &NodeState, view: PodView) -> Allocated {
    let period = quota_period_micros(&state.config);
    let Allocated { view, pending } = allocation::restore_allocated(view, period);
    Allocated { view: runtime_class::with_overhead(view, &state.runtime_classes), pending }
}

/// Rejects a pod. What was created for it, if it was admitted before, is removed.
pub(super) fn reject(state: &mut NodeState, cx: &mut Context, uid: &PodUid, refusal: AdmissionRejection) {
    cx.record(state, uid, ApiEvent::warning(&refusal.reason, refusal.message.clone()));
    cx.log(LogLevel::Warn, Some(uid), format!("pod was rejected: {}: {}", refusal.reason, refusal.message));
    let AdmissionRejection { reason, message } = refusal;
    let rejected = EndReason::Rejected(FailureReason::new(reason, message));
    terminate(state, cx, uid, rejected, MINIMUM_GRACE_SECS);
}

fn updated(state: &mut NodeState, cx: &mut Context, view: PodView) {
    let uid = view.uid.clone();
    let Some(entry) = state.pods.get_mut(&uid) else { return added(state, cx, view) };
    if let Some(why) = entry.standing().set_aside_record() {
        if why.definition != state.delivered_definition(&view) {
            return resume_pod(state, cx, &uid, view);
        }
        let view = with_allocated(state, view);
        state.pods.redefine(&uid, view, None);
        return cx.touch(&uid);
    }
    if entry.standing().recreate_as().is_some() {
        // The pod that terminates keeps its old definition. The change is to the pod that follows it.
        state.pods.recreate_from(&uid, view);
        return;
    }
    let deleting = view.is_deleting();
    let allocated = allocation::keep_allocated(view, entry.view());
    for (_, container) in allocated.view.all_containers() {
        let old = entry.view().container(&container.name).and_then(|(_, c)| c.image.clone());
        if old != container.image {
            entry.ledger.image_states.remove(&container.name);
            entry.ledger.retry_at.remove(&container.name);
        }
    }
    redefine(state, cx, &uid, allocated);
    if deleting {
        let grace = deletion_grace(state, &uid);
        terminate(state, cx, &uid, EndReason::Deleted, grace);
    }
    cx.touch(&uid);
}

fn removed(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    if let Some(entry) = state.pods.get(uid).filter(|entry| entry.standing().is_set_aside()) {
        let view = entry.view().clone();
        resume_pod(state, cx, uid, view);
    }
    let grace = deletion_grace(state, uid);
    terminate(state, cx, uid, EndReason::Removed, grace);
}

/// Evicts the pod: it fails with this reason, whatever the exit codes of its containers. Of several reasons the first
/// stays.
pub(super) fn evict(
    state: &mut NodeState,
    cx: &mut Context,
    uid: &PodUid,
    because: FailureReason,
    grace_secs: Option<i64>,
) {
    let grace = grace_secs.map(|secs| secs.max(MINIMUM_GRACE_SECS));
    let grace = grace.unwrap_or_else(|| deletion_grace(state, uid));
    terminate(state, cx, uid, EndReason::Evicted(because), grace);
}

fn deletion_grace(state: &NodeState, uid: &PodUid) -> i64 {
    let Some(entry) = state.pods.get(uid) else { return MINIMUM_GRACE_SECS };
    grace_secs(entry.view().pod.metadata.deletion_grace_period_seconds, entry.view().spec_grace())
}

/// Terminates a pod. A later request can only shorten the grace period.
pub(super) fn terminate(
    state: &mut NodeState,
    cx: &mut Context,
    uid: &PodUid,
    reason: EndReason,
    grace_secs: i64,
) {
    let ended = state.pods.end(uid, reason, grace_secs, cx.now.mono);
    let Some(entry) = state.pods.get_mut(uid) else { return };
    let interrupt = match ended {
        EndRequest::Refused => return,
        EndRequest::Began => {
            entry.ledger.pod_retry = None;
            true
        }
        EndRequest::Shortened => true,
        EndRequest::Unchanged => false,
    };
    if interrupt && let Some(plan) = entry.plan.as_mut().filter(|p| !p.cancelled) {
        plan.cancelled = true;
        let epoch = plan.epoch;
        cx.emit(Effect::CancelPlan { uid: uid.clone(), epoch });
        csi::plan_cancelled(state, cx, uid, epoch);
    }
    state.images.remove_pod(uid);
    state.admissions.remove(uid);
    cx.room_changed(state);
    cx.touch(uid);
}

/// Terminates runtime pods that no source wants, once every source has delivered, with the grace period that they were
/// created with.
pub(super) fn terminate_orphans(state: &mut NodeState, cx: &mut Context, at: Mono) {
    if !state.sources_ready() {
        return;
    }
    let taken = state.take_unclaimed();
    // Pods whose objects can't be decoded stay unclaimed, and so do their pending confirmations.
    state.unclaimed_guards.retain(|uid, _| state.unclaimed.contains_key(uid));
    let mut retries = std::mem::take(&mut state.unclaimed_status_retries);
    for (uid, pod) in taken {
        state.pod_in_step = Some(uid.clone());
        let grace = pod.containers.iter().filter_map(|c| c.pod_grace).max().unwrap_or(MINIMUM_GRACE_SECS);
        cx.log(
            LogLevel::Info,
            Some(&uid),
            format!("pod {} runs but no pod source wants it (orphan); stopping it", pod.full_name),
        );
        let mut spec = Pod::default();
        spec.metadata.uid = Some(uid.to_string());
        spec.metadata.name = Some(pod.full_name.name.to_string());
        spec.metadata.namespace = Some(pod.full_name.namespace.to_string());
        let view = PodView::new(Arc::new(spec), Source::File);
        if let Some(why) = set_aside::find_record(state, &view) {
            state.unclaimed.insert(uid, pod);
            let view = with_allocated(state, view);
            set_aside::create(state, cx, view, why, true);
            continue;
        }
        let mut entry = PodEntry::orphan(view, grace.max(MINIMUM_GRACE_SECS), cx.now.mono);
        state.counters.orphans += 1;
        for id in
            pod.containers.iter().map(|c| c.id.as_str()).chain(pod.sandboxes.iter().map(|s| s.id.as_str()))
        {
            state.pod_by_runtime_id.insert(id.to_owned(), uid.clone());
        }
        state.name_queues.entry(pod.full_name.clone()).or_default().push_front(uid.clone());
        entry.observed = Some(PodObservation { at, pod });
        entry.status_retry = retries.remove(&uid);
        state.pods.insert(entry);
        cx.touch(&uid);
    }
    retries.retain(|uid, _| state.unclaimed.contains_key(uid));
    state.unclaimed_status_retries = retries;
    state.pod_in_step = None;
}

/// After undecodable pods went: what runs of them is an orphan now.
fn terminate_orphans_again(state: &mut NodeState, cx: &mut Context) {
    if let Some(at) = state.full_observation.last {
        terminate_orphans(state, cx, at);
    }
}

/// Moves running pods to the front of each name queue. Pods that were delivered before the first full relist were
/// queued before it was known which of them run.
pub(super) fn put_running_pods_first(state: &mut NodeState) {
    let pods = &state.pods;
    let runs = |uid: &PodUid| {
        pods.get(uid).and_then(|e| e.observed.as_ref()).is_some_and(|r| r.pod.anything_running())
    };
    for line in state.name_queues.values_mut().filter(|line| line.len() > 1) {
        line.make_contiguous().sort_by_key(|uid| !runs(uid));
    }
}

/// Touches the pods that wait for this name: an unclaimed pod that held it is gone.
pub(super) fn wake_name_waiters(state: &NodeState, cx: &mut Context, name: &FullName) {
    cx.touched.extend(state.name_queues.get(name).into_iter().flatten().cloned());
}

/// The definition of a pod that was set aside changed, or its source removed it: from now on it is treated like any
/// other pod.
fn resume_pod(state: &mut NodeState, cx: &mut Context, uid: &PodUid, view: PodView) {
    let Some(entry) = state.pods.get(uid) else { return };
    let known = PriorObservation {
        reading: entry.observed.clone(),
        last_mutation: entry.last_mutation,
        unread_since_mutation: entry.unread_since_mutation,
        observation_request: entry.observation_request,
    };
    cx.log(LogLevel::Info, Some(uid), "pod is no longer set aside: its definition changed");
    state.set_aside.remove(uid);
    forget(state, cx, uid);
    create(state, cx, view, Some(known));
}

/// The definition with what is allocated to the pod, as far as that can be computed.
fn with_allocated(state: &NodeState, view: PodView) -> PodView {
    unless_it_panics(|| restore_allocated(state, view.clone()).view).unwrap_or(view)
}

/// Removes the entry, and touches the pods that waited for its name.
pub(super) fn forget(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    let Some(entry) = state.pods.remove(uid) else { return };
    state.admissions.remove(uid);
    cx.room_changed(state);
    state.forgotten_at.insert(uid.clone(), cx.now.mono);
    state.confirmations.remove(uid);
    if let Some(reading) = &entry.observed {
        for id in reading.pod.containers.iter().map(|c| c.id.as_str()) {
            state.pod_by_runtime_id.remove(id);
        }
        for id in reading.pod.sandboxes.iter().map(|s| s.id.as_str()) {
            state.pod_by_runtime_id.remove(id);
        }
    }
    state.images.remove_pod(uid);
    super::log_rotation::pod_gone(state, cx, uid);
    super::objects::release(state, cx, uid);
    if entry.timer.is_some() {
        cx.timer(crate::TimerKey::PodWakeUp(uid.clone()), None);
    }
    if entry.publication.retry_at.is_some() {
        cx.timer(crate::TimerKey::RetryStatusPatch(uid.clone()), None);
    }
    if entry.disk_usage_watched {
        cx.timer(crate::TimerKey::MeasureDisk(uid.clone()), None);
    }
    if entry.view().source.is_static() {
        cx.mirrors.insert(entry.view().full_name.clone());
    }
    release_name(state, cx, entry.view(), true);
    cx.emit(Effect::ForgetPod { uid: uid.clone() });
}

/// Touches the other pods of this name: one of them may run now.
pub(super) fn release_name(state: &mut NodeState, cx: &mut Context, view: &PodView, leave: bool) {
    let Some(line) = state.name_queues.get_mut(&view.full_name) else { return };
    if leave {
        line.retain(|uid| *uid != view.uid);
    }
    for uid in line.iter().filter(|uid| **uid != view.uid) {
        cx.touched.insert(uid.clone());
    }
    if line.is_empty() {
        state.name_queues.remove(&view.full_name);
    }
}
