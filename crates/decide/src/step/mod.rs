//! One event in, effects out.
//!
//! Each handler changes the state and marks the pods that it touched; then every touched pod is settled: its lifecycle
//! advances as far as it may, its status is derived, and, if none of its plans is running and its observation is fresh,
//! it is planned. When all of them are settled, the admission of new pods is decided.

mod admission;
mod api;
mod certificates;
mod confirm;
mod csi;
mod disk_limits;
mod eviction;
mod expansion;
mod image_garbage;
mod images;
mod log_rotation;
mod missing_status;
mod node;
mod node_cgroups;
mod objects;
mod observation_requests;
mod observe;
mod oom_kills;
mod outcome;
mod plan_inputs;
mod pods;
mod probing;
mod pull_context;
mod retry;
mod sandbox_placement;
mod set_aside;
mod settle;
mod starts;
mod sweep;
mod unreadable;
mod user_ids;
mod volumes;

use std::collections::{BTreeSet, VecDeque};

use model::text_limits::{self, TextLimit};
use model::{ApiEvent, FullName, Mono, Now, PodUid};

use crate::effect::{Effect, LogLevel, TimerKey};
use crate::event::Event;
use crate::state::shown_pod::{self, ShownPod};
use crate::state::{FailureReason, NodeState};

pub fn step(state: &mut NodeState, now: Now, event: Event) -> Vec<Effect> {
    state.pod_in_step = event.pod();
    let mut cx = Context::new(now);
    match event {
        Event::Started => started(state, &mut cx),
        Event::PodSetDelivered { source, pods } => pods::delivered(state, &mut cx, source, pods),
        Event::PodChanged { source, pod } => pods::changed(state, &mut cx, source, pod),
        Event::PodRemoved { source, uid } => pods::gone(state, &mut cx, source, &uid),
        Event::UnreadablePods { source, pods, complete } => {
            unreadable::unreadable_pods_reported(state, &mut cx, source, pods, complete);
        }
        Event::NodeObserved(node) => node::observed(state, &mut cx, node),
        Event::NodeRead(result) => admission::node_read(state, &mut cx, result),
        Event::RuntimeClasses { source, classes } => {
            pods::runtime_classes_changed(state, &mut cx, source, classes)
        }
        Event::Observed(observation) => observe::observation_done(state, &mut cx, observation),
        Event::ObserveFailed { scope, message } => {
            observe::observation_failed(state, &mut cx, scope, message)
        }
        Event::Hint(hint) => observe::handle_hint(state, &mut cx, hint),
        Event::HookFellBackToHttp { uid, host } => outcome::hook_fell_back(state, &mut cx, &uid, &host),
        Event::RuntimeChecked(check) => observe::runtime_checked(state, &mut cx, check),
        Event::ActionDone { uid, epoch, stage, action, result } => {
            outcome::action_done(state, &mut cx, &uid, epoch, (stage, action), result);
        }
        Event::PlanEnded { uid, epoch } => outcome::plan_ended(state, &mut cx, &uid, epoch),
        Event::ImageInspected { image, result, history } => {
            images::inspected(state, &mut cx, &image, result, &history);
        }
        Event::CredentialPluginsAnswered { pull, for_access: true, account } => {
            images::access_checked(state, &mut cx, &pull, account.as_ref());
        }
        Event::CredentialPluginsAnswered { pull, for_access: false, .. } => {
            images::plugins_asked(state, &mut cx, &pull);
        }
        Event::ImagePulled { pull, result } => {
            images::pulled(state, &mut cx, &pull, result);
        }
        Event::ImagesListed(listing) => image_garbage::listed(state, &mut cx, listing),
        Event::ImageRemoved { image, result } => image_garbage::removed(state, &mut cx, &image, result),
        Event::ObjectObserved { key, state: seen } => objects::seen(state, &mut cx, &key, seen),
        Event::StorageRead { key, state: read } => objects::storage_read(state, &mut cx, &key, read),
        Event::TrustBundles(bundles) => objects::trust_bundles(state, &mut cx, bundles),
        Event::CsiDrivers(drivers) => objects::csi_drivers(state, &mut cx, &drivers),
        Event::CsiDriversRegistered(drivers) => csi::registered(state, &mut cx, drivers),
        Event::CsiEnabled => csi::operate(state, &mut cx, |volumes, now| volumes.list_records(now)),
        Event::VolumeRequested { request, what } => csi::requested(state, &mut cx, request, what),
        Event::VolumeCallEnded { id, result } => {
            csi::operate(state, &mut cx, |volumes, now| volumes.call_ended(now, id, result));
        }
        Event::LocalObjects { source: _, objects } => objects::set_local_objects(state, &mut cx, &objects),
        Event::Services(services) => objects::services(state, &mut cx, &services),
        Event::TokenIssued { wanted, result } => objects::token_issued(state, &mut cx, &wanted, result),
        Event::CertificateRequested { source, call, result } => {
            certificates::requested(state, &mut cx, &source, call, result);
        }
        Event::CertificateRequests(requests) => certificates::read(state, &mut cx, &requests),
        Event::ProbeDone { uid, container, kind, id, outcome, took: _ } => {
            probing::probe_done(state, &mut cx, &uid, (&container, kind), &id, &outcome);
        }
        Event::ApiAnswered(answer) => api::answered(state, &mut cx, answer),
        Event::Timer(key) => timer(state, &mut cx, key),
        Event::UserIdsRead { ids, unlisted } => user_ids::read(state, &mut cx, ids, unlisted),
        Event::NodeCgroupsWritten { failures } => node_cgroups::written(state, &mut cx, failures),
        Event::ReservedCgroupsWritten { results } => {
            node_cgroups::reservations_written(state, &mut cx, results);
        }
        Event::CgroupRemoved { name } => node_cgroups::removed(state, &mut cx, &name),
        Event::PodArtifactsListed(seen) => sweep::leftovers(state, &mut cx, seen),
        Event::SweepEnded { problems } => sweep::swept(state, &mut cx, problems),
        Event::Evict { uid, reason, message, grace_secs } => {
            pods::evict(state, &mut cx, &uid, FailureReason::new(reason, message), grace_secs);
        }
        Event::VolumeNotice { uid, news } => volumes::tell(state, &mut cx, &uid, &news),
        Event::VolumeUpdated { uid, volume, result } => {
            volumes::updated(state, &mut cx, &uid, &volume, result);
        }
        Event::DiskMeasured { uid, result } => disk_limits::measured(state, &mut cx, &uid, result),
        Event::NodeFiguresRead { group, at, result } => {
            eviction::figures_read(state, &mut cx, group, at, result);
        }
        Event::MemoryRunsShort { result } => eviction::memory_runs_short(state, &mut cx, result),
        Event::OomKilled(kill) => oom_kills::seen(state, &mut cx, &kill),
        Event::PodFiguresRead { call, pods } => eviction::pods_measured(state, &mut cx, call, &pods),
        Event::LogCallEnded { id, result } => log_rotation::call_ended(state, &mut cx, &id, result),
        Event::FactsChanged(facts) => {
            node_cgroups::facts_changed(state, &facts);
            state.facts = facts;
            cx.room_changed(state);
            cx.touched.extend(state.pods.keys().cloned());
        }
    }
    loop {
        // The cgroups above pods concern no pod: a panic over them must not be held against the one settled before.
        state.pod_in_step = None;
        node_cgroups::update(state, &mut cx);
        if let Some(uid) = cx.touched.pop_first() {
            state.pod_in_step = Some(uid.clone());
            settle::settle(state, &mut cx, &uid);
            if !cx.undecided.contains(&uid) {
                note_shown_change(state, &mut cx, &uid);
            }
        } else if let Some(uid) = cx.undecided.pop_front() {
            state.pod_in_step = Some(uid.clone());
            admission::decide(state, &mut cx, &uid);
            if state.pods.get(&uid).is_some_and(|entry| entry.standing().admission_wait().is_some()) {
                note_shown_change(state, &mut cx, &uid);
            }
        } else {
            break;
        }
    }
    while let Some(full_name) = cx.mirrors.pop_first() {
        state.pod_in_step = state.name_queues.get(&full_name).and_then(|line| line.front().cloned());
        api::sync_mirror(state, &mut cx, &full_name);
    }
    state.pod_in_step = None;
    eviction::follow(state, &mut cx);
    cx.effects
}

