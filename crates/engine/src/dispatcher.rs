//! The task that owns the state: it takes one event at a time, runs the step, and starts the effects.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use decide::effect::LogLevel;
use decide::lifecycle::Lifecycle;
use decide::node::RuntimeSnapshot;
use decide::{Effect, Epoch, Event, NodeState, step};
use futures::StreamExt;
use model::cgroup::CgroupSpec;
use model::cri::IdMapping;
use model::observed::Scope;
use model::panic_record::PanicRecord;
use model::pod::Source;
use model::probe::ProbeRecord;
use model::{ApiEvent, EventSubject, PodUid};
use ports::{FeedNotice, PodFeed, PodStatusUpdate, ProbeIdentity, Span, SpanKind};
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::csi::registry::Registry;
use crate::csi::{VolumeCalls, VolumeRequests, VolumeWork, WantedVolumeOperation};
use crate::exit_waiters::ExitWaiters;
use crate::node_reconciler::WatchedNode;
use crate::object_watches::ClusterObjectWatches;
use crate::query::{EngineHandle, Query, RecentPodEvents};
use crate::tasks::{self, EssentialTasks};
use crate::timers::Timers;
use crate::{
    NodeDuties, Ports, api_calls, disk_calls, executor, image_calls, node_duties, observe, panicked_calls,
    panics, plugin_calls, probe_calls, sweep,
};

/// Sends the outcome of a task to the dispatcher.
#[derive(Clone)]
pub(crate) struct Outbox(pub mpsc::UnboundedSender<Event>);

impl Outbox {
    pub fn send(&self, event: Event) {
        // The receiver is dropped only while the agent shuts down.
        let _ = self.0.send(event);
    }
}

/// What tasks need of the engine.
#[derive(Clone)]
pub(crate) struct EngineContext {
    pub ports: Ports,
    pub clock: Clock,
    pub outbox: Outbox,
    pub image_call_state: Arc<image_calls::ImageCallState>,
    /// The last observation of the runtime, for the task that updates the Node object.
    pub runtime_view: Arc<watch::Sender<RuntimeSnapshot>>,
    /// Notified when the images of the node may have changed, for the task that lists them for the Node object.
    pub images_changed: Arc<Notify>,
    /// `None`: no storage driver can register.
    pub csi: Option<VolumeRequests>,
    /// Attached volumes that are in use, for the Node object. `None`: not known yet.
    pub volumes_in_use: Arc<watch::Sender<Option<Vec<String>>>>,
    /// How often NodeGetInfo is repeated for each driver, in seconds.
    pub node_info_refresh_periods: Arc<watch::Sender<BTreeMap<String, u64>>>,
    /// Starts tasks the engine can't run without.
    pub essential_tasks: EssentialTasks,
}

/// A plan that is being carried out.
struct PlanExecution {
    epoch: Epoch,
    cancel: CancellationToken,
    begun: Instant,
    /// The pod is being deleted.
    ending: bool,
}

struct Dispatcher {
    state: NodeState,
    ctx: EngineContext,
    timers: Timers,
    plans: HashMap<PodUid, PlanExecution>,
    events: RecentPodEvents,
    exit_waiters: ExitWaiters,
    probe_records: mpsc::UnboundedSender<(PodUid, ProbeRecord)>,
    node_cgroups: watch::Sender<Vec<CgroupSpec>>,
    objects: ClusterObjectWatches,
    volume_work: VolumeWork,
    /// Registers CSI drivers. `None`: no storage driver can register.
    registry: Option<Arc<Registry>>,
    api_call_permits: Arc<Semaphore>,
    /// Panic records that earlier agents left.
    panics: Vec<PanicRecord>,
    /// A step that plans a pod of this name, or with a container of this name, panics on purpose.
    #[cfg(debug_assertions)]
    panic_on_name: Option<String>,
}

/// Why the engine ended unexpectedly.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    #[error("panic while handling event {event}{}: {message}", pod_clause(.pod))]
    Panicked { event: &'static str, pod: Option<String>, message: String },
    #[error("{0}")]
    TaskFailed(String),
}

