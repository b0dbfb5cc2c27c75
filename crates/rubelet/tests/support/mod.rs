//! What the end-to-end tests share, one module per subject. Each theme's `main.rs` includes it.

// Each test program uses a part of this.
#![allow(dead_code, unused_imports)]
// Real processes live in real time.
#![allow(clippy::disallowed_methods)]

pub mod cluster;
pub mod cri_proxy;
pub mod csi_driver;
pub mod exposition;
pub mod harness;
pub mod kinds;
pub mod member;
pub mod pods;
pub mod seen;
pub mod served;
pub mod stamps;
pub mod streams;
pub mod trouble;