/// The context of a handler, beside the state.
struct Context {
    now: Now,
    effects: Vec<Effect>,
    touched: BTreeSet<PodUid>,
    /// Pods whose admission is decided once all touched pods are settled, in this order.
    undecided: VecDeque<PodUid>,
    /// Names of static pods whose mirrors have to be checked.
    mirrors: BTreeSet<FullName>,
}

impl Context {
    fn new(now: Now) -> Self {
        Self {
            now,
            effects: Vec::new(),
            touched: BTreeSet::new(),
            undecided: VecDeque::new(),
            mirrors: BTreeSet::new(),
        }
    }
    fn emit(&mut self, effect: Effect) {
        self.effects.push(effect);
    }
    fn touch(&mut self, uid: &PodUid) {
        self.touched.insert(uid.clone());
    }
    /// What is left for pods changed, or may have: those that wait for room are decided again.
    fn room_changed(&mut self, state: &NodeState) {
        self.touched.extend(state.admissions.waiting_for_room().iter().cloned());
    }
    fn record(&mut self, state: &NodeState, uid: &PodUid, event: ApiEvent) {
        if let Some(entry) = state.pods.get(uid) {
            let full_name = entry.view().full_name.clone();
            self.emit(Effect::RecordEvent { uid: uid.clone(), full_name, event });
        }
    }
    fn log(&mut self, level: LogLevel, uid: Option<&PodUid>, message: impl Into<String>) {
        let message = text_limits::truncate_text(message, TextLimit::LogLine);
        self.emit(Effect::Log { level, uid: uid.cloned(), message });
    }
    fn timer(&mut self, key: TimerKey, at: Option<Mono>) {
        self.emit(Effect::SetTimer { key, at });
    }
}

