use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::action::{Action, CallFailure};

fn bad() -> ActionResult {
    ActionResult::Failed(CallFailure { unreachable: false, message: "no".into() })
}

/// `"ab | !cd | !e@5"`: an action per letter; `!`: the stage must succeed; `@5`: it waits until this time at most.
fn plan(text: &str) -> (Vec<Stage>, Vec<(char, ActionIndex)>) {
    let (mut stages, mut names) = (Vec::new(), Vec::new());
    for (number, stage) in text.split('|').map(str::trim).enumerate() {
        let (actions, due) = stage.split_once('@').unwrap_or((stage, ""));
        let letters = actions.trim_start_matches('!');
        names.extend(
            letters.chars().enumerate().map(|(n, name)| (name, ActionIndex { stage: number, action: n })),
        );
        stages.push(Stage {
            actions: letters.chars().map(|_| Action::TearDownVolumes).collect(),
            stop_on_failure: actions.starts_with('!'),
            not_after: due.parse().ok().map(Mono),
        });
    }
    (stages, names)
}

/// Inputs: `begin`, `+a` (ended well), `-a` (failed), `cancel`, a time. Each with what follows: actions that start,
/// `(skipped)`, `.` at the end of the plan, and the time to be woken at.
fn check(text: &str, inputs: &[(&str, &str)]) {
    let (stages, names) = plan(text);
    let index = |name: &str| names.iter().find(|(n, _)| name.ends_with(*n)).expect("an action").1;
    let letters = |of: &[ActionIndex]| -> String {
        of.iter().filter_map(|at| names.iter().find(|(_, i)| i == at)).map(|(name, _)| *name).collect()
    };
    let mut cursor = PlanCursor::new(Arc::new(stages));
    for (number, (input, expect)) in inputs.iter().enumerate() {
        let progress = match *input {
            "begin" => cursor.begin(),
            "cancel" => cursor.cancel(),
            ended if ended.starts_with('+') => cursor.action_ended(index(ended), &ActionResult::Ok),
            ended if ended.starts_with('-') => cursor.action_ended(index(ended), &bad()),
            time => cursor.time_reached(Mono(time.parse().expect("a time"))),
        };
        let mut follows = letters(&progress.start);
        if !progress.skipped.is_empty() {
            follows += &format!("({})", letters(&progress.skipped));
        }
        if progress.ended {
            follows += ".";
        }
        if let Some(at) = cursor.wake_at() {
            follows += &format!("@{}", at.0);
        }
        assert_eq!(follows, *expect, "{text}: {input}, input {number} of {inputs:?}");
    }
}

#[test]
fn stages_start_in_order() {
    check("ab | c | d", &[("begin", "ab"), ("+b", ""), ("+a", "c"), ("+c", "d"), ("+d", ".")]);
    check("", &[("begin", ".")]);
    check("a |  | b", &[("begin", "a"), ("+a", "b"), ("+b", ".")]);
    // An end that is told twice, or of an action that has not started.
    check("ab | c | d", &[("begin", "ab"), ("+a", ""), ("+a", ""), ("+d", ""), ("+b", "c")]);
    check("a", &[("+a", ""), ("7", ""), ("begin", "a"), ("+a", "."), ("+a", ""), ("cancel", ""), ("7", "")]);
}

#[test]
fn a_failure_ends_the_plan_where_the_stage_must_succeed() {
    check("ab | c", &[("begin", "ab"), ("-a", ""), ("-b", "c"), ("-c", ".")]);
    check("!ab | c | d", &[("begin", "ab"), ("-a", ""), ("+b", "(cd).")]);
    check("!ab | c", &[("begin", "ab"), ("+a", ""), ("-b", "(c).")]);
    // Each stage has its own say: the later one here may fail, and the earlier one may in the next line.
    check("!a | b@5 | c", &[("begin", "a@5"), ("5", "b"), ("-b", ""), ("+a", "c"), ("+c", ".")]);
    check("!a | b@5 | c", &[("begin", "a@5"), ("5", "b"), ("-a", "(c)"), ("+b", ".")]);
    check("a | !b@5 | c", &[("begin", "a@5"), ("5", "b"), ("-a", ""), ("+b", "c"), ("+c", ".")]);
    check("a | !b@5 | c", &[("begin", "a@5"), ("5", "b"), ("-b", "(c)"), ("+a", ".")]);
}

#[test]
fn a_failed_hook_is_no_failure_and_an_interruption_is() {
    let ends = |result: &ActionResult| {
        let mut cursor = PlanCursor::new(Arc::new(plan("!a | b").0));
        cursor.begin();
        cursor.action_ended(ActionIndex { stage: 0, action: 0 }, result).ended
    };
    assert!(!ends(&ActionResult::HookFailed { message: "no".into() }));
    assert!(!ends(&ActionResult::Dirs { log_numbers: BTreeMap::new() }));
    assert!(ends(&ActionResult::Interrupted));
    assert!(ends(&bad()));
}

