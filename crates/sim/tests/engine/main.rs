//! The real engine over simulated ports, in paused time: one dispatcher, executors and all their tasks as they ship,
//! with calls that are slow, refused, fail after their effect, hang or are cancelled, and agents that are killed. The
//! seed determines the world and its faults, but tokio determines the order of ready tasks. So this finds errors of
//! concurrency and cancellation, and `sim replay` does not apply to it.

mod cluster;
mod files;
mod host;
mod runtime;
mod storage;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use decide::NodeState;
use engine::{CsiPorts, EngineError, EngineHandle, Ports};
use futures::StreamExt;
use futures::stream::BoxStream;
use model::PodUid;
use model::k8s::Pod;
use model::node::{HostFacts, NodeConfig};
use model::pod::{PodView, RestartPolicy, Source, is_sidecar};
use ports::{AgentView, FeedNotice, PodFeed, PodSet};
use sim::check::nothing_left;
use sim::drive::cluster::is_mirror;
use sim::rng::Rng;
use sim::workload::{
    Task, costly_classes, is_extreme, is_rejected, is_unmountable, make_node_status_extreme,
};
use sim::world::{Lifetime, World, claims_of};
use sim::{Profile, Scenario};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use host::{AgentConnection, Host, HostState};

/// Once there are no more faults, everything settles within this time. It depends on calls that hang for four minutes
/// and back-offs of five.
const BOUND: Duration = Duration::from_secs(900);
/// More steps than any good run takes.
const STORM: u64 = 60_000;

struct SimFeed {
    source: Source,
    notices: mpsc::UnboundedReceiver<FeedNotice>,
}

impl PodFeed for SimFeed {
    fn source(&self) -> Source {
        self.source
    }
    fn stream(self: Box<Self>) -> BoxStream<'static, FeedNotice> {
        futures::stream::unfold(self.notices, |mut from| async move { Some((from.recv().await?, from)) })
            .boxed()
    }
}

/// The pods of sources that only deliver whole sets, by name.
type Sets = BTreeMap<Source, BTreeMap<String, Arc<Pod>>>;

struct Run {
    host: Arc<Host>,
    config: NodeConfig,
    facts: HostFacts,
    sets: Sets,
    agent: Option<(EngineHandle, CancellationToken)>,
    /// The engine of that agent. When it ends, the agent ends.
    engine: Option<JoinHandle<Result<(), EngineError>>>,
    /// How often the engine ended because planning the poisoned pod panicked.
    panics: u32,
}

impl Run {
    async fn start_agent(&mut self) {
        let generation = self.host.next_generation();
        let reach = || AgentConnection { host: self.host.clone(), generation };
        let (hints, heard) = mpsc::unbounded_channel();
        let (sockets, plugins) = mpsc::unbounded_channel();
        let mut feeds: Vec<Box<dyn PodFeed>> = Vec::new();
        let mut inner = self.host.lock().await;
        inner.hints = Some(hints);
        inner.drivers.sockets = Some(sockets);
        if inner.world.storage.registered {
            storage::driver_is(&mut inner, true);
        }
        inner.feeds.clear();
        for source in &self.config.sources {
            let (feed, notices) = mpsc::unbounded_channel();
            if inner.faults.panicking_pod.is_some() {
                let _ = feed.send(FeedNotice::RuntimeClasses { source: *source, classes: costly_classes() });
            }
            let _ = feed.send(FeedNotice::Set(self.set(&inner, *source)));
            inner.feeds.insert(*source, feed);
            feeds.push(Box::new(SimFeed { source: *source, notices }));
        }
        drop(inner);
        let mut state = NodeState::new(self.config.clone(), self.facts.clone(), self.host.wall());
        let clustered = self.config.sources.contains(&Source::Api);
        if clustered {
            let mut node = serde_json::json!({"metadata": {"name": "node", "uid": "n1"}});
            if self.host.lock().await.faults.extreme {
                make_node_status_extreme(&mut node["status"]);
            }
            state.node = Some(Arc::new(serde_json::from_value(node).expect("a node")));
        }
        let nothing = Arc::new(files::NoopPorts(reach()));
        let drivers = Arc::new(storage::SimDrivers(reach()));
        let ports = Ports {
            runtime: Arc::new(runtime::SimRuntime(reach())),
            images: Arc::new(runtime::SimImages(reach())),
            credentials: nothing.clone(),
            pull_records: None,
            hints: Arc::new(runtime::SimHints(Mutex::new(Some(heard)))),
            files: Arc::new(files::SimFiles(reach())),
            volume_news: nothing.clone(),
            log_files: nothing.clone(),
            node_signals: nothing.clone(),
            oom_kills: nothing.clone(),
            usage: Arc::new(runtime::SimUsage(reach())),
            cgroups: Arc::new(files::SimCgroups(reach())),
            events: nothing.clone(),
            http_hooks: nothing.clone(),
            prober: nothing.clone(),
            probe_records: Arc::new(files::SimRecords(reach())),
            panic_records: Arc::new(files::SimRecords(reach())),
            wall: nothing.clone(),
            meter: nothing,
            csi: clustered.then(|| CsiPorts {
                drivers: drivers.clone(),
                files: drivers.clone(),
                sockets: Arc::new(storage::SimSockets(Mutex::new(Some(plugins)))),
            }),
            tracing: ports::Tracing::default(),
            cluster: clustered.then(|| cluster::SimCluster(reach()).ports()),
        };
        let stop = CancellationToken::new();
        let (handle, engine) = engine::new(state, ports, feeds, stop.clone());
        let engine = match self.host.lock().await.faults.panicking_pod.clone() {
            Some(name) => engine.with_test_panic(name),
            None => engine,
        };
        self.engine = Some(engine.start());
        self.agent = Some((handle, stop));
    }

