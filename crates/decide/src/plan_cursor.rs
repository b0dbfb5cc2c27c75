//! The order in which the actions of one plan are carried out, and when the plan ends.
//!
//! ```text
//!   begin, action ended, cancelled, time reached ──> PlanCursor ──> start these, these are skipped, wake me at, ended
//! ```
//!
//! The cursor neither awaits nor reads a clock. The engine awaits the actions that it starts, the simulator makes their
//! calls in its world, and both tell it what happened.
//!
//! - Stages start in order; the actions of a stage start together.
//! - A stage waits until every action before it has ended, or until its own `not_after`.
//! - A stage that must succeed and has ended with a failure ends the plan. While one of its actions still runs, a later
//!   stage whose time has come starts all the same: containers are stopped in their order only until their grace ends.
//! - After a cancellation nothing starts. What has started ends by itself, and so does the plan.
//! - Each action has exactly one outcome: it is skipped, or it is started and ends.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::Mono;

use crate::action::{ActionResult, Stage};

/// An action of a plan, by the numbers that `ActionDone` carries.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ActionIndex {
    pub stage: usize,
    pub action: usize,
}

/// What follows from one input.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PlanProgress {
    pub start: Vec<ActionIndex>,
    /// These are never started. Their outcome is [`ActionResult::Skipped`].
    pub skipped: Vec<ActionIndex>,
    /// Everything has ended. Set once.
    pub ended: bool,
}

#[derive(Clone, Debug)]
pub struct PlanCursor {
    stages: Arc<Vec<Stage>>,
    /// The first stage that has neither been started nor skipped.
    next: usize,
    running: BTreeSet<ActionIndex>,
    /// Stages that must succeed and in which an action has failed.
    failed: BTreeSet<usize>,
    cancelled: bool,
    ended: bool,
}

impl PlanCursor {
    pub fn new(stages: Arc<Vec<Stage>>) -> Self {
        Self {
            stages,
            next: 0,
            running: BTreeSet::new(),
            failed: BTreeSet::new(),
            cancelled: false,
            ended: false,
        }
    }

    /// Starts the plan. Until then the other inputs do nothing but remember a cancellation.
    pub fn begin(&mut self) -> PlanProgress {
        self.advance(None)
    }

    /// A result of an action that does not run is ignored.
    pub fn action_ended(&mut self, at: ActionIndex, result: &ActionResult) -> PlanProgress {
        if !self.running.remove(&at) {
            return PlanProgress::default();
        }
        if !result.succeeded() && self.stages[at.stage].stop_on_failure {
            self.failed.insert(at.stage);
        }
        self.advance(None)
    }

    pub fn cancel(&mut self) -> PlanProgress {
        self.cancelled = true;
        match self.next == 0 {
            true => PlanProgress::default(),
            false => self.advance(None),
        }
    }

    pub fn time_reached(&mut self, now: Mono) -> PlanProgress {
        match self.next == 0 {
            true => PlanProgress::default(),
            false => self.advance(Some(now)),
        }
    }

    /// When [`Self::time_reached`] is due: the next stage then waits no longer.
    pub fn wake_at(&self) -> Option<Mono> {
        if self.stops() || self.running.is_empty() {
            return None;
        }
        self.stages.get(self.next)?.not_after
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled
    }

    /// Whether no further stage starts.
    fn stops(&self) -> bool {
        let still_runs = |stage: usize| self.running.iter().any(|at| at.stage == stage);
        self.cancelled || self.failed.iter().any(|stage| !still_runs(*stage))
    }

    fn advance(&mut self, now: Option<Mono>) -> PlanProgress {
        let mut progress = PlanProgress::default();
        let stages = self.stages.clone();
        while let Some(stage) = stages.get(self.next) {
            let stops = self.stops();
            let is_due = stage.not_after.is_some_and(|due| now.is_some_and(|now| due <= now));
            if !stops && !is_due && !self.running.is_empty() {
                break;
            }
            let actions = (0..stage.actions.len()).map(|action| ActionIndex { stage: self.next, action });
            if stops {
                progress.skipped.extend(actions);
            } else {
                self.running.extend(actions.clone());
                progress.start.extend(actions);
            }
            self.next += 1;
        }
        let all_ended = self.next == stages.len() && self.running.is_empty();
        progress.ended = all_ended && !std::mem::replace(&mut self.ended, all_ended);
        progress
    }
}

#[cfg(test)]
mod tests;
