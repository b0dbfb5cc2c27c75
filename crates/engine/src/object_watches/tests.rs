//! A cluster in memory, in paused time: which events are sent, and when.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use decide::event::RuntimeCheck;
use decide::{Action, Effect, NodeState, step};
use futures::stream::{BoxStream, unfold};
use model::cluster::{ObjectContent, ObjectKind, ObjectState};
use model::cri::{NamespaceMode, RuntimeCondition, RuntimeStatus};
use model::k8s::{
    CSIDriver, CSINode, ClusterTrustBundle, Event as ApiEventObject, Lease, Node, Pod, RuntimeClass, Service,
};
use model::node::{HostFacts, NodeConfig};
use model::observed::{Observation, ObservedPod, ObservedSandbox, Scope};
use model::pod::Source;
use model::storage::StorageObject;
use model::volume::VolumeKind;
use model::{FullName, PodUid, SandboxId, Wall};
use ports::{
    AccessDecision, AccessReviews, ApiError, CsiNodeApi, EventApi, IssuedToken, LeaseApi, NodeAccess,
    NodeApi, ObjectApi, ObservedObject, PodApi, PodRef, SharedObjects, StorageApi, TokenApi, UserInfo,
    WallClock,
};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::*;
use crate::clock::Clock;
use crate::timers::Timers;

type States = BTreeMap<ObjectKey, ObjectState>;

/// The parts of a cluster that pods' objects come from.
struct Cluster {
    states: watch::Sender<States>,
    open: Arc<AtomicUsize>,
    asked: AtomicUsize,
    away: AtomicBool,
    /// So many watches of the object `poison` panic.
    panics: AtomicUsize,
    services_panic: AtomicBool,
    began: Instant,
}

const START: Wall = Wall(1_700_000_000_000_000_000);

impl WallClock for Cluster {
    fn wall(&self) -> Wall {
        START.plus(self.began.elapsed())
    }
}

struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl ObjectApi for Cluster {
    fn watch(&self, key: &ObjectKey) -> BoxStream<'static, ObjectState> {
        let one_less = |left: usize| left.checked_sub(1);
        if key.name == "poison"
            && self.panics.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok()
        {
            panic!("a mistake on purpose");
        }
        self.open.fetch_add(1, Ordering::SeqCst);
        let mut states = self.states.subscribe();
        states.mark_changed();
        let from = (states, key.clone(), Open(self.open.clone()));
        let next = |(mut states, key, open): (watch::Receiver<States>, ObjectKey, Open)| async move {
            states.changed().await.ok()?;
            let absent = ObjectState::Absent { message: "not found".into() };
            let state = states.borrow_and_update().get(&key).cloned().unwrap_or(absent);
            Some((state, (states, key, open)))
        };
        Box::pin(unfold(from, next))
    }
}

impl SharedObjects for Cluster {
    fn services(&self) -> BoxStream<'static, Vec<Arc<Service>>> {
        if self.services_panic.load(Ordering::SeqCst) {
            panic!("a mistake on purpose");
        }
        // Ends after the first set, so it has to be started again.
        Box::pin(futures::stream::iter([Vec::new()]))
    }
    fn runtime_classes(&self) -> BoxStream<'static, Vec<Arc<RuntimeClass>>> {
        Box::pin(futures::stream::pending())
    }
    fn csi_drivers(&self) -> BoxStream<'static, Vec<Arc<CSIDriver>>> {
        Box::pin(futures::stream::pending())
    }
    fn trust_bundles(&self) -> BoxStream<'static, Vec<Arc<ClusterTrustBundle>>> {
        Box::pin(futures::stream::pending())
    }
}

#[async_trait]
impl StorageApi for Cluster {
    async fn read(&self, _: &StorageKey) -> Result<StorageObject, ApiError> {
        nobody()
    }
    async fn patch_claim_status(
        &self,
        _: &model::csi::ClaimObject,
        _: &serde_json::Value,
    ) -> Result<Arc<model::k8s::PersistentVolumeClaim>, ApiError> {
        nobody()
    }
}

#[async_trait]
impl TokenApi for Cluster {
    async fn service_account(
        &self,
        _: &str,
        _: &str,
    ) -> Result<model::credentials::ServiceAccountFacts, ApiError> {
        nobody()
    }

