//! One recorded pod on its way: made, settled, deleted, gone.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::allowed::Allowed;
use super::compare::{self, Difference, Particulars};
use super::observed::Observed;
use super::record::Record;

/// How long a pod may take to look as recorded, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(150);

/// Reasons that every pod may show on its way, whether or not a watch happened to see them.
const ON_THE_WAY: [&str; 2] = ["waiting ContainerCreating", "waiting PodInitializing"];

/// The Event of a container that its pod's end ends.
const STOPPING: &str = ": Stopping container ";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    New,
    Made(Instant),
    /// Looks as recorded, or never will.
    Settled,
    Deleted,
    Gone,
}

pub struct Trial {
    pub record: Record,
    pub stage: Stage,
    allowed: Arc<[Allowed]>,
    particulars: Particulars,
    alternatives: Vec<Value>,
    /// How many of the states that were seen are compared.
    compared: usize,
    /// Differences of the state that counts.
    settled: Option<Vec<Difference>>,
}

impl Trial {
    pub fn new(record: Record, allowed: Arc<[Allowed]>) -> Trial {
        let recorded = Particulars { loops: record.loops(), ..Particulars::default() };
        let alternatives = record.settled_alternatives();
        let alternatives = alternatives.iter().map(|status| recorded.strip(status)).collect();
        let particulars = recorded;
        Trial { record, stage: Stage::New, allowed, particulars, alternatives, compared: 0, settled: None }
    }

    pub fn name(&self) -> &str {
        &self.record.name
    }

    /// Looks at what is new.
    pub fn follow(&mut self, seen: &Observed) {
        match self.stage {
            Stage::Made(since) => {
                self.compare_states(seen);
                let done = self.looks_as_recorded() && self.missing_events(seen, true).is_empty();
                if done || since.elapsed() > PATIENCE {
                    self.stage = Stage::Settled;
                }
            }
            Stage::Deleted if seen.pod(self.name()).last().is_some_and(|e| e["type"] == "DELETED") => {
                self.stage = Stage::Gone;
            }
            _ => {}
        }
    }

    /// Of a pod in a loop the best state counts, of any other the last one.
    fn compare_states(&mut self, seen: &Observed) {
        let states = seen.pod(self.name());
        for event in &states[self.compared.min(states.len())..] {
            let pod = &event["object"];
            let new = Particulars::of(&self.record, pod);
            self.particulars.uids = new.uids;
            if !new.addresses.is_empty() {
                self.particulars.addresses = new.addresses;
            }
            let ours = self.particulars.strip(&pod["status"]);
            let found = self.alternatives.iter().map(|theirs| self.differ("settled", &ours, theirs));
            let closest = found.min_by_key(|found| self.unwanted(found)).unwrap_or_default();
            let better = match &self.settled {
                Some(before) if self.record.loops() => self.unwanted(&closest) < self.unwanted(before),
                _ => true,
            };
            if better {
                self.settled = Some(closest);
            }
        }
        self.compared = states.len();
    }

    fn differ(&self, path: &str, ours: &Value, theirs: &Value) -> Vec<Difference> {
        compare::differences(self.name(), path, ours, theirs)
    }

    fn looks_as_recorded(&self) -> bool {
        self.settled.as_ref().is_some_and(|found| self.unwanted(found) == 0)
    }

    /// Recorded Events that are not there, and that nobody excuses; before the deletion without those of the end.
    pub fn missing_events(&self, seen: &Observed, before_deletion: bool) -> Vec<Difference> {
        let found = self.event_differences(seen);
        let missing = found.into_iter().filter(|difference| difference.ours.is_empty());
        let missing = missing.filter(|difference| self.unwanted(std::slice::from_ref(difference)) > 0);
        missing.filter(|d| !before_deletion || !d.path.contains(STOPPING)).collect()
    }

    fn event_differences(&self, seen: &Observed) -> Vec<Difference> {
        let mut ours = compare::events(seen.events(self.name()), &self.particulars);
        let theirs = compare::events(&self.record.events, &self.particulars);
        if self.record.loops() {
            // Whether something ran when the deletion came is a matter of the moment.
            ours.retain(|event| !event.contains(STOPPING));
        }
        self.sets_differ("event", &ours, &theirs)
    }

    fn sets_differ(&self, what: &str, ours: &BTreeSet<String>, theirs: &BTreeSet<String>) -> Vec<Difference> {
        let side = |set: &BTreeSet<String>, entry: &String| {
            if set.contains(entry) { "there".to_owned() } else { String::new() }
        };
        let one = |entry: &String| Difference {
            pod: self.name().to_owned(),
            path: format!("{what} {entry}"),
            ours: side(ours, entry),
            theirs: side(theirs, entry),
        };
        ours.symmetric_difference(theirs).map(one).collect()
    }

    /// Everything that differs, once the pod is gone.
    pub fn differences(&self, seen: &Observed) -> Vec<Difference> {
        let states = seen.pod(self.name());
        let transitions: Vec<Value> =
            states.iter().map(|event| compare::transition(&event["object"])).collect();
        let mut found = self.settled.clone().unwrap_or_default();
        if states.is_empty() {
            found.extend(self.differ("seen", &json!("never"), &json!("there")));
        }
        if self.stage != Stage::Gone {
            found.extend(self.differ("gone", &json!(false), &json!(true)));
        }
        let ours = transitions.last().map(|end| compare::end(end, &self.particulars));
        let theirs = compare::end(self.record.end(), &self.particulars);
        found.extend(self.differ("end", &ours.unwrap_or_default(), &theirs));
        found.extend(self.way_differs(&transitions));
        found.extend(self.event_differences(seen));
        found
    }

    /// Fewer steps than recorded are fine, others are not.
    fn way_differs(&self, transitions: &[Value]) -> Vec<Difference> {
        let mut recorded = compare::reasons(&self.record.transitions);
        let mut seen = compare::reasons(transitions);
        seen.retain(|reason| !ON_THE_WAY.iter().any(|usual| reason.ends_with(usual)));
        recorded.retain(|reason| seen.contains(reason));
        let mut found = self.sets_differ("reason", &seen, &recorded);
        let (ours, theirs) = (compare::phases(transitions), compare::phases(&self.record.transitions));
        let mut rest = theirs.iter();
        if !ours.iter().all(|phase| rest.any(|other| other == phase)) {
            found.extend(self.differ("phases", &json!(ours), &json!(theirs)));
        }
        found
    }

    /// How many of them the table does not name.
    fn unwanted(&self, found: &[Difference]) -> usize {
        let wanted = |difference: &Difference| self.allowed.iter().any(|entry| entry.covers(difference));
        found.iter().filter(|difference| !wanted(difference)).count()
    }
}
