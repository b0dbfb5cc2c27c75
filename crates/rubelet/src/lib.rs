//! The parts of the `rubelet` binary: its command line, its configuration, how the rooms are joined to an agent, and
//! the commands for people. `main.rs` only dispatches.

pub mod agent;
mod cluster;
pub mod commands;
pub mod config;
pub mod flags;
pub mod logging;
mod notify;
mod placement;
mod secure_port;
mod test_panics;
mod wire;
