//! Reads the node's figures when they are due, and evicts pods for what runs short ([`crate::eviction`]).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::eviction::{EvictionSignal, FigureGroup, NodeFigures, PodFigures, PodToMeasure};
use model::{ApiEvent, Mono, PodReason, PodUid};

use super::{Context, image_garbage, pods};
use crate::cgroups;
use crate::disk_limits;
use crate::effect::{Effect, LogLevel, TimerKey};
use crate::eviction::rank::{self, Candidate};
use crate::eviction::signals::FilesystemLayout;
use crate::eviction::{Activity, Due, ImageReclaim, NodeEviction};
use crate::lifecycle::{Lifecycle, MINIMUM_GRACE_SECS};
use crate::resources::is_critical;
use crate::state::{FailureReason, NodeState, PodEntry};

/// Dead containers and images may take so long to go; then the figures decide.
const RECLAIM_BOUND: Duration = Duration::from_secs(60);
/// What pods use is measured no longer than this, whatever hangs.
const MEASURE_BOUND: Duration = Duration::from_secs(30);
/// After its own time an evicted pod gets so much for its volumes and cgroup, before the figures are read all the same.
const CLEANUP_BOUND: Duration = Duration::from_secs(30);
/// What an evicted pod gets at least.
const SHORTEST_BOUND: Duration = Duration::from_secs(10);
const EXCEEDED_GRACE: &str = "Container runtime did not kill the pod within specified grace period.";

pub(super) fn start(state: &mut NodeState, cx: &mut Context) {
    let config = state.config.clone();
    for group in NodeEviction::groups(&config.eviction) {
        read(state, cx, group);
    }
}

pub(super) fn reading_due(state: &mut NodeState, cx: &mut Context, group: FigureGroup) {
    read(state, cx, group);
}

fn read(state: &mut NodeState, cx: &mut Context, group: FigureGroup) {
    if state.eviction.request(group, cx.now.mono) {
        cx.timer(TimerKey::NodeFigures(group), None);
        cx.emit(Effect::ReadNodeFigures { group });
    }
}

pub(super) fn figures_read(
    state: &mut NodeState,
    cx: &mut Context,
    group: FigureGroup,
    at: Mono,
    result: Result<NodeFigures, String>,
) {
    if let Some(message) = state.eviction.figures_read(group, at, result) {
        cx.log(LogLevel::Warn, None, message);
    }
    look(state, cx);
    let config = state.config.clone();
    if group == FigureGroup::Memory
        && let Some(levels) = state.eviction.notices_to_request(&config.eviction)
    {
        cx.emit(Effect::AwaitMemoryPressure { levels });
    }
    let next = state.eviction.next_reading(&config.eviction, group, cx.now.mono);
    match next <= cx.now.mono {
        true => read(state, cx, group),
        false => cx.timer(TimerKey::NodeFigures(group), Some(next)),
    }
}

/// The kernel says that memory runs short: the figures are read now.
pub(super) fn memory_runs_short(state: &mut NodeState, cx: &mut Context, result: Result<(), String>) {
    if let Err(message) = result {
        // The figures are read often enough without notices, so one line of the log is enough.
        if !std::mem::replace(&mut state.eviction.notices_failed, true) {
            let message = format!("the kernel gives no notice of memory pressure: {message}");
            cx.log(LogLevel::Warn, None, message);
        }
        return;
    }
    state.eviction.notices_failed = false;
    let at = state.eviction.noticed(FigureGroup::Memory, cx.now.mono);
    match at <= cx.now.mono {
        true => read(state, cx, FigureGroup::Memory),
        false => cx.timer(TimerKey::NodeFigures(FigureGroup::Memory), Some(at)),
    }
}

/// Everything was observed: what was short before that can be acted upon now.
pub(super) fn runtime_observed(state: &mut NodeState, cx: &mut Context) {
    if state.eviction.is_anything_due() {
        look(state, cx);
    }
}

/// Compares the figures with the thresholds, and acts if something is short.
pub(super) fn look(state: &mut NodeState, cx: &mut Context) {
    let config = state.config.clone();
    let due = assess(state, cx);
    if can_act(state)
        && let Some(next) = state.eviction.actionable(&due, cx.now.mono)
    {
        act(state, cx, &due, &next);
    }
    let change = state.eviction.next_change(&config.eviction, cx.now.mono);
    cx.timer(TimerKey::NodePressure, change);
}

