//! What needs a machine of its own: a booted systemd, cgroup v2, and a kernel with quotas and pressure figures.

// Real processes live in real time.
#![allow(clippy::disallowed_methods)]

#[path = "../support/mod.rs"]
mod support;

mod machine;
mod project_quotas;
mod systemd_node;
