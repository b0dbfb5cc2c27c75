//! The decision core: what a kubelet decides, without doing any of it.
//!
//! ```text
//!   Event ──> step(&mut NodeState, Now, Event) ──> Vec<Effect>
//! ```
//!
//! No I/O, no clock, no randomness: the same state and event give the same effects. The engine performs effects and
//! feeds every outcome back as an event; `sim` does the same over a simulated world.

pub mod admission;
pub mod allocation;
pub mod back_off;
pub mod cgroups;
pub mod credentials;
pub mod csi;
pub mod disk_limits;
pub mod effect;
pub mod event;
pub mod events;
mod gated_fields;
pub mod hash;
pub mod hooks;
pub mod images;
pub mod jitter;
pub mod lease;
pub mod ledger;
pub mod lifecycle;
pub mod manifest;
pub mod mirror;
pub mod node;
pub mod node_requests;
pub mod objects;
pub mod observation_guard;
mod pem;
pub mod plan;
pub mod probes;
pub mod publish;
pub mod pull_rate;
pub mod render;
pub mod resources;
pub mod restart;
pub mod runtime_class;
pub mod sandbox;
pub mod sandbox_placement;
pub mod set_aside;
pub mod sources;
pub mod state;
pub mod status;
mod step;
pub mod stop_signals;
pub mod termination_message;
pub mod timer_queue;
pub mod user_namespaces;
pub mod volumes;

pub use effect::{Action, Effect, Epoch, Stage, StartContainer, Sweep, TimerKey};
pub use event::{ActionResult, CallFailure, Event, Hint};
pub use state::NodeState;
pub use step::step;
pub use timer_queue::TimerQueue;
