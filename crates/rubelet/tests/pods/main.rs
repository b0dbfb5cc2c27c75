//! What becomes of pods and their containers on a node without an API server: one file per subject.

// Real processes live in real time.
#![allow(clippy::disallowed_methods)]

#[path = "../support/mod.rs"]
mod support;

mod bad_manifests;
mod container_view;
mod garbage;
mod hooks;
mod hostile_containers;
mod image_garbage;
mod images;
mod lifecycle;
mod log_rotation;
mod order;
mod probes;
mod pulls;
mod restart;
mod restart_all;
mod runtime_class;
mod stop;
mod url;
mod user_namespaces;
