//! What the end-to-end tests share, one module per subject. Each theme's `main.rs` includes it.

// Each test program uses a part of this.
#![allow(dead_code, unused_imports)]
// Real processes live in real time.
#![allow(clippy::disallowed_methods)]

pub mod api_proxy;
pub mod cluster;
pub mod cluster_node;
pub mod cri_proxy;
pub mod csi_driver;
pub mod dead_server;
pub mod guest;
pub mod harness;
pub mod kinds;
pub mod metrics_text;
pub mod pods;
pub mod pods_client;
pub mod runtime_view;
pub mod serving_node;
pub mod streams;
pub mod timestamps;
