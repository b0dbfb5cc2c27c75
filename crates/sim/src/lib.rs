//! A simulated node under the same [`decide::step`] that ships.
//!
//! ```text
//!   workload, faults ──> scheduler ──> Event ──> decide::step ──> Effect ──┐
//!                           ^                                             │
//!                           └──────── outcomes, in a seeded order <── world┘        checks after everything
//! ```
//!
//! One thread, one seed, no clock of its own: the same seed is the same run, event for event. Time passes only when
//! nothing is left to do at an instant, so an hour of back-offs takes a moment.

pub mod check;
pub mod drive;
pub mod faults;
mod queue;
pub mod record;
mod replanning;
mod report;
pub mod rng;
mod run;
mod scenario;
mod shrink;
pub mod time;
pub mod workload;
pub mod world;

pub use drive::Mutant;
pub use run::{Failure, Options, Outcome, Profile, run};
pub use scenario::{Scenario, ScenarioParts};
pub use shrink::{Shrunk, shrink};