    /// Acts as the service manager: an engine that ended because planning the poisoned pod panicked is started again.
    /// Any other end is a failure of the run.
    async fn supervise(&mut self) -> Result<(), String> {
        let Some(engine) = self.engine.take_if(|engine| engine.is_finished()) else { return Ok(()) };
        let poison = self.host.lock().await.faults.panicking_pod.clone();
        match engine.await {
            Ok(Err(EngineError::Panicked { pod: Some(pod), .. }))
                if poison.as_ref().is_some_and(|name| pod.contains(&format!("/{name} "))) =>
            {
                self.panics += 1;
                self.kill_agent().await;
                sleep(Duration::from_secs(10)).await;
                self.start_agent().await;
                Ok(())
            }
            end => Err(format!("the engine ended: {end:?}")),
        }
    }

    fn set(&self, inner: &HostState, source: Source) -> PodSet {
        let set = if source == Source::Api { Some(&inner.objects) } else { self.sets.get(&source) };
        PodSet { source, pods: set.map(|set| set.values().cloned().collect()).unwrap_or_default() }
    }

    /// The agent's pending calls have no further effect, and it gets no more events.
    async fn kill_agent(&mut self) {
        self.host.next_generation();
        let mut inner = self.host.lock().await;
        inner.hints = None;
        inner.drivers.sockets = None;
        inner.feeds.clear();
        inner.check.agent_killed(None);
        if let Some((_, stop)) = self.agent.take() {
            stop.cancel();
        }
    }

    async fn deliver(&self, source: Source) {
        let inner = self.host.lock().await;
        if let Some(feed) = inner.feeds.get(&source) {
            let _ = feed.send(FeedNotice::Set(self.set(&inner, source)));
        }
    }

    async fn perform(&mut self, task: Task) {
        match task {
            Task::Put { source, pod, scripts } => {
                let mut inner = self.host.lock().await;
                inner.world.scripts.extend(scripts);
                let (now, name) = (inner.world.now, pod.metadata.name.clone().unwrap_or_default());
                if source == Source::Api {
                    let known = inner.objects.get(&name).cloned();
                    let same = known.as_ref().filter(|k| k.metadata.uid == pod.metadata.uid);
                    if same.is_none() && pod.metadata.deletion_timestamp.is_some() {
                        return;
                    }
                    let status = same.and_then(|k| k.status.clone());
                    inner.check.pod_added(now, source, &pod, known.as_deref());
                    if same.is_none() {
                        // A server has one object of a name: the other was deleted before.
                        cluster::remove(&mut inner, &name);
                    }
                    cluster::store(&mut inner, Pod { status, ..(*pod).clone() });
                    return;
                }
                let old = self.sets.entry(source).or_default().insert(name, pod.clone());
                inner.check.pod_added(now, source, &pod, old.as_deref());
                drop(inner);
                self.deliver(source).await;
            }
            Task::Remove { source: Source::Api, name } => {
                cluster::remove(&mut *self.host.lock().await, &name);
            }
            Task::Remove { source, name } => {
                self.sets.entry(source).or_default().remove(&name);
                self.deliver(source).await;
            }
            Task::ImageArrives(name) => self.host.apply(|inner| inner.world.image_arrives(&name)).await,
            Task::Object { name, version } => self.host.lock().await.world.objects.set(&name, version),
            Task::Claim { name, change } => self.host.lock().await.world.storage.change(&name, change),
            Task::Driver { there } => storage::driver_is(&mut *self.host.lock().await, there),
            Task::RemoveMirror(name) => {
                let mut inner = self.host.lock().await;
                if inner.objects.get(&name).is_some_and(|pod| is_mirror(pod)) {
                    cluster::remove(&mut inner, &name);
                }
            }
            // Eviction has no port yet, and readiness gates are not set here: such pods run without being ready.
            Task::Evict { .. } | Task::Gate { .. } => {}
        }
    }

