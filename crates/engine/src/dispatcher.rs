//! The task that owns the state: takes one event at a time, steps, and sets the effects going.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use decide::effect::LogLevel;
use decide::lifecycle::Lifecycle;
use decide::node::RuntimeView;
use decide::{Effect, Epoch, Event, NodeState, step};
use futures::StreamExt;
use model::cgroup::CgroupSpec;
use model::cri::IdMapping;
use model::observed::Scope;
use model::panic_record::PanicRecord;
use model::pod::Source;
use model::probe::ProbeRecord;
use model::{ApiEvent, EventSubject, PodUid};
use ports::{FeedNotice, PodFeed, PodSeen, ProbeOf, Span, SpanKind};
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::csi::registry::Registry;
use crate::csi::{VolumeCalls, VolumeRequests, VolumeWork, WantedVolumeOperation};
use crate::node_keeper::NodeNow;
use crate::objects::ClusterObjects;
use crate::query::{EngineHandle, EventLog, Query};
use crate::tasks::{self, EssentialTasks};
use crate::timers::Timers;
use crate::waiting::Waiting;
use crate::{
    NodeDuties, Ports, api_calls, disk_calls, executor, failed_calls, image_calls, node_duties, observe,
    panics, plugin_calls, probe_calls, sweep,
};

/// Where every outcome goes.
#[derive(Clone)]
pub(crate) struct Outbox(pub mpsc::UnboundedSender<Event>);

impl Outbox {
    pub fn send(&self, event: Event) {
        // The dispatcher is gone only while the agent ends; nobody is left to tell then.
        let _ = self.0.send(event);
    }
}

/// What tasks need.
#[derive(Clone)]
pub(crate) struct Shop {
    pub ports: Ports,
    pub clock: Clock,
    pub outbox: Outbox,
    pub image_room: Arc<image_calls::ImageRoom>,
    /// The runtime as it was seen last, for whoever keeps the Node object.
    pub runtime_view: Arc<watch::Sender<RuntimeView>>,
    /// Images came, changed or may have: for whoever lists them in the Node object.
    pub image_news: Arc<Notify>,
    /// `None`: no storage driver can register.
    pub csi: Option<VolumeRequests>,
    /// For whoever keeps the Node object. `None`: not known yet.
    pub volumes_in_use: Arc<watch::Sender<Option<Vec<String>>>>,
    /// How often drivers are asked anew what the node can take, in seconds.
    pub driver_periods: Arc<watch::Sender<BTreeMap<String, u64>>>,
    /// Starts tasks whose death is the engine's end.
    pub essential: EssentialTasks,
}

/// A plan that is being carried out.
struct PlanInWork {
    epoch: Epoch,
    cancel: CancellationToken,
    begun: Instant,
    /// Of a pod that is going.
    ending: bool,
}

struct Dispatcher {
    state: NodeState,
    shop: Shop,
    timers: Timers,
    plans: HashMap<PodUid, PlanInWork>,
    events: EventLog,
    waiting: Waiting,
    probe_records: mpsc::UnboundedSender<(PodUid, ProbeRecord)>,
    node_cgroups: watch::Sender<Vec<CgroupSpec>>,
    objects: ClusterObjects,
    volume_work: VolumeWork,
    /// Storage drivers that are registered. `None`: there can be none.
    registry: Option<Arc<Registry>>,
    api_room: Arc<Semaphore>,
    /// What earlier agents left on record.
    panics: Vec<PanicRecord>,
    /// A step that plans a pod of this name, or with a container of this name, panics on purpose.
    #[cfg(debug_assertions)]
    mistake: Option<String>,
}

/// Why the engine ended without being told to.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineEnd {
    #[error("a step on the event {event} panicked{}: {message}", about(.pod))]
    Panicked { event: &'static str, pod: Option<String>, message: String },
    #[error("{0}")]
    LostTask(String),
}

fn about(pod: &Option<String>) -> String {
    pod.as_ref().map(|pod| format!(" over pod {pod}")).unwrap_or_default()
}

