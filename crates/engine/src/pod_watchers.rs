//! Watchers of the node's pods.
//!
//! ```text
//!   Effect::PodChanged, ForgetPod ─> PodWatchers ──(a bounded queue per watcher)──> the server's streams
//! ```
//!
//! The dispatcher adds a watcher between two events, so the pods at its beginning and the changes after it fit together.
//! A change is looked at once per watcher, and without watchers not at all. The queue of a watcher is bounded. Once it
//! is full the watcher is told that it fell behind and is dropped: nobody waits for it.

use std::collections::BTreeMap;

use decide::NodeState;
use decide::state::PodEntry;
use decide::state::shown_pod::{has_finished, is_listed};
use futures::{StreamExt, stream};
use model::{FullName, PodUid};
use ports::{PodSnapshot, PodWatch, PodWatchEvent};
use tokio::sync::mpsc;

/// Changes that may wait for a watcher.
const QUEUE: usize = 100;

/// What a watcher knows of a pod that it was told of.
struct KnownPod {
    full_name: FullName,
    state: KnownState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum KnownState {
    /// The watcher is told of its end when it has finished.
    Alive,
    /// It had finished when the watcher was told of it first. The end is told when its source removes it.
    Finished,
    /// The end was told. There is nothing more of it until it is forgotten.
    Deleted,
}

impl KnownPod {
    fn of(entry: &PodEntry) -> Self {
        let state = if has_finished(entry) { KnownState::Finished } else { KnownState::Alive };
        Self { full_name: entry.view().full_name.clone(), state }
    }
}

struct Watcher {
    /// Has room for one more event than `QUEUE`, which is for the last one.
    events: mpsc::Sender<PodWatchEvent>,
    known: BTreeMap<PodUid, KnownPod>,
}

#[derive(Default)]
pub(crate) struct PodWatchers(Vec<Watcher>);

impl PodWatchers {
    pub fn add(&mut self, state: &NodeState) -> PodWatch {
        let (events, queue) = mpsc::channel(QUEUE + 1);
        let listed = state.pods.iter().filter(|(_, entry)| is_listed(entry));
        let known = listed.map(|(uid, entry)| (uid.clone(), KnownPod::of(entry)));
        self.0.retain(|watcher| !watcher.events.is_closed());
        self.0.push(Watcher { events, known: known.collect() });
        let queue = stream::unfold(queue, async |mut queue| queue.recv().await.map(|event| (event, queue)));
        PodWatch { pods: list(state), events: queue.fuse().boxed() }
    }

    /// `fell_behind` is called for each watcher that is dropped because it did not keep up.
    pub fn pod_changed(&mut self, state: &NodeState, uid: &PodUid, fell_behind: impl FnMut()) {
        let Some(entry) = state.pods.get(uid).filter(|_| !self.0.is_empty()) else { return };
        self.send(fell_behind, |watcher| watcher.change_of(uid, entry));
    }

    pub fn pod_forgotten(&mut self, uid: &PodUid, fell_behind: impl FnMut()) {
        self.send(fell_behind, |watcher| watcher.deletion_of(uid));
    }

    fn send(&mut self, mut fell_behind: impl FnMut(), event: impl Fn(&mut Watcher) -> Option<PodWatchEvent>) {
        self.0.retain_mut(|watcher| {
            if watcher.events.is_closed() {
                return false;
            }
            let Some(event) = event(watcher) else { return true };
            // Nobody else sends here, so there is never less room than this.
            let keeps_up = watcher.events.capacity() > 1;
            if !keeps_up {
                fell_behind();
            }
            let event = if keeps_up { event } else { PodWatchEvent::FellBehind };
            watcher.events.try_send(event).is_ok() && keeps_up
        });
    }
}

impl Watcher {
    fn change_of(&mut self, uid: &PodUid, entry: &PodEntry) -> Option<PodWatchEvent> {
        let Some(known) = self.known.get_mut(uid) else {
            // A pod that ends, and that the watcher never heard of.
            if !is_listed(entry) {
                return None;
            }
            self.known.insert(uid.clone(), KnownPod::of(entry));
            return Some(PodWatchEvent::Added(snapshot(entry)));
        };
        let is_over = match known.state {
            KnownState::Alive => has_finished(entry),
            KnownState::Finished => !is_listed(entry),
            KnownState::Deleted => return None,
        };
        if !is_over {
            return Some(PodWatchEvent::Modified(snapshot(entry)));
        }
        known.state = KnownState::Deleted;
        Some(PodWatchEvent::Deleted { uid: uid.clone(), full_name: known.full_name.clone() })
    }

    fn deletion_of(&mut self, uid: &PodUid) -> Option<PodWatchEvent> {
        let known = self.known.remove(uid).filter(|known| known.state != KnownState::Deleted)?;
        Some(PodWatchEvent::Deleted { uid: uid.clone(), full_name: known.full_name })
    }
}

/// The pods that are listed, in the order of their UIDs.
pub(crate) fn list(state: &NodeState) -> Vec<PodSnapshot> {
    state.pods.values().filter(|entry| is_listed(entry)).map(snapshot).collect()
}

pub(crate) fn get(state: &NodeState, uid: &PodUid) -> Option<PodSnapshot> {
    state.pods.get(uid).filter(|entry| is_listed(entry)).map(snapshot)
}

fn snapshot(entry: &PodEntry) -> PodSnapshot {
    PodSnapshot { pod: entry.view().pod.clone(), status: entry.status.clone() }
}

#[cfg(test)]
mod tests;