    async fn request(&self, wanted: &PodTokenRequest) -> Result<IssuedToken, ApiError> {
        let number = self.asked.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(20)).await;
        if self.away.load(Ordering::SeqCst) {
            let (call, message) = ("create token".to_owned(), "serviceaccounts \"sa\" not found".to_owned());
            return Err(ApiError::NotFound { call, message });
        }
        let lasts = Duration::from_secs(wanted.expiration_secs as u64);
        Ok(IssuedToken { token: format!("token-{number}"), expires: self.wall().plus(lasts) })
    }
}

/// The other roles are not used here.
struct Nobody;

impl ports::WatchReports for Nobody {
    fn watches(&self) -> Vec<model::report::WatchReport> {
        Vec::new()
    }
}

fn nobody<T>() -> Result<T, ApiError> {
    Err(ApiError::Unavailable { call: "any".into(), message: "nobody is there".into() })
}

#[async_trait]
impl ports::CertificateApi for Nobody {
    async fn request(
        &self,
        _: &model::pod_certificate::CertificateWanted,
    ) -> Result<model::pod_certificate::CertificateRequested, ports::CertificateRequestError> {
        nobody().map_err(ports::CertificateRequestError::Create)
    }
    fn requests(&self, _: &str) -> BoxStream<'static, Vec<Arc<model::k8s::PodCertificateRequest>>> {
        Box::pin(futures::stream::pending())
    }
}

#[async_trait]
impl PodApi for Nobody {
    async fn patch_status(&self, _: &PodRef, _: &Value) -> Result<Arc<Pod>, ApiError> {
        nobody()
    }
    async fn create(&self, _: &Pod) -> Result<Arc<Pod>, ApiError> {
        nobody()
    }
    async fn delete(&self, _: &PodRef) -> Result<(), ApiError> {
        nobody()
    }
}

#[async_trait]
impl NodeApi for Nobody {
    async fn get(&self, _: &str) -> Result<Arc<Node>, ApiError> {
        nobody()
    }
    async fn create(&self, _: &Node) -> Result<Arc<Node>, ApiError> {
        nobody()
    }
    async fn patch(&self, _: &str, _: &Value) -> Result<Arc<Node>, ApiError> {
        nobody()
    }
    async fn patch_status(&self, _: &str, _: &Value, _: Duration) -> Result<Arc<Node>, ApiError> {
        nobody()
    }
    fn watch(&self, _: &str) -> BoxStream<'static, ObservedObject<Node>> {
        Box::pin(futures::stream::pending())
    }
}

#[async_trait]
impl CsiNodeApi for Nobody {
    async fn get(&self, _: &str) -> Result<CSINode, ApiError> {
        nobody()
    }
    async fn create(&self, _: &CSINode) -> Result<CSINode, ApiError> {
        nobody()
    }
    async fn patch(&self, _: &str, _: &Value) -> Result<CSINode, ApiError> {
        nobody()
    }
    async fn delete(&self, _: &str) -> Result<(), ApiError> {
        nobody()
    }
}

#[async_trait]
impl LeaseApi for Nobody {
    async fn get(&self, _: &str, _: Duration) -> Result<Lease, ApiError> {
        nobody()
    }
    async fn create(&self, _: &Lease, _: Duration) -> Result<Lease, ApiError> {
        nobody()
    }
    async fn update(&self, _: &Lease, _: Duration) -> Result<Lease, ApiError> {
        nobody()
    }
}

#[async_trait]
impl EventApi for Nobody {
    async fn create(&self, _: &ApiEventObject) -> Result<ApiEventObject, ApiError> {
        nobody()
    }
    async fn patch(&self, _: &str, _: &str, _: &Value) -> Result<ApiEventObject, ApiError> {
        nobody()
    }
}

#[async_trait]
impl AccessReviews for Nobody {
    async fn review_token(&self, _: &str) -> Result<Option<UserInfo>, ApiError> {
        nobody()
    }
    async fn review_access(&self, _: &NodeAccess) -> Result<AccessDecision, ApiError> {
        nobody()
    }
}