/// Everything a start needs.
pub(crate) struct Ready {
    dispatcher: Dispatcher,
    inbox: mpsc::UnboundedReceiver<Event>,
    questions: mpsc::Receiver<Query>,
    deaths: mpsc::UnboundedReceiver<String>,
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
) -> (EngineHandle, Ready) {
    let (events, inbox) = mpsc::unbounded_channel();
    let (queries, questions) = mpsc::channel(64);
    let clock = Clock::new(ports.wall.clone());
    let image_room = Arc::default();
    let runtime_view = Arc::new(watch::Sender::new(RuntimeView::default()));
    let (outbox, image_news) = (Outbox(events), Arc::default());
    let (volume_requests, wanted_volumes) = VolumeRequests::new();
    let csi = ports.csi.is_some().then_some(volume_requests);
    let storage = ports.cluster.as_ref().map(|cluster| cluster.storage.clone());
    let volume_calls = ports.csi.clone().map(|ports| VolumeCalls { ports, storage });
    let volumes_in_use = Arc::new(watch::Sender::new(None));
    let clock_of_shop = clock.clone();
    let (essential, deaths) = EssentialTasks::new();
    let shop = Shop {
        ports,
        clock: clock_of_shop,
        outbox,
        image_room,
        runtime_view,
        image_news,
        csi,
        volumes_in_use,
        driver_periods: Arc::default(),
        essential,
    };
    let (probe_records, to_keep) = mpsc::unbounded_channel();
    shop.essential.spawn("the keeper of probe results", probe_calls::keep_records(shop.clone(), to_keep));
    let (node_cgroups, wanted_cgroups) = watch::channel(Vec::new());
    shop.essential
        .spawn("the keeper of the node's cgroups", sweep::keep_cgroups(shop.clone(), wanted_cgroups));
    let objects = ClusterObjects::new(shop.ports.cluster.clone(), shop.outbox.clone(), stop.clone());
    let dispatcher = Dispatcher {
        state,
        timers: Timers::new(clock),
        shop,
        plans: HashMap::new(),
        events: EventLog::default(),
        waiting: Waiting::default(),
        probe_records,
        node_cgroups,
        objects,
        volume_work: VolumeWork::new(volume_calls),
        registry: None,
        api_room: Arc::new(Semaphore::new(api_calls::CALLS_AT_ONCE)),
        panics: Vec::new(),
        #[cfg(debug_assertions)]
        mistake: None,
    };
    let ready = Ready { dispatcher, inbox, questions, deaths, wanted_volumes, feeds, stop, duties: None };
    (EngineHandle::new(queries), ready)
}

impl Ready {
    /// See [`crate::Engine::with_mistake`].
    #[cfg(debug_assertions)]
    pub fn with_mistake(&mut self, name: String) {
        self.dispatcher.mistake = Some(name);
    }

    pub fn start(mut self) -> tokio::task::JoinHandle<Result<(), EngineEnd>> {
        let shop = self.dispatcher.shop.clone();
        let node = self.duties.and_then(|duties| {
            let facts = self.dispatcher.state.facts.clone();
            node_duties::start(&shop, duties, facts, shop.runtime_view.subscribe(), &self.stop)
        });
        let (node, csi_node) = node.map_or((None, None), |started| (Some(started.node), started.csi_node));
        if let Some(csi) = &shop.ports.csi {
            shop.outbox.send(Event::CsiEnabled);
            let periods = shop.driver_periods.subscribe();
            let registry = Registry::new(csi.clone(), csi_node, shop.outbox.clone(), periods);
            self.dispatcher.registry = Some(registry.clone());
            shop.essential.spawn("the registration of plugins", registry.run(self.stop.clone()));
        }
        for feed in self.feeds {
            let first = node.clone().filter(|_| feed.source() == Source::Api);
            let forward = forward_feed(feed, first, shop.outbox.clone(), self.stop.clone());
            shop.essential.spawn_until("a feed of pods", &self.stop, forward);
        }
        shop.essential.spawn("the keeper of pull records", image_calls::settle_intents(shop.clone()));
        self.dispatcher.objects.follow_services();
        self.dispatcher.objects.follow_runtime_classes();
        self.dispatcher.objects.follow_csi_drivers();
        shop.essential.spawn_until("news of volumes", &self.stop, disk_calls::forward_news(shop.clone()));
        let hints = forward_hints(shop.clone(), self.stop.clone());
        shop.essential.spawn_until("hints of the runtime", &self.stop, hints);
        let inputs = Inputs {
            inbox: self.inbox,
            questions: self.questions,
            deaths: self.deaths,
            wanted_volumes: self.wanted_volumes,
        };
        tokio::spawn(self.dispatcher.run(inputs, self.stop))
    }
}

