//! Nodes and pods of a real API server.

// Real processes live in real time.
#![allow(clippy::disallowed_methods)]

#[path = "../support/mod.rs"]
mod support;

mod api_objects;
mod api_pods;
mod debug_containers;
mod identity;
mod node_events;
mod node_pressure;
mod pod_certificates;
mod preemption;
mod pull_secrets;
mod reference_pods;
mod serving_certificate;
mod workloads;
