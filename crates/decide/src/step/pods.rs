//! What sources want: pods come, change and go. And what nobody wants: orphans.

use std::sync::Arc;

use model::k8s::Pod;
use model::pod::{PodView, Source};
use model::runtime_class::RuntimeClasses;
use model::{ApiEvent, FullName, Mono, PodUid};

use super::{Context, api, csi, set_aside, sweep, unreadable};
use crate::allocation::{Allocated, PendingResize};
use crate::effect::{Effect, LogLevel};
use crate::gated_fields::without_gated_fields;
use crate::lifecycle::{Lifecycle, MINIMUM_GRACE_SECS, Termination, TerminationCause, grace_secs};
use crate::mirror::is_mirror;
use crate::resources::{Overhead, pod_requests, quota_period_micros};
use crate::set_aside::definition;
use crate::sources::{Change, Duplicate, merge, merge_one, remove_one};
use crate::state::{NodeState, Observing, PodEntry, Reading};
use crate::{admission, allocation, cgroups, runtime_class};

pub(super) fn delivered(state: &mut NodeState, cx: &mut Context, source: Source, pods: Vec<Arc<Pod>>) {
    let was_ready = state.sources_ready();
    unreadable::replace(state, cx, source);
    let set = state.sources.entry(source).or_default();
    let mut merged = merge(set, source, pods, cx.now.wall);
    // Who goes makes room. Then, who was here first has it: after a restart, no newcomer is let in before a pod that
    // runs already.
    merged.changes.sort_by_key(|change| match change {
        Change::Removed(_) => (0, None),
        Change::Added(view) => (1, view.pod.metadata.creation_timestamp.as_ref().map(|at| at.0)),
        _ => (1, None),
    });
    for duplicate in merged.duplicates {
        ignored(cx, source, duplicate);
    }
    for change in merged.changes {
        state.in_work = Some(change.uid().clone());
        apply(state, cx, change);
    }
    state.in_work = None;
    if source == Source::Api {
        api::all_mirrors(state, cx);
    }
    if !was_ready && state.sources_ready() {
        api::all_mirrors(state, cx);
        let at = state.full_observation.last;
        if let Some(at) = at {
            take_orphans(state, cx, at);
            sweep::first_look(state, cx);
        }
    } else {
        unreadable::release(state, cx);
    }
}

pub(super) fn changed(state: &mut NodeState, cx: &mut Context, source: Source, pod: Arc<Pod>) {
    unreadable::forget(state, source, &PodUid::new(pod.metadata.uid.as_deref().unwrap_or_default()));
    let set = state.sources.entry(source).or_default();
    match merge_one(set, source, pod, cx.now.wall) {
        Ok(Some(change)) => apply(state, cx, change),
        Ok(None) => {}
        Err(duplicate) => ignored(cx, source, duplicate),
    }
}

pub(super) fn gone(state: &mut NodeState, cx: &mut Context, source: Source, uid: &PodUid) {
    if unreadable::forget(state, source, uid) {
        unreadable::release(state, cx);
    }
    let set = state.sources.entry(source).or_default();
    if let Some(change) = remove_one(set, uid) {
        apply(state, cx, change);
    }
}