    /// A pod that must run and does not.
    async fn pod_that_does_not_run(&self) -> Option<String> {
        let inner = self.host.lock().await;
        let wanted =
            self.sets.iter().map(|(source, set)| (*source, set.values().cloned().collect::<Vec<_>>()));
        let api = (Source::Api, inner.objects.values().filter(|p| !is_mirror(p)).cloned().collect());
        let views: Vec<PodView> = wanted
            .chain([api])
            .flat_map(|(source, pods)| pods.into_iter().map(move |pod| PodView::new(pod, source)))
            .collect();
        let alone = |view: &PodView| views.iter().filter(|v| v.full_name == view.full_name).count() == 1;
        let held_up =
            |uid: &PodUid| inner.faults.has_refused_statuses(uid) || inner.faults.makes_steps_panic(uid);
        let must = views.iter().filter(|view| alone(view) && must_run(&inner.world, view));
        let mut must = must.filter(|view| !held_up(&view.uid));
        must.find_map(|view| {
            let runs = |name: &str| inner.world.of_pod(&view.uid).any(|c| c.name == name && c.is_live());
            let missing = view.containers().iter().find(|c| !runs(&c.name))?;
            Some(format!("container {} of {} does not run", missing.name, view.uid))
        })
    }

    async fn leftovers(&self) -> Option<String> {
        let inner = self.host.lock().await;
        let uids: Vec<PodUid> = inner.check.uids().cloned().collect();
        let left =
            uids.iter().find_map(|uid| Some(format!("of {uid}: {}", nothing_left(&inner.world, uid)?)));
        let mirror = inner.objects.keys().next().map(|name| format!("object {name} is left"));
        let staged =
            inner.world.storage.staged.keys().next().map(|volume| format!("volume {volume} is staged"));
        let storage = &inner.world.storage;
        let of_device = storage.links.keys().chain(storage.maps.keys()).next();
        let left = left.or(staged).or_else(|| of_device.map(|path| format!("{path}, of a device, is left")));
        drop(inner);
        let (handle, _) = self.agent.as_ref()?;
        let known = handle.all_pod_details().await.and_then(|pods| pods.first().map(|p| p.uid.clone()));
        left.or(mirror).or_else(|| known.map(|uid| format!("{uid} is still known")))
    }

    /// Polls until nothing is open, at most for the bound.
    async fn settle(&mut self, late: bool) -> Result<(), String> {
        let end = Instant::now() + BOUND;
        loop {
            self.supervise().await?;
            let open = if late { self.pod_that_does_not_run().await } else { self.leftovers().await };
            let Some(open) = open else { return Ok(()) };
            if Instant::now() > end {
                let why = match &self.agent {
                    Some((handle, _)) => handle.pod_reports().await,
                    None => None,
                };
                return Err(format!("K8: after {BOUND:?} without faults, {open}; the agent says {why:?}"));
            }
            sleep(Duration::from_secs(5)).await;
        }
    }

    async fn check_violations(&self) -> Result<(), String> {
        let inner = self.host.lock().await;
        if let Some(violation) = &inner.check.violation {
            return Err(format!("{}: {}", violation.invariant, violation.message));
        }
        let steps = self.host.steps.load(Ordering::Relaxed);
        if steps > STORM { Err(format!("K10: {steps} steps: a storm")) } else { Ok(()) }
    }
}

