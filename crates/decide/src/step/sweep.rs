//! What is on disk and in the cgroup tree without a pod: set differences, and never a guess.

use std::time::Duration;

use model::PodUid;

use super::Context;
use crate::effect::{Effect, LogLevel, Sweep, TimerKey};
use crate::event::PodArtifacts;
use crate::state::NodeState;

/// Interval of the sweep, which removes what the pods' own clean-up left.
const SWEEP_PERIOD: Duration = Duration::from_secs(300);

/// After the first full relist and the first delivery of every source, leftovers of earlier agents can be distinguished
/// from wanted pods.
pub(super) fn list_pod_artifacts_once(state: &mut NodeState, cx: &mut Context) {
    if state.sources_ready() && state.full_observation.last.is_some() && !state.swept_once {
        state.swept_once = true;
        list_pod_artifacts(state, cx);
    }
}

pub(super) fn list_pod_artifacts(state: &mut NodeState, cx: &mut Context) {
    if state.sources_ready() && !state.sweep_running {
        state.sweep_running = true;
        cx.emit(Effect::ListPodArtifacts);
    }
}

pub(super) fn leftovers(state: &mut NodeState, cx: &mut Context, seen: PodArtifacts) {
    // The ids of a pod are free when its directory is gone. Of a directory that could not be listed nobody knows that.
    if seen.pod_dirs_complete {
        state.user_ids.retain(|uid, _| state.pods.contains_key(uid) || seen.pod_dirs.contains(uid));
    }
    let unknown = |uid: &PodUid| {
        !state.pods.contains_key(uid) && !state.unclaimed.contains_key(uid) && !state.is_unreadable(uid)
    };
    let of_unknown = |uid: Option<&str>| uid.is_some_and(|uid| !uid.is_empty() && unknown(&uid.into()));
    let last_part = |name: &model::cgroup::CgroupName| name.0.last().cloned().unwrap_or_default();
    let sweep = Sweep {
        pod_dirs: seen.pod_dirs.into_iter().filter(unknown).collect(),
        log_dirs: seen
            .log_dirs
            .into_iter()
            .filter(|n| of_unknown(n.rsplit_once('_').map(|(_, uid)| uid)))
            .collect(),
        links: seen.dead_links.into_iter().filter(|name| !state.logs.has_link(name)).collect(),
        cgroups: seen
            .pod_cgroups
            .into_iter()
            .filter(|name| of_unknown(last_part(name).strip_prefix("pod")))
            .collect(),
    };
    if sweep.is_empty() {
        return swept(state, cx, Vec::new());
    }
    // None of these may come to life while their remains are removed.
    state.pod_dirs_being_swept = sweep.pod_dirs.iter().cloned().collect();
    state.pods_being_swept = state.pod_dirs_being_swept.clone();
    let of_logs = sweep.log_dirs.iter().filter_map(|n| n.rsplit_once('_')).map(|(_, uid)| PodUid::from(uid));
    state.pods_being_swept.extend(of_logs.collect::<Vec<_>>());
    let of_cgroups = sweep.cgroups.iter().map(last_part);
    state
        .pods_being_swept
        .extend(of_cgroups.filter_map(|n| n.strip_prefix("pod").map(PodUid::from)).collect::<Vec<_>>());
    cx.emit(Effect::Sweep(sweep));
}

pub(super) fn swept(state: &mut NodeState, cx: &mut Context, problems: Vec<String>) {
    state.sweep_running = false;
    let swept = std::mem::take(&mut state.pod_dirs_being_swept);
    if problems.is_empty() {
        let pods = &state.pods;
        state.user_ids.retain(|uid, _| pods.contains_key(uid) || !swept.contains(uid));
    }
    for uid in std::mem::take(&mut state.pods_being_swept) {
        cx.touch(&uid);
    }
    for problem in problems {
        cx.log(LogLevel::Warn, None, format!("removing leftovers of pods that are gone failed: {problem}"));
    }
    cx.timer(TimerKey::Sweep, Some(cx.now.mono.plus(SWEEP_PERIOD)));
}