/// `first`: whose first word has to come before the first pod, since pods are let in by what the node is.
async fn forward_feed(
    feed: Box<dyn PodFeed>,
    first: Option<watch::Receiver<NodeNow>>,
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
            FeedNotice::Set(set) => outbox.send(Event::Pods { source: set.source, pods: set.pods }),
            FeedNotice::Changed { source, pod } => outbox.send(Event::PodChanged { source, pod }),
            FeedNotice::Gone { source, uid } => outbox.send(Event::PodGone { source, uid }),
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
                tracing::info!(source = source.as_str(), origin, "the problem with this origin is gone");
            }
        }
    }
}

/// Waits for as long as the disk takes: two pods with the same ids could read each other's files.
async fn load_user_ids(shop: &Shop) -> (BTreeMap<PodUid, Option<IdMapping>>, bool) {
    let found = shop.ports.files.user_ids().await;
    for problem in found.problems {
        tracing::error!("user namespaces of pods: {problem}");
    }
    (found.ids.into_iter().collect(), found.unlisted)
}

async fn forward_hints(shop: Shop, stop: CancellationToken) {
    let mut hints = shop.ports.hints.hints();
    while let Some(Some(hint)) = stop.run_until_cancelled(hints.next()).await {
        if matches!(hint, ports::Hint::Images | ports::Hint::Everything) {
            shop.image_news.notify_one();
        }
        let hint = match hint {
            ports::Hint::Pod(uid) => decide::Hint::Pod(uid),
            ports::Hint::Id(id) => decide::Hint::Id(id),
            ports::Hint::Images => decide::Hint::Images,
            ports::Hint::Everything => decide::Hint::Everything,
        };
        shop.outbox.send(Event::Hint(hint));
    }
}

/// All that the dispatcher listens to, beside its timers.
struct Inputs {
    inbox: mpsc::UnboundedReceiver<Event>,
    questions: mpsc::Receiver<Query>,
    deaths: mpsc::UnboundedReceiver<String>,
    wanted_volumes: mpsc::UnboundedReceiver<WantedVolumeOperation>,
}

impl Dispatcher {
    async fn run(mut self, inputs: Inputs, stop: CancellationToken) -> Result<(), EngineEnd> {
        let Inputs { mut inbox, mut questions, mut deaths, mut wanted_volumes } = inputs;
        // Before the first pod: who is set aside must not be tried again.
        self.panics = panics::load(&self.shop).await;
        self.state.set_aside = decide::set_aside::judge(&self.panics);
        // Before the first status: what was said of a pod is not to flip because the agent was restarted.
        // But for a cluster that wants just that.
        if !self.state.config.feature(decide::status::FORGET_READINESS_GATE) {
            self.state.probe_records = probe_calls::load_records(&self.shop).await;
        }
        // Before the first pod: ids that are in use must not be given to another.
        (self.state.user_ids, self.state.user_ids_unlisted) = load_user_ids(&self.shop).await;
        let mut next = Event::Started;
        loop {
            let event = next.kind();
            // The state is not used after a panic but to say what it was about.
            let handled = catch_unwind(AssertUnwindSafe(|| self.handle(next)));
            if let Err(cause) = handled {
                return Err(self.panicked(event, tasks::panic_message(&*cause)).await);
            }
            next = loop {
                // Unbiased on purpose: a storm of events must not starve timers or whoever asks.
                tokio::select! {
                    () = stop.cancelled() => return Ok(()),
                    Some(event) = inbox.recv() => break event,
                    Some(wanted) = wanted_volumes.recv() => break self.volume_work.wanted(wanted),
                    key = self.timers.fired() => break Event::Timer(key),
                    Some(query) = questions.recv() => self.answer(query),
                    Some(death) = deaths.recv() => return Err(EngineEnd::LostTask(death)),
                }
            };
        }
    }

    /// Leaves a record of the panic for the next start, which may have to set the pod aside.
    async fn panicked(&mut self, event: &'static str, message: String) -> EngineEnd {
        let at = self.shop.clock.now().wall;
        let record = decide::set_aside::record(&self.state, event, &message, at);
        let pod = record.pod.as_ref().map(|pod| format!("{}/{} ({})", pod.namespace, pod.name, pod.uid));
        panics::save(&self.shop, decide::set_aside::keep(std::mem::take(&mut self.panics), record)).await;
        EngineEnd::Panicked { event, pod, message }
    }

    /// A mistake on purpose, as if planning the pod panicked.
    #[cfg(debug_assertions)]
    fn make_mistake(&mut self, effects: &[Effect]) {
        let Some(name) = &self.mistake else { return };
        let planned = effects.iter().filter(|effect| matches!(effect, Effect::Run { .. }));
        let about = |uid: &&PodUid| {
            let entry = self.state.pods.get(uid).filter(|entry| entry.lifecycle.may_start());
            entry.is_some_and(|e| e.view.name() == name || e.view.container(name).is_some())
        };
        if let Some(uid) = planned.filter_map(Effect::pod).find(about) {
            self.state.in_work = Some(uid.clone());
            panic!("a mistake on purpose");
        }
    }

