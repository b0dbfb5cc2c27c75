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

/// No call waits longer for its answer.
pub const DEADLINE: Duration = Duration::from_secs(120);

pub struct HostState {
    pub world: World,
    pub rng: Rng,
    pub faults: Faults,
    pub check: InvariantChecker,
    pub sandbox_configs: BTreeMap<SandboxId, SandboxConfig>,
    pub container_configs: BTreeMap<ContainerId, ContainerConfig>,
    /// What the API server has, by name.
    pub objects: BTreeMap<String, Arc<Pod>>,
    pub versions: u64,
    /// Of the agent that lives now.
    pub hints: Option<mpsc::UnboundedSender<Hint>>,
    pub feeds: BTreeMap<Source, mpsc::UnboundedSender<FeedNotice>>,
    pub drivers: super::storage::Drivers,
}

/// Shared by all agents of one run.
pub struct Host {
    began: Instant,
    inner: Mutex<HostState>,
    /// Counts changes of the world, for whoever waits for one.
    changed: watch::Sender<u64>,
    generation: AtomicU32,
    /// How many events the engines have taken.
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

    /// With its clock set right.
    pub async fn lock(&self) -> MutexGuard<'_, HostState> {
        let mut inner = self.inner.lock().await;
        inner.world.now = self.began.elapsed().as_nanos() as u64;
        inner
    }

    /// The agent that lives now is gone: nothing that it still does reaches anything.
    pub fn next_generation(&self) -> u32 {
        self.generation.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub fn wall(&self) -> model::Wall {
        model::Wall(sim::time::EPOCH.0 + self.began.elapsed().as_nanos() as i64)
    }

    /// Does something to the world, and lets it tell and go on by itself.
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
                // Nobody listens while no agent lives.
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

    /// Until `done` holds, or the time is over.
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

/// A program ends by itself. Boxed, because the end of one may be what lets another begin to end.
fn ends_later(host: Arc<Host>, wait: Duration, id: ContainerId, code: i32) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        sleep(wait).await;
        host.apply(|inner| inner.world.ends(&id, code)).await;
    })
}

/// How a call that was not obeyed is told by its port.
pub trait CallError: Sized {
    fn refused(message: String) -> Self;
    fn timed_out() -> Self;
}

/// The host as one agent reaches it.
#[derive(Clone)]
pub struct AgentConnection {
    pub host: Arc<Host>,
    pub generation: u32,
}

impl AgentConnection {
    /// Stops here for ever if the caller's agent is gone.
    pub async fn alive(&self) {
        if self.host.generation.load(Ordering::SeqCst) != self.generation {
            std::future::pending::<()>().await;
        }
    }

    /// One call on behalf of a pod: a hop, its effect, a hop back. `may_hang`: whether it ever takes its whole deadline.
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
                // What the call did is done; its caller is told otherwise.
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
