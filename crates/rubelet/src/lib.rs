//! The parts of the `rubelet` binary that can be tested without running it: its command line and its
//! configuration. `main.rs` only wires them together.

pub mod commands;
pub mod config;
pub mod flags;
pub mod logging;
