//! Measures pods whose local storage is limited, and evicts those that exceed the limit.
//!
//! ```text
//!   runs and is limited ──> timer ──> measure ──> measured ──> too much: evicted
//!                             ^                       │
//!                             └───────────────────────┘ else again, after PERIOD
//! ```
//! There is no notification for growing files, so they are measured periodically. Pods without a limit are never
//! measured.

use model::PodReason;
use std::time::Duration;

use model::disk_usage::PodDiskUsage;
use model::{ApiEvent, PodUid};

use super::{Context, pods};
use crate::disk_limits;
use crate::effect::{Effect, LogLevel, TimerKey};
use crate::state::{FailureReason, NodeState};

/// The interval of the upstream kubelet.
const PERIOD: Duration = Duration::from_secs(10);
const GRACE_SECS: i64 = 1;

/// Starts the timer for a pod that has something to measure.
pub(super) fn start_measuring(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    let config = state.config.clone();
    let Some(entry) = state.pods.get_mut(uid) else { return };
    let alive = entry.observed.as_ref().is_some_and(|reading| reading.pod.anything_running());
    if alive
        && entry.lifecycle().may_start()
        && !entry.disk_usage_watched
        && disk_limits::is_limited(&config, entry.view())
    {
        entry.disk_usage_watched = true;
        cx.timer(TimerKey::MeasureDisk(uid.clone()), Some(cx.now.mono.plus(PERIOD)));
    }
}

pub(super) fn measure_again(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    let config = state.config.clone();
    let Some(entry) = state.pods.get_mut(uid).filter(|entry| entry.disk_usage_watched) else { return };
    match &entry.observed {
        Some(reading) if entry.lifecycle().may_start() && disk_limits::is_limited(&config, entry.view()) => {
            let places = disk_limits::places(&config, entry.view(), &reading.pod);
            cx.emit(Effect::MeasureDisk { uid: uid.clone(), places });
        }
        _ => entry.disk_usage_watched = false,
    }
}

pub(super) fn measured(
    state: &mut NodeState,
    cx: &mut Context,
    uid: &PodUid,
    result: Result<PodDiskUsage, String>,
) {
    let Some(entry) = state.pods.get_mut(uid).filter(|entry| entry.disk_usage_watched) else { return };
    if !entry.lifecycle().may_start() {
        entry.disk_usage_watched = false;
        return;
    }
    let verdict = match result {
        Ok(used) => disk_limits::exceeded_limit(entry.view(), &used),
        Err(message) => {
            cx.log(LogLevel::Warn, Some(uid), format!("measuring the pod's local storage failed: {message}"));
            None
        }
    };
    let Some(outgrown) = verdict else {
        return cx.timer(TimerKey::MeasureDisk(uid.clone()), Some(cx.now.mono.plus(PERIOD)));
    };
    entry.disk_usage_watched = false;
    *state.counters.evictions.entry(outgrown.signal.to_owned()).or_default() += 1;
    let message = outgrown.message;
    let reason = PodReason::Evicted.as_str();
    cx.record(state, uid, ApiEvent::warning(reason, message.clone()));
    pods::evict(state, cx, uid, FailureReason::new(reason, message), Some(GRACE_SECS));
}