    fn handle(&mut self, event: Event) {
        tracing::trace!(?event, "event");
        let now = self.shop.clock.now();
        if let Event::PlanEnded { uid, epoch } = &event
            && self.plans.get(uid).is_some_and(|plan| plan.epoch == *epoch)
            && let Some(plan) = self.plans.remove(uid)
        {
            self.shop.ports.meter.plan_ended(uid, plan.ending, plan.begun.elapsed());
        }
        if let Event::VolumeCallEnded { id, .. } = &event {
            self.volume_work.ended(*id);
        }
        self.meter_probe(&event);
        let (kind, began) = (event.kind(), Instant::now());
        let was_read = matches!(event, Event::Observed(_));
        let effects = step(&mut self.state, now, event);
        #[cfg(debug_assertions)]
        self.make_mistake(&effects);
        self.shop.ports.meter.step(kind, began.elapsed());
        if was_read || effects.iter().any(|effect| matches!(effect, Effect::Forget { .. })) {
            self.waiting.look(&self.state);
        }
        for effect in effects {
            self.state.in_work = effect.pod().cloned();
            self.perform(effect);
        }
        self.state.in_work = None;
    }

    fn call(
        &self,
        call: impl Future<Output = ()> + Send + 'static,
        failed: impl FnOnce(String) -> Option<Event> + Send + 'static,
    ) {
        tasks::spawn_call(&self.shop.outbox, call, failed);
    }

    /// Nothing is changed by an answer, so a panic costs whoever asked, and nobody else.
    fn answer(&mut self, query: Query) {
        let cluster = self.shop.ports.cluster.as_ref();
        let watches = || cluster.map(|cluster| cluster.watches.watches()).unwrap_or_default();
        let now = self.shop.clock.now();
        let answer = || query.answer(&self.state, &self.events, &mut self.waiting, now, watches);
        if let Err(cause) = catch_unwind(AssertUnwindSafe(answer)) {
            tracing::error!("answering a question panicked: {}", tasks::panic_message(&*cause));
        }
    }

