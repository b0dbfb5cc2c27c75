//! The decision core: what a kubelet decides, without doing any of it.
//!
//! ```text
//!   Event ──> step(&mut NodeState, Now, Event) ──> Vec<Effect>
//! ```
//!
//! No I/O, no clock, no randomness: the same state and event give the same effects. The engine performs effects and
//! feeds every outcome back as an event; `sim` does the same over a simulated world.

pub mod effect;
pub mod event;

pub use effect::{Action, Effect, Epoch, Stage, StartContainer, Sweep, TimerKey};
pub use event::{CallFailure, Event, Hint, StepResult};