/// Returns the thresholds that are due. A change of the pressure is reported.
fn assess(state: &mut NodeState, cx: &mut Context) -> Vec<Due> {
    let config = state.config.clone();
    let before = state.eviction.pressure();
    let due = state.eviction.assess(&config.eviction, cx.now.mono);
    let pressure = state.eviction.pressure();
    if pressure != before {
        cx.log(LogLevel::Info, None, format!("pressure on the node: [{}]", pressure.conditions().join(" ")));
        cx.emit(Effect::ReportNodePressure { pressure });
    }
    due
}

/// A pod that the runtime can't stop frees nothing, and before everything was observed nobody knows what can be removed. So
/// no pod is chosen meanwhile: they would be evicted one after the other, and all for nothing.
fn can_act(state: &NodeState) -> bool {
    state.runtime.ready && state.full_observation.last.is_some()
}

fn act(state: &mut NodeState, cx: &mut Context, all: &[Due], due: &Due) {
    let signal = due.threshold.signal;
    if !state.eviction.reclaimed.contains(&signal) {
        announce(cx, signal);
        if signal.is_about_disk() {
            if reclaim(state, cx, signal) {
                return;
            }
            state.eviction.reclaimed.insert(signal);
        }
    }
    for due in all {
        let age = cx.now.mono.since(due.reading.at);
        cx.emit(Effect::RecordFiguresAge { signal: due.threshold.signal, age });
    }
    measure_pods(state, cx, signal);
}

fn announce(cx: &mut Context, signal: EvictionSignal) {
    let message = format!("Attempting to reclaim {}", signal.resource());
    cx.log(LogLevel::Warn, None, format!("{}: {message}", signal.as_str()));
    cx.emit(Effect::RecordNodeEvent { event: ApiEvent::warning("EvictionThresholdMet", message) });
}

/// What may be removed for a signal: dead containers, and unused images.
fn reclaimable(signal: EvictionSignal, layout: FilesystemLayout) -> (bool, bool) {
    use EvictionSignal::*;
    let of_node = matches!(signal, NodefsAvailable | NodefsInodesFree);
    let of_images = matches!(signal, ImagefsAvailable | ImagefsInodesFree);
    match layout {
        FilesystemLayout::Single => (true, true),
        FilesystemLayout::DedicatedImages => (!of_node, !of_node),
        FilesystemLayout::Split => (!of_images, of_images),
    }
}

/// Begins to remove what nobody needs. `false`: there is nothing.
fn reclaim(state: &mut NodeState, cx: &mut Context, signal: EvictionSignal) -> bool {
    let (dead_containers, unused_images) = reclaimable(signal, state.eviction.layout());
    let mut containers = BTreeSet::new();
    if dead_containers {
        for (uid, entry) in state.pods.iter_mut() {
            let ended = entry.lifecycle().is_terminated()
                && !entry.standing().is_set_aside()
                && !entry.view().source.is_static();
            if ended && entry.observed.as_ref().is_some_and(|reading| !reading.pod.is_empty()) {
                entry.ledger.reclaim_containers = true;
                // Those of a pod that has not released its volumes yet go when it has.
                if matches!(entry.lifecycle(), Lifecycle::Finished) {
                    containers.insert(uid.clone());
                }
                cx.touch(uid);
            }
        }
    }
    if containers.is_empty() && !unused_images {
        return false;
    }
    let images = if unused_images { ImageReclaim::AfterContainers } else { ImageReclaim::No };
    state.eviction.activity = Activity::Reclaiming { signal, containers, images };
    cx.timer(TimerKey::EvictionStep, Some(cx.now.mono.plus(RECLAIM_BOUND)));
    true
}

/// Pods that may go, now and at all.
fn may_be_evicted(entry: &PodEntry) -> bool {
    entry.lifecycle().may_start()
        && !entry.standing().is_orphan()
        && !entry.standing().is_set_aside()
        && !is_critical(entry.view())
}

