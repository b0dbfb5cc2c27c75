//! Handling of a pod that is set aside: it is reported, and nothing else is done for it.

use std::sync::Arc;

use model::pod::PodView;
use model::why::{Cause, Why};
use model::{ApiEvent, PodUid};

use super::pods::{self, PriorObservation};
use super::{Context, api, settle};
use crate::effect::{Effect, LogLevel};
use crate::set_aside::{REASON, SetAside, definition_hash};
use crate::state::{NodeState, PodEntry};

/// Why a pod of this definition is set aside, if it is.
pub(super) fn find_record(state: &NodeState, view: &PodView) -> Option<SetAside> {
    let found = state.set_aside.get(&view.uid)?;
    (found.definition == definition_hash(&view.pod)).then(|| found.clone())
}

/// Makes the entry of a pod that is set aside. Nothing is derived from its definition: that may be what panics.
/// `orphan`: no source wants it.
pub(super) fn create(state: &mut NodeState, cx: &mut Context, view: PodView, why: SetAside, orphan: bool) {
    let uid = view.uid.clone();
    state.name_queues.entry(view.full_name.clone()).or_default().push_back(uid.clone());
    let observed = state.unclaimed.remove(&uid).map(|pod| {
        let at = state.full_observation.last.unwrap_or(model::Mono::ZERO);
        crate::state::PodObservation { at, pod }
    });
    cx.log(LogLevel::Error, Some(&uid), format!("pod is set aside: {}", why.message));
    let event = ApiEvent::warning(REASON, why.message.clone());
    let (set_aside, removed) = (Some(why), orphan);
    let entry = PodEntry { observed, set_aside, orphan, removed, ..PodEntry::without_amounts(view) };
    state.pods.insert(uid.clone(), entry);
    state.update_node_requests(&uid);
    cx.record(state, &uid, event);
    cx.touch(&uid);
}

/// Takes the place of everything else that settling a pod is.
pub(super) fn report_set_aside(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    let Some(entry) = state.pods.get(uid) else { return };
    let Some(why) = entry.set_aside.clone() else { return };
    let orphan = entry.orphan;
    let cause = Cause::SetAside { message: why.message.clone() };
    settle::set_why(state, cx, uid, vec![Why { container: None, cause, next_attempt: None }]);
    if why.unreported || orphan {
        return;
    }
    let Some(entry) = state.pods.get(uid) else { return };
    let known = entry.status.clone().or_else(|| api::shown_status(state, entry));
    let told = known.as_ref().is_some_and(|s| s.reason.as_deref() == Some(REASON));
    if entry.status.is_none() || !told {
        // Beside the reason everything is as it was last: nobody looks at what runs.
        let mut status = known.map(|known| (*known).clone()).unwrap_or_default();
        status.phase.get_or_insert_with(|| "Pending".into());
        status.reason = Some(REASON.into());
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

/// Its definition changed, or its source removed it: from now on it is treated like any other pod.
pub(super) fn resume_pod(state: &mut NodeState, cx: &mut Context, uid: &PodUid, view: PodView) {
    let Some(entry) = state.pods.get(uid) else { return };
    let known = PriorObservation {
        reading: entry.observed.clone(),
        last_mutation: entry.last_mutation,
        unread_since_mutation: entry.unread_since_mutation,
        observation_request: entry.observation_request,
    };
    cx.log(LogLevel::Info, Some(uid), "pod is no longer set aside: its definition changed");
    state.set_aside.remove(uid);
    pods::forget(state, cx, uid);
    pods::create(state, cx, view, Some(known));
}