fn ignored(cx: &mut Context, source: Source, Duplicate(view): Duplicate) {
    let text = format!(
        "Error validating pod {} from {} due to duplicate pod name \"{}\", ignoring",
        view.human(),
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

/// Who waits for a class may find it now.
pub(super) fn classes_told(state: &mut NodeState, cx: &mut Context, source: Source, classes: RuntimeClasses) {
    let known = state.runtime_classes.entry(source).or_default();
    if *known == classes {
        return;
    }
    *known = classes;
    let mut changed = Vec::new();
    for (uid, entry) in &mut state.pods {
        if entry.set_aside.is_some() || runtime_class::class_name(&entry.view).is_none() {
            continue;
        }
        if !entry.ledger.prepared && entry.plan.is_none() {
            set_view(entry, runtime_class::with_overhead(entry.view.clone(), &state.runtime_classes));
            changed.push(uid.clone());
        }
        entry.ledger.pod_retry = None;
        cx.touched.insert(uid.clone());
    }
    changed.iter().for_each(|uid| state.recount(uid));
}

/// Another definition, and what follows from it alone. The pod has to be counted again.
fn set_view(entry: &mut PodEntry, view: PodView) {
    entry.qos = crate::resources::qos_class(&view);
    entry.requests = Arc::new(pod_requests(&view, Overhead::Included));
    entry.resources = Arc::new(crate::state::pod_resources(&view));
    entry.view = view;
}

/// Notes that the spec asks for other resources than the pod has, and tells of it when that is new.
fn set_pending_resize(state: &mut NodeState, cx: &mut Context, uid: &PodUid, pending: Option<PendingResize>) {
    let declares = state.config.features.get("NodeDeclaredFeatures") == Some(&true);
    let Some(entry) = state.pods.get_mut(uid) else { return };
    let told = entry.pending_resize.as_ref().map(|before| before.generation);
    let news = pending.clone().filter(|now| told != Some(now.generation));
    entry.pending_resize = pending;
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
    if state.pods.get(&uid).is_some_and(|entry| entry.set_aside.is_some()) {
        return updated(state, cx, view);
    }
    if let Some(entry) = state.pods.get_mut(&uid) {
        if entry.lifecycle.may_start() {
            entry.removed = false;
            let Allocated { view, pending } = allocation::keep(view, &entry.view);
            set_view(entry, runtime_class::with_overhead(view, &state.runtime_classes));
            set_pending_resize(state, cx, &uid, pending);
        } else {
            // Wanted again while it goes: it comes back as a new pod once it has ended.
            entry.comes_back = Some(view);
        }
        state.recount(&uid);
        cx.touch(&uid);
        return;
    }
    create(state, cx, view, None);
}

/// What is known of the runtime's part of a pod that comes back.
pub(super) struct Known {
    pub reading: Option<Reading>,
    pub last_mutation: Mono,
    pub unread: bool,
    pub observing: Observing,
}

/// Makes the entry of a pod that is wanted. `known`: if it had been here already.
pub(super) fn create(state: &mut NodeState, cx: &mut Context, view: PodView, known: Option<Known>) {
    if let Some(why) = set_aside::of(state, &view) {
        return set_aside::create(state, cx, view, why, false);
    }
    let uid = view.uid.clone();
    let period = quota_period_micros(&state.config);
    let Allocated { view, pending } = allocation::recall(view, period);
    let mut entry = PodEntry::new(runtime_class::with_overhead(view, &state.runtime_classes));
    entry.pending_resize = pending;
    if let Some(known) = known {
        entry.observed = known.reading;
        entry.last_mutation = known.last_mutation;
        entry.unread = known.unread;
        entry.observing = known.observing;
    } else if let Some(pod) = state.unclaimed.remove(&uid) {
        state.unclaimed_witnesses.remove(&uid);
        let at = state.full_observation.last.unwrap_or(Mono::ZERO);
        for id in
            pod.containers.iter().map(|c| c.id.as_str()).chain(pod.sandboxes.iter().map(|s| s.id.as_str()))
        {
            state.ids.insert(id.to_owned(), uid.clone());
        }
        entry.observed = Some(Reading { at, pod });
    } else if let Some(at) = state.full_observation.last {
        // A complete reading did not show it, and nobody but us makes pods here. Nor was there anything when it was
        // forgotten: a reading that began before that must not count as newer.
        let at = state.forgotten.get(&uid).map_or(at, |when| at.max(*when));
        let empty = model::observed::ObservedPod::empty(uid.clone(), entry.view.full_name.clone());
        entry.observed = Some(Reading { at, pod: Arc::new(empty) });
    }
    let full_name = entry.view.full_name.clone();
    let deleting = entry.view.is_deleting();
    let runs = entry.observed.as_ref().is_some_and(|r| r.pod.anything_running());
    let verdict = admission_verdict(state, &entry.view);
    let line = state.names.entry(full_name).or_default();
    // Who ran before this agent came has the name, whichever source spoke first. The others look who has it now.
    cx.touched.extend(line.iter().cloned());
    if runs {
        line.push_front(uid.clone());
    } else {
        line.push_back(uid.clone());
    }
    state.pods.insert(uid.clone(), entry);
    state.recount(&uid);
    if let Err(refusal) = verdict {
        reject(state, cx, &uid, refusal);
    } else if deleting {
        let grace = deletion_grace(state, &uid);
        terminate(state, cx, &uid, TerminationCause::Deleted, grace);
    }
    write_node_cgroups(state, cx);
    cx.touch(&uid);
}

fn admission_verdict(state: &NodeState, pod: &PodView) -> Result<(), admission::Refusal> {
    admission::admit(
        pod,
        &admission::Place {
            config: &state.config,
            facts: &state.facts,
            node: state.node.as_deref(),
            runtime: &state.runtime,
            others: state.tally.beside(),
        },
    )
}

fn reject(state: &mut NodeState, cx: &mut Context, uid: &PodUid, refusal: admission::Refusal) {
    if let Some(entry) = state.pods.get_mut(uid) {
        // Nothing of it was mounted or made, unless an earlier agent let it in.
        entry.ledger.released = entry.observed.as_ref().is_some_and(|r| r.pod.is_empty());
    }
    reject_late(state, cx, uid, refusal);
}

/// One that was let in: what was made for it goes.
pub(super) fn reject_late(
    state: &mut NodeState,
    cx: &mut Context,
    uid: &PodUid,
    refusal: admission::Refusal,
) {
    cx.record(state, uid, ApiEvent::warning(&refusal.reason, refusal.message.clone()));
    cx.log(LogLevel::Warn, Some(uid), format!("pod was rejected: {}: {}", refusal.reason, refusal.message));
    if let Some(entry) = state.pods.get_mut(uid) {
        entry.rejection = Some((refusal.reason, refusal.message));
    }
    state.recount(uid);
    terminate(state, cx, uid, TerminationCause::Rejected, MINIMUM_GRACE_SECS);
}

fn updated(state: &mut NodeState, cx: &mut Context, view: PodView) {
    let uid = view.uid.clone();
    let Some(entry) = state.pods.get_mut(&uid) else { return added(state, cx, view) };
    if let Some(why) = &entry.set_aside {
        if why.definition != definition(&view.pod) {
            return set_aside::lift(state, cx, &uid, view);
        }
        entry.view = view;
        return cx.touch(&uid);
    }
    if entry.comes_back.is_some() {
        // What is still going is the pod as it was; the change is to the one that follows it.
        entry.comes_back = Some(view);
        return;
    }
    let deleting = view.is_deleting();
    let Allocated { view, pending } = allocation::keep(view, &entry.view);
    let view = runtime_class::with_overhead(view, &state.runtime_classes);
    for (_, container) in view.all_containers() {
        let old = entry.view.container(&container.name).and_then(|(_, c)| c.image.clone());
        if old != container.image {
            entry.ledger.images.remove(&container.name);
            entry.ledger.retry_at.remove(&container.name);
        }
    }
    set_view(entry, view);
    set_pending_resize(state, cx, &uid, pending);
    state.recount(&uid);
    if deleting {
        let grace = deletion_grace(state, &uid);
        terminate(state, cx, &uid, TerminationCause::Deleted, grace);
    }
    cx.touch(&uid);
}

fn removed(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    if let Some(entry) = state.pods.get(uid).filter(|entry| entry.set_aside.is_some()) {
        let view = entry.view.clone();
        set_aside::lift(state, cx, uid, view);
    }
    let Some(entry) = state.pods.get_mut(uid) else { return };
    entry.removed = true;
    entry.comes_back = None;
    state.recount(uid);
    let grace = deletion_grace(state, uid);
    terminate(state, cx, uid, TerminationCause::Removed, grace);
    cx.touch(uid);
}

/// It fails with this reason, whatever its containers end with. Of several reasons the first stands.
pub(super) fn evict(
    state: &mut NodeState,
    cx: &mut Context,
    uid: &PodUid,
    because: (String, String),
    grace_secs: Option<i64>,
) {
    let Some(entry) = state.pods.get_mut(uid).filter(|e| !e.lifecycle.is_terminated()) else { return };
    entry.eviction.get_or_insert(because);
    let grace = grace_secs.map(|secs| secs.max(MINIMUM_GRACE_SECS));
    let grace = grace.unwrap_or_else(|| deletion_grace(state, uid));
    terminate(state, cx, uid, TerminationCause::Evicted, grace);
}

fn deletion_grace(state: &NodeState, uid: &PodUid) -> i64 {
    let Some(entry) = state.pods.get(uid) else { return MINIMUM_GRACE_SECS };
    grace_secs(entry.view.pod.metadata.deletion_grace_period_seconds, entry.view.spec_grace())
}

/// Asks for the end of a pod. A later request can only make it come sooner.
pub(super) fn terminate(
    state: &mut NodeState,
    cx: &mut Context,
    uid: &PodUid,
    cause: TerminationCause,
    grace_secs: i64,
) {
    let Some(entry) = state.pods.get_mut(uid).filter(|entry| entry.set_aside.is_none()) else { return };
    let interrupt = match &mut entry.lifecycle {
        Lifecycle::Syncing => {
            entry.lifecycle = Lifecycle::Terminating(Termination { since: cx.now.mono, grace_secs, cause });
            entry.ledger.pod_retry = None;
            true
        }
        Lifecycle::Terminating(termination) => termination.shorten(grace_secs, cx.now.mono),
        Lifecycle::Terminated | Lifecycle::Finished => false,
    };
    if interrupt && let Some(plan) = entry.plan.as_mut().filter(|p| !p.cancelled) {
        plan.cancelled = true;
        let epoch = plan.epoch;
        cx.emit(Effect::Cancel { uid: uid.clone(), epoch });
        csi::plan_cancelled(state, cx, uid, epoch);
    }
    state.images.leave(uid);
    cx.touch(uid);
}

/// Runtime pods that nobody wants, once every source has spoken: stopped with the grace they were made with.
pub(super) fn take_orphans(state: &mut NodeState, cx: &mut Context, at: Mono) {
    if !state.sources_ready() {
        return;
    }
    let taken = state.take_unclaimed();
    // Those that can't be read stay, and with them what is doubted of them.
    state.unclaimed_witnesses.retain(|uid, _| state.unclaimed.contains_key(uid));
    for (uid, pod) in taken {
        state.in_work = Some(uid.clone());
        let grace = pod.containers.iter().filter_map(|c| c.pod_grace).max().unwrap_or(MINIMUM_GRACE_SECS);
        cx.log(
            LogLevel::Info,
            Some(&uid),
            format!("pod {} is in the runtime, but no source wants it: stopping it", pod.full_name),
        );
        let mut spec = Pod::default();
        spec.metadata.uid = Some(uid.to_string());
        spec.metadata.name = Some(pod.full_name.name.to_string());
        spec.metadata.namespace = Some(pod.full_name.namespace.to_string());
        let view = PodView::new(Arc::new(spec), Source::File);
        if let Some(why) = set_aside::of(state, &view) {
            state.unclaimed.insert(uid, pod);
            set_aside::create(state, cx, view, why, true);
            continue;
        }
        let mut entry = PodEntry::new(view);
        entry.orphan = true;
        state.counts.orphans += 1;
        entry.removed = true;
        for id in
            pod.containers.iter().map(|c| c.id.as_str()).chain(pod.sandboxes.iter().map(|s| s.id.as_str()))
        {
            state.ids.insert(id.to_owned(), uid.clone());
        }
        state.names.entry(pod.full_name.clone()).or_default().push_front(uid.clone());
        entry.observed = Some(Reading { at, pod });
        state.pods.insert(uid.clone(), entry);
        state.recount(&uid);
        terminate(state, cx, &uid, TerminationCause::Orphan, grace.max(MINIMUM_GRACE_SECS));
    }
}

/// In each line for a name those who run already stand before those who came to it sooner: sources that spoke before
/// the runtime was read could not know.
pub(super) fn who_runs_goes_first(state: &mut NodeState) {
    let pods = &state.pods;
    let runs = |uid: &PodUid| {
        pods.get(uid).and_then(|e| e.observed.as_ref()).is_some_and(|r| r.pod.anything_running())
    };
    for line in state.names.values_mut().filter(|line| line.len() > 1) {
        line.make_contiguous().sort_by_key(|uid| !runs(uid));
    }
}

/// Another pod of the same name that has to end first.
pub(super) fn name_holder(state: &NodeState, uid: &PodUid) -> Option<String> {
    let entry = state.pods.get(uid)?;
    if !entry.view.source.is_static() {
        return None;
    }
    let line = state.names.get(&entry.view.full_name)?;
    let before = line.iter().take_while(|other| *other != uid).filter_map(|other| state.pods.get(other));
    let holder = before.into_iter().find(|other| !matches!(other.lifecycle, Lifecycle::Finished));
    let unclaimed = state.unclaimed.values().find(|p| p.full_name == entry.view.full_name && p.uid != *uid);
    holder
        .map(|other| other.view.human())
        .or_else(|| unclaimed.map(|p| format!("{}({})", p.full_name, p.uid)))
}

/// Those who wait for this name may try: who held it without being known to us is gone.
pub(super) fn name_freed(state: &NodeState, cx: &mut Context, name: &FullName) {
    cx.touched.extend(state.names.get(name).into_iter().flatten().cloned());
}

/// The entry goes; who waited for its name is looked at.
pub(super) fn forget(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    let Some(entry) = state.pods.remove(uid) else { return };
    state.recount(uid);
    state.forgotten.insert(uid.clone(), cx.now.mono);
    state.confirmations.remove(uid);
    if let Some(reading) = &entry.observed {
        for id in reading.pod.containers.iter().map(|c| c.id.as_str()) {
            state.ids.remove(id);
        }
        for id in reading.pod.sandboxes.iter().map(|s| s.id.as_str()) {
            state.ids.remove(id);
        }
    }
    state.images.leave(uid);
    super::objects::release(state, cx, uid);
    if entry.timer.is_some() {
        cx.timer(crate::TimerKey::Pod(uid.clone()), None);
    }
    if entry.publication.retry_at.is_some() {
        cx.timer(crate::TimerKey::Report(uid.clone()), None);
    }
    if entry.disk_watched {
        cx.timer(crate::TimerKey::Disk(uid.clone()), None);
    }
    if entry.view.source.is_static() {
        cx.mirrors.insert(entry.view.full_name.clone());
    }
    release_name(state, cx, &entry.view, true);
    cx.emit(Effect::Forget { uid: uid.clone() });
    write_node_cgroups(state, cx);
}

/// Those who stand behind this pod in the line for its name may try.
pub(super) fn release_name(state: &mut NodeState, cx: &mut Context, view: &PodView, leave: bool) {
    let Some(line) = state.names.get_mut(&view.full_name) else { return };
    if leave {
        line.retain(|uid| *uid != view.uid);
    }
    for uid in line.iter().filter(|uid| **uid != view.uid) {
        cx.touched.insert(uid.clone());
    }
    if line.is_empty() {
        state.names.remove(&view.full_name);
    }
}

/// The levels above pods, when their numbers changed.
pub(super) fn write_node_cgroups(state: &mut NodeState, cx: &mut Context) {
    // Before the runtime has spoken its cgroup driver is not known, and so neither is the spelling.
    if !state.config.cgroups_per_qos || !state.runtime.ever_ready {
        return;
    }
    let milli = state.tally.burstable_milli();
    if state.burstable_shares_written == Some(milli) {
        return;
    }
    state.burstable_shares_written = Some(milli);
    let specs =
        cgroups::node_cgroup_specs(&state.config, &state.facts, i64::try_from(milli).unwrap_or(i64::MAX));
    cx.emit(Effect::EnsureCgroups { specs });
}
