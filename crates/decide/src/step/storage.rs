//! Measuring pods whose local storage is limited, and evicting those that have outgrown it.
//!
//! ```text
//!   runs and is limited ──> timer ──> measure ──> measured ──> too much: evicted
//!                             ^                       │
//!                             └───────────────────────┘ else again, after PERIOD
//! ```
//! Nothing can tell of files that grow, so this asks; pods without a limit are never measured.

use std::time::Duration;

use model::storage::StorageUse;
use model::{ApiEvent, PodUid};

use super::{Context, pods};
use crate::effect::{Effect, LogLevel, TimerKey};
use crate::state::NodeState;
use crate::storage;

/// As often as the kubelet looks.
const PERIOD: Duration = Duration::from_secs(10);
const GRACE_SECS: i64 = 1;
const REASON: &str = "Evicted";

/// Begins to watch a pod that has something to measure.
pub(super) fn attend(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    let config = state.config.clone();
    let Some(entry) = state.pods.get_mut(uid) else { return };
    let alive = entry.observed.as_ref().is_some_and(|reading| reading.pod.anything_running());
    if alive
        && entry.lifecycle.may_start()
        && !entry.storage_watched
        && storage::is_limited(&config, &entry.view)
    {
        entry.storage_watched = true;
        cx.timer(TimerKey::Storage(uid.clone()), Some(cx.now.mono.plus(PERIOD)));
    }
}

pub(super) fn due(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    let config = state.config.clone();
    let Some(entry) = state.pods.get_mut(uid) else { return };
    match &entry.observed {
        Some(reading) if entry.lifecycle.may_start() && storage::is_limited(&config, &entry.view) => {
            let places = storage::places(&config, &entry.view, &reading.pod);
            cx.emit(Effect::MeasureStorage { uid: uid.clone(), places });
        }
        _ => entry.storage_watched = false,
    }
}

pub(super) fn measured(
    state: &mut NodeState,
    cx: &mut Context,
    uid: &PodUid,
    result: Result<StorageUse, String>,
) {
    let Some(entry) = state.pods.get_mut(uid).filter(|entry| entry.storage_watched) else { return };
    if !entry.lifecycle.may_start() {
        entry.storage_watched = false;
        return;
    }
    let verdict = match result {
        Ok(used) => storage::verdict(&entry.view, &used),
        Err(message) => {
            cx.log(LogLevel::Warn, Some(uid), format!("measuring the pod's local storage: {message}"));
            None
        }
    };
    let Some(message) = verdict else {
        return cx.timer(TimerKey::Storage(uid.clone()), Some(cx.now.mono.plus(PERIOD)));
    };
    entry.storage_watched = false;
    cx.record(state, uid, ApiEvent::warning(REASON, message.clone()));
    pods::evict(state, cx, uid, (REASON.into(), message), Some(GRACE_SECS));
}