    /// Counted here and not where it is carried out: an answer about a pod that is gone must not bring back what was
    /// counted of it.
    fn meter_probe(&self, event: &Event) {
        let Event::ProbeDone { uid, container, kind, outcome, took, .. } = event else { return };
        let Some(entry) = self.state.pods.get(uid) else { return };
        let of = ProbeOf { uid, pod: &entry.view.full_name, container, kind: *kind };
        self.shop.ports.meter.probe(&of, outcome, *took);
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Observe(scope) => self.observe(scope),
            Effect::CheckRuntime { ask_cgroup_driver } => {
                let check = observe::check_runtime(self.shop.clone(), ask_cgroup_driver);
                self.call(check, failed_calls::check_runtime);
            }
            Effect::Run { uid, epoch, stages } => {
                self.shop.ports.meter.plan_started(&uid);
                let (cancel, begun) = (CancellationToken::new(), Instant::now());
                let ending = self.state.pods.get(&uid).is_some_and(|entry| !entry.lifecycle.may_start());
                self.plans.insert(uid.clone(), PlanInWork { epoch, cancel: cancel.clone(), begun, ending });
                let span = self.shop.ports.tracing.is_on().then(|| self.plan_span(&uid)).flatten();
                executor::spawn(self.shop.clone(), executor::Job { uid, epoch, stages, cancel }, span);
            }
            Effect::Cancel { uid, epoch } => {
                if let Some(plan) = self.plans.get(&uid).filter(|plan| plan.epoch == epoch) {
                    plan.cancel.cancel();
                }
            }
            Effect::InspectImage { image } => {
                let failed = failed_calls::inspect(image.clone());
                self.call(image_calls::inspect(self.shop.clone(), image), failed);
            }
            Effect::AskPlugins { pull, pod, for_access } => {
                let failed = failed_calls::ask_plugins(pull.clone(), for_access);
                self.call(plugin_calls::ask_plugins(self.shop.clone(), pull, pod, for_access), failed);
            }
            Effect::PullImage { pull, own, context } => {
                let failed = failed_calls::pull(pull.clone());
                self.call(image_calls::pull(self.shop.clone(), pull, own, context), failed);
            }
            Effect::NoteAccess { image, image_ref, secret } => {
                self.call(image_calls::note_access(self.shop.clone(), image, image_ref, secret), |_| None);
            }
            Effect::WatchObject { key } => self.objects.watch(key),
            Effect::UnwatchObject { key } => self.objects.unwatch(&key),
            Effect::ReadStorage { key } => self.objects.read_storage(key),
            Effect::FollowTrustBundles => self.objects.follow_trust_bundles(),
            Effect::RequestToken { wanted } => self.objects.request_token(wanted),
            Effect::FollowCertificateRequests { node } => self.objects.follow_certificate_requests(node),
            Effect::RequestCertificate { source, call, wanted } => {
                self.objects.request_certificate(source, call, *wanted);
            }
            Effect::TellVolumesInUse { volumes } => {
                self.shop.volumes_in_use.send_replace(Some(volumes));
            }
            Effect::TellDriverPeriods { periods } => {
                self.shop.driver_periods.send_replace(periods);
            }
            Effect::AskDriver { driver } => {
                if let Some(registry) = self.registry.clone() {
                    self.call(async move { registry.ask(&driver).await }, |_| None);
                }
            }
            Effect::SetTimer { key, at } => self.timers.set(key, at),
            Effect::PublishStatus { uid, status } => self.tell_status(&uid, &status),
            Effect::RunProbe { uid, container, kind, id, call, attempts } => {
                let attempt = probe_calls::Attempt { uid, container, kind, id, call, attempts };
                tokio::spawn(probe_calls::run(self.shop.clone(), attempt));
            }
            Effect::KeepProbeRecord { uid, record } => {
                // The keeper ends with this task.
                let _ = self.probe_records.send((uid, record));
            }
            Effect::Forget { uid } => {
                self.events.forget(&uid);
                self.shop.ports.meter.forget(&uid);
                tracing::info!(pod_uid = %uid, "pod is gone");
            }
            Effect::RecordEvent { uid, full_name, event } => self.record(&uid, &full_name, event),
            Effect::RecordClaimEvent { claim, event } => {
                self.shop.ports.events.record(&EventSubject::Claim(claim), &event);
            }
            Effect::RecordNodeEvent { event } => {
                let about = EventSubject::Node { name: self.state.config.setup.name.clone() };
                self.shop.ports.events.record(&about, &event);
            }
            Effect::EnsureCgroups { specs } => {
                self.node_cgroups.send_replace(specs);
            }
            Effect::ListLeftovers => {
                self.call(sweep::list(self.shop.clone(), self.state.config.clone()), failed_calls::sweep);
            }
            Effect::Sweep(what) => {
                self.call(sweep::sweep(self.shop.clone(), what), failed_calls::sweep);
            }
            Effect::UpdateVolume { uid, volume } => {
                let failed = failed_calls::update_volume(uid.clone(), volume.clone());
                self.call(disk_calls::update_volume(self.shop.clone(), uid, volume), failed);
            }
            Effect::CallVolume { id, call } => self.volume_work.call(&self.shop.outbox, id, call),
            Effect::CancelVolumeCall { id } => self.volume_work.cancel(id),
            Effect::AnswerVolumeRequest { request, result } => self.volume_work.answer(&request, result),
            Effect::MeasureDisk { uid, places } => {
                let failed = failed_calls::measure(uid.clone());
                self.call(disk_calls::measure(self.shop.clone(), uid, places), failed);
            }
            Effect::CallApi(call) => {
                let failed = failed_calls::api(&call);
                self.call(api_calls::call(self.shop.clone(), self.api_room.clone(), call), failed);
            }
            Effect::Log { level, uid, message } => self.log(level, uid.as_ref(), &message),
        }
    }

    fn observe(&self, scope: Scope) {
        let known = self.state.known_readings(&scope, self.shop.clock.mono());
        let failed = failed_calls::observe(scope.clone());
        self.call(observe::observe(self.shop.clone(), scope, known), failed);
    }

    /// A plan as traces call it, in the reference's words.
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
        self.shop.ports.events.record(&about, &event);
        self.events.add(uid, self.shop.clock.now().wall, event);
    }

    fn tell_status(&self, uid: &PodUid, status: &model::k8s::PodStatus) {
        if let Some(entry) = self.state.pods.get(uid).filter(|entry| !entry.orphan) {
            let rejected = entry.rejection.as_ref().map(|(reason, _)| reason.as_str());
            self.shop.ports.meter.pod_status(&PodSeen { pod: &entry.view, status, rejected });
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