/// Decisions, timers and objects as in the engine; plans succeed at once.
struct Bench {
    cluster: Arc<Cluster>,
    state: NodeState,
    clock: Clock,
    timers: Timers,
    objects: ClusterObjectWatches,
    inbox: mpsc::UnboundedReceiver<Event>,
    /// Essential tasks that ended.
    deaths: mpsc::UnboundedReceiver<String>,
    /// Contents that were written, in order.
    written: Vec<String>,
    events: Vec<String>,
    sandboxes: BTreeSet<PodUid>,
}

fn key(name: &str) -> ObjectKey {
    ObjectKey { kind: ObjectKind::ConfigMap, namespace: "ns".into(), name: name.into() }
}

impl Bench {
    fn new() -> Self {
        let cluster = Arc::new(Cluster {
            states: watch::Sender::new(States::new()),
            open: Arc::default(),
            asked: AtomicUsize::new(0),
            away: AtomicBool::new(false),
            panics: AtomicUsize::new(0),
            services_panic: AtomicBool::new(false),
            began: Instant::now(),
        });
        let (sender, inbox) = mpsc::unbounded_channel();
        let ports = ClusterPorts {
            pods: Arc::new(Nobody),
            node: Arc::new(Nobody),
            csi_node: Arc::new(Nobody),
            leases: Arc::new(Nobody),
            events: Arc::new(Nobody),
            objects: cluster.clone(),
            storage: cluster.clone(),
            shared: cluster.clone(),
            tokens: cluster.clone(),
            certificates: Arc::new(Nobody),
            reviews: Arc::new(Nobody),
            watches: Arc::new(Nobody),
        };
        let (essential, deaths) = EssentialTasks::new();
        let objects =
            ClusterObjectWatches::new(Some(ports), Outbox(sender), CancellationToken::new(), essential);
        objects.follow_services();
        let config = NodeConfig {
            sources: vec![Source::Api],
            cluster_dns: vec!["10.0.0.10".into()],
            ..NodeConfig::default()
        };
        let clock = Clock::new(cluster.clone());
        let mut bench = Self {
            state: NodeState::new(config, HostFacts::default(), START),
            timers: Timers::new(clock.clone()),
            clock,
            cluster,
            objects,
            inbox,
            deaths,
            written: Vec::new(),
            events: Vec::new(),
            sandboxes: BTreeSet::new(),
        };
        let condition =
            |kind: &str| RuntimeCondition { r#type: kind.into(), status: true, ..Default::default() };
        let conditions = vec![condition("RuntimeReady"), condition("NetworkReady")];
        let status = RuntimeStatus { conditions, ..Default::default() };
        let check = RuntimeCheck::Answered { runtime_name: "rt".into(), status, cgroup_driver: None };
        bench.handle(Event::Started);
        bench.handle(Event::RuntimeChecked(check));
        let at = bench.clock.mono();
        bench.handle(Event::Observed(Observation { at, scope: Scope::All, pods: Vec::new() }));
        bench
    }

    fn handle(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let now = self.clock.now();
            for effect in step(&mut self.state, now, event) {
                self.perform(effect, &mut events);
            }
        }
    }

    fn perform(&mut self, effect: Effect, events: &mut VecDeque<Event>) {
        match effect {
            Effect::WatchObject { key } => self.objects.watch(key),
            Effect::UnwatchObject { key } => self.objects.unwatch(&key),
            Effect::RequestToken { wanted } => self.objects.request_token(wanted),
            Effect::SetTimer { key, at } => self.timers.set(key, at),
            Effect::RecordEvent { event, .. } => {
                self.events.push(format!("{}: {}", event.reason, event.message))
            }
            Effect::RunPlan { uid, epoch, stages } => {
                for action in stages.iter().flat_map(|stage| &stage.actions) {
                    if let Action::SetUpVolume { volume } = action
                        && let VolumeKind::Content(content) = &volume.kind
                    {
                        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                        let files =
                            content.files.iter().map(|(path, file)| format!("{path}={}", text(&file.bytes)));
                        self.written.push(files.collect::<Vec<_>>().join(" "));
                    }
                }
                self.finish(&uid, epoch, &stages, events);
            }
            Effect::Observe(Scope::Pod(uid)) => events.push_back(self.read(uid)),
            _ => {}
        }
    }

