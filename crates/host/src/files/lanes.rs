//! Where work on the volumes of pods is done: threads of its own, which can be left behind.
//!
//! ```text
//!   asked ──> waits for the volume and a place of the pod ──> thread ──> done
//!                    │ somebody hangs there                     │ no step for QUIET
//!                    └──────────────> Hangs <───────────────────┘ (the thread lives on and keeps its place)
//! ```
//! A server that does not answer blocks whoever touches its files, for ever and beyond any signal. So each piece of work
//! has a thread, each pod a bounded number of them, and each volume one at a time: a second try does not begin before
//! the first has ended. Who waits is told after a while that it hangs, and tries again later. Work that is slow but goes
//! on (a million files) is waited for: its steps tell ([`super::steps`]).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use model::PodUid;
use ports::FilesError;
use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore, oneshot};

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

#[derive(Debug)]
struct PodLanes {
    places: Arc<Semaphore>,
    volumes: Mutex<BTreeMap<String, Arc<Mutex<()>>>>,
}

#[derive(Clone, Debug)]
pub struct Lanes {
    quiet: Duration,
    pods: Arc<Mutex<BTreeMap<PodUid, Arc<PodLanes>>>>,
}

/// Held by the thread until its work has ended, however long ago its customer left.
struct Place {
    // First: who gets the place next may be the last to use the pod's lanes.
    _pod: Arc<PodLanes>,
    _places: OwnedSemaphorePermit,
    _volume: Option<OwnedMutexGuard<()>>,
}

impl Lanes {
    pub fn new() -> Self {
        Self::with_quiet(QUIET)
    }

    pub fn with_quiet(quiet: Duration) -> Self {
        Self { quiet, pods: Arc::default() }
    }

    /// Does `work`, once those before it have ended. `what` names it where it hangs.
    pub async fn run<T: Send + 'static>(
        &self,
        uid: &PodUid,
        lane: Lane<'_>,
        what: String,
        work: impl FnOnce(&Pulse) -> Result<T, FilesError> + Send + 'static,
    ) -> Result<T, FilesError> {
        let hangs = || FilesError::Hangs { what: what.clone(), quiet: self.quiet };
        let pod = self.pod(uid).await;
        let Ok(place) = tokio::time::timeout(self.quiet, take_place(pod, lane)).await else {
            return Err(hangs());
        };
        let pulse = Pulse::default();
        let (told, mut answer) = oneshot::channel();
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
        let mut seen = pulse.beats();
        loop {
            match tokio::time::timeout(self.quiet, &mut answer).await {
                Ok(Ok(result)) => return result,
                Ok(Err(_)) => return Err(FilesError::Broken { what }),
                Err(_) if pulse.beats() != seen => seen = pulse.beats(),
                Err(_) => return Err(hangs()),
            }
        }
    }

    async fn pod(&self, uid: &PodUid) -> Arc<PodLanes> {
        let mut pods = self.pods.lock().await;
        // Those that nobody uses have nothing to remember.
        pods.retain(|_, pod| Arc::strong_count(pod) > 1);
        let made = || {
            let places = Arc::new(Semaphore::new(PLACES as usize));
            Arc::new(PodLanes { places, volumes: Mutex::default() })
        };
        pods.entry(uid.clone()).or_insert_with(made).clone()
    }
}

async fn take_place(pod: Arc<PodLanes>, lane: Lane<'_>) -> Option<Place> {
    let (name, places) = match lane {
        Lane::Volume(name) => (Some(format!("volume {name}")), 1),
        Lane::Container(name) => (Some(format!("container {name}")), 1),
        Lane::Measuring => (Some("measuring".to_owned()), 1),
        Lane::Pod => (None, PLACES),
    };
    let volume = match name {
        Some(name) => {
            let volume = pod.volumes.lock().await.entry(name).or_default().clone();
            Some(volume.lock_owned().await)
        }
        None => None,
    };
    // A semaphore that is never closed gives in the end.
    let places = pod.places.clone().acquire_many_owned(places).await.ok()?;
    Some(Place { _places: places, _volume: volume, _pod: pod })
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

    #[tokio::test]
    async fn a_panic_is_told_and_frees_the_place() {
        let lanes = lanes();
        let work = |_: &Pulse| -> Result<(), FilesError> { std::panic::resume_unwind(Box::new("a bug")) };
        let error = lanes.run(&uid("a"), Lane::Pod, "work".into(), work).await.unwrap_err();
        assert!(matches!(error, FilesError::Broken { .. }), "{error:?}");
        assert_eq!(quick(&lanes, "a", Lane::Pod).await.unwrap(), 7);
    }
}
