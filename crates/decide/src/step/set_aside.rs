//! Handling of a pod that is set aside: it is reported, and nothing else is done for it.

use model::{PodPhase, PodReason};
use std::sync::Arc;

use model::k8s::Pod;
use model::pod::{PodView, UnreadablePod};
use model::why::{Cause, Why};
use model::{ApiEvent, FullName, PodUid};

use super::retry::set_why;
use super::{Context, api};
use crate::effect::{Effect, LogLevel};
use crate::set_aside::{SetAside, definition_hash};
use crate::state::{NodeState, PodEntry};

/// Why a pod of this definition is set aside, if it is.
pub(super) fn find_record(state: &NodeState, view: &PodView) -> Option<SetAside> {
    let definition = state.delivered_definition(view);
    state.set_aside.get(&view.uid)?.iter().find(|found| found.definition == definition).cloned()
}

/// The object as an unreadable one, if merging it into the set of its source panicked repeatedly.
pub(super) fn unmergeable(state: &NodeState, pod: &Pod) -> Option<UnreadablePod> {
    let meta = &pod.metadata;
    let uid = PodUid::new(meta.uid.as_deref()?);
    let definition = definition_hash(pod);
    let found = state.set_aside.get(&uid)?;
    let found = found.iter().find(|found| found.unmergeable && found.definition == definition)?;
    let named = |name: &Option<String>| name.clone().unwrap_or_default();
    Some(UnreadablePod {
        uid,
        full_name: FullName::new(&named(&meta.name), &named(&meta.namespace)),
        problem: found.message.clone(),
    })
}

/// Makes the entry of a pod that is set aside. Only its amounts are derived from its definition: the rest may be what
/// panics.
/// `orphan`: no source wants it.
pub(super) fn create(state: &mut NodeState, cx: &mut Context, view: PodView, why: SetAside, orphan: bool) {
    let uid = view.uid.clone();
    state.name_queues.entry(view.full_name.clone()).or_default().push_back(uid.clone());
    let observed = state.unclaimed.remove(&uid).map(|pod| {
        let at = state.full_observation.last.unwrap_or(model::Mono::ZERO);
        crate::observation_guard::PodObservation { at, pod }
    });
    cx.log(LogLevel::Error, Some(&uid), format!("pod is set aside: {}", why.message));
    let event = ApiEvent::warning(PodReason::SetAside.as_str(), why.message.clone());
    let mut entry = PodEntry::set_aside(view, why, orphan);
    entry.observed = observed;
    entry.status_retry = state.unclaimed_status_retries.remove(&uid);
    state.pods.insert(entry);
    cx.record(state, &uid, event);
    cx.touch(&uid);
}

/// Takes the place of everything else that settling a pod is.
pub(super) fn report_set_aside(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    let Some(entry) = state.pods.get(uid) else { return };
    let Some(why) = entry.standing().set_aside_record().cloned() else { return };
    let orphan = entry.standing().is_orphan();
    let cause = Cause::SetAside { message: why.message.clone() };
    set_why(state, cx, uid, vec![Why { container: None, cause, next_attempt: None }]);
    if why.unreported || orphan {
        return;
    }
    let Some(entry) = state.pods.get(uid) else { return };
    let known = entry.status.clone().or_else(|| api::shown_status(state, entry));
    let told = known.as_ref().is_some_and(|s| PodReason::of(s) == Some(PodReason::SetAside));
    if entry.status.is_none() || !told {
        // Beside the reason everything is as it was last: nobody looks at what runs.
        let mut status = known.map(|known| (*known).clone()).unwrap_or_default();
        status.phase.get_or_insert_with(|| PodPhase::Pending.as_str().into());
        status.reason = Some(PodReason::SetAside.as_str().into());
        status.message = Some(why.message);
        let status = Arc::new(status);
        if let Some(entry) = state.pods.get_mut(uid) {
            entry.status = Some(status.clone());
            entry.publication.dirty = true;
        }
        cx.emit(Effect::StatusChanged { uid: uid.clone(), status });
    }
    api::publish_status(state, cx, uid);
}