fn pod_clause(pod: &Option<String>) -> String {
    pod.as_ref().map(|pod| format!(" for pod {pod}")).unwrap_or_default()
}

/// Everything a start needs.
pub(crate) struct PreparedEngine {
    dispatcher: Dispatcher,
    inbox: mpsc::UnboundedReceiver<Event>,
    questions: mpsc::Receiver<Query>,
    task_failures: mpsc::UnboundedReceiver<String>,
    wanted_volumes: mpsc::UnboundedReceiver<WantedVolumeOperation>,
    feeds: Vec<Box<dyn PodFeed>>,
    stop: CancellationToken,
    pub duties: Option<NodeDuties>,
}

pub(crate) fn prepare(
    state: NodeState,
    ports: Ports,
    feeds: Vec<Box<dyn PodFeed>>,
    stop: CancellationToken,
) -> (EngineHandle, PreparedEngine) {
    let (events, inbox) = mpsc::unbounded_channel();
    let (queries, questions) = mpsc::channel(64);
    let clock = Clock::new(ports.wall.clone());
    let image_call_state = Arc::default();
    let runtime_view = Arc::new(watch::Sender::new(RuntimeSnapshot::default()));
    let (outbox, images_changed) = (Outbox(events), Arc::default());
    let (volume_requests, wanted_volumes) = VolumeRequests::new();
    let csi = ports.csi.is_some().then_some(volume_requests);
    let storage = ports.cluster.as_ref().map(|cluster| cluster.storage.clone());
    let volume_calls = ports.csi.clone().map(|ports| VolumeCalls { ports, storage });
    let volumes_in_use = Arc::new(watch::Sender::new(None));
    let engine_clock = clock.clone();
    let (essential_tasks, task_failures) = EssentialTasks::new();
    let ctx = EngineContext {
        ports,
        clock: engine_clock,
        outbox,
        image_call_state,
        runtime_view,
        images_changed,
        csi,
        volumes_in_use,
        node_info_refresh_periods: Arc::default(),
        essential_tasks,
    };
    let (probe_records, to_keep) = mpsc::unbounded_channel();
    ctx.essential_tasks.spawn("saving probe results", probe_calls::save_probe_records(ctx.clone(), to_keep));
    let (node_cgroups, wanted_cgroups) = watch::channel(Vec::new());
    ctx.essential_tasks
        .spawn("updating the node's cgroups", sweep::apply_node_cgroups(ctx.clone(), wanted_cgroups));
    let objects = ClusterObjectWatches::new(ctx.ports.cluster.clone(), ctx.outbox.clone(), stop.clone());
    let dispatcher = Dispatcher {
        state,
        timers: Timers::new(clock),
        ctx,
        plans: HashMap::new(),
        events: RecentPodEvents::default(),
        exit_waiters: ExitWaiters::default(),
        probe_records,
        node_cgroups,
        objects,
        volume_work: VolumeWork::new(volume_calls),
        registry: None,
        api_call_permits: Arc::new(Semaphore::new(api_calls::CALLS_AT_ONCE)),
        panics: Vec::new(),
        #[cfg(debug_assertions)]
        panic_on_name: None,
    };
    let ready = PreparedEngine {
        dispatcher,
        inbox,
        questions,
        task_failures,
        wanted_volumes,
        feeds,
        stop,
        duties: None,
    };
    (EngineHandle::new(queries), ready)
}

impl PreparedEngine {
    /// See [`crate::Engine::with_test_panic`].
    #[cfg(debug_assertions)]
    pub fn with_test_panic(&mut self, name: String) {
        self.dispatcher.panic_on_name = Some(name);
    }

