//! Follows which containers run, so that their logs are rotated ([`crate::log_rotation`]).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use model::log_rotation::LogCallResult;
use model::observed::{ContainerState, ObservedContainer, ObservedPod};
use model::{ContainerId, PodUid};

use super::Context;
use crate::effect::{Effect, LogLevel, TimerKey};
use crate::log_rotation::LogWork;
use crate::render;
use crate::state::NodeState;

/// The runtime showed this of a pod, whether a source wants it or not.
pub(super) fn pod_observed(state: &mut NodeState, cx: &mut Context, pod: &ObservedPod) {
    if state.config.log_rotation.is_none() {
        return;
    }
    let running = pod.containers.iter().filter(|container| container.state == ContainerState::Running);
    let paths: BTreeMap<_, _> =
        running.map(|container| (&container.id, log_path(state, pod, container))).collect();
    let running = paths.iter().map(|(id, path)| (*id, path.as_ref())).collect();
    let work = state.logs.set_running(&pod.uid, running);
    perform(cx, work);
}

/// Where the runtime refuses to tell, the log is where the agent wanted it.
fn log_path<'a>(state: &NodeState, pod: &ObservedPod, container: &'a ObservedContainer) -> Cow<'a, str> {
    if !container.log_path.is_empty() || !pod.missing_status.contains_key(container.id.as_str()) {
        return Cow::Borrowed(&container.log_path);
    }
    let dir = state.config.pod_log_dir(&pod.full_name, &pod.uid);
    Cow::Owned(format!("{dir}/{}", render::log_path(&container.name, container.restart_count)))
}

pub(super) fn pod_gone(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    let work = state.logs.set_running(uid, BTreeMap::new());
    perform(cx, work);
}

/// After a full observation: pods that are neither known nor seen have no logs to rotate.
pub(super) fn forget_unseen(state: &mut NodeState, cx: &mut Context) {
    let known = |uid: &&PodUid| state.pods.contains_key(uid) || state.unclaimed.contains_key(*uid);
    let gone: BTreeSet<PodUid> = state.logs.pods().filter(|uid| !known(uid)).cloned().collect();
    for uid in gone {
        pod_gone(state, cx, &uid);
    }
}

pub(super) fn timer_fired(state: &mut NodeState, cx: &mut Context, id: &ContainerId) {
    let work = state.logs.timer_fired(id);
    perform(cx, work);
}

pub(super) fn call_ended(state: &mut NodeState, cx: &mut Context, id: &ContainerId, result: LogCallResult) {
    let config = state.config.clone();
    let Some(config) = &config.log_rotation else { return };
    let work = state.logs.call_ended(config, cx.now.mono, id, result);
    perform(cx, work);
}

fn perform(cx: &mut Context, work: Vec<LogWork>) {
    for work in work {
        match work {
            LogWork::Call { id, path, call } => cx.emit(Effect::CallLog { id, path, call }),
            LogWork::Timer { id, at } => cx.timer(TimerKey::MeasureLog(id), at),
            LogWork::Failed { pod, message } => cx.log(LogLevel::Warn, Some(&pod), message),
        }
    }
}
