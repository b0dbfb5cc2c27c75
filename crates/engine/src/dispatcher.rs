//! The task that owns the state: it takes one event at a time, runs the step, and starts the effects.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use decide::effect::LogLevel;
use decide::lifecycle::Lifecycle;
use decide::{Effect, Epoch, Event, NodeState, step};
use model::cgroup::CgroupSpec;
use model::cri::IdMapping;
use model::observed::Scope;
use model::panic_record::PanicRecord;
use model::probe::ProbeRecord;
use model::{ApiEvent, EventSubject, PodUid};
use ports::{PodStatusUpdate, ProbeIdentity, Span, SpanKind};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::context::EngineContext;
use crate::csi::registry::Registry;
use crate::csi::{VolumeCalls, VolumeWork, WantedVolumeOperation};
use crate::object_watches::ClusterObjectWatches;
use crate::query::{Query, RecentPodEvents, Waiting};
use crate::timers::Timers;
use crate::{
    api_calls, disk_calls, executor, image_calls, image_garbage_calls, log_calls, node_figures, observe,
    panicked_calls, panics, plugin_calls, probe_calls, sweep, tasks,
};

/// A plan that is being carried out.
struct PlanExecution {
    epoch: Epoch,
    cancel: CancellationToken,
    begun: Instant,
    /// The pod is being deleted.
    ending: bool,
}

pub(crate) struct Dispatcher {
    pub state: NodeState,
    pub ctx: EngineContext,
    timers: Timers,
    plans: HashMap<PodUid, PlanExecution>,
    events: RecentPodEvents,
    waiting: Waiting,
    probe_records: mpsc::UnboundedSender<(PodUid, ProbeRecord)>,
    node_cgroups: watch::Sender<Vec<CgroupSpec>>,
    pub objects: ClusterObjectWatches,
    volume_work: VolumeWork,
    /// Ends the wait for a notice of memory pressure.
    memory_notice: CancellationToken,
    /// Registers CSI drivers. `None`: no storage driver can register.
    pub registry: Option<Arc<Registry>>,
    api_call_permits: Arc<Semaphore>,
    /// Why the agent has to end, if it has to.
    end: Option<String>,
    /// Panic records that earlier agents left.
    panics: Vec<PanicRecord>,
    /// A step that plans a pod of this name, or with a container of this name, panics on purpose.
    #[cfg(debug_assertions)]
    pub panic_on_name: Option<String>,
}

/// Why the engine ended unexpectedly.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    #[error("panic while handling event {event}{}: {message}", pod_clause(.pod))]
    Panicked { event: &'static str, pod: Option<String>, message: String },
    #[error("{0}")]
    TaskFailed(String),
    /// The node can't be guarded as configured.
    #[error("{0}")]
    Unguarded(String),
}

fn pod_clause(pod: &Option<String>) -> String {
    pod.as_ref().map(|pod| format!(" for pod {pod}")).unwrap_or_default()
}

/// Waits without a limit for the disk: without the list two pods could get the same ids and read each other's files.
async fn load_user_ids(ctx: &EngineContext) -> (BTreeMap<PodUid, Option<IdMapping>>, bool) {
    let found = ctx.ports.files.user_ids().await;
    for problem in found.problems {
        tracing::error!("user namespaces of pods: {problem}");
    }
    (found.ids.into_iter().collect(), found.unlisted)
}

/// All that the dispatcher receives, besides its timers.
pub(crate) struct Inputs {
    pub inbox: mpsc::UnboundedReceiver<Event>,
    pub questions: mpsc::Receiver<Query>,
    pub task_failures: mpsc::UnboundedReceiver<String>,
    pub wanted_volumes: mpsc::UnboundedReceiver<WantedVolumeOperation>,
}

/// What goes from the dispatcher to tasks that run as long as the engine.
pub(crate) struct TaskChannels {
    pub probe_records: mpsc::UnboundedSender<(PodUid, ProbeRecord)>,
    pub node_cgroups: watch::Sender<Vec<CgroupSpec>>,
}

impl Dispatcher {
    pub fn new(
        state: NodeState,
        ctx: EngineContext,
        channels: TaskChannels,
        objects: ClusterObjectWatches,
        volume_calls: Option<VolumeCalls>,
    ) -> Self {
        Self {
            state,
            timers: Timers::new(ctx.clock.clone()),
            ctx,
            plans: HashMap::new(),
            events: RecentPodEvents::default(),
            waiting: Waiting::default(),
            probe_records: channels.probe_records,
            node_cgroups: channels.node_cgroups,
            objects,
            volume_work: VolumeWork::new(volume_calls),
            memory_notice: CancellationToken::new(),
            registry: None,
            api_call_permits: Arc::new(Semaphore::new(api_calls::CALLS_AT_ONCE)),
            end: None,
            panics: Vec::new(),
            #[cfg(debug_assertions)]
            panic_on_name: None,
        }
    }