    pub fn start(mut self) -> tokio::task::JoinHandle<Result<(), EngineError>> {
        let ctx = self.dispatcher.ctx.clone();
        let node = self.duties.and_then(|duties| {
            let facts = self.dispatcher.state.facts.clone();
            node_duties::start(&ctx, duties, facts, ctx.runtime_view.subscribe(), &self.stop)
        });
        let (node, csi_node) = node.map_or((None, None), |started| (Some(started.node), started.csi_node));
        if let Some(csi) = &ctx.ports.csi {
            ctx.outbox.send(Event::CsiEnabled);
            let periods = ctx.node_info_refresh_periods.subscribe();
            let registry = Registry::new(csi.clone(), csi_node, ctx.outbox.clone(), periods);
            self.dispatcher.registry = Some(registry.clone());
            ctx.essential_tasks.spawn("plugin registration", registry.run(self.stop.clone()));
        }
        for feed in self.feeds {
            let first = node.clone().filter(|_| feed.source() == Source::Api);
            let forward = forward_feed(feed, first, ctx.outbox.clone(), self.stop.clone());
            ctx.essential_tasks.spawn_until("a feed of pods", &self.stop, forward);
        }
        ctx.essential_tasks
            .spawn("resolving image pull intents", image_calls::resolve_pull_intents(ctx.clone()));
        self.dispatcher.objects.follow_services();
        self.dispatcher.objects.follow_runtime_classes();
        self.dispatcher.objects.follow_csi_drivers();
        ctx.essential_tasks.spawn_until(
            "volume events",
            &self.stop,
            disk_calls::forward_volume_notices(ctx.clone()),
        );
        let hints = forward_hints(ctx.clone(), self.stop.clone());
        ctx.essential_tasks.spawn_until("runtime events", &self.stop, hints);
        let inputs = Inputs {
            inbox: self.inbox,
            questions: self.questions,
            task_failures: self.task_failures,
            wanted_volumes: self.wanted_volumes,
        };
        tokio::spawn(self.dispatcher.run(inputs, self.stop))
    }
}

/// `first`: no pod is forwarded before the Node watch has sent its first state, because admission reads the Node.
async fn forward_feed(
    feed: Box<dyn PodFeed>,
    first: Option<watch::Receiver<WatchedNode>>,
    outbox: Outbox,
    stop: CancellationToken,
) {
    if let Some(mut node) = first
        && !matches!(stop.run_until_cancelled(node.changed()).await, Some(Ok(())))
    {
        return;
    }
    let mut notices = feed.stream();
    while let Some(Some(notice)) = stop.run_until_cancelled(notices.next()).await {
        match notice {
            FeedNotice::Set(set) => {
                outbox.send(Event::PodSetDelivered { source: set.source, pods: set.pods })
            }
            FeedNotice::Changed { source, pod } => outbox.send(Event::PodChanged { source, pod }),
            FeedNotice::Gone { source, uid } => outbox.send(Event::PodRemoved { source, uid }),
            FeedNotice::Unreadable { source, pods, complete } => {
                outbox.send(Event::UnreadablePods { source, pods, complete });
            }
            FeedNotice::RuntimeClasses { source, classes } => {
                outbox.send(Event::RuntimeClasses { source, classes });
            }
            FeedNotice::Objects { source, objects } => outbox.send(Event::LocalObjects { source, objects }),
            FeedNotice::Problem { source, origin, message } => {
                tracing::error!(source = source.as_str(), origin, "{message}");
            }
            FeedNotice::Resolved { source, origin } => {
                tracing::info!(source = source.as_str(), origin, "this pod source is readable again");
            }
        }
    }
}

/// Waits without a limit for the disk: without the list two pods could get the same ids and read each other's files.
async fn load_user_ids(ctx: &EngineContext) -> (BTreeMap<PodUid, Option<IdMapping>>, bool) {
    let found = ctx.ports.files.user_ids().await;
    for problem in found.problems {
        tracing::error!("user namespaces of pods: {problem}");
    }
    (found.ids.into_iter().collect(), found.unlisted)
}

