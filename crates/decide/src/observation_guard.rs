//! What the runtime itself has reported of a pod: accepted observations, and answers to calls. An observation that
//! contradicts this is not acted on before a later observation confirms it.
//!
//! ```text
//!   observation ──> agrees with our records ──> accepted
//!        ^     └──> contradicts them ──> wait CONFIRM_DELAY ──> observe again
//!        │                                      ├──> agrees, or contradicts in the same way: accepted
//!        └── contradicts in another way <───────┘
//! ```
//! A second observation confirms the first only if it contradicts our records in the same way. If it differs in another
//! way, the wait starts again: a runtime that is still loading its state after a restart lists a few more containers
//! each time.
//!
//! A list may lack a container because another client removed it, or because the runtime lost it. The list may also be
//! incomplete, or older than the runtime's own answers; starting the container again would then run it twice. A
//! container that really vanished is rare and not urgent, so the agent waits for the confirmation.
//!
//! A runtime may also contradict itself for good: it confirms a removal, and lists the container for ever. That needs
//! one confirmation. From then on the id is known ([`ObservationGuard::retry_removal`]): it contradicts no further
//! observation, and its removal is retried with back-off. Each confirmed contradiction doubles the wait for this pod,
//! up to five minutes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use model::Mono;
use model::observed::{ContainerState, ObservedPod};

use crate::action::{Action, Stage};

/// How much later than a contradicting observation another one has to begin in order to confirm it.
pub const CONFIRM_DELAY: Duration = Duration::from_secs(1);

/// The longest such delay. It doubles with each contradiction that is confirmed.
const MAX_CONFIRM_DELAY: Duration = Duration::from_secs(300);

/// After this long without a confirmed contradiction, the delay is [`CONFIRM_DELAY`] again.
const CONFIRMED_RESET_AFTER: Duration = Duration::from_secs(600);

/// How many different contradictions in a row restart the wait. Further ones only wait for the end of the last delay.
pub const MAX_CONTRADICTIONS: u32 = 5;

/// Back-off for removals that the runtime confirmed although it still lists the id. The delay grows by a factor of
/// four.
const REMOVAL_INITIAL: Duration = Duration::from_secs(10);
const REMOVAL_MAX: Duration = Duration::from_secs(600);

fn removal_delay(times: u32) -> Duration {
    (REMOVAL_INITIAL * 4_u32.pow(times.saturating_sub(1).min(6))).min(REMOVAL_MAX)
}

/// Contradicting observations that are not confirmed yet.
#[derive(Clone, Debug)]
struct Contradiction {
    since: Mono,
    /// The contradictions, in words.
    what: Vec<String>,
    /// How many different contradictions there were.
    times: u32,
    /// How long after `since` an observation has to begin in order to confirm it.
    wait: Duration,
}

/// A container or sandbox that the runtime lists although it confirmed the removal.
#[derive(Clone, Debug)]
struct StillListed {
    /// How many removals had no effect.
    times: u32,
    retry_at: Mono,
}

/// An observation of a pod that was accepted.
#[derive(Clone, Debug)]
pub struct PodObservation {
    pub at: Mono,
    pub pod: Arc<ObservedPod>,
}

/// What the next observation of one pod has to agree with.
#[derive(Clone, Debug, Default)]
pub struct ObservationGuard {
    /// Containers and sandboxes whose start the runtime confirmed, and when.
    started: BTreeMap<String, Mono>,
    /// Containers and sandboxes whose removal the runtime confirmed, and when.
    removed: BTreeMap<String, Mono>,
    /// Ids that plans which have ended asked the runtime to remove, whatever it answered.
    removal_requested: BTreeSet<String>,
    contradiction: Option<Contradiction>,
    still_listed: BTreeMap<String, StillListed>,
    /// How many contradictions in a row were confirmed, and when the last of them was.
    confirmed: (u32, Mono),
}

impl ObservationGuard {
    pub fn record_started(&mut self, id: &str, now: Mono) {
        self.started.insert(id.to_owned(), now);
    }

    pub fn record_removed(&mut self, id: &str, now: Mono) {
        self.started.remove(id);
        self.removed.insert(id.to_owned(), now);
    }

    /// A plan has ended that may have removed containers or sandboxes.
    pub fn record_plan_ended(&mut self, stages: &[Stage]) {
        self.removal_requested.extend(removals(stages).map(str::to_owned));
    }

    /// No start and no removal is waiting to be seen, so an observation equal to the last one can't contradict
    /// anything.
    pub fn expects_nothing(&self) -> bool {
        self.started.is_empty() && self.removed.is_empty()
    }

    pub fn has_contradiction(&self) -> bool {
        self.contradiction.is_some()
    }

