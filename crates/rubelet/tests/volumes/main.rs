//! Volumes of every kind: of static pods, of a real API server's pods, of storage drivers.

// Real processes live in real time.
#![allow(clippy::disallowed_methods)]

#[path = "../support/mod.rs"]
mod support;

mod claims;
mod csi;
mod csi_calls;
mod pod_volumes;
mod standalone_volumes;
