//! Many pods at once, and for long. These tests measure the agent, and want the machine for themselves.

// Real processes live in real time.
#![allow(clippy::disallowed_methods)]

#[path = "../support/mod.rs"]
mod support;

mod burst;
mod soak;