    /// Whether exactly these contradictions wait for a confirmation already.
    pub fn has_same_contradiction(&self, what: &[String]) -> bool {
        self.contradiction.as_ref().is_some_and(|doubt| doubt.what == what)
    }

    /// The earliest start of an observation that can confirm the contradiction.
    pub fn confirm_at(&self) -> Option<Mono> {
        self.contradiction.as_ref().map(|doubt| doubt.since.plus(doubt.wait))
    }

    /// When the removal of this id may be retried. `None`: now.
    pub fn retry_removal(&self, id: &str) -> Option<Mono> {
        self.still_listed.get(id).map(|listed| listed.retry_at)
    }

    /// Whether the runtime lists anything whose removal it confirmed.
    pub fn has_still_listed(&self) -> bool {
        !self.still_listed.is_empty()
    }

    /// Accepts an observation that began at `at`. `fresh`: no action of ours has changed the runtime since. Returns the
    /// ids that are found for the first time to be listed although the runtime confirmed their removal.
    pub fn accept_observation(
        &mut self,
        at: Mono,
        now: Mono,
        fresh: bool,
        seen: &ObservedPod,
    ) -> Vec<String> {
        self.contradiction = None;
        let found = match self.removed.is_empty() && self.still_listed.is_empty() {
            true => Vec::new(),
            false => self.find_still_listed(at, now, &shown_ids(seen)),
        };
        self.started.retain(|_, since| *since > at);
        self.removed.retain(|_, since| *since > at);
        if fresh {
            self.removal_requested.clear();
        }
        found
    }

    fn find_still_listed(&mut self, at: Mono, now: Mono, shown: &BTreeSet<&str>) -> Vec<String> {
        self.still_listed.retain(|id, _| shown.contains(id.as_str()));
        let mut found = Vec::new();
        let removed = self.removed.iter().filter(|(_, since)| **since <= at).map(|(id, _)| id);
        for id in removed.filter(|id| shown.contains(id.as_str())) {
            let times = self.still_listed.get(id).map_or(0, |listed| listed.times) + 1;
            if times == 1 {
                found.push(id.clone());
            }
            let retry_at = now.plus(removal_delay(times));
            self.still_listed.insert(id.clone(), StillListed { times, retry_at });
        }
        found
    }

    /// Records an observation with these contradictions. Returns whether it has to be confirmed first.
    pub fn needs_confirmation(&mut self, what: &[String], at: Mono, now: Mono) -> bool {
        let wait = self.confirm_delay(now);
        let new = |times: u32| Contradiction { since: now, what: what.to_vec(), times, wait };
        let doubt = self.contradiction.get_or_insert_with(|| new(1));
        if doubt.what != what && doubt.times < MAX_CONTRADICTIONS {
            *doubt = new(doubt.times + 1);
        }
        let doubted = at < doubt.since.plus(doubt.wait);
        if !doubted {
            self.confirmed = (self.confirmed_lately(now) + 1, now);
        }
        doubted
    }

    /// The ids that an observation that began at `at` has to show, each with a word for what it is. `known`: the last
    /// accepted observation. `running`: the stages of the running plan.
    pub fn expected<'a>(
        &'a self,
        known: Option<&'a PodObservation>,
        running: &'a [Stage],
        at: Mono,
    ) -> BTreeMap<&'a str, &'static str> {
        let planned: BTreeSet<&str> = removals(running).collect();
        let leaves = |id: &str| planned.contains(id) || self.removal_requested.contains(id);
        let known = known.filter(|known| known.at < at).map(|PodObservation { pod, .. }| pod);
        let sandboxes = known.iter().flat_map(|pod| &pod.sandboxes).map(|s| (s.id.as_str(), "sandbox"));
        let containers = known.iter().flat_map(|pod| &pod.containers);
        let containers =
            containers.filter(|c| !leaves(c.sandbox_id.as_str())).map(|c| (c.id.as_str(), "container"));
        let started = self.started.iter().filter(|(_, since)| **since <= at);
        let started = started.map(|(id, _)| (id.as_str(), "started"));
        sandboxes.chain(containers).chain(started).filter(|(id, _)| !leaves(id)).collect()
    }

    /// All contradictions between our records and an observation that began at `at`.
    pub fn contradictions(
        &self,
        known: Option<&PodObservation>,
        running: &[Stage],
        at: Mono,
        seen: &ObservedPod,
    ) -> Vec<String> {
        let shown = shown_ids(seen);
        let lacks = self.expected(known, running, at).into_iter().filter(|(id, _)| !shown.contains(id));
        let lacks = lacks.map(|(id, what)| match what {
            "started" => format!("{id} is not listed although the runtime confirmed its start"),
            what => format!("{what} {id} is no longer listed, and nobody removed it"),
        });
        let removed = self.removed.iter().filter(|(_, since)| **since <= at);
        let removed =
            removed.filter(|(id, _)| shown.contains(id.as_str()) && !self.still_listed.contains_key(*id));
        let removed =
            removed.map(|(id, _)| format!("{id} is listed although the runtime confirmed its removal"));
        let unstarted = |id: &str| {
            seen.containers.iter().any(|c| c.id.as_str() == id && c.state == ContainerState::Created)
        };
        let late = self.started.iter().filter(|(_, since)| **since <= at).filter(|(id, _)| unstarted(id));
        let late = late
            .map(|(id, _)| format!("{id} is listed as not started although the runtime confirmed its start"));
        lacks.chain(removed).chain(late).collect()
    }

    fn confirmed_lately(&self, now: Mono) -> u32 {
        let (times, last) = self.confirmed;
        if now.since(last) < CONFIRMED_RESET_AFTER { times } else { 0 }
    }

    fn confirm_delay(&self, now: Mono) -> Duration {
        (CONFIRM_DELAY * (1 << self.confirmed_lately(now).min(10))).min(MAX_CONFIRM_DELAY)
    }
}