fn measure_pods(state: &mut NodeState, cx: &mut Context, signal: EvictionSignal) {
    let candidates = state.pods.values().filter(|entry| may_be_evicted(entry));
    let pods: Vec<_> = candidates.map(|entry| to_measure(state, entry)).collect();
    if pods.is_empty() {
        return nobody_can_go(state, cx, signal);
    }
    state.eviction.calls += 1;
    let call = state.eviction.calls;
    state.eviction.activity = Activity::MeasuringPods { call, signal };
    cx.timer(TimerKey::EvictionStep, Some(cx.now.mono.plus(MEASURE_BOUND)));
    cx.emit(Effect::MeasurePods { call, kind: signal.kind(), pods });
}

fn to_measure(state: &NodeState, entry: &PodEntry) -> PodToMeasure {
    let (config, pod) = (&state.config, entry.view());
    let cgroup = cgroups::pod_cgroup(config, pod).map(|name| name.to_path(config.cgroup_driver));
    let mut found = PodToMeasure {
        uid: pod.uid.clone(),
        cgroup,
        volumes: disk_limits::local_volumes(config, pod).into_values().collect(),
        sandbox: String::new(),
        containers: BTreeMap::new(),
        logs: BTreeMap::new(),
    };
    let Some(reading) = &entry.observed else { return found };
    found.sandbox = reading.pod.sandboxes.first().map(|sandbox| sandbox.id.to_string()).unwrap_or_default();
    let logs = config.pod_log_dir(&pod.full_name, &pod.uid);
    for (_, container) in pod.all_containers() {
        if let Some(newest) = reading.pod.newest(&container.name) {
            found.containers.insert(container.name.clone(), newest.id.clone());
            found.logs.insert(container.name.clone(), format!("{logs}/{}", container.name));
        }
    }
    found
}

fn nobody_can_go(state: &mut NodeState, cx: &mut Context, signal: EvictionSignal) {
    cx.log(LogLevel::Warn, None, format!("{}: there is no pod that may be evicted", signal.as_str()));
    state.eviction.give_up_for_now(cx.now.mono);
}

pub(super) fn pods_measured(
    state: &mut NodeState,
    cx: &mut Context,
    call: u64,
    figures: &BTreeMap<PodUid, PodFigures>,
) {
    let Activity::MeasuringPods { call: expected, signal } = state.eviction.activity else { return };
    if call != expected {
        return;
    }
    cx.timer(TimerKey::EvictionStep, None);
    state.eviction.activity = Activity::Watching;
    let config = state.config.clone();
    let due = assess(state, cx);
    // It may be over meanwhile, or the runtime may have gone.
    let Some(first) = due.iter().find(|due| due.threshold.signal == signal && can_act(state)) else { return };
    let layout = state.eviction.layout();
    let candidates = state.pods.iter().filter(|(_, entry)| may_be_evicted(entry));
    let candidates =
        candidates.map(|(uid, entry)| Candidate { pod: entry.view(), used: figures.get(uid) }).collect();
    let ranked = rank::rank(signal, layout, candidates);
    let Some(victim) = ranked.first() else { return nobody_can_go(state, cx, signal) };
    // Of several thresholds for one resource the first is named.
    let named = due.iter().find(|due| due.threshold.signal.resource() == signal.resource()).unwrap_or(first);
    let notice = rank::notice(&named.shortage(), victim);
    let grace = match first.threshold.is_hard() {
        true => MINIMUM_GRACE_SECS,
        false => config.eviction.max_pod_grace_secs.min(victim.pod.spec_grace()).max(MINIMUM_GRACE_SECS),
    };
    let uid = victim.pod.uid.clone();
    *state.counters.evictions.entry(signal.as_str().to_owned()).or_default() += 1;
    cx.record(state, &uid, notice.event);
    cx.log(LogLevel::Warn, Some(&uid), format!("evicted: {}", notice.message));
    let why = FailureReason::new(PodReason::Evicted.as_str(), notice.message.clone());
    pods::evict(state, cx, &uid, why.with_disruption(notice.message), Some(grace));
    state.eviction.activity = Activity::Evicting { pod: uid, signal, late: false };
    let secs = u64::try_from(grace).unwrap_or(0);
    let bound = Duration::from_millis(secs.saturating_mul(1500)).max(SHORTEST_BOUND);
    cx.timer(TimerKey::EvictionStep, Some(cx.now.mono.plus(bound)));
}