    pub async fn run(mut self, inputs: Inputs, stop: CancellationToken) -> Result<(), EngineError> {
        let Inputs { mut inbox, mut questions, mut task_failures, mut wanted_volumes } = inputs;
        // Load these before the first pod: a pod that was set aside must not be tried again.
        self.panics = panics::load(&self.ctx).await;
        self.state.set_aside = decide::set_aside::pods_to_set_aside(&self.panics);
        // Load probe results before the first status, so that a restart does not change readiness, unless the feature
        // gate asks for that.
        if !self.state.config.feature(decide::status::FORGET_READINESS_GATE) {
            self.state.probe_records = probe_calls::load_records(&self.ctx).await;
        }
        // Load these before the first pod: ids that are in use must not be given to another pod.
        (self.state.user_ids, self.state.user_id_listing_failed) = load_user_ids(&self.ctx).await;
        let mut next = Event::Started;
        loop {
            let event = next.kind();
            // After a panic the state is read only to find the pod for the panic record.
            let handled = catch_unwind(AssertUnwindSafe(|| self.handle(next)));
            if let Err(cause) = handled {
                return Err(self.panicked(event, tasks::panic_message(&*cause)).await);
            }
            if let Some(reason) = self.end.take() {
                return Err(EngineError::Unguarded(reason));
            }
            next = loop {
                // Unbiased on purpose: a burst of events must not starve timers or queries.
                tokio::select! {
                    () = stop.cancelled() => return Ok(()),
                    Some(event) = inbox.recv() => break event,
                    Some(wanted) = wanted_volumes.recv() => break self.volume_work.wanted(wanted),
                    key = self.timers.fired() => break Event::Timer(key),
                    Some(query) = questions.recv() => self.answer(query),
                    Some(failure) = task_failures.recv() => return Err(EngineError::TaskFailed(failure)),
                }
            };
        }
    }

    /// Writes a record of the panic, so that the next start can set the pod aside.
    async fn panicked(&mut self, event: &'static str, message: String) -> EngineError {
        let at = self.ctx.clock.now().wall;
        let record = self.state.panic_record(event, &message, at);
        let pod = record.pod.as_ref().map(|pod| format!("{}/{} ({})", pod.namespace, pod.name, pod.uid));
        panics::save(
            &self.ctx,
            decide::set_aside::append_panic_record(std::mem::take(&mut self.panics), record),
        )
        .await;
        EngineError::Panicked { event, pod, message }
    }

    /// An intended panic, for tests: planning the pod panics.
    #[cfg(debug_assertions)]
    fn inject_test_panic(&mut self, effects: &[Effect]) {
        let Some(name) = &self.panic_on_name else { return };
        let planned = effects.iter().filter(|effect| matches!(effect, Effect::RunPlan { .. }));
        let about = |uid: &&PodUid| {
            let entry = self.state.pods.get(uid).filter(|entry| entry.lifecycle().may_start());
            entry.is_some_and(|e| e.view().name() == name || e.view().container(name).is_some())
        };
        if let Some(uid) = planned.filter_map(Effect::pod).find(about) {
            self.state.pod_in_step = Some(uid.clone());
            panic!("a mistake on purpose");
        }
    }

    fn handle(&mut self, event: Event) {
        tracing::trace!(?event, "event");
        let now = self.ctx.clock.now();
        if let Event::PlanEnded { uid, epoch } = &event
            && self.plans.get(uid).is_some_and(|plan| plan.epoch == *epoch)
            && let Some(plan) = self.plans.remove(uid)
        {
            self.ctx.ports.meter.plan_ended(uid, plan.ending, plan.begun.elapsed());
        }
        if let Event::VolumeCallEnded { id, .. } = &event {
            self.volume_work.ended(*id);
        }
        self.record_probe_metrics(&event);
        let (kind, began) = (event.kind(), Instant::now());
        let was_read = matches!(event, Event::Observed(_));
        let effects = step(&mut self.state, now, event);
        #[cfg(debug_assertions)]
        self.inject_test_panic(&effects);
        self.ctx.ports.meter.step(kind, began.elapsed());
        if was_read || effects.iter().any(|effect| matches!(effect, Effect::ForgetPod { .. })) {
            self.waiting.exits.notify_exited(&self.state);
        }
        for effect in effects {
            self.state.pod_in_step = effect.pod().cloned();
            self.perform(effect);
        }
        self.state.pod_in_step = None;
    }

