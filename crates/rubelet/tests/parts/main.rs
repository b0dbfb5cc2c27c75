//! The real parts that the other tests run on, and the demo.

// Real processes live in real time.
#![allow(clippy::disallowed_methods)]

#[path = "../support/mod.rs"]
mod support;

mod cluster;
mod demo;
mod proxy;
mod runtime;
