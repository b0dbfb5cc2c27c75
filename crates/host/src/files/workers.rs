//! Runs file-system work for volumes on dedicated threads, because a server that does not answer blocks the calling
//! thread for ever.
//!
//! ```text
//!   request ──> lock of the volume ──> shared locks and a thread of the pod ──> thread ──> done
//!                    │                            │                               │ no progress for STALL_TIMEOUT
//!                    └────────────────────────────┴─────> Hung <──────────────────┘
//!                    (the work in front makes no progress)    (the thread goes on and keeps its locks)
//! ```
//! A server that does not answer blocks the thread that touches its files, for ever and beyond any signal. So each
//! piece of work has its own thread, each pod has a bounded number of threads, and work on one volume is serialized: a
//! second attempt does not start before the first has ended. A disk or host directory that several pods use has its own
//! lock. A pod that waits for one of its own threads does not hold that lock. When the work in front makes no progress,
//! callers get [`FilesError::Hung`] and retry later. Slow work that makes progress (a million files, a disk being
//! formatted) is waited for, also by the work behind it: its steps are counted ([`super::steps`]). Long work stops when
//! its caller is gone.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use model::PodUid;
use ports::FilesError;
use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore, oneshot};

use super::steps::WorkProgress;
use super::volume_notices::VolumeNoticeSender;

/// The time that upstream gives a volume. No local operation takes nearly as long.
const STALL_TIMEOUT: Duration = Duration::from_secs(120);
/// Concurrent threads of one owner. Work on the whole pod takes all of them.
const THREADS_PER_OWNER: u32 = 4;

/// Owners whose threads are counted separately.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum WorkOwner {
    Pod(PodUid),
    /// An object of the node, by name.
    Node(String),
}

impl From<&PodUid> for WorkOwner {
    fn from(uid: &PodUid) -> Self {
        WorkOwner::Pod(uid.clone())
    }
}

/// What the work is about, and so with which other work it may run.
#[derive(Clone, Copy, Debug)]
pub enum WorkScope<'a> {
    Volume(&'a str),
    /// One container's files. They are locked like a volume.
    Container(&'a str),
    /// Read-only, one at a time. Stops when other work on the whole pod is waiting.
    Measuring,
    /// Reads records on the node's own disk, which cannot hang.
    ReadingRecords,
    /// Excludes all other work on the pod.
    Pod,
}

impl WorkScope<'_> {
    fn lock_name(&self) -> Option<String> {
        match self {
            WorkScope::Volume(name) => Some(format!("volume {name}")),
            WorkScope::Container(name) => Some(format!("container {name}")),
            WorkScope::Measuring => Some("measuring".to_owned()),
            WorkScope::ReadingRecords | WorkScope::Pod => None,
        }
    }

    fn permits(&self) -> u32 {
        match self {
            WorkScope::Pod => THREADS_PER_OWNER,
            _ => 1,
        }
    }
}

/// A lock, and the progress of the work that holds it.
#[derive(Clone, Debug, Default)]
struct SerialLock {
    lock: Arc<Mutex<()>>,
    activity: WorkProgress,
}

#[derive(Clone, Debug, Default)]
struct SerialLocks(Arc<Mutex<BTreeMap<String, SerialLock>>>);

impl SerialLocks {
    async fn of(&self, name: &str) -> SerialLock {
        let mut turns = self.0.lock().await;
        // Unused locks can be dropped.
        turns.retain(|_, turn| Arc::strong_count(&turn.lock) > 1);
        turns.entry(name.to_owned()).or_default().clone()
    }
}

#[derive(Debug)]
struct OwnerWorkers {
    places: Arc<Semaphore>,
    turns: SerialLocks,
    activity: WorkProgress,
    /// How many callers wait for the whole pod. Measurements stop for them.
    whole_pod_requests: Arc<AtomicUsize>,
}

/// Counts while a caller waits for the whole pod or works on it.
struct WholePodRequest(Arc<AtomicUsize>);

impl WholePodRequest {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for WholePodRequest {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Clone, Debug)]
pub struct VolumeWorkers {
    stall_timeout: Duration,
    owners: Arc<Mutex<BTreeMap<WorkOwner, Arc<OwnerWorkers>>>>,
    /// Locks of disks and directories that several pods may use, by name.
    shared: SerialLocks,
    sender: Option<VolumeNoticeSender>,
}

/// Held by the thread until its work has ended, even if its caller left long ago.
struct WorkPermit {
    // Dropped first, so that the map can drop an owner without work: the caller that gets the thread next may be its
    // last.
    _own: Arc<OwnerWorkers>,
    _places: OwnedSemaphorePermit,
    _turns: Vec<OwnedMutexGuard<()>>,
    pulse: WorkProgress,
}

impl VolumeWorkers {
    pub fn new() -> Self {
        Self::with_stall_timeout(STALL_TIMEOUT)
    }

    pub fn with_stall_timeout(quiet: Duration) -> Self {
        Self { stall_timeout: quiet, owners: Arc::default(), shared: SerialLocks::default(), sender: None }
    }

    /// Sends notices about the work there.
    pub fn reporting_to(self, teller: VolumeNoticeSender) -> Self {
        Self { sender: Some(teller), ..self }
    }

