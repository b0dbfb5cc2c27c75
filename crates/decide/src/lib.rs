//! The decision core: what a kubelet decides, without doing any of it.
//!
//! ```text
//!   Event ──> step(&mut NodeState, Now, Event) ──> Vec<Effect>
//! ```
//!
//! No I/O, no clock, no randomness: the same state and event give the same effects. The engine performs effects and
//! feeds every outcome back as an event; `sim` does the same over a simulated world.

pub mod action;
mod admission;
mod allocation;
pub mod back_off;
pub mod cgroups;
pub mod credentials;
pub mod csi;
pub mod disk_limits;
pub mod effect;
pub mod event;
pub mod events;
pub mod eviction;
mod gated_fields;
pub mod hooks;
pub mod image_garbage;
pub mod image_pull;
pub mod images;
pub mod jitter;
pub mod lease;
mod ledger;
pub mod lifecycle;
pub mod log_rotation;
pub mod mirror;
pub mod node;
pub mod node_cgroups;
pub mod node_requests;
pub mod objects;
pub mod observation_guard;
mod pem;
pub mod plan;
mod plan_cursor;
mod pod_volumes;
mod probes;
pub mod publish;
mod pull_rate;
pub mod render;
pub mod resources;
pub mod restart;
mod runtime_class;
mod runtime_health;
mod sandbox;
pub mod sandbox_placement;
pub mod set_aside;
mod sources;
pub mod state;
pub mod status;
mod step;
mod stop_signals;
pub mod termination_message;
mod timer_queue;
mod token_lifetime;
pub mod user_namespaces;
pub mod volume_operations;
pub mod volumes;

pub use action::{Action, ActionResult, CallFailure, Epoch, Stage, StartContainer};
pub use effect::{Effect, Sweep, TimerKey};
pub use event::{Event, Hint};
pub use plan_cursor::{ActionIndex, PlanCursor, PlanProgress};
pub use state::NodeState;
pub use step::step;
pub use timer_queue::TimerQueue;