/// Looks whether what is being done has ended. Called at the end of each step.
pub(super) fn follow(state: &mut NodeState, cx: &mut Context) {
    match &state.eviction.activity {
        Activity::Watching | Activity::MeasuringPods { .. } => {}
        Activity::Reclaiming { signal, containers, images } => {
            let left = |uid: &&PodUid| {
                let observed = state.pods.get(uid).and_then(|entry| entry.observed.as_ref());
                observed.is_some_and(|reading| !reading.pod.is_empty())
            };
            if containers.iter().any(|uid| left(&uid)) {
                return;
            }
            let (signal, images) = (*signal, *images);
            if images == ImageReclaim::AfterContainers {
                reclaim_images(state, cx, signal);
            }
            if images == ImageReclaim::No || !state.image_garbage.reclaim_running() {
                ended(state, cx, Some(signal));
            }
        }
        Activity::Evicting { pod, signal, .. } => {
            // Its containers go after its volumes, and with them their logs and layers.
            let wants_space = signal.is_about_disk();
            let gone = state.pods.get(pod).is_none_or(|entry| {
                let empty = entry.observed.as_ref().is_none_or(|reading| reading.pod.is_empty());
                let finished = matches!(entry.lifecycle(), Lifecycle::Finished);
                entry.lifecycle().may_start() || (finished && (empty || !wants_space))
            });
            if gone {
                ended(state, cx, None);
            }
        }
    }
}

fn reclaim_images(state: &mut NodeState, cx: &mut Context, signal: EvictionSignal) {
    image_garbage::reclaim_all(state, cx);
    wait_for_images(state, cx, signal);
}

fn wait_for_images(state: &mut NodeState, cx: &mut Context, signal: EvictionSignal) {
    let (containers, images) =
        (BTreeSet::new(), ImageReclaim::Running { collected: images_collected(state) });
    state.eviction.activity = Activity::Reclaiming { signal, containers, images };
    cx.timer(TimerKey::EvictionStep, Some(cx.now.mono.plus(RECLAIM_BOUND)));
}

fn images_collected(state: &NodeState) -> u64 {
    state.counters.images_collected.values().sum()
}

/// What was done has changed the figures: only new ones count from now on.
fn ended(state: &mut NodeState, cx: &mut Context, reclaimed: Option<EvictionSignal>) {
    state.eviction.done(reclaimed, cx.now.mono);
    cx.timer(TimerKey::EvictionStep, None);
    let config = state.config.clone();
    for group in NodeEviction::groups(&config.eviction) {
        read(state, cx, group);
    }
}

/// What is being done takes too long.
pub(super) fn step_overdue(state: &mut NodeState, cx: &mut Context) {
    match &mut state.eviction.activity {
        Activity::Watching => {}
        Activity::MeasuringPods { signal, .. } => {
            let signal = *signal;
            cx.log(LogLevel::Warn, None, format!("{}: what pods use can't be measured", signal.as_str()));
            state.eviction.give_up_for_now(cx.now.mono);
        }
        // A container that does not go must not keep the images, and removing many images takes its time.
        Activity::Reclaiming { signal, images: ImageReclaim::AfterContainers, .. } => {
            let signal = *signal;
            reclaim_images(state, cx, signal);
        }
        Activity::Reclaiming { signal, images: ImageReclaim::Running { collected }, .. }
            if state.counters.images_collected.values().sum::<u64>() > *collected =>
        {
            let signal = *signal;
            wait_for_images(state, cx, signal);
        }
        Activity::Reclaiming { signal, .. } => {
            let signal = *signal;
            ended(state, cx, Some(signal));
        }
        Activity::Evicting { pod, late, .. } if !*late => {
            *late = true;
            let pod = pod.clone();
            let runs = state.pods.get(&pod).is_some_and(|entry| !entry.lifecycle().is_terminated());
            if runs {
                cx.record(state, &pod, ApiEvent::warning("ExceededGracePeriod", EXCEEDED_GRACE));
            }
            cx.timer(TimerKey::EvictionStep, Some(cx.now.mono.plus(CLEANUP_BOUND)));
        }
        Activity::Evicting { .. } => ended(state, cx, None),
    }
}
