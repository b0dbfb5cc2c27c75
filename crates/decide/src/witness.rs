//! What the runtime itself has said of a pod: readings that were believed, and answers to calls. A reading that
//! contradicts this is not acted on before another one, begun a while later, says so too.
//!
//! ```text
//!   reading ──> shows what was there, and nothing that was removed ──> believed
//!      ^   └──> contradicts ──> doubted ──> read again after DOUBT ──┐
//!      │                                                            │
//!      └── shows it after all: believed      contradicts still, by the same: believed
//! ```
//! One that contradicts by something else is no confirmation, and doubted anew: a runtime that is about to load what it has
//! shows a little more each time.
//!
//! A list may lack a container because somebody else removed it, or the runtime lost it. Or because the list was
//! incomplete, or older than the runtime's own answers: whoever starts the container again then has it twice. The first
//! is rare and does not hurry; so it waits until it is certain.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::Mono;
use model::observed::{ContainerState, ObservedPod};

use crate::effect::{Action, Stage};
use crate::state::{PodEntry, Reading};

/// How much later than a reading that is doubted another one has to begin in order to be believed.
pub const DOUBT: Duration = Duration::from_secs(1);

/// So often; then whatever is shown is believed.
pub const MOST_DOUBTS: u32 = 5;

/// Readings that were not believed.
#[derive(Clone, Debug)]
struct Doubt {
    since: Mono,
    /// What spoke against them.
    what: Vec<String>,
    /// How many different ones there were.
    times: u32,
}

/// Of one pod.
#[derive(Clone, Debug, Default)]
pub struct Witness {
    /// Containers and sandboxes that were started by the runtime's own answers, and when it said so.
    started: BTreeMap<String, Mono>,
    /// The same of those that were removed.
    removed: BTreeMap<String, Mono>,
    /// Whatever it was asked to remove by plans that have ended, however it answered.
    leaving: BTreeSet<String>,
    doubted: Option<Doubt>,
}

impl Witness {
    pub fn started(&mut self, id: &str, now: Mono) {
        self.started.insert(id.to_owned(), now);
    }

    pub fn removed(&mut self, id: &str, now: Mono) {
        self.started.remove(id);
        self.removed.insert(id.to_owned(), now);
    }

    /// A plan has ended that may have removed something.
    pub fn ended(&mut self, stages: &[Stage]) {
        self.leaving.extend(removals(stages).map(str::to_owned));
    }

    /// It has nothing to say about a reading that shows what the one before showed.
    pub fn is_quiet(&self) -> bool {
        self.started.is_empty() && self.removed.is_empty()
    }

    pub fn doubts(&self) -> bool {
        self.doubted.is_some()
    }

    /// A reading that began then is believed. `fresh`: nothing of ours has changed the runtime since.
    pub fn believe(&mut self, at: Mono, fresh: bool) {
        self.doubted = None;
        self.started.retain(|_, since| *since > at);
        self.removed.retain(|_, since| *since > at);
        if fresh {
            self.leaving.clear();
        }
    }

    /// A reading that contradicts by this comes: whether it has to be confirmed first.
    pub fn doubt(&mut self, what: &[String], at: Mono, now: Mono) -> bool {
        let doubt = self.doubted.get_or_insert(Doubt { since: now, what: what.to_vec(), times: 1 });
        if doubt.what != what && doubt.times < MOST_DOUBTS {
            *doubt = Doubt { since: now, what: what.to_vec(), times: doubt.times + 1 };
        }
        at < doubt.since.plus(DOUBT)
    }
}

fn removals(stages: &[Stage]) -> impl Iterator<Item = &str> {
    stages.iter().flat_map(|stage| &stage.actions).filter_map(|action| match action {
        Action::RemoveContainer { id, .. } => Some(id.as_str()),
        Action::RemoveSandbox { id } => Some(id.as_str()),
        _ => None,
    })
}

/// What a reading that began then has to show, in words.
pub fn expected(entry: &PodEntry, at: Mono) -> BTreeMap<&str, &'static str> {
    let witness = &entry.witness;
    let planned: BTreeSet<&str> = entry.plan.iter().flat_map(|plan| removals(&plan.stages)).collect();
    let leaves = |id: &str| planned.contains(id) || witness.leaving.contains(id);
    let known = entry.observed.as_ref().filter(|known| known.at < at).map(|Reading { pod, .. }| pod);
    let sandboxes = known.iter().flat_map(|pod| &pod.sandboxes).map(|s| (s.id.as_str(), "sandbox"));
    let containers = known.iter().flat_map(|pod| &pod.containers);
    let containers =
        containers.filter(|c| !leaves(c.sandbox_id.as_str())).map(|c| (c.id.as_str(), "container"));
    let started = witness.started.iter().filter(|(_, since)| **since <= at);
    let started = started.map(|(id, _)| (id.as_str(), "started"));
    sandboxes.chain(containers).chain(started).filter(|(id, _)| !leaves(id)).collect()
}

