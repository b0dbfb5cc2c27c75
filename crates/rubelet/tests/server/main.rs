//! What the agent tells and serves: its HTTP endpoints, streams, metrics, traces and notices to systemd.

// Real processes live in real time.
#![allow(clippy::disallowed_methods)]

#[path = "../support/mod.rs"]
mod support;

mod endpoints;
mod hostile;
mod kubectl;
mod kubectl_top;
mod metrics;
mod notify;
mod rights;
mod runtime_figures;
mod secure_port;
mod streams;
mod tracing;
