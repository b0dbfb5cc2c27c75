//! Crashes of the agent, and faults of the runtime and the API server.

// Real processes live in real time.
#![allow(clippy::disallowed_methods)]

#[path = "../support/mod.rs"]
mod support;

mod api_trouble;
mod crash;
mod crash_orphans;
mod crash_phases;
mod essential_tasks;
mod iptables;
mod kills;
mod long_texts;
mod runtime_away;
mod runtime_faults;
mod silent_watch;
