//! The agent's own HTTP: the health port, the read-only port, metrics, and the socket that the human commands ask.
//!
//! ```text
//!   healthz port  ──┐
//!   read-only port ─┼─> Endpoints ──> AgentView (the engine answers between two events)
//!   control socket ─┘        └──────> AgentMetrics <── MeteredRuntime, MeteredImages, MeteredEvents
//! ```
//!
//! Everything here only reads. Nothing decides, and an agent that does not answer is told to the caller within
//! [`PATIENCE`] instead of leaving the request hanging.

mod access;
mod api;
mod control;
mod counted;
mod endpoints;
mod guests;
mod health;
mod listen;
mod metered;
mod metered_plugins;
mod metrics;
mod packed;
mod pod_list;
mod process;
mod secure;
mod sparing;
mod stats;
#[cfg(test)]
mod testing;
mod tls;
#[doc(hidden)]
pub mod untrusted;

use std::time::Duration;

pub use access::{Access, AccessError, Authentication, Authorization};
pub use api::{ApiSettings, SecureApi, SetVerbosity, StreamingTls};
pub use endpoints::Endpoints;
pub use health::{HealthCheck, HealthChecks, Unhealthy, Verdict};
pub use listen::{ServeError, Serving, serve_tcp, serve_unix};
pub use metered::{MeteredCgroups, MeteredEvents, MeteredHooks, MeteredImages, MeteredNode, MeteredRuntime};
pub use metered_plugins::{MeteredCredentials, MeteredDrivers, MeteredSockets};
pub use metrics::{AgentMetrics, BuildInfo, CertificateFigures};
pub use secure::{Tls, serve_tls};
pub use stats::{NodeStats, StatsPorts, StatsSettings};
pub use tls::{ClientAuthority, ServingCertificate, TlsError, TlsSettings, server_config};

/// How long the agent may take to answer a question. It answers in milliseconds; this long means that it hangs.
pub const PATIENCE: Duration = Duration::from_secs(10);