/// Tells watchers of the Pods API when what they see of a pod that was settled has changed.
fn note_shown_change(state: &mut NodeState, cx: &mut Context, uid: &PodUid) {
    if !state.config.feature(shown_pod::GATE) {
        return;
    }
    let Some(entry) = state.pods.get_mut(uid).filter(|entry| !entry.standing().is_orphan()) else { return };
    let now = ShownPod::of(entry);
    let changed = entry.shown.as_ref() != Some(&now);
    // Kept also when it means the same: the next comparison is then one of pointers.
    entry.shown = Some(now);
    if changed {
        cx.emit(Effect::PodChanged { uid: uid.clone() });
    }
}

fn started(state: &mut NodeState, cx: &mut Context) {
    observation_requests::check_runtime(state, cx);
    observation_requests::request_full_observation(state, cx);
    user_ids::schedule_reading(state, cx);
    eviction::start(state, cx);
}

fn timer(state: &mut NodeState, cx: &mut Context, key: TimerKey) {
    match key {
        TimerKey::PodWakeUp(uid) => {
            if let Some(entry) = state.pods.get_mut(&uid) {
                entry.timer = None;
                cx.touch(&uid);
            }
        }
        TimerKey::Probe(uid) => probing::probe_timer(state, cx, &uid),
        TimerKey::Token(wanted) => objects::token_due(state, cx, &wanted),
        TimerKey::Certificate(source) => certificates::due(state, cx, &source),
        TimerKey::Storage(key) => objects::storage_due(state, cx, &key),
        TimerKey::Unstage(volume) => {
            csi::operate(state, cx, |volumes, now| volumes.unstage_due(now, &volume));
        }
        TimerKey::ListVolumes => csi::operate(state, cx, |volumes, now| volumes.list_records(now)),
        TimerKey::RetryObservation(uid) => observation_requests::retry_observation(state, cx, &uid),
        TimerKey::ObserveStart(uid) => starts::observe_again(state, cx, &uid),
        TimerKey::ConfirmObservations => confirm::due(state, cx),
        TimerKey::MeasureDisk(uid) => disk_limits::measure_again(state, cx, &uid),
        TimerKey::NodeFigures(group) => eviction::reading_due(state, cx, group),
        TimerKey::NodePressure => eviction::look(state, cx),
        TimerKey::EvictionStep => eviction::step_overdue(state, cx),
        TimerKey::MeasureLog(id) => log_rotation::timer_fired(state, cx, &id),
        TimerKey::ImageGarbage => image_garbage::timer_fired(state, cx),
        TimerKey::RetryStatusPatch(uid) => api::publish_retry_due(state, cx, &uid),
        TimerKey::Mirror(full_name) => api::mirror_timer(state, cx, full_name),
        TimerKey::FullRelist => observation_requests::request_full_observation(state, cx),
        TimerKey::RuntimeCheck => observation_requests::check_runtime(state, cx),
        TimerKey::Sweep => sweep::list_pod_artifacts(state, cx),
        TimerKey::NodeCgroups => node_cgroups::retry(state),
        TimerKey::UserIds => user_ids::reading_due(state, cx),
    }
}

#[cfg(test)]
mod tests;
