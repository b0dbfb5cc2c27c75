//! Pods whose objects can't be decoded. Other pods are not affected.
//!
//! What is known of such a pod from an older version of its object goes on. Of one that was never read, nothing is
//! planned; what runs of it is left alone, and so are its directories: it is wanted, only nobody knows how.

use std::collections::BTreeMap;

use model::pod::{Source, UnreadablePod};
use model::{ApiEvent, PodUid};

use super::Context;
use crate::effect::{Effect, LogLevel};
use crate::state::NodeState;

pub(super) fn unreadable_pods_reported(
    state: &mut NodeState,
    cx: &mut Context,
    source: Source,
    found: Vec<UnreadablePod>,
    complete: bool,
) {
    let set = state.sources.entry(source).or_default();
    if complete {
        // Which of the old ones are readable now is only known with the set that follows.
        set.unreadable_in_next_set = found;
        return;
    }
    let news = found.into_iter().filter(|pod| set.unreadable.get(&pod.uid) != Some(pod));
    for pod in news.collect::<Vec<_>>() {
        store_unreadable_pod(state, cx, source, pod);
    }
}

/// With a complete set: replaces the undecodable pods by those that were reported just before it.
pub(super) fn replace_unreadable_set(state: &mut NodeState, cx: &mut Context, source: Source) {
    let set = state.sources.entry(source).or_default();
    let found = std::mem::take(&mut set.unreadable_in_next_set);
    let mut before = std::mem::take(&mut set.unreadable);
    for pod in found {
        // An undecodable pod is reported once, unless its error changes.
        match before.remove(&pod.uid).filter(|old| *old == pod) {
            Some(same) => {
                let set = state.sources.entry(source).or_default();
                set.unreadable.insert(same.uid.clone(), same);
            }
            None => store_unreadable_pod(state, cx, source, pod),
        }
    }
}

fn store_unreadable_pod(state: &mut NodeState, cx: &mut Context, source: Source, pod: UnreadablePod) {
    let set = state.sources.entry(source).or_default();
    let meanwhile = match set.pods.contains_key(&pod.uid) {
        true => "its last readable version stays in effect",
        false => "nothing is done for it or to it",
    };
    let UnreadablePod { uid, full_name, problem } = pod.clone();
    let text = format!("The object of pod {full_name}({uid}) can't be read, so {meanwhile}: {problem}");
    set.unreadable.insert(uid.clone(), pod);
    cx.log(LogLevel::Warn, Some(&uid), text.clone());
    cx.emit(Effect::RecordEvent { uid, full_name, event: ApiEvent::warning("UnreadablePod", text) });
}

/// A pod can be read again, or its object is gone.
pub(super) fn remove_unreadable_pod(state: &mut NodeState, source: Source, uid: &PodUid) -> bool {
    state.sources.entry(source).or_default().unreadable.remove(uid).is_some()
}

impl NodeState {
    /// All pods whose objects can't be read.
    pub fn unreadable(&self) -> impl Iterator<Item = &UnreadablePod> {
        self.sources.values().flat_map(|set| set.unreadable.values())
    }

    pub(crate) fn is_unreadable(&self, uid: &PodUid) -> bool {
        self.sources.values().any(|set| set.unreadable.contains_key(uid))
    }

    /// Takes what runs and nobody wants, but for pods that can't be read.
    pub(super) fn take_unclaimed(
        &mut self,
    ) -> BTreeMap<PodUid, std::sync::Arc<model::observed::ObservedPod>> {
        let unclaimed = std::mem::take(&mut self.unclaimed);
        let (kept, taken) = unclaimed.into_iter().partition(|(uid, _)| self.is_unreadable(uid));
        self.unclaimed = kept;
        taken
    }
}