/// Ids of all containers and sandboxes in an observation of a pod.
pub(crate) fn shown_ids(pod: &ObservedPod) -> BTreeSet<&str> {
    let sandboxes = pod.sandboxes.iter().map(|sandbox| sandbox.id.as_str());
    sandboxes.chain(pod.containers.iter().map(|container| container.id.as_str())).collect()
}

/// Whether these stages only retry removals that the runtime has confirmed before.
pub(crate) fn only_retries_removals(witness: &ObservationGuard, stages: &[Stage]) -> bool {
    let actions = stages.iter().flat_map(|stage| &stage.actions).count();
    let retried = removals(stages).filter(|id| witness.still_listed.contains_key(*id)).count();
    actions > 0 && actions == retried
}

fn removals(stages: &[Stage]) -> impl Iterator<Item = &str> {
    stages.iter().flat_map(|stage| &stage.actions).filter_map(|action| match action {
        Action::RemoveContainer { id, .. } => Some(id.as_str()),
        Action::RemoveSandbox { id } => Some(id.as_str()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use model::pod::{PodView, Source};

    use super::*;
    use crate::plan::tests::words::{api_pod, at, observed};
    use crate::state::PodEntry;

    const KNOWN: &str = "s0 ready; c#0 running";

    fn nothing() -> ObservedPod {
        observed("p", "", at(0.0))
    }

    /// A pod with an accepted observation that began at second 1.
    fn entry() -> PodEntry {
        let mut entry = PodEntry::new(PodView::new(api_pod("p", ""), Source::Api));
        let pod = Arc::new(observed("p", KNOWN, at(1.0)));
        entry.observed = Some(PodObservation { at: at(1.0).mono, pod });
        entry
    }

    #[test]
    fn what_speaks_against_a_reading() {
        let check = |told: fn(&mut ObservationGuard), (began, shows): (f64, &str), expect: Option<&str>| {
            let mut entry = entry();
            told(&mut entry.observation_guard);
            let found = entry.contradictions(at(began).mono, &observed("p", shows, at(began)));
            assert_eq!(found, Vec::from_iter(expect), "{shows} at {began}");
        };
        let nothing: fn(&mut ObservationGuard) = |_| {};
        check(nothing, (2.0, KNOWN), None);
        check(nothing, (2.0, "s0 dead; c#0 exit(1); c#1 running"), None);
        let lacks = "container c#0 is no longer listed, and nobody removed it";
        check(nothing, (2.0, "s0 ready"), Some(lacks));
        check(nothing, (2.0, "c#0 running"), Some("sandbox s0 is no longer listed, and nobody removed it"));
        // The observation is as old as the known one, so it is not compared with it.
        check(nothing, (1.0, "s0 ready"), None);
        let started: fn(&mut ObservationGuard) = |w| w.record_started("c#1", at(3.0).mono);
        let lacks = "c#1 is not listed although the runtime confirmed its start";
        check(started, (3.0, KNOWN), Some(lacks));
        check(started, (2.0, KNOWN), None);
        let late = "c#1 is listed as not started although the runtime confirmed its start";
        check(started, (4.0, "s0 ready; c#0 running; c#1 created"), Some(late));
        check(started, (4.0, "s0 ready; c#0 running; c#1 exit(0)"), None);
        let removed: fn(&mut ObservationGuard) = |w| {
            w.record_removed("c#0", at(3.0).mono);
            w.removal_requested.insert("c#0".into());
        };
        check(removed, (3.0, "s0 ready"), None);
        let shows = "c#0 is listed although the runtime confirmed its removal";
        check(removed, (3.0, KNOWN), Some(shows));
        check(removed, (2.0, KNOWN), None);
        // With a sandbox go its containers, whether or not the call was answered.
        check(|w| w.removal_requested.extend(["s0".to_owned()]), (2.0, ""), None);
    }

    #[test]
    fn a_doubt_ends_with_the_first_reading_that_agrees_or_with_a_later_one_that_does_not() {
        let mut witness = ObservationGuard::default();
        let mono = |seconds: f64| at(seconds).mono;
        let lacks = |ids: &[&str]| Vec::from_iter(ids.iter().map(|id| format!("it lacks {id}")));
        let a = lacks(&["a"]);
        assert!(witness.needs_confirmation(&a, mono(2.0), mono(5.0)) && witness.has_contradiction());
        assert!(witness.needs_confirmation(&a, mono(5.9), mono(6.0)), "begun too soon after the doubt");
        assert!(!witness.needs_confirmation(&a, mono(6.0), mono(6.1)));
        witness.record_started("c#1", mono(7.0));
        witness.removal_requested.insert("c#0".into());
        witness.accept_observation(mono(6.0), mono(6.1), false, &nothing());
        assert!(
            !witness.has_contradiction()
                && witness.started.len() == 1
                && witness.removal_requested.len() == 1
        );
        witness.accept_observation(mono(7.0), mono(7.1), true, &nothing());
        assert!(witness.started.is_empty() && witness.removal_requested.is_empty());
    }

    #[test]
    fn another_contradiction_is_no_confirmation() {
        let mut witness = ObservationGuard::default();
        let mono = |seconds: f64| at(seconds).mono;
        let lacks = |ids: &[&str]| Vec::from_iter(ids.iter().map(|id| format!("it lacks {id}")));
        assert!(witness.needs_confirmation(&lacks(&["a", "b"]), mono(1.0), mono(1.0)));
        assert!(
            witness.needs_confirmation(&lacks(&["b"]), mono(2.0), mono(2.0)),
            "one of them is there by now"
        );
        assert!(!witness.needs_confirmation(&lacks(&["b"]), mono(3.0), mono(3.0)), "and the other is gone");
        // It has an end.
        let mut witness = ObservationGuard::default();
        let different = |n: u32| lacks(&[&n.to_string()]);
        let doubted = (0..).take_while(|n| {
            let now = mono(f64::from(*n));
            witness.needs_confirmation(&different(*n), now, now)
        });
        assert_eq!(doubted.count() as u32, MAX_CONTRADICTIONS);
    }

    #[test]
    fn a_pod_whose_doubts_are_confirmed_again_and_again_is_doubted_for_longer() {
        let mut witness = ObservationGuard::default();
        let mono = |seconds: f64| at(seconds).mono;
        let mut now = 0.0;
        let mut waits = Vec::new();
        for number in 0..12 {
            let what = [format!("it lacks {number}")];
            assert!(witness.needs_confirmation(&what, mono(now), mono(now)));
            let until = witness.confirm_at().expect("a doubt");
            waits.push(until.since(mono(now)).as_secs());
            now += until.since(mono(now)).as_secs_f64();
            assert!(!witness.needs_confirmation(&what, mono(now), mono(now)));
            witness.accept_observation(mono(now), mono(now), true, &nothing());
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        // It is forgotten after a while.
        now += 600.0;
        assert!(witness.needs_confirmation(&["it lacks x".to_owned()], mono(now), mono(now)));
        assert_eq!(witness.confirm_at(), Some(mono(now + 1.0)));
    }

    #[test]
    fn what_is_listed_although_it_was_removed_is_doubted_once_and_removed_ever_more_rarely() {
        let mut entry = entry();
        let shows = observed("p", KNOWN, at(1.0));
        let mut now = 2.0;
        let mut waits = Vec::new();
        for time in 0..6 {
            let mono = at(now).mono;
            entry.observation_guard.record_removed("c#0", mono);
            entry.observation_guard.removal_requested.insert("c#0".into());
            let against = entry.contradictions(mono, &shows);
            assert_eq!(against.is_empty(), time > 0, "{against:?}");
            let found = entry.observation_guard.accept_observation(mono, mono, true, &shows);
            assert_eq!(found, if time == 0 { vec!["c#0".to_owned()] } else { Vec::new() });
            let retry = entry.observation_guard.retry_removal("c#0").expect("a retry").since(mono).as_secs();
            waits.push(retry);
            now += retry as f64;
        }
        assert_eq!(waits, [10, 40, 160, 600, 600, 600]);
        // It is gone after all.
        let gone = observed("p", "s0 ready", at(now));
        entry.observation_guard.accept_observation(at(now).mono, at(now).mono, true, &gone);
        assert_eq!(entry.observation_guard.retry_removal("c#0"), None);
    }
}