#[test]
fn a_stage_with_a_time_waits_no_longer_than_that() {
    check("!a | !b@5", &[("begin", "a@5"), ("4", "@5"), ("+a", "b"), ("+b", ".")]);
    check(
        "!a | !b@5 | !c@9",
        &[("begin", "a@5"), ("5", "b@9"), ("9", "c"), ("+c", ""), ("+a", ""), ("+b", ".")],
    );
    check("!a | !b@5 | !c@9", &[("begin", "a@5"), ("10", "bc"), ("+a", ""), ("+b", ""), ("+c", ".")]);
    // The third one waits for the first, too.
    check("!a | !b@5 | !c", &[("begin", "a@5"), ("5", "b"), ("+b", ""), ("+a", "c")]);
    // The first one does not wait at all.
    check("!a@5 | !b", &[("begin", "a"), ("+a", "b")]);
    // A stage that must succeed has failed, but not ended: containers have no more time than their grace.
    check("!ab | !c@5 | d", &[("begin", "ab@5"), ("-a", "@5"), ("5", "c"), ("+b", "(d)"), ("+c", ".")]);
}

#[test]
fn nothing_starts_after_a_cancellation() {
    check("ab | c | d", &[("begin", "ab"), ("cancel", "(cd)"), ("+a", ""), ("+b", ".")]);
    check("a | c@5", &[("begin", "a@5"), ("cancel", "(c)"), ("5", ""), ("cancel", ""), ("+a", ".")]);
    check("a | b", &[("cancel", ""), ("begin", "(ab).")]);
    check("a", &[("begin", "a"), ("cancel", ""), ("-a", ".")]);
}

#[derive(Clone, Debug)]
enum Input {
    /// One of those that run, and whether it ended well.
    Ends(usize, bool),
    Cancel,
    Time(u64),
}

fn inputs() -> impl Strategy<Value = Vec<Input>> {
    let input = prop_oneof![
        8 => (any::<usize>(), prop::bool::weighted(0.8)).prop_map(|(which, well)| Input::Ends(which, well)),
        1 => Just(Input::Cancel),
        2 => (0u64..12).prop_map(Input::Time),
    ];
    prop::collection::vec(input, 0..20)
}

fn stages() -> impl Strategy<Value = Vec<Stage>> {
    let stage = (0usize..4, any::<bool>(), prop::option::weighted(0.3, 0u64..12));
    let stage = stage.prop_map(|(actions, stop_on_failure, due)| Stage {
        actions: vec![Action::TearDownVolumes; actions],
        stop_on_failure,
        not_after: due.map(Mono),
    });
    prop::collection::vec(stage, 0..6)
}

/// What an observer of the cursor knows.
#[derive(Default)]
struct Seen {
    now: u64,
    cancelled: bool,
    running: BTreeSet<ActionIndex>,
    outcomes: BTreeMap<ActionIndex, &'static str>,
    ended: bool,
}

impl Seen {
    fn apply(&mut self, stages: &[Stage], progress: PlanProgress) {
        assert!(!self.ended || progress == PlanProgress::default(), "after the end: {progress:?}");
        assert!(!self.cancelled || progress.start.is_empty(), "started after the cancellation: {progress:?}");
        let waited_for: Vec<_> = self.running.iter().copied().collect();
        for at in progress.start {
            let due = stages[at.stage].not_after.is_some_and(|due| due.0 <= self.now);
            let earlier = waited_for.iter().chain(&self.running).find(|other| other.stage < at.stage);
            assert!(due || earlier.is_none(), "{at:?} started before the end of {earlier:?}");
            assert!(self.running.insert(at) && !self.outcomes.contains_key(&at), "{at:?} started twice");
        }
        for at in progress.skipped {
            assert!(!self.running.contains(&at), "{at:?} was skipped while it ran");
            assert_eq!(self.outcomes.insert(at, "skipped"), None, "{at:?}");
        }
        self.ended |= progress.ended;
        let total: usize = stages.iter().map(|stage| stage.actions.len()).sum();
        let all = self.running.is_empty() && self.outcomes.len() == total;
        assert_eq!(self.ended, all, "{:?} run, {:?}", self.running, self.outcomes);
    }
}

proptest! {
    #[test]
    fn every_action_has_one_outcome_and_every_plan_ends(
        (stages, inputs) in (stages(), inputs()),
    ) {
        let mut cursor = PlanCursor::new(Arc::new(stages.clone()));
        let mut seen = Seen::default();
        let end = |cursor: &mut PlanCursor, seen: &mut Seen, which: usize, well: bool| {
            let Some(at) = seen.running.iter().nth(which % seen.running.len().max(1)).copied() else { return };
            seen.running.remove(&at);
            assert_eq!(seen.outcomes.insert(at, "ended"), None);
            let result = if well { ActionResult::Ok } else { bad() };
            seen.apply(&stages, cursor.action_ended(at, &result));
        };
        seen.apply(&stages, cursor.begin());
        for input in inputs {
            match input {
                Input::Ends(which, well) => end(&mut cursor, &mut seen, which, well),
                Input::Cancel => {
                    seen.cancelled = true;
                    seen.apply(&stages, cursor.cancel());
                }
                Input::Time(at) => {
                    seen.now = seen.now.max(at);
                    seen.apply(&stages, cursor.time_reached(Mono(seen.now)));
                }
            }
            if let Some(due) = cursor.wake_at() {
                // Whoever wakes it then gets on.
                let mut copy = cursor.clone();
                let progress = copy.time_reached(due);
                prop_assert!(copy.next > cursor.next, "{due:?}: {progress:?}");
            }
        }
        // It ends once everything started has ended, without anything else.
        while !seen.running.is_empty() {
            end(&mut cursor, &mut seen, 0, true);
        }
        prop_assert!(seen.ended);
    }
}
