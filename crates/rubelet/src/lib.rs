//! The parts of the `rubelet` binary: its command line, its configuration, and how the rooms are joined to an agent.
//! `main.rs` only dispatches.

pub mod agent;
pub mod config;
pub mod flags;
mod wire;