    /// A sandbox without containers, from its creation until it is stopped.
    fn read(&self, uid: PodUid) -> Event {
        let mut pod = ObservedPod::empty(uid.clone(), FullName::new(uid.as_str(), "ns"));
        if self.sandboxes.contains(&uid) {
            pod.sandboxes.push(ObservedSandbox {
                id: SandboxId::new("s"),
                attempt: 0,
                created_at: START,
                ready: true,
                network: NamespaceMode::Pod,
                has_network_status: true,
                ips: vec!["10.1.0.5".into()],
                runtime_handler: String::new(),
            });
        }
        let (at, scope) = (self.clock.mono(), Scope::Pod(uid));
        Event::Observed(Observation { at, scope, pods: vec![Arc::new(pod)] })
    }

    fn finish(
        &mut self,
        uid: &PodUid,
        epoch: decide::Epoch,
        stages: &[decide::Stage],
        events: &mut VecDeque<Event>,
    ) {
        for (stage, actions) in stages.iter().enumerate() {
            for (action, what) in actions.actions.iter().enumerate() {
                let result = match what {
                    Action::RunSandbox { .. } => {
                        self.sandboxes.insert(uid.clone());
                        decide::ActionResult::SandboxRunning { id: SandboxId::new("s") }
                    }
                    Action::StopSandbox { .. } => {
                        self.sandboxes.remove(uid);
                        decide::ActionResult::Ok
                    }
                    _ => decide::ActionResult::Ok,
                };
                events.push_back(Event::ActionDone { uid: uid.clone(), epoch, stage, action, result });
            }
        }
        events.push_back(Event::PlanEnded { uid: uid.clone(), epoch });
    }

    /// Lets this much time pass.
    async fn pass(&mut self, time: Duration) {
        let end = Instant::now() + time;
        loop {
            tokio::select! {
                biased;
                Some(event) = self.inbox.recv() => self.handle(event),
                key = self.timers.fired() => self.handle(Event::Timer(key)),
                () = tokio::time::sleep_until(end) => return,
            }
        }
    }

    fn set(&self, name: &str, text: &str) {
        let content = ObjectContent {
            resource_version: text.into(),
            data: [("k".to_owned(), text.into())].into(),
            immutable: text == "fixed",
            ..ObjectContent::default()
        };
        self.cluster
            .states
            .send_modify(|all| drop(all.insert(key(name), ObjectState::Present(Arc::new(content)))));
    }

    fn open(&self) -> usize {
        self.cluster.open.load(Ordering::SeqCst)
    }

