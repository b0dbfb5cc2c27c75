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
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    fn uid(name: &str) -> PodUid {
        PodUid::new(name)
    }

    fn lanes() -> VolumeWorkers {
        VolumeWorkers::with_stall_timeout(Duration::from_secs(3))
    }

    /// Work that does not end before the sender is dropped.
    fn stuck(gate: Receiver<()>) -> impl FnOnce(&WorkProgress) -> Result<(), FilesError> + Send + 'static {
        move |_| {
            let _ = gate.recv();
            Ok(())
        }
    }

    async fn quick(lanes: &VolumeWorkers, pod: &str, lane: WorkScope<'_>) -> Result<u32, FilesError> {
        lanes.run(&uid(pod), lane, "quick work".into(), |_| Ok(7)).await
    }

    #[tokio::test]
    async fn what_hangs_keeps_its_volume_and_nothing_else() {
        let lanes = lanes();
        let (hold, gate) = channel();
        let first = lanes.run(&uid("a"), WorkScope::Volume("v"), "setting up v".into(), stuck(gate)).await;
        let error = first.unwrap_err();
        assert!(matches!(error, FilesError::Hung { .. }), "{error:?}");
        assert!(error.to_string().starts_with("setting up v made no progress for"), "{error}");
        assert_eq!(quick(&lanes, "a", WorkScope::Volume("other")).await.unwrap(), 7);
        assert_eq!(quick(&lanes, "b", WorkScope::Volume("v")).await.unwrap(), 7);
        assert_eq!(quick(&lanes, "b", WorkScope::Pod).await.unwrap(), 7);
        let (volume, pod) =
            tokio::join!(quick(&lanes, "a", WorkScope::Volume("v")), quick(&lanes, "a", WorkScope::Pod));
        for result in [volume, pod] {
            assert!(
                matches!(result, Err(FilesError::Hung { .. })),
                "not while the first is at it: {result:?}"
            );
        }
        drop(hold);
        // The waiting caller runs as soon as the work has ended.
        assert_eq!(quick(&lanes, "a", WorkScope::Volume("v")).await.unwrap(), 7);
        assert_eq!(quick(&lanes, "a", WorkScope::Pod).await.unwrap(), 7);
        assert_eq!(quick(&lanes, "c", WorkScope::Pod).await.unwrap(), 7);
        assert_eq!(lanes.owners.lock().await.len(), 1, "the others are forgotten");
    }

    #[tokio::test]
    async fn a_pod_that_hangs_everywhere_takes_its_own_places_only() {
        let lanes = lanes();
        let mut held = Vec::new();
        let names: Vec<String> = (0..THREADS_PER_OWNER).map(|n| format!("v{n}")).collect();
        let bad = uid("bad");
        let stuck = names.iter().map(|name| {
            let (hold, gate) = channel();
            held.push(hold);
            lanes.run(&bad, WorkScope::Volume(name), "a dead server".into(), stuck(gate))
        });
        for result in futures::future::join_all(stuck.collect::<Vec<_>>()).await {
            assert!(matches!(result, Err(FilesError::Hung { .. })));
        }
        assert!(matches!(
            quick(&lanes, "bad", WorkScope::Volume("one more")).await,
            Err(FilesError::Hung { .. })
        ));
        let others = (0..100).map(|n| {
            let (lanes, pod) = (lanes.clone(), format!("good-{n}"));
            async move { quick(&lanes, &pod, WorkScope::Volume("v")).await }
        });
        assert!(futures::future::join_all(others).await.into_iter().all(|result| result.is_ok()));
    }

    #[tokio::test]
    async fn slow_work_that_goes_on_is_waited_for() {
        let lanes = VolumeWorkers::with_stall_timeout(Duration::from_secs(2));
        let (hold, gate) = channel::<()>();
        let work = move |pulse: &WorkProgress| {
            for _ in 0..10 {
                pulse.record_step();
                let _ = gate.recv_timeout(Duration::from_millis(400));
            }
            Ok(pulse.steps_taken())
        };
        let done = lanes.run(&uid("a"), WorkScope::Volume("v"), "a long walk".into(), work).await;
        assert_eq!(done.unwrap(), 10);
        drop(hold);
    }

    /// Deleting a pod does not wait for the end of a walk over a million files.
    #[tokio::test]
    async fn measuring_gives_way_to_work_on_the_whole_pod() {
        let lanes = lanes();
        let (begun, begins) = tokio::sync::oneshot::channel();
        let endless = move |pulse: &WorkProgress| {
            let _ = begun.send(());
            while !pulse.is_cancelled() {
                pulse.record_step();
                std::thread::yield_now();
            }
            Ok(())
        };
        let pod = uid("a");
        let measuring = lanes.run(&pod, WorkScope::Measuring, "measuring".into(), endless);
        let removing = async {
            begins.await.unwrap();
            quick(&lanes, "a", WorkScope::Volume("v")).await.unwrap();
            quick(&lanes, "a", WorkScope::Pod).await
        };
        let both = async { tokio::join!(measuring, removing) };
        let (measured, removed) = tokio::time::timeout(Duration::from_secs(60), both).await.expect("no end");
        assert_eq!((measured.unwrap(), removed.unwrap()), ((), 7));
        assert_eq!(
            quick(&lanes, "a", WorkScope::Measuring).await.unwrap(),
            7,
            "a later one is not told to end"
        );
    }

    /// Waiting for slow work is not a hang: while one pod's disk is formatted, another pod that waits for it gets no
    /// error.
    #[tokio::test]
    async fn those_behind_slow_work_wait_for_it() {
        let lanes = VolumeWorkers::with_stall_timeout(Duration::from_secs(2));
        let disk = ["the disk".to_owned()];
        let (hold, gate) = channel::<()>();
        let slow = move |pulse: &WorkProgress| {
            for _ in 0..10 {
                pulse.record_step();
                let _ = gate.recv_timeout(Duration::from_millis(400));
            }
            Ok(1)
        };
        let (first, second) = (uid("first"), uid("second"));
        let slow = lanes.run_on(&first, WorkScope::Volume("v"), &disk, "formatting".into(), slow);
        let quick = lanes.run_on(&second, WorkScope::Volume("v"), &disk, "mounting".into(), |_| Ok(2));
        let (slow, quick) = tokio::join!(slow, quick);
        assert_eq!((slow.unwrap(), quick.unwrap()), (1, 2));
        drop(hold);
    }

    #[tokio::test]
    async fn what_pods_share_is_worked_on_by_one_at_a_time() {
        let lanes = lanes();
        let (disk, other) = (["disk 7:0".to_owned()], ["disk 7:1".to_owned()]);
        let (hold, gate) = channel();
        let hung =
            lanes.run_on(&uid("a"), WorkScope::Volume("v"), &disk, "mounting v".into(), stuck(gate)).await;
        assert!(matches!(hung, Err(FilesError::Hung { .. })), "{hung:?}");
        let b = uid("b");
        let quick = |disks: &'static str| {
            let disks = if disks == "same" { &disk } else { &other };
            lanes.run_on(&b, WorkScope::Volume("v"), disks, "mounting v".into(), |_| Ok(7))
        };
        let error = quick("same").await.unwrap_err().to_string();
        assert!(
            error.starts_with("other work on disk 7:0, for which mounting v waits, made no progress"),
            "{error}"
        );
        assert_eq!(quick("another").await.unwrap(), 7);
        drop(hold);
        assert_eq!(quick("same").await.unwrap(), 7);
    }

    /// A pod whose every thread hangs does not hold the lock of a disk.
    #[tokio::test]
    async fn who_waits_for_a_place_keeps_no_turn_at_what_pods_share() {
        let lanes = VolumeWorkers::with_stall_timeout(Duration::from_secs(600));
        let mut held = Vec::new();
        let mut bad: Vec<_> = (0..THREADS_PER_OWNER)
            .map(|n| {
                let (hold, gate) = channel();
                held.push(hold);
                let lanes = lanes.clone();
                tokio::spawn(async move {
                    lanes
                        .run(
                            &uid("bad"),
                            WorkScope::Volume(&format!("v{n}")),
                            "a dead server".into(),
                            stuck(gate),
                        )
                        .await
                })
            })
            .collect();
        settle().await;
        let other = lanes.clone();
        bad.push(tokio::spawn(async move {
            let disk = ["disk 7:0".to_owned()];
            other.run_on(&uid("bad"), WorkScope::Volume("disk"), &disk, "mounting".into(), |_| Ok(())).await
        }));
        settle().await;
        let disk = ["disk 7:0".to_owned()];
        let good =
            lanes.run_on(&uid("good"), WorkScope::Volume("v"), &disk, "mounting".into(), |_| Ok(7)).await;
        assert_eq!(good.unwrap(), 7);
        assert!(bad.iter().all(|work| !work.is_finished()));
        drop(held);
        for work in bad {
            work.await.unwrap().unwrap();
        }
    }

    /// If a shared disk hangs, a pod that waits for it can still use its other volumes.
    #[tokio::test]
    async fn who_waits_for_a_shared_turn_keeps_no_place() {
        let lanes = VolumeWorkers::with_stall_timeout(Duration::from_secs(600));
        let (hold, gate) = channel();
        let disk = || ["disk 7:0".to_owned()];
        let other = lanes.clone();
        let first = tokio::spawn(async move {
            other.run_on(&uid("a"), WorkScope::Volume("v"), &disk(), "mounting".into(), stuck(gate)).await
        });
        settle().await;
        let waiting: Vec<_> = (0..2 * THREADS_PER_OWNER)
            .map(|n| {
                let lanes = lanes.clone();
                tokio::spawn(async move {
                    let name = format!("v{n}");
                    lanes
                        .run_on(&uid("b"), WorkScope::Volume(&name), &disk(), "mounting".into(), |_| Ok(()))
                        .await
                })
            })
            .collect();
        settle().await;
        assert_eq!(quick(&lanes, "b", WorkScope::Volume("other")).await.unwrap(), 7);
        assert!(waiting.iter().all(|work| !work.is_finished()));
        drop(hold);
        first.await.unwrap().unwrap();
        for work in waiting {
            work.await.unwrap().unwrap();
        }
    }

    /// Runs until every task waits. All of them are on this thread.
    async fn settle() {
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn work_learns_that_nobody_waits_for_it() {
        let lanes = lanes();
        let (hold, gate) = channel::<()>();
        let (ended, end) = oneshot::channel();
        let work = move |pulse: &WorkProgress| {
            while !pulse.is_cancelled() {
                pulse.record_step();
                let _ = gate.recv_timeout(Duration::from_millis(5));
            }
            let _ = ended.send(());
            Ok(())
        };
        let pod = uid("a");
        let walk = lanes.run(&pod, WorkScope::Volume("v"), "a walk".into(), work);
        assert!(tokio::time::timeout(Duration::from_millis(200), walk).await.is_err(), "it goes on");
        lanes.wait_until_idle(&pod, WorkScope::Volume("v"), "the walk").await.unwrap();
        end.await.unwrap();
        drop(hold);
    }

    #[tokio::test]
    async fn rest_comes_when_what_hangs_has_ended() {
        let lanes = lanes();
        let (hold, gate) = channel();
        let pod = uid("a");
        let hung = lanes.run(&pod, WorkScope::Volume("v"), "a walk".into(), stuck(gate)).await;
        assert!(matches!(hung, Err(FilesError::Hung { .. })), "{hung:?}");
        let error = lanes
            .wait_until_idle(&pod, WorkScope::Volume("v"), "earlier work")
            .await
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("earlier work made no progress for"), "{error}");
        lanes.wait_until_idle(&pod, WorkScope::Volume("other"), "earlier work").await.unwrap();
        drop(hold);
        lanes.wait_until_idle(&pod, WorkScope::Volume("v"), "earlier work").await.unwrap();
    }

    #[tokio::test]
    async fn a_panic_is_told_and_frees_the_place() {
        let lanes = lanes();
        let work =
            |_: &WorkProgress| -> Result<(), FilesError> { std::panic::resume_unwind(Box::new("a bug")) };
        let error = lanes.run(&uid("a"), WorkScope::Pod, "work".into(), work).await.unwrap_err();
        assert!(matches!(error, FilesError::Panicked { .. }), "{error:?}");
        assert_eq!(quick(&lanes, "a", WorkScope::Pod).await.unwrap(), 7);
    }
}
