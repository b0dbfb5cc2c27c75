//! The simulated world behind the ports of a host, in paused time. Every call may be slow, refused, fail after its
//! effect or hang; a caller that is gone (its agent was killed) never hears anything again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use model::cri::{ContainerConfig, SandboxConfig};
use model::k8s::Pod;
use model::pod::Source;
use model::{ContainerId, PodUid, SandboxId};
use ports::{FeedNotice, Hint};
use sim::check::InvariantChecker;
use sim::faults::{CallBehavior, Faults, LateEffect};
use sim::rng::Rng;
use sim::world::{ProgramEvent, World, WorldChange};
use tokio::sync::{Mutex, MutexGuard, mpsc, watch};
use tokio::time::{Instant, sleep};

/// The longest time that a call waits for its answer.
pub const DEADLINE: Duration = Duration::from_secs(120);

pub struct HostState {
    pub world: World,
    pub rng: Rng,
    pub faults: Faults,
    pub check: InvariantChecker,
    pub sandbox_configs: BTreeMap<SandboxId, SandboxConfig>,
    pub container_configs: BTreeMap<ContainerId, ContainerConfig>,
    /// The objects of the API server, by name.
    pub objects: BTreeMap<String, Arc<Pod>>,
    pub versions: u64,
    /// The hints of the present agent.
    pub hints: Option<mpsc::UnboundedSender<Hint>>,
    pub feeds: BTreeMap<Source, mpsc::UnboundedSender<FeedNotice>>,
    pub drivers: super::storage::Drivers,
}

/// Shared by all agents of one run.
pub struct Host {
    began: Instant,
    inner: Mutex<HostState>,
    /// Counts changes of the world, for tasks that wait for one.
    changed: watch::Sender<u64>,
    generation: AtomicU32,
    /// How many events the engines have processed.
    pub steps: AtomicU64,
}

impl Host {
    pub fn new(world: World, rng: Rng, faults: Faults) -> Arc<Self> {
        let inner = HostState {
            world,
            rng,
            faults,
            check: InvariantChecker::default(),
            sandbox_configs: BTreeMap::new(),
            container_configs: BTreeMap::new(),
            objects: BTreeMap::new(),
            versions: 0,
            hints: None,
            feeds: BTreeMap::new(),
            drivers: Default::default(),
        };
        Arc::new(Self {
            began: Instant::now(),
            inner: Mutex::new(inner),
            changed: watch::Sender::new(0),
            generation: AtomicU32::new(0),
            steps: AtomicU64::new(0),
        })
    }

    /// The state, with its clock advanced to now.
    pub async fn lock(&self) -> MutexGuard<'_, HostState> {
        let mut inner = self.inner.lock().await;
        inner.world.now = self.began.elapsed().as_nanos() as u64;
        inner
    }

    /// The present agent has ended: its calls have no effect any more.
    pub fn next_generation(&self) -> u32 {
        self.generation.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub fn wall(&self) -> model::Wall {
        model::Wall(sim::time::EPOCH.0 + self.began.elapsed().as_nanos() as i64)
    }

    /// Changes the world, and starts what follows from that.
    pub async fn apply<T>(self: &Arc<Self>, change: impl FnOnce(&mut HostState) -> T) -> T {
        let mut inner = self.lock().await;
        let result = change(&mut inner);
        let changes = std::mem::take(&mut inner.world.changes);
        let HostState { check, world, .. } = &mut *inner;
        check.world_changed(world, &changes);
        for change in &changes {
            let now = inner.world.now;
            let HostState { faults, rng, .. } = &mut *inner;
            if faults.loses_hint(rng, now) {
                continue;
            }
            let hint = match change {
                WorldChange::Images => Hint::Images,
                WorldChange::Runtime { id, .. } => Hint::ContainerOrSandbox(id.clone()),
            };
            if let Some(hints) = &inner.hints {
                // Sending fails while no agent runs, which is fine.
                let _ = hints.send(hint);
            }
        }
        for (at, ProgramEvent::Ends { id, code }) in std::mem::take(&mut inner.world.program_events) {
            let (host, wait) = (self.clone(), Duration::from_nanos(at.saturating_sub(inner.world.now)));
            tokio::spawn(ends_later(host, wait, id, code));
        }
        if !changes.is_empty() {
            self.changed.send_modify(|count| *count += 1);
        }
        result
    }

    /// Waits until `done` holds, or the time is over.
    pub async fn wait_until(&self, within: Duration, done: impl Fn(&World) -> bool) -> bool {
        let mut changed = self.changed.subscribe();
        let look = async {
            loop {
                if done(&self.lock().await.world) {
                    return;
                }
                if changed.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::time::timeout(within, look).await.is_ok()
    }
}

/// A program exits by itself. Boxed, because `apply` spawns this future again (recursion).
fn ends_later(host: Arc<Host>, wait: Duration, id: ContainerId, code: i32) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        sleep(wait).await;
        host.apply(|inner| inner.world.ends(&id, code)).await;
    })
}

/// How a port reports a call that was refused.
pub trait CallError: Sized {
    fn refused(message: String) -> Self;
    fn timed_out() -> Self;
}

/// The host as one agent uses it.
#[derive(Clone)]
pub struct AgentConnection {
    pub host: Arc<Host>,
    pub generation: u32,
}

impl AgentConnection {
    /// Waits for ever if the caller's agent has ended.
    pub async fn alive(&self) {
        if self.host.generation.load(Ordering::SeqCst) != self.generation {
            std::future::pending::<()>().await;
        }
    }

    /// One call for a pod: a delay, its effect, a delay. `may_hang`: whether it may take its whole deadline.
    pub async fn call<T, E: CallError>(
        &self,
        uid: &PodUid,
        may_hang: bool,
        effect: impl FnOnce(&mut HostState) -> Result<T, E>,
    ) -> Result<T, E> {
        self.alive().await;
        let (fate, there, back, late) = {
            let mut inner = self.host.lock().await;
            let now = inner.world.now;
            let HostState { faults, rng, .. } = &mut *inner;
            let fate = faults.call(rng, now, uid, may_hang);
            let hop = |rng: &mut Rng| Duration::from_nanos(faults.latency(rng, now));
            (fate, hop(rng), hop(rng), Duration::from_nanos(rng.below(DEADLINE.as_nanos() as u64)))
        };
        sleep(there).await;
        self.alive().await;
        let result = match fate {
            CallBehavior::Works => self.host.apply(effect).await,
            CallBehavior::Refused => Err(E::refused("simulated refusal".into())),
            CallBehavior::AppliedButFails => {
                // The call had its effect, but its caller gets an error.
                let _ = self.host.apply(effect).await;
                Err(E::refused("simulated failure after the effect".into()))
            }
            CallBehavior::Hangs { effect: when } => {
                if when == Some(LateEffect::BeforeDeadline) {
                    sleep(late).await;
                    self.alive().await;
                    let _ = self.host.apply(effect).await;
                    sleep(DEADLINE.saturating_sub(late)).await;
                } else {
                    sleep(DEADLINE).await;
                }
                Err(E::timed_out())
            }
        };
        sleep(back).await;
        self.alive().await;
        result
    }
}
