//! Records of user-namespace ids that could not be read at the start.
//!
//! ```text
//!   directories not listed, or a record not readable ──> read again: 1 s, 2 s, 4 s .. 5 min ──> pods that wait go on
//! ```
//! Until all are known, no pod gets ids that it did not have before: they may be in use.

use model::PodUid;
use model::cri::IdMapping;

use super::Context;
use crate::back_off::status_delay;
use crate::effect::{Effect, LogLevel, TimerKey};
use crate::state::NodeState;

/// Sets the timer of the next reading, if one is needed.
pub(super) fn schedule_reading(state: &mut NodeState, cx: &mut Context) {
    if is_complete(state) {
        state.user_id_readings = 0;
        return;
    }
    state.user_id_readings = state.user_id_readings.saturating_add(1);
    let at = cx.now.mono.plus(status_delay(state.user_id_readings));
    cx.timer(TimerKey::UserIds, Some(at));
}

pub(super) fn reading_due(state: &NodeState, cx: &mut Context) {
    if !is_complete(state) {
        cx.emit(Effect::ReadUserIds);
    }
}

/// `unlisted`: the directories could not be listed again.
pub(super) fn read(
    state: &mut NodeState,
    cx: &mut Context,
    found: Vec<(PodUid, Option<IdMapping>)>,
    unlisted: bool,
) {
    let before = (state.user_ids.clone(), state.user_id_listing_failed);
    let first_listing = state.user_id_listing_failed && !unlisted;
    state.user_id_listing_failed &= unlisted;
    for (uid, ids) in found {
        match state.user_ids.get_mut(&uid) {
            Some(known @ None) => *known = ids,
            Some(Some(_)) => {}
            // Otherwise the pod was forgotten while the records were read.
            None if first_listing => drop(state.user_ids.insert(uid, ids)),
            None => {}
        }
    }
    if before != (state.user_ids.clone(), state.user_id_listing_failed) {
        if is_complete(state) {
            cx.log(LogLevel::Info, None, "the ids of all user namespaces are known now");
        }
        for (uid, entry) in state.pods.iter_mut() {
            if !entry.standing().is_set_aside() && entry.view().spec().host_users == Some(false) {
                entry.ledger.pod_retry = None;
                cx.touched.insert(uid.clone());
            }
        }
    }
    schedule_reading(state, cx);
}

fn is_complete(state: &NodeState) -> bool {
    !state.user_id_listing_failed && state.user_ids.values().all(Option::is_some)
}