async fn forward_hints(ctx: EngineContext, stop: CancellationToken) {
    let mut hints = ctx.ports.hints.hints();
    while let Some(Some(hint)) = stop.run_until_cancelled(hints.next()).await {
        if matches!(hint, ports::Hint::Images | ports::Hint::Everything) {
            ctx.images_changed.notify_one();
        }
        let hint = match hint {
            ports::Hint::Pod(uid) => decide::Hint::Pod(uid),
            ports::Hint::ContainerOrSandbox(id) => decide::Hint::ContainerOrSandbox(id),
            ports::Hint::Images => decide::Hint::Images,
            ports::Hint::Everything => decide::Hint::Everything,
        };
        ctx.outbox.send(Event::Hint(hint));
    }
}

/// All that the dispatcher receives, besides its timers.
struct Inputs {
    inbox: mpsc::UnboundedReceiver<Event>,
    questions: mpsc::Receiver<Query>,
    task_failures: mpsc::UnboundedReceiver<String>,
    wanted_volumes: mpsc::UnboundedReceiver<WantedVolumeOperation>,
}

impl Dispatcher {
    async fn run(mut self, inputs: Inputs, stop: CancellationToken) -> Result<(), EngineError> {
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
        let record = decide::set_aside::make_panic_record(&self.state, event, &message, at);
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
            let entry = self.state.pods.get(uid).filter(|entry| entry.lifecycle.may_start());
            entry.is_some_and(|e| e.view.name() == name || e.view.container(name).is_some())
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
            self.exit_waiters.notify_exited(&self.state);
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
        let answer = || query.answer(&self.state, &self.events, &mut self.exit_waiters, now, watches);
        if let Err(cause) = catch_unwind(AssertUnwindSafe(answer)) {
            tracing::error!("answering a question panicked: {}", tasks::panic_message(&*cause));
        }
    }

    /// Counted here and not in the probe's task: a result that arrives after the pod was forgotten must not create its
    /// metrics again.
    fn record_probe_metrics(&self, event: &Event) {
        let Event::ProbeDone { uid, container, kind, outcome, took, .. } = event else { return };
        let Some(entry) = self.state.pods.get(uid) else { return };
        let of = ProbeIdentity { uid, pod: &entry.view.full_name, container, kind: *kind };
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
                let ending = self.state.pods.get(&uid).is_some_and(|entry| !entry.lifecycle.may_start());
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
                self.ctx.ports.meter.forget(&uid);
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
        let name = match entry.lifecycle {
            Lifecycle::Syncing => "syncPod",
            Lifecycle::Terminating(_) => "syncTerminatingPod",
            Lifecycle::Terminated | Lifecycle::Finished => "syncTerminatedPod",
        };
        let attributes = vec![
            ("k8s.pod.uid", uid.to_string()),
            ("k8s.pod", self.name(uid)),
            ("k8s.pod.name", entry.view.name().to_owned()),
            ("k8s.namespace.name", entry.view.namespace().to_owned()),
        ];
        Some(Span { name: name.into(), kind: SpanKind::Internal, attributes })
    }

    fn name(&self, uid: &PodUid) -> String {
        self.state
            .pods
            .get(uid)
            .map(|e| format!("{}/{}", e.view.namespace(), e.view.name()))
            .unwrap_or_default()
    }

    fn record(&mut self, uid: &PodUid, full_name: &model::FullName, event: ApiEvent) {
        let version =
            self.state.pods.get(uid).and_then(|entry| entry.view.pod.metadata.resource_version.clone());
        let about = EventSubject::Pod {
            uid: uid.clone(),
            name: full_name.clone(),
            resource_version: version.unwrap_or_default(),
        };
        self.ctx.ports.events.record(&about, &event);
        self.events.add(uid, self.ctx.clock.now().wall, event);
    }

    fn report_pod_status(&self, uid: &PodUid, status: &model::k8s::PodStatus) {
        if let Some(entry) = self.state.pods.get(uid).filter(|entry| !entry.orphan) {
            let rejected = entry.rejection.as_ref().map(|(reason, _)| reason.as_str());
            self.ctx.ports.meter.pod_status(&PodStatusUpdate { pod: &entry.view, status, rejected });
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