    fn pods(&mut self, pods: &[(&str, Value)]) {
        let pod = |(uid, sources): &(&str, Value)| {
            let pod = json!({
                "metadata": {"name": uid, "namespace": "ns", "uid": uid},
                "spec": {
                    "serviceAccountName": "sa",
                    "enableServiceLinks": true,
                    "containers": [{"name": "c", "image": "i:1", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
                    "volumes": [{"name": "v", "projected": {"sources": sources}}],
                },
            });
            Arc::new(serde_json::from_value(pod).unwrap())
        };
        let pods = pods.iter().map(pod).collect();
        self.handle(Event::PodSetDelivered { source: Source::Api, pods });
    }
}

const MOMENT: Duration = Duration::from_millis(100);

fn map(name: &str) -> Value {
    json!([{"configMap": {"name": name}}])
}

#[tokio::test(start_paused = true)]
async fn a_pod_waits_for_its_object_and_no_longer() {
    let mut bench = Bench::new();
    bench.pods(&[("a", map("m"))]);
    bench.pass(Duration::from_secs(600)).await;
    assert!(bench.written.is_empty());
    let failed = "FailedMount: MountVolume.SetUp failed for volume \"v\" : configmap \"m\" not found";
    let (overdue, causes): (Vec<&String>, Vec<&String>) =
        bench.events.iter().partition(|event| event.contains("Unable to attach or mount volumes"));
    assert_eq!(causes, [failed], "told once, without polling");
    assert_eq!(overdue.len(), 4, "and every 2m3s that it is overdue: {overdue:?}");
    bench.set("m", "1");
    bench.pass(MOMENT).await;
    assert_eq!(bench.written, ["k=1"]);
}

#[tokio::test(start_paused = true)]
async fn watches_come_and_go_with_the_pods() {
    let mut bench = Bench::new();
    bench.set("fixed", "fixed");
    bench.set("m", "1");
    bench.pods(&[("a", map("m")), ("b", map("m")), ("c", map("fixed"))]);
    bench.pass(MOMENT).await;
    assert_eq!(bench.written, ["k=fixed", "k=1", "k=1"].into_iter().rev().collect::<Vec<_>>());
    assert_eq!(bench.open(), 1, "what never changes is not watched");
    bench.pods(&[("b", map("m"))]);
    bench.pass(MOMENT).await;
    assert_eq!(bench.open(), 1);
    bench.pods(&[]);
    // The simulated runtime drops what is stopped, which has to be confirmed.
    bench.pass(decide::observation_guard::CONFIRM_DELAY + MOMENT).await;
    assert_eq!(bench.open(), 0);
    bench.set("m", "2");
    bench.pass(MOMENT).await;
    assert_eq!(bench.written.len(), 3, "nobody is left to be told");
}

#[tokio::test(start_paused = true)]
async fn tokens_are_renewed_in_time_and_survive_an_outage() {
    let mut bench = Bench::new();
    bench.cluster.away.store(true, Ordering::SeqCst);
    bench.pods(&[("a", json!([{"serviceAccountToken": {"path": "t", "expirationSeconds": 600}}]))]);
    bench.pass(MOMENT).await;
    let failed = "FailedMount: MountVolume.SetUp failed for volume \"v\" : failed to fetch token: serviceaccounts \"sa\" not found";
    assert_eq!((bench.written.len(), bench.events.as_slice()), (0, [failed.to_owned()].as_slice()));
    bench.cluster.away.store(false, Ordering::SeqCst);
    bench.pass(Duration::from_secs(2)).await;
    assert_eq!(bench.written.len(), 1, "the next try comes soon");
    let before = bench.cluster.asked.load(Ordering::SeqCst);
    bench.pass(Duration::from_secs(460)).await;
    assert_eq!(bench.cluster.asked.load(Ordering::SeqCst), before, "not before it is due");
    bench.pass(Duration::from_secs(21)).await;
    assert_eq!((bench.cluster.asked.load(Ordering::SeqCst), bench.written.len()), (before + 1, 2));
    bench.cluster.away.store(true, Ordering::SeqCst);
    bench.pass(Duration::from_secs(500)).await;
    assert_eq!(bench.written.len(), 2, "one that is still good is kept");
    bench.cluster.away.store(false, Ordering::SeqCst);
    bench.pass(Duration::from_secs(130)).await;
    assert_eq!(bench.written.len(), 3);
    bench.pods(&[]);
    let asked = bench.cluster.asked.load(Ordering::SeqCst);
    bench.pass(Duration::from_secs(3600)).await;
    assert_eq!(bench.cluster.asked.load(Ordering::SeqCst), asked, "nobody uses it any more");
}

/// One odd object concerns the pods that need it, and nobody else.
#[tokio::test(start_paused = true)]
async fn a_watch_that_panics_is_started_again() {
    let mut bench = Bench::new();
    bench.cluster.panics.store(3, Ordering::SeqCst);
    bench.objects.watch(key("poison"));
    bench.objects.watch(key("other"));
    bench.pass(Duration::from_millis(100)).await;
    assert_eq!(bench.open(), 1, "the other one");
    bench.pass(Duration::from_secs(60)).await;
    assert_eq!((bench.open(), bench.cluster.panics.load(Ordering::SeqCst)), (2, 0));
    assert!(bench.deaths.try_recv().is_err());
    bench.objects.unwatch(&key("poison"));
    bench.pass(Duration::from_millis(100)).await;
    assert_eq!(bench.open(), 1);
}

/// Without Services every pod would lack its variables, and nobody would see why.
#[tokio::test(start_paused = true)]
async fn a_panic_in_a_watch_of_all_pods_is_told() {
    let mut bench = Bench::new();
    bench.pass(Duration::from_secs(3)).await;
    assert!(bench.deaths.try_recv().is_err(), "a stream that ends is opened again");
    bench.cluster.services_panic.store(true, Ordering::SeqCst);
    bench.pass(Duration::from_secs(3)).await;
    assert_eq!(
        bench.deaths.try_recv().as_deref(),
        Ok("the watch of Services panicked: a mistake on purpose")
    );
}
