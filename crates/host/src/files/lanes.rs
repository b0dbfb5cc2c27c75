//! Where work on the volumes of pods is done: threads of its own, which can be left behind.
//!
//! ```text
//!   asked ──> turn at the volume ──> turn at what pods share ──> a place of the pod ──> thread ──> done
//!                    │                        │                        │                  │ no step for QUIET
//!                    └────────────────────────┴──────> Hangs <─────────┴──────────────────┘
//!                       (who is before it takes no step)    (the thread lives on and keeps its turns)
//! ```
//! A server that does not answer blocks whoever touches its files, for ever and beyond any signal. So each piece of work
//! has a thread, each pod a bounded number of them, and each volume one at a time: a second try does not begin before
//! the first has ended. What several pods may have (a disk, a directory of the node) has turns of its own, whoever
//! comes. Who waits is told after a while that it hangs, and tries again later. Work that is slow but goes on (a million
//! files, a disk being formatted) is waited for, by those behind it too: its steps tell ([`super::steps`]).

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use model::PodUid;
use ports::FilesError;
use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore, oneshot};

use super::news::Teller;
use super::steps::Pulse;

/// As long as the kubelet gives a volume; nothing local takes a part of it.
const QUIET: Duration = Duration::from_secs(120);
/// Threads of one pod at once. Work on the pod as a whole takes all of them.
const PLACES: u32 = 4;

/// What the work is about.
#[derive(Clone, Copy, Debug)]
pub enum Lane<'a> {
    Volume(&'a str),
    /// One container's files: a part of the pod like a volume, but not one.
    Container(&'a str),
    /// Looks only; one at a time.
    Measuring,
    /// Nothing else of the pod is worked on meanwhile.
    Pod,
}

impl Lane<'_> {
    fn turn(&self) -> Option<String> {
        match self {
            Lane::Volume(name) => Some(format!("volume {name}")),
            Lane::Container(name) => Some(format!("container {name}")),
            Lane::Measuring => Some("measuring".to_owned()),
            Lane::Pod => None,
        }
    }

    fn places(&self) -> u32 {
        match self {
            Lane::Pod => PLACES,
            _ => 1,
        }
    }
}

/// One after the other; and whether the one whose turn it is gets on.
#[derive(Clone, Debug, Default)]
struct Turn {
    lock: Arc<Mutex<()>>,
    activity: Pulse,
}

#[derive(Clone, Debug, Default)]
struct Turns(Arc<Mutex<BTreeMap<String, Turn>>>);

impl Turns {
    async fn of(&self, name: &str) -> Turn {
        let mut turns = self.0.lock().await;
        // Those that nobody uses have nothing to remember.
        turns.retain(|_, turn| Arc::strong_count(&turn.lock) > 1);
        turns.entry(name.to_owned()).or_default().clone()
    }
}

#[derive(Debug)]
struct PodLanes {
    places: Arc<Semaphore>,
    turns: Turns,
    activity: Pulse,
}

#[derive(Clone, Debug)]
pub struct Lanes {
    quiet: Duration,
    pods: Arc<Mutex<BTreeMap<PodUid, Arc<PodLanes>>>>,
    /// By names of what pods may share.
    shared: Turns,
    teller: Option<Teller>,
}

/// Held by the thread until its work has ended, however long ago its customer left.
struct Place {
    // First: who gets the place next may be the last to use the pod's lanes.
    _pod: Arc<PodLanes>,
    _places: OwnedSemaphorePermit,
    _turns: Vec<OwnedMutexGuard<()>>,
    pulse: Pulse,
}

impl Lanes {
    pub fn new() -> Self {
        Self::with_quiet(QUIET)
    }

    pub fn with_quiet(quiet: Duration) -> Self {
        Self { quiet, pods: Arc::default(), shared: Turns::default(), teller: None }
    }

    /// What the work has to say goes there.
    pub fn telling(self, teller: Teller) -> Self {
        Self { teller: Some(teller), ..self }
    }