    fn call(
        &self,
        call: impl Future<Output = ()> + Send + 'static,
        failed: impl FnOnce(String) -> Option<Event> + Send + 'static,
    ) {
        tasks::spawn_call(&self.ctx.outbox, call, failed);
    }

    /// A query changes nothing, so if it panics only its sender gets no answer.
    fn answer(&mut self, query: Query) {
        let cluster = self.ctx.ports.cluster.as_ref();
        let watches = || cluster.map(|cluster| cluster.watches.watches()).unwrap_or_default();
        let now = self.ctx.clock.now();
        let answer = || query.answer(&self.state, &self.events, &mut self.waiting, now, watches);
        if let Err(cause) = catch_unwind(AssertUnwindSafe(answer)) {
            tracing::error!("answering a question panicked: {}", tasks::panic_message(&*cause));
        }
    }

    /// Counted here and not in the probe's task: a result that arrives after the pod was forgotten must not create its
    /// metrics again.
    fn record_probe_metrics(&self, event: &Event) {
        let Event::ProbeDone { uid, container, kind, outcome, took, .. } = event else { return };
        let Some(entry) = self.state.pods.get(uid) else { return };
        let of = ProbeIdentity { uid, pod: &entry.view().full_name, container, kind: *kind };
        self.ctx.ports.meter.probe(&of, outcome, *took);
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Observe(scope) => self.observe(scope),
            Effect::CheckRuntime { ask_cgroup_driver } => {
                let check = observe::check_runtime(self.ctx.clone(), ask_cgroup_driver);
                self.call(check, panicked_calls::check_runtime);
            }
            Effect::RunPlan { uid, epoch, stages } => {
                self.ctx.ports.meter.plan_started(&uid);
                let (cancel, begun) = (CancellationToken::new(), Instant::now());
                let ending = self.state.pods.get(&uid).is_some_and(|entry| !entry.lifecycle().may_start());
                self.plans
                    .insert(uid.clone(), PlanExecution { epoch, cancel: cancel.clone(), begun, ending });
                let span = self.ctx.ports.tracing.is_on().then(|| self.plan_span(&uid)).flatten();
                executor::spawn_plan(
                    self.ctx.clone(),
                    executor::PlanJob { uid, epoch, stages, cancel },
                    span,
                );
            }
            Effect::CancelPlan { uid, epoch } => {
                if let Some(plan) = self.plans.get(&uid).filter(|plan| plan.epoch == epoch) {
                    plan.cancel.cancel();
                }
            }
            Effect::InspectImage { image } => {
                let failed = panicked_calls::inspect(image.clone());
                self.call(image_calls::inspect(self.ctx.clone(), image), failed);
            }
            Effect::AskCredentialPlugins { pull, pod, for_access } => {
                let failed = panicked_calls::ask_plugins(pull.clone(), for_access);
                self.call(plugin_calls::ask_plugins(self.ctx.clone(), pull, pod, for_access), failed);
            }
            Effect::PullImage { pull, pod_credentials: own, context } => {
                let failed = panicked_calls::pull(pull.clone());
                self.call(image_calls::pull(self.ctx.clone(), pull, own, context), failed);
            }
            Effect::RecordImageAccess { image, image_ref, secret } => {
                self.call(
                    image_calls::record_image_access(self.ctx.clone(), image, image_ref, secret),
                    |_| None,
                );
            }
            Effect::ListImages => {
                self.call(image_garbage_calls::list(self.ctx.clone()), panicked_calls::list_images);
            }
            Effect::RemoveImage { image } => {
                let failed = panicked_calls::remove_image(image.clone());
                self.call(image_garbage_calls::remove(self.ctx.clone(), image), failed);
            }
            Effect::PrunePullRecords => {
                self.call(image_garbage_calls::prune_records(self.ctx.clone()), |_| None);
            }
            Effect::WatchObject { key } => self.objects.watch(key),
            Effect::UnwatchObject { key } => self.objects.unwatch(&key),
            Effect::ReadStorageObject { key } => self.objects.read_storage(key),
            Effect::WatchTrustBundles => self.objects.follow_trust_bundles(),
            Effect::RequestToken { wanted } => self.objects.request_token(wanted),
            Effect::FollowCertificateRequests { node } => self.objects.follow_certificate_requests(node),
            Effect::RequestCertificate { source, call, wanted } => {
                self.objects.request_certificate(source, call, *wanted);
            }
            Effect::ReportVolumesInUse { volumes } => {
                self.ctx.volumes_in_use.send_replace(Some(volumes));
            }
            Effect::SetDriverUpdatePeriods { periods } => {
                self.ctx.node_info_refresh_periods.send_replace(periods);
            }
            Effect::RefreshDriverNodeInfo { driver } => {
                if let Some(registry) = self.registry.clone() {
                    self.call(async move { registry.ask(&driver).await }, |_| None);
                }
            }
            Effect::SetTimer { key, at } => self.timers.set(key, at),
            Effect::StatusChanged { uid, status } => self.report_pod_status(&uid, &status),
            Effect::PodChanged { uid } => {
                let meter = &self.ctx.ports.meter;
                self.waiting.pods.pod_changed(&self.state, &uid, || meter.record_watcher_cut());
            }
            Effect::RunProbe { uid, container, kind, id, call, attempts } => {
                let attempt = probe_calls::ProbeAttempt { uid, container, kind, id, call, attempts };
                tokio::spawn(probe_calls::run(self.ctx.clone(), attempt));
            }
            Effect::StoreProbeRecord { uid, record } => {
                // The receiver is dropped only when this task ends.
                let _ = self.probe_records.send((uid, record));
            }
            Effect::ForgetPod { uid } => {
                self.events.forget(&uid);
                let meter = &self.ctx.ports.meter;
                meter.forget(&uid);
                self.waiting.pods.pod_forgotten(&uid, || meter.record_watcher_cut());
                tracing::info!(pod_uid = %uid, "pod removed from this node");
            }
            Effect::RecordEvent { uid, full_name, event } => self.record(&uid, &full_name, event),
            Effect::RecordClaimEvent { claim, event } => {
                self.ctx.ports.events.record(&EventSubject::Claim(claim), &event);
            }
            Effect::RecordNodeEvent { event } => {
                let about = EventSubject::Node { name: self.state.config.node_object.name.clone() };
                self.ctx.ports.events.record(&about, &event);
            }
            Effect::EnsureCgroups { specs } => {
                self.node_cgroups.send_replace(specs);
            }
            Effect::UpdateReservedCgroups { specs } => {
                let update = sweep::update_reserved_cgroups(self.ctx.clone(), specs);
                self.call(update, panicked_calls::update_reserved_cgroups);
            }
            Effect::EndAgent { reason } => self.end = Some(reason),
            Effect::ReadNode => {
                let name = self.state.config.node_object.name.clone();
                self.call(api_calls::read_node(self.ctx.clone(), name), panicked_calls::read_node);
            }
            Effect::ReadUserIds => {
                self.call(sweep::read_user_ids(self.ctx.clone()), panicked_calls::read_user_ids);
            }
            Effect::ListPodArtifacts => {
                self.call(
                    sweep::list_pod_artifacts(self.ctx.clone(), self.state.config.clone()),
                    panicked_calls::sweep,
                );
            }
            Effect::Sweep(what) => {
                self.call(sweep::remove_leftovers(self.ctx.clone(), what), panicked_calls::sweep);
            }
            Effect::UpdateVolume { uid, volume } => {
                let failed = panicked_calls::update_volume(uid.clone(), volume.clone());
                self.call(disk_calls::update_volume(self.ctx.clone(), uid, volume), failed);
            }
            Effect::CallVolume { id, call } => self.volume_work.call(&self.ctx.outbox, id, call),
            Effect::CancelVolumeCall { id } => self.volume_work.cancel(id),
            Effect::AnswerVolumeRequest { request, result } => self.volume_work.answer(&request, result),
            Effect::MeasureDisk { uid, places } => {
                let failed = panicked_calls::measure_disk_usage(uid.clone());
                self.call(disk_calls::measure_disk_usage(self.ctx.clone(), uid, places), failed);
            }
            Effect::ReadNodeFigures { group } => {
                let at = self.ctx.clock.mono();
                let read = node_figures::read(self.ctx.clone(), self.state.config.clone(), group, at);
                self.call(read, panicked_calls::node_figures(group, at));
            }
            Effect::AwaitMemoryPressure { levels } => {
                self.memory_notice.cancel();
                self.memory_notice = CancellationToken::new();
                let wait = node_figures::await_memory_pressure(
                    self.ctx.clone(),
                    self.state.config.clone(),
                    levels,
                    self.memory_notice.clone(),
                );
                self.call(wait, panicked_calls::memory_pressure);
            }
            Effect::MeasurePods { call, kind, pods } => {
                let measure = node_figures::measure_pods(self.ctx.clone(), call, kind, pods);
                self.call(measure, panicked_calls::pod_figures(call));
            }
            Effect::ReportNodePressure { pressure } => {
                self.ctx.node_pressure.send_replace(pressure);
            }
            Effect::RecordFiguresAge { signal, age } => {
                self.ctx.ports.meter.eviction_figures_age(signal.as_str(), age);
            }
            Effect::CallLog { id, path, call } => {
                let failed = panicked_calls::log(id.clone(), &call);
                self.call(log_calls::call(self.ctx.clone(), id, path, call), failed);
            }
            Effect::CallApi(call) => {
                let failed = panicked_calls::api(&call);
                self.call(
                    api_calls::call_api_server(self.ctx.clone(), self.api_call_permits.clone(), call),
                    failed,
                );
            }
            Effect::Log { level, uid, message } => self.log(level, uid.as_ref(), &message),
        }
    }

    fn observe(&self, scope: Scope) {
        let known = self.state.previous_observations(&scope, self.ctx.clock.mono());
        let failed = panicked_calls::observe(scope.clone());
        self.call(observe::observe(self.ctx.clone(), scope, known), failed);
    }

    /// The span of a plan, with upstream's name.
    fn plan_span(&self, uid: &PodUid) -> Option<Span> {
        let entry = self.state.pods.get(uid)?;
        let name = match entry.lifecycle() {
            Lifecycle::Syncing => "syncPod",
            Lifecycle::Terminating(_) => "syncTerminatingPod",
            Lifecycle::Terminated | Lifecycle::Finished => "syncTerminatedPod",
        };
        let attributes = vec![
            ("k8s.pod.uid", uid.to_string()),
            ("k8s.pod", self.name(uid)),
            ("k8s.pod.name", entry.view().name().to_owned()),
            ("k8s.namespace.name", entry.view().namespace().to_owned()),
        ];
        Some(Span { name: name.into(), kind: SpanKind::Internal, attributes })
    }

    fn name(&self, uid: &PodUid) -> String {
        self.state
            .pods
            .get(uid)
            .map(|e| format!("{}/{}", e.view().namespace(), e.view().name()))
            .unwrap_or_default()
    }

    fn record(&mut self, uid: &PodUid, full_name: &model::FullName, event: ApiEvent) {
        let version =
            self.state.pods.get(uid).and_then(|entry| entry.view().pod.metadata.resource_version.clone());
        let about = EventSubject::Pod {
            uid: uid.clone(),
            name: full_name.clone(),
            resource_version: version.unwrap_or_default(),
        };
        self.ctx.ports.events.record(&about, &event);
        self.events.add(uid, self.ctx.clock.now().wall, event);
    }

    fn report_pod_status(&self, uid: &PodUid, status: &model::k8s::PodStatus) {
        if let Some(entry) = self.state.pods.get(uid).filter(|entry| !entry.standing().is_orphan()) {
            let rejected = entry.standing().rejection().map(|why| why.reason.as_str());
            self.ctx.ports.meter.pod_status(&PodStatusUpdate { pod: entry.view(), status, rejected });
        }
        let phase = status.phase.as_deref().unwrap_or_default();
        tracing::debug!(pod = self.name(uid), pod_uid = %uid, phase, "status changed");
    }

    fn log(&self, level: LogLevel, uid: Option<&PodUid>, message: &str) {
        let pod = uid.map(|uid| self.name(uid)).unwrap_or_default();
        let uid = uid.map(PodUid::as_str).unwrap_or_default();
        match (level, uid.is_empty()) {
            (LogLevel::Info, true) => tracing::info!("{message}"),
            (LogLevel::Warn, true) => tracing::warn!("{message}"),
            (LogLevel::Error, true) => tracing::error!("{message}"),
            (LogLevel::Info, false) => tracing::info!(pod, pod_uid = uid, "{message}"),
            (LogLevel::Warn, false) => tracing::warn!(pod, pod_uid = uid, "{message}"),
            (LogLevel::Error, false) => tracing::error!(pod, pod_uid = uid, "{message}"),
        }
    }
}