/// Nothing of the pod can fail for ever, exit by itself or be missing.
fn must_run(world: &World, view: &PodView) -> bool {
    if is_extreme(&view.uid) {
        return false;
    }
    let script = |name: &str| world.scripts.get(&(view.uid.clone(), name.to_owned()));
    let image = |name: Option<&str>| {
        world
            .images
            .known
            .get(name.unwrap_or_default())
            .is_some_and(|i| i.present && i.pullable_from == Some(0))
    };
    let shared = |claim: &str| world.storage.taken_from(&view.uid, claim);
    let stays = |c: &model::k8s::Container| {
        image(c.image.as_deref())
            && script(&c.name).is_some_and(|s| s.life == Lifetime::Forever && s.restart_all_exits == 0)
    };
    let passes = |c: &model::k8s::Container| match is_sidecar(c) {
        true => stays(c) && c.startup_probe.is_none(),
        false => {
            image(c.image.as_deref())
                && script(&c.name).is_some_and(|s| matches!(s.life, Lifetime::Ends { code: 0, .. }))
        }
    };
    let simple = |c: &model::k8s::Container| {
        c.liveness_probe.is_none() && c.startup_probe.is_none() && c.restart_policy_rules.is_none()
    };
    !is_rejected(&view.pod)
        && !is_unmountable(&view.pod)
        && !claims_of(&view.pod).any(|(_, claim)| shared(claim))
        && !view.is_deleting()
        && view.spec().active_deadline_seconds.is_none()
        && view.restart_policy() == RestartPolicy::Always
        && view.containers().iter().all(|c| stays(c) && simple(c))
        && view.init_containers().iter().all(passes)
}

async fn run_seed(seed: u64, profile: Profile) -> Result<u64, String> {
    let mut rng = Rng::new(seed);
    let Scenario { workload, faults, during, .. } = Scenario::seeded(&mut rng, profile);
    let mut world = World::new();
    world.images = workload.images;
    let dies: Vec<u64> = (0..rng.below(3)).map(|_| rng.below(during)).collect();
    let mut steps: Vec<(u64, Option<Task>)> =
        workload.tasks.into_iter().map(|(at, t)| (at, Some(t))).collect();
    steps.extend(dies.into_iter().map(|at| (at, None)));
    steps.sort_by_key(|(at, _)| *at);
    let mut run = Run {
        host: Host::new(world, rng, faults),
        config: workload.config,
        facts: workload.facts,
        sets: Sets::new(),
        agent: None,
        engine: None,
        panics: 0,
    };
    let began = Instant::now();
    run.start_agent().await;
    for (at, step) in steps {
        sleep_until(began + Duration::from_nanos(at)).await;
        run.supervise().await?;
        match step {
            Some(task) => run.perform(task).await,
            None => {
                run.kill_agent().await;
                sleep(Duration::from_millis(300)).await;
                run.start_agent().await;
            }
        }
    }
    sleep_until(began + Duration::from_nanos(during)).await;
    run.settle(true).await?;
    run.check_violations().await?;
    let sources = run.config.sources.clone();
    run.sets.clear();
    let names: Vec<String> = run.host.lock().await.objects.keys().cloned().collect();
    for name in names {
        cluster::remove(&mut *run.host.lock().await, &name);
    }
    for source in sources {
        run.deliver(source).await;
    }
    run.settle(false).await?;
    run.check_violations().await?;
    Ok(run.host.steps.load(Ordering::Relaxed))
}

fn seeds(range: std::ops::Range<u64>, profile: Profile) {
    let mut total = 0;
    for seed in range {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        match runtime.expect("a runtime").block_on(run_seed(seed, profile)) {
            Ok(steps) => total += steps,
            Err(problem) => panic!("seed {seed} of the engine: {problem}"),
        }
    }
    assert!(total > 0, "nothing was simulated");
    println!("{total} steps of the engine");
}

#[test]
fn the_engine_keeps_its_promises_first_half() {
    seeds(0..40, Profile::Short);
}

#[test]
fn the_engine_keeps_its_promises_second_half() {
    seeds(40..80, Profile::Short);
}

/// The statuses of one pod are always refused, too late or another pod's.
#[test]
fn the_engine_keeps_its_promises_beside_a_pod_without_statuses() {
    seeds(0..40, Profile::Refused);
}

/// The timers are the shipped ones: a pod may ask for a deadline beyond the reach of any of them.
#[test]
fn extreme_pods_stop_nobody() {
    seeds(0..60, Profile::Extreme);
}

/// The engine ends because of one pod again and again, until that pod is set aside.
#[test]
fn a_pod_over_which_steps_panic_stops_nobody_else() {
    seeds(0..40, Profile::Poisoned);
}

#[test]
fn the_engine_keeps_its_promises_about_volumes() {
    seeds(0..60, Profile::Storage);
}

#[test]
fn the_engine_keeps_its_promises_about_devices() {
    seeds(0..30, Profile::Devices);
}