    /// Does `work`, once those before it have ended. `what` names it where it hangs.
    pub async fn run<T: Send + 'static>(
        &self,
        uid: &PodUid,
        lane: Lane<'_>,
        what: String,
        work: impl FnOnce(&Pulse) -> Result<T, FilesError> + Send + 'static,
    ) -> Result<T, FilesError> {
        self.run_on(uid, lane, &[], what, work).await
    }

    /// The same for work on things that other pods may work on as well. Who names several names them in one order.
    pub async fn run_on<T: Send + 'static>(
        &self,
        uid: &PodUid,
        lane: Lane<'_>,
        shared: &[String],
        what: String,
        work: impl FnOnce(&Pulse) -> Result<T, FilesError> + Send + 'static,
    ) -> Result<T, FilesError> {
        let place = self.take_place(uid, lane, shared, &what).await?;
        let pulse = place.pulse.clone();
        let (told, answer) = oneshot::channel();
        let counted = pulse.clone();
        let thread = move || {
            let result = counted.during(|| work(&counted));
            drop(place);
            // Nobody waits any more when it took too long.
            let _ = told.send(result);
        };
        if let Err(source) = std::thread::Builder::new().name("volume".into()).spawn(thread) {
            return Err(FilesError::Io { operation: "make a thread for", path: what, source });
        }
        match self.patiently(&pulse, &what, answer).await? {
            Ok(result) => result,
            Err(_) => Err(FilesError::Broken { what }),
        }
    }

    async fn take_place(
        &self,
        uid: &PodUid,
        lane: Lane<'_>,
        shared: &[String],
        what: &str,
    ) -> Result<Place, FilesError> {
        let pod = self.pod(uid).await;
        let mut turns = Vec::new();
        let mut activities = vec![pod.activity.clone()];
        if let Some(name) = lane.turn() {
            let turn = pod.turns.of(&name).await;
            turns.push(self.patiently(&turn.activity, what, turn.lock.clone().lock_owned()).await?);
            activities.push(turn.activity);
        }
        for name in shared {
            let turn = self.shared.of(name).await;
            let what = format!("other work on {name}, for which {what} waits,");
            turns.push(self.patiently(&turn.activity, &what, turn.lock.clone().lock_owned()).await?);
            activities.push(turn.activity);
        }
        let places = pod.places.clone().acquire_many_owned(lane.places());
        let places = self.patiently(&pod.activity, what, places).await?;
        // It is never closed.
        let places = places.map_err(|_| FilesError::Broken { what: what.to_owned() })?;
        let pulse = Pulse::heard_by(activities).telling(uid, self.teller.clone());
        Ok(Place { _places: places, _turns: turns, _pod: pod, pulse })
    }

    /// Waits as long as something goes on.
    async fn patiently<T>(
        &self,
        activity: &Pulse,
        what: &str,
        waiting: impl Future<Output = T>,
    ) -> Result<T, FilesError> {
        let mut waiting = pin!(waiting);
        let mut seen = activity.beats();
        loop {
            match tokio::time::timeout(self.quiet, &mut waiting).await {
                Ok(value) => return Ok(value),
                Err(_) if activity.beats() != seen => seen = activity.beats(),
                Err(_) => return Err(FilesError::Hangs { what: what.to_owned(), quiet: self.quiet }),
            }
        }
    }

    async fn pod(&self, uid: &PodUid) -> Arc<PodLanes> {
        let mut pods = self.pods.lock().await;
        // Those that nobody uses have nothing to remember.
        pods.retain(|_, pod| Arc::strong_count(pod) > 1);
        let made = || {
            let places = Arc::new(Semaphore::new(PLACES as usize));
            Arc::new(PodLanes { places, turns: Turns::default(), activity: Pulse::default() })
        };
        pods.entry(uid.clone()).or_insert_with(made).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    fn uid(name: &str) -> PodUid {
        PodUid::new(name)
    }

    fn lanes() -> Lanes {
        Lanes::with_quiet(Duration::from_secs(3))
    }

    /// Work that does not end before the sender is dropped.
    fn stuck(gate: Receiver<()>) -> impl FnOnce(&Pulse) -> Result<(), FilesError> + Send + 'static {
        move |_| {
            let _ = gate.recv();
            Ok(())
        }
    }

    async fn quick(lanes: &Lanes, pod: &str, lane: Lane<'_>) -> Result<u32, FilesError> {
        lanes.run(&uid(pod), lane, "quick work".into(), |_| Ok(7)).await
    }

    #[tokio::test]
    async fn what_hangs_keeps_its_volume_and_nothing_else() {
        let lanes = lanes();
        let (hold, gate) = channel();
        let first = lanes.run(&uid("a"), Lane::Volume("v"), "setting up v".into(), stuck(gate)).await;
        let error = first.unwrap_err();
        assert!(matches!(error, FilesError::Hangs { .. }), "{error:?}");
        assert!(error.to_string().starts_with("setting up v has not ended"), "{error}");
        assert_eq!(quick(&lanes, "a", Lane::Volume("other")).await.unwrap(), 7);
        assert_eq!(quick(&lanes, "b", Lane::Volume("v")).await.unwrap(), 7);
        assert_eq!(quick(&lanes, "b", Lane::Pod).await.unwrap(), 7);
        let (volume, pod) =
            tokio::join!(quick(&lanes, "a", Lane::Volume("v")), quick(&lanes, "a", Lane::Pod));
        for result in [volume, pod] {
            assert!(
                matches!(result, Err(FilesError::Hangs { .. })),
                "not while the first is at it: {result:?}"
            );
        }
        drop(hold);
        // Whoever waits gets in as soon as it has ended.
        assert_eq!(quick(&lanes, "a", Lane::Volume("v")).await.unwrap(), 7);
        assert_eq!(quick(&lanes, "a", Lane::Pod).await.unwrap(), 7);
        assert_eq!(quick(&lanes, "c", Lane::Pod).await.unwrap(), 7);
        assert_eq!(lanes.pods.lock().await.len(), 1, "the others are forgotten");
    }

    #[tokio::test]
    async fn a_pod_that_hangs_everywhere_takes_its_own_places_only() {
        let lanes = lanes();
        let mut held = Vec::new();
        let names: Vec<String> = (0..PLACES).map(|n| format!("v{n}")).collect();
        let bad = uid("bad");
        let stuck = names.iter().map(|name| {
            let (hold, gate) = channel();
            held.push(hold);
            lanes.run(&bad, Lane::Volume(name), "a dead server".into(), stuck(gate))
        });
        for result in futures::future::join_all(stuck.collect::<Vec<_>>()).await {
            assert!(matches!(result, Err(FilesError::Hangs { .. })));
        }
        assert!(matches!(
            quick(&lanes, "bad", Lane::Volume("one more")).await,
            Err(FilesError::Hangs { .. })
        ));
        let others = (0..100).map(|n| {
            let (lanes, pod) = (lanes.clone(), format!("good-{n}"));
            async move { quick(&lanes, &pod, Lane::Volume("v")).await }
        });
        assert!(futures::future::join_all(others).await.into_iter().all(|result| result.is_ok()));
    }

    #[tokio::test]
    async fn slow_work_that_goes_on_is_waited_for() {
        let lanes = Lanes::with_quiet(Duration::from_secs(2));
        let (hold, gate) = channel::<()>();
        let work = move |pulse: &Pulse| {
            for _ in 0..10 {
                pulse.beat();
                let _ = gate.recv_timeout(Duration::from_millis(400));
            }
            Ok(pulse.beats())
        };
        let done = lanes.run(&uid("a"), Lane::Volume("v"), "a long walk".into(), work).await;
        assert_eq!(done.unwrap(), 10);
        drop(hold);
    }

    /// Who waits for it waits as long: a disk that one pod has formatted is no reason to call another's hung.
    #[tokio::test]
    async fn those_behind_slow_work_wait_for_it() {
        let lanes = Lanes::with_quiet(Duration::from_secs(2));
        let disk = ["the disk".to_owned()];
        let (hold, gate) = channel::<()>();
        let slow = move |pulse: &Pulse| {
            for _ in 0..10 {
                pulse.beat();
                let _ = gate.recv_timeout(Duration::from_millis(400));
            }
            Ok(1)
        };
        let (first, second) = (uid("first"), uid("second"));
        let slow = lanes.run_on(&first, Lane::Volume("v"), &disk, "formatting".into(), slow);
        let quick = lanes.run_on(&second, Lane::Volume("v"), &disk, "mounting".into(), |_| Ok(2));
        let (slow, quick) = tokio::join!(slow, quick);
        assert_eq!((slow.unwrap(), quick.unwrap()), (1, 2));
        drop(hold);
    }

    #[tokio::test]
    async fn what_pods_share_is_worked_on_by_one_at_a_time() {
        let lanes = lanes();
        let (disk, other) = (["disk 7:0".to_owned()], ["disk 7:1".to_owned()]);
        let (hold, gate) = channel();
        let hung = lanes.run_on(&uid("a"), Lane::Volume("v"), &disk, "mounting v".into(), stuck(gate)).await;
        assert!(matches!(hung, Err(FilesError::Hangs { .. })), "{hung:?}");
        let b = uid("b");
        let quick = |disks: &'static str| {
            let disks = if disks == "same" { &disk } else { &other };
            lanes.run_on(&b, Lane::Volume("v"), disks, "mounting v".into(), |_| Ok(7))
        };
        let error = quick("same").await.unwrap_err().to_string();
        assert!(error.starts_with("other work on disk 7:0, for which mounting v waits, has not"), "{error}");
        assert_eq!(quick("another").await.unwrap(), 7);
        drop(hold);
        assert_eq!(quick("same").await.unwrap(), 7);
    }

    #[tokio::test]
    async fn a_panic_is_told_and_frees_the_place() {
        let lanes = lanes();
        let work = |_: &Pulse| -> Result<(), FilesError> { std::panic::resume_unwind(Box::new("a bug")) };
        let error = lanes.run(&uid("a"), Lane::Pod, "work".into(), work).await.unwrap_err();
        assert!(matches!(error, FilesError::Broken { .. }), "{error:?}");
        assert_eq!(quick(&lanes, "a", Lane::Pod).await.unwrap(), 7);
    }
}
