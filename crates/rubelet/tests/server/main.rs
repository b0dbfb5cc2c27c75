//! What the agent tells and serves: its HTTP endpoints, streams, metrics, traces, notices to systemd, and the chains of
//! iptables that others on the host expect.

// Real processes live in real time.
#![allow(clippy::disallowed_methods)]

#[path = "../support/mod.rs"]
mod support;

mod endpoints;
mod hostile;
mod iptables_chains;
mod kubectl;
mod kubectl_top;
mod metrics;
mod node_cgroups;
mod node_log_query;
mod notify;
mod pods_api;
mod rights;
mod runtime_figures;
mod secure_port;
mod streams;
mod tracing;
