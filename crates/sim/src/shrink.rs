//! Shortens a failing run: parts are left out as long as the same invariant still breaks (delta debugging).
//!
//! ```text
//!   all parts ──> without one half, without the other ──> without each quarter ──> … ──> without each single part
//! ```

use crate::run::{Options, Outcome, run, scenario_of};
use crate::scenario::ScenarioParts;

/// A run may take seconds in a slow build; this many are enough for some thirty parts.
const MOST_RUNS: usize = 400;

pub struct Shrunk {
    /// The parts that are needed for the invariant to break.
    pub only: ScenarioParts,
    /// Each of these parts with its description.
    pub descriptions: Vec<(String, String)>,
    pub outcome: Outcome,
    pub runs: usize,
    pub parts_before: usize,
}

/// `None`: the run does not fail.
pub fn shrink(seed: u64, options: &Options) -> Option<Shrunk> {
    let mut all = match &options.only {
        Some(only) => only.clone(),
        None => scenario_of(seed, options).parts(),
    };
    let parts_before = all.len();
    let mut runs = 0;
    let mut attempt = |only: &ScenarioParts| {
        runs += 1;
        let options = Options { only: Some(only.clone()), print: false, record: false, ..options.clone() };
        run(seed, &options)
    };
    let broken = |outcome: &Outcome| outcome.failure.as_ref().map(|f| f.violation.invariant);
    let mut outcome = attempt(&all);
    let invariant = broken(&outcome)?;
    let mut size = all.len().div_ceil(2).max(1);
    let mut spent = 1;
    loop {
        let mut shorter = false;
        let order: Vec<String> = all.iter().cloned().collect();
        for chunk in order.chunks(size) {
            let less: ScenarioParts = all.iter().filter(|part| !chunk.contains(part)).cloned().collect();
            if less.len() == all.len() || spent >= MOST_RUNS {
                continue;
            }
            spent += 1;
            let tried = attempt(&less);
            if broken(&tried) == Some(invariant) {
                (all, outcome, shorter) = (less, tried, true);
            }
        }
        if spent >= MOST_RUNS || (size == 1 && !shorter) {
            break;
        }
        size = if shorter { size.min(all.len().max(1)) } else { size.div_ceil(2) };
    }
    let descriptions = scenario_of(seed, options).descriptions();
    let descriptions = descriptions.into_iter().filter(|(name, _)| all.contains(name)).collect();
    Some(Shrunk { only: all, descriptions, outcome, runs, parts_before })
}