/// All that speaks against a reading that began then.
pub fn contradictions(entry: &PodEntry, at: Mono, seen: &ObservedPod) -> Vec<String> {
    let sandboxes = seen.sandboxes.iter().map(|sandbox| sandbox.id.as_str());
    let shown: BTreeSet<&str> =
        sandboxes.chain(seen.containers.iter().map(|container| container.id.as_str())).collect();
    let lacks =
        expected(entry, at).into_iter().filter(|(id, _)| !shown.contains(id)).map(|(id, what)| match what {
            "started" => format!("it lacks {id}, which the runtime said to have started"),
            what => format!("it lacks {what} {id}, which was there and was not removed"),
        });
    let removed = entry.witness.removed.iter().filter(|(_, since)| **since <= at);
    let removed = removed.filter(|(id, _)| shown.contains(id.as_str()));
    let removed = removed.map(|(id, _)| format!("it shows {id}, which the runtime said to have removed"));
    let unstarted =
        |id: &str| seen.containers.iter().any(|c| c.id.as_str() == id && c.state == ContainerState::Created);
    let late =
        entry.witness.started.iter().filter(|(_, since)| **since <= at).filter(|(id, _)| unstarted(id));
    let late =
        late.map(|(id, _)| format!("it shows {id} as not started, which the runtime said to have started"));
    lacks.chain(removed).chain(late).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::pod::{PodView, Source};

    use super::*;
    use crate::plan::tests::words::{api_pod, at, observed};

    const KNOWN: &str = "s0 ready; c#0 running";

    /// A pod of which a reading that began at second 1 was believed.
    fn entry() -> PodEntry {
        let mut entry = PodEntry::new(PodView::new(api_pod("p", ""), Source::Api));
        let pod = Arc::new(observed("p", KNOWN, at(1.0)));
        entry.observed = Some(Reading { at: at(1.0).mono, pod });
        entry
    }

    #[test]
    fn what_speaks_against_a_reading() {
        let check = |told: fn(&mut Witness), (began, shows): (f64, &str), expect: Option<&str>| {
            let mut entry = entry();
            told(&mut entry.witness);
            let found = contradictions(&entry, at(began).mono, &observed("p", shows, at(began)));
            assert_eq!(found, Vec::from_iter(expect), "{shows} at {began}");
        };
        let nothing: fn(&mut Witness) = |_| {};
        check(nothing, (2.0, KNOWN), None);
        check(nothing, (2.0, "s0 dead; c#0 exit(1); c#1 running"), None);
        let lacks = "it lacks container c#0, which was there and was not removed";
        check(nothing, (2.0, "s0 ready"), Some(lacks));
        check(
            nothing,
            (2.0, "c#0 running"),
            Some("it lacks sandbox s0, which was there and was not removed"),
        );
        // It is no older than what is known.
        check(nothing, (1.0, "s0 ready"), None);
        let started: fn(&mut Witness) = |w| w.started("c#1", at(3.0).mono);
        let lacks = "it lacks c#1, which the runtime said to have started";
        check(started, (3.0, KNOWN), Some(lacks));
        check(started, (2.0, KNOWN), None);
        let late = "it shows c#1 as not started, which the runtime said to have started";
        check(started, (4.0, "s0 ready; c#0 running; c#1 created"), Some(late));
        check(started, (4.0, "s0 ready; c#0 running; c#1 exit(0)"), None);
        let removed: fn(&mut Witness) = |w| {
            w.removed("c#0", at(3.0).mono);
            w.leaving.insert("c#0".into());
        };
        check(removed, (3.0, "s0 ready"), None);
        let shows = "it shows c#0, which the runtime said to have removed";
        check(removed, (3.0, KNOWN), Some(shows));
        check(removed, (2.0, KNOWN), None);
        // With a sandbox go its containers, whether or not the call was answered.
        check(|w| w.leaving.extend(["s0".to_owned()]), (2.0, ""), None);
    }

    #[test]
    fn a_doubt_ends_with_the_first_reading_that_agrees_or_with_a_later_one_that_does_not() {
        let mut witness = Witness::default();
        let mono = |seconds: f64| at(seconds).mono;
        let lacks = |ids: &[&str]| Vec::from_iter(ids.iter().map(|id| format!("it lacks {id}")));
        let a = lacks(&["a"]);
        assert!(witness.doubt(&a, mono(2.0), mono(5.0)) && witness.doubts());
        assert!(witness.doubt(&a, mono(5.9), mono(6.0)), "begun too soon after the doubt");
        assert!(!witness.doubt(&a, mono(6.0), mono(6.1)));
        witness.started("c#1", mono(7.0));
        witness.leaving.insert("c#0".into());
        witness.believe(mono(6.0), false);
        assert!(!witness.doubts() && witness.started.len() == 1 && witness.leaving.len() == 1);
        witness.believe(mono(7.0), true);
        assert!(witness.started.is_empty() && witness.leaving.is_empty());
    }

    #[test]
    fn another_contradiction_is_no_confirmation() {
        let mut witness = Witness::default();
        let mono = |seconds: f64| at(seconds).mono;
        let lacks = |ids: &[&str]| Vec::from_iter(ids.iter().map(|id| format!("it lacks {id}")));
        assert!(witness.doubt(&lacks(&["a", "b"]), mono(1.0), mono(1.0)));
        assert!(witness.doubt(&lacks(&["b"]), mono(2.0), mono(2.0)), "one of them is there by now");
        assert!(!witness.doubt(&lacks(&["b"]), mono(3.0), mono(3.0)), "and the other is gone");
        // It has an end.
        let mut witness = Witness::default();
        let different = |n: u32| lacks(&[&n.to_string()]);
        let doubted = (0..).take_while(|n| {
            let now = mono(f64::from(*n));
            witness.doubt(&different(*n), now, now)
        });
        assert_eq!(doubted.count() as u32, MOST_DOUBTS);
    }
}