    /// Runs `work` after earlier work in the same scope has ended. `what` names it in errors.
    pub async fn run<T: Send + 'static>(
        &self,
        owner: impl Into<WorkOwner>,
        lane: WorkScope<'_>,
        what: String,
        work: impl FnOnce(&WorkProgress) -> Result<T, FilesError> + Send + 'static,
    ) -> Result<T, FilesError> {
        self.run_on(owner, lane, &[], what, work).await
    }

    /// The same for work on resources that other pods may use too. Callers must list several resources in the same
    /// order.
    pub async fn run_on<T: Send + 'static>(
        &self,
        owner: impl Into<WorkOwner>,
        lane: WorkScope<'_>,
        shared: &[String],
        what: String,
        work: impl FnOnce(&WorkProgress) -> Result<T, FilesError> + Send + 'static,
    ) -> Result<T, FilesError> {
        let place = self.acquire_permit(owner.into(), lane, shared, &what).await?;
        let pulse = place.pulse.clone();
        let _waits = pulse.waiter_guard();
        let (told, answer) = oneshot::channel();
        let counted = pulse.clone();
        let thread = move || {
            let result = counted.count_steps_of(|| work(&counted));
            drop(place);
            // The caller may be gone when the work took too long.
            let _ = told.send(result);
        };
        if let Err(source) = std::thread::Builder::new().name("volume".into()).spawn(thread) {
            return Err(FilesError::Io { operation: "make a thread for", path: what, source });
        }
        match self.wait_while_progressing(&pulse, &what, answer).await? {
            Ok(result) => result,
            Err(_) => Err(FilesError::Panicked { what }),
        }
    }

    /// Returns when earlier work in this scope has ended, so that it no longer touches the files.
    pub async fn wait_until_idle(
        &self,
        owner: impl Into<WorkOwner>,
        lane: WorkScope<'_>,
        what: &str,
    ) -> Result<(), FilesError> {
        self.acquire_permit(owner.into(), lane, &[], what).await.map(drop)
    }

    async fn acquire_permit(
        &self,
        owner: WorkOwner,
        lane: WorkScope<'_>,
        shared: &[String],
        what: &str,
    ) -> Result<WorkPermit, FilesError> {
        let own = self.own(&owner).await;
        let _asks = matches!(lane, WorkScope::Pod).then(|| WholePodRequest::new(&own.whole_pod_requests));
        let mut turns = Vec::new();
        let mut activities = vec![own.activity.clone()];
        if let Some(name) = lane.lock_name() {
            let turn = own.turns.of(&name).await;
            turns.push(
                self.wait_while_progressing(&turn.activity, what, turn.lock.clone().lock_owned()).await?,
            );
            activities.push(turn.activity);
        }
        let mut others = Vec::new();
        for name in shared {
            others.push((name.as_str(), self.shared.of(name).await));
        }
        activities.extend(others.iter().map(|(_, turn)| turn.activity.clone()));
        let (places, guards) =
            self.acquire_threads_and_shared_locks(&own, lane.permits(), &others, what).await?;
        turns.extend(guards);
        let pulse = WorkProgress::forwarding_to(activities);
        let pulse = match lane {
            WorkScope::Measuring => pulse.yielding_to(&own.whole_pod_requests),
            _ => pulse,
        };
        let pulse = match &owner {
            WorkOwner::Pod(uid) => pulse.reporting_to(uid, self.sender.clone()),
            WorkOwner::Node(_) => pulse,
        };
        Ok(WorkPermit { _places: places, _turns: turns, _own: own, pulse })
    }

    /// Takes threads of the pod and the shared locks, and holds neither while it waits for the other. Otherwise a hang
    /// in this pod would block other pods, and a hang elsewhere would block this pod's other volumes.
    async fn acquire_threads_and_shared_locks(
        &self,
        own: &OwnerWorkers,
        count: u32,
        others: &[(&str, SerialLock)],
        what: &str,
    ) -> Result<(OwnedSemaphorePermit, Vec<OwnedMutexGuard<()>>), FilesError> {
        loop {
            let places = own.places.clone().acquire_many_owned(count);
            let places = self.wait_while_progressing(&own.activity, what, places).await?;
            // The semaphore is never closed.
            let places = places.map_err(|_| FilesError::Panicked { what: what.to_owned() })?;
            let free = others.iter().map(|(_, turn)| turn.lock.clone().try_lock_owned());
            if let Ok(guards) = free.collect::<Result<Vec<_>, _>>() {
                return Ok((places, guards));
            }
            drop(places);
            let mut guards = Vec::new();
            for (name, turn) in others {
                let what = format!("other work on {name}, for which {what} waits,");
                guards.push(
                    self.wait_while_progressing(&turn.activity, &what, turn.lock.clone().lock_owned())
                        .await?,
                );
            }
            if let Ok(places) = own.places.clone().try_acquire_many_owned(count) {
                return Ok((places, guards));
            }
        }
    }

    /// Waits as long as there is progress.
    async fn wait_while_progressing<T>(
        &self,
        activity: &WorkProgress,
        what: &str,
        waiting: impl Future<Output = T>,
    ) -> Result<T, FilesError> {
        let mut waiting = pin!(waiting);
        let mut seen = activity.steps_taken();
        loop {
            match tokio::time::timeout(self.stall_timeout, &mut waiting).await {
                Ok(value) => return Ok(value),
                Err(_) if activity.steps_taken() != seen => seen = activity.steps_taken(),
                Err(_) => {
                    return Err(FilesError::Hung {
                        what: what.to_owned(),
                        stall_timeout: self.stall_timeout,
                    });
                }
            }
        }
    }

    async fn own(&self, owner: &WorkOwner) -> Arc<OwnerWorkers> {
        let mut owners = self.owners.lock().await;
        // Owners without work can be dropped.
        owners.retain(|_, own| Arc::strong_count(own) > 1);
        let made = || {
            let places = Arc::new(Semaphore::new(THREADS_PER_OWNER as usize));
            Arc::new(OwnerWorkers {
                places,
                turns: SerialLocks::default(),
                activity: WorkProgress::default(),
                whole_pod_requests: Arc::default(),
            })
        };
        owners.entry(owner.clone()).or_insert_with(made).clone()
    }
}

#[cfg(test)]
mod tests;
